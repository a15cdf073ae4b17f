// The life of a block, whatever its teams multiply with: load a stage, multiply it while the next one is on its way,
// and at the end write the sums.
#pragma once

#include "reduce_stage.cuh"

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
  ptx::let_next_kernel_start();
  float* const sums = params.sums + (static_cast<long long>(block.part) * reduce_tiles(params) + block.tile) *
                                        kShape.block_rows() * kShape.block_sums();
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = team.row(tile, half);
      if (block.first_row + row < kShape.rows) store_row(team, tile, half, sums + row * kShape.block_sums());
    }
  }
}

// Writes the staged rows: those of every warp's tile, in the order of the weight. A thread has the same weights of some
// rows.
__device__ __forceinline__ void store_staged(const ReduceParams& params, const ReduceBlock& block, int tile, int half,
                                             const float* staged) {
  constexpr int kTaps = kShape.all_taps();
  constexpr int kColumns = kShape.loaded_columns();
  constexpr int kSums = kColumns * kTaps;
  constexpr int kRowsAtOnce = kSums < kThreads ? kThreads / kSums : 1;
  constexpr int kTeamSlots = kShape.warpgroup ? 32 : 8;
  const long long (&stride)[6] = params.weight_strides;
  Element* const weight = static_cast<Element*>(params.weight) + block.group * stride[0];
  const int first_slot = kRowsAtOnce > 1 ? threadIdx.x / kSums : 0;
  if (first_slot >= kRowsAtOnce) return;
#pragma unroll 1
  for (int at = threadIdx.x - first_slot * kSums; at < kSums; at += kThreads) {
    const int column = kShape.columns_first ? at % kColumns : at / kTaps;
    const int tap = kShape.columns_first ? at / kColumns : at % kTaps;
    const int w = tap % kShape.taps[2];
    const int h = tap / kShape.taps[2] % kShape.taps[1];
    const int d = tap / kShape.taps[2] / kShape.taps[1];
    if (block.first_column + column >= kShape.columns || block.first_tap[0] + d >= kShape.kernel[0] ||
        block.first_tap[1] + h >= kShape.kernel[1] || block.first_tap[2] + w >= kShape.kernel[2]) {
      continue;
    }
    Element* const target = weight + (block.first_column + column) * stride[2] + (block.first_tap[0] + d) * stride[3] +
                            (block.first_tap[1] + h) * stride[4] + (block.first_tap[2] + w) * stride[5];
    const float* const source = staged + kShape.sum_of(column, d, h, w);
#pragma unroll 4
    for (int slot = first_slot; slot < kShape.staged_rows(); slot += kRowsAtOnce) {  // [team][warp of it][row]
      const int row = block.first_row + slot / kTeamSlots * kRowTiles * kShape.tile_rows() +
                      slot % kTeamSlots / 8 * 16 + kShape.row_of(tile, half, slot % 8);
      if (row < kShape.rows) target[row * stride[1]] = to_storage(source[slot * kShape.staged_pitch()], Element());
    }
  }
}

// All warps stop here, wherever they come from.
__device__ __forceinline__ void meet() {
  if constexpr (kShape.loader_warps > 0) {
    ptx::sync_first_threads<kThreads>();
  } else {
    __syncthreads();
  }
}

