// The life of a block, whatever its teams multiply with: load a stage, multiply it while the next one is on its way,
// and at the end write the sums.
#pragma once

#include "reduce_load.cuh"

// The sums of a thread in one row, as fragments hold them: pairs of neighbours.
__device__ __forceinline__ void store_row(const TeamTile& team, int tile, int half, float* row) {
#pragma unroll
  for (int run = 0; run < kTeamRuns; ++run) {
    const int first = (team.column_team * kShape.all_runs() + team.run_team * kTeamRuns + run) * kShape.run_columns();
#pragma unroll
    for (int column_tile = 0; column_tile < kColumnTiles; ++column_tile) {
      const float (&value)[4] = team.sum[tile][run][column_tile];
      const float2 pair = {value[2 * half], value[2 * half + 1]};
      *reinterpret_cast<float2*>(row + first + column_tile * 8 + threadIdx.x % 4 * 2) = pair;
    }
  }
}

// Sums that are parts go to the workspace as they lie.
__device__ __forceinline__ void store_parts(const ReduceParams& params, const ReduceBlock& block,
                                            const TeamTile& team) {
  float* const sums = params.sums + (static_cast<long long>(block.part) * reduce_tiles(params) + block.tile) *
                                        kShape.block_rows() * kShape.block_sums();
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = team.row(tile) + threadIdx.x % 32 / 4 + 8 * half;
      if (block.first_row + row < kShape.rows) store_row(team, tile, half, sums + row * kShape.block_sums());
    }
  }
}

// Writes the staged rows: those of every warp's tile, in the order of the weight.
__device__ __forceinline__ void store_staged(const ReduceParams& params, const ReduceBlock& block, int tile, int half,
                                             const float* staged) {
  constexpr int kTaps = kShape.all_taps();
  constexpr int kColumns = kShape.loaded_columns();
  const long long (&stride)[6] = params.weight_strides;
  Element* const weight = static_cast<Element*>(params.weight) + block.group * stride[0];
#pragma unroll 1
  for (int index = threadIdx.x; index < kShape.staged_rows() * kColumns * kTaps; index += kThreads) {
    const int at = index % (kColumns * kTaps);
    const int slot = index / (kColumns * kTaps);  // [team][warp of it][row]
    const int column = kShape.columns_first ? at % kColumns : at / kTaps;
    const int tap = kShape.columns_first ? at / kColumns : at % kTaps;
    const int w = tap % kShape.taps[2];
    const int h = tap / kShape.taps[2] % kShape.taps[1];
    const int d = tap / kShape.taps[2] / kShape.taps[1];
    constexpr int kTeamSlots = kShape.warpgroup ? 32 : 8;
    const int row = block.first_row + (slot / kTeamSlots * kRowTiles + tile) * kShape.tile_rows() +
                    slot % kTeamSlots / 8 * 16 + half * 8 + slot % 8;
    if (row < kShape.rows && block.first_column + column < kShape.columns &&
        block.first_tap[0] + d < kShape.kernel[0] && block.first_tap[1] + h < kShape.kernel[1] &&
        block.first_tap[2] + w < kShape.kernel[2]) {
      weight[row * stride[1] + (block.first_column + column) * stride[2] + (block.first_tap[0] + d) * stride[3] +
             (block.first_tap[1] + h) * stride[4] + (block.first_tap[2] + w) * stride[5]] =
          to_storage(staged[slot * kShape.staged_pitch() + kShape.sum_of(column, d, h, w)], Element());
    }
  }
}

// Sums that are whole are the result.
template <typename StoreRow>
__device__ __forceinline__ void store_result(const ReduceParams& params, const ReduceBlock& block, const float* staged,
                                             StoreRow&& stage) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      stage(tile, half);
      __syncthreads();
      store_staged(params, block, tile, half, staged);
      __syncthreads();
    }
  }
}

__device__ __forceinline__ void store_sums(const ReduceParams& params, const ReduceBlock& block, const TeamTile& team,
                                           float* staged) {
  if constexpr (kShape.partial) {
    store_parts(params, block, team);
  } else {
    const int row_team = team.first_row / (kRowTiles * kShape.tile_rows());
    const int warp = kShape.warpgroup ? threadIdx.x / 32 % 4 : 0;
    const int slot = (row_team * (kShape.warpgroup ? 4 : 1) + warp) * 8 + threadIdx.x % 32 / 4;
    store_result(params, block, staged,
                 [&](int tile, int half) { store_row(team, tile, half, staged + slot * kShape.staged_pitch()); });
  }
}

