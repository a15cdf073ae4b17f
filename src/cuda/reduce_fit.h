// How the blocks of a cut load their tensors, and how many of them share a multiprocessor.
#pragma once

#include "cuda/reduce.h"

namespace tconv::cuda {

// Completes a shape whose rows, columns, taps, pixels and loading warps are chosen; false: it cannot be built.
bool fit_to_device(ReduceShape& shape, const Reduction& reduction, const DeviceProperties& device,
                   const ReduceOptions& options);

// The same for a shape whose tensors come in boxes.
bool fit_boxes_to_device(ReduceShape& shape, const DeviceProperties& device);

}  // namespace tconv::cuda
