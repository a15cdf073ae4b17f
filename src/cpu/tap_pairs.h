// grad_weight of few bfloat16 output channels, whose taps are rows of the product, by pairs of neighbouring cells
// (bf16_products.h):
//   sums[row][ci] += sum over pairs of cells p, p + 1 of
//     window[row's place + p] input[ci][p] + window[row's place + p + 1] input[ci][p + 1].
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/packing.h"
#include "cpu/scalar.h"
#include "cpu/windows.h"

namespace tconv::cpu {

// Rows of the product, `rows` of them from `first` on and every `step`, and the runs of cells that they are summed
// over, with their places in the window.
struct TapRows {
  std::int64_t first = 0;
  std::int64_t rows = 0;
  std::int64_t step = 0;
  std::vector<std::size_t> runs;
  std::vector<std::int64_t> places;
};

struct TapPairs {
  const Window& window;
  const Tile& tile;
  const Runs& runs;  // of cells, two of them at least
  const std::vector<TapRows>& by_runs;
  const std::vector<std::int64_t>& row_places;  // of all rows, in the window
  View<const BFloat16> input;
  const BFloat16* grad = nullptr;  // the first channel of the group
  float* sums = nullptr;
  std::int64_t sums_step = 0;  // from one row to the next
};

void sum_tap_pairs(const TapPairs& job);

}  // namespace tconv::cpu
