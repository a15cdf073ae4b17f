// How a problem is cut into tiles that fit the caches.
//
// A tile is a box of cells (images x depth x height x width of target positions). In the packed source, all of it is
// laid out as one line with gaps of zeros: position (n, d, h, w) stands at n image_step + d steps[0] + h steps[1] + w.
// A tap is then one distance along the line, and short rows or small images fill whole vectors. What is computed in the
// gaps belongs to no output and is dropped.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cpu/axis_map.h"

namespace tconv::cpu {

using AxisMaps = std::array<AxisMap, kSpatialAxes>;
using Triple = std::array<std::int64_t, kSpatialAxes>;

// One tap of a phase, in all three axes.
struct Tap {
  Triple tap;
  std::int64_t source = 0;  // index of the source lattice triple
  std::int64_t offset = 0;  // along the line
  Triple shift{};           // the same axis by axis: target position j reads position j + shift of the source lattice
};

// A product of three axis targets.
struct PhaseTile {
  std::array<Lattice, kSpatialAxes> lattice;
  std::vector<Tap> taps;
};

struct Tile {
  std::int64_t image = 0;  // first image
  std::int64_t images = 0;
  Triple begin{};           // first cell
  Triple count{};           // cells
  Triple origin{};          // source position that stands at 0 of each axis
  std::int64_t length = 0;  // along the line, from the first cell to the last
};

// The boxes that the cells are cut into, as even as possible so that threads have equally much to do, and how one of
// them, at most, is laid out along the line.
struct TileShape {
  std::int64_t tiles = 1;
  std::int64_t images = 1;  // of a tile, at most
  Triple tiles_along{};
  Triple block{};  // cells of a tile, at most
  Triple grain{};  // tiles begin at multiples of so many cells
  Triple pitch{};  // positions of the line from one cell of an axis to the end of its row
  std::array<bool, kSpatialAxes> shares_gap{};
  Triple steps{};
  std::int64_t image_step = 0;

  // At most about `most_cells` cells a tile.
  TileShape(const AxisMaps& maps, std::int64_t batch, std::int64_t most_cells);

  std::int64_t length_of(std::int64_t tile_images, const Triple& count) const;
  std::int64_t longest() const { return length_of(images, block); }  // Tile::length of a full tile

 private:
  // At most so many cells along each axis.
  TileShape(const AxisMaps& maps, std::int64_t batch, std::int64_t most_cells, const Triple& most);
};

// Neighbouring cells that the same taps reach.
struct Segment {
  std::int64_t image = 0;  // of the tile
  Triple cell{};           // the first one
  int axis = 2;            // along which they lie: a row, or one column of several rows
  std::int64_t count = 0;
  std::vector<std::int64_t> taps;  // of the phase
};

class Tiling {
 public:
  Tiling(AxisMaps maps, std::int64_t batch, std::int64_t most_cells);

  std::int64_t tiles() const { return shape_.tiles; }
  Tile tile(std::int64_t index) const;

  // The cells of a phase in a tile along the line, with the taps that read something in depth and height. Rows are
  // joined where what lies between them costs less than a register tile that is not full, of `rows` rows.
  std::vector<Segment> segments_of_line(const Tile& tile, const PhaseTile& phase, std::int64_t rows) const;
  // The same where nothing surrounds the source: with the taps that read something, in width too.
  std::vector<Segment> segments_of_tensor(const Tile& tile, const PhaseTile& phase) const;
  // The same, cells of a row with the taps of one distance in width; at first the whole row, with no taps. Where both
  // rows and columns of cells have taps of their own, each cell is a segment by itself otherwise.
  std::vector<Segment> segments_of_tap_columns(const Tile& tile, const PhaseTile& phase) const;
  // Whether many cells of a phase, of whatever tile, are such.
  bool has_corners(const PhaseTile& phase) const;
  // Whether many products of a phase would read the gaps between short rows.
  bool leaves_much_out(const Tile& tile, const PhaseTile& phase) const {
    return leaves_much_out(phase, tile.begin[2], cells_of(tile, phase)[2]);
  }
  // The same of the whole phase, however it is cut.
  bool leaves_much_out(const PhaseTile& phase) const { return leaves_much_out(phase, 0, phase.lattice[2].count); }
  std::int64_t place_on_line(const Segment& segment) const;

  // Whether tiles differ in nothing but where they begin.
  bool alike(const Tile& a, const Tile& b) const;
  // Whether most tiles are like the first one: they are whole images, or every tap reads the cell itself, at every cell
  // of its phase.
  bool mostly_alike() const { return reads_own_cell_ || shape_.tiles_along == Triple{1, 1, 1}; }

  // Cells of a phase in a tile, along each axis.
  Triple cells_of(const Tile& tile, const PhaseTile& phase) const;

  const AxisMaps& maps() const { return maps_; }
  const TileShape& shape() const { return shape_; }
  const std::vector<PhaseTile>& phases() const { return phases_; }
  const std::vector<std::array<Lattice, kSpatialAxes>>& sources() const { return sources_; }
  std::int64_t all_taps() const { return all_taps_; }
  std::int64_t most_taps() const { return most_taps_; }  // of one phase

  // Where the results of a phase are kept: each has a slot of its own, but those without taps share the last one.
  std::int64_t slots() const { return slots_; }
  std::int64_t slot(std::size_t phase) const { return slot_of_[phase]; }
  bool has_empty_phases() const { return has_empty_phases_; }

  std::int64_t row_phases() const { return row_phases_; }  // consecutive phases that differ in width alone

  const Triple& pitch() const { return shape_.pitch; }
  const Triple& steps() const { return shape_.steps; }
  std::int64_t image_step() const { return shape_.image_step; }
  std::int64_t longest() const { return shape_.longest(); }
  bool reads_around() const { return reads_around_; }      // whether a tap reads another position than its cell's own
  std::int64_t lead() const { return lead_; }              // elements before position 0
  std::int64_t plane_size() const { return plane_size_; }  // elements of one packed channel of one source lattice

 private:
  // Of `count` cells of a row.
  bool leaves_much_out(const PhaseTile& phase, std::int64_t begin, std::int64_t count) const;
  std::vector<std::int64_t> taps_of_row(const Tile& tile, const PhaseTile& phase, std::int64_t d, std::int64_t h) const;

  AxisMaps maps_;
  std::int64_t batch_;
  TileShape shape_;
  bool reads_around_ = false;
  bool reads_own_cell_ = true;
  std::int64_t lead_ = 0;
  std::int64_t plane_size_ = 0;
  std::int64_t all_taps_ = 0;
  std::int64_t most_taps_ = 0;
  std::int64_t row_phases_ = 1;
  std::int64_t slots_ = 0;
  bool has_empty_phases_ = false;
  std::vector<std::int64_t> slot_of_;
  std::vector<PhaseTile> phases_;
  std::vector<std::array<Lattice, kSpatialAxes>> sources_;
};

// Vectors may run this many elements past the end of a packed line.
inline constexpr std::int64_t kSlack = 64;

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
inline std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

}  // namespace tconv::cpu
