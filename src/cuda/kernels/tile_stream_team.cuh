// What the warps of a streaming block that multiply have: sums in registers, and where their cells lie in a box.
#pragma once

#include "split.cuh"
#include "tile_stream_load.cuh"

constexpr int kThreads = kShape.multiplying_threads();
constexpr int kRowTiles = kShape.row_tiles;
constexpr int kColumnTiles = kShape.column_tiles;
constexpr int kSteps = kShape.slabs / 2;
constexpr int kLine = kShape.line_backs();
// Items of a chunk: one step of depth, or a few, at one distance, or at all distances of a line.
constexpr int kItemSteps = kShape.item_steps;
constexpr int kLineItems = kSteps / kItemSteps;
constexpr int kItems = kShape.all_backs() / kLine * kLineItems;
constexpr int kStageItems = kShape.stage_backs / kLine * kLineItems;
// A chunk with fewer of them ends with the same set of registers as the others.
static_assert(kShape.even_planes() || kLineItems % 2 == 0);
static_assert(kSteps % kItemSteps == 0);
constexpr int kPlanes = kShape.even_planes() ? 1 : kShape.all_plane_groups();
// Whether no product can be left out: at every distance each row tile has a tap.
constexpr bool has_all_products() {
  for (int back = 0; !kShape.all_taps && back < kShape.all_backs(); ++back) {
    if ((~kFixedBackRows[back] & ((1u << kRowTiles) - 1)) != 0) return false;
  }
  return true;
}
// Unrolled, an item's place and missing products are known to the compiler, which pays where items have few products.
// Many of them take long to compile; after an odd number of items the next chunk is code of its own. Where items have
// very many, what a loop does between them costs nothing, and little where they have some: up to 2% of a forward
// kernel's time, 5% of a gradient's.
constexpr int kChunkCost = kShape.all_backs() * kSteps * kRowTiles * (kColumnTiles / 8) * kShape.product_cost();
constexpr int kGroupsCost = kShape.all_group_taps() * kSteps * ((kShape.rows() + 63) / 64) * (kColumnTiles / 8);
constexpr int kItemProducts = kShape.item_products();
constexpr int kMostCost = kItemProducts > 16 ? 1000 : kItemProducts > 4 && !kShape.gradient ? 1250 : 1450;
constexpr bool kSoonCompiled = kPlanes == 1 ? kChunkCost * (1 + kItems % 2) <= kMostCost : kGroupsCost <= 80;
constexpr bool kUnrolled = !has_all_products() || (!kShape.splits() && kSoonCompiled);
constexpr int kFewItems = 12;

// Which cell of the block's box a column is. Columns without a cell stand for some cell of the box.
struct CellPlace {
  int at[4];  // sample, depth, height, width
  bool exists;
};
__device__ __forceinline__ CellPlace cell_place(int column) {
  constexpr int kLineDimension = kShape.stacks_tiles() ? 1 + kShape.line_axis : -1;
  constexpr int kCells = kShape.stacks_tiles() ? kShape.cells() / kShape.tile[kLineDimension] : kShape.cells();
  CellPlace place;
  int cell = kShape.stacks_tiles() ? column % 64 : column;
  place.exists = cell < kCells;
  if (!place.exists) cell = 0;
#pragma unroll
  for (int dimension = 3; dimension >= 0; --dimension) {
    if (dimension == kLineDimension) {
      place.at[dimension] = column / 64;
      place.exists = place.exists && place.at[dimension] < kShape.tile[dimension];
    } else {
      place.at[dimension] = cell % kShape.tile[dimension];
      cell /= kShape.tile[dimension];
    }
  }
  return place;
}

struct CellTeam {
  static constexpr int kCellTiles = kShape.column_tiles / 8;  // of 64 cells
  static constexpr int kOctets = kShape.rows() / 8;
  static constexpr int kUnitOctets = kShape.row_unit / 8;
  static constexpr int kFragments = kShape.line_fragments();
  // Tiles whose place in the box is kept; the others lie steps along the line from the first.
  static constexpr int kPlaces = kShape.line_axis >= 0 ? 1 : kCellTiles;

  // What the first half of an item multiplies.
  static constexpr int kFirstFragments = kShape.takes_turns() ? (kFragments + 1) / 2 : kFragments;
  static constexpr int kFirstProducts = kShape.halves_items() ? (kItemProducts + 1) / 2 : kItemProducts;

  float sum[kCellTiles][kRowTiles][kUnitOctets][4] = {};
  // Where factors are split: the sum of a few products, on its way to `sum`.
  static constexpr int kPartTiles = kShape.splits() ? kCellTiles : 1;
  float part[kPartTiles][kRowTiles][kUnitOctets][4] = {};
  // Bytes from the box's first element to this thread's cells and first channel, or to the 16 bytes that it names to
  // the others of its warp: channels of a cell (tensor copies), or cells of a channel.
  static constexpr int kOtherCell = kShape.other_cell();  // from the first to the other, where that is known
  static constexpr int kNamed = kShape.tensor_copies || kShape.names_vectors() || kOtherCell > 0 ? 1 : 2;
  unsigned at[kPlaces][kNamed];
  int first_column;
  static constexpr int depth_team = 0;

