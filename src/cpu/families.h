// The kernel families of the CPU, in the order in which they are asked.
#pragma once

#include <string>
#include <vector>

#include "core/family.h"

namespace tconv::cpu {

// Few input cells or very long kernels: products with the weights as they lie.
Proposal propose_columns(const Problem& problem, const DeviceProperties& device);

// One channel a group: vectors along the channels, or along rows, whichever lie side by side.
Proposal propose_depthwise(const Problem& problem, const DeviceProperties& device);

// Two or three taps along an axis: fewer multiplications.
Proposal propose_winograd(const Problem& problem, const DeviceProperties& device);

// Phases + blocked multiplication with SIMD: the fast one.
Proposal propose_phases(const Problem& problem, const DeviceProperties& device);

// Plain loops, sums in double: takes everything, and is what the others are tested against.
Proposal propose_reference(const Problem& problem, const DeviceProperties& device);

// The instruction set that the SIMD kernels run with on this machine, such as "AVX3".
std::string target_name();

// All that this build holds and the machine can run, the best first; and the choice of one of them by name, for tests
// (empty: the best again). Not to be called while a kernel runs.
std::vector<std::string> target_names();
void use_target(const std::string& name);

}  // namespace tconv::cpu
