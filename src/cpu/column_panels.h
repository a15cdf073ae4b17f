// The gradient of the output as an operand of the columns family: D[cell][column], the piece of it that lies where a
// cell and a column (output channel, tap) meet, packed in panels for either product. What falls outside is zero.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "cpu/column_map.h"
#include "cpu/panels.h"
#include "cpu/simd.h"

namespace tconv::cpu {

struct ColumnRange {
  std::int64_t first = 0;
  std::int64_t count = 0;

  std::int64_t end() const { return first + count; }
};

// Panels of cells: [panel][column][cell of the panel]. Neighbouring cells that have all taps of a row are transposed.
template <typename E, typename T>
void pack_panels_of_cells(const ColumnMap& map, const E* grad, std::int64_t first_cell, std::int64_t cells,
                          const ColumnRange& columns, std::int64_t panel, T* panels) {
  constexpr std::int64_t kMostCells = kMostVectors * kMostLanes;
  const MathOps<T>& math = math_ops<T>();
  const auto& rows = map.rows(columns.first, columns.end());
  std::array<ColumnMap::Cell, kMostCells> places;
  std::array<std::int64_t, kMostCells> whole;  // where the taps of neighbours begin
  const std::int64_t step = map.step();
  for (std::int64_t n = 0; n < cells; n += panel) {
    const std::int64_t width = panel_width(math, panel, cells, n);
    const std::int64_t valid = std::min(width, cells - n);
    for (std::int64_t i = 0; i < valid; ++i) places[i] = map.cell_at(first_cell + n + i);
    for (const ColumnMap::Row& row : rows) {
      T* const to = panels + n * columns.count + (row.column - columns.first) * width;
      for (std::int64_t i = 0; i < valid;) {
        std::int64_t count = 0;
        ColumnMap::Piece piece;
        for (; i + count < valid; ++count) {
          piece = map.piece_of(places[i + count], row);
          if (piece.count < row.count || step != 1) break;
          whole[count] = piece.place;
        }
        if (count > 0) element_ops<E, T>().load_lines(grad, whole.data(), to + i, width, count, row.count);
        i += count;
        if (i == valid) break;
        for (std::int64_t t = 0; t < row.count; ++t) to[t * width + i] = 0;
        load_piece(grad + piece.place, map.step(), to + (piece.column - row.column) * width + i, width, piece.count);
        ++i;
      }
      for (std::int64_t t = 0; t < row.count && valid < width; ++t) {
        std::fill(to + t * width + valid, to + (t + 1) * width, T{0});
      }
    }
  }
}

// Panels of columns: [panel][cell][column of the panel]. Cell by cell, since the taps of a cell lie side by side.
template <typename E, typename T>
void pack_panels_of_columns(const ColumnMap& map, const E* grad, std::int64_t first_cell, std::int64_t cells,
                            const ColumnRange& columns, std::int64_t panel, T* panels) {
  const MathOps<T>& math = math_ops<T>();
  const auto& rows = map.rows(columns.first, columns.end());
  for (std::int64_t i = 0; i < cells; ++i) {
    const ColumnMap::Cell cell = map.cell_at(first_cell + i);
    auto row = rows.begin();
    for (std::int64_t n = 0; n < columns.count; n += panel) {
      const std::int64_t width = panel_width(math, panel, columns.count, n);
      const std::int64_t begin = columns.first + n;
      const std::int64_t end = std::min(begin + panel, columns.end());
      T* const to = panels + n * cells + i * width;
      std::fill_n(to, width, T{0});
      for (; row != rows.end(); ++row) {
        const ColumnMap::Piece piece = map.piece_of(cell, *row);
        const std::int64_t from = std::max(piece.column, begin);
        const std::int64_t count = std::min(piece.column + piece.count, end) - from;
        if (count > 0) {
          load_piece(grad + piece.place + (from - piece.column) * map.step(), map.step(), to + from - begin, 1, count);
        }
        if (row->column + row->count > end) break;  // the rest is in the next panel
      }
    }
  }
}

// Each cell with a row of its columns.
template <typename T>
void pack_rows_of_columns(const ColumnMap& map, const T* grad, std::int64_t first_cell, std::int64_t cells,
                          const ColumnRange& columns, std::int64_t row_size, T* packed) {
  const auto& rows = map.rows(columns.first, columns.end());
  for (std::int64_t i = 0; i < cells; ++i) {
    T* const to = packed + i * row_size - columns.first;
    std::fill_n(packed + i * row_size, row_size, T{0});
    map.for_each_piece(map.cell_at(first_cell + i), rows,
                       [&](std::int64_t column, std::int64_t count, std::int64_t place) {
                         load_piece(grad + place, map.step(), to + column, 1, count);
                       });
  }
}

}  // namespace tconv::cpu
