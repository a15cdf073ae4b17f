// Stages of weights out of the tensor itself, by a warpgroup that does nothing else: a layer of few blocks is done
// before a copy in the order of the stages would have been made.
//
// The config defines kWeightPlaces: for each distance and slots that are loaded together, bytes from the block's first
// tap to that tap, or -1.
#pragma once

#include "split.cuh"
#include "tile_stream_load.cuh"

// Into how many shares `count` slabs or turns are cut, so that few places occupy all of `across` threads.
constexpr int shares_of(int count, int places, int across) {
  int shares = 1;
  while (2 * shares * places <= across && count % (2 * shares) == 0) shares *= 2;
  return shares;
}

// One thread's part of a stage: some rows at one of its places (a distance and slots that are loaded together) after
// the other. What lies in between is constant, in the tensor and in the stage.
struct WeightLoads {
  static constexpr int kVector = kShape.vector();
  static constexpr int kLoad = kShape.weight_vector;
  // What is neighbours in a load: channels of the sum (a whole cell), of the rows, or slots along the width.
  static constexpr bool kWide = kLoad > 1 && kShape.weight_steps[0] == 1;
  static constexpr bool kAlongRows = kLoad > 1 && !kWide && kShape.weight_steps[1] == 1;
  static constexpr bool kAlongSlots = kLoad > 1 && !kWide && !kAlongRows;
  static constexpr int kLoads = kWide ? 1 : kVector;  // of a unit
  static constexpr int kCells = kWide ? 1 : kLoad;    // that they make together
  static constexpr int kLoadBytes = kLoad * kShape.element_bytes;
  static constexpr int kWords = kLoadBytes < 4 ? 1 : kLoadBytes / 4;

  // Eight neighbouring lanes take eight rows (or runs of them), so that they store to all banks; the next ones what
  // lies next to that in the tensor: another place, or other slabs.
  static constexpr int kSlotRuns = kAlongSlots ? kShape.all_slots() / kLoad : kShape.all_slots();
  static constexpr int kPlaces = kShape.stage_backs * kSlotRuns;
  static constexpr int kRun = kAlongRows ? kLoad : 1;
  static constexpr int kRowRuns = kShape.block_channels / kRun;
  static constexpr int kLanes = kRowRuns >= 8 ? 8 : kRowRuns >= 4 ? 4 : kRowRuns >= 2 ? 2 : 1;
  static constexpr int kRowTurns = (kRowRuns + kLanes - 1) / kLanes;
  static constexpr int kAcross = kStreamThreads / kLanes;
  static constexpr int kSlabShares = shares_of(kShape.slabs, kPlaces, kAcross);
  static constexpr int kRowShares = shares_of(kRowTurns, kPlaces* kSlabShares, kAcross);
  static constexpr int kShares = kSlabShares * kRowShares;
  static constexpr int kPlacesAtOnce = kAcross / kShares;  // that all threads take together
  static constexpr int kSlabTurns = kShape.slabs / kSlabShares;
  static constexpr int kUnits = kSlabTurns * kRowTurns / kRowShares;
  static constexpr int kMostWords = kShape.weight_registers() >= 88 ? 32 : 16;  // of a thread, on their way
  static constexpr int kAtOnce = kMostWords / (kLoads * kWords) > 0 ? kMostWords / (kLoads * kWords) : 1;  // units
  // Where all threads together have the words of a whole stage and registers for as many more, the next stage's are on
  // their way while this one's are stored.
  static constexpr int kOtherRegisters = kAlongRows ? 44 : 40;
  static constexpr bool kAhead = kPlaces <= kPlacesAtOnce && kUnits <= kAtOnce &&
                                 2 * kUnits * kLoads * kWords + kOtherRegisters <= kShape.weight_registers();

  int row;  // the first one, a channel of the block
  int first_slab;
  int first_place;
  unsigned words[kAhead ? 2 * kUnits : kAtOnce][kLoads][kWords];

  __device__ __forceinline__ explicit WeightLoads(int thread) {
    const int group = thread / kLanes;
    const int share = kWide ? group % kShares : group / kPlacesAtOnce;
    first_place = kWide ? group / kShares : group % kPlacesAtOnce;
    first_slab = share % kSlabShares;
    row = (share / kSlabShares * kLanes + thread % kLanes) * kRun;
  }

  // What a unit has in common with the others of its number in all threads.
  static constexpr int slab_of(int unit) { return unit % kSlabTurns * kSlabShares; }
  static constexpr int row_of(int unit) { return unit / kSlabTurns * kRowShares * kLanes * kRun; }
  static constexpr bool exists(int unit) { return unit < kUnits; }

