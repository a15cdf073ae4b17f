// grad_weight on tensor cores by warpgroups (sm_90a). The config before this file defines Element, kShape and
// multiply().
#include "reduce_warpgroup.cuh"

#include "reduce_block.cuh"
