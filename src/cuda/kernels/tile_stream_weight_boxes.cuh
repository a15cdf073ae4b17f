// Stages of a gradient's weights straight out of a channels-last tensor by the copy engine, a box for each tap: rows of
// summed channels, 16-byte columns swapped, which products read as they are. One thread asks for them. The tensor cores
// would cut fp32 words: two warps round them where they lie.
//
// The config defines kWeightTaps: for each group of planes the taps with which its chunks are multiplied, one after the
// other.
#pragma once

#include "tile_stream_tensor.cuh"

constexpr int kWeightBoxBytes = kShape.weight_back_pitch() * 16;

// A visit for each stage of a tile: its chunk, first distance, and how many distances it has.
template <typename Visit>
__device__ __forceinline__ void for_each_stage(const Visit& visit) {
#pragma unroll 1
  for (int chunk = 0; chunk < kShape.block_chunks(); ++chunk) {
    const int backs = chunk_backs(chunk);
#pragma unroll 1
    for (int back = 0; back < backs; back += kShape.stage_backs)
      visit(chunk, back, min(kShape.stage_backs, backs - back));
  }
}

__device__ __forceinline__ void stream_weight_boxes(const StreamParams& stream, const BlockRows& rows, int rank,
                                                    const StreamBarriers& barriers, unsigned ring,
                                                    RingPlace<kShape.weight_ring>& place) {
  constexpr int kGroups = kShape.all_plane_groups();
  const int first_row = rows.group * kShape.out_channels + rows.first_channel;
  for_each_stage([&](int chunk, int back, int count) {
    const int index = rank * kShape.block_chunks() + chunk;
    const int first_channel = index / kGroups * kShape.chunk_channels();
    const unsigned full = kShape.rounds_boxes() ? barriers.weight_raw(place.slot) : barriers.weight_full(place.slot);
    ptx::wait_barrier(barriers.weight_empty(place.slot), place.parity ^ 1);
    ptx::expect_bytes(full, count * kWeightBoxBytes);
    unsigned target = ring + place.slot * kShape.weight_stage_bytes();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const int tap = kWeightTaps[index % kGroups * kShape.all_backs() + back + i];
      constexpr int kRows = kShape.reordered_rows();
      const int at[5] = {tap * kShape.channels + first_channel, kRows == 1 ? first_row : 0, 0, 0,
                         kRows == 1 ? 0 : first_row / kRows};
      ptx::copy_tensor(target, &stream.weight, at, full);
      target += kWeightBoxBytes;
    }
    place.advance();
  });
}

__device__ __forceinline__ void round_weight_boxes(const StreamBarriers& barriers, unsigned ring, int thread,
                                                   RingPlace<kShape.weight_ring>& place) {
  constexpr int kTurn = kRoundingThreads * 16;
  constexpr int kTurns = kWeightBoxBytes / kTurn;
  constexpr int kAtOnce = kTurns % 4 == 0 ? 4 : kTurns % 2 == 0 ? 2 : 1;  // vectors of a thread
  static_assert(!kShape.rounds_boxes() || kWeightBoxBytes % kTurn == 0);
  for_each_stage([&](int, int, int count) {
    ptx::wait_barrier(barriers.weight_raw(place.slot), place.parity);
    unsigned address = ring + place.slot * kShape.weight_stage_bytes() + thread * 16;
#pragma unroll 1
    for (int turn = 0; turn < count * kTurns; turn += kAtOnce) {
      unsigned words[kAtOnce][4];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) ptx::load_shared<16>(address + i * kTurn, words[i]);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        Cell cell;
#pragma unroll
        for (int word = 0; word < 4; ++word) cell.word[word] = words[i][word];
        ptx::store_16(address + i * kTurn, rounded(cell));
      }
      address += kAtOnce * kTurn;
    }
    ptx::fence_for_async_proxy();
    ptx::arrive(barriers.weight_full(place.slot));
    place.advance();
  });
}
