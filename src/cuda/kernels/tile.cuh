// Tensor-core tiles for sm_80 and later: mma.sync on the tile format. See tile_params.cuh for what a block computes.
//
// The config in front of this file defines Element (float, or unsigned short for fp16 and bf16), kShape, and for each
// distance: kBackCells, how far its cells lie from the patch's first, and kBackRows, a bit for each 16-row tile that
// has a tap there.
#include "tile_warp.cuh"

#include "tile_block.cuh"
