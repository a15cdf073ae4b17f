// Boxes of channels-last input by the copy engine: one thread asks for them. Of a gradient, chunk after chunk brings
// the pixels of one residue of the stride, and then the next channels.
#pragma once

#include "tile_stream_load.cuh"

__device__ __forceinline__ void stream_input(const StreamParams& stream, const TilePlace& tile,
                                             const StreamBarriers& barriers, unsigned ring, int thread,
                                             RingPlace<kShape.input_ring>& place) {
  if (thread != 0) return;
  const TileParams& params = stream.tile;
  const BlockCells& cells = tile.cells;
  constexpr int kGroups = kShape.all_plane_groups();
#pragma unroll 1
  for (int index = 0; index < kShape.block_chunks(); ++index) {
    const int chunk = tile.rank * kShape.block_chunks() + index;
    const PlaneGroup plane = plane_group(chunk % kGroups);
    int at[5] = {tile.rows.group * kShape.channels + chunk / kGroups * kShape.chunk_channels(),
                 box_begin(params, cells, 2), box_begin(params, cells, 1), box_begin(params, cells, 0), cells.first[0]};
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) at[3 - axis] += kShape.group_residue(axis, plane.at[axis]);
    const unsigned full = barriers.input_full(place.slot);
    ptx::wait_barrier(barriers.input_empty(place.slot), place.parity ^ 1);
    ptx::expect_bytes(full, kShape.box_bytes());
    ptx::copy_tensor(ring + place.slot * kShape.input_stage_bytes(), &stream.input, at, full);
    place.advance();
  }
}
