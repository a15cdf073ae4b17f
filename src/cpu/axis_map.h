// The phases of one axis, read from the tensor that is computed (or, for grad_weight, from the gradient that is
// walked): which lattices of positions it consists of, and which lattice of the other tensor each tap reads, how far
// away.
#pragma once

#include <cstdint>
#include <vector>

#include "tconv/phases.h"

namespace tconv::cpu {

// The positions first + j step, 0 <= j < count.
struct Lattice {
  std::int64_t first = 0;
  std::int64_t step = 1;
  std::int64_t count = 0;
};

// Tap `tap` brings position j + offset of the source lattice `source` to position j of the target.
struct AxisTap {
  std::int64_t tap = 0;
  std::int64_t source = 0;
  std::int64_t offset = 0;
};

struct AxisTarget {
  Lattice lattice;
  std::vector<AxisTap> taps;
};

struct AxisMap {
  std::vector<AxisTarget> targets;
  std::vector<Lattice> sources;
  std::int64_t cells = 0;        // the longest target lattice
  std::int64_t source_size = 0;  // the longest source lattice
  std::int64_t lowest = 0;       // of all offsets
  std::int64_t highest = 0;
  // Cells are cut at multiples of this. With more than one, rows of the packed line share no gaps along the axis, and
  // whoever sets it makes room for what is read beyond by raising `highest`.
  std::int64_t unit = 1;
  // Rows may be cut into pieces of at least so many cells where tiles then have less around them; 0: they may not.
  std::int64_t fewest_in_row = 0;
};

// Target lattices that have taps.
std::int64_t filled_targets(const AxisMap& map);

// Target: the output, one lattice per phase. Source: the input as it is.
AxisMap map_from_output(const Axis& axis);

// The same, and the positions that no tap reaches as lattices without taps, where that is a reasonable number: what is
// stored row by row then leaves no gaps.
AxisMap map_from_whole_output(const Axis& axis);

// Target: the input as it is. Source: the output, one lattice per phase.
AxisMap map_from_input(const Axis& axis);

}  // namespace tconv::cpu
