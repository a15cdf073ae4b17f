// From the accumulators to the output: through shared memory, so that the phases of a row interleave there and rows
// leave the block whole.
#pragma once

constexpr int kTurnChannels = kShape.turn_channels();  // output channels of each phase that are staged in a turn
constexpr int kPitch = kShape.staged_pitch();
constexpr int kSlotPitch = kShape.staged_slot_pitch(kTurnChannels);
constexpr int kDepths = kShape.tile[1] * kShape.span[0];
constexpr int kHeights = kShape.tile[2] * kShape.span[1];
constexpr int kWidths = kShape.tile[3] * kShape.span[2];
constexpr int kPositions = kShape.positions();
constexpr bool kHasGaps =
    kShape.all_slots() != kShape.span[0] * kShape.span[1] * kShape.span[2];  // outputs of no phase

__device__ __forceinline__ float bias_of(const TileParams& params, const BlockRows& rows, int channel) {
  channel += rows.first_channel;
  if (!kShape.bias || channel >= kShape.out_channels) return 0.0f;
  return from_storage(
      static_cast<const Element*>(params.bias)[rows.group * static_cast<long long>(kShape.out_channels) + channel]);
}

__device__ __forceinline__ int output_pad(const TileParams& params, int axis) {
  return kShape.gradient ? 0 : params.pad[axis];
}

template <int kCount>
__device__ __forceinline__ void store_vector(float* out, const float (&values)[kCount]) {
  unsigned words[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) words[i] = __float_as_uint(values[i]);
  ptx::store_words(out, words);
}
template <int kCount, int kWords>
__device__ __forceinline__ void pack_vector(const float (&values)[kCount], unsigned (&words)[kWords]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i)
    words[i] = kShape.math == TileMath::f16 ? ptx::pack_f16(values[2 * i], values[2 * i + 1])
                                            : ptx::pack_bf16(values[2 * i], values[2 * i + 1]);
}
template <int kCount>
__device__ __forceinline__ void store_vector(unsigned short* out, const float (&values)[kCount]) {
  unsigned words[kCount / 2];
  pack_vector(values, words);
  ptx::store_words(out, words);
}

// Offsets in the table of store_channels are small: they count from the first output that the block could have.
__device__ __forceinline__ long long table_origin(const TileParams& params, const BlockCells& cells) {
  long long origin = 0;
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    const int first = cells.first[1 + axis] * kShape.output_step(axis) - output_pad(params, axis);
    origin += max(first, 0) * params.output_strides[2 + axis];
  }
  return origin;
}

// Where a local output index along one axis stands: its cell in the tile, its slot among the block's phases (or none)
// and its place in the tensor.
struct OutputSite {
  int cell;
  int slot;
  long long place;
  bool inside;
};

__device__ __forceinline__ OutputSite output_site(const TileParams& params, const BlockRows& rows,
                                                  const BlockCells& cells, int axis, int local) {
  OutputSite site;
  const int residue = local % kShape.span[axis];
  site.cell = local / kShape.span[axis];
  site.slot = kShape.slot_of(axis, residue);
  if (kShape.slots[axis] != kShape.span[axis] && site.slot == 15) site.slot = -1;
  const int absolute = rows.first_residue[axis] + residue;
  const int output =
      (cells.first[1 + axis] + site.cell) * kShape.output_step(axis) + absolute - output_pad(params, axis);
  site.inside = absolute < kShape.output_step(axis) &&
                static_cast<unsigned>(output) < static_cast<unsigned>(params.output_size[axis]);
  site.place = output * params.output_strides[2 + axis];
  return site;
}

// A pair of sums in the staged matrix, neighbours along the columns.
__device__ __forceinline__ void stage_pair(float left, float right, bool first, float* pair) {
  if (!first) {
    left += pair[0];
    right += pair[1];
  }
  if constexpr (kPitch % 2 == 0) {
    *reinterpret_cast<float2*>(pair) = {left, right};
  } else {
    pair[0] = left;
    pair[1] = right;
  }
}

