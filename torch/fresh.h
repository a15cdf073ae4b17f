// Uninitialised tensors for results and workspaces.
#pragma once

#include <ATen/core/Tensor.h>

namespace tconv::front {

// As at::empty. On a CPU, the system hands out memory page by page as it is first written, which takes longer than the
// writing itself: large tensors are made of large pages, and of memory that was used before (kept_memory.h).
at::Tensor fresh(at::IntArrayRef sizes, const at::TensorOptions& options, at::MemoryFormat format);

}  // namespace tconv::front
