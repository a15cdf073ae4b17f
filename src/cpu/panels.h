// A product with one operand packed in panels of columns: what all kernels of the CPU come down to.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "cpu/simd.h"

namespace tconv::cpu {

inline constexpr std::int64_t kMostLanes = 16;  // of any instruction set

// Columns of the panel that begins at `first`: the last one is filled up to whole vectors.
template <typename T>
std::int64_t panel_width(const MathOps<T>& math, std::int64_t panel, std::int64_t columns, std::int64_t first) {
  return std::min(panel, (columns - first + math.lanes - 1) / math.lanes * math.lanes);
}

// The other operand: panels [panel][k][row of the panel] of several register tiles each, so that rows fill whole
// vectors as well as may be.
struct RowPanels {
  std::int64_t rows = 1;  // of a panel
  std::int64_t step = 1;  // from k to k + 1: rows, filled up to whole vectors

  template <typename T>
  RowPanels(const MathOps<T>& math, std::int64_t tile_rows) {
    constexpr std::int64_t kWidest = 48;
    for (std::int64_t count = tile_rows; count <= kWidest; count += tile_rows) {
      const std::int64_t filled = (count + math.lanes - 1) / math.lanes * math.lanes;
      if (rows * filled < count * step || count == tile_rows) {
        rows = count;
        step = filled;
      }
    }
  }

  std::int64_t place(std::int64_t row, std::int64_t depth) const { return row / rows * step * depth + row % rows; }
  std::int64_t size(std::int64_t count, std::int64_t depth) const { return (count + rows - 1) / rows * step * depth; }
};

// Elements that pack_rows may read beyond the last row.
inline constexpr std::int64_t kRowSlack = 64;

// Row panels from a[offsets[k] + m].
template <typename T>
void pack_rows(const MathOps<T>& math, const RowPanels& panels, std::int64_t rows, const T* a,
               const std::int64_t* offsets, std::int64_t depth, T* packed) {
  for (std::int64_t m = 0; m < rows; m += panels.rows) {
    math.gather_rows(a + m, offsets, depth, panels.step, packed + panels.place(m, depth));
  }
}

// Row panels from lines that go along k, of which every `interleaved` steps make one: the k = tap + i interleaved are
// a[m line + i].
template <typename E, typename T>
void pack_lines(const RowPanels& panels, std::int64_t rows, const E* a, std::int64_t line, std::int64_t depth,
                T* packed, std::int64_t tap = 0, std::int64_t interleaved = 1) {
  for (std::int64_t m = 0; m < rows; m += panels.rows) {
    element_ops<E, T>().load_channels(a + m * line, line, packed + panels.place(m, depth) + tap * panels.step,
                                      interleaved * panels.step, std::min(panels.rows, rows - m), depth / interleaved);
  }
}

// Panels [panel][k][column of the panel] of tile.vectors vectors each, of which a product uses the k from `first` on.
template <typename T>
struct Panels {
  const T* data = nullptr;
  std::int64_t depth = 0;  // k of a panel
  std::int64_t first = 0;
};

// c[m][n] (+)= sum over k of a(k, m) b(k, n), where job.a are row panels for this tile. The columns of c go on to whole
// vectors.
template <typename T>
void multiply_panels(const MathOps<T>& math, const typename MathOps<T>::TileSize& tile, std::int64_t rows,
                     std::int64_t columns, const Panels<T>& panels, Multiply<T> job) {
  const RowPanels row_panels(math, tile.rows);
  const std::int64_t panel = tile.vectors * math.lanes;
  const T* const a = job.a;
  T* const c = job.c;
  job.a_step = row_panels.step;
  for (std::int64_t n = 0; n < columns; n += panel) {
    job.b_step = panel_width(math, panel, columns, n);
    job.b = panels.data + n * panels.depth + panels.first * job.b_step;
    for (std::int64_t m = 0; m < rows; m += tile.rows) {
      job.a = a + row_panels.place(m, job.depth);
      job.c = c + m * job.c_step + n;
      math.multiply_packed[std::min(tile.rows, rows - m) - 1][job.b_step / math.lanes - 1](job);
    }
  }
}

// Cells of a product one after the other: where each is in a and in c.
class CellList {
 public:
  // `count` of them at equal distances.
  void add(std::int64_t a, std::int64_t a_step, std::int64_t c, std::int64_t c_step, std::int64_t count) {
    a_.resize(count_);
    c_.resize(count_);
    for (std::int64_t i = 0; i < count; ++i) {
      a_.push_back(a + i * a_step);
      c_.push_back(c + i * c_step);
    }
    count_ += count;
    if (count_ == 0) return;
    // What follows the last tile.
    a_.resize(count_ + kMostCellsAlone, a_.back());
    c_.resize(count_ + kMostCellsAlone, c_.back());
  }
  std::int64_t count() const { return count_; }

  // The same for cells that are read where they are, in register tiles of about the same height; job.offsets and
  // job.places as multiply_cells wants them. A panel is used for all cells before the next one.
  template <typename T>
  void multiply(const MathOps<T>& math, const MathOps<T>::TileSize& tile, std::int64_t columns, const Panels<T>& panels,
                const MultiplyCells<T>& job) const {
    const auto& table = math.multiply_cells[std::countr_zero(static_cast<std::uint64_t>(job.interleaved))];
    multiply_by(table, math, tile, columns, panels, job);
  }

  // By a table of one's own. A panel of a single vector has its tallest tiles.
  template <typename T, typename Table>
  void multiply_by(const Table& table, const MathOps<T>& math, const MathOps<T>::TileSize& tile, std::int64_t columns,
                   const Panels<T>& panels, MultiplyCells<T> job) const {
    const std::int64_t all = count();
    if (all == 0) return;
    const std::int64_t panel = tile.vectors * math.lanes;
    constexpr auto kTallest = static_cast<std::int64_t>(std::tuple_size_v<Table>);
    T* const c = job.c;
    const T* const initial = job.initial;
    for (std::int64_t n = 0; n < columns; n += panel) {
      job.b_step = panel_width(math, panel, columns, n);
      job.b = panels.data + n * panels.depth;
      job.c = c == nullptr ? nullptr : c + n;
      job.first_column = n;
      job.initial = initial == nullptr ? nullptr : initial + n;
      const std::int64_t rows = kTallest > kMostCells && job.b_step == math.lanes ? kTallest : tile.rows;
      const std::int64_t tiles = (all + rows - 1) / rows;
      for (std::int64_t i = 0; i < tiles; ++i) {
        const std::int64_t m = all * i / tiles;
        job.a_places = a_.data() + m;
        job.c_places = c_.data() + m;
        table[all * (i + 1) / tiles - m - 1][job.b_step / math.lanes - 1](job);
      }
    }
  }

 private:
  std::int64_t count_ = 0;
  std::vector<std::int64_t> a_;
  std::vector<std::int64_t> c_;
};

}  // namespace tconv::cpu
