// Arranges both tensors as the stages of the blocks that multiply them, once for all of these: where many blocks read
// the same channels, each would do that again. The config before this file defines Element and kShape.
#include "reduce_stage.cuh"

// One stage of one block's channels; each warp has some of them.
template <bool kOfRows>
__device__ __forceinline__ void pack_stage(const ReduceParams& params, const ReduceBlock& block, int stage,
                                           unsigned raw, Cell* cells) {
  const int warp = threadIdx.x / 32;
  const StageOrigin origin(params, stage);
  const LineSide<kOfRows> side(params, block, origin, warp, raw + warp * kShape.raw_side_bytes(kOfRows));
  side.copy(params, block, origin, 0);
  ptx::commit_copies();
  ptx::wait_for_copies<0>();
  __syncwarp();
  side.arrange(0, [cells](int number, const Cell& cell) { cells[number] = cell; });
}

// Blocks [stage][image], those of the rows' tensor first.
extern "C" __global__ void __launch_bounds__(32 * kPackWarps)
    tconv_reduce_pack(const __grid_constant__ ReduceParams params) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  ptx::let_next_kernel_start();
  const unsigned raw = ptx::shared_address(shared_memory);
  const int stage = blockIdx.x;
  const long long all = reduce_stages(params);
  const int column_tiles =
      params.column_blocks * params.tap_blocks[0] * params.tap_blocks[1] * params.tap_blocks[2];  // beside each other
  int image = blockIdx.y;
  if (image < reduce_row_images(params)) {
    const ReduceBlock block(params, image * column_tiles);
    pack_stage<true>(params, block, stage, raw,
                     static_cast<Cell*>(params.packed_rows) + (image * all + stage) * kShape.row_cells());
  } else {
    image -= reduce_row_images(params);
    const ReduceBlock block(params, image / column_tiles * params.row_blocks * column_tiles + image % column_tiles);
    pack_stage<false>(params, block, stage, raw,
                      static_cast<Cell*>(params.packed_columns) + (image * all + stage) * kShape.column_cells());
  }
  ptx::wait_for_previous_kernel();  // whoever waits for this kernel waits for the one beside it, too
}
