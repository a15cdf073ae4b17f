// The inner loops of the gradients of layers with one channel a group. What is read of the gradient of the output is
// used twice: for the gradient of the input, and for that of the weight. Either may be left out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tconv::cpu {

// Memory that will be read next, asked for while something else is computed.
struct Strip {
  const char* at = nullptr;
  const char* end = nullptr;
};

// Cache lines to ask for at a time, one to four, so that the strips end when `vectors` of cells have been computed:
// more at once wait for each other, and later ones come too late.
inline std::int64_t lines_at_a_time(const std::vector<Strip>& strips, std::int64_t taps, std::int64_t vectors) {
  constexpr std::int64_t kTapsAtATime = 8;
  std::int64_t lines = 0;
  for (const Strip& strip : strips) lines += (strip.end - strip.at) / 64;
  const std::int64_t times = std::max<std::int64_t>((taps + kTapsAtATime - 1) / kTapsAtATime * vectors, 1);
  return std::clamp<std::int64_t>((lines + times - 1) / times, 1, 4);
}

// Vectors along the channels, for c in [0, channels), j in [0, cells), kernel rows r and their taps t:
//   results[j result_step + c]     = sum over r and t of  g(r, t, j, c) weights[place(r, t, c)]
//   sums[place(r, t, c)]          += sum over j of        g(r, t, j, c) input[j input_step + c]
//   g(r, t, j, c) = grad[rows[r].offset + t tap_step + j cell_step + c]
//   place(r, t, c) = c / kMostLanes block_size + rows[r].place + t kMostLanes + c % kMostLanes
// Weights and sums are filled up to kMostLanes. Left out where results or sums are nullptr.
struct KernelRow {
  std::int64_t offset = 0;
  std::int64_t place = 0;
};

// What later cells will read: `positions` of every cell j, from[j cell_step + p step + c].
template <typename E>
struct CellsAhead {
  const E* from = nullptr;
  std::int64_t cell_step = 0;
  std::int64_t positions = 1;
  std::int64_t step = 0;
};

template <typename E, typename T>
struct GradientCells {
  const E* grad = nullptr;
  std::int64_t cell_step = 0;
  std::int64_t tap_step = 0;
  const E* input = nullptr;
  std::int64_t input_step = 0;
  const T* weights = nullptr;
  std::int64_t block_size = 0;
  const KernelRow* rows = nullptr;
  std::int64_t row_count = 0;
  std::int64_t taps = 0;  // of a row
  std::int64_t cells = 0;
  std::int64_t channels = 0;
  E* results = nullptr;
  std::int64_t result_step = 0;
  bool past_caches = false;  // `results` and their steps are whole cache lines, which nobody reads soon
  T* sums = nullptr;
  const CellsAhead<E>* ahead = nullptr;  // asked for in turn, while kernel rows are multiplied
  std::int64_t ahead_count = 0;
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
  Strip* ahead = nullptr;
  std::int64_t lines_ahead = 1;
};

// to[i % phases][r to_step + i / phases] = from[r from_step + i] for i in [0, count) of each row r.
template <typename E, typename T>
struct SplitRows {
  const E* from = nullptr;
  std::int64_t from_step = 0;
  std::int64_t rows = 0;
  std::int64_t count = 0;
  std::int64_t phases = 1;
  T* const* to = nullptr;
  std::int64_t to_step = 0;
  T* room = nullptr;  // 3 count + 64 phases elements, for elements of another type or more than four phases
};

// to[r to_step + i] = from[r from_step + i] for i in [0, count) of each row r, rounded. Rows of `from` lie at least a
// vector apart, beyond whole vectors, and are overwritten.
template <typename E, typename T>
struct PutRows {
  T* from = nullptr;
  std::int64_t from_step = 0;
  std::int64_t rows = 0;
  std::int64_t count = 0;
  E* to = nullptr;
  std::int64_t to_step = 0;
  bool past_caches = false;
};

template <typename E, typename T>
struct DepthwiseGradientOps {
  void (*cells)(const GradientCells<E, T>& job) = nullptr;
  void (*rows)(GradientRows<T>& job) = nullptr;
  void (*split)(const SplitRows<E, T>& job) = nullptr;
  void (*put_rows)(const PutRows<E, T>& job) = nullptr;
  // The sum of the lanes of sums[t kMostLanes ...], for every t.
  void (*sum_lanes)(const T* sums, std::int64_t count, T* to) = nullptr;
};

template <typename E, typename T>
const DepthwiseGradientOps<E, T>& depthwise_gradient_ops();

}  // namespace tconv::cpu
