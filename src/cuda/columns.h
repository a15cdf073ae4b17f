// The columns family: few pixels and large weights, forward, on tensor cores of sm_80 and later. One launch that reads
// the weights where they lie. The kernel is kernels/columns.cuh.
#pragma once

#include <vector>

#include "core/family.h"
#include "cuda/kernels/columns_params.cuh"

namespace tconv::cuda {

Proposal propose_columns(const Problem& problem, const DeviceProperties& device);
Proposal propose_columns_cut(const Problem& problem, const DeviceProperties& device, int index);

// Why the family should leave a problem that it can compute to others, or empty. Depends on one sample alone.
std::string why_rather_no_columns(const Problem& problem, const DeviceProperties& device);

struct ColumnsCandidate {
  ColumnsShape shape{};
  long long blocks = 0;
  double expected_seconds = 0;
};

// Why the family declines, or empty.
std::string why_no_columns(const Problem& problem, const DeviceProperties& device);

struct ColumnsOptions {
  bool aligned = true;  // the addresses allow copies of 16 bytes, if the strides do
};

// The cuts worth considering, best first; empty when none fits the device. All give the same bits: the order of the
// sums is the same in each.
std::vector<ColumnsCandidate> columns_candidates(const Problem& problem, const DeviceProperties& device,
                                                 const ColumnsOptions& options = {});

// The kernel that computes the problem with one of its cuts.
Proposal propose_columns(const Problem& problem, const DeviceProperties& device, const ColumnsCandidate& candidate);

}  // namespace tconv::cuda
