// The life of a block, whatever its teams multiply with: fill a stage, multiply it while the next one is on its way,
// store.
#pragma once

#include "tile_bulk.cuh"
#include "tile_load.cuh"
#include "tile_load_gradient.cuh"
#include "tile_place.cuh"

template <bool kPacked, bool kBulk, bool kGradient>
struct WeightLoader {
  using Type = WeightsInPlace;
};
template <>
struct WeightLoader<true, false, kShape.gradient> {
  using Type = PackedWeights;
};
template <>
struct WeightLoader<true, true, kShape.gradient> {
  using Type = BulkWeights;
};
template <>
struct WeightLoader<false, false, true> {
  using Type = GradientWeights;
};
using Weights = WeightLoader<kShape.packed, kShape.bulk_weights(), kShape.gradient>::Type;

// Makes this thread's stores to a stage, of input and weights, visible to whoever multiplies it.
__device__ __forceinline__ void publish_stage() {
  if constexpr (kShape.warpgroup) ptx::fence_for_async_proxy();
}

// Whether some steps store weights and no input.
constexpr bool kStoresWeightsAlone = kShape.gradient && !kShape.packed && kShape.stages_per_chunk() > 1;

#include "tile_store.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, kShape.blocks_per_multiprocessor) kClusterAttribute
    tconv_tile(const __grid_constant__ TileParams params) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const unsigned input_stages = ptx::shared_address(shared_memory);
  const unsigned weight_stages = input_stages + kShape.input_stages() * kShape.input_stage_bytes();

  const BlockPlace place = block_place(params, blockIdx.x);
  const BlockRows rows = block_rows(place.block_row);
  const BlockCells cells = block_cells(params, rows, place.cells);

  Weights weights(params, rows, place.block_row, place.rank, shared_memory);
  InputLoader input(params, rows, cells, place.rank);
  TeamTile tile(rows);

  // Step by step through the stages of weights; a new patch of input comes with each new chunk of channels. What a step
  // multiplies was stored one step earlier and, where it passes through registers, loaded one step before that.
  constexpr int kChunks = kShape.block_chunks();
  const auto weight_stage = [&](int step) {
    return weight_stages + step % kShape.weight_stages() * kShape.weight_stage_bytes();
  };
  const auto input_stage = [&](int chunk) { return input_stages + chunk % 2 * kShape.input_stage_bytes(); };

  // Loads set out only after publish_stage(): its fence waits for every load under way.
  weights.begin(weight_stage);
  weights.fetch(params, 0);
  input.fetch(params, 0);
  weights.store(0, weight_stage);
  input.store(input_stage(0));
  publish_stage();
  weights.fetch(params, 1);
  if (kChunks > 1) input.fetch(params, 1);
  weights.wait(0);
  __syncthreads();

#pragma unroll 1
  for (StageWalk walk(rows); !walk.ended(); walk.advance()) {
    tile.begin_stage(input_stage(walk.chunk), weight_stage(walk.step), walk.stage);
    weights.start(walk.step, weight_stage);
    weights.store(walk.step + 1, weight_stage);
    const bool brings_input = walk.begins_chunk() && walk.chunk + 1 < kChunks;
    if (brings_input) input.store(input_stage(walk.chunk + 1));
    if (brings_input || kStoresWeightsAlone) publish_stage();
    if (brings_input && walk.chunk + 2 < kChunks) input.fetch(params, walk.chunk + 2);
    weights.fetch(params, walk.step + 2);
    weights.wait(walk.step + 1);
    tile.end_stage();
    __syncthreads();
  }
  store_block(params, rows, cells, tile, place.rank, shared_memory);
}
