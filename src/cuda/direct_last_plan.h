// The tile that the direct kernel for channels-last tensors uses for a problem. Pure: no call to a device.
#pragma once

#include <cstdint>
#include <string>

#include "core/family.h"
#include "cuda/kernels/direct_last_params.cuh"

namespace tconv::cuda {

struct LastPlan {
  std::string declined;  // why the kernel does not take the problem; the rest is then empty
  LastConfig config{};
  LastArguments arguments{};  // without the pointers
  std::int64_t blocks = 0;
  double expected_seconds = 0;
};

// The tile does not depend on the batch: a new batch size compiles nothing. (No tile changes the order of a sum.) `cut`
// takes another one than the first of those worth considering.
LastPlan plan_last(const Problem& problem, const DeviceProperties& device, int cut = 0);

// How many tiles are worth considering.
int last_cuts(const Problem& problem);

// Fills in the arguments and the grid for the plan's config, whatever chose it.
void complete(LastPlan& plan, const Problem& problem, const DeviceProperties& device);

// The plan for tensors that begin anywhere: element by element, with sums in the same order.
LastPlan unaligned(const LastPlan& plan, const Problem& problem, const DeviceProperties& device);

}  // namespace tconv::cuda
