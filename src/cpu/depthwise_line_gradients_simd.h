// The inner loops of the gradients of layers with one channel a group, along rows that are read where they are. A
// kernel row is cut into blocks of `stride` taps. What a block of taps reads for neighbouring cells lies side by side,
// so that a vector of the gradient of the output holds (cell, tap) pairs, the taps of a block innermost. It is
// multiplied by the block's weights, one block after the other in every vector, and by the input, every cell of it
// `stride` times.
#pragma once

#include <cstdint>
#include <utility>

#include "cpu/depthwise_gradients_simd.h"

namespace tconv::cpu {

// For cells j in [begin, end) of each row, kernel rows r and taps t:
//   results[row result_step + j] = sum over r and t of  g(r, t, row, j) weight(r, t)
//   sum(r, t)                   += sum over row and j of  g(r, t, row, j) input[row input_step + j]
//   g(r, t, row, j) = grad[kernel_rows[r].offset + row grad_step + place], place = j stride - pad + t
// where 0 <= place < outputs; other places are neither read nor multiplied. Weights and sums lie as [block][lane] from
// kernel_rows[r].place on, where the lanes hold the block's taps again and again. Left out where results or sums are
// nullptr. Kernel row r is there for a row if row_taps[row] has r % kernel_height.
template <typename T>
struct GradientLines {
  const T* grad = nullptr;
  std::int64_t grad_step = 0;
  const KernelRow* kernel_rows = nullptr;
  std::int64_t kernel_row_count = 0;
  std::int64_t kernel_height = 1;
  const std::pair<std::int64_t, std::int64_t>* row_taps = nullptr;  // [first, last) of each row
  std::int64_t stride = 1;                                          // 1, 2 or 4
  std::int64_t taps = 1;                                            // of a kernel row
  std::int64_t pad = 0;
  std::int64_t outputs = 0;
  const T* input = nullptr;
  std::int64_t input_step = 0;
  // Cells that a vector begins with are multiples of the lanes when this is added, and row input_step: whole cache
  // lines, as rows lie in a tensor. Negative: the first cell begins a vector.
  std::int64_t place = -1;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t rows = 0;
  const T* weights = nullptr;
  T* sums = nullptr;
  T* results = nullptr;
  std::int64_t result_step = 0;
  bool past_caches = false;
  T* partial_results = nullptr;  // room for the vectors of all rows, where there are many taps
  Strip* ahead = nullptr;        // strips, the last one without an end
  std::int64_t lines_ahead = 1;
};

template <typename T>
struct LineGradientOps {
  std::int64_t lanes = 0;  // 0: not for this instruction set
  std::int64_t blocks_together = 1;
  void (*lines)(GradientLines<T>& job) = nullptr;
  // A row of results, past the caches in whole lines.
  void (*put_row)(const T* from, T* to, std::int64_t count, bool past_caches) = nullptr;
};

template <typename T>
const LineGradientOps<T>& line_gradient_ops();

}  // namespace tconv::cpu
