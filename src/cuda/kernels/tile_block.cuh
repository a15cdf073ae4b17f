// The life of a block, whatever its teams multiply with: fill a stage, multiply it while the next one is on its way,
// store.
#pragma once

#include "tile_load.cuh"
#include "tile_load_gradient.cuh"

template <bool kPacked, bool kGradient>
struct WeightLoader {
  using Type = PackedWeights;
};
template <>
struct WeightLoader<false, false> {
  using Type = WeightsInPlace;
};
template <>
struct WeightLoader<false, true> {
  using Type = GradientWeights;
};
using Weights = WeightLoader<kShape.packed, kShape.gradient>::Type;

__device__ __forceinline__ BlockCells block_cells(const TileParams& params, int index) {
  BlockCells cells;
#pragma unroll
  for (int dimension = 3; dimension >= 0; --dimension) {
    const int tile = index % params.tiles[dimension];
    index /= params.tiles[dimension];
    cells.first[dimension] = tile * kShape.tile[dimension] + (dimension > 0 ? params.first_cell[dimension - 1] : 0);
  }
  return cells;
}

// Makes this thread's stores to a stage visible to whoever multiplies it.
__device__ __forceinline__ void publish_stage() {
  if constexpr (kShape.warpgroup) ptx::fence_for_async_proxy();
}

#include "tile_store.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, kShape.blocks_per_multiprocessor) kClusterAttribute
    tconv_tile(const __grid_constant__ TileParams params) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const unsigned input_stages = ptx::shared_address(shared_memory);
  const unsigned weight_stages = input_stages + kShape.input_stages() * kShape.input_stage_bytes();

  const int block_rows_count = params.groups * params.channel_blocks * params.residue_blocks[0] *
                               params.residue_blocks[1] * params.residue_blocks[2];
  const int rank = blockIdx.x % kShape.depth_blocks;
  const int block = blockIdx.x / kShape.depth_blocks;
  const int block_row = block % block_rows_count;
  const BlockRows rows = block_rows(params, block_row);
  const BlockCells cells = block_cells(params, block / block_rows_count);

  InputLoader input(params, rows, cells, rank);
  Weights weights(params, rows, block_row, rank);
  TeamTile tile(rows);

  // Step by step through the stages of weights; a new patch of input comes with each new chunk of channels. What a step
  // multiplies was stored one step earlier and, where it passes through registers, loaded one step before that.
  constexpr int kStages = kShape.stages_per_chunk();
  constexpr int kChunks = kShape.block_chunks();
  constexpr int kTotal = kChunks * kStages;
  const auto weight_stage = [&](int step) {
    return weight_stages + step % kShape.weight_stages() * kShape.weight_stage_bytes();
  };
  const auto input_stage = [&](int chunk) { return input_stages + chunk % 2 * kShape.input_stage_bytes(); };

  weights.begin(params, weight_stage);
  input.fetch(params, 0);
  input.store(input_stage(0));
  if (kChunks > 1) input.fetch(params, 1);
  weights.finish(params, 0, weight_stage);
  publish_stage();
  __syncthreads();

  int chunk = 0;
  int stage = 0;
#pragma unroll 1
  for (int step = 0; step < kTotal; ++step) {
    const int first_back = stage * kShape.stage_backs;
    const int backs = kStages == 1 ? kShape.all_backs() : min(kShape.stage_backs, kShape.all_backs() - first_back);
    tile.begin_stage(input_stage(chunk), weight_stage(step), first_back, backs);
    weights.start(step, weight_stage);
    if (stage == 0 && chunk + 1 < kChunks) {
      input.store(input_stage(chunk + 1));
      if (chunk + 2 < kChunks) input.fetch(params, chunk + 2);
    }
    weights.finish(params, step + 1, weight_stage);
    publish_stage();
    tile.end_stage();
    __syncthreads();
    const bool ends_chunk = stage + 1 == kStages;
    chunk += ends_chunk ? 1 : 0;
    stage = ends_chunk ? 0 : stage + 1;
  }
  store_block(params, rows, cells, tile, rank, shared_memory);
}
