// A team of one warp: mma.sync on sm_80 and later, fragments by ldmatrix.
#pragma once

#include "tile_load.cuh"

constexpr int kRowTiles = kShape.row_tiles;
constexpr int kColumnTiles = kShape.column_tiles;
constexpr int kSteps = kShape.slabs / 2;  // products of one mma's depth per chunk and distance

// The position of a column's cell in the input patch, at the greatest distance back.
__device__ __forceinline__ int patch_position(int column) {
  if (column >= kShape.cells()) return 0;
  const int w = column % kShape.tile[3];
  column /= kShape.tile[3];
  const int h = column % kShape.tile[2];
  column /= kShape.tile[2];
  const int d = column % kShape.tile[1];
  const int n = column / kShape.tile[1];
  return ((n * kShape.patch(1) + d) * kShape.patch(2) + h) * kShape.patch(3) + w;
}

// One warp's share of the block: its rows, columns and part of the depth.
struct TeamTile {
  float sum[kRowTiles][kColumnTiles][4] = {};
  unsigned rows_at;  // byte offsets that ldmatrix adds to a stage
  unsigned columns_at[kColumnTiles / 2];
  int first_row_tile;
  int first_column;
  int depth_team;

  unsigned long long block_backs;

  __device__ __forceinline__ explicit TeamTile(const BlockRows& block) : block_backs(backs_of(block)) {
    const int lane = threadIdx.x % 32;
    int warp = threadIdx.x / 32;
    const int row_warp = warp % kShape.row_teams;
    warp /= kShape.row_teams;
    const int column_warp = warp % kShape.column_teams;
    depth_team = warp / kShape.column_teams;
    first_row_tile = row_warp * kRowTiles;
    first_column = column_warp * kColumnTiles * 8;
    rows_at = ((lane / 16) * kShape.weight_slab_pitch() + first_row_tile * 16 + lane % 16) * 16;
#pragma unroll
    for (int pair = 0; pair < kColumnTiles / 2; ++pair) {
      const int column = first_column + pair * 16 + lane / 16 * 8 + lane % 8;
      columns_at[pair] = (lane / 8 % 2 * kShape.slab_pitch() + patch_position(column)) * 16;
    }
  }

  __device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    if constexpr (kShape.math == TileMath::f16) {
      ptx::multiply_f16(d, a, b0, b1);
    } else if constexpr (kShape.math == TileMath::bf16) {
      ptx::multiply_bf16(d, a, b0, b1);
    } else {
      ptx::multiply_tf32(d, a, b0, b1);
    }
  }

  __device__ __forceinline__ int row(int tile) const { return (first_row_tile + tile) * 16; }

  // Teams take the products of a chunk in turn, however the chunk is cut into stages.
  __device__ __forceinline__ int first_item(int first_back) const {
    return (depth_team + kShape.depth_teams - first_back * kSteps % kShape.depth_teams) % kShape.depth_teams;
  }

  // Adds the products of one stage: its distances times the channels of the chunk.
  __device__ __forceinline__ void begin_stage(unsigned input, unsigned weight, int stage) {
    constexpr int kDepthTeams = kShape.depth_teams;
    const int first_back = stage * kShape.stage_backs;
    const int backs =
        kShape.stages_per_chunk() == 1 ? kShape.all_backs() : min(kShape.stage_backs, kShape.all_backs() - first_back);
    const int items = backs * kSteps;
#pragma unroll kShape.unroll
    for (int item = first_item(first_back); item < items; item += kDepthTeams) {
      const int back = item / kSteps;
      const int step = item % kSteps;
      if (kShape.skips_backs() && (block_backs >> (first_back + back) & 1) == 0) continue;
      const unsigned a_at =
          weight + rows_at + (back * kShape.weight_back_pitch() + step * 2 * kShape.weight_slab_pitch()) * 16;
      const unsigned b_at = input + (kBackCells[first_back + back] + step * 2 * kShape.slab_pitch()) * 16;
      const unsigned rows = kShape.all_taps ? ~0u : kBackRows[first_back + back] >> first_row_tile;
      if (!kShape.all_taps && (rows & ((1u << kRowTiles) - 1)) == 0) continue;
      unsigned b[kColumnTiles / 2][4];
#pragma unroll
      for (int pair = 0; pair < kColumnTiles / 2; ++pair) ptx::load_matrices(b[pair], b_at + columns_at[pair]);
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        if (!kShape.all_taps && (rows >> tile & 1) == 0) continue;
        unsigned a[4];
        ptx::load_matrices(a, a_at + tile * 256);
        if constexpr (kShape.math == TileMath::fp32x3) {
          multiply_split(tile, a, b);
        } else {
#pragma unroll
          for (int column = 0; column < kColumnTiles; ++column) {
            multiply(sum[tile][column], a, b[column / 2][column % 2 * 2], b[column / 2][column % 2 * 2 + 1]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void end_stage() {}

  // fp32 out of TF32: x = big + small, and the product of the two small parts is below fp32's last bit.
  __device__ __forceinline__ void multiply_split(int tile, const unsigned (&a)[4],
                                                 const unsigned (&b)[kColumnTiles / 2][4]) {
    unsigned a_big[4];
    unsigned a_small[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) split(a[i], a_big[i], a_small[i]);
#pragma unroll
    for (int column = 0; column < kColumnTiles; ++column) {
      unsigned b_big[2];
      unsigned b_small[2];
      split(b[column / 2][column % 2 * 2], b_big[0], b_small[0]);
      split(b[column / 2][column % 2 * 2 + 1], b_big[1], b_small[1]);
      // The tensor cores cut the bits that they shift out; sums of one depth are therefore kept short and added in
      // fp32.
      float part[4] = {};
      ptx::multiply_tf32(part, a_small, b_big[0], b_big[1]);
      ptx::multiply_tf32(part, a_big, b_small[0], b_small[1]);
      ptx::multiply_tf32(part, a_big, b_big[0], b_big[1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[tile][column][i] += part[i];
    }
  }

  static __device__ __forceinline__ void split(unsigned bits, unsigned& big, unsigned& small) {
    big = ptx::round_to_tf32(__uint_as_float(bits));
    small = ptx::round_to_tf32(__uint_as_float(bits) - __uint_as_float(big));
    if ((big & 0x7f800000u) == 0x7f800000u) {  // infinite, NaN, or rounded up to infinity
      big = bits;
      small = 0;
    }
  }
};
