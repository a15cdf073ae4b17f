// The family for few channels per group (depthwise, small groups, few output channels): CUDA cores, bound by bandwidth.
#pragma once

#include <string>

#include "core/family.h"
#include "cuda/direct_depthwise_plan.h"
#include "cuda/direct_plan.h"
#include "cuda/source.h"

namespace tconv::cuda {

KernelSource direct_source(const DirectConfig& config, DType dtype);
KernelSource depthwise_source(const DepthwiseConfig& config, DType dtype);

// Tile, threads, shared memory and grid in a line.
std::string describe(const DirectPlan& plan);
std::string describe(const DepthwisePlan& plan);

Proposal propose_direct(const Problem& problem, const DeviceProperties& device);
// Where a problem has a depthwise kernel of its own, that is the first cut, and the tiles for any group follow.
Proposal propose_direct_cut(const Problem& problem, const DeviceProperties& device, int index);

}  // namespace tconv::cuda
