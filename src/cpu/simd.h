// The inner loops, built once per instruction set and chosen at run time. Everything outside simd.cpp is ordinary C++
// that calls through these tables.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/scalar.h"

namespace tconv::cpu {

// A register tile of the product c[m][n] (+)= sum over k of a(k, m) b(k, n). Both are best packed: what is read from
// many lines in turn reaches two thirds of the rate, however well it fits the cache.
template <typename T>
struct Multiply {
  const T* a = nullptr;  // a(k, m) = a[k a_step + m]
  const T* b = nullptr;
  const std::int64_t* offsets = nullptr;  // where b is read in place
  std::int64_t depth = 0;                 // k
  std::int64_t a_step = 0;                // from k to k + 1
  std::int64_t b_step = 0;                // the same of b, where it is packed
  T* c = nullptr;
  std::int64_t c_step = 0;  // from m to m + 1
  bool accumulate = false;
};

// The same product where the k of a lie side by side, in `parts` pieces of `depth` each (a piece is a tap, its k are
// channels):
//   c[c_places[m] + n] (+)= sum over p and k of a[a_places[m] + offsets[p] + k] b[(places[p] + k) b_step + n].
// What is read in turn from a few rows, line by line, needs no packing. As many c_places follow those of the tile:
// where the next one's results will be.
// Of interleaved groups, G of them, column n belongs to group n % G, and so do the k of a:
//   a[a_places[m] + offsets[p] + k G + n % G].
template <typename T>
struct MultiplyCells {
  const T* a = nullptr;
  const std::int64_t* a_places = nullptr;
  const std::int64_t* offsets = nullptr;  // of the parts in a
  const std::int64_t* places = nullptr;   // and in b
  std::int64_t parts = 0;
  std::int64_t depth = 0;         // k of a part
  std::int64_t interleaved = 1;   // groups
  std::int64_t first_column = 0;  // column 0 here of those that the groups alternate in
  const T* b = nullptr;
  std::int64_t b_step = 0;  // from k to k + 1
  T* c = nullptr;
  const std::int64_t* c_places = nullptr;
  bool accumulate = false;     // otherwise c begins with
  const T* initial = nullptr;  // [n], or zeros
  bool past_caches = false;    // c is whole cache lines that nobody reads soon
  bool torn = false;  // pairs of bfloat16: the last k of a part is one number, what is beside it does not count
  BFloat16* rounded = nullptr;  // and of them: rounded[c_places[m] + first_column + n] instead of c,
  std::int64_t columns = 0;     // first_column + n < columns
};

// The same product where the steps of both lie in `parts` pieces of `depth` positions each:
//   c[m][n] += sum over p and k of a[(places[p] + k) a_step + m] b[(places[p] + k) b_step + n].
template <typename T>
struct MultiplyLines {
  const T* a = nullptr;
  std::int64_t a_step = 0;
  const T* b = nullptr;
  std::int64_t b_step = 0;
  const std::int64_t* places = nullptr;
  std::int64_t parts = 0;
  std::int64_t depth = 0;
  T* c = nullptr;
  std::int64_t c_step = 0;
};

// The same where each row of a has a place of its own, and the pieces of a and b have different ones:
//   c[m][n] += sum over p and k of a[a_rows[m] + a_places[p] + k a_step] b[b_places[p] + k b_step + n].
template <typename T>
struct MultiplyTaps {
  const T* a = nullptr;
  const std::int64_t* a_rows = nullptr;
  const std::int64_t* a_places = nullptr;
  std::int64_t a_step = 0;
  const T* b = nullptr;
  const std::int64_t* b_places = nullptr;
  std::int64_t b_step = 0;
  std::int64_t parts = 0;
  std::int64_t depth = 0;
  T* c = nullptr;
  std::int64_t c_step = 0;
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

inline constexpr std::int64_t kMostRows = 14;        // rows of a register tile, at most
inline constexpr std::int64_t kMostCells = 9;        // rows of a tile each of which needs an address
inline constexpr std::int64_t kMostCellsAlone = 24;  // the same beside one vector of pairs of bfloat16
inline constexpr std::int64_t kDotRows = 4;          // both sides of a tile of dot products, at most
inline constexpr std::int64_t kMostVectors = 4;

// Groups that are interleaved, at most: what they read for one k is broadcast at once, 16 bytes.
template <typename T>
inline constexpr std::int64_t kMostInterleaved = 16 / sizeof(T);

// Loops over the arithmetic type T (float or double).
template <typename T>
struct MathOps {
  std::int64_t lanes = 1;
  std::int64_t rows = 1;                          // of the tallest register tile
  std::array<std::int64_t, kMostRows> vectors{};  // [rows - 1]: of the widest one
  // [rows - 1][vectors - 1]; packed: b(k, n) = b[k b_step + n]; in place: b(k, n) = b[offsets[k] + n]
  using MultiplyTable = std::array<std::array<void (*)(const Multiply<T>&), kMostVectors>, kMostRows>;
  MultiplyTable multiply_packed{};
  MultiplyTable multiply_in_place{};
  // Of 2 or 4 interleaved groups, column n belonging to group n % G: a(k, m) = a[k a_step + m G + n % G], b packed.
  MultiplyTable multiply_pairs{};
  MultiplyTable multiply_fours{};
  // [log2 of the interleaved groups][rows - 1][vectors - 1]
  using CellsTable = std::array<std::array<void (*)(const MultiplyCells<T>&), kMostVectors>, kMostCells>;
  std::array<CellsTable, 3> multiply_cells{};
  std::array<std::array<void (*)(const MultiplyLines<T>&), kMostVectors>, kMostRows> multiply_lines{};
  std::array<std::array<void (*)(const MultiplyTaps<T>&), kMostVectors>, kMostCells> multiply_taps{};
  // packed[k step + m] = from[offsets[k] + m], m < step; whole vectors
  void (*gather_rows)(const T* from, const std::int64_t* offsets, std::int64_t depth, std::int64_t step,
                      T* packed) = nullptr;
  std::array<std::array<void (*)(const Dot<T>&), kDotRows>, kDotRows> dot{};  // [rows of a - 1][rows of b - 1]

