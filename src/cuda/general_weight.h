// grad_weight of every problem, on any GPU, in any layout; the reduce family is faster.
#pragma once

#include "core/family.h"

namespace tconv::cuda {

Proposal propose_general_weight(const Problem& problem, const DeviceProperties& device);

}  // namespace tconv::cuda
