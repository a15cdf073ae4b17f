#include "cpu/winograd_plan.h"

#include <algorithm>

namespace tconv::cpu {
namespace {

constexpr std::int64_t kFewestChannels = 16;  // of source and target: the vectors of the combinations are full
constexpr std::int64_t kFewestCells = 128;    // of an image: weights are combined for all of them
constexpr std::int64_t kFewestDepth = 64;     // products of a sum
// Combined weights that may always be held, in elements; and the cells of an image that are worth combining more of
// them tile by tile.
constexpr std::int64_t kFewWeights = std::int64_t{1} << 18;
constexpr std::int64_t kManyCells = 4096;
constexpr std::int64_t kRoomForWeights = 12;  // otherwise: one part in this of input and output
// Products that are left, as a share: more are not worth the combinations.
constexpr double kMostLeft = 0.8;
constexpr double kAnotherAxis = 0.95;        // the same, for an axis further inside: rows are better left whole
constexpr double kCacheShare = 0.5;          // of the L2 cache, for the combined tile and its products
constexpr std::int64_t kLargestTile = 4096;  // cells
constexpr std::int64_t kSmallTile = 256;

std::int64_t elements_of(const Sizes& sizes) { return sizes[1] * sizes[2] * sizes[3] * sizes[4]; }  // one image

// Whether every cell of the axis reads some source: combined tiles leave a rounding error where nothing is added up.
bool every_cell_reads(const AxisMap& map) {
  for (const AxisTarget& target : map.targets) {
    for (std::int64_t j = 0; j < target.lattice.count; ++j) {
      const auto reads = [&](const AxisTap& tap) {
        return j + tap.offset >= 0 && j + tap.offset < map.sources[tap.source].count;
      };
      if (std::ranges::none_of(target.taps, reads)) return false;
    }
  }
  return true;
}

// The taps of every target and source lattice as neighbours in order, or nothing where they are not.
std::optional<FastAxis> neighbours_along(const AxisMap& map, const Scheme& scheme) {
  FastAxis fast;
  const auto sources = map.sources.size();
  std::vector<std::vector<std::int64_t>> firsts;  // [target][source]: the lowest offset
  for (const AxisTarget& target : map.targets) {
    auto& by_source = fast.taps.emplace_back(sources);
    auto& first = firsts.emplace_back();
    for (std::size_t s = 0; s < sources; ++s) {
      auto& taps = by_source[s];
      for (std::size_t t = 0; t < target.taps.size(); ++t) {
        if (target.taps[t].source == static_cast<std::int64_t>(s)) taps.push_back(static_cast<std::int64_t>(t));
      }
      if (static_cast<int>(taps.size()) != scheme.taps) return {};
      const auto offset = [&](std::int64_t t) { return target.taps[t].offset; };
      std::ranges::sort(taps, {}, offset);
      for (std::size_t k = 1; k < taps.size(); ++k) {
        if (offset(taps[k]) != offset(taps[k - 1]) + 1) return {};
      }
      first.push_back(offset(taps.front()));
    }
  }
  if (firsts.empty() || sources == 0 || !every_cell_reads(map)) return {};
  for (std::size_t s = 0; s < sources; ++s) {
    fast.bases.push_back(std::ranges::min(firsts, {}, [s](const auto& first) { return first[s]; })[s]);
  }
  for (const auto& first : firsts) {
    fast.shifts.push_back(first[0] - fast.bases[0]);
    for (std::size_t s = 1; s < sources; ++s) {
      if (first[s] - fast.bases[s] != fast.shifts.back()) return {};
    }
  }
  return fast;
}

}  // namespace

std::int64_t FastAxis::most_shift() const { return std::ranges::max(shifts); }

std::int64_t combined_weights(const Problem& problem, const FastAxis& fast) {
  const Scheme& scheme = kSchemes[fast.scheme];
  return element_count(problem.weight_sizes()) / scheme.taps * scheme.points;
}

bool shares_combined_weights(const Problem& problem, const FastAxis& fast) {
  const std::int64_t tensors = element_count(problem.input_sizes()) + element_count(problem.output_sizes());
  return combined_weights(problem, fast) <= std::max(tensors / kRoomForWeights, kFewWeights);
}

std::optional<FastAxis> find_fast_axis(const AxisMaps& maps, std::int64_t sources, std::int64_t targets) {
  if (std::min(sources, targets) < kFewestChannels) return {};
  std::int64_t cells = 1;
  std::int64_t depth = sources;  // in the phase with the fewest taps
  for (const AxisMap& map : maps) {
    cells *= map.cells;
    std::size_t fewest = map.targets.empty() ? 0 : map.targets.front().taps.size();
    for (const AxisTarget& target : map.targets) fewest = std::min(fewest, target.taps.size());
    depth *= static_cast<std::int64_t>(fewest);
  }
  if (cells < kFewestCells || depth < kFewestDepth) return {};
  std::optional<FastAxis> best;
  double least = kMostLeft;
  for (const int axis : {1, 0, 2}) {
    for (std::size_t s = 0; s < kSchemes.size(); ++s) {
      const Scheme& scheme = kSchemes[s];
      std::optional<FastAxis> fast = neighbours_along(maps[axis], scheme);
      if (!fast) continue;
      const std::int64_t tiles = ceil_div(maps[axis].cells + fast->most_shift(), scheme.outputs);
      const double left =
          static_cast<double>(tiles * scheme.points) / static_cast<double>(maps[axis].cells * scheme.taps);
      if (left >= least) continue;
      least = kAnotherAxis * left;
      best = std::move(fast);
      best->axis = axis;
      best->scheme = s;
    }
  }
  return best;
}

std::optional<FastAxis> choose_fast_axis(const AxisMaps& maps, const Problem& problem, const Roles& roles) {
  std::optional<FastAxis> fast = find_fast_axis(maps, roles.source_channels, roles.target_channels);
  if (!fast) return {};
  std::size_t sources = 1;
  std::int64_t cells = 1;
  for (const AxisMap& map : maps) {
    sources *= map.sources.size();
    cells *= map.cells;
  }
  // Several source lattices would have to be taken apart and transposed.
  if (sources > 1 && roles.source_strides[1] != 1) return {};
  const std::int64_t image = elements_of(problem.input_sizes()) + elements_of(problem.output_sizes());
  const std::int64_t weights = combined_weights(problem, *fast);
  const bool pays_alone = cells >= kManyCells && kSchemes[fast->scheme].taps > 2;
  if (weights > std::max(image / kRoomForWeights, kFewWeights) && !pays_alone) return {};
  return fast;
}

AxisMaps with_room_for(const FastAxis& fast, AxisMaps maps) {
  const Scheme& scheme = kSchemes[fast.scheme];
  AxisMap& map = maps[fast.axis];
  map.unit = scheme.outputs;
  // Whole tiles from the first cell on, one more for cells that are shifted, and what the last one reads beyond.
  const std::int64_t shifted = round_up(fast.most_shift(), scheme.outputs);
  map.highest = std::max(map.highest, std::ranges::max(fast.bases) + shifted + scheme.taps - 1);
  return maps;
}

FastLine::FastLine(const FastAxis& fast, const AxisMaps& maps, const TileShape& shape) : pitch(shape.pitch) {
  const Scheme& scheme = kSchemes[fast.scheme];
  pitch[fast.axis] = ceil_div(shape.block[fast.axis] + fast.most_shift(), scheme.outputs);
  steps = {pitch[1] * pitch[2], pitch[2], 1};
  image_step = pitch[0] * steps[0];
  for (int a = 0; a < kSpatialAxes; ++a) {
    if (a != fast.axis && maps[a].lowest < 0) lead -= place(maps, shape, a, maps[a].lowest);
  }
  size = lead + shape.images * image_step + kSlack;
}

TapGroups::TapGroups(const PhaseTile& phase, const FastAxis& fast, const FastLine& line, const Tiling& tiling) {
  const AxisMaps& maps = tiling.maps();
  std::array<std::size_t, kSpatialAxes> which{};  // target lattices
  Triple others{};                                // taps of each axis
  for (int a = 0; a < kSpatialAxes; ++a) {
    const auto same = [&](const AxisTarget& target) { return target.lattice.first == phase.lattice[a].first; };
    which[a] = std::ranges::find_if(maps[a].targets, same) - maps[a].targets.begin();
    others[a] = static_cast<std::int64_t>(maps[a].targets[which[a]].taps.size());
  }
  shift = fast.shifts[which[fast.axis]];
  const Triple steps = {others[1] * others[2], others[2], 1};  // of the taps of the phase
  others[fast.axis] = 1;
  for (const auto& taps : fast.taps[which[fast.axis]]) {
    for (std::int64_t d = 0; d < others[0]; ++d) {
      for (std::int64_t h = 0; h < others[1]; ++h) {
        for (std::int64_t w = 0; w < others[2]; ++w) {
          const std::int64_t first = d * steps[0] + h * steps[1] + w * steps[2];
          TapGroup group;
          for (std::size_t k = 0; k < taps.size(); ++k) group.taps[k] = first + taps[k] * steps[fast.axis];
          const Tap& tap = phase.taps[group.taps[0]];
          group.source = tap.source;
          group.shift = tap.shift;
          for (int a = 0; a < kSpatialAxes; ++a) {
            if (a != fast.axis) group.offset += line.place(maps, tiling.shape(), a, tap.shift[a]);
          }
          all.push_back(group);
        }
      }
    }
  }
}

std::int64_t choose_cells(const FastAxis& fast, const AxisMaps& maps, std::int64_t batch, const TileWish& wish,
                          const Caches& caches) {
  const Scheme& scheme = kSchemes[fast.scheme];
  for (std::int64_t cells = kLargestTile;; cells -= cells / 4) {
    const TileShape shape(maps, batch, cells);
    const FastLine line(fast, maps, shape);
    const bool fits = line.size * scheme.points * wish.width <= caches.elements(kCacheShare);
    const bool feeds = shape.tiles >= wish.tiles || cells <= kSmallTile;
    if ((fits && feeds) || cells <= std::max<std::int64_t>(wish.fewest, scheme.points)) return cells;
  }
}

}  // namespace tconv::cpu
