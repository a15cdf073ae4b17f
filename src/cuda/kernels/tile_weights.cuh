// Where the weights of a block lie: which tap stands at (row, distance) of a stage.
#pragma once

#include "tile_params.cuh"
#include "tile_taps.cuh"

// Which rows of the problem a block computes.
struct BlockRows {
  int group;
  int first_channel;     // within the group
  int first_residue[3];  // per axis
};

__device__ __forceinline__ BlockRows block_rows(int index) {
  BlockRows rows;
  rows.first_channel = index % kShape.channel_blocks() * kShape.block_channels;
  index /= kShape.channel_blocks();
#pragma unroll
  for (int axis = 2; axis >= 0; --axis) {
    rows.first_residue[axis] = index % kShape.residue_blocks(axis) * kShape.span[axis];
    index /= kShape.residue_blocks(axis);
  }
  rows.group = index;
  return rows;
}

// The distances at which a block has a tap, a bit each.
__device__ __forceinline__ unsigned long long backs_of(const BlockRows& rows) {
  if (!kShape.skips_backs()) return ~0ULL;
  unsigned long long found = 0;
#pragma unroll 1
  for (int index = 0; index < kShape.all_backs(); ++index) {
    const int backs[3] = {kShape.back_along(0, index), kShape.back_along(1, index), kShape.back_along(2, index)};
    bool everywhere = true;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      bool here = kShape.span[axis] == kShape.stride[axis];
      for (int i = 0; i < kShape.span[axis] && !here; ++i)
        here = kShape.has_tap(axis, rows.first_residue[axis] + i, backs[axis]);
      everywhere = everywhere && here;
    }
    if (everywhere) found |= 1ULL << index;
  }
  return found;
}

__device__ __forceinline__ PlaneGroup plane_group(int index) { return plane_group(kShape, index); }
__device__ __forceinline__ int gradient_tap_of(const PlaneGroup& group, int index) {
  return gradient_tap(kShape, group, index);
}

// The way through the stages of weights, chunk after chunk. A block whose phases have no tap in some stage leaves that
// stage out.
struct StageWalk {
  static constexpr int kStages = kShape.stages_per_chunk();
  static constexpr bool kLeavesOut = kShape.skips_backs() && kStages > 1;

  unsigned long long stages;  // that the block visits, a bit each
  int total;                  // steps of the whole walk
  int step = 0;
  int chunk = 0;
  int stage = 0;

  __device__ __forceinline__ explicit StageWalk(const BlockRows& rows) : stages(kLeavesOut ? visited(rows) : 1) {
    total = kShape.block_chunks() * (kLeavesOut ? __popcll(stages) : kStages);
    if (kLeavesOut) stage = __ffsll(stages) - 1;
  }

  __device__ __forceinline__ bool ended() const { return step >= total; }
  __device__ __forceinline__ bool begins_chunk() const {
    return kStages == 1 || (kLeavesOut ? stage == __ffsll(stages) - 1 : stage == 0);
  }

  __device__ __forceinline__ void advance() {
    ++step;
    const unsigned long long later = kLeavesOut ? stages >> stage >> 1 : stage + 1 < kStages;
    if (later != 0) {
      stage += kLeavesOut ? __ffsll(later) : 1;
    } else {
      stage = kLeavesOut ? __ffsll(stages) - 1 : 0;
      ++chunk;
    }
  }

 private:
  // A block without any tap visits one stage, of zeros.
  static __device__ __forceinline__ unsigned long long visited(const BlockRows& rows) {
    const unsigned long long backs = backs_of(rows);
    unsigned long long found = 0;
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) {
      const unsigned long long own = backs >> (stage * kShape.stage_backs);
      if ((own & ((1ULL << kShape.stage_backs) - 1)) != 0) found |= 1ULL << stage;
    }
    return found == 0 ? 1 : found;
  }
};

__device__ __forceinline__ int tap_of(const BlockRows& rows, const int (&slot)[3], int back_index) {
  return phase_tap(kShape, rows.first_residue, slot, back_index);
}
