// Input cells counted through all images, and the columns (output channel, tap) of the weight: where a cell and a column
// meet in the output, and how cells move between a tensor and lines of [channel][cell].
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/simd.h"
#include "cpu/tile.h"
#include "tconv/problem.h"

namespace tconv::cpu {

class ColumnMap {
 public:
  // Places are counted in the given strides, from the first channel of the group on.
  ColumnMap(const Problem& problem, const Strides& strides)
      : axes_(problem.axes), sizes_(problem.output_sizes()), strides_(strides) {
    for (const Axis& axis : axes_) {
      taps_ *= axis.kernel;
      image_cells_ *= axis.input;
    }
    columns_ = taps_ * problem.out_channels_per_group();
    cells_ = image_cells_ * problem.batch;
  }

  std::int64_t taps() const { return taps_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t image_cells() const { return image_cells_; }
  std::int64_t cells() const { return cells_; }
  std::int64_t step() const { return axes_[2].dilation * strides_[4]; }  // between the taps of a row

  // Calls visit(column, count, place) for the pieces of [begin, end) that reach the output, in order: column + t lies
  // at place + t step().
  template <typename Visit>
  void for_each_piece(std::int64_t cell, std::int64_t begin, std::int64_t end, const Visit& visit) const {
    const auto& [depth, height, width] = axes_;
    const std::int64_t first_w = cell % width.input * width.stride - width.pad_begin;
    const std::int64_t first_h = cell / width.input % height.input * height.stride - height.pad_begin;
    const std::int64_t first_d = cell / (width.input * height.input) % depth.input * depth.stride - depth.pad_begin;
    const std::int64_t image = cell / image_cells_ * strides_[0];
    // Taps of a row that reach the output.
    const std::int64_t low = first_w >= 0 ? 0 : ceil_div(-first_w, width.dilation);
    const std::int64_t high = first_w >= sizes_[4] ? 0 : ceil_div(sizes_[4] - first_w, width.dilation);
    for (std::int64_t column = begin; column < end;) {
      const std::int64_t row = column / width.kernel;
      const std::int64_t tap = column % width.kernel;
      const std::int64_t count = std::min(width.kernel - tap, end - column);
      const std::int64_t h = first_h + row % height.kernel * height.dilation;
      const std::int64_t d = first_d + row / height.kernel % depth.kernel * depth.dilation;
      const std::int64_t from = std::max(tap, low);
      const std::int64_t to = std::min(tap + count, high);
      if (h >= 0 && h < sizes_[3] && d >= 0 && d < sizes_[2] && from < to) {
        const std::int64_t channel = row / (height.kernel * depth.kernel);
        visit(column + from - tap, to - from,
              image + channel * strides_[1] + d * strides_[2] + h * strides_[3] +
                  (first_w + from * width.dilation) * strides_[4]);
      }
      column += count;
    }
  }

 private:
  std::array<Axis, kSpatialAxes> axes_;
  Sizes sizes_;
  Strides strides_;
  std::int64_t taps_ = 1;
  std::int64_t image_cells_ = 1;
  std::int64_t columns_ = 0;
  std::int64_t cells_ = 0;
};

// Calls visit(first cell - begin, count, place in the input) for pieces of cells that lie at equal distances.
template <typename Visit>
void for_each_cell_piece(const Problem& problem, std::int64_t begin, std::int64_t count, const Visit& visit) {
  const Strides& strides = problem.input_strides;
  const auto& [depth, height, width] = problem.axes;
  const std::int64_t image_cells = depth.input * height.input * width.input;
  const bool dense = (height.input == 1 || strides[3] == width.input * strides[4]) &&
                     (depth.input == 1 || strides[2] == width.input * height.input * strides[4]);
  for (std::int64_t cell = begin; cell < begin + count;) {
    const std::int64_t w = cell % width.input;
    const std::int64_t left = dense ? image_cells - cell % image_cells : width.input - w;
    const std::int64_t here = std::min(left, begin + count - cell);
    visit(cell - begin, here,
          cell / image_cells * strides[0] + cell / (width.input * height.input) % depth.input * strides[2] +
              cell / width.input % height.input * strides[3] + w * strides[4]);
    cell += here;
  }
}

// Cells of some channels of the input as lines: to[channel line + cell]
template <typename E, typename T>
void load_cells(const Problem& problem, const E* input, std::int64_t channels, std::int64_t begin, std::int64_t count,
                std::int64_t line, T* to) {
  for_each_cell_piece(problem, begin, count, [&](std::int64_t cell, std::int64_t here, std::int64_t place) {
    for (std::int64_t c = 0; c < channels; ++c) {
      element_ops<E, T>().load(input + c * problem.input_strides[1] + place, problem.input_strides[4],
                               to + c * line + cell, 1, here);
    }
  });
}

// And back.
template <typename E, typename T>
void store_cells(const Problem& problem, const T* from, std::int64_t channels, std::int64_t begin, std::int64_t count,
                 std::int64_t line, E* input) {
  for_each_cell_piece(problem, begin, count, [&](std::int64_t cell, std::int64_t here, std::int64_t place) {
    for (std::int64_t c = 0; c < channels; ++c) {
      element_ops<E, T>().store(from + c * line + cell, 1, input + c * problem.input_strides[1] + place,
                                problem.input_strides[4], here, T{0});
    }
  });
}

}  // namespace tconv::cpu
