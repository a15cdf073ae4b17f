// Where the "winograd" family saves multiplications: along one axis, whose taps are two or three neighbours in every
// phase. Along that axis tiles of `outputs` cells become `points` products; along the others nothing changes.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "core/family.h"
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
// results' last bits. `sources` and `targets` are the channels of a group.
std::optional<FastAxis> find_fast_axis(const AxisMaps& maps, std::int64_t sources, std::int64_t targets);

// The same for forward and grad_input, whose combined weights have to be kept or paid for, too.
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

// Taps of a phase that differ along the fast axis alone.
struct TapGroup {
  std::int64_t source = 0;
  std::int64_t offset = 0;  // along the combined line
  std::array<std::int64_t, kMostPoints> taps{};
  Triple shift{};  // of one of them: as Tap has it
};

struct TapGroups {
  std::vector<TapGroup> all;
  std::int64_t shift = 0;  // FastAxis::shifts of the phase

  TapGroups(const PhaseTile& phase, const FastAxis& fast, const FastLine& line, const Tiling& tiling);

  std::int64_t count() const { return static_cast<std::int64_t>(all.size()); }
};

// What tiles should be like.
struct TileWish {
  std::int64_t width = 0;   // elements that a position of the combined line takes up, for one point
  std::int64_t tiles = 1;   // no fewer, if small tiles are not needed for it
  std::int64_t fewest = 1;  // cells
};

// Cells of a tile that fits the cache.
std::int64_t choose_cells(const FastAxis& fast, const AxisMaps& maps, std::int64_t batch, const TileWish& wish,
                          const Caches& caches);

// grad_weight, where it is worth while
Proposal propose_winograd_weight(const Problem& problem);

}  // namespace tconv::cpu
