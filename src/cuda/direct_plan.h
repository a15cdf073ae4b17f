// The tile that the direct kernel uses for a problem. Pure: no call to a device.
#pragma once

#include <cstdint>
#include <string>

#include "core/family.h"
#include "cuda/kernels/direct_params.cuh"

namespace tconv::cuda {

struct DirectPlan {
  std::string declined;  // why the family does not take the problem; the rest is then empty
  DirectConfig config{};
  DirectArguments arguments{};  // without the pointers
  std::int64_t blocks = 0;
  double expected_seconds = 0;
};

// The tile does not depend on the batch: a new batch size compiles nothing, and a sample's result stays the same to the
// bit. `cut` takes another one than the best of those that were considered.
DirectPlan plan_direct(const Problem& problem, const DeviceProperties& device, int cut = 0);

// Fills in the arguments and the grid for the plan's config, whatever chose it.
void complete(DirectPlan& plan, const Problem& problem);

// What a tile costs on a device, by a simple model of issue slots, shared memory, latency and traffic.
double direct_seconds(const Problem& problem, const DirectConfig& config, const DeviceProperties& device);

}  // namespace tconv::cuda
