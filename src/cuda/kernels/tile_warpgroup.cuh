// A team of four warps: wgmma on sm_90a. Both operands are read from shared memory by descriptors without swizzle: eight
// rows of 16 bytes lie together, the next eight follow at 128 bytes, the next 16 bytes of depth one slab further. The
// config defines multiply(), the instruction for kShape.columns(), since its operand list depends on it.
#pragma once

#include "tile_load.cuh"

constexpr int kRowTiles = kShape.row_tiles;
constexpr int kColumnTiles = kShape.column_tiles;
constexpr int kSteps = kShape.slabs / 2;

// Shared-memory matrix descriptor: start, step between slabs of depth, step between groups of eight rows, in 16 bytes.
__device__ __forceinline__ unsigned long long descriptor(unsigned address, unsigned slab_pitch) {
  return static_cast<unsigned long long>(address >> 4 & 0x3fff) | static_cast<unsigned long long>(slab_pitch) << 16 |
         8ULL << 32;
}

struct TeamTile {
  float sum[kRowTiles][kColumnTiles][4] = {};
  int first_row;
  int first_column;
  int depth_team;

  __device__ __forceinline__ TeamTile() {
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

  __device__ __forceinline__ void begin_stage(unsigned input, unsigned weight, int first_back, int backs) {
    ptx::fence_warpgroup();
    const int items = backs * kSteps;
#pragma unroll 1
    for (int item = depth_team; item < items; item += kShape.depth_teams) {
      const int back = item / kSteps;
      const int step = item % kSteps;
      const unsigned a_at = weight + ((back * kShape.slabs + step * 2) * kShape.rows() + first_row) * 16;
      const unsigned b_at = input + (kBackCells[first_back + back] + step * 2 * kShape.slab_pitch() + first_column) * 16;
      const unsigned long long b = descriptor(b_at, kShape.slab_pitch());
      const unsigned rows = kShape.all_taps ? ~0u : kBackRows[first_back + back] >> first_row / 64;
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        if (!kShape.all_taps && (rows >> tile & 1) == 0) continue;
        multiply(sum[tile], descriptor(a_at + tile * 64 * 16, kShape.rows()), b);
      }
    }
    ptx::commit_warpgroup();
  }

  __device__ __forceinline__ void end_stage() { ptx::wait_for_warpgroup(); }
};
