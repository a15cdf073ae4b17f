// The direct kernel for channels-last tensors: depthwise layers and small groups, forward and grad_input.
#pragma once

#include <string>

#include "cuda/direct_last_plan.h"
#include "cuda/source.h"

namespace tconv::cuda {

KernelSource last_source(const LastConfig& config, DType dtype);

// Tile, threads, shared memory and grid in a line.
std::string describe(const LastPlan& plan);

Proposal propose_last(const LastPlan& plan, const Problem& problem, const DeviceProperties& device);

}  // namespace tconv::cuda
