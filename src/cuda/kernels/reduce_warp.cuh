// A team of one warp: mma.sync on sm_80 and later, fragments by ldmatrix, or of boxes as they lie.
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

  // The row of the block that this thread holds of a half of a tile.
  __device__ __forceinline__ int row(int tile, int half) const {
    return first_row + kShape.row_of(tile, half, threadIdx.x % 32 / 4);
  }

  // Adds the products [begin, end) of a stage.
  __device__ __forceinline__ void multiply_stage(unsigned stage, int begin, int end) {
    if constexpr (kShape.boxes()) return multiply_boxes(stage);
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

  // Adds the products of a stage of boxes. Along the depth of a product lie eight pixels, in any order that both
  // factors share: a lane has pixels 2 w and 2 w + 1 of them, where words w and w + 4 belong. So no bank is met twice,
  // with columns of 16 bytes swapped as the copy engine does. Lanes read what lies side by side in a fragment's
  // registers: wider vectors would have to be taken apart by as many moves as there are words in all products.
  __device__ __forceinline__ void multiply_boxes(unsigned stage) {
    const unsigned row_box = stage + first_row / kBoxChannels * kShape.row_box_bytes();
    const unsigned column_box =
        stage + kShape.row_cells() * 16 +
        (run_team * kTeamRuns * kBlockBoxes + column_team * kRunBoxes) * kShape.column_box_bytes();
    unsigned rows_from[2][2];  // sixteen channels of a box, either pixel
    unsigned columns_from[4][2];
#pragma unroll
    for (int pixel = 0; pixel < 2; ++pixel) {
      const unsigned g = threadIdx.x % 32 / 4;
      const unsigned row = threadIdx.x % 4 * 2 + pixel;
#pragma unroll
      for (unsigned i = 0; i < 2; ++i)
        rows_from[i][pixel] = row_box + row * kBoxRowBytes + ((4 * i + g / 2) ^ row) * 16 + g % 2 * 8;
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        columns_from[i][pixel] = column_box + row * kBoxRowBytes + ((2 * i + g / 4) ^ row) * 16 + g % 4 * 4;
    }
    // While the products of some pixels are computed, the next ones are on their way.
    unsigned a[2][kRowTiles][2][2];
    unsigned b[2][kTeamRuns * kColumnTiles][2];
    const auto load = [&](int product) {
      const unsigned pixels = product * 8 * kBoxRowBytes;
#pragma unroll
      for (int pixel = 0; pixel < 2; ++pixel) {
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile)
          ptx::load_shared_64(rows_from[tile % 2][pixel] + pixels + tile / 2 * kShape.row_box_bytes(),
                              a[product % 2][tile][pixel]);
#pragma unroll
        for (int column = 0; column < kTeamRuns * kColumnTiles; ++column) {
          const int box = column / kColumnTiles * kBlockBoxes + column % kColumnTiles / 4;
          b[product % 2][column][pixel] =
              ptx::load_shared_32(columns_from[column % 4][pixel] + pixels + box * kShape.column_box_bytes());
        }
      }
    };
    load(0);
#pragma unroll
    for (int product = 0; product < kShape.products(); ++product) {
      if (product + 1 < kShape.products()) load(product + 1);
      unsigned words[kRowTiles][4];
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
        for (int word = 0; word < 4; ++word) words[tile][word] = rounded(a[product % 2][tile][word / 2][word % 2]);
      }
#pragma unroll
      for (int column = 0; column < kTeamRuns * kColumnTiles; ++column) {
        const unsigned b0 = rounded(b[product % 2][column][0]);
        const unsigned b1 = rounded(b[product % 2][column][1]);
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile)
          ptx::multiply_tf32(sum[tile][column / kColumnTiles][column % kColumnTiles], words[tile], b0, b1);
      }
    }
  }
  static constexpr int kBoxChannels = 32;
  static constexpr int kBoxRowBytes = kBoxChannels * 4;
  static constexpr int kRunBoxes = kColumnTiles / 4;
  static constexpr int kBlockBoxes = kShape.block_columns() / kBoxChannels;  // of each tap
  static __device__ __forceinline__ unsigned rounded(unsigned word) {
    return ptx::round_to_tf32(__uint_as_float(word));
  }

  static __device__ __forceinline__ Operand load_operand(unsigned address) {
    unsigned words[4];
    ptx::load_matrices(words, address);
    return Operand(words);
  }

  __device__ __forceinline__ void end_stage() {}
  __device__ __forceinline__ void end_former_stage() {}
};
