// grad_output as the taps of few output channels read it: a box around the cells of a tile, with zeros where there is
// nothing. A cell is a place in it and so is a tap, so that products of either read it where it is; the taps of a row
// lie side by side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/family.h"
#include "cpu/packing.h"
#include "cpu/tile.h"
#include "tconv/problem.h"

namespace tconv::cpu {

inline constexpr std::int64_t kFewOutputs = 6;  // fewer output channels than this are read from windows

// Tiles of input cells without anything between them, and all taps in order.
inline AxisMaps maps_of_cells(const Problem& problem) {
  AxisMaps maps;
  for (int a = 0; a < kSpatialAxes; ++a) {
    const Axis& axis = problem.axes[a];
    AxisTarget target{{0, 1, axis.input}, {}};
    for (std::int64_t tap = 0; tap < axis.kernel; ++tap) target.taps.push_back({tap, 0, 0});
    maps[a].cells = axis.input;
    maps[a].targets = {std::move(target)};
    maps[a].sources = {{0, 1, 0}};
  }
  return maps;
}

class Window {
 public:
  Window() = default;
  // For tiles of this shape.
  Window(const Problem& problem, const TileShape& shape)
      : axes_(problem.axes), strides_(problem.output_strides), channels_(problem.out_channels_per_group()) {
    inside_ = channels_ > 1 && strides_[1] == 1 && strides_[4] == channels_;
    const std::int64_t cell = inside_ ? channels_ : 1;
    for (int a = 0; a < kSpatialAxes; ++a) {
      size_[a] = extent(a, shape.block[a]);
      output_[a] = axes_[a].output();
    }
    const std::int64_t row = round_up(size_[2] * cell, 2);  // pairs of elements begin with it
    steps_ = {size_[1] * row, row, cell};
    channel_step_ = inside_ ? 1 : size_[0] * steps_[0];
    image_step_ = (inside_ ? 1 : channels_) * size_[0] * steps_[0];
    images_ = shape.images;
    line_ = {shape.steps, shape.image_step};
  }

  std::int64_t size() const { return images_ * image_step_; }
  bool channels_inside() const { return inside_; }

  // Cell c of the tile reads, through a tap, the element place_of_cell + place_of_tap.
  std::int64_t place_of_cell(std::int64_t image, const Triple& cell) const {
    std::int64_t place = image * image_step_;
    for (int a = 0; a < kSpatialAxes; ++a) place += cell[a] * axes_[a].stride * steps_[a];
    return place;
  }
  std::int64_t place_of_tap(std::int64_t channel, const Triple& tap) const {
    std::int64_t place = channel * channel_step_;
    for (int a = 0; a < kSpatialAxes; ++a) place += tap[a] * axes_[a].dilation * steps_[a];
    return place;
  }
  // The same of a cell by its position along the line.
  std::int64_t place_on_line(std::int64_t position) const {
    return place_of_cell(position / line_.image_step, cell_on_line(position));
  }
  Triple cell_on_line(std::int64_t position) const {
    position %= line_.image_step;
    return {position / line_.steps[0], position % line_.steps[0] / line_.steps[1], position % line_.steps[1]};
  }

  // The taps of a cell of the tensor that read something along an axis: first <= tap < last.
  struct TapRange {
    std::int64_t first = 0;
    std::int64_t last = 0;

    bool has(std::int64_t tap) const { return tap >= first && tap < last; }
    bool operator==(const TapRange&) const = default;
  };
  TapRange taps_of_cell(int a, std::int64_t cell) const {
    const Axis& axis = axes_[a];
    const std::int64_t place = cell * axis.stride - axis.pad_begin;  // of tap 0
    TapRange range;
    range.first = std::min(place < 0 ? ceil_div(-place, axis.dilation) : 0, axis.kernel);
    range.last = place < output_[a] ? (output_[a] - 1 - place) / axis.dilation + 1 : 0;
    range.last = std::clamp(range.last, range.first, axis.kernel);
    return range;
  }

