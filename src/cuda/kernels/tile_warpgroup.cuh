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

  // One instruction after the other: the tensor cores wait for whatever stands between. Where the products of a chunk
  // are not too many, each stage is code of its own, with addresses and missing taps known to the compiler; a branch
  // around each product would make the warps meet before each. Many products of many sums take long to compile.
  static constexpr int kProducts = kShape.all_backs() * kSteps * kRowTiles;
  static constexpr bool kSoonCompiled = kProducts * (4 + kColumnTiles * (16 + kColumnTiles) * 2 / 11) <= 2500;
  __device__ __forceinline__ void begin_stage(unsigned input, unsigned weight, int stage) {
    const unsigned a = descriptor(weight + first_row * 16, kShape.weight_slab_pitch());
    const unsigned b = descriptor(input + first_column * 16, kShape.slab_pitch());
    constexpr int kStages = kShape.stages_per_chunk();
    if constexpr (kProducts <= 256 && (kSoonCompiled || !kShape.all_taps)) {
#pragma unroll
      for (int known = 0; known < kStages; ++known) {
        if (kStages > 1 && stage != known) continue;
        ptx::fence_warpgroup();
#pragma unroll
        for (int back = 0; back < kShape.stage_backs; ++back) {
          const int index = known * kShape.stage_backs + back;
          if (index < kShape.all_backs()) add_back(a, b, back, index, kFixedBackCells[index], kFixedBackRows[index]);
        }
        ptx::commit_warpgroup();
      }
    } else {
      const int first_back = stage * kShape.stage_backs;
      const int backs = min(kShape.stage_backs, kShape.all_backs() - first_back);
      ptx::fence_warpgroup();
#pragma unroll 4
      for (int back = 0; back < backs; ++back) {
        const int index = first_back + back;
        add_back(a, b, back, index, kBackCells[index], kShape.all_taps ? ~0u : kBackRows[index]);
      }
      ptx::commit_warpgroup();
    }
  }

  // The products at the distance `index` of a chunk, whose weights stand at `back` of the stage.
  __device__ __forceinline__ void add_back(unsigned a, unsigned b, int back, int index, int cells, unsigned rows) {
    if (kShape.skips_backs() && (block_backs >> index & 1) == 0) return;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        // Teams of different rows run the same code; only with one of them is a tile's number known here.
        const int row_tile = kShape.row_teams == 1 ? tile : first_row / 64 + tile;
        if (!kShape.all_taps && (rows >> row_tile & 1) == 0) continue;
        multiply(sum[tile],
                 whole(a + back * kShape.weight_back_pitch() + step * 2 * kShape.weight_slab_pitch() + tile * 64),
                 whole(b + cells + step * 2 * kShape.slab_pitch()));
      }
    }
  }

  __device__ __forceinline__ void end_stage() { ptx::wait_for_warpgroup(); }
};