  struct TileSize {
    std::int64_t rows = 1;
    std::int64_t vectors = 1;
  };
  // The register tiles that take the least time for a product of this size; no taller than `tallest`.
  TileSize tile_for(std::int64_t row_count, std::int64_t columns, std::int64_t tallest = kMostRows) const {
    const std::int64_t all = (columns + lanes - 1) / lanes;
    TileSize best;
    double least = 0;
    for (std::int64_t v = 1; v <= vectors[0]; ++v) {
      std::int64_t most = std::min(rows, tallest);
      while (vectors[most - 1] < v) --most;
      const std::int64_t tiles = (row_count + most - 1) / most;
      const std::int64_t r = (row_count + tiles - 1) / std::max<std::int64_t>(tiles, 1);
      // Two multiply-adds or two loads a cycle, and four cycles until a sum can be added to again. Loads that could be
      // done meanwhile slow it down all the same, a little.
      const auto cycles = [r](std::int64_t width) {
        if (width == 0) return 0.0;
        const auto loads = static_cast<double>(r + width);
        return std::max({static_cast<double>(r * width), loads, 8.0}) / 2 + loads / 6;
      };
      const std::int64_t whole = all / v;
      const double cost = static_cast<double>(tiles) * (static_cast<double>(whole) * cycles(v) + cycles(all % v));
      if (v == 1 || cost < least) {
        least = cost;
        best = {std::max<std::int64_t>(r, 1), v};
      }
    }
    return best;
  }

