// The family that takes every problem of the directions forward and grad_input, on any GPU, in any layout; the others
// are faster.
#pragma once

#include "core/family.h"
#include "cuda/kernels/general_params.cuh"
#include "cuda/source.h"

namespace tconv::cuda {

// What is compiled into the kernel.
struct GeneralShape {
  DType dtype = DType::f32;
  bool wide = false;  // positions need 64 bits
  int bundle = 1;     // channels of a thread: 1 or 4
  bool gradient = false;

  bool operator==(const GeneralShape&) const = default;
};

GeneralShape general_shape(const Problem& problem);
KernelSource general_source(const GeneralShape& shape);

// The kernel's argument, without the pointers.
GeneralParams general_params(const Problem& problem, const GeneralShape& shape);

Proposal propose_general(const Problem& problem, const DeviceProperties& device);

}  // namespace tconv::cuda
