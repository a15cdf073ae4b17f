// Tensor-core tiles for sm_90a: wgmma on the tile format. The config is tile.cuh's, and multiply().
#include "tile_warpgroup.cuh"

#include "tile_block.cuh"
