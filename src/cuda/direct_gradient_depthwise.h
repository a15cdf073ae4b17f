// The depthwise kernel of grad_input: one channel in and out per group, one or two axes, rows that lie densely.
#pragma once

#include <string_view>

#include "core/family.h"

namespace tconv::cuda {

// Why the kernel does not take the problem, or empty.
std::string_view why_no_depthwise_gradient(const Problem& problem);

Proposal propose_depthwise_gradient(const Problem& problem, const DeviceProperties& device);

}  // namespace tconv::cuda
