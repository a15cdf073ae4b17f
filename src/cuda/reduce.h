// The reduce family: grad_weight of dense channels on tensor cores, sm_80 and later. The kernels are
// kernels/reduce*.cuh.
#pragma once

#include <string_view>
#include <vector>

#include "core/family.h"
#include "cuda/kernels/reduce_params.cuh"
#include "cuda/reduction.h"

namespace tconv::cuda {

Proposal propose_reduce(const Problem& problem, const DeviceProperties& device);
Proposal propose_reduce_cut(const Problem& problem, const DeviceProperties& device, int index);

// One way to cut a problem into blocks, and what it should cost.
struct ReduceCandidate {
  ReduceShape shape{};
  bool swapped = false;
  int parts = 1;
  double expected_seconds = 0;
};

// Why the family declines, or empty.
std::string_view why_no_reduce(const Problem& problem, const DeviceProperties& device);

struct ReduceOptions {
  bool aligned = true;                 // the tensors' addresses allow vectors of 16 bytes, if their strides do
  std::size_t least_packed = 1 << 20;  // bytes of both tensors below which another kernel costs more than it saves
};

// All cuts worth considering, best first; empty when none fits the device.
std::vector<ReduceCandidate> reduce_candidates(const Problem& problem, const DeviceProperties& device,
                                               const ReduceOptions& options = {});

// The kernel's argument without the pointers.
ReduceParams reduce_params(const Problem& problem, const Reduction& reduction, const ReduceShape& shape, int parts);

// The kernel that computes the problem with one of its cuts.
Proposal propose_reduce(const Problem& problem, const DeviceProperties& device, const ReduceCandidate& candidate);

// One of several equal slices of a problem's output channels, and all of them by the same candidate, one after the
// other.
Problem slice_of(const Problem& problem, int slices);
Proposal propose_sliced_reduce(const Problem& problem, const DeviceProperties& device, int slices,
                               const ReduceCandidate& candidate);

}  // namespace tconv::cuda
