// A team of four warps: wgmma on sm_90a. Both operands are read from shared memory by descriptors without swizzle:
// eight cells lie together, the next eight follow at 128 bytes, the second unit of a product one pitch further.
// The config defines multiply(), the instruction for kShape.run_columns(), since its operand list depends on it.
#pragma once

#include "ptx.cuh"
#include "reduce_team.cuh"

// In units of 16 bytes: the start and the step between the two units in the low word, the step between groups of eight
// cells (always 8) in the high one. Moving the start is adding to the low word.
__device__ __forceinline__ unsigned descriptor(unsigned address, unsigned unit_pitch) {
  return (address >> 4 & 0x3fff) | unit_pitch << 16;
}
__device__ __forceinline__ unsigned long long whole(unsigned low) { return 8ULL << 32 | low; }

struct TeamTile : TeamPlace {
  float sum[kRowTiles][kTeamRuns][kColumnTiles][4] = {};

  // The index is taken from one lane, so that the compiler knows it for uniform: wgmma in code that could diverge is
  // serialised.
  __device__ __forceinline__ explicit TeamTile(int lead) : TeamPlace(__shfl_sync(~0u, threadIdx.x / 128, 0), lead) {}

  // The row of the block that this thread holds of a half of a tile.
  __device__ __forceinline__ int row(int tile, int half) const {
    return first_row + threadIdx.x / 32 % 4 * 16 + kShape.row_of(tile, half, threadIdx.x % 32 / 4);
  }

  // Adds the products of a stage in fp32 out of TF32. The tensor cores cut the bits that they shift out; sums of a few
  // products are therefore added in fp32.
  __device__ __forceinline__ void multiply_split_stage(unsigned stage) {
    constexpr int kDepth = 4;
    const unsigned a = descriptor(stage + first_row * 16, kShape.row_pitch());
    const unsigned b = descriptor(stage + first_cell * 16, kPairCells);
#pragma unroll 1
    for (int begin = 0; begin < kShape.products(); begin += kDepth) {
      float part[kRowTiles][kTeamRuns][kColumnTiles][4] = {};
      ptx::fence_warpgroup();
#pragma unroll 1
      for (int product = begin; product < min(begin + kDepth, kShape.products()); ++product) {
#pragma unroll
        for (int run = 0; run < kTeamRuns; ++run) {
#pragma unroll
          for (int tile = 0; tile < kRowTiles; ++tile) {
            const unsigned rows = a + 2 * product * kShape.row_pitch() + tile * 64;
            const unsigned columns = b + run_at[run] + kProductCells[product];
            multiply(part[tile][run], whole(rows + kShape.plane_cells()), whole(columns));
            multiply(part[tile][run], whole(rows), whole(columns + kShape.plane_cells()));
            multiply(part[tile][run], whole(rows), whole(columns));
          }
        }
      }
      ptx::commit_warpgroup();
      ptx::wait_for_warpgroup();
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
        for (int run = 0; run < kTeamRuns; ++run) {
#pragma unroll
          for (int column = 0; column < kColumnTiles; ++column) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[tile][run][column][i] += part[tile][run][column][i];
          }
        }
      }
    }
  }

  // Starts the products of a stage of boxes: rows of channels, eight pixels after the other, columns of 16 bytes
  // swapped as the copy engine does.
  __device__ __forceinline__ void multiply_boxes(unsigned stage) {
    constexpr unsigned kRowBytes = kShape.row_box * kShape.element_bytes;
    constexpr unsigned kColumnBytes = kShape.column_box * kShape.element_bytes;
    constexpr int kRunBytes = kShape.run * kShape.team_columns * kShape.pixels() * kShape.element_bytes;
    const unsigned rows = stage + first_row / 64 * kShape.row_box_bytes();
    const unsigned columns = stage + kShape.row_cells() * 16;
    ptx::fence_warpgroup();
#pragma unroll 2
    for (int product = 0; product < kShape.products(); ++product) {
#pragma unroll
      for (int run = 0; run < kTeamRuns; ++run) {
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
          multiply(sum[tile][run],
                   swapped(rows + tile * kShape.row_box_bytes() + product * 16 * kRowBytes, kShape.row_box_bytes(),
                           kRowBytes),
                   swapped(columns + run * kRunBytes + product * 16 * kColumnBytes, kShape.column_box_bytes(),
                           kColumnBytes));
        }
      }
    }
    ptx::commit_warpgroup();
  }
  // The start, the way to the next channels, the way to the next eight pixels, and how long rows are.
  static __device__ __forceinline__ unsigned long long swapped(unsigned address, unsigned next_channels,
                                                               unsigned row_bytes) {
    const unsigned long long kind = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
    return kind << 62 | static_cast<unsigned long long>(row_bytes / 2) << 32 | next_channels >> 4 << 16 |
           (address >> 4 & 0x3fff);
  }

  // Starts the products [begin, end) of a stage.
  __device__ __forceinline__ void multiply_stage(unsigned stage, int begin, int end) {
    if constexpr (kShape.splits()) return multiply_split_stage(stage);
    if constexpr (kShape.boxes()) return multiply_boxes(stage);
    const unsigned a = descriptor(stage + first_row * 16, kShape.row_pitch());
    const unsigned b = descriptor(stage + first_cell * 16, kPairCells);
    ptx::fence_warpgroup();
#pragma unroll 2
    for (int product = begin; product < end; ++product) {
#pragma unroll
      for (int run = 0; run < kTeamRuns; ++run) {
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
          multiply(sum[tile][run], whole(a + 2 * product * kShape.row_pitch() + tile * 64),
                   whole(b + run_at[run] + kProductCells[product]));
        }
      }
    }
    ptx::commit_warpgroup();
  }

  __device__ __forceinline__ void end_stage() { ptx::wait_for_warpgroup(); }
  // Of the stage before the one that was started last.
  __device__ __forceinline__ void end_former_stage() { ptx::wait_for_warpgroup<1>(); }
};
