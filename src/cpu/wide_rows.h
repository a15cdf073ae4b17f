// kernel == stride along the width, channels side by side: what a cell gives to its `stride` outputs of a row lies
// together in memory, as if it were one output with so many times the channels. Seen that way the width has one phase
// and one tap, and products are as wide as may be.
#pragma once

#include <memory>
#include <optional>

#include "core/family.h"

namespace tconv::cpu {

// The problem seen that way, where input, output and weight allow it.
std::optional<Problem> with_wide_rows(const Problem& problem);

// Runs a kernel for that problem on the tensors of the problem itself.
std::shared_ptr<const Kernel> run_with_wide_rows(const Problem& problem, std::shared_ptr<const Kernel> kernel);

}  // namespace tconv::cpu
