// Short correlations with fewer multiplications (Winograd, Toom and Cook): `outputs` neighbouring results of `taps`
// taps each, from points = outputs + taps - 1 products instead of outputs x taps. Sources, weights and products are
// combined linearly, element by element, so that vectors run along whatever lies side by side.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tconv::cpu {

struct Scheme {
  int taps = 0;
  int outputs = 0;
  int points = 0;
};

inline constexpr int kMostPoints = 6;
inline constexpr int kMostTaps = 3;
inline constexpr std::array kSchemes = {Scheme{3, 4, 6}, Scheme{2, 4, 5}, Scheme{2, 3, 4}, Scheme{3, 2, 4},
                                        Scheme{2, 2, 3}};
inline constexpr std::size_t kFirstAtFour = 2;  // from here on they have four points or fewer

// to[o][cell to_step + c] = bias[c] + sum over i of matrix[o][i] from[i][cell from_steps[i] + c], for whole vectors of
// c. No bias: nullptr; what has no place (nullptr in `to`) is left out.
template <typename T>
struct Combine {
  std::array<const T*, kMostPoints> from{};
  std::array<T*, kMostPoints> to{};
  std::int64_t cells = 1;
  std::array<std::int64_t, kMostPoints> from_steps{};
  std::int64_t to_step = 0;
  std::int64_t count = 0;
  const T* bias = nullptr;
  bool past_caches = false;  // `to` is whole cache lines that nobody reads soon
};

// The combinations of a scheme, by its place in kSchemes. What gradients of weights need is the transpose of the
// others.
struct WinogradOps {
  std::array<void (*)(const Combine<float>&), kSchemes.size()> source{};   // points from points neighbours
  std::array<void (*)(const Combine<float>&), kSchemes.size()> weights{};  // points from taps
  std::array<void (*)(const Combine<float>&), kSchemes.size()> results{};  // outputs from points
  std::array<void (*)(const Combine<float>&), kSchemes.size()> grads{};    // points from outputs
  std::array<void (*)(const Combine<float>&), kSchemes.size()> sums{};     // taps from points
};

const WinogradOps& winograd_ops();

}  // namespace tconv::cpu
