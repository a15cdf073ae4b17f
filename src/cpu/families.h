// The kernel families of the CPU, in the order in which they are asked.
#pragma once

#include <string>

#include "core/family.h"

namespace tconv::cpu {

// Phases + blocked multiplication with SIMD: the fast one.
Proposal propose_phases(const Problem& problem, const DeviceProperties& device);

// Plain loops, sums in double: takes everything, and is what the others are tested against.
Proposal propose_reference(const Problem& problem, const DeviceProperties& device);

// The instruction set that the SIMD kernels run with on this machine, such as "AVX3".
std::string target_name();

}  // namespace tconv::cpu