// Accumulators of one turn into the staged matrix, the bias with them. A thread holds pairs of cells of a row, or where
// cells are the rows of the products, cells of two rows.
template <typename Team>
__device__ __forceinline__ void stage_tile(const TileParams& params, const BlockRows& rows, const Team& tile, int turn,
                                           bool first, bool with_bias, float* staged) {
  const int lane = ptx::opaque(threadIdx.x % 32);  // or places would be kept in registers from turn to turn
  const auto bias = [&](int channel) {
    return first && with_bias ? bias_of(params, rows, turn * kTurnChannels + channel) : 0.0f;
  };
  if constexpr (kShape.streams) {
#pragma unroll
    for (int j = 0; j < Team::kOctets; ++j) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int row = j * 8 + lane % 4 * 2 + side;
        const int slot = row / kShape.block_channels;
        const int channel = row % kShape.block_channels - turn * kTurnChannels;
        if (slot >= kShape.all_slots() || channel < 0 || channel >= kTurnChannels) continue;
        const float add = bias(channel);
        float* line = staged + slot * kSlotPitch + channel * kPitch + tile.column(0);
#pragma unroll
        for (int i = 0; i < Team::kCellTiles; ++i) {
          line[i * 64] = tile.octet(i, j)[side] + add;
          line[i * 64 + 8] = tile.octet(i, j)[2 + side] + add;
        }
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile.row(i) + half * 8 + lane / 4;
        const int slot = row / kShape.block_channels;
        const int channel = row % kShape.block_channels - turn * kTurnChannels;
        if (slot >= kShape.all_slots() || channel < 0 || channel >= kTurnChannels) continue;
        const float add = bias(channel);
        float* line = staged + slot * kSlotPitch + channel * kPitch + tile.first_column + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          stage_pair(tile.sum[i][j][half * 2] + add, tile.sum[i][j][half * 2 + 1] + add, first, line + j * 8);
        }
      }
    }
  }
}

// Where one output of the tile, counted over [sample][depth][height][width], comes from and goes to.
struct Position {
  int column;
  int slot;         // -1: no phase, bias alone
  long long place;  // from the block's first sample and channel
  bool inside;
};

__device__ __forceinline__ Position position_of(const TileParams& params, const BlockRows& rows,
                                                const BlockCells& cells, int index) {
  const OutputSite w = output_site(params, rows, cells, 2, index % kWidths);
  index /= kWidths;
  const OutputSite h = output_site(params, rows, cells, 1, index % kHeights);
  index /= kHeights;
  const OutputSite d = output_site(params, rows, cells, 0, index % kDepths);
  const int sample = index / kDepths;
  const bool has_phase = d.slot >= 0 && h.slot >= 0 && w.slot >= 0;
  Position position;
  position.column = kShape.column_of(sample, d.cell, h.cell, w.cell);
  position.slot = has_phase ? (d.slot * kShape.slots[1] + h.slot) * kShape.slots[2] + w.slot : -1;
  position.place = sample * params.output_strides[0] + d.place + h.place + w.place;
  position.inside = w.inside && h.inside && d.inside && cells.first[0] + sample < params.batch;
  return position;
}

// Where the turn's first channel of an output is staged; -1: no phase.
__device__ __forceinline__ int staged_index(const Position& position) {
  return position.slot < 0 ? -1 : position.slot * kSlotPitch + position.column;
}

// A staged value; with several blocks for one tile, the sum of theirs, in the order of their ranks.
__device__ __forceinline__ float staged_value(const float* staged, int index) {
  if constexpr (kShape.depth_blocks == 1) return staged[index];
  const unsigned address = ptx::shared_address(staged + index);
  float sum = ptx::load_from_block(address, 0);
#pragma unroll
  for (int rank = 1; rank < kShape.depth_blocks; ++rank) sum += ptx::load_from_block(address, rank);
  return sum;
}

// Neighbours along the columns.
template <int kCount>
__device__ __forceinline__ void staged_values(const float* staged, int index, float (&values)[kCount]) {
  if constexpr (kCount == 1 || kShape.depth_blocks > 1) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = staged_value(staged, index + i);
  } else {
    constexpr int kBytes = kCount == 2 ? 8 : 16;
#pragma unroll
    for (int i = 0; i < kCount; i += kBytes / 4) {
      unsigned words[kBytes / 4];
      ptx::load_shared<kBytes>(ptx::shared_address(staged + index + i), words);
#pragma unroll
      for (int j = 0; j < kBytes / 4; ++j) values[i + j] = __uint_as_float(words[j]);
    }
  }
}

// Of the threads that store: all, or those that have multiplied.
__device__ __forceinline__ void sync_storing() {
  if constexpr (kShape.streams) {
    ptx::sync_first_threads<kThreads>();
  } else {
    __syncthreads();
  }
}

__device__ __forceinline__ void wait_for_blocks() {
  if constexpr (kShape.depth_blocks == 1) {
    sync_storing();
  } else {
    ptx::cluster_barrier();
  }
}

