// A team of four warps: wgmma on sm_90a. Both operands are read from shared memory by descriptors without swizzle:
// eight rows of 16 bytes lie together, the next eight follow at 128 bytes, the next 16 bytes of depth one slab further.
// The config defines multiply(), the instruction for kShape.columns(), since its operand list depends on it.
#pragma once

#include "tile_load.cuh"

constexpr int kRowTiles = kShape.row_tiles;
constexpr int kColumnTiles = kShape.column_tiles;
constexpr int kSteps = kShape.slabs / 2;

// Shared-memory matrix descriptors, in units of 16 bytes: the start and the step between slabs of depth in the low
// word, the step between groups of eight rows (always 8) in the high one. Moving the start is adding to the low word.
// In a cluster, addresses carry the block's rank in their high bits, which don't belong here.
__device__ __forceinline__ unsigned descriptor(unsigned address, unsigned slab_pitch) {
  return (address >> 4 & 0x3fff) | slab_pitch << 16;
}
__device__ __forceinline__ unsigned long long whole(unsigned low) { return 8ULL << 32 | low; }

struct TeamTile {
  float sum[kRowTiles][kColumnTiles][4] = {};
  int first_row;
  int first_column;
  int depth_team;

  unsigned long long block_backs;

  __device__ __forceinline__ explicit TeamTile(const BlockRows& rows) : block_backs(backs_of(rows)) {
    // Taken from one lane, so that the compiler knows it for uniform: wgmma in code that could diverge is serialised.
    int team = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const int row_team = team % kShape.row_teams;
    team /= kShape.row_teams;
    first_column = team % kShape.column_teams * kColumnTiles * 8;
    depth_team = team / kShape.column_teams;
    first_row = row_team * kRowTiles * 64;
  }

  // The first of the sixteen rows that this thread's warp holds of a tile.
  __device__ __forceinline__ int row(int tile) const { return first_row + tile * 64 + threadIdx.x / 32 % 4 * 16; }

  // One instruction after the other, with nothing but an addition between: the tensor cores wait for whatever is more.
  __device__ __forceinline__ void begin_stage(unsigned input, unsigned weight, int first_back, int backs) {
    const unsigned a = descriptor(weight + first_row * 16, kShape.weight_slab_pitch());
    const unsigned b = descriptor(input + first_column * 16, kShape.slab_pitch());
    ptx::fence_warpgroup();
    if constexpr (kShape.stages_per_chunk() == 1 && kShape.all_backs() * kSteps <= 64) {
#pragma unroll
      for (int back = 0; back < kShape.all_backs(); ++back)
        add_back(a, b, back, 0, kFixedBackCells[back], kFixedBackRows[back]);
    } else {
#pragma unroll 4
      for (int back = 0; back < backs; ++back) {
        add_back(a, b, back, first_back, kBackCells[first_back + back],
                 kShape.all_taps ? ~0u : kBackRows[first_back + back]);
      }
    }
    ptx::commit_warpgroup();
  }

  __device__ __forceinline__ void add_back(unsigned a, unsigned b, int back, int first_back, int cells, unsigned rows) {
    if (kShape.skips_backs() && (block_backs >> (first_back + back) & 1) == 0) return;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        if (!kShape.all_taps && (rows >> (first_row / 64 + tile) & 1) == 0) continue;
        multiply(sum[tile],
                 whole(a + back * kShape.weight_back_pitch() + step * 2 * kShape.weight_slab_pitch() + tile * 64),
                 whole(b + cells + step * 2 * kShape.slab_pitch()));
      }
    }
  }

  __device__ __forceinline__ void end_stage() { ptx::wait_for_warpgroup(); }
};
