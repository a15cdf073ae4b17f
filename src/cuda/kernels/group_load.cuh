// What the kernels of small groups share: where a block's box lies, and how it comes to shared memory.
//
// The config before this file states Element (F32, F16 or BF16) and kShape.
#pragma once

#include "group_params.cuh"
#include "ptx.cuh"
#include "types.cuh"

using Storage = Element::Storage;
using tconv_device::i64;

constexpr int kWarps = kGroupThreads / 32;
// Blocks of a multiprocessor that registers are left for.
constexpr int kResident = kShape.shared_bytes() <= 74 * 1024 && (!kShape.weight || kShape.warp_products() <= 4) ? 3 : 2;

struct GroupTile {
  int sample;
  int first[3];  // pixel along depth, height, width

  __device__ __forceinline__ GroupTile(const GroupParams& p, int index) {
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      first[axis] = index % p.tiles[1 + axis] * kShape.tile[axis];
      index /= p.tiles[1 + axis];
    }
    sample = index;
  }
};

// What tensor cores see of a value: halves are exact in TF32.
__device__ __forceinline__ float operand(Storage value) {
  if constexpr (sizeof(Storage) == 4) return __uint_as_float(ptx::round_to_tf32(value));
  return Element::load(value);
}

__device__ __forceinline__ bool is_inside(int index, int size) {
  return static_cast<unsigned>(index) < static_cast<unsigned>(size);
}

// The box of the output's gradient, zeros outside: a warp takes rows, its lanes neighbours, with the loads of several
// rows under way, since nothing else hides what they take.
__device__ __forceinline__ void load_box(const GroupParams& p, const GroupTile& tile, int group, float* box) {
  constexpr int kPieces = (kShape.box(2) + 31) / 32;
  constexpr int kLoads = kShape.weight ? 12 : 20;  // sums of weights take registers
  constexpr int kAtOnce = kPieces >= kLoads ? 1 : kLoads / kPieces;
  constexpr int kRows = kShape.out_channels * kShape.box_rows();
  const int lane = threadIdx.x % 32;
  int begin[3];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) begin[axis] = tile.first[axis] * kShape.stride[axis] - p.pad[axis];
  const Storage* const source = static_cast<const Storage*>(p.output) + tile.sample * p.output_strides[0] +
                                static_cast<i64>(group) * kShape.out_channels * p.output_strides[1] + begin[2] + lane;
#pragma unroll 1
  for (int first = threadIdx.x / 32; first < kRows; first += kWarps * kAtOnce) {
    Storage values[kAtOnce][kPieces] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = first + i * kWarps;
      const int channel = row / kShape.box_rows();
      const int d = begin[0] + row / kShape.box(1) % kShape.box(0);
      const int h = begin[1] + row % kShape.box(1);
      const bool exists = row < kRows && is_inside(d, p.output_size[0]) && is_inside(h, p.output_size[1]);
      const Storage* const line =
          source + channel * p.output_strides[1] + d * p.output_strides[2] + h * p.output_strides[3];
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const int column = piece * 32 + lane;
        if (exists && column < kShape.box(2) && is_inside(begin[2] + column, p.output_size[2]))
          values[i][piece] = line[piece * 32];
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = first + i * kWarps;
      if (row >= kRows) break;
      float* const target =
          box + kShape.channel_place(row / kShape.box_rows()) + row % kShape.box_rows() * kShape.box(2) + lane;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        if (piece * 32 + lane < kShape.box(2)) target[piece * 32] = operand(values[i][piece]);
      }
    }
  }
}
