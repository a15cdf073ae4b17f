// The inner loops of layers with one channel a group whose rows lie side by side, several rows of the output at a time:
// vectors run along the row, and what is read of a row of the source is used for all rows of the output that it
// reaches.
#pragma once

#include <array>
#include <cstdint>

#include "cpu/depthwise_rows_simd.h"

namespace tconv::cpu {

// Places along a row that phases read, from right to left, and which do: what is known when the code is built. Those of
// kernels of one to three taps a phase, or five, with the paddings that they mostly have.
struct BlockPattern {
  int phases = 1;
  int steps = 0;
  std::array<unsigned, 5> reads{};  // the phases of a step

  constexpr bool has(int step, int phase) const { return (reads[step] >> phase & 1) != 0; }
};
inline constexpr std::array<BlockPattern, 16> kBlockPatterns = {{{1, 1, {1}},
                                                                 {1, 2, {1, 1}},
                                                                 {1, 3, {1, 1, 1}},
                                                                 {1, 4, {1, 1, 1, 1}},
                                                                 {1, 5, {1, 1, 1, 1, 1}},
                                                                 {2, 1, {3}},
                                                                 {2, 2, {2, 3}},
                                                                 {2, 2, {3, 1}},
                                                                 {2, 2, {3, 3}},
                                                                 {2, 3, {2, 3, 1}},
                                                                 {2, 3, {3, 3, 1}},
                                                                 {2, 3, {3, 3, 3}},
                                                                 {3, 1, {7}},
                                                                 {3, 3, {6, 7, 1}},
                                                                 {4, 1, {15}},
                                                                 {4, 3, {12, 15, 3}}}};
// Whether so many rows of the source have weights that stay in registers.
constexpr bool takes_tap_rows(const BlockPattern& pattern, std::int64_t rows) {
  return pattern.steps > 3 ? rows == pattern.steps : rows <= (pattern.phases <= 2 ? 3 : 2);
}

// A slice of the source, and its weights, that reach the rows of a block.
struct BlockSlice {
  std::int64_t from = 0;
  std::int64_t place = 0;
};

// Rows of the output of which each is computed from the next row of the source:
//   to[r to_step + j phases + p] = bias + sum over slices, rows y of the source and steps s that phase p reads of
//     from[slice.from + y from_step + step_offsets[s] + j] weights[slice.place + tap_rows[y - r - lowest] + s phases +
//     p],
// where y is a row that exists, first_source <= y < last_source, at a distance y - r that has weights: from `lowest` to
// `highest`, with tap_rows >= 0. Several phases have one of kBlockPatterns, and weights at every distance. Reads whole
// vectors of cells, and writes `count` elements of a row.
template <typename T>
struct WeighBlock {
  const T* from = nullptr;
  std::int64_t from_step = 0;
  std::int64_t first_source = 0;
  std::int64_t last_source = 0;
  const BlockSlice* slices = nullptr;
  std::int64_t slice_count = 0;
  std::int64_t lowest = 0;
  std::int64_t highest = -1;
  const std::int64_t* tap_rows = nullptr;
  std::int64_t tap_rows_apart = 0;  // from one of them to the next; 0: they are not evenly apart, or some have none
  const std::int64_t* step_offsets = nullptr;
  std::int64_t steps = 0;
  int pattern = -1;  // of kBlockPatterns; -1: another, of one phase
  const T* weights = nullptr;
  std::int64_t phases = 1;
  std::int64_t first_row = 0;
  std::int64_t last_row = 0;
  std::int64_t cells = 0;
  std::int64_t count = 0;
  T* to = nullptr;  // of row 0
  std::int64_t to_step = 0;
  T bias = 0;
  bool past_caches = false;  // rows of `to` are whole cache lines, which nobody reads soon
};

template <typename T>
struct DepthwiseBlockOps {
  void (*weigh_block)(const WeighBlock<T>& job) = nullptr;
};

template <typename T>
const DepthwiseBlockOps<T>& depthwise_block_ops();

}  // namespace tconv::cpu
