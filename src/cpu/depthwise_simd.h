// The inner loops of layers with one channel a group whose channels lie side by side: vectors run along the channels.
#pragma once

#include <cstdint>

#include "cpu/panels.h"

namespace tconv::cpu {

// Cells of a row of the output that the same taps reach. Tap t brings position first + j - t to cell j.
struct RowPiece {
  std::int64_t to = 0;  // in the row
  std::int64_t to_step = 0;
  std::int64_t cells = 0;
  std::int64_t from = 0;  // position 0 in a row of the source
  std::int64_t from_step = 0;
  std::int64_t first = 0;
  std::int64_t positions = 0;  // that exist
  std::int64_t taps = 0;
  std::int64_t place = 0;  // weights of the first tap in those of a row
};

// A row of the output, all pieces of it:
//   cell j, channel c = bias[c] + sum over the rows r of the source, over the taps t, of
//                       position first + j - t of row r, channel c, weights(r, t)[c],
// rounded, where positions are those from 0 on that exist. Row r of the source begins at from[offsets[r]]. Weights are
// those of blocks of kMostLanes channels, weight_step apart, filled up: channel c of (r, t) is
//   weights[c / kMostLanes weight_step + places[r] + place + t kMostLanes + c % kMostLanes].
// No bias: nullptr.
template <typename E, typename T>
struct WeighRow {
  const RowPiece* pieces = nullptr;
  std::int64_t piece_count = 0;
  const E* from = nullptr;
  const std::int64_t* offsets = nullptr;
  const std::int64_t* places = nullptr;
  std::int64_t rows = 0;
  const T* weights = nullptr;
  std::int64_t weight_step = 0;
  E* to = nullptr;
  std::int64_t channels = 0;
  const E* bias = nullptr;
  bool past_caches = false;  // `to` and the steps of cells are whole cache lines, which nobody reads soon
};

template <typename E, typename T>
struct DepthwiseOps {
  void (*weigh_row)(const WeighRow<E, T>& job) = nullptr;
};

template <typename E, typename T>
const DepthwiseOps<E, T>& depthwise_ops();

}  // namespace tconv::cpu
