// Few cells with many weights, channels side by side in every tensor: forward has a kernel of its own.
#pragma once

#include "core/family.h"

namespace tconv::cpu {

// Whether all tensors have their channels side by side.
bool has_columns_last(const Problem& problem);

// For a problem that has; whether it is worth while is the caller's to know.
Proposal propose_columns_last(const Problem& problem);

}  // namespace tconv::cpu