  TileSize tile_for_cells(std::int64_t cells, std::int64_t columns) const {
    return tile_for(cells, columns, kMostCells);
  }
};

// The weights of some source channels and `valid` target channels, tap by tap:
//   packed[taps[t].to + channel taps[t].to_step + target] = source[channel channel_step + taps[t].from + target
//   target_step]
// and zeros from `valid` to `width`.
struct PackTap {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t to_step = 0;
};

template <typename E, typename T>
struct PackWeights {
  const E* source = nullptr;
  std::int64_t channel_step = 0;
  std::int64_t first_channel = 0;
  std::int64_t channels = 0;
  const PackTap* taps = nullptr;
  std::int64_t tap_count = 0;
  bool whole_taps = false;  // the taps of a target are the elements 0 <= from < tap_count
  std::int64_t target_step = 0;
  std::int64_t valid = 0;
  std::int64_t width = 0;
  T* packed = nullptr;
};

// Interleaves phases into a row: to[i period + phase to_step] = from[places[phase] + i cell_step] + bias, rounded.
template <typename E, typename T>
struct Interleave {
  const T* from = nullptr;
  const std::int64_t* places = nullptr;
  std::int64_t phases = 0;
  std::int64_t cell_step = 0;
  E* to = nullptr;
  std::int64_t to_step = 0;
  std::int64_t period = 0;
  std::int64_t count = 0;  // of each phase
  T bias = 0;
  bool past_caches = false;  // nobody reads `to` soon
};

// Turns results with their channels side by side into rows of phases:
//   to[channel to_step + i phases + phase] = from[places[phase] + i cell_step + channel] + bias[channel], rounded.
// No bias: nullptr. Reads whole blocks of 16 bytes.
template <typename E, typename T>
struct StoreRows {
  const T* from = nullptr;
  const std::int64_t* places = nullptr;
  std::int64_t phases = 0;
  std::int64_t cell_step = 0;
  E* to = nullptr;
  std::int64_t to_step = 0;
  std::int64_t count = 0;  // of each phase
  std::int64_t channels = 0;
  const E* bias = nullptr;
  bool past_caches = false;  // nobody reads `to` soon
};

inline constexpr std::int64_t kMostLattices = 8;  // lattices that take_apart and put_together take

// Rows of which every `period` elements have one of each lattice, taken apart:
//   lines[l][to_places[row] + i] = from[from_places[row] + i period + residues[l]], i < counts[l].
template <typename E, typename T>
struct TakeApart {
  const E* from = nullptr;
  const std::int64_t* from_places = nullptr;
  const std::int64_t* to_places = nullptr;
  std::int64_t rows = 0;
  std::int64_t period = 1;
  std::int64_t lattices = 0;
  const std::int64_t* residues = nullptr;  // less than the period
  const std::int64_t* counts = nullptr;
  T* const* lines = nullptr;
};

// Rows of `length` elements put together from the phases that have sums; elsewhere they are the bias alone, as are rows
// whose first place is negative:
//   to[channel to_step + to_places[row] + i period + residues[f]]
//     = from[channel channel_step + places[row filled + f] + i] + bias[channel + f bias_step], rounded.
// Reads whole vectors: up to one past the end of a row. Rows that follow each other in memory are best put in order.
template <typename E, typename T>
struct PutTogether {
  const T* from = nullptr;
  std::int64_t channel_step = 0;
  const std::int64_t* places = nullptr;
  E* to = nullptr;
  std::int64_t to_step = 0;
  std::int64_t channels = 0;
  const std::int64_t* to_places = nullptr;
  std::int64_t rows = 0;
  std::int64_t length = 0;
  std::int64_t period = 1;
  std::int64_t filled = 0;
  const std::int64_t* residues = nullptr;
  const E* bias = nullptr;  // none: zeros
  std::int64_t bias_step = 0;
  bool past_caches = false;  // nobody reads `to` soon
};

// Cells whose channels lie side by side in the tensor: to[cell to_step + channel] = from[cell cell_step + channel
// channel_step] + bias[channel], rounded. No bias: nullptr.
// Of interleaved groups, G of them, each has `channels`, and `group_step` is from one to the next in the tensor:
//   to[cell to_step + g group_step + channel] = from[cell cell_step + channel G + g] + bias[g group_step + channel].
// Of several phases, phase p is to[p phase_step ...] = from[places[p] ...].
template <typename E, typename T>
struct StoreCells {
  const T* from = nullptr;
  const std::int64_t* places = nullptr;
  std::int64_t phases = 1;
  std::int64_t phase_step = 0;
  std::int64_t cell_step = 0;
  std::int64_t channel_step = 0;
  E* to = nullptr;
  std::int64_t to_step = 0;
  std::int64_t cells = 0;
  std::int64_t channels = 0;
  std::int64_t interleaved = 1;
  std::int64_t group_step = 0;
  const E* bias = nullptr;
  bool past_caches = false;  // `to` is whole cache lines that nobody reads soon
};

// The other way, of some lattices that take turns along a row:
//   to[to_places[l] + cell to_step + channel groups + g]
//     = from[from_places[l] + cell cell_step + g group_step + channel].
template <typename E, typename T>
struct LoadGroups {
  const E* from = nullptr;
  const E* next = nullptr;  // what will be read behind the last cell
  const std::int64_t* from_places = nullptr;
  const std::int64_t* to_places = nullptr;
  std::int64_t lattices = 1;
  std::int64_t cell_step = 0;
  std::int64_t group_step = 0;
  T* to = nullptr;
  std::int64_t to_step = 0;
  std::int64_t cells = 0;     // of each lattice
  std::int64_t channels = 0;  // of a group
  std::int64_t groups = 2;    // or 4
};

// Rows of channels into a tensor: to[to_places[i] + channel to_step] = from[from_places[i] + channel], rounded.
template <typename E, typename T>
struct Scatter {
  const T* from = nullptr;
  const std::int64_t* from_places = nullptr;
  E* to = nullptr;
  const std::int64_t* to_places = nullptr;
  std::int64_t to_step = 0;
  std::int64_t count = 0;
  std::int64_t channels = 0;
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
  void (*store_rows)(const StoreRows<E, T>& job) = nullptr;
  void (*store_cells)(const StoreCells<E, T>& job) = nullptr;
  // Nothing is done, and false returned, where the instruction set has nothing to offer, or there are too many
  // lattices.
  bool (*take_apart)(const TakeApart<E, T>& job) = nullptr;
  bool (*put_together)(const PutTogether<E, T>& job) = nullptr;
  void (*load_groups)(const LoadGroups<E, T>& job) = nullptr;
  // to[i to_step + channel] = from[channel from_step + i]
  void (*load_channels)(const E* from, std::int64_t from_step, T* to, std::int64_t to_step, std::int64_t channels,
                        std::int64_t count) = nullptr;
  // to[i to_step + line] = from[offsets[line] + i]
  void (*load_lines)(const E* from, const std::int64_t* offsets, T* to, std::int64_t to_step, std::int64_t lines,
                     std::int64_t count) = nullptr;
  void (*scatter)(const Scatter<E, T>& job) = nullptr;
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
