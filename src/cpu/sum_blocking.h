// How grad_weight is cut into blocks of channels and tiles of cells.
#pragma once

#include <cstdint>

#include "cpu/weight_blocks.h"

namespace tconv::cpu {

struct SumBlocking : WeightBlocking {
  bool along_inputs = true;  // vectors run along the input channels
  bool taps_are_rows = false;
  std::int64_t cells = 1;  // of a tile
};

SumBlocking choose_sum_blocking(const Problem& problem);

}  // namespace tconv::cpu
