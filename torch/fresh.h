// Uninitialised tensors for results and workspaces.
#pragma once

#include <ATen/core/Tensor.h>

namespace tconv::front {

// As at::empty. On a CPU, the system hands out memory page by page as it is first written, which takes longer than the
// writing itself; large tensors ask for large pages instead, where the system leaves that choice to the program.
at::Tensor fresh(at::IntArrayRef sizes, const at::TensorOptions& options, at::MemoryFormat format);

}  // namespace tconv::front
