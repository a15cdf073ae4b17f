// The inner loops, built once per instruction set and chosen at run time. Everything outside simd.cpp is ordinary C++
// that calls through these tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tconv::cpu {

// A register tile of the product c[m][n] (+)= sum over k of a(k, m) b(k, n).
template <typename T>
struct Multiply {
  const T* a = nullptr;
  const T* b = nullptr;
  const std::int64_t* offsets = nullptr;  // of the operand that is read in place
  std::int64_t depth = 0;                 // k
  std::int64_t a_step = 0;                // from m to m + 1 (where a is read in place)
  std::int64_t b_step = 0;                // from k to k + 1 (where b is packed)
  T* c = nullptr;
  std::int64_t c_step = 0;  // from m to m + 1
  bool accumulate = false;
};

// A register tile of dot products: c[m][n] += sum over p < length of a[m a_step + p] b[offsets[n] + p]. The length is
// rounded up to whole vectors: what lies behind it must be zero in a and finite in b.
template <typename T>
struct Dot {
  const T* a = nullptr;
  std::int64_t a_step = 0;
  const T* b = nullptr;
  const std::int64_t* offsets = nullptr;
  std::int64_t length = 0;
  T* c = nullptr;
  std::int64_t c_step = 0;
};

inline constexpr std::int64_t kRows = 6;     // rows of a register tile, at most
inline constexpr std::int64_t kDotRows = 4;  // both sides of a tile of dot products, at most
inline constexpr int kVectorChoices = 3;     // 1, 2 or 4 vectors wide

// Loops over the arithmetic type T (float or double).
template <typename T>
struct MathOps {
  std::int64_t lanes = 1;
  std::int64_t most_vectors = 1;  // widest register tile
  // [rows - 1][log2 of vectors]; b in place: b(k, n) = b[offsets[k] + n], a(k, m) = a[k rows + m];
  // a in place: a(k, m) = a[offsets[k] + m a_step], b(k, n) = b[k b_step + n].
  using MultiplyTable = std::array<std::array<void (*)(const Multiply<T>&), kVectorChoices>, kRows>;
  MultiplyTable multiply_b_in_place{};
  MultiplyTable multiply_a_in_place{};
  std::array<std::array<void (*)(const Dot<T>&), kDotRows>, kDotRows> dot{};  // [rows of a - 1][rows of b - 1]

  // Vectors of the next register tile when `columns` are left, and where the tables keep tiles of that width.
  std::int64_t vectors_for(std::int64_t columns) const {
    const std::int64_t left = (columns + lanes - 1) / lanes;
    return left >= most_vectors ? most_vectors : (left >= 2 ? 2 : 1);
  }
  static std::size_t choice_of(std::int64_t vectors) {
    return vectors == 4 ? 2 : static_cast<std::size_t>(vectors - 1);
  }
};

// The weights of some taps, some source channels and `valid` target channels, as [channel][tap][width], the rest zero.
template <typename E, typename T>
struct PackWeights {
  const E* source = nullptr;
  std::int64_t channel_step = 0;
  std::int64_t channels = 0;
  const std::int64_t* taps = nullptr;  // their offsets
  std::int64_t tap_count = 0;
  std::int64_t target_step = 0;
  std::int64_t valid = 0;
  std::int64_t width = 0;
  T* packed = nullptr;
};

// Interleaves phases into a row: to[i period + phase to_step] = from[phase phase_size + i cell_step] + bias, rounded.
template <typename E, typename T>
struct Interleave {
  const T* from = nullptr;
  std::int64_t phase_size = 0;
  std::int64_t phases = 0;
  std::int64_t cell_step = 0;
  E* to = nullptr;
  std::int64_t to_step = 0;
  std::int64_t period = 0;
  std::int64_t count = 0;  // of each phase
  T bias = 0;
};

// Loops that touch tensors of element type E; T is the type that it is computed in.
template <typename E, typename T>
struct ElementOps {
  // to[i to_step] = from[i from_step]
  void (*load)(const E* from, std::int64_t from_step, T* to, std::int64_t to_step, std::int64_t count) = nullptr;
  // to[i to_step] = from[i from_step] + bias, rounded
  void (*store)(const T* from, std::int64_t from_step, E* to, std::int64_t to_step, std::int64_t count,
                T bias) = nullptr;
  void (*interleave)(const Interleave<E, T>& job) = nullptr;
  // to[to_places[i]] = from[from_places[i]], rounded
  void (*scatter)(const T* from, const std::int64_t* from_places, E* to, const std::int64_t* to_places,
                  std::int64_t count) = nullptr;
  void (*pack_weights)(const PackWeights<E, T>& job) = nullptr;
  // sums[i] += from[i step]
  void (*add)(const E* from, std::int64_t step, double* sums, std::int64_t count) = nullptr;
  // the sum of from[i step]
  double (*sum)(const E* from, std::int64_t step, std::int64_t count) = nullptr;
};

template <typename T>
const MathOps<T>& math_ops();

template <typename E, typename T>
const ElementOps<E, T>& element_ops();

}  // namespace tconv::cpu