// The stages of a part, and where they lie in shared memory.
struct Stages {
  unsigned shared;
  int begin;
  int end;

  __device__ __forceinline__ Stages(const ReduceParams& params, const ReduceBlock& block, unsigned shared_address)
      : shared(shared_address) {
    // Counted in 64 bits: parts times stages may be more than an int holds.
    const long long all = static_cast<long long>(params.tiles[0]) * params.tiles[1] * params.tiles[2] * params.tiles[3];
    begin = static_cast<int>(all * block.part / params.parts);
    end = static_cast<int>(all * (block.part + 1) / params.parts);
  }
  __device__ __forceinline__ unsigned at(int index) const { return shared + (index & 1) * kShape.stage_cells() * 16; }
};

// Makes this thread's stores to a stage visible to whoever multiplies it.
__device__ __forceinline__ void publish_stage() {
  if constexpr (kShape.warpgroup) ptx::fence_for_async_proxy();
}

constexpr int kBatches = kShape.batches();

// Each turn multiplies a stage and loads the next one, batch by batch; the first one only loads.
__device__ __forceinline__ void load_and_multiply(const ReduceParams& params, const ReduceBlock& block,
                                                  const Stages& stages, Loader& loader, TeamTile& team) {
  const int batches = ptx::opaque(kBatches);
  StageOrigin origin(params, stages.begin);
#pragma unroll 1
  for (int index = stages.begin - 1; index < stages.end; ++index) {
    const int products = index < stages.begin ? 0 : kShape.products();
    loader.prepare(params, block, origin);
    origin.advance(params);
#pragma unroll 1
    for (int batch = 0; batch < batches; ++batch) {
      if (index + 1 < stages.end) loader.fetch(params, ptx::opaque(batch));
      team.multiply_stage(stages.at(index), products * batch / kBatches, products * (batch + 1) / kBatches);
      if (ptx::opaque(index + 1 < stages.end) != 0) loader.store(stages.at(index + 1), ptx::opaque(batch));
    }
    publish_stage();
    team.end_stage();
    __syncthreads();
  }
}

// The same with divided labour: in each turn some warps multiply a stage while the others load the next one. A stage
// waits in the registers of those until its place in shared memory is free, so that loads are always under way.
__device__ __forceinline__ void load_stages(const ReduceParams& params, const ReduceBlock& block, const Stages& stages,
                                            Loader& loader) {
  StageOrigin origin(params, stages.begin);
  loader.rows.keep_offsets();
  loader.columns.keep_offsets();
  loader.prepare(params, block, origin);
#pragma unroll 1
  for (int index = stages.begin - 1; index <= stages.end; ++index) {
    if (index >= stages.begin && index < stages.end) {
      loader.rows.store(stages.at(index), 0);
      loader.columns.store(stages.at(index), 0);
      publish_stage();
    }
    if (index + 1 < stages.end) {
      loader.rows.fetch(params, 0);
      loader.columns.fetch(params, 0);
      origin.advance(params);
      loader.prepare(params, block, origin);
    }
    if (index >= stages.begin) __syncthreads();
  }
}

__device__ __forceinline__ void multiply_stages(const Stages& stages, TeamTile& team) {
#pragma unroll 1
  for (int index = stages.begin; index < stages.end; ++index) {
    __syncthreads();
    team.multiply_stage(stages.at(index), 0, kShape.products());
    team.end_stage();
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(kThreads, kShape.blocks_per_multiprocessor)
    tconv_reduce(const __grid_constant__ ReduceParams params) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const ReduceBlock block(params, blockIdx.x);
  const Stages stages(params, block, ptx::shared_address(shared_memory));
  float* const staged = reinterpret_cast<float*>(shared_memory);
  Loader loader(params, block, reinterpret_cast<UnitPlace*>(shared_memory + kShape.table_cell() * 16));
  __syncthreads();
  if constexpr (kShape.loader_warps == 0) {
    TeamTile team(column_lead(params, block));
    load_and_multiply(params, block, stages, loader, team);
    store_sums(params, block, team, staged);
  } else if (__shfl_sync(~0u, threadIdx.x / 32, 0) >= kFirstLoader) {
    if constexpr (kShape.team_registers > 0) ptx::give_registers<kShape.loader_registers>();
    load_stages(params, block, stages, loader);
    if constexpr (!kShape.partial) store_result(params, block, staged, [](int, int) {});
  } else {
    if constexpr (kShape.team_registers > 0) ptx::take_registers<kShape.team_registers>();
    TeamTile team(column_lead(params, block));
    multiply_stages(stages, team);
    store_sums(params, block, team, staged);
  }
}
