// Stages of a forward layer's weights straight out of a channels-last tensor by the copy engine, a box for each tap:
// rows of up to 128 bytes with channels of the block's rows, one for each summed channel.
//
// The config defines kWeightTaps: for each distance and slot, where the tap stands in the kernel (ten bits each, the
// width's lowest) or -1, and kStageBoxes: for each stage, how many of them there are. Each of these twice: where a
// chunk's boxes are unrolled, places are known when it is compiled, and one copy does not wait for the next one's
// place.
#pragma once

#include "tile_stream_load.cuh"

// By one thread.
__device__ __forceinline__ void stream_weight_boxes(const StreamParams& stream, const BlockRows& rows, int rank,
                                                    const StreamBarriers& barriers, unsigned ring,
                                                    RingPlace<kBoxRing>& place) {
  constexpr int kSlots = kShape.all_slots();
  constexpr int kStages = kShape.stages_per_chunk();
  constexpr bool kKnown = kShape.all_backs() * kSlots * kShape.weight_runs() <= 16;
#pragma unroll 1
  for (int index = 0; index < kShape.block_chunks(); ++index) {
    const int chunk = rank * kShape.block_chunks() + index;
    const int summed = rows.group * kShape.channels + chunk * kShape.chunk_channels();
#pragma unroll(kKnown ? kStages : 1)
    for (int stage = 0; stage < kStages; ++stage) {
      const unsigned full = barriers.box_full(place.slot);
      unsigned target = ring + place.slot * kShape.weight_stage_bytes();
      const int first = stage * kShape.stage_backs;
      const int backs = min(kShape.stage_backs, kShape.all_backs() - first);
      ptx::wait_barrier(barriers.box_empty(place.slot), place.parity ^ 1);
      const int boxes = (kKnown ? kFixedStageBoxes[stage] : kStageBoxes[stage]) * kShape.weight_runs();
      ptx::expect_bytes(full, boxes * kShape.weight_box_bytes());
#pragma unroll(kKnown ? kShape.stage_backs * kSlots : 1)
      for (int i = 0; i < backs * kSlots; ++i) {
        const int tap = kKnown ? kFixedWeightTaps[first * kSlots + i] : kWeightTaps[first * kSlots + i];
#pragma unroll(kKnown ? kShape.weight_runs() : 1)
        for (int run = 0; run < kShape.weight_runs(); ++run) {
          const int at[5] = {rows.first_channel + run * kShape.weight_run(), (tap & 1023) + rows.first_residue[2],
                             (tap >> 10 & 1023) + rows.first_residue[1], (tap >> 20) + rows.first_residue[0], summed};
          if (tap >= 0) ptx::copy_tensor(target, &stream.weight, at, full);
          target += kShape.weight_box_bytes();
        }
      }
      place.advance();
    }
  }
}

#if kWeights == 4
// Puts boxes into the order of packed stages, rounded, by a warpgroup that does nothing else. A thread takes
// four channels of the sum by four of the rows at a time.
__device__ __forceinline__ void turn_weight_boxes(const StreamBarriers& barriers, unsigned boxes, unsigned ring,
                                                  int thread, RingPlace<kBoxRing>& box,
                                                  RingPlace<kShape.weight_ring>& place) {
  constexpr int kStageBytes = kShape.weight_stage_bytes();
  constexpr int kAcross = kShape.weight_run() / 4;  // of a row of shared memory
  constexpr int kRowBytes = kShape.weight_row_bytes();
  constexpr int kOfRun = kAcross * kShape.slabs;
  constexpr int kOfBack = kOfRun * kShape.weight_runs() * kShape.all_slots();
#pragma unroll 1
  for (int chunk = 0; chunk < kShape.block_chunks(); ++chunk) {
#pragma unroll 1
    for (int back = 0; back < kShape.all_backs(); back += kShape.stage_backs) {
      const int count = min(kShape.stage_backs, kShape.all_backs() - back) * kOfBack;
      const unsigned from = boxes + box.slot * kStageBytes;
      const unsigned to = ring + place.slot * kStageBytes;
      ptx::wait_barrier(barriers.box_full(box.slot), box.parity);
      ptx::wait_barrier(barriers.weight_empty(place.slot), place.parity ^ 1);
#pragma unroll 2
      for (int i = thread; i < count; i += kStreamThreads) {
        const int quad = i % kAcross;
        const int slab = i / kAcross % kShape.slabs;
        const int run = i / kOfRun;  // of all distances and slots
        unsigned words[4][4];
#pragma unroll
        for (int channel = 0; channel < 4; ++channel) {
          const unsigned row = from + run * kShape.weight_box_bytes() + (slab * 4 + channel) * kRowBytes;
          const unsigned address = row + quad * 16;
          ptx::load_shared<16>(address ^ (address >> 3 & (kRowBytes - 1) & 0x70), words[channel]);
        }
        const int channel = run % kShape.weight_runs() * kShape.weight_run() + quad * 4;
        const int slot = run / kShape.weight_runs() % kShape.all_slots();
        const unsigned first =
            i / kOfBack * kShape.weight_back_pitch() + slab * kShape.weight_slab_pitch() + slot * kShape.block_channels;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          Cell cell;
#pragma unroll
          for (int k = 0; k < 4; ++k) cell.word[k] = words[k][j];
          ptx::store_16(to + (first + kShape.row_of_channel(channel + j)) * 16, rounded(cell));
        }
      }
      ptx::fence_for_async_proxy();
      ptx::arrive(barriers.weight_full(place.slot));
      ptx::arrive(barriers.box_empty(box.slot));
      place.advance();
      box.advance();
    }
  }
}
#endif