  // Bytes from a chunk's first weight at a place to this thread's.
  __device__ __forceinline__ int offset() const {
    return (first_slab * kVector * kShape.weight_steps[0] + row * kShape.weight_steps[1]) * kShape.element_bytes;
  }
  // What the tensor has of a unit; everything else is zeros.
  __device__ __forceinline__ void load(int at, int unit, const char* from, bool has_tap, int rows_left,
                                       int channels_left) {
    constexpr bool kWholeChunks = kShape.channels % kShape.chunk_channels() == 0;
    const bool has_rows = has_tap && row + row_of(unit) < rows_left;
    const int steps = slab_of(unit) * kVector * kShape.weight_steps[0] + row_of(unit) * kShape.weight_steps[1];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const bool wanted = has_rows && (kWholeChunks || (first_slab + slab_of(unit)) * kVector + i < channels_left);
      ptx::load_if<kLoadBytes>(wanted, from + (steps + i * kShape.weight_steps[0]) * kShape.element_bytes,
                               words[at][i]);
    }
  }

  __device__ __forceinline__ Cell cell(int at, int index) const {
    Cell cell;
    if constexpr (kWide) {
#pragma unroll
      for (int i = 0; i < 4; ++i) cell.word[i] = words[at][0][i];
    } else if constexpr (kShape.element_bytes == 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) cell.word[i] = words[at][i][index];
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned low = words[at][2 * i][index / 2];
        const unsigned high = words[at][2 * i + 1][index / 2];
        cell.word[i] = index % 2 == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
      }
    }
    return rounded(cell);
  }

  // Cells from the stage's first to this thread's at a place.
  __device__ __forceinline__ int target(int place) const {
    return place / kSlotRuns * kShape.weight_back_pitch() + first_slab * kShape.weight_slab_pitch() +
           place % kSlotRuns * (kAlongSlots ? kLoad : 1) * kShape.block_channels + kShape.row_of_channel(row);
  }
  // And from there to a row of a unit. The order of the rows exchanges bits of their numbers, and the thread's first
  // row, the unit's and the one in the run have none in common: what they add is constant.
  static constexpr int row_place(int unit, int in_run) {
    return kShape.row_of_channel(row_of(unit)) + kShape.row_of_channel(in_run);
  }
  __device__ __forceinline__ void store(int at, int unit, unsigned to) const {
    const int slab = slab_of(unit) * kShape.weight_slab_pitch();
    if (kShape.block_channels % (kLanes * kRun) != 0 && row + row_of(unit) >= kShape.block_channels) return;
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      const int place = row_place(unit, kAlongRows ? i : 0) + (kAlongSlots ? i * kShape.block_channels : 0);
      const unsigned address = to + (slab + place) * 16;
      if constexpr (kShape.splits()) {
        const SplitCell split(cell(at, i));
        ptx::store_16(address, split.big);
        ptx::store_16(address + kShape.slabs * kShape.weight_slab_pitch() * 16, split.small);
      } else {
        ptx::store_16(address, cell(at, i));
      }
    }
  }
};

// Where the weights of a block's rows begin: of its group, first channel and first residues.
__device__ __forceinline__ const char* first_weight(const TileParams& params, const BlockRows& rows) {
  const int first_tap =
      (rows.first_residue[0] * kShape.kernel[1] + rows.first_residue[1]) * kShape.kernel[2] + rows.first_residue[2];
  return static_cast<const char*>(params.weight) +
         (rows.group * params.weight_group_stride +
          static_cast<long long>(rows.first_channel) * kShape.weight_steps[1] +
          static_cast<long long>(first_tap) * kShape.weight_steps[2]) *
             kShape.element_bytes;
}

