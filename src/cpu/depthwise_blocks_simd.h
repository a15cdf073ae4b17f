// The inner loops of layers with one channel a group whose rows lie side by side, several rows of the output at a time:
// vectors run along the row, and what is read of a row of the source is used for all rows of the output that it
// reaches.
#pragma once

#include <array>
#include <cstdint>

#include "cpu/depthwise_rows_simd.h"

namespace tconv::cpu {

// A place along a row that some phases read: `phases` has their bits.
struct BlockStep {
  std::int64_t offset = 0;  // from a cell to what is read
  unsigned phases = 0;
};

// Steps of a row that are known when the code is built: those of kernels of one to three taps a phase, with the
// paddings that they mostly have.
struct BlockPattern {
  int phases = 1;
  int steps = 0;
  std::array<unsigned, 3> reads{};  // the phases of a step

  constexpr bool has(int step, int phase) const { return (reads[step] >> phase & 1) != 0; }
};
inline constexpr std::array<BlockPattern, 14> kBlockPatterns = {{{1, 1, {1}},
                                                                 {1, 2, {1, 1}},
                                                                 {1, 3, {1, 1, 1}},
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
inline constexpr int kMostTapRows = 3;  // of such steps

// A slice of the source, and its weights, that reach the rows of a block.
struct BlockSlice {
  std::int64_t from = 0;
  std::int64_t place = 0;
};

// Rows of the output of which each is computed from the next row of the source:
//   to[r to_step + j phases + p] = bias + sum over slices, rows y of the source and steps of
//     from[slice.from + y from_step + step.offset + j] weights[slice.place + tap_rows[y - r - lowest] + s phases + p],
// where y is a row that exists, first_source <= y < last_source, at a distance y - r that has weights: from `lowest` to
// `highest`, with tap_rows >= 0. Reads whole vectors of cells, and writes `count` elements of a row.
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
  const BlockStep* steps = nullptr;
  std::int64_t step_count = 0;
  int pattern = -1;  // of kBlockPatterns: that of the steps
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
