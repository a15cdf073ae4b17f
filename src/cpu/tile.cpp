#include "cpu/tile.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "cpu/panels.h"

namespace tconv::cpu {

constexpr std::int64_t kFewestAligned = 4 * kMostLanes;  // cells of a piece of a row

TileShape::TileShape(const AxisMaps& maps, std::int64_t batch, std::int64_t most_cells)
    : TileShape(maps, batch, most_cells, Triple{most_cells, most_cells, most_cells}) {
  const std::int64_t fewest = maps[2].fewest_in_row;
  if (fewest == 0) return;
  constexpr double kWorth = 0.95;
  const auto positions = [](const TileShape& shape) {
    return static_cast<double>(shape.tiles * shape.images * shape.image_step);
  };
  const Triple whole = block;
  for (std::int64_t width = whole[2]; width >= std::min(fewest, whole[2]); width = ceil_div(width, 2)) {
    for (std::int64_t height = std::max<std::int64_t>(maps[1].cells, 1);; height = ceil_div(height, 2)) {
      const TileShape cut(maps, batch, most_cells, Triple{most_cells, height, width});
      if (positions(cut) < kWorth * positions(*this)) *this = cut;
      if (height == 1) break;
    }
    if (width == 1) break;
  }
}

TileShape::TileShape(const AxisMaps& maps, std::int64_t batch, std::int64_t most_cells, const Triple& most) {
  std::int64_t room = most_cells;
  for (const AxisMap& map : maps) room /= map.unit;
  room = std::max<std::int64_t>(room, 1);
  for (int a = kSpatialAxes - 1; a >= 0; --a) {
    const AxisMap& map = maps[a];
    const std::int64_t cells = std::max<std::int64_t>(map.cells, 1);
    const std::int64_t here = std::min(cells, std::max(most[a], map.unit));
    tiles_along[a] = ceil_div(cells, std::min(here, room * map.unit));
    block[a] = ceil_div(cells, tiles_along[a]);
    // Pieces of a row begin where vectors do.
    const bool aligned = a == 2 && map.unit == 1 && tiles_along[a] > 1 && block[a] >= kFewestAligned;
    grain[a] = aligned ? kMostLanes : map.unit;
    block[a] = round_up(block[a], grain[a]);
    tiles_along[a] = ceil_div(cells, block[a]);
    room = std::max<std::int64_t>(room * map.unit / block[a], 1);
    tiles *= tiles_along[a];
    // Either the source cells of the tile with both halos or, when the tile spans the axis, the source cells and one
    // gap of zeros that serves as the end of a row and as the beginning of the next.
    pitch[a] = block[a] + map.highest - map.lowest;
    if (tiles_along[a] == 1 && map.unit == 1) {
      const std::int64_t shared = std::max({block[a] + map.highest, map.source_size - map.lowest, std::int64_t{1}});
      shares_gap[a] = shared <= pitch[a];
      pitch[a] = std::min(pitch[a], shared);
    }
  }
  images = std::clamp<std::int64_t>(room, 1, std::max<std::int64_t>(batch, 1));
  images = ceil_div(batch, std::max<std::int64_t>(ceil_div(batch, images), 1));
  images = std::max<std::int64_t>(images, 1);
  tiles *= ceil_div(batch, images);
  steps = {pitch[1] * pitch[2], pitch[2], 1};
  image_step = pitch[0] * steps[0];
}

std::int64_t TileShape::length_of(std::int64_t tile_images, const Triple& count) const {
  std::int64_t last = (tile_images - 1) * image_step;
  for (int a = 0; a < kSpatialAxes; ++a) last += (count[a] - 1) * steps[a];
  return last + 1;
}

Tiling::Tiling(AxisMaps maps, std::int64_t batch, std::int64_t most_cells)
    : maps_(std::move(maps)), batch_(batch), shape_(maps_, batch, most_cells) {
  const auto place = [this](int a, std::int64_t offset) {
    return (shape_.shares_gap[a] ? offset : offset - maps_[a].lowest) * shape_.steps[a];
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
              phase.taps.push_back({{kd.tap, kh.tap, kw.tap}, source, offset, {kd.offset, kh.offset, kw.offset}});
              reads_around_ = reads_around_ || offset != 0;
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
  const auto is_empty = [](const PhaseTile& phase) { return phase.taps.empty(); };
  const auto filled = static_cast<std::int64_t>(phases_.size()) - std::ranges::count_if(phases_, is_empty);
  for (const PhaseTile& phase : phases_) slot_of_.push_back(is_empty(phase) ? filled : slots_++);
  has_empty_phases_ = filled < static_cast<std::int64_t>(phases_.size());
  slots_ = filled + (has_empty_phases_ ? 1 : 0);
  row_phases_ = std::max<std::int64_t>(static_cast<std::int64_t>(width.targets.size()), 1);
  for (const Lattice& d : depth.sources) {
    for (const Lattice& h : height.sources) {
      for (const Lattice& w : width.sources) sources_.push_back({d, h, w});
    }
  }
  for (const PhaseTile& phase : phases_) {
    for (const Tap& tap : phase.taps) {
      for (int a = 0; a < kSpatialAxes; ++a) {
        const bool own = tap.shift[a] == 0 && phase.lattice[a].count <= sources_[tap.source][a].count;
        reads_own_cell_ = reads_own_cell_ && own;
      }
    }
  }
  lead_ = round_up(-lowest, 16);
  plane_size_ = round_up(lead_ + std::max(shape_.images * shape_.image_step, longest() + highest) + kSlack, 16);
  // An odd number of cache lines, so that the same cell of neighbouring channels does not fall into the same cache set.
  plane_size_ += plane_size_ / 16 % 2 == 0 ? 16 : 0;
}

Tile Tiling::tile(std::int64_t index) const {
  Tile tile;
  for (int a = kSpatialAxes - 1; a >= 0; --a) {
    const std::int64_t grains = ceil_div(maps_[a].cells, shape_.grain[a]);
    const std::int64_t here = index % shape_.tiles_along[a];
    index /= shape_.tiles_along[a];
    tile.begin[a] = grains * here / shape_.tiles_along[a] * shape_.grain[a];
    const std::int64_t end = grains * (here + 1) / shape_.tiles_along[a] * shape_.grain[a];
    tile.count[a] = std::min(end, maps_[a].cells) - tile.begin[a];
    tile.origin[a] = shape_.shares_gap[a] ? 0 : tile.begin[a] + maps_[a].lowest;
  }
  const std::int64_t parts = ceil_div(batch_, shape_.images);
  tile.image = batch_ * index / parts;
  tile.images = batch_ * (index + 1) / parts - tile.image;
  tile.length = shape_.length_of(tile.images, tile.count);
  return tile;
}

Triple Tiling::cells_of(const Tile& tile, const PhaseTile& phase) const {
  Triple count{};
  for (int a = 0; a < kSpatialAxes; ++a) {
    count[a] = std::clamp<std::int64_t>(phase.lattice[a].count - tile.begin[a], 0, tile.count[a]);
  }
  return count;
}

bool Tiling::alike(const Tile& a, const Tile& b) const {
  if (a.images != b.images) return false;
  if (a.begin == b.begin) return true;  // of other images
  if (!reads_own_cell_) return false;
  return std::ranges::all_of(phases_, [&](const PhaseTile& phase) { return cells_of(a, phase) == cells_of(b, phase); });
}

std::vector<std::int64_t> Tiling::taps_of_row(const Tile& tile, const PhaseTile& phase, std::int64_t d,
                                              std::int64_t h) const {
  const std::array<std::int64_t, 2> cell = {tile.begin[0] + d, tile.begin[1] + h};
  std::vector<std::int64_t> taps;
  for (std::size_t t = 0; t < phase.taps.size(); ++t) {
    const Tap& tap = phase.taps[t];
    bool reads = true;
    for (int a = 0; a < 2; ++a) {
      const std::int64_t position = cell[a] + tap.shift[a];
      reads = reads && position >= 0 && position < sources_[tap.source][a].count;
    }
    if (reads) taps.push_back(static_cast<std::int64_t>(t));
  }
  return taps;
}

std::int64_t Tiling::place_on_line(const Segment& segment) const {
  std::int64_t place = segment.image * shape_.image_step;
  for (int a = 0; a < kSpatialAxes; ++a) place += segment.cell[a] * shape_.steps[a];
  return place;
}

std::vector<Segment> Tiling::segments_of_line(const Tile& tile, const PhaseTile& phase, std::int64_t rows) const {
  const Triple count = cells_of(tile, phase);
  std::vector<Segment> segments;
  if (count[2] == 0) return segments;
  const std::int64_t alone = count[2] + ceil_div(count[2], rows);  // in rows of products, one more for each tile
  const bool joins = alone * rows > shape_.pitch[2] * (rows + 1);
  for (std::int64_t image = 0; image < tile.images; ++image) {
    for (std::int64_t d = 0; d < count[0]; ++d) {
      for (std::int64_t h = 0; h < count[1]; ++h) {
        Segment row{image, {d, h, 0}, 2, count[2], taps_of_row(tile, phase, d, h)};
        if (joins && h > 0 && segments.back().taps == row.taps) {
          segments.back().count = place_on_line(row) + row.count - place_on_line(segments.back());
        } else {
          segments.push_back(std::move(row));
        }
      }
    }
  }
  return segments;
}

bool Tiling::leaves_much_out(const PhaseTile& phase, std::int64_t begin, std::int64_t count) const {
  constexpr std::int64_t kMuch = 10;  // one product in this
  std::int64_t outside = 0;
  for (const Tap& tap : phase.taps) {
    const std::int64_t first = begin + tap.shift[2];
    const std::int64_t inside =
        std::min(first + count, sources_[tap.source][2].count) - std::max<std::int64_t>(first, 0);
    outside += count - std::clamp<std::int64_t>(inside, 0, count);
  }
  return outside * kMuch >= count * static_cast<std::int64_t>(phase.taps.size()) && outside > 0;
}

std::vector<Segment> Tiling::segments_of_tensor(const Tile& tile, const PhaseTile& phase) const {
  const Triple count = cells_of(tile, phase);
  std::vector<Segment> segments;
  std::int64_t low = 0;  // low <= w < high: all taps read something in width
  std::int64_t high = count[2];
  const auto reads = [&](const Tap& tap, std::int64_t w) {
    const std::int64_t position = tile.begin[2] + w + tap.shift[2];
    return position >= 0 && position < sources_[tap.source][2].count;
  };
  for (const Tap& tap : phase.taps) {
    low = std::max(low, -tap.shift[2] - tile.begin[2]);
    high = std::min(high, sources_[tap.source][2].count - tap.shift[2] - tile.begin[2]);
  }
  low = std::min(low, count[2]);
  high = std::max(high, low);
  std::vector<std::size_t> columns(count[2]);  // those at the borders: the segments that go on
  for (std::int64_t image = 0; image < tile.images; ++image) {
    for (std::int64_t d = 0; d < count[0]; ++d) {
      std::vector<std::int64_t> above;
      for (std::int64_t h = 0; h < count[1]; ++h) {
        const std::vector<std::int64_t> taps = taps_of_row(tile, phase, d, h);
        for (std::int64_t w = 0; w < count[2]; ++w) {
          if (w >= low && w < high) continue;
          if (h > 0 && above == taps) {
            ++segments[columns[w]].count;
            continue;
          }
          columns[w] = segments.size();
          Segment column{image, {d, h, w}, 1, 1, {}};
          std::ranges::copy_if(taps, std::back_inserter(column.taps),
                               [&](std::int64_t t) { return reads(phase.taps[t], w); });
          segments.push_back(std::move(column));
        }
        if (high > low) segments.push_back({image, {d, h, low}, 2, high - low, taps});
        above = taps;
      }
    }
  }
  return segments;
}

bool Tiling::has_corners(const PhaseTile& phase) const {
  constexpr std::int64_t kFewest = 4;  // columns
  constexpr std::int64_t kMuch = 8;    // one cell in this
  // Cells along an axis that some taps bring nothing to.
  const auto border = [&](int a) {
    std::int64_t low = 0;
    std::int64_t high = phase.lattice[a].count;
    for (const Tap& tap : phase.taps) {
      low = std::max(low, -tap.shift[a]);
      high = std::min(high, sources_[tap.source][a].count - tap.shift[a]);
    }
    return phase.lattice[a].count - std::max<std::int64_t>(high - low, 0);
  };
  const std::int64_t columns = border(2);
  return columns >= kFewest && kMuch * border(1) * columns >= phase.lattice[1].count * phase.lattice[2].count;
}

std::vector<Segment> Tiling::segments_of_tap_columns(const Tile& tile, const PhaseTile& phase) const {
  const Triple count = cells_of(tile, phase);
  std::vector<Segment> segments;
  if (count[2] == 0) return segments;
  for (std::int64_t image = 0; image < tile.images; ++image) {
    for (std::int64_t d = 0; d < count[0]; ++d) {
      for (std::int64_t h = 0; h < count[1]; ++h) {
        segments.push_back({image, {d, h, 0}, 2, count[2], {}});
        // Of each column its taps, and which cells they read something for.
        std::map<std::array<std::int64_t, 2>, std::vector<std::int64_t>> columns;  // by lattice and shift
        for (const std::int64_t t : taps_of_row(tile, phase, d, h)) {
          columns[{phase.taps[t].source, phase.taps[t].shift[2]}].push_back(t);
        }
        for (auto& [column, taps] : columns) {
          const std::int64_t first = tile.begin[2] + column[1];
          const std::int64_t low = std::clamp<std::int64_t>(-first, 0, count[2]);
          const std::int64_t high = std::clamp<std::int64_t>(sources_[column[0]][2].count - first, low, count[2]);
          if (high > low) segments.push_back({image, {d, h, low}, 2, high - low, std::move(taps)});
        }
      }
    }
  }
  return segments;
}

}  // namespace tconv::cpu