// Neighbouring threads take neighbouring outputs of a row, and each walks over the channels; blocks of a cluster share
// them.
__device__ __forceinline__ void store_rows(const TileParams& params, const BlockRows& rows, const BlockCells& cells,
                                           int turn, int rank, const float* staged, Element* output) {
  constexpr int kVector = kShape.row_vector;
  constexpr int kPlaces = kPositions / kVector;
  constexpr int kAcross = kPlaces >= kThreads ? kThreads : (kPlaces + 31) / 32 * 32;
  constexpr int kBlockTeams = kThreads / kAcross;
  constexpr int kTeams = kBlockTeams * kShape.depth_blocks;
  constexpr bool kWhole = kShape.out_channels % kShape.block_channels == 0 && kTurnChannels % kTeams == 0;
  if (kThreads % kAcross != 0 && static_cast<int>(threadIdx.x) / kAcross >= kBlockTeams) return;
  const int team = threadIdx.x / kAcross + rank * kBlockTeams;
  const int channels = min(kTurnChannels, kShape.out_channels - rows.first_channel - turn * kTurnChannels);
  const long long stride = params.output_strides[1];
  for (int index = threadIdx.x % kAcross; index < kPlaces; index += kAcross) {
    const Position position = position_of(params, rows, cells, index * kVector);
    if (!position.inside) continue;
    Element* out = output + position.place + team * stride;
    const bool has_phase = position.slot >= 0;
    const int first = (has_phase ? staged_index(position) : 0) + team * kPitch;
#pragma unroll
    for (int i = 0; i < (kTurnChannels + kTeams - 1) / kTeams; ++i) {
      const int channel = team + i * kTeams;
      if (!kWhole && channel >= channels) break;
      float results[kVector];
      staged_values(staged, first + i * kTeams * kPitch, results);
      if (kHasGaps && !has_phase) {  // nor has any other of its vector
        const float bias = bias_of(params, rows, turn * kTurnChannels + channel);
#pragma unroll
        for (float& result : results) result = bias;
      }
      if constexpr (kVector > 1) {
        store_vector(out, results);
      } else {
        *out = to_storage(results[0], Element());
      }
      out += kTeams * stride;
    }
  }
}

// Channels-last: neighbouring threads take neighbouring channels of a pixel; where the pixels are was worked out once.
struct TableEntry {
  int staged;  // as staged_index says
  int place;   // -1: outside
};

__device__ __forceinline__ void fill_table(const TileParams& params, const BlockRows& rows, const BlockCells& cells,
                                           TableEntry* table) {
  for (int index = threadIdx.x; index < kPositions; index += kThreads) {
    const Position position = position_of(params, rows, cells, index);
    table[index] = {staged_index(position),
                    position.inside ? static_cast<int>(position.place - table_origin(params, cells)) : -1};
  }
}

__device__ __forceinline__ void store_channels(const TileParams& params, const BlockRows& rows, const BlockCells& cells,
                                               int turn, int rank, const float* staged, const TableEntry* table,
                                               Element* output) {
  constexpr int kAcross = kTurnChannels >= 32 ? 32
                          : kTurnChannels > 8 ? 16
                          : kTurnChannels > 4 ? 8
                          : kTurnChannels > 2 ? 4
                                              : kTurnChannels;
  const int channels = min(kTurnChannels, kShape.out_channels - rows.first_channel - turn * kTurnChannels);
  output += table_origin(params, cells);
  constexpr int kAtOnce = kThreads / kAcross;
  for (int index = rank * kAtOnce + threadIdx.x / kAcross; index < kPositions; index += kAtOnce * kShape.depth_blocks) {
    const TableEntry entry = table[index];
    if (entry.place < 0) continue;
    for (int channel = threadIdx.x % kAcross; channel < channels; channel += kAcross) {
      const float value = entry.staged < 0 ? bias_of(params, rows, turn * kTurnChannels + channel)
                                           : staged_value(staged, entry.staged + channel * kPitch);
      output[entry.place + channel] = to_storage(value, Element());
    }
  }
}

template <typename Team>
__device__ __forceinline__ void store_block(const TileParams& params, const BlockRows& rows, const BlockCells& cells,
                                            const Team& tile, int rank, unsigned char* shared_memory) {
  shared_memory += kShape.staged_offset();
  float* staged = reinterpret_cast<float*>(shared_memory);
  TableEntry* table = reinterpret_cast<TableEntry*>(shared_memory + kShape.staged_bytes(kTurnChannels));
  Element* output =
      static_cast<Element*>(params.output) + cells.first[0] * params.output_strides[0] +
      (static_cast<long long>(rows.group) * kShape.out_channels + rows.first_channel) * params.output_strides[1];
  if (kShape.output_channels_last) fill_table(params, rows, cells, table);
#pragma unroll 1
  for (int turn = 0; turn < kShape.block_channels / kTurnChannels; ++turn) {
    // Teams that split the depth add up in a fixed order; the bias comes with the first.
#pragma unroll 1
    for (int team = 0; team < kShape.depth_teams; ++team) {
      if (tile.depth_team == team) stage_tile(params, rows, tile, turn, team == 0, rank == 0, staged);
      sync_storing();
    }
    if (kShape.depth_blocks > 1) wait_for_blocks();
    if (kShape.output_channels_last) {
      store_channels(params, rows, cells, turn, rank, staged, table, output);
    } else {
      store_rows(params, rows, cells, turn, rank, staged, output);
    }
    output += kTurnChannels * params.output_strides[1];
    wait_for_blocks();
  }
}
