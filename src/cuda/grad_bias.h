// grad_bias: the sum of the output's gradient per channel, on any GPU, in any layout.
#pragma once

#include "core/family.h"

namespace tconv::cuda {

Proposal propose_grad_bias(const Problem& problem, const DeviceProperties& device);

}  // namespace tconv::cuda
