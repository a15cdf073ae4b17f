// Few pixels and large weights: a product of the weights, read once and where they lie, with the cells of the input,
// and the sums over taps inside the block. columns_params.cuh says how. sm_80 and later.
//
// The config before this file states
//   Element       F32 (multiplied as TF32), F16 or BF16, as types.cuh declares them
//   kShape        a ColumnsShape
//   kFirstTaps    of the axes' residues, kMostStride for each axis; negative: none
#include "columns_gather.cuh"
#include "columns_multiply.cuh"

extern "C" __global__ void __launch_bounds__(kShape.threads(), kShape.blocks_per_multiprocessor)
    tconv_columns(const __grid_constant__ ColumnsParams p) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  constexpr int kChunks = kShape.chunks();
  constexpr int kStages = kShape.stages;
  constexpr int kCellStages = kShape.cell_stages();
  const unsigned weights = ptx::shared_address(shared_memory);
  const unsigned cells = weights + kStages * kShape.weight_stage_bytes();
  const auto weight_stage = [&](int chunk) { return weights + chunk % kStages * kShape.weight_stage_bytes(); };
  const auto cell_stage = [&](int chunk) { return cells + chunk % kCellStages * kShape.cell_stage_bytes(); };

  const ColumnsBlock block(p, blockIdx.x);
  WeightCopies weight_copies(p, block);
  CellLoads cell_loads(p, block);
  // A chunk is a group of copies, an empty one behind the last chunk.
  const auto start = [&](int chunk) {
    if (chunk < kChunks) {
      weight_copies.copy(chunk, weight_stage(chunk));
      if constexpr (kShape.copies_cells) cell_loads.copy(chunk, cell_stage(chunk));
    }
    ptx::commit_copies();
  };
#pragma unroll 1
  for (int chunk = 0; chunk < kStages - 1; ++chunk) start(chunk);
  if constexpr (!kShape.copies_cells) {
    cell_loads.load(0);
    cell_loads.store(cell_stage(0));
    if (kChunks > 1) cell_loads.load(1);
  }

  WarpColumns columns;
#pragma unroll 1
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    ptx::wait_for_copies<kStages - 2>();
    __syncthreads();
    start(chunk + kStages - 1);
    if (columns.multiplies()) columns.add_products(weight_stage(chunk), cell_stage(chunk));
    if constexpr (!kShape.copies_cells) {
      if (chunk + 1 < kChunks) cell_loads.store(cell_stage(chunk + 1));
      if (chunk + 2 < kChunks) cell_loads.load(chunk + 2);
    }
  }
  float* const sums = reinterpret_cast<float*>(shared_memory);
  columns.add_up(sums);
  gather_outputs(p, block, sums);
}
