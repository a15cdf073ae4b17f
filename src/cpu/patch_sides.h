// Where the tensors of layers with kernel == stride lie, seen from the cells of the input.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/panels.h"
#include "tconv/problem.h"

namespace tconv::cpu {

// Why the tensors of a problem are not cells and their patches side by side, or nothing.
inline const char* why_no_patches(const Problem& problem) {
  if (problem.dtype != DType::f32 && problem.dtype != DType::f64) return "computes in place";
  const bool forward = problem.direction == Direction::forward;
  std::int64_t taps = 1;
  std::int64_t cells = 1;
  for (int a = kSpatialAxes - 1; a >= 0; --a) {
    const Axis& axis = problem.axes[a];
    // Outputs that no cell has must at least not be written.
    const std::int64_t rest = axis.output() - axis.input * axis.stride;
    if (axis.kernel != axis.stride || axis.dilation != 1 || axis.pad_begin != 0 || rest < 0 || (forward && rest > 0)) {
      return "needs kernel == stride";
    }
    if ((axis.input > 1 && problem.input_strides[2 + a] != cells) ||
        (axis.kernel > 1 && problem.weight_strides[2 + a] != taps)) {
      return "needs contiguous tensors";
    }
    taps *= axis.kernel;
    cells *= axis.input;
  }
  if ((problem.out_channels_per_group() > 1 && problem.weight_strides[1] != taps) ||
      (problem.axes[2].output() > 1 && problem.output_strides[4] != 1)) {
    return "needs contiguous tensors";
  }
  return cells == 0 || problem.batch == 0 ? "needs cells" : nullptr;
}

// Where the elements of a tensor are, seen from the cells: each has some lines (of channels and kernel rows), and in
// each of them as many elements side by side as there are taps in a row.
struct Side {
  std::int64_t taps = 1;
  std::int64_t row = 1;                  // cells of a row
  std::int64_t cells = 1;                // of an image
  std::vector<std::int64_t> row_places;  // in a line
  std::vector<std::int64_t> line_places;
  std::int64_t image_step = 0;
  std::int64_t group_step = 0;

  std::int64_t lines() const { return std::ssize(line_places); }
  std::int64_t place_of(std::int64_t column) const {
    return column / cells * image_step + row_places[column % cells / row] + column % row * taps;
  }
  // Cells from `column` on that follow each other, no more than up to `end`.
  std::int64_t run_at(std::int64_t column, std::int64_t end) const {
    return std::min(end - column, row - column % row);
  }
  bool begins_at_multiples_of(std::int64_t unit) const {
    const auto fits = [unit](std::int64_t place) { return place % unit == 0; };
    return fits(image_step) && fits(group_step) && std::ranges::all_of(row_places, fits) &&
           std::ranges::all_of(line_places, fits);
  }
};

inline Side side_of_input(const Problem& problem) {
  Side side;
  side.cells = problem.axes[0].input * problem.axes[1].input * problem.axes[2].input;
  side.row = side.cells;
  side.row_places = {0};
  for (std::int64_t channel = 0; channel < problem.in_channels_per_group(); ++channel) {
    side.line_places.push_back(channel * problem.input_strides[1]);
  }
  side.image_step = problem.input_strides[0];
  side.group_step = problem.in_channels_per_group() * problem.input_strides[1];
  return side;
}

inline Side side_of_output(const Problem& problem) {
  const Strides& strides = problem.output_strides;
  const auto& [planes, rows, width] = problem.axes;
  Side side;
  side.taps = width.kernel;
  side.row = width.input;
  side.cells = planes.input * rows.input * width.input;
  for (std::int64_t d = 0; d < planes.input; ++d) {
    for (std::int64_t h = 0; h < rows.input; ++h) {
      side.row_places.push_back(d * planes.stride * strides[2] + h * rows.stride * strides[3]);
    }
  }
  for (std::int64_t channel = 0; channel < problem.out_channels_per_group(); ++channel) {
    for (std::int64_t d = 0; d < planes.kernel; ++d) {
      for (std::int64_t h = 0; h < rows.kernel; ++h) {
        side.line_places.push_back(channel * strides[1] + d * strides[2] + h * strides[3]);
      }
    }
  }
  side.image_step = strides[0];
  side.group_step = problem.out_channels_per_group() * strides[1];
  return side;
}

// Asks for the cells that are packed next, some lines at a time, while others are multiplied.
template <typename T>
class Ahead {
 public:
  Ahead() = default;
  Ahead(const T* from, const Side& side, std::int64_t first_line, std::int64_t lines, std::int64_t begin,
        std::int64_t end)
      : from_(from), side_(&side), line_(first_line), last_line_(std::min(first_line + lines, side.lines())) {
    for (std::int64_t column = begin, count = 0; column < end; column += count) {
      count = side.run_at(column, end);
      runs_.push_back({side.place_of(column), count * side.taps});
      lines_ += ceil_div(count * side.taps, kLine);
    }
  }
  std::int64_t lines() const { return lines_ * (last_line_ - line_); }
  void ask(std::int64_t lines) {
    for (; lines > 0 && line_ < last_line_ && !runs_.empty(); --lines) {
      __builtin_prefetch(from_ + side_->line_places[line_] + runs_[run_].place + at_, 0, 2);
      at_ += kLine;
      if (at_ < runs_[run_].count) continue;
      at_ = 0;
      if (++run_ < runs_.size()) continue;
      run_ = 0;
      ++line_;
    }
  }

 private:
  static constexpr std::int64_t kLine = 64 / sizeof(T);
  struct Run {
    std::int64_t place;
    std::int64_t count;
  };
  const T* from_ = nullptr;
  const Side* side_ = nullptr;
  std::vector<Run> runs_;
  std::int64_t lines_ = 0;  // cache lines of all runs
  std::int64_t line_ = 0;   // where it is: line of the side, run, element
  std::int64_t last_line_ = 0;
  std::size_t run_ = 0;
  std::int64_t at_ = 0;
};

}  // namespace tconv::cpu
