// Input cells counted through all images, and the columns of the weight, (output channel, tap) or (tap, output
// channel): where a cell and a column meet in the output, and how cells move between a tensor and lines of
// [channel][cell].
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cpu/scalar.h"
#include "cpu/simd.h"
#include "cpu/tile.h"
#include "tconv/problem.h"

namespace tconv::cpu {

enum class ColumnOrder { taps_inside, channels_inside };

class ColumnMap {
 public:
  // Places are counted in the given strides, from the first channel of the group on.
  ColumnMap(const Problem& problem, const Strides& strides, ColumnOrder order = ColumnOrder::taps_inside)
      : axes_(problem.axes),
        sizes_(problem.output_sizes()),
        strides_(strides),
        channels_(problem.out_channels_per_group()),
        channels_inside_(order == ColumnOrder::channels_inside) {
    for (const Axis& axis : axes_) {
      taps_ *= axis.kernel;
      image_cells_ *= axis.input;
    }
    columns_ = taps_ * channels_;
    cells_ = image_cells_ * problem.batch;
    rows_are_images_ = image_cells_ == 1 && !channels_inside_;
    std::int64_t step = 1;
    for (int a = kSpatialAxes - 1; a >= 0; --a) {
      const Axis& axis = axes_[a];
      rows_are_images_ = rows_are_images_ && axis.output() == axis.kernel && axis.pad_begin == 0 &&
                         (axis.kernel == 1 || (axis.dilation == 1 && strides[2 + a] == step));
      step *= axis.kernel;
    }
    rows_are_images_ = rows_are_images_ && (channels_ == 1 || strides[1] == step);
  }

