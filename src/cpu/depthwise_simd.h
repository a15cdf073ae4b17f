// The inner loops of layers with one channel a group whose channels lie side by side: vectors run along the channels.
#pragma once

#include <cstdint>

namespace tconv::cpu {

// to[j to_step + c] = bias[c] + sum over t of from[j from_step + offsets[t] + c] weights[places[t] + c], rounded.
// No bias: nullptr.
template <typename E, typename T>
struct WeighCells {
  const E* from = nullptr;
  std::int64_t from_step = 0;
  const T* weights = nullptr;
  const std::int64_t* offsets = nullptr;
  const std::int64_t* places = nullptr;
  std::int64_t taps = 0;
  E* to = nullptr;
  std::int64_t to_step = 0;
  std::int64_t cells = 0;
  std::int64_t channels = 0;
  const E* bias = nullptr;
  bool past_caches = false;  // `to` and its steps are whole cache lines, which nobody reads soon
};

// A row, put together from its phases:
//   to[j phases + p] = bias + sum over terms[p] <= t < terms[p + 1] of  from[offsets[t] + j] weights[places[t]]
// Reads up to two vectors beyond the cells, and writes up to a vector of cells beyond them.
template <typename T>
struct WeighRow {
  const T* from = nullptr;
  const T* weights = nullptr;
  const std::int64_t* terms = nullptr;
  const std::int64_t* offsets = nullptr;
  const std::int64_t* places = nullptr;
  std::int64_t phases = 1;  // 1 to 4
  std::int64_t cells = 0;
  T* to = nullptr;
  T bias = 0;
};

template <typename E, typename T>
struct DepthwiseOps {
  void (*weigh)(const WeighCells<E, T>& job) = nullptr;
  void (*weigh_row)(const WeighRow<T>& job) = nullptr;
  // to[i] = from[i], rounded; from lies as far from a cache line as to does, where elements are of the same type.
  void (*put_row)(const T* from, E* to, std::int64_t count, bool past_caches) = nullptr;
};

template <typename E, typename T>
const DepthwiseOps<E, T>& depthwise_ops();

}  // namespace tconv::cpu
