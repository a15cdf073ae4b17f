// grad_weight of stride 1 with input and grad_output in each other's place:
//   grad_weight[ci][co][k] = sum over i of  input[ci][i] grad_output[co][i - p + k d]
// is the same sum for an "input" grad_output and an "output" input, taps from the last to the first. The kernel walks
// the cells of its output; those of the input proper are fewer where many outputs are borders, which few taps reach.
#pragma once

#include <memory>
#include <optional>

#include "core/family.h"

namespace tconv::cpu {

// The problem in the other order, where that is less work.
std::optional<Problem> mirrored(const Problem& problem);

// Runs a kernel for the mirrored problem on the tensors of the problem itself.
std::shared_ptr<const Kernel> run_mirrored(const Problem& problem, std::shared_ptr<const Kernel> kernel);

}  // namespace tconv::cpu