// Brings the weights of one tile of outputs, each stage loaded before the one in front of it is stored.
__device__ __forceinline__ void load_weights_ahead(const TileParams& params, const BlockRows& rows, int rank,
                                                   const StreamBarriers& barriers, unsigned ring, int thread,
                                                   RingPlace<kShape.weight_ring>& slot) {
  using Loads = WeightLoads;
  constexpr int kChunkStages = kShape.stages_per_chunk();
  constexpr int kStages = kShape.block_chunks() * kChunkStages;
  Loads loads(thread);
  const char* const first = first_weight(params, rows) + loads.offset();
  const int rows_left = kShape.out_channels - rows.first_channel;
  const auto tap_of = [&](int stage) {
    const int back = stage % kChunkStages * kShape.stage_backs;
    const int places = min(kShape.stage_backs, kShape.all_backs() - back) * Loads::kSlotRuns;
    return loads.first_place < places ? kWeightPlaces[back * Loads::kSlotRuns + loads.first_place] : -1;
  };
  const auto load = [&](int stage, int set) {
    const int first_channel = (rank * kShape.block_chunks() + stage / kChunkStages) * kShape.chunk_channels();
    const int tap = tap_of(stage);
    const char* const source =
        first + static_cast<long long>(first_channel) * kShape.weight_steps[0] * kShape.element_bytes + tap;
#pragma unroll
    for (int i = 0; i < Loads::kUnits; ++i)
      loads.load(set * Loads::kUnits + i, i, source, tap >= 0, rows_left, kShape.channels - first_channel);
  };
  const auto store = [&](int stage, int set) {
    ptx::wait_barrier(barriers.weight_empty(slot.slot), slot.parity ^ 1);
    // Taps that a phase lacks are zeros, or no product is made with them.
    if (loads.first_place < Loads::kPlaces && (kShape.all_taps || tap_of(stage) >= 0)) {
      const unsigned to = ring + slot.slot * kShape.weight_stage_bytes() + loads.target(loads.first_place) * 16;
#pragma unroll
      for (int i = 0; i < Loads::kUnits; ++i) loads.store(set * Loads::kUnits + i, i, to);
    }
    ptx::fence_for_async_proxy();
    ptx::arrive(barriers.weight_full(slot.slot));
    slot.advance();
  };
  load(0, 0);
#pragma unroll 1
  for (int stage = 0; stage < kStages; stage += 2) {
    if (stage + 1 < kStages) load(stage + 1, 1);
    store(stage, 0);
    if (stage + 1 == kStages) break;
    if (stage + 2 < kStages) load(stage + 2, 0);
    store(stage + 1, 1);
  }
}

// Brings the weights of one tile of outputs, stage after stage.
__device__ __forceinline__ void load_stream_weights(const TileParams& params, const BlockRows& rows, int rank,
                                                    const StreamBarriers& barriers, unsigned ring, int thread,
                                                    RingPlace<kShape.weight_ring>& slot) {
  using Loads = WeightLoads;
  if constexpr (Loads::kAhead) {
    load_weights_ahead(params, rows, rank, barriers, ring, thread, slot);
    return;
  }
  constexpr int kUnrolledTurns = Loads::kUnits <= 4 * Loads::kAtOnce ? 4 : 1;
  Loads loads(thread);
  const char* const first = first_weight(params, rows) + loads.offset();
  const int rows_left = kShape.out_channels - rows.first_channel;
#pragma unroll 1
  for (int chunk = 0; chunk < kShape.block_chunks(); ++chunk) {
    const int first_channel = (rank * kShape.block_chunks() + chunk) * kShape.chunk_channels();
    const char* const source =
        first + static_cast<long long>(first_channel) * kShape.weight_steps[0] * kShape.element_bytes;
#pragma unroll 1
    for (int back = 0; back < kShape.all_backs(); back += kShape.stage_backs) {
      const int places = min(kShape.stage_backs, kShape.all_backs() - back) * Loads::kSlotRuns;
      const unsigned stage = ring + slot.slot * kShape.weight_stage_bytes();
      bool waited = false;
      const auto wait_until_empty = [&] {
        if (!waited) ptx::wait_barrier(barriers.weight_empty(slot.slot), slot.parity ^ 1);
        waited = true;
      };
#pragma unroll 1
      for (int place = loads.first_place; place < places; place += Loads::kPlacesAtOnce) {
        const int tap = kWeightPlaces[back * Loads::kSlotRuns + place];
        // Taps that a phase lacks are zeros, or no product is made with them.
        if (tap < 0 && !kShape.all_taps) continue;
        const unsigned to = stage + loads.target(place) * 16;
#pragma unroll(kUnrolledTurns)
        for (int turn = 0; turn < Loads::kUnits; turn += Loads::kAtOnce) {
#pragma unroll
          for (int i = 0; i < Loads::kAtOnce; ++i) {
            if (Loads::exists(turn + i))
              loads.load(i, turn + i, source + tap, tap >= 0, rows_left, kShape.channels - first_channel);
          }
          wait_until_empty();
#pragma unroll
          for (int i = 0; i < Loads::kAtOnce; ++i) {
            if (Loads::exists(turn + i)) loads.store(i, turn + i, to);
          }
        }
      }
      wait_until_empty();  // a thread without a place of this stage may not run ahead, either
      ptx::fence_for_async_proxy();
      ptx::arrive(barriers.weight_full(slot.slot));
      slot.advance();
    }
  }
}
