// The tile that the depthwise kernel uses for a problem. Pure: no call to a device.
#pragma once

#include <cstdint>
#include <string>

#include "core/family.h"
#include "cuda/kernels/direct_depthwise_params.cuh"

namespace tconv::cuda {

struct DepthwisePlan {
  std::string declined;  // why the kernel does not take the problem; the rest is then empty
  DepthwiseConfig config{};
  DepthwiseArguments arguments{};  // without the pointers
  std::int64_t blocks = 0;
  double expected_seconds = 0;
};

// The tile does not depend on the batch: a new batch size compiles nothing.
DepthwisePlan plan_depthwise(const Problem& problem, const DeviceProperties& device);

// Fills in the arguments and the grid for the plan's config, whatever chose it.
void complete(DepthwisePlan& plan, const Problem& problem);

}  // namespace tconv::cuda
