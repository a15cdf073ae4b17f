#include "cpu/tile.h"

#include <algorithm>

namespace tconv::cpu {

Tiling::Tiling(AxisMaps maps, std::int64_t batch, std::int64_t most_cells) : maps_(std::move(maps)), batch_(batch) {
  std::int64_t room = std::max<std::int64_t>(most_cells, 1);
  tiles_ = 1;
  for (int a = kSpatialAxes - 1; a >= 0; --a) {
    const AxisMap& map = maps_[a];
    const std::int64_t cells = std::max<std::int64_t>(map.cells, 1);
    tiles_along_[a] = ceil_div(cells, std::min(cells, room));
    block_[a] = ceil_div(cells, tiles_along_[a]);
    tiles_along_[a] = ceil_div(cells, block_[a]);
    room = std::max<std::int64_t>(room / block_[a], 1);
    tiles_ *= tiles_along_[a];
    // Either the source cells of the tile with both halos or, when the tile spans the axis, the source cells and one
    // gap of zeros that serves as the end of a row and as the beginning of the next.
    pitch_[a] = block_[a] + map.highest - map.lowest;
    if (tiles_along_[a] == 1) {
      const std::int64_t shared = std::max({block_[a] + map.highest, map.source_size - map.lowest, std::int64_t{1}});
      shares_gap_[a] = shared <= pitch_[a];
      pitch_[a] = std::min(pitch_[a], shared);
    }
  }
  images_per_tile_ = std::clamp<std::int64_t>(room, 1, std::max<std::int64_t>(batch, 1));
  images_per_tile_ = ceil_div(batch, std::max<std::int64_t>(ceil_div(batch, images_per_tile_), 1));
  images_per_tile_ = std::max<std::int64_t>(images_per_tile_, 1);
  tiles_ *= ceil_div(batch, images_per_tile_);

  steps_ = {pitch_[1] * pitch_[2], pitch_[2], 1};
  image_step_ = pitch_[0] * steps_[0];
  longest_ = length_of(images_per_tile_, block_);

  const auto place = [this](int a, std::int64_t offset) {
    return (shares_gap_[a] ? offset : offset - maps_[a].lowest) * steps_[a];
  };
  const auto& [depth, height, width] = maps_;
  std::int64_t lowest = 0;
  std::int64_t highest = 0;
  for (const AxisTarget& d : depth.targets) {
    for (const AxisTarget& h : height.targets) {
      for (const AxisTarget& w : width.targets) {
        PhaseTile phase{{d.lattice, h.lattice, w.lattice}, {}};
        for (const AxisTap& kd : d.taps) {
          for (const AxisTap& kh : h.taps) {
            for (const AxisTap& kw : w.taps) {
              const auto heights = static_cast<std::int64_t>(height.sources.size());
              const auto widths = static_cast<std::int64_t>(width.sources.size());
              const std::int64_t source = (kd.source * heights + kh.source) * widths + kw.source;
              const std::int64_t offset = place(0, kd.offset) + place(1, kh.offset) + place(2, kw.offset);
              phase.taps.push_back({{kd.tap, kh.tap, kw.tap}, source, offset});
              lowest = std::min(lowest, offset);
              highest = std::max(highest, offset);
            }
          }
        }
        const auto taps = static_cast<std::int64_t>(phase.taps.size());
        all_taps_ += taps;
        most_taps_ = std::max(most_taps_, taps);
        phases_.push_back(std::move(phase));
      }
    }
  }
  row_phases_ = std::max<std::int64_t>(static_cast<std::int64_t>(width.targets.size()), 1);
  for (const Lattice& d : depth.sources) {
    for (const Lattice& h : height.sources) {
      for (const Lattice& w : width.sources) sources_.push_back({d, h, w});
    }
  }
  lead_ = round_up(-lowest, 16);
  plane_size_ = round_up(lead_ + std::max(images_per_tile_ * image_step_, longest_ + highest) + kSlack, 16);
}

std::int64_t Tiling::length_of(std::int64_t images, const Triple& count) const {
  std::int64_t last = (images - 1) * image_step_;
  for (int a = 0; a < kSpatialAxes; ++a) last += (count[a] - 1) * steps_[a];
  return last + 1;
}

Tile Tiling::tile(std::int64_t index) const {
  Tile tile;
  for (int a = kSpatialAxes - 1; a >= 0; --a) {
    tile.begin[a] = index % tiles_along_[a] * block_[a];
    index /= tiles_along_[a];
    tile.count[a] = std::min(block_[a], maps_[a].cells - tile.begin[a]);
    tile.origin[a] = shares_gap_[a] ? 0 : tile.begin[a] + maps_[a].lowest;
  }
  tile.image = index * images_per_tile_;
  tile.images = std::min(images_per_tile_, batch_ - tile.image);
  tile.length = length_of(tile.images, tile.count);
  return tile;
}

}  // namespace tconv::cpu
