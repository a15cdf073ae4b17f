// grad_weight of bfloat16 by pairs of cells.
#pragma once

#include "core/family.h"
#include "cpu/sum_blocking.h"

namespace tconv::cpu {

// Whether the processor multiplies pairs, and the vectors run along the input channels.
bool sums_pairs(const Problem& problem, const SumBlocking& blocking);
// The same of what the "phases" family makes of a problem.
bool sums_pairs(const Problem& problem);
Proposal propose_pair_weight(const Problem& problem, const SumBlocking& blocking, Tiling tiling);

}  // namespace tconv::cpu
