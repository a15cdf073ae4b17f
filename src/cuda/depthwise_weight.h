// grad_weight of layers with one channel in a group, at the memory's speed.
#pragma once

#include "core/family.h"

namespace tconv::cuda {

Proposal propose_depthwise_weight(const Problem& problem, const DeviceProperties& device);

}  // namespace tconv::cuda
