// grad_weight as the reduce kernels see it: a tensor that stays in place, one that the taps shift, and their product
// summed over pixels.
#pragma once

#include <array>
#include <optional>

#include "tconv/problem.h"

namespace tconv::cuda {

struct ReductionAxis {
  std::int64_t kernel = 1;
  std::int64_t step = 1;  // pixel i and tap k meet at element i step + k tap_step - pad
  std::int64_t tap_step = 1;
  std::int64_t pad = 0;  // may be negative
  std::int64_t row_size = 1;
  std::int64_t column_size = 1;
};

struct Reduction {
  bool swapped = false;  // the output's gradient stays in place, the input is shifted
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  std::array<ReductionAxis, kSpatialAxes> axes{};
  Strides row_strides{};
  Strides column_strides{};
  std::array<std::int64_t, 6> weight_strides{};  // group, row, column, depth, height, width
  // Where element 0 of each lies, in elements from the tensor's own.
  std::int64_t row_offset = 0;
  std::int64_t column_offset = 0;
  std::int64_t weight_offset = 0;
};

// Elements that no tap reads are left out: with g = gcd(stride, dilation), only every g-th is read. Swapped only where
// every step is one and there is something to read; nothing otherwise.
std::optional<Reduction> reduction_of(const Problem& problem, bool swapped);

}  // namespace tconv::cuda
