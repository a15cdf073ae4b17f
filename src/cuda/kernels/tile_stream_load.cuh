// The warps of a streaming block that only load, some chunks ahead: what they have in common, and stages of packed
// weights by the copy engine. The input comes by tile_stream_copies.cuh or tile_stream_tensor.cuh.
#pragma once

#include "tile_element.cuh"
#include "tile_place.cuh"

constexpr int kInputThreads = kStreamThreads - 32;  // the others bring weights
constexpr int kInputArrivals = kShape.tensor_copies ? 1 : kInputThreads;
// Of tensor copies: all but the first warp, one thread of which asks for them.
constexpr int kRoundingThreads = kInputThreads - 32;

#if kMaps
using StreamParams = TensorTileParams;
#else
using StreamParams = TileParams;
#endif
__device__ __forceinline__ const TileParams& tile_params(const TileParams& params) { return params; }
__device__ __forceinline__ const TileParams& tile_params(const TensorTileParams& params) { return params.tile; }
__device__ __forceinline__ const TensorMap* output_map(const TileParams&) { return nullptr; }
__device__ __forceinline__ const TensorMap* output_map(const TensorTileParams& params) { return &params.output; }

// Barriers of the rings, in shared memory: a slot is full, and a slot is empty.
struct StreamBarriers {
  unsigned base;

  __device__ __forceinline__ unsigned input_full(int slot) const { return base + slot * 8; }
  __device__ __forceinline__ unsigned input_empty(int slot) const { return input_full(kShape.input_ring + slot); }
  __device__ __forceinline__ unsigned weight_full(int slot) const { return input_full(2 * kShape.input_ring + slot); }
  __device__ __forceinline__ unsigned weight_empty(int slot) const { return weight_full(kShape.weight_ring + slot); }
  // Weights that are there and not rounded yet.
  __device__ __forceinline__ unsigned weight_raw(int slot) const { return weight_full(2 * kShape.weight_ring + slot); }

  // By one thread. Every thread that multiplies arrives when it is done with a slot: one for a whole warp would do, but
  // then compute-sanitizer's racecheck takes the reads of the others for unordered.
  __device__ __forceinline__ void init() const {
    constexpr int kReaders = kShape.multiplying_threads();
#pragma unroll
    for (int slot = 0; slot < kShape.input_ring; ++slot) {
      ptx::init_barrier(input_full(slot), kInputArrivals);
      ptx::init_barrier(input_empty(slot), kReaders);
    }
#pragma unroll
    for (int slot = 0; slot < kShape.weight_ring; ++slot) {
      ptx::init_barrier(weight_full(slot), kShape.rounds_boxes()     ? kRoundingThreads
                                           : kShape.copies_weights() ? 1
                                                                     : kStreamThreads);
      if (kShape.rounds_boxes()) ptx::init_barrier(weight_raw(slot), 1);
      ptx::init_barrier(weight_empty(slot), kReaders);
    }
    ptx::publish_barriers();
  }
};

// A place in a ring, and which time around. Waiting for an empty slot costs nothing the first time around: before a
// barrier's first phase ends, the phase before it counts as over.
template <int kSlots>
struct RingPlace {
  int slot = 0;
  int parity = 0;

  __device__ __forceinline__ void advance() {
    if (++slot < kSlots) return;
    slot = 0;
    parity ^= 1;
  }
};

// The first element of the box along an axis. It may lie outside the tensor.
__device__ __forceinline__ int box_begin(const TileParams& params, const BlockCells& cells, int axis) {
  return kShape.gradient ? cells.first[1 + axis] * kShape.stride[axis] - params.pad[axis]
                         : (cells.first[1 + axis] + 1) * kShape.fold[axis] - 1 - kShape.halo(axis);
}
// How many elements the first copy of a row begins before the box.
__device__ __forceinline__ int box_lead(const TileParams& params, const BlockCells& cells) {
  if (kShape.lead >= 0) return kShape.lead;
  return box_begin(params, cells, 2) & (kShape.granule - 1);
}
// How many distances a block's chunk is multiplied at. Where that differs, each block begins with the first residue.
__device__ __forceinline__ int chunk_backs([[maybe_unused]] int chunk) {
#if kUnevenPlanes
  return kPlaneTaps[chunk % kShape.all_plane_groups()];
#else
  return kShape.all_backs();
#endif
}

// Blocks that begin together wait for the same weights at every stage: each asks for a part of all of them at once, so
// that they come from the L2 cache from then on. By one thread.
__device__ __forceinline__ void prefetch_weights(const TileParams& params) {
  constexpr long long kPiece = 4096;
  if (reinterpret_cast<unsigned long long>(params.weight) % 16 != 0) return;
  for (long long begin = blockIdx.x * kPiece; begin < params.weight_bytes; begin += gridDim.x * kPiece) {
    const long long left = (params.weight_bytes - begin) / 16 * 16;
    if (left > 0)
      ptx::prefetch_bulk(static_cast<const char*>(params.weight) + begin,
                         static_cast<unsigned>(left < kPiece ? left : kPiece));
  }
}

// One thread asks for all weights.
__device__ __forceinline__ void stream_weights(const TileParams& params, int block_row, int rank,
                                               const StreamBarriers& barriers, unsigned ring,
                                               RingPlace<kShape.weight_ring>& place) {
  constexpr int kBytesPerBack = kShape.weight_back_pitch() * 16;
  const char* source = static_cast<const char*>(params.weight) + block_row * kShape.packed_bytes() +
                       rank * static_cast<long long>(kShape.block_chunks()) * kShape.all_backs() * kBytesPerBack;
#pragma unroll 1
  for (int chunk = 0; chunk < kShape.block_chunks(); ++chunk) {
    const int backs = chunk_backs(chunk);
#pragma unroll 1
    for (int back = 0; back < backs; back += kShape.stage_backs) {
      const int bytes = min(kShape.stage_backs, backs - back) * kBytesPerBack;
      ptx::wait_barrier(barriers.weight_empty(place.slot), place.parity ^ 1);
      ptx::expect_bytes(barriers.weight_full(place.slot), bytes);
      ptx::copy_bulk(ring + place.slot * kShape.weight_stage_bytes(), source, bytes, barriers.weight_full(place.slot));
      source += bytes;
      place.advance();
    }
    if (!kShape.even_planes()) source += (kShape.all_backs() - backs) * kBytesPerBack;
  }
}
