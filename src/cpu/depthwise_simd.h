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

template <typename E, typename T>
struct DepthwiseOps {
  void (*weigh)(const WeighCells<E, T>& job) = nullptr;
};

template <typename E, typename T>
const DepthwiseOps<E, T>& depthwise_ops();

}  // namespace tconv::cpu
