// What a cut of a grad_weight problem costs: registers, workspace, seconds.
#pragma once

#include <cstddef>

#include "core/family.h"
#include "cuda/kernels/reduce_params.cuh"
#include "cuda/reduction.h"

namespace tconv::cuda {

// An estimate, on the safe side, of the registers that a thread needs.
int reduce_registers(const ReduceShape& shape);

// Workspace: of the packed rows, of both packed tensors (nothing where a cut does not pack), and of all with the parts.
std::size_t packed_row_bytes(const ReduceShape& shape, const ReduceParams& params);
std::size_t reduce_packed_bytes(const ReduceShape& shape, const ReduceParams& params);
std::size_t reduce_workspace_bytes(const ReduceShape& shape, const ReduceParams& params);

double reduce_seconds(const ReduceShape& shape, const ReduceParams& params, const Problem& problem,
                      const Reduction& reduction, const DeviceProperties& device);

}  // namespace tconv::cuda
