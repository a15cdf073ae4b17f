// grad_weight on tensor cores by single warps (sm_80 and later). The config before this file defines Element and
// kShape.
#include "reduce_warp.cuh"

#include "reduce_block.cuh"
