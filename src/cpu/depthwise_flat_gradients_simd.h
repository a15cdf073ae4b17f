// The inner loop of the gradients of small images with one channel a group that lie as one line each.
#pragma once

#include <cstdint>

#include "cpu/depthwise_flat_simd.h"

namespace tconv::cpu {

// Of one channel, with cells j of the images i < lines:
//   g(i, t, j) = grad[i grad_step + taps[t].offset + j]
//   results of image i: sum over t of  g(i, t, j) weights[taps[t].place], of the cells that are wanted, side by side
//   sums[taps[t].place] += sum over i and j of  g(i, t, j) (what the input of image i has for cell j)
// Left out where results or sums are nullptr. Cells are wanted as in WeighFlat, and lie side by side in the input; a
// product is left out, not multiplied by zero, unless bit j is set in reads[t] ([tap][vector]).
template <typename T>
struct FlatGradients {
  std::int64_t lines = 0;
  const T* grad = nullptr;
  std::int64_t grad_step = 0;
  const FlatTap* taps = nullptr;
  std::int64_t tap_count = 0;
  std::int64_t vectors = 0;
  const std::uint16_t* wanted = nullptr;  // [vector]
  const std::uint16_t* reads = nullptr;
  std::int64_t count = 0;  // of wanted cells
  const T* input = nullptr;
  std::int64_t input_step = 0;
  const T* weights = nullptr;
  T* results = nullptr;
  std::int64_t result_step = 0;
  T* partial_results = nullptr;  // room for the vectors of all lines
  T* sums = nullptr;
};

template <typename T>
struct FlatGradientOps {
  std::int64_t lanes = 0;  // 0: not for this instruction set
  void (*gradients)(const FlatGradients<T>& job) = nullptr;
};

template <typename T>
const FlatGradientOps<T>& flat_gradient_ops();

}  // namespace tconv::cpu
