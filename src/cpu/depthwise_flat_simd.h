// The inner loop of small images with one channel a group that are computed as one line each.
#pragma once

#include <cstdint>

namespace tconv::cpu {

// What a tap reads beside a cell, and its weight.
struct FlatTap {
  std::int64_t offset = 0;
  std::int64_t place = 0;
};

// The cells of some lines that are wanted, side by side. Of line i:
//   sum of cell j = bias[i] + sum over taps of  from[i from_step + tap.offset + j] weights[i weights_step + tap.place],
// for `vectors` vectors of cells; those with a bit in `wanted` (of cell 8 i + b in bit b of wanted[i]) are written to
// to[i to_step], to[i to_step + 1] and so on, `count` in all.
template <typename T>
struct WeighFlat {
  std::int64_t lines = 0;
  const T* from = nullptr;
  std::int64_t from_step = 0;
  const FlatTap* taps = nullptr;
  std::int64_t tap_count = 0;
  const T* weights = nullptr;
  std::int64_t weights_step = 0;
  const T* bias = nullptr;  // nullptr: 0
  std::int64_t vectors = 0;
  const std::uint8_t* wanted = nullptr;
  std::int64_t count = 0;
  T* to = nullptr;
  std::int64_t to_step = 0;
};

template <typename T>
struct DepthwiseFlatOps {
  std::int64_t lanes = 1;
  void (*weigh_flat)(const WeighFlat<T>& job) = nullptr;  // nullptr: lanes can't be picked from a vector in one go
};

template <typename T>
const DepthwiseFlatOps<T>& depthwise_flat_ops();

}  // namespace tconv::cpu
