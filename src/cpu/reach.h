// Which cells of a tile the same taps reach, where channels are innermost: rows of one product.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cpu/cell_places.h"
#include "cpu/packed_weights.h"
#include "cpu/panels.h"
#include "cpu/tile.h"

namespace tconv::cpu {

// Where cells are: in a tensor of these strides or, without them, on a packed line, `step` apart.
struct CellsAt {
  const Strides* strides = nullptr;
  std::int64_t step = 0;

  CellPlaces places(const Tiling& tiling, const Tile& tile, const std::array<Lattice, kSpatialAxes>& lattice) const {
    return strides != nullptr ? CellPlaces::in_tensor(tile, lattice, *strides) : CellPlaces::on_line(tiling, step);
  }
};

struct Reached {
  std::vector<std::int64_t> taps;     // of the phase
  std::vector<std::int64_t> offsets;  // from a cell to what each of them reads
  CellList cells;
  bool adds = false;  // to what lists before it brought to these cells
};
using Reach = std::vector<std::vector<Reached>>;  // of each phase

// Of some phases; those before them stay empty. Cells are in several lists only if they may be.
inline Reach find_reach(const Tiling& tiling, const Tile& tile, const PhaseRange& phases, std::int64_t tile_rows,
                        const CellsAt& source, const CellsAt& target, bool may_add) {
  const CellPlaces from = source.places(tiling, tile, tiling.sources()[0]);
  const auto distance = [&](const Tap& tap) {
    if (source.strides == nullptr) return (tap.source * tiling.plane_size() + tap.offset) * source.step;
    const auto& lattice = tiling.sources()[tap.source];
    std::int64_t sum = begin_in_tensor(lattice, *source.strides);
    for (int a = 0; a < kSpatialAxes; ++a) sum += tap.shift[a] * lattice[a].step * (*source.strides)[2 + a];
    return sum;
  };
  Reach all(phases.last);
  for (std::size_t p = phases.first; p < phases.last; ++p) {
    const PhaseTile& phase = tiling.phases()[p];
    const CellPlaces to = target.places(tiling, tile, phase.lattice);
    std::map<std::vector<std::int64_t>, CellList> by_taps;
    // Rows that follow each other on a packed line, with their gaps between them, do not in a tensor.
    const bool in_tensor = source.strides != nullptr || target.strides != nullptr;
    const bool exact = in_tensor || tiling.leaves_much_out(tile, phase);
    // This sets the order of the sums, so that it depends on the layer alone, not on how it is cut.
    const bool in_turn = may_add && (in_tensor || tiling.leaves_much_out(phase)) && tiling.has_corners(phase);
    const auto segments = [&] {
      if (in_turn) return tiling.segments_of_tap_columns(tile, phase);
      return exact ? tiling.segments_of_tensor(tile, phase) : tiling.segments_of_line(tile, phase, tile_rows);
    };
    for (const Segment& segment : segments()) {
      by_taps[segment.taps].add(from.of(segment), from.step[segment.axis], to.of(segment), to.step[segment.axis],
                                segment.count);
    }
    for (auto& [taps, cells] : by_taps) {
      Reached& each = all[p].emplace_back();
      each.taps = taps;
      each.cells = std::move(cells);
      each.adds = in_turn && !taps.empty();
      for (const std::int64_t t : taps) each.offsets.push_back(distance(phase.taps[t]));
    }
  }
  return all;
}

}  // namespace tconv::cpu
