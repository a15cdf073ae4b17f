// Which tap stands where among a block's weights; compiled by host and device. Taps count over [depth][height][width].
#pragma once

#include "tile_params.cuh"

// The tap with which a phase reads the inputs at a distance; -1: none.
constexpr int phase_tap(const TileShape& shape, const int (&first_residue)[3], const int (&slot)[3], int back_index) {
  const int backs[3] = {shape.back_along(0, back_index), shape.back_along(1, back_index),
                        shape.back_along(2, back_index)};
  bool exists = true;
  int index = 0;
  for (int axis = 0; axis < 3; ++axis) {
    const int residue = first_residue[axis] + shape.residue_of(axis, slot[axis]);
    const int tap = shape.axis_tap(axis, residue, backs[axis]);
    exists = exists && tap >= 0;
    index = index * shape.kernel[axis] + tap;
  }
  return exists ? index : -1;
}

// Which of a gradient's groups of planes a chunk holds.
struct PlaneGroup {
  int at[3];
};
constexpr PlaneGroup plane_group(const TileShape& shape, int index) {
  return {{index / (shape.plane_groups(2) * shape.plane_groups(1)),
           index / shape.plane_groups(2) % shape.plane_groups(1), index % shape.plane_groups(2)}};
}

// The tap of a gradient with which a box of one residue is multiplied for the `index`-th time; -1: none.
constexpr int plane_tap_of(const TileShape& shape, const PlaneGroup& group, int index) {
  int taps[3] = {};
  for (int axis = 2; axis >= 0; --axis) {
    const int count = shape.plane_taps(axis, group.at[axis]);
    taps[axis] = shape.first_tap(axis, group.at[axis]) + index % count * shape.phases[axis];
    index /= count;
  }
  if (index > 0) return -1;
  return (taps[0] * shape.kernel[1] + taps[1]) * shape.kernel[2] + taps[2];
}

// The tap of a gradient with which a chunk is multiplied for the `index`-th time; -1: none.
constexpr int gradient_tap(const TileShape& shape, const PlaneGroup& group, int index) {
  if (shape.plane_boxes()) return plane_tap_of(shape, group, index);
  const int at[3] = {shape.back_along(0, index), shape.back_along(1, index), shape.back_along(2, index)};
  bool exists = true;
  int found = 0;
  for (int axis = 0; axis < 3; ++axis) {
    int tap = at[axis];
    if (shape.plane_groups(axis) > 1) {
      const int residue = shape.group_residue(axis, group.at[axis]) + at[axis] / shape.backs[axis];
      const int back = at[axis] % shape.backs[axis];
      tap = shape.axis_tap(axis, residue, back);
      exists = exists && tap >= 0;
    }
    found = found * shape.kernel[axis] + tap;
  }
  return exists ? found : -1;
}
