// A team of one warp: mma.sync on sm_80 and later, fragments by ldmatrix.
#pragma once

#include "reduce_team.cuh"
#include "tensor_math.cuh"

using Operand = Fragment<kShape.math>;

struct TeamTile : TeamPlace {
  float sum[kRowTiles][kTeamRuns][kColumnTiles][4] = {};
  unsigned rows_at;  // byte offsets that ldmatrix adds to a stage
  unsigned columns_at;

  __device__ __forceinline__ explicit TeamTile(int lead) : TeamPlace(threadIdx.x / 32, lead) {
    const int lane = threadIdx.x % 32;
    rows_at = (lane / 16 * kShape.row_pitch() + first_row + lane % 16) * 16;
    columns_at = (first_cell + lane / 8 % 2 * kPairCells + lane / 16 * 8 + lane % 8) * 16;
  }

  // The first of the sixteen rows that this warp holds of a tile.
  __device__ __forceinline__ int row(int tile) const { return first_row + tile * 16; }

  // Adds the products [begin, end) of a stage.
  __device__ __forceinline__ void multiply_stage(unsigned stage, int begin, int end) {
#pragma unroll 1
    for (int product = begin; product < end; ++product) {
      const unsigned a_at = stage + rows_at + 2 * product * kShape.row_pitch() * 16;
      const unsigned b_at = stage + columns_at + kProductCells[product] * 16;
      Operand a[kRowTiles];
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) a[tile] = load_operand(a_at + tile * 256);
#pragma unroll
      for (int run = 0; run < kTeamRuns; ++run) {
#pragma unroll
        for (int pair = 0; pair < kColumnTiles / 2; ++pair) {
          const Operand b = load_operand(b_at + (run_at[run] + pair * 16) * 16);
#pragma unroll
          for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
            for (int side = 0; side < 2; ++side) multiply_operands(sum[tile][run][2 * pair + side], a[tile], b, side);
          }
        }
      }
    }
  }

  static __device__ __forceinline__ Operand load_operand(unsigned address) {
    unsigned words[4];
    ptx::load_matrices(words, address);
    return Operand(words);
  }

  __device__ __forceinline__ void end_stage() {}
  __device__ __forceinline__ void end_former_stage() {}
};