  __device__ __forceinline__ CellTeam(const TileParams& params, const BlockCells& cells) {
    const int lane = threadIdx.x % 32;
    first_column = static_cast<int>(threadIdx.x) / 128 * kShape.column_tiles * 8;
    constexpr int kPair = 8 / kShape.element_bytes;  // elements that a lane loads of a window, or of two
    const int channel = kShape.tensor_copies         ? 0
                        : kShape.names_vectors()     ? (lane % 8 + lane / 16 * 8) * kShape.channel_pitch()
                        : kShape.input_channels_last ? lane % 4 * 4
                        : kShape.window > 1          ? lane % 4 * kPair / kShape.window * kShape.channel_pitch() +
                                                           lane % 4 * kPair % kShape.window * kShape.element_bytes
                                                     : lane % 4 * (4 / kShape.element_bytes) * kShape.channel_pitch();
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
#pragma unroll
      for (int half = 0; half < kNamed; ++half) {
        const int first = column(i) - lane / 4;
        const int named = kShape.tensor_copies     ? first + lane % 16
                          : kShape.names_vectors() ? first + lane / 8 % 2 * 8
                                                   : column(i) + half * 8;
        const CellPlace place = cell_place(named);
        const auto& [n, d, h, w] = place.at;
        at[i][half] = channel + box_lead(params, cells) * kShape.element_bytes +
                      w * kShape.cell_step(2) * kShape.box_step(2) + h * kShape.cell_step(1) * kShape.box_step(1) +
                      (d * kShape.cell_step(0) + n * kShape.box(0)) * kShape.box_step(0);
      }
    }
  }

  // The first of this thread's two cells of a tile; the other is eight cells further.
  __device__ __forceinline__ int column(int tile) const {
    return first_column + tile * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  }
  __device__ __forceinline__ const float (&octet(int tile, int index) const)[4] {
    return sum[tile][index / kUnitOctets][index % kUnitOctets];
  }

  // One for each tile of cells, or for each cell of a line that any of its distances reaches; where factors are split,
  // the small parts after the big ones.
  using Fragments = unsigned[kItemSteps * kShape.weight_parts() * kFragments][4];

  // Rows of a fragment are cells, its columns channels: two words each, four channels (or eight, in pairs) apart.
  // `item` counts those of a line.
  template <int kBegin = 0, int kEnd = kFragments>
  __device__ __forceinline__ void load(Fragments& out, unsigned stage, int offset, int item) const {
#pragma unroll
    for (int i = 0; i < kItemSteps; ++i) {
      if constexpr (kShape.window > 1) {
        load_windows<kBegin, kEnd>(out + i * kFragments, stage, offset, item * kItemSteps + i);
      } else {
        load_channels<kBegin, kEnd>(out + i * kFragments, stage, offset, item * kItemSteps + i);
      }
    }
    if constexpr (kShape.splits() && !kShape.splits_late()) split(out, out);
  }
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void load_channels(unsigned (*out)[4], unsigned stage, int offset, int step) const {
#pragma unroll
    for (int i = kBegin; i < kEnd; ++i) {
      if constexpr (kShape.tensor_copies) {
        load_named(out[i], stage + at[kPlaces > 1 ? i : 0][0] + offset + i * kShape.line_step(), step);
        continue;
      }
      if constexpr (kShape.names_vectors()) {
        ptx::load_matrices_transposed(out[i], stage + at[kPlaces > 1 ? i : 0][0] + offset + i * kShape.line_step() +
                                                  step * 16 * kShape.channel_pitch());
        continue;
      }
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const unsigned cell = stage + at[kPlaces > 1 ? i : 0][kNamed > 1 ? word % 2 : 0] + offset +
                              i * kShape.line_step() + word % 2 * kOtherCell;
        if constexpr (kShape.input_channels_last) {
          out[i][word] = rounded(ptx::load_shared_32(cell + step * 32 + word / 2 * 16));
        } else if constexpr (kShape.element_bytes == 4) {
          out[i][word] = rounded(ptx::load_shared_32(cell + (step * 8 + word / 2 * 4) * kShape.channel_pitch()));
        } else {
          const unsigned pair = cell + (step * 16 + word / 2 * 8) * kShape.channel_pitch();
          out[i][word] = ptx::load_shared_16(pair) | ptx::load_shared_16(pair + kShape.channel_pitch()) << 16;
        }
      }
    }
  }
  static __device__ __forceinline__ void split(Fragments& out, const Fragments& words) {
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const SplitWord parts(words[i][word]);
        out[i][word] = parts.big;
        out[(kShape.weight_parts() - 1) * kFragments + i][word] = parts.small;
      }
    }
  }
  // The same by the lanes of a warp together, each of which names 16 bytes: sixteen cells, and the next vector of
  // channels for all of them. Where they lie is the copy engine's rule: three bits of the address from bits further up.
  static __device__ __forceinline__ void load_named(unsigned (&out)[4], unsigned cell, int step) {
    const unsigned vector = (cell >> 3 & (kShape.slabs - 1) * 16) ^ (step * 2 + threadIdx.x % 32 / 16) * 16;
    ptx::load_matrices(out, cell ^ vector);
#pragma unroll
    for (unsigned& word : out) word = rounded(word);
  }
  // Columns are taps of a window, or of several channels' windows: both words of a cell lie side by side.
  template <int kBegin, int kEnd>
  __device__ __forceinline__ void load_windows(unsigned (*out)[4], unsigned stage, int offset, int step) const {
    constexpr int kChannels = kShape.chunk_read_channels() / kSteps;  // of a step
    // Places may be as little as a word apart; of two-byte elements, a window of two is one word.
    constexpr int kPair = 8 / kShape.element_bytes;
    constexpr bool kTwoWords = kShape.window % kPair == 0 && kShape.granule % kPair == 0 && kShape.lead % kPair == 0 &&
                               kShape.stride[2] % kPair == 0;
    constexpr int kNext = kShape.window * kShape.element_bytes >= 8 ? 4 : kShape.channel_pitch();
#pragma unroll
    for (int i = kBegin; i < kEnd; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned cell = stage + at[kPlaces > 1 ? i : 0][kNamed > 1 ? half : 0] + offset + i * kShape.line_step() +
                              half * kOtherCell + step * kChannels * kShape.channel_pitch();
        unsigned words[2];
        if constexpr (kTwoWords) {
          ptx::load_shared_64(cell, words);
        } else {
          words[0] = ptx::load_shared_32(cell);
          words[1] = ptx::load_shared_32(cell + kNext);
        }
        out[i][half] = rounded(words[0]);
        out[i][2 + half] = rounded(words[1]);
      }
    }
  }
  static __device__ __forceinline__ unsigned rounded(unsigned word) {
    return kRoundsToTf32 ? ptx::round_to_tf32(__uint_as_float(word)) : word;
  }

  // The products of one half of an item, or of all of it; `weights` is the descriptor of its first row. Of split
  // factors the small ones come first, so that they are not cut off.
  template <bool kFirst>
  __device__ __forceinline__ void add(const Fragments& cells, unsigned weights, int line) {
    ptx::fence_warpgroup();
    if constexpr (kShape.splits()) {
      add_products<kFirst>(part, cells, kFragments, weights, line);
      add_products<kFirst>(part, cells, 0, weights + kShape.slabs * kShape.weight_slab_pitch(), line);
      add_products<kFirst>(part, cells, 0, weights, line);
    } else {
#pragma unroll
      for (int i = 0; i < kItemSteps; ++i)
        add_products<kFirst>(sum, cells, i * kFragments, weights + i * kShape.weight_depth_pitch(), line);
    }
    ptx::commit_warpgroup();
  }

  // Adds the products to the sums that were kept, once they are done: the tensor cores cut the bits that they shift
  // out, so that long sums of theirs would be too small. What this addition rounds away goes to the next part.
  __device__ __forceinline__ void keep_part() {
#pragma unroll
    for (int i = 0; i < kPartTiles; ++i) {
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& rest = part[i][octet / kUnitOctets][octet % kUnitOctets][j];
          float& kept = sum[i][octet / kUnitOctets][octet % kUnitOctets][j];
          const float added = ptx::waited_for(rest);
          const float before = kept;
          kept = before + added;
          rest = added - (kept - before);
        }
      }
    }
  }

  static constexpr unsigned long long kDescriptor = kShape.weight_descriptor();
  // With the fragments from `first` on.
  template <bool kFirst, typename Sums>
  static __device__ __forceinline__ void add_products(Sums& sums, const Fragments& cells, int first, unsigned weights,
                                                      int line) {
#pragma unroll
    for (int back = 0; back < kLine; ++back) {
      const unsigned tiles = kUnrolled ? kFixedBackRows[line * kLine + back] : ~0u;
      const unsigned b = weights + back * kShape.weight_back_pitch();
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        if ((tiles >> tile & 1) == 0) continue;
#pragma unroll
        for (int i = 0; i < kCellTiles; ++i) {
          const int fragment = i * kShape.tile_fragments() + line_place(back);
          const int product = (back * kRowTiles + tile) * kCellTiles + i;
          if ((kShape.takes_turns() ? fragment < kFirstFragments : product < kFirstProducts) != kFirst) continue;
          multiply(sums[i][tile], cells[first + fragment], kDescriptor << 32 | (b + tile * kShape.weight_tile_pitch()));
        }
      }
    }
  }

  // Which fragment of a line the first tile's cells read at a distance: the furthest back come first, those of a
  // gradient, which reads forward, last.
  static constexpr int line_place(int back) { return kShape.gradient ? back : kLine - 1 - back; }
};
