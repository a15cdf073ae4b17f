// The inner loops of the gradients of layers with one channel a group. What is read of the gradient of the output is
// used twice: for the gradient of the input, and for that of the weight. Either may be left out.
#pragma once

#include <cstdint>

namespace tconv::cpu {

// Lines of memory that will be read next, asked for while something else is computed: pieces at + i step below `end`.
struct Strip {
  const char* at = nullptr;
  const char* end = nullptr;
  std::int64_t step = 64;
};

struct Ahead {
  Strip* strips = nullptr;
  std::int64_t count = 0;
  std::int64_t each_time = 0;  // lines that are asked for at a time
};

// Vectors along the channels, for c in [0, channels):
//   results[j result_step + c] = sum over t of  grad[offsets[t] + j grad_step + c] weights[places[t] + c]
//   sums[places[t] + c]       += sum over j of  grad[offsets[t] + j grad_step + c] input[j input_step + c]
// Weights and sums are filled up to whole vectors. Left out where results or sums are nullptr.
template <typename E, typename T>
struct GradientCells {
  const E* grad = nullptr;
  std::int64_t grad_step = 0;
  const E* input = nullptr;
  std::int64_t input_step = 0;
  const T* weights = nullptr;
  const std::int64_t* offsets = nullptr;
  const std::int64_t* places = nullptr;
  std::int64_t taps = 0;
  std::int64_t cells = 0;
  std::int64_t channels = 0;
  T* results = nullptr;
  std::int64_t result_step = 0;
  T* sums = nullptr;
  Ahead* ahead = nullptr;
};

// Vectors along rows, for j in [0, cells) of each row:
//   results[r row_step + j] = sum over t of  grad[offsets[t] + r row_step + j] weights[t]
//   the lanes of sums[t kMostLanes ...] += sum over r and j of  grad[offsets[t] + r row_step + j] input[r row_step + j]
// Rows are read and written in whole vectors; input holds zeros beyond its cells.
template <typename T>
struct GradientRows {
  const T* grad = nullptr;
  const T* input = nullptr;
  const T* weights = nullptr;
  const std::int64_t* offsets = nullptr;
  std::int64_t taps = 0;
  std::int64_t rows = 0;
  std::int64_t row_step = 0;
  std::int64_t cells = 0;
  T* results = nullptr;
  T* sums = nullptr;
  Ahead* ahead = nullptr;
};

template <typename E, typename T>
struct DepthwiseGradientOps {
  void (*cells)(const GradientCells<E, T>& job) = nullptr;
  void (*rows)(const GradientRows<T>& job) = nullptr;
  // to[i % phases][i / phases] = from[i]; room: 2 count + 64 phases elements, for more than four phases.
  void (*split)(const T* from, std::int64_t count, std::int64_t phases, T* const* to, T* room) = nullptr;
  // The sum of the lanes of sums[t kMostLanes ...], for every t.
  void (*sum_lanes)(const T* sums, std::int64_t count, T* to) = nullptr;
  std::int64_t taps_at_a_time = 1;
};

template <typename E, typename T>
const DepthwiseGradientOps<E, T>& depthwise_gradient_ops();

}  // namespace tconv::cpu
