// Boxes of channels-last input by the copy engine: one thread asks for them.
#pragma once

#include "tile_stream_load.cuh"

using StreamParams = TensorTileParams;
__device__ __forceinline__ const TileParams& tile_params(const StreamParams& params) { return params.tile; }

__device__ __forceinline__ void stream_input(const StreamParams& stream, const TilePlace& tile,
                                             const StreamBarriers& barriers, unsigned ring, int thread,
                                             RingPlace<kShape.input_ring>& place) {
  if (thread != 0) return;
  const TileParams& params = stream.tile;
  const BlockCells& cells = tile.cells;
  int at[5] = {tile.rows.group * kShape.channels + tile.rank * kShape.block_chunks() * kShape.chunk_channels(),
               box_begin(params, cells, 2), box_begin(params, cells, 1), box_begin(params, cells, 0), cells.first[0]};
#pragma unroll 1
  for (int chunk = 0; chunk < kShape.block_chunks(); ++chunk) {
    const unsigned full = barriers.input_full(place.slot);
    ptx::wait_barrier(barriers.input_empty(place.slot), place.parity ^ 1);
    ptx::expect_bytes(full, kShape.box_bytes());
    ptx::copy_tensor(ring + place.slot * kShape.input_stage_bytes(), &stream.input, at, full);
    place.advance();
    at[0] += kShape.chunk_channels();
  }
}
