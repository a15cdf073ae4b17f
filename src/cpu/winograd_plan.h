// Where the "winograd" family saves multiplications: along one axis, whose taps are two or three neighbours in every
// phase. Along that axis tiles of `outputs` cells become `points` products; along the others nothing changes.
#pragma once

#include <optional>
#include <vector>

#include "cpu/blocking.h"
#include "cpu/tile.h"
#include "cpu/winograd_simd.h"

namespace tconv::cpu {

struct FastAxis {
  int axis = 2;
  std::size_t scheme = 0;  // in kSchemes
  // Of each source lattice of the axis: the lowest offset that is read from it.
  std::vector<std::int64_t> bases;
  // Of each target lattice: its cell j is output j + shift of the tiles.
  std::vector<std::int64_t> shifts;
  // [target][source][tap]: the taps of the target lattice in the order of their offsets.
  std::vector<std::vector<std::vector<std::int64_t>>> taps;

  std::int64_t most_shift() const;
};

// The axis that saves most, if any saves enough. It depends on the layer alone, not on the batch: it changes the
// results' last bits.
std::optional<FastAxis> choose_fast_axis(const AxisMaps& maps, const Problem& problem, const Roles& roles);

// Whether the call may hold the combined weights of all channels.
bool shares_combined_weights(const Problem& problem, const FastAxis& fast);

// The same maps with room for the tiles of the fast axis.
AxisMaps with_room_for(const FastAxis& fast, AxisMaps maps);

// How the cells of a tile lie in memory once they are combined: the line of the tiling with tiles instead of cells
// along the fast axis.
struct FastLine {
  Triple pitch{};
  Triple steps{};
  std::int64_t image_step = 0;
  std::int64_t lead = 0;  // zeros before position 0
  std::int64_t size = 0;  // of all, for the images of a tile

  FastLine() = default;
  FastLine(const FastAxis& fast, const AxisMaps& maps, const TileShape& shape);

  // How far a tap's offset along one of the other axes leads.
  std::int64_t place(const AxisMaps& maps, const TileShape& shape, int axis, std::int64_t offset) const {
    return (shape.shares_gap[axis] ? offset : offset - maps[axis].lowest) * steps[axis];
  }
};

// Cells of a tile, for so many threads and such caches.
std::int64_t choose_cells(const FastAxis& fast, const AxisMaps& maps, const Problem& problem, const Roles& roles,
                          std::int64_t chunk, std::int64_t targets, std::int64_t threads, const Caches& caches);

}  // namespace tconv::cpu
