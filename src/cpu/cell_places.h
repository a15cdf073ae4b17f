// Where the cells of a tile lie, as rows of a product: in a packed line or in a tensor.
#pragma once

#include <array>
#include <cstdint>

#include "cpu/tile.h"
#include "tconv/problem.h"

namespace tconv::cpu {

// Where the first cell begins, and how far it is to the next along an axis; apart from where a lattice begins.
struct CellPlaces {
  std::int64_t image = 0;  // from one to the next
  Triple first{};
  Triple step{};

  static CellPlaces on_line(const Tiling& tiling, std::int64_t cell_step) {
    CellPlaces places{tiling.image_step() * cell_step, {}, {}};
    for (int a = 0; a < kSpatialAxes; ++a) places.step[a] = tiling.steps()[a] * cell_step;
    return places;
  }

  static CellPlaces in_tensor(const Tile& tile, const std::array<Lattice, kSpatialAxes>& lattice,
                              const Strides& strides) {
    CellPlaces places{strides[0], {tile.image * strides[0], 0, 0}, {}};
    for (int a = 0; a < kSpatialAxes; ++a) {
      places.step[a] = lattice[a].step * strides[2 + a];
      places.first[a] += tile.begin[a] * places.step[a];
    }
    return places;
  }

  std::int64_t begin() const { return first[0] + first[1] + first[2]; }

  std::int64_t of(const Segment& segment) const {
    std::int64_t place = begin() + segment.image * image;
    for (int a = 0; a < kSpatialAxes; ++a) place += segment.cell[a] * step[a];
    return place;
  }
};

inline std::int64_t begin_in_tensor(const std::array<Lattice, kSpatialAxes>& lattice, const Strides& strides) {
  std::int64_t place = 0;
  for (int a = 0; a < kSpatialAxes; ++a) place += lattice[a].first * strides[2 + a];
  return place;
}

}  // namespace tconv::cpu
