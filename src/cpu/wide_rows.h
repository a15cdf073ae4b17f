// Channels side by side: so many outputs of a row as divide stride, kernel and padding along the width lie together in
// memory, as do their weights, as if they were one output with so many times the channels. Seen that way the width has
// fewer phases, and products are wider; with kernel == stride it has one phase and one tap.
#pragma once

#include <memory>
#include <optional>

#include "core/family.h"

namespace tconv::cpu {

// The problem seen that way, where input, output and weight allow it.
std::optional<Problem> with_wide_rows(const Problem& problem);

// Runs a kernel for that problem on the tensors of the problem itself.
std::shared_ptr<const Kernel> run_with_wide_rows(const Problem& problem, const Problem& wide,
                                                 std::shared_ptr<const Kernel> kernel);

}  // namespace tconv::cpu
