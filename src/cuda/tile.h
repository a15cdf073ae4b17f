// The tile family: dense channels on tensor cores, forward and the gradient of the input, sm_80 and later. The
// kernel is kernels/tile.cuh.
#pragma once

#include <vector>

#include "core/family.h"
#include "cuda/kernels/tile_params.cuh"

namespace tconv::cuda {

Proposal propose_tile(const Problem& problem, const DeviceProperties& device);
Proposal propose_tile_cut(const Problem& problem, const DeviceProperties& device, int index);

// One way to cut a problem into blocks, and what it should cost.
struct TileCandidate {
  TileShape shape{};
  long long blocks = 0;
  double expected_seconds = 0;
};

// Why the family declines, or empty.
std::string why_no_tile(const Problem& problem, const DeviceProperties& device);

struct TileOptions {
  bool aligned = true;  // the addresses allow 16-byte loads and stores, if the strides do
};

// All cuts worth considering, best first; empty when none fits the device. Whatever can change a result's bits (the
// order of a sum) depends on one sample alone, never on the batch.
std::vector<TileCandidate> tile_candidates(const Problem& problem, const DeviceProperties& device,
                                           const TileOptions& options = {});

// The kernel that computes the problem with one of its cuts.
Proposal propose_tile(const Problem& problem, const DeviceProperties& device, const TileCandidate& candidate);

}  // namespace tconv::cuda
