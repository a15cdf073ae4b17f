// The life of a block, whatever its teams multiply with: load a stage, multiply it while the next one is on its way,
// and at the end write the sums.
#pragma once

#include "reduce_load.cuh"

// Sums of a block that are parts go to the workspace as they lie; whole ones are the result.
__device__ __forceinline__ void store_sums(const ReduceParams& params, const ReduceBlock& block, const TeamTile& team) {
  const int lane = threadIdx.x % 32;
  const int rows_left = kShape.rows - block.first_row;
  float* const sums = kShape.partial ? params.sums + (static_cast<long long>(block.part) * reduce_tiles(params) + block.tile) *
                                                         kShape.block_rows() * kShape.block_sums()
                                     : nullptr;
  const long long(&stride)[6] = params.weight_strides;
  Element* const weight =
      static_cast<Element*>(params.weight) + block.group * stride[0] + block.first_row * stride[1];
#pragma unroll
  for (int run = 0; run < kTeamRuns; ++run) {
    const int block_run = team.run_team * kTeamRuns + run;
    const int first_w = block_run % kShape.width_runs() * kShape.run;
    const int h = block_run / kShape.width_runs() % kShape.taps[1];
    const int d = block_run / kShape.width_runs() / kShape.taps[1];
    const int first_sum = (team.column_team * kShape.all_runs() + block_run) * kShape.run_columns();
    const bool exists = block_run < kShape.runs() && block.first_tap[0] + d < kShape.kernel[0] &&
                        block.first_tap[1] + h < kShape.kernel[1];
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = team.row(tile) + lane / 4 + 8 * half;
        if (row >= rows_left) continue;
#pragma unroll
        for (int column_tile = 0; column_tile < kColumnTiles; ++column_tile) {
          const int at = column_tile * 8 + lane % 4 * 2;
          const float(&value)[4] = team.sum[tile][run][column_tile];
          if constexpr (kShape.partial) {
            const float2 pair = {value[2 * half], value[2 * half + 1]};
            *reinterpret_cast<float2*>(sums + row * kShape.block_sums() + first_sum + at) = pair;
          } else {
#pragma unroll
            for (int side = 0; side < 2; ++side) {
              const int w = first_w + (at + side) / kShape.team_columns;
              const int column = block.first_column + team.column_team * kShape.team_columns +
                                 (at + side) % kShape.team_columns;
              const bool mine = (at + side) < kShape.run * kShape.team_columns && w < kShape.taps[2] &&
                                block.first_tap[2] + w < kShape.kernel[2] && column < kShape.columns;
              if (exists && mine) {
                weight[row * stride[1] + column * stride[2] + (block.first_tap[0] + d) * stride[3] +
                       (block.first_tap[1] + h) * stride[4] + (block.first_tap[2] + w) * stride[5]] =
                    to_storage(value[2 * half + side], Element());
              }
            }
          }
        }
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kShape.blocks_per_multiprocessor)
    tconv_reduce(const __grid_constant__ ReduceParams params) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const unsigned shared = ptx::shared_address(shared_memory);
  const ReduceBlock block(params, blockIdx.x);
  Loader loader(params, block, reinterpret_cast<UnitPlace*>(shared_memory + kShape.table_cell() * 16));
  TeamTile team;

  // Counted in 64 bits: parts times stages may be more than an int holds.
  const long long all = static_cast<long long>(params.tiles[0]) * params.tiles[1] * params.tiles[2] * params.tiles[3];
  const int begin = static_cast<int>(all * block.part / params.parts);
  const int end = static_cast<int>(all * (block.part + 1) / params.parts);
  const auto stage_at = [&](int index) { return shared + (index & 1) * kShape.stage_cells() * 16; };

  // Each turn multiplies a stage and loads the next one, batch by batch; the first one only loads.
  constexpr int kBatches = kShape.batches();
  const int batches = ptx::opaque(kBatches);
  __syncthreads();
#pragma unroll 1
  for (int index = begin - 1; index < end; ++index) {
    const int products = index < begin ? 0 : kShape.products();
    const StageOrigin origin(params, index + 1);
#pragma unroll 1
    for (int batch = 0; batch < batches; ++batch) {
      if (index + 1 < end) loader.fetch(params, block, origin, ptx::opaque(batch));
      team.multiply_stage(stage_at(index), products * batch / kBatches, products * (batch + 1) / kBatches);
      if (ptx::opaque(index + 1 < end) != 0) loader.store(stage_at(index + 1), ptx::opaque(batch));
    }
    if constexpr (kShape.warpgroup) ptx::fence_for_async_proxy();
    team.end_stage();
    __syncthreads();
  }
  store_sums(params, block, team);
}