  // What a tile reads; `grad` is the tensor from the first channel of the group on.
  template <typename E, typename T>
  void load(const Tile& tile, const E* grad, T* to) const {
    const ElementOps<E, T>& ops = element_ops<E, T>();
    load(tile, grad, to,
         [&ops](const E* from, std::int64_t step, T* row, std::int64_t count) { ops.load(from, step, row, 1, count); });
  }
  // The same, where copy(from, step, to, count) moves what is there of a row.
  template <typename E, typename T, typename Copy>
  void load(const Tile& tile, const E* grad, T* to, const Copy& copy) const {
    Triple low{};  // low <= position < high of the box exist
    Triple high{};
    Triple first{};  // where position 0 stands in the tensor
    for (int a = 0; a < kSpatialAxes; ++a) {
      first[a] = tile.begin[a] * axes_[a].stride - axes_[a].pad_begin;
      const std::int64_t read = extent(a, tile.count[a]);
      low[a] = std::clamp<std::int64_t>(-first[a], 0, read);
      high[a] = std::clamp<std::int64_t>(output_[a] - first[a], low[a], read);
    }
    const std::int64_t lines = inside_ ? 1 : channels_;
    const std::int64_t cell = steps_[2];
    const std::int64_t row_size = size_[2] * cell;
    for (std::int64_t image = 0; image < tile.images; ++image) {
      for (std::int64_t channel = 0; channel < lines; ++channel) {
        const E* const from = grad + (tile.image + image) * strides_[0] + channel * strides_[1];
        T* const box = to + image * image_step_ + channel * channel_step_;
        for (std::int64_t d = 0; d < size_[0]; ++d) {
          for (std::int64_t h = 0; h < size_[1]; ++h) {
            T* const row = box + d * steps_[0] + h * steps_[1];
            if (d < low[0] || d >= high[0] || h < low[1] || h >= high[1]) {
              std::fill_n(row, row_size, T{});
              continue;
            }
            std::fill(row, row + low[2] * cell, T{});
            std::fill(row + high[2] * cell, row + row_size, T{});
            copy(from + (first[0] + d) * strides_[2] + (first[1] + h) * strides_[3] + (first[2] + low[2]) * strides_[4],
                 inside_ ? 1 : strides_[4], row + low[2] * cell, (high[2] - low[2]) * cell);
          }
        }
      }
    }
  }

 private:
  // Positions of an axis that the taps of neighbouring cells read.
  std::int64_t extent(int a, std::int64_t cells) const {
    return (cells - 1) * axes_[a].stride + axes_[a].dilation * (axes_[a].kernel - 1) + 1;
  }

  struct Line {
    Triple steps{1, 1, 1};
    std::int64_t image_step = 1;
  };

  std::array<Axis, kSpatialAxes> axes_{};
  Triple output_{};
  Strides strides_{};
  std::int64_t channels_ = 1;
  bool inside_ = false;  // channels are innermost
  std::int64_t images_ = 1;
  Triple size_{};
  Triple steps_{};
  std::int64_t channel_step_ = 0;
  std::int64_t image_step_ = 0;
  Line line_;
};

// A row of a window of elements as they are.
inline void copy_elements(const BFloat16* from, std::int64_t step, BFloat16* row, std::int64_t count) {
  if (step == 1) {
    std::copy_n(from, count, row);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) row[i] = from[i * step];
}

// Cells of a tile, no more than `most`, whose window takes up about `room` elements. Nothing where windows are not
// worth holding (an enormous dilation) or empty, which does not depend on the batch.
std::optional<std::int64_t> cells_of_window(const Problem& problem, std::int64_t most, std::int64_t room);

// grad_input from windows, where it is worth while.
Proposal propose_windows(const Problem& problem);

}  // namespace tconv::cpu
