// Where the "winograd" family saves multiplications: along one or two axes, whose taps are two or three neighbours in
// every phase, or one less in some. Along such an axis tiles of `outputs` cells become `points` products; along the
// others nothing changes.
#pragma once

#include <array>
#include <bitset>
#include <optional>
#include <string>
#include <vector>

#include "core/family.h"
#include "cpu/blocking.h"
#include "cpu/tile.h"
#include "cpu/winograd_simd.h"

namespace tconv::cpu {

inline constexpr std::int64_t kNoTap = -1;

struct FastAxis {
  int axis = 2;
  std::size_t scheme = 0;  // in kSchemes
  // Of each source lattice of the axis: the lowest offset that is read from it.
  std::vector<std::int64_t> bases;
  // Of each target lattice: its cell j is output j + shift of the tiles.
  std::vector<std::int64_t> shifts;
  // The same, where sources are combined for this target lattice alone: how much later its tiles begin.
  std::vector<std::int64_t> starts;
  // [target][source][tap]: the taps of the target lattice in the order of their offsets; kNoTap for the first or the
  // last of a lattice that has one less than others. No sources where a lattice has no taps at all.
  std::vector<std::vector<std::vector<std::int64_t>>> taps;

  std::int64_t most_shift() const;
  // Groups of taps that are combined.
  std::int64_t groups() const;
};

// None, one or two, in the order in which sources are combined along them. The points of the second are innermost.
using FastAxes = std::vector<FastAxis>;

int points_of(const FastAxes& fast);

struct FastSearch {
  std::int64_t sources = 0;  // channels of a group
  std::int64_t targets = 0;
  std::int64_t images = 1;                 // whose cells the weights are combined for
  double weight_cost = 0;                  // of combining one, in products
  bool shifted = true;                     // all phases share combined sources
  bool incomplete = false;                 // some lattices may have a tap less than others
  std::int64_t fewest_of_two = 0;          // channels, on both sides, that pay for combining two taps
  std::int64_t fewest_of_three = 0;        // and on one side for three
  std::int64_t fewest_incomplete = 0;      // products of a source and a target channel, the same
  std::int64_t targets_of_incomplete = 0;  // that pay where some lattices have one tap, others two
};

// The axis that saves most, if any saves enough, and another one that saves enough at four points, which costs no
// digits. What a sample's output is depends on the layer alone, not on the batch: the choice changes the results' last
// bits.
FastAxes find_fast_axes(const AxisMaps& maps, const FastSearch& search);

// The share of the products that is left.
double products_left(const FastAxes& fast, const AxisMaps& maps);

// forward and grad_input: the axes, and how combined weights, which have to be kept or paid for, are cut.
struct FastWeights {
  FastAxes axes;
  std::int64_t targets = 0;  // channels of a block
  bool held = true;          // by the call, for all tiles; otherwise each tile combines its own
  bool at_once = true;       // all of them are held at a time
  std::int64_t room = 0;     // elements that the call holds, at most
};

// Channels of a block of at most `most` of them, in whole vectors.
std::int64_t targets_of_block(const Roles& roles, std::int64_t most);

// Nothing where no axis saves enough. `by_phase`: the phases of a block may be computed one after the other.
FastWeights choose_fast_weights(const AxisMaps& maps, const Problem& problem, const Roles& roles, bool by_phase);

// The same maps with room for the tiles of the fast axes.
AxisMaps with_room_for(const FastAxes& fast, AxisMaps maps);

// "6 products for 4 cells of 3 taps along the height" and so on.
std::string describe_axes(const FastAxes& fast);

// The same axes where sources are combined for each phase by itself: no cell is shifted.
FastAxes phase_by_phase(FastAxes fast);

// How the cells of a tile lie in memory once they are combined along the first `levels` axes: the line of the tiling
// with tiles instead of cells along these.
struct FastLine {
  Triple pitch{};
  Triple steps{};
  std::int64_t image_step = 0;
  std::int64_t lead = 0;  // zeros before position 0
  std::int64_t size = 0;  // of all, for the images of a tile

  FastLine() = default;
  FastLine(const FastAxes& fast, std::size_t levels, const AxisMaps& maps, const TileShape& shape);

  // How far a tap's offset along one of the other axes leads.
  std::int64_t place(const AxisMaps& maps, const TileShape& shape, int axis, std::int64_t offset) const {
    return (shape.shares_gap[axis] ? offset : offset - maps[axis].lowest) * steps[axis];
  }
};

// One line for each level.
std::vector<FastLine> fast_lines(const FastAxes& fast, const Tiling& tiling);

// Taps of a phase that differ along the fast axes alone.
struct TapGroup {
  std::int64_t source = 0;
  std::int64_t offset = 0;                                 // along the combined line
  std::array<std::int64_t, kMostTaps * kMostTaps> taps{};  // [tap of the second axis][tap of the first], or kNoTap
  // The points whose combined weights are zero: without its first or last tap a lattice has nothing at the first or
  // last point of the axis.
  std::bitset<kMostPoints * kMostPoints> zero_at;
  Triple shift{};  // of one of them: as Tap has it
};

struct TapGroups {
  std::vector<TapGroup> all;
  std::vector<std::int64_t> shifts;  // of each fast axis: FastAxis::shifts of the phase
  std::vector<std::int64_t> starts;  // the same of FastAxis::starts

  TapGroups(const PhaseTile& phase, const FastAxes& fast, const FastLine& line, const Tiling& tiling);

  std::int64_t count() const { return static_cast<std::int64_t>(all.size()); }
};

// What tiles should be like.
struct TileWish {
  std::int64_t width = 0;   // elements that a position of the combined line takes up, for one point
  std::int64_t tiles = 1;   // no fewer, if small tiles are not needed for it
  std::int64_t fewest = 1;  // cells
};

// Cells of a tile that fits the cache.
std::int64_t choose_cells(const FastAxes& fast, const AxisMaps& maps, std::int64_t batch, const TileWish& wish,
                          const Caches& caches);

// The same, or fewer or up to `most` where threads then have less to do: none waits long for the last tile. A tile
// costs as much as `tile_cost` cells beside its own.
std::int64_t even_cells(const AxisMaps& maps, std::int64_t batch, std::int64_t cells, std::int64_t most,
                        std::int64_t tasks_of_tile, std::int64_t threads, std::int64_t tile_cost);

// grad_weight, where it is worth while
Proposal propose_winograd_weight(const Problem& problem, const DeviceProperties& device);

}  // namespace tconv::cpu
