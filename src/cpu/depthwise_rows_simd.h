// The inner loops of layers with one channel a group whose rows lie side by side: vectors run along the row.
#pragma once

#include <array>
#include <cstdint>

namespace tconv::cpu {

inline constexpr int kMostRowPhases = 4;  // that are interleaved in registers

// What the phases of a row do with one vector of cells: those with a place >= 0 have a tap that reads it.
struct RowStep {
  std::int64_t offset = 0;                            // from a cell to what is read
  std::array<std::int32_t, kMostRowPhases> places{};  // of the weights
};

// Which phases read what a step reads, as bits, where this is known when the code is built: of a few steps from right
// to left, as many times as a row of the output reads rows of the input. No steps: not known.
struct RowPattern {
  int steps = 0;
  std::array<unsigned, 3> phases{};

  constexpr bool reads(int step, int phase) const { return (phases[step % steps] >> phase & 1) != 0; }
};
// Of two phases: stride 2, kernels 4 and 3 with a padding of 1, kernel 3, kernel 5 with a padding of 2, and even
// kernels.
inline constexpr std::array<RowPattern, 5> kRowPatterns = {
    {{3, {2, 3, 1}}, {2, {2, 3, 0}}, {2, {3, 1, 0}}, {3, {3, 3, 1}}, {1, {3, 0, 0}}}};

// The pattern of the steps of a row; -1: another.
inline int row_pattern(const RowStep* steps, const RowStep* last, std::int64_t phases) {
  for (int i = 0; i < static_cast<int>(kRowPatterns.size()) && phases == 2; ++i) {
    const RowPattern& pattern = kRowPatterns[i];
    bool is_alike = (last - steps) % pattern.steps == 0;
    for (int s = 0; is_alike && s < last - steps; ++s) {
      for (int p = 0; p < 2; ++p) is_alike = is_alike && (steps[s].places[p] >= 0) == pattern.reads(s, p);
    }
    if (is_alike) return i;
  }
  return -1;
}

// Cells of a row, put together from their phases:
//   to[j phases + p] = bias + sum over the steps of  from[offset + j] weights[places[p]]
// in the order of the steps. Reads and writes whole vectors of cells. Several rows may do the same, each from_step and
// to_step behind the last.
template <typename T>
struct WeighLine {
  const T* from = nullptr;
  const T* weights = nullptr;
  const RowStep* steps = nullptr;
  const RowStep* last = nullptr;
  int pattern = -1;
  std::int64_t phases = 1;
  std::int64_t cells = 0;
  T* to = nullptr;
  T bias = 0;
  bool past_caches = false;  // rows of `to` begin cache lines, and nobody reads them soon
  std::int64_t rows = 1;
  std::int64_t from_step = 0;
  std::int64_t to_step = 0;
};

template <typename E, typename T>
struct DepthwiseRowOps {
  std::int64_t lanes = 1;
  void (*weigh_line)(const WeighLine<T>& job) = nullptr;
  // to[i] = from[i], rounded; from lies as far from a cache line as to does, where elements are of the same type.
  void (*put_row)(const T* from, E* to, std::int64_t count, bool past_caches) = nullptr;
  // to[row to_step + i] = from[row from_step + i], exactly, for i in [0, count): short rows, for which a call each
  // takes long, and long ones, which the C library would copy in a way that waits for memory.
  void (*copy_rows)(const E* from, std::int64_t from_step, T* to, std::int64_t to_step, std::int64_t rows,
                    std::int64_t count) = nullptr;
};

template <typename E, typename T>
const DepthwiseRowOps<E, T>& depthwise_row_ops();

}  // namespace tconv::cpu
