// The columns family for few cells, where weights are all that costs: they are read, or written, once and as they lie,
// in runs as long as may be, and nothing is packed but the small tensors.
#pragma once

#include <cstdint>

#include "cpu/column_map.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"

namespace tconv::cpu {

inline constexpr std::int64_t kMostStreamed = 64;     // cells that are multiplied at a time
inline constexpr std::int64_t kMostOfDots = 16;       // the same, for grad_input
inline constexpr std::int64_t kStreamedBlock = 1024;  // columns that grad_weight takes at a time

// float and double. `map` is that of the problem.
template <typename T>
class ColumnStreams {
 public:
  ColumnStreams(const Problem& problem, const ColumnMap& map) : problem_(problem), map_(map) {}

  // forward: D[cell][column] of some cells and columns, rows of `row_size`. Sums over the input channels in order.
  const T* products(const T* input, const T* weight, std::int64_t first_cell, std::int64_t cells, std::int64_t columns,
                    std::int64_t row_size) const;

  // grad_input of some input channels: D is packed as it lies, of a few cells at a time. The sum of a cell does not
  // depend on the others.
  void grad_input(const T* grad_output, const T* weight, std::int64_t channels, T* grad_input) const;

  // Input channels of a task of grad_input, for so many threads: each task packs D.
  std::int64_t channels_of_task(std::int64_t threads) const;

  // grad_weight of all input channels of a group and some columns, from `first` on.
  void grad_weight(const T* input, const T* grad_output, std::int64_t first, std::int64_t columns, T* weight) const;

 private:
  std::int64_t cells_of_dots() const;

  const Problem& problem_;
  const ColumnMap& map_;
};

}  // namespace tconv::cpu
