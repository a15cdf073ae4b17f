// Forward of few cells with many weights, channels side by side in every tensor.
#pragma once

#include "core/family.h"

namespace tconv::cpu {

// Whether the tensors lie as it wants them.
bool has_columns_last(const Problem& problem);

// For a problem that has; whether it is worth while is the caller's to know.
Proposal propose_columns_last(const Problem& problem);

}  // namespace tconv::cpu
