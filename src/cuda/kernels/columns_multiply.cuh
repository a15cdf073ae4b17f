// A warp's share of the product, and its way to the columns in shared memory.
#pragma once

#include "columns_load.cuh"

__device__ __forceinline__ void multiply(F32, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  ptx::multiply_tf32(d, a, b0, b1);
}
__device__ __forceinline__ void multiply(F16, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  ptx::multiply_f16(d, a, b0, b1);
}
__device__ __forceinline__ void multiply(BF16, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  ptx::multiply_bf16(d, a, b0, b1);
}

__device__ __forceinline__ unsigned rounded(unsigned bits) { return ptx::round_to_tf32(__uint_as_float(bits)); }

struct WarpColumns {
  static constexpr int kSteps = kShape.chunk / kShape.step_channels();
  static constexpr int kRowTiles = 2 * kShape.row_units;
  static constexpr int kCellTiles = 2 * kShape.cell_units;

  float sum[kRowTiles][kCellTiles][4] = {};
  int first_row;
  int first_cell;
  int depth;
  unsigned rows_at;  // what a lane adds to a stage's address
  unsigned cells_at;

  __device__ __forceinline__ WarpColumns() {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    first_row = warp % kShape.row_warps * kShape.row_units * kColumnsRowUnit;
    first_cell = warp / kShape.row_warps % kShape.cell_warps * kShape.cell_units * kColumnsCellUnit;
    depth = warp / (kShape.row_warps * kShape.cell_warps);
    if constexpr (sizeof(Storage) == 4) {
      rows_at = lane % 4 * kShape.weight_pitch() + (first_row + lane / 4 * 2) * 4;
    } else {
      rows_at = (lane / 16 * 8 + lane % 8) * kShape.weight_pitch() + (first_row + lane / 8 % 2 * 8) * 2;
    }
    cells_at = lane / 8 % 2 * kShape.slab_pitch() + (first_cell + lane / 16 * 8 + lane % 8) * 16;
  }

  __device__ __forceinline__ bool multiplies() const { return kShape.idle_warps == 0 || depth < kColumnsDepth; }

  // A tile of 16 rows. Which of them is which row of the product is free: a lane loads two neighbours of fp32 at once,
  // for the two halves, as the registers of the operand lie (and as they stay while they are rounded).
  __device__ __forceinline__ void load_rows(unsigned (&a)[4], unsigned at) const {
    if constexpr (sizeof(Storage) == 4) {
      unsigned low[2];
      unsigned high[2];
      ptx::load_shared_64(at, low);
      ptx::load_shared_64(at + 4 * kShape.weight_pitch(), high);
      a[0] = rounded(low[0]);
      a[1] = rounded(low[1]);
      a[2] = rounded(high[0]);
      a[3] = rounded(high[1]);
    } else {
      ptx::load_matrices_transposed(a, at);
    }
  }
  static __device__ __forceinline__ int row_of(int tile, int half) {
    const int g = threadIdx.x % 32 / 4;
    return tile * 16 + (sizeof(Storage) == 4 ? g * 2 + half : half * 8 + g);
  }

  __device__ __forceinline__ void add_products(unsigned weights, unsigned cells) {
#pragma unroll
    for (int turn = 0; turn < kSteps / kColumnsDepth; ++turn) {
      const int step = turn * kColumnsDepth + depth;
      const unsigned cells_step = cells + cells_at + step * 2 * kShape.slab_pitch();
      const unsigned rows_step = weights + rows_at + step * kShape.step_channels() * kShape.weight_pitch();
      unsigned b[kShape.cell_units][4];
#pragma unroll
      for (int unit = 0; unit < kShape.cell_units; ++unit) {
        ptx::load_matrices(b[unit], cells_step + unit * kColumnsCellUnit * 16);
        if constexpr (sizeof(Storage) == 4 && kShape.copies_cells) {
#pragma unroll
          for (int word = 0; word < 4; ++word) b[unit][word] = rounded(b[unit][word]);
        }
      }
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
        unsigned a[4];
        load_rows(a, rows_step + tile * 16 * kShape.element_bytes);
#pragma unroll
        for (int cell = 0; cell < kCellTiles; ++cell) {
          multiply(Element{}, sum[tile][cell], a, b[cell / 2][cell % 2 * 2], b[cell / 2][cell % 2 * 2 + 1]);
        }
      }
    }
  }

  // The warps of a depth store or add their sums, one depth after the other, the last first.
  __device__ __forceinline__ void add_up(float* columns) const {
    float* const own = columns + first_cell + threadIdx.x % 4 * 2;
#pragma unroll
    for (int turn = kColumnsDepth - 1; turn >= 0; --turn) {
      __syncthreads();
      if (depth != turn) continue;
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* const line = own + (first_row + row_of(tile, half)) * kShape.column_pitch();
#pragma unroll
          for (int cell = 0; cell < kCellTiles; ++cell) {
            float2* const pair = reinterpret_cast<float2*>(line + cell * 8);
            float2 value = {sum[tile][cell][2 * half], sum[tile][cell][2 * half + 1]};
            if (turn < kColumnsDepth - 1) {
              const float2 others = *pair;
              value.x += others.x;
              value.y += others.y;
            }
            *pair = value;
          }
        }
      }
    }
    __syncthreads();
  }
};
