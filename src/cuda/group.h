// The gradients of layers with eight input channels in a group, on tensor cores: few channels leave a tile of the other
// families half empty, and make them bring rows of odd length element by element.
#pragma once

#include <string>

#include "core/family.h"

namespace tconv::cuda {

Proposal propose_group(const Problem& problem, const DeviceProperties& device);
Proposal propose_group_cut(const Problem& problem, const DeviceProperties& device, int index);

// Why the family should leave a problem that it can compute to others, or empty.
std::string why_rather_no_group(const Problem& problem, const DeviceProperties& device);

}  // namespace tconv::cuda