// Sums that are whole are the result. A loop, although sums are then chosen by branches: the code that writes a half of
// a tile takes long to compile.
template <typename StoreRow>
__device__ __forceinline__ void store_result(const ReduceParams& params, const ReduceBlock& block, const float* staged,
                                             StoreRow&& stage) {
#pragma unroll 1
  for (int part = 0; part < 2 * kRowTiles; ++part) {
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      if (i == part) stage(i / 2, i % 2);
    }
    meet();
    store_staged(params, block, part / 2, part % 2, staged);
    meet();
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
    const long long all = reduce_stages(params);
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

// Stages in a ring, for divided labour: some warps load them, the others multiply. Each stage has a barrier that says
// that it is loaded, and one that says that all teams are done with it.
struct Ring {
  static constexpr int kStageBytes = kShape.stage_cells() * 16;

  unsigned stages;
  unsigned barriers;
  int slot = 0;
  int lap = 0;  // modulo 2

  __device__ __forceinline__ Ring(unsigned shared) : stages(shared), barriers(shared + kShape.table_cell() * 16) {}

  __device__ __forceinline__ unsigned stage() const { return stages + slot * kStageBytes; }
  __device__ __forceinline__ unsigned loaded() const { return barriers + slot * 16; }
  __device__ __forceinline__ unsigned done() const { return loaded() + 8; }
  __device__ __forceinline__ void advance() {
    if (++slot == kShape.stages) {
      slot = 0;
      lap ^= 1;
    }
  }

  // By one thread, before the others use the ring. Every thread of a warp arrives: racecheck, too, should see the
  // order.
  __device__ __forceinline__ void init() {
#pragma unroll 1
    for (int i = 0; i < kShape.stages; ++i) {
      ptx::init_barrier(barriers + i * 16, kShape.packed || kShape.boxes() ? 1 : 32 * kShape.loader_warps);
      ptx::init_barrier(barriers + i * 16 + 8, 32 * kShape.team_warps());
    }
    ptx::publish_barriers();
  }
};

// Lines that are arranged make room for copies at once, so that the next stage is always on its way. The first turns
// only copy.
__device__ __forceinline__ void load_stages(const ReduceParams& params, const ReduceBlock& block, const Stages& stages,
                                            Ring ring, int warp) {
  constexpr int kRawStages = kShape.raw_stages;
  StageOrigin origin(params, stages.begin);
  LineLoader loader(params, block, origin, warp, ring.stages + kShape.raw_cell() * 16);
  int slot = 0;
#pragma unroll 1
  for (int index = stages.begin - kRawStages; index < stages.end; ++index) {
    if (index >= stages.begin) {
      ptx::wait_for_copies<kRawStages - 1>();
      __syncwarp();
      ptx::wait_barrier(ring.done(), ring.lap ^ 1);
      loader.arrange(slot, ring.stage());
      publish_stage();
      ptx::arrive(ring.loaded());
      __syncwarp();  // all lanes have read the lines that the next copies overwrite
      ring.advance();
    }
    if (index + kRawStages < stages.end) loader.copy(params, block, origin, slot);
    ptx::commit_copies();
    loader.advance(params, origin.advance(params));
    slot = slot + 1 == kRawStages ? 0 : slot + 1;
  }
}

// Stages that were packed come whole, by the copy engine; one thread of a warp asks for them.
__device__ __forceinline__ void fetch_stages(const ReduceParams& params, const ReduceBlock& block, const Stages& stages,
                                             Ring ring) {
  constexpr int kRowBytes = kShape.row_cells() * 16;
  constexpr int kColumnBytes = kShape.column_cells() * 16;
  const long long all = reduce_stages(params);
  const char* rows =
      static_cast<const char*>(params.packed_rows) + (row_image(params, block) * all + stages.begin) * kRowBytes;
  const char* columns = static_cast<const char*>(params.packed_columns) +
                        (column_image(params, block) * all + stages.begin) * kColumnBytes;
  ptx::wait_for_previous_kernel();
#pragma unroll 1
  for (int index = stages.begin; index < stages.end; ++index) {
    ptx::wait_barrier(ring.done(), ring.lap ^ 1);
    if (threadIdx.x % 32 == 0) {
      ptx::expect_bytes(ring.loaded(), kRowBytes + kColumnBytes);
      ptx::copy_bulk(ring.stage(), rows, kRowBytes, ring.loaded());
      ptx::copy_bulk(ring.stage() + kRowBytes, columns, kColumnBytes, ring.loaded());
    }
    rows += kRowBytes;
    columns += kColumnBytes;
    ring.advance();
  }
}

#if kTensorCopies
using BlockParams = BoxReduceParams;
__device__ __forceinline__ const ReduceParams& reduce_params(const BlockParams& params) { return params.reduce; }

// Boxes of pixels as they lie in memory, zeros outside of the tensors.
__device__ __forceinline__ void copy_boxes(const BlockParams& block_params, const ReduceBlock& block,
                                           const StageOrigin& origin, unsigned target, unsigned loaded) {
  const int first_row = block.group * kShape.rows + block.first_row;
  const int first_column = block.group * kShape.columns + block.first_column;
#pragma unroll 1
  for (int row = 0; row < kShape.block_rows(); row += kShape.row_box) {
    const int at[5] = {first_row + row, origin.first[3], origin.first[2], origin.first[1], origin.first[0]};
    ptx::copy_tensor(target, &block_params.rows, at, loaded);
    target += kShape.row_box_bytes();
  }
  const StageStart<false> start(block_params.reduce, block, origin, 0);
#pragma unroll 1
  for (int tap = 0; tap < kShape.all_taps(); ++tap) {
    const int w = start.begin[3] + tap % kShape.taps[2] * kShape.tap_step[2];
    const int h = start.begin[2] + tap / kShape.taps[2] % kShape.taps[1] * kShape.tap_step[1];
    const int d = start.begin[1] + tap / kShape.taps[2] / kShape.taps[1] * kShape.tap_step[0];
#pragma unroll 1
    for (int column = 0; column < kShape.block_columns(); column += kShape.column_box) {
      const int at[5] = {first_column + column, w, h, d, start.begin[0]};
      ptx::copy_tensor(target, &block_params.columns, at, loaded);
      target += kShape.column_box_bytes();
    }
  }
}

// One thread of a warp asks for them.
__device__ __forceinline__ void fetch_boxes(const BlockParams& block_params, const ReduceBlock& block,
                                            const Stages& stages, Ring ring) {
  StageOrigin origin(block_params.reduce, stages.begin);
#pragma unroll 1
  for (int index = stages.begin; index < stages.end; ++index) {
    ptx::wait_barrier(ring.done(), ring.lap ^ 1);
    if (threadIdx.x % 32 == 0) {
      ptx::expect_bytes(ring.loaded(), Ring::kStageBytes);
      copy_boxes(block_params, block, origin, ring.stage(), ring.loaded());
    }
    __syncwarp();
    origin.advance(block_params.reduce);
    ring.advance();
  }
}
#else
using BlockParams = ReduceParams;
__device__ __forceinline__ const ReduceParams& reduce_params(const BlockParams& params) { return params; }
#endif

// A stage that single warps have read is free; a warpgroup's products of a stage are under way while the next one's are
// started.
__device__ __forceinline__ void multiply_stages(const Stages& stages, Ring ring, TeamTile& team) {
  unsigned former = 0;
#pragma unroll 1
  for (int index = stages.begin; index < stages.end; ++index) {
    ptx::wait_barrier(ring.loaded(), ring.lap);
    team.multiply_stage(ring.stage(), 0, kShape.products());
    if constexpr (kShape.warpgroup) {
      team.end_former_stage();
      if (index > stages.begin) ptx::arrive(former);
      former = ring.done();
    } else {
      ptx::arrive(ring.done());
    }
    ring.advance();
  }
  team.end_stage();
}

extern "C" __global__ void __launch_bounds__(kThreads, kShape.blocks_per_multiprocessor)
    tconv_reduce(const __grid_constant__ BlockParams block_params) {
  const ReduceParams& params = reduce_params(block_params);
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const ReduceBlock block(params, blockIdx.x);
  const unsigned shared = ptx::shared_address(shared_memory);
  float* const staged = reinterpret_cast<float*>(shared_memory);
  if constexpr (kShape.loader_warps == 0) {
    Loader loader(params, block, reinterpret_cast<UnitPlace*>(shared_memory + kShape.table_cell() * 16));
    __syncthreads();
    const Stages stages(params, block, shared);
    TeamTile team(column_lead(params, block));
    load_and_multiply(params, block, stages, loader, team);
    store_sums(params, block, team, staged);
  } else {
    Ring ring(shared);
    if (threadIdx.x == 0) ring.init();
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp >= kShape.team_warps()) {
      if constexpr (kShape.team_registers > 0) ptx::give_registers<kShape.loader_registers>();
      const Stages stages(params, block, shared);
#if kTensorCopies
      if (warp == kShape.team_warps()) fetch_boxes(block_params, block, stages, ring);
#else
      if constexpr (kShape.packed) {
        if (warp == kShape.team_warps()) fetch_stages(params, block, stages, ring);
      } else {
        load_stages(params, block, stages, ring, warp - kShape.team_warps());
      }
#endif
      meet();
      if constexpr (!kShape.partial) store_result(params, block, staged, [](int, int) {});
    } else {
      if constexpr (kShape.team_registers > 0) ptx::take_registers<kShape.team_registers>();
      // What lives from before the registers change hands is kept in memory.
      const Stages stages(params, block, shared);
      TeamTile team(column_lead(params, block));
      multiply_stages(stages, ring, team);
      meet();
      store_sums(params, block, team, staged);
    }
  }
  ptx::wait_for_previous_kernel();  // whoever waits for this kernel waits for the one beside it, too
}