  std::int64_t taps() const { return taps_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t image_cells() const { return image_cells_; }
  std::int64_t cells() const { return cells_; }
  // Images of one cell whose columns lie in the output as they do in the weight.
  bool rows_are_images() const { return rows_are_images_; }
  // Between neighbouring columns, in the output.
  std::int64_t step() const { return channels_inside_ ? strides_[1] : axes_[2].dilation * strides_[4]; }

  // One cell: where its taps begin in the output.
  struct Cell {
    std::int64_t depth = 0;
    std::int64_t height = 0;
    std::int64_t place = 0;  // of the tap 0 of a row, depth and height apart
    std::int64_t low = 0;    // taps of a row that reach the output: low <= tap < high
    std::int64_t high = 0;
  };

  Cell cell_at(std::int64_t index) const {
    const auto& [depth, height, width] = axes_;
    const std::int64_t first = index % width.input * width.stride - width.pad_begin;
    Cell cell;
    cell.height = index / width.input % height.input * height.stride - height.pad_begin;
    cell.depth = index / (width.input * height.input) % depth.input * depth.stride - depth.pad_begin;
    cell.place = index / image_cells_ * strides_[0] + first * strides_[4];
    cell.low = first >= 0 ? 0 : ceil_div(-first, width.dilation);
    cell.high = first >= sizes_[4] ? 0 : ceil_div(sizes_[4] - first, width.dilation);
    return cell;
  }

  // Neighbouring columns that are taps of one row of one output channel, or output channels of one tap.
  struct Row {
    std::int64_t column = 0;
    std::int64_t tap = 0;  // of the row of the kernel, the first one
    std::int64_t count = 0;
    std::int64_t depth = 0;  // in the output, from a cell's own
    std::int64_t height = 0;
    std::int64_t place = 0;
  };

  // The list stays with the thread, for the next call.
  const std::vector<Row>& rows(std::int64_t begin, std::int64_t end) const {
    thread_local std::vector<Row> rows;
    const auto& [depth, height, width] = axes_;
    rows.clear();
    for (std::int64_t column = begin; column < end && channels_inside_; column += rows.back().count) {
      const std::int64_t index = column / channels_;
      Row row;
      row.column = column;
      row.tap = index % width.kernel;
      row.count = std::min(channels_ - column % channels_, end - column);
      row.height = index / width.kernel % height.kernel * height.dilation;
      row.depth = index / (width.kernel * height.kernel) * depth.dilation;
      row.place = column % channels_ * strides_[1];
      rows.push_back(row);
    }
    if (channels_inside_) return rows;
    for (std::int64_t column = begin; column < end; column += rows.back().count) {
      const std::int64_t index = column / width.kernel;
      Row row;
      row.column = column;
      row.tap = column % width.kernel;
      row.count = std::min(width.kernel - row.tap, end - column);
      row.height = index % height.kernel * height.dilation;
      row.depth = index / height.kernel % depth.kernel * depth.dilation;
      row.place = index / (height.kernel * depth.kernel) * strides_[1];
      rows.push_back(row);
    }
    return rows;
  }

  // What of a row reaches the output: column + t lies at place + t step().
  struct Piece {
    std::int64_t column = 0;
    std::int64_t count = 0;
    std::int64_t place = 0;
  };
  Piece piece_of(const Cell& cell, const Row& row) const {
    const std::int64_t h = cell.height + row.height;
    const std::int64_t d = cell.depth + row.depth;
    const std::int64_t from = std::max(row.tap, cell.low);
    const std::int64_t to = std::min(row.tap + (channels_inside_ ? 1 : row.count), cell.high);
    if (h < 0 || h >= sizes_[3] || d < 0 || d >= sizes_[2] || from >= to) return {row.column, 0, 0};
    const std::int64_t place =
        cell.place + row.place + d * strides_[2] + h * strides_[3] + from * axes_[2].dilation * strides_[4];
    if (channels_inside_) return {row.column, row.count, place};
    return {row.column + from - row.tap, to - from, place};
  }

  // Calls visit(column, count, place) for the piece of each row, if there is one.
  template <typename Visit>
  void for_each_piece(const Cell& cell, const std::vector<Row>& rows, const Visit& visit) const {
    for (const Row& row : rows) {
      const Piece piece = piece_of(cell, row);
      if (piece.count > 0) visit(piece.column, piece.count, piece.place);
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
  std::int64_t channels_ = 1;  // output channels of a group
  bool channels_inside_ = false;
  bool rows_are_images_ = false;
};

// to[t to_step] = from[t step]; a few elements only, which are not worth a call.
template <typename E, typename T>
void load_piece(const E* from, std::int64_t step, T* to, std::int64_t to_step, std::int64_t count) {
  if (count > 16) return element_ops<E, T>().load(from, step, to, to_step, count);
  for (std::int64_t t = 0; t < count; ++t) {
    if constexpr (std::is_same_v<E, T>) {
      to[t * to_step] = from[t * step];
    } else {
      to[t * to_step] = to_float(from[t * step]);
    }
  }
}

// Calls visit(first cell - begin, count, place in the input, step) for pieces of cells that lie at equal distances.
template <typename Visit>
void for_each_cell_piece(const Problem& problem, std::int64_t begin, std::int64_t count, const Visit& visit) {
  const Strides& strides = problem.input_strides;
  const auto& [depth, height, width] = problem.axes;
  const std::int64_t image_cells = depth.input * height.input * width.input;
  const bool dense = (height.input == 1 || strides[3] == width.input * strides[4]) &&
                     (depth.input == 1 || strides[2] == width.input * height.input * strides[4]);
  if (image_cells == 1) return visit(std::int64_t{0}, count, begin * strides[0], strides[0]);
  for (std::int64_t cell = begin; cell < begin + count;) {
    const std::int64_t w = cell % width.input;
    const std::int64_t left = dense ? image_cells - cell % image_cells : width.input - w;
    const std::int64_t here = std::min(left, begin + count - cell);
    visit(cell - begin, here,
          cell / image_cells * strides[0] + cell / (width.input * height.input) % depth.input * strides[2] +
              cell / width.input % height.input * strides[3] + w * strides[4],
          strides[4]);
    cell += here;
  }
}

// Cells of some channels of the input as lines: to[channel line + cell]
template <typename E, typename T>
void load_cells(const Problem& problem, const E* input, std::int64_t channels, std::int64_t begin, std::int64_t count,
                std::int64_t line, T* to) {
  for_each_cell_piece(
      problem, begin, count, [&](std::int64_t cell, std::int64_t here, std::int64_t place, std::int64_t step) {
        for (std::int64_t c = 0; c < channels; ++c) {
          element_ops<E, T>().load(input + c * problem.input_strides[1] + place, step, to + c * line + cell, 1, here);
        }
      });
}

// And back.
template <typename E, typename T>
void store_cells(const Problem& problem, const T* from, std::int64_t channels, std::int64_t begin, std::int64_t count,
                 std::int64_t line, E* input) {
  for_each_cell_piece(problem, begin, count,
                      [&](std::int64_t cell, std::int64_t here, std::int64_t place, std::int64_t step) {
                        for (std::int64_t c = 0; c < channels; ++c) {
                          element_ops<E, T>().store(from + c * line + cell, 1,
                                                    input + c * problem.input_strides[1] + place, step, here, T{0});
                        }
                      });
}

}  // namespace tconv::cpu
