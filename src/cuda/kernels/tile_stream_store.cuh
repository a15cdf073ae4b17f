// From the accumulators of a streaming block straight to the output, in vectors: no thread waits for another. What is
// stored together is said by tile_stream_store_width.cuh or tile_stream_store_channels.cuh.
#pragma once

template <typename Store>
__device__ __forceinline__ void store_directly(const Store& store, const CellTeam& team) {
#pragma unroll
  for (int tile = 0; tile < CellTeam::kCellTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const CellPlace place = cell_place(team.column(tile) + half * 8);
      if (place.exists) store.store(team, tile, half, place);
    }
  }
}
