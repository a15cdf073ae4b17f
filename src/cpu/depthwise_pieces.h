// Channels-last layers with one channel a group, row by row: which rows and taps a row of the target reads, and its
// pieces that the same taps reach.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "cpu/axis_map.h"
#include "cpu/tile.h"
#include "tconv/problem.h"

namespace tconv::cpu {

class DepthwisePieces {
 public:
  // Taps in depth and height that a row reads: where their rows begin in the source, and in the weights.
  struct RowTap {
    std::int64_t offset;
    std::int64_t place;
  };
  struct Taps {
    std::vector<std::int64_t> offsets;
    std::vector<std::int64_t> places;
  };
  // Where a row lies in the target.
  struct RowAt {
    std::int64_t image;
    std::int64_t depth;
    std::int64_t height;

    std::int64_t in(const Strides& strides) const {
      return image * strides[0] + depth * strides[2] + height * strides[3];
    }
  };

  // `tap_size`: elements from the weights of one tap to those of the next.
  DepthwisePieces(const Problem& problem, AxisMaps maps, const Strides& source, std::int64_t tap_size)
      : maps_(std::move(maps)), source_strides_(source), tap_size_(tap_size) {
    for (int a = 0; a < 2; ++a) {
      for (const AxisTarget& on_axis : maps_[a].targets) {
        for (std::int64_t j = 0; j < on_axis.lattice.count; ++j) {
          rows_[a].push_back({on_axis.lattice.first + j * on_axis.lattice.step, j, &on_axis});
        }
      }
      std::sort(rows_[a].begin(), rows_[a].end(), [](const Row& x, const Row& y) { return x.position < y.position; });
    }
    kernel_ = {problem.axes[1].kernel, problem.axes[2].kernel};
    row_count_ = problem.batch * static_cast<std::int64_t>(rows_[0].size() * rows_[1].size());
  }

  // The order of the rows refers to the maps.
  DepthwisePieces(const DepthwisePieces&) = delete;
  DepthwisePieces& operator=(const DepthwisePieces&) = delete;

  const AxisMaps& maps() const { return maps_; }
  std::int64_t row_count() const { return row_count_; }

  // A row, and the taps that reach it.
  RowAt enter_row(std::int64_t index, std::vector<RowTap>& taps) const {
    const auto heights = static_cast<std::int64_t>(rows_[1].size());
    const auto depths = static_cast<std::int64_t>(rows_[0].size());
    const Row& height = rows_[1][index % heights];
    const Row& depth = rows_[0][index / heights % depths];
    const std::int64_t image = index / (heights * depths);
    taps.clear();
    for (const AxisTap& kd : depth.target->taps) {
      const Lattice& in_depth = maps_[0].sources[kd.source];
      const std::int64_t d = depth.cell + kd.offset;
      if (d < 0 || d >= in_depth.count) continue;
      for (const AxisTap& kh : height.target->taps) {
        const Lattice& in_height = maps_[1].sources[kh.source];
        const std::int64_t h = height.cell + kh.offset;
        if (h < 0 || h >= in_height.count) continue;
        taps.push_back({(in_depth.first + d * in_depth.step) * source_strides_[2] +
                            (in_height.first + h * in_height.step) * source_strides_[3],
                        (kd.tap * kernel_[0] + kh.tap) * kernel_[1] * tap_size_});
      }
    }
    return {image, depth.position, height.position};
  }

  // Calls visit(width target, first cell, cells, taps) for pieces of a row that the same taps reach.
  template <typename Visit>
  void for_each_piece(const std::vector<RowTap>& row_taps, Taps& taps, const Visit& visit) const {
    for (const AxisTarget& width : maps_[2].targets) {
      const std::int64_t count = width.lattice.count;
      std::int64_t low = 0;  // low <= cell < high: all taps of the row reach it
      std::int64_t high = count;
      for (const AxisTap& tap : width.taps) {
        low = std::max(low, -tap.offset);
        high = std::min(high, maps_[2].sources[tap.source].count - tap.offset);
      }
      low = std::min(low, count);
      high = std::max(high, low);
      const auto piece = [&](std::int64_t first, std::int64_t cells) {
        if (cells <= 0) return;
        taps.offsets.clear();
        taps.places.clear();
        for (const RowTap& row : row_taps) {
          for (const AxisTap& tap : width.taps) {
            const Lattice& source = maps_[2].sources[tap.source];
            const std::int64_t cell = first + tap.offset;
            if (cell < 0 || cell >= source.count) continue;
            taps.offsets.push_back(row.offset + (source.first + cell * source.step) * source_strides_[4]);
            taps.places.push_back(row.place + tap.tap * tap_size_);
          }
        }
        visit(width, first, cells, taps);
      };
      for (std::int64_t j = 0; j < low; ++j) piece(j, 1);
      piece(low, high - low);
      for (std::int64_t j = high; j < count; ++j) piece(j, 1);
    }
  }

  // Calls visit(weight, tap) for all taps, in the order of their places.
  template <typename E, typename Visit>
  static void for_each_weight(const Problem& problem, E* weight, const Visit& visit) {
    const Strides& strides = problem.weight_strides;
    const auto& [depth, height, width] = problem.axes;
    std::int64_t tap = 0;
    for (std::int64_t d = 0; d < depth.kernel; ++d) {
      for (std::int64_t h = 0; h < height.kernel; ++h) {
        for (std::int64_t w = 0; w < width.kernel; ++w) {
          visit(weight + d * strides[2] + h * strides[3] + w * strides[4], tap++);
        }
      }
    }
  }

 private:
  struct Row {
    std::int64_t position;
    std::int64_t cell;  // of its lattice
    const AxisTarget* target;
  };

  AxisMaps maps_;
  Strides source_strides_{};
  std::int64_t tap_size_ = 1;
  std::array<std::vector<Row>, 2> rows_;    // of depth and height, in the order of their positions
  std::array<std::int64_t, 2> kernel_{};    // height, width
  std::int64_t row_count_ = 0;
};

}  // namespace tconv::cpu
