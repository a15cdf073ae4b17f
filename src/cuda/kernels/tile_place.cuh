// Which part of the problem a block computes.
#pragma once

#include "tile_weights.cuh"

// Which cells of the problem a block computes.
struct BlockCells {
  int first[4];  // sample, then the first cell (q) along depth, height, width
};

// What a block computes: a block row (rows and weights), a box of cells, and its rank among those that share the sum.
struct BlockPlace {
  int block_row;
  int cells;
  int rank;
};

__device__ __forceinline__ int block_rows_count(const TileParams& params) {
  return params.groups * kShape.all_residue_blocks() * kShape.channel_blocks();
}
__device__ __forceinline__ int boxes_count(const TileParams& params) {
  return params.tiles[0] * params.tiles[1] * params.tiles[2] * params.tiles[3];
}

__device__ __forceinline__ BlockPlace block_place(const TileParams& params, int block) {
  const int rank = block % kShape.depth_blocks;
  const int index = block / kShape.depth_blocks;
  if constexpr (kShape.skips_backs()) {
    // Phases differ in work, and the first ones have the most: all their blocks come first, to leave the short ones for
    // the end.
    const int boxes = boxes_count(params);
    constexpr int kChannelBlocks = kShape.channel_blocks();
    const int outer = index / kChannelBlocks;
    return {outer / boxes * kChannelBlocks + index % kChannelBlocks, outer % boxes, rank};
  } else {
    return {index % block_rows_count(params), index / block_rows_count(params), rank};
  }
}

__device__ __forceinline__ BlockCells block_cells(const TileParams& params, const BlockRows& rows, int index) {
  BlockCells cells;
#pragma unroll
  for (int dimension = 3; dimension >= 0; --dimension) {
    const int tile = dimension > 0 ? index % params.tiles[dimension] : index;
    index /= params.tiles[dimension];
    cells.first[dimension] = tile * kShape.tile[dimension] + (dimension > 0 ? params.first_cell[dimension - 1] : 0);
  }
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    if (kShape.follows_residue(axis) && rows.first_residue[axis] < params.pad[axis] % kShape.stride[axis])
      ++cells.first[1 + axis];
  }
  return cells;
}

// All of that about one tile.
struct TilePlace {
  BlockRows rows;
  BlockCells cells;
  int rank;

  __device__ __forceinline__ TilePlace(const TileParams& params, int tile) {
    const BlockPlace place = block_place(params, tile);
    rows = block_rows(place.block_row);
    cells = block_cells(params, rows, place.cells);
    rank = place.rank;
  }
};
