// What a tile of the direct kernel costs on a device: a simple model of issue slots, shared memory, latency and
// traffic.
#pragma once

#include "core/family.h"
#include "cuda/kernels/direct_params.cuh"

namespace tconv::cuda {

// What one block costs a multiprocessor.
struct BlockCost {
  double busy = 0;     // cycles that no other block can use
  double latency = 0;  // further cycles from start to end
  double resident = 1;
  double bytes = 0;  // to and from the cache
};

BlockCost block_cost(const DirectConfig& c, const DirectGeometry& g, const DeviceProperties& device);

// Blocks that one multiprocessor holds at a time, as far as shared memory, threads and `registers` allow.
int resident_blocks(const DirectGeometry& g, int registers, const DeviceProperties& device);

double grid_seconds(const BlockCost& cost, double blocks, double tensor_bytes, const DeviceProperties& device);

// A guess from above at the registers of a thread.
int direct_registers(const DirectConfig& config, const DirectGeometry& geometry);

}  // namespace tconv::cuda
