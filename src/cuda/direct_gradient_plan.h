// The tile that the direct kernel of grad_input uses for a problem. Pure: no call to a device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/family.h"
#include "cuda/kernels/direct_gradient_params.cuh"
#include "cuda/source.h"

namespace tconv::cuda {

struct DirectGradientPlan {
  std::string declined;  // why the family does not take the problem; the rest is then empty
  DirectGradientConfig config{};
  DirectGradientArguments arguments{};  // without the pointers
  std::int64_t blocks = 0;
  double expected_seconds = 0;
};

// The tile does not depend on the batch: a new batch size compiles nothing. (No tile changes the order of a sum.)
// `cut` takes another one than the best of those that were considered.
DirectGradientPlan plan_direct_gradient(const Problem& problem, const DeviceProperties& device, int cut = 0);

// All tiles worth considering, best first.
std::vector<DirectGradientPlan> direct_gradient_plans(const Problem& problem, const DeviceProperties& device);

KernelSource direct_gradient_source(const DirectGradientConfig& config);
Proposal propose_direct_gradient(const DirectGradientPlan& plan, const DeviceProperties& device);

}  // namespace tconv::cuda
