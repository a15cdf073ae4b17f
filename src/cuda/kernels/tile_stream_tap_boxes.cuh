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
                                                    RingPlace<kShape.weight_ring>& place) {
  constexpr int kSlots = kShape.all_slots();
  constexpr int kStages = kShape.stages_per_chunk();
  constexpr bool kKnown = kShape.all_backs() * kSlots * kShape.weight_runs() <= 16;
#pragma unroll 1
  for (int index = 0; index < kShape.block_chunks(); ++index) {
    const int chunk = rank * kShape.block_chunks() + index;
    const int summed = rows.group * kShape.channels + chunk * kShape.chunk_channels();
#pragma unroll(kKnown ? kStages : 1)
    for (int stage = 0; stage < kStages; ++stage) {
      const unsigned full = barriers.weight_full(place.slot);
      unsigned target = ring + place.slot * kShape.weight_stage_bytes();
      const int first = stage * kShape.stage_backs;
      ptx::wait_barrier(barriers.weight_empty(place.slot), place.parity ^ 1);
      const int boxes = (kKnown ? kFixedStageBoxes[stage] : kStageBoxes[stage]) * kShape.weight_runs();
      ptx::expect_bytes(full, boxes * kShape.weight_box_bytes());
#pragma unroll(kKnown ? kShape.stage_backs * kSlots : 1)
      for (int i = 0; i < kShape.stage_backs * kSlots; ++i) {
        // Not the loop's own bound: unrolled by a number, NVRTC 13.0 went on to it where the last stage ends before.
        if (first * kSlots + i >= kShape.all_backs() * kSlots) break;
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
