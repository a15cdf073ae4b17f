// A product with one operand packed in panels of columns: what all kernels of the CPU come down to.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/simd.h"

namespace tconv::cpu {

inline constexpr std::int64_t kMostLanes = 16;  // of any instruction set

// Columns of the panel that begins at `first`: the last one is filled up to whole vectors.
template <typename T>
std::int64_t panel_width(const MathOps<T>& math, std::int64_t panel, std::int64_t columns, std::int64_t first) {
  return std::min(panel, (columns - first + math.lanes - 1) / math.lanes * math.lanes);
}

// c[m][n] (+)= sum over k of a[offsets[k] + m a_step] b(k, n), where b = [panel][k][column of the panel] and a panel
// has tile.vectors vectors. The columns of c go on to whole vectors.
template <typename T>
void multiply_panels(const MathOps<T>& math, const typename MathOps<T>::TileSize& tile, std::int64_t rows,
                     std::int64_t columns, const T* panels, Multiply<T> job) {
  const std::int64_t panel = tile.vectors * math.lanes;
  const T* const a = job.a;
  T* const c = job.c;
  for (std::int64_t n = 0; n < columns; n += panel) {
    job.b = panels + n * job.depth;
    job.b_step = panel_width(math, panel, columns, n);
    for (std::int64_t m = 0; m < rows; m += tile.rows) {
      job.a = a + m * job.a_step;
      job.c = c + m * job.c_step + n;
      math.multiply_a_in_place[std::min(tile.rows, rows - m) - 1][job.b_step / math.lanes - 1](job);
    }
  }
}

}  // namespace tconv::cpu
