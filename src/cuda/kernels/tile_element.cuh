// Elements on their way into a tile and out of it.
#pragma once

#include "ptx.cuh"
#include "tile_params.cuh"

constexpr bool kRoundsToTf32 = kShape.math == TileMath::tf32;

// fp16 and bf16 pass through the loader as bits; fp32 is rounded here, once, when the tensor cores will see TF32.
__device__ __forceinline__ Cell make_cell(const float (&values)[4]) {
  Cell cell;
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    cell.word[v] = kRoundsToTf32 ? ptx::round_to_tf32(values[v]) : __float_as_uint(values[v]);
  }
  return cell;
}

__device__ __forceinline__ Cell make_cell(const unsigned short (&values)[8]) {
  Cell cell;
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    cell.word[v] = values[2 * v] | static_cast<unsigned>(values[2 * v + 1]) << 16;
  }
  return cell;
}

__device__ __forceinline__ Cell rounded(Cell cell) {
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    if (kRoundsToTf32) cell.word[v] = ptx::round_to_tf32(__uint_as_float(cell.word[v]));
  }
  return cell;
}

__device__ __forceinline__ float to_storage(float value, float) { return value; }

__device__ __forceinline__ unsigned short to_storage(float value, unsigned short) {
  return kShape.math == TileMath::f16 ? ptx::round_to_f16(value) : ptx::round_to_bf16(value);
}

__device__ __forceinline__ float from_storage(float value) { return value; }

__device__ __forceinline__ float from_storage(unsigned short bits) {
  return kShape.math == TileMath::f16 ? ptx::widen_f16(bits) : __uint_as_float(static_cast<unsigned>(bits) << 16);
}
