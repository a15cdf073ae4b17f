#include "cpu/winograd_plan.h"

#include <algorithm>

namespace tconv::cpu {
namespace {

constexpr std::int64_t kFewestChannels = 16;  // of source and target: the vectors of the combinations are full
// Cells of an image: weights are combined for all of them, along one axis and along two.
constexpr std::int64_t kFewestCells = 32;
constexpr std::int64_t kFewestOfTwo = 64;
constexpr std::int64_t kFewestDepth = 64;                    // products of a sum
constexpr std::int64_t kFewWeights = std::int64_t{3} << 16;  // combined ones that may always be held, in elements
constexpr std::int64_t kRoomForWeights = 12;                 // otherwise: one part in this of input and output
constexpr std::int64_t kMostTargets = 128;                   // target channels of a block
constexpr std::int64_t kFewestTargets = 64;                  // the same: sources are combined anew for each of them
constexpr std::int64_t kFewestOfPhase = 32;                  // the same, where several phases share what is combined
// Products that are left, as a share: more are not worth the combinations.
constexpr double kMostLeft = 0.8;
constexpr double kMostOfTwo = 0.85;          // the same of an axis that is not the only one
constexpr double kAnotherAxis = 0.95;        // the same, for an axis further inside: rows are better left whole
constexpr std::int64_t kFewestOfFive = 128;  // channels that pay for five points
// The same for two taps, where tensors are packed and results transposed anyway.
constexpr std::int64_t kFewestOfTwoTaps = 32;
constexpr std::size_t kFewLattices = 16;
// The same for three taps along each of two axes: more channels on either side than vectors of 16 leave idle.
constexpr std::int64_t kFewestOfThreeTaps = 32;
// Products of a source channel and a target channel that pay for combining both, where results are added up in the
// tensor, phase by phase; and target channels that pay for combining several incomplete lattices of two taps that could
// be read in place.
constexpr std::int64_t kFewestOfPhases = 11;
constexpr std::int64_t kFewestOfLattices = 48;
// Products that pay for the same where two taps save a third of them; more where depth repeats what is combined.
constexpr std::int64_t kFewestOfTwoInPlace = 22;
constexpr std::int64_t kFewestOfTwoInVolumes = 36;
// Products of a source channel and a target channel that pay for combining both, where lattices of two taps are
// incomplete: two products of nine are saved, not three. More where results are added up in the tensor.
constexpr std::int64_t kFewestIncomplete = 36;
constexpr std::int64_t kFewestIncompleteInPlace = 50;
constexpr double kWeightCost = 10;      // of a combined weight, for each image, in products
constexpr double kIncompleteCost = 20;  // the same where some phases have fewer taps
constexpr double kFivePoints = 1.08;    // what five points cost more: digits, and combinations
// Of the L2 cache, for the combined tile and its products. What is beyond it comes from the L3 cache, but weights would
// come from there anyway, for every tile anew: larger tiles read them less often.
constexpr double kCacheShare = 1.6;
constexpr std::int64_t kLargestTile = 4096;  // cells
constexpr std::int64_t kSmallTile = 256;
constexpr double kWorthCutting = 0.95;  // of the time that threads take, with more tiles

// Whether every cell of the lattices that have taps reads some source, and every tap at some cell: combined tiles leave
// a rounding error where nothing is added up.
bool everything_reads(const AxisMap& map) {
  for (const AxisTarget& target : map.targets) {
    if (target.taps.empty()) continue;
    const auto reads = [&](std::int64_t cell, const AxisTap& tap) {
      return cell + tap.offset >= 0 && cell + tap.offset < map.sources[tap.source].count;
    };
    for (std::int64_t j = 0; j < target.lattice.count; ++j) {
      if (std::ranges::none_of(target.taps, [&](const AxisTap& tap) { return reads(j, tap); })) return false;
    }
    for (const AxisTap& tap : target.taps) {
      const std::int64_t first = std::max<std::int64_t>(-tap.offset, 0);  // cell that may read something
      if (first >= target.lattice.count || !reads(first, tap)) return false;
    }
  }
  return true;
}

std::size_t most_taps(const AxisMap& map) {
  std::size_t most = 0;
  for (const AxisTarget& target : map.targets) most = std::max(most, target.taps.size());
  return most;
}

// The taps of every target and source lattice as neighbours in order, or nothing where they are not. Lattices without
// taps are left alone.
std::optional<FastAxis> neighbours_along(const AxisMap& map, const Scheme& scheme, bool incomplete) {
  FastAxis fast;
  const auto sources = map.sources.size();
  std::vector<std::vector<std::int64_t>> firsts;  // [target][source]: the lowest offset
  std::optional<std::int64_t> lowest;             // of lattices that have all taps
  for (const AxisTarget& target : map.targets) {
    auto& by_source = fast.taps.emplace_back(target.taps.empty() ? 0 : sources);
    auto& first = firsts.emplace_back();
    for (std::size_t s = 0; s < by_source.size(); ++s) {
      auto& taps = by_source[s];
      for (std::size_t t = 0; t < target.taps.size(); ++t) {
        if (target.taps[t].source == static_cast<std::int64_t>(s)) taps.push_back(static_cast<std::int64_t>(t));
      }
      const int missing = scheme.taps - static_cast<int>(taps.size());
      if (taps.empty() || missing < 0 || missing > (incomplete ? 1 : 0)) return {};
      const auto offset = [&](std::int64_t t) { return target.taps[t].offset; };
      std::ranges::sort(taps, {}, offset);
      for (std::size_t k = 1; k < taps.size(); ++k) {
        if (offset(taps[k]) != offset(taps[k - 1]) + 1) return {};
      }
      first.push_back(offset(taps.front()));
      if (missing == 0) lowest = std::min(first.back(), lowest.value_or(first.back()));
    }
  }
  if (firsts.empty() || sources == 0 || !lowest || !everything_reads(map)) return {};
  // A tap that is missing is the first one if tiles need not begin earlier for it, otherwise the last.
  for (std::size_t target = 0; target < firsts.size(); ++target) {
    for (std::size_t s = 0; s < firsts[target].size(); ++s) {
      auto& taps = fast.taps[target][s];
      if (static_cast<int>(taps.size()) == scheme.taps) continue;
      const bool begins_later = firsts[target][s] > *lowest;
      taps.insert(begins_later ? taps.begin() : taps.end(), kNoTap);
      firsts[target][s] -= begins_later ? 1 : 0;
    }
  }
  for (std::size_t s = 0; s < sources; ++s) {
    std::optional<std::int64_t> base;
    for (const auto& first : firsts) {
      if (!first.empty()) base = std::min(first[s], base.value_or(first[s]));
    }
    fast.bases.push_back(*base);
  }
  for (const auto& first : firsts) {
    fast.shifts.push_back(first.empty() ? 0 : first[0] - fast.bases[0]);
    for (std::size_t s = 1; s < first.size(); ++s) {
      if (first[s] - fast.bases[s] != fast.shifts.back()) return {};
    }
  }
  fast.starts.resize(fast.shifts.size(), 0);
  return fast;
}

}  // namespace

std::int64_t FastAxis::most_shift() const { return std::ranges::max(shifts); }

std::int64_t FastAxis::groups() const {
  std::int64_t count = 0;
  for (const auto& by_source : taps) count += std::ssize(by_source);
  return count;
}

int points_of(const FastAxes& fast) {
  int points = 1;
  for (const FastAxis& each : fast) points *= kSchemes[each.scheme].points;
  return points;
}

namespace {

double left_along(const FastAxis& fast, const AxisMap& map, bool shifted) {
  const Scheme& scheme = kSchemes[fast.scheme];
  const std::int64_t tiles = ceil_div(map.cells + (shifted ? fast.most_shift() : 0), scheme.outputs);
  std::int64_t taps = 0;
  std::int64_t points = 0;
  for (const auto& by_source : fast.taps) {
    for (const auto& neighbours : by_source) {
      const std::int64_t missing = std::ranges::count(neighbours, kNoTap);
      taps += scheme.taps - missing;
      points += scheme.points - missing;
    }
  }
  return static_cast<double>(tiles * points) / static_cast<double>(map.cells * taps);
}

// The same, with what five points cost.
double cost_along(const FastAxis& fast, const AxisMap& map, bool shifted) {
  return left_along(fast, map, shifted) * (kSchemes[fast.scheme].points == 5 ? kFivePoints : 1);
}

bool is_incomplete(const FastAxis& fast) {
  return std::ranges::any_of(fast.taps, [](const auto& by_source) {
    return std::ranges::any_of(by_source, [](const auto& taps) { return std::ranges::count(taps, kNoTap) > 0; });
  });
}

// Combined weights that the taps of the axis become.
std::int64_t combined_along(const FastAxis& fast) { return fast.groups() * kSchemes[fast.scheme].points; }

// The axis other than `taken` that saves most with one of the schemes from `first` on.
std::optional<FastAxis> best_axis(const AxisMaps& maps, const FastSearch& search, int taken, std::size_t first) {
  std::optional<FastAxis> best;
  double least = kMostOfTwo;
  for (const int axis : {1, 0, 2}) {
    if (axis == taken) continue;
    for (std::size_t s = first; s < kSchemes.size(); ++s) {
      const bool five = kSchemes[s].points == 5;
      if (five && std::min(search.sources, search.targets) < kFewestOfFive) continue;
      if (kSchemes[s].taps == 2 && std::min(search.sources, search.targets) < search.fewest_of_two) continue;
      std::optional<FastAxis> fast = neighbours_along(maps[axis], kSchemes[s], search.incomplete);
      if (!fast) continue;
      if (kSchemes[s].taps == 3 && std::max(search.sources, search.targets) < search.fewest_of_three) continue;
      const bool few = search.sources * search.targets < search.fewest_incomplete * (search.sources + search.targets);
      const bool too_few = few || search.targets < search.targets_of_incomplete;
      if (too_few && kSchemes[s].taps == 2 && is_incomplete(*fast)) continue;
      fast->axis = axis;
      fast->scheme = s;
      const double left = cost_along(*fast, maps[axis], search.shifted);
      if (left >= least) continue;
      least = kAnotherAxis * left;
      best = std::move(fast);
    }
  }
  return best;
}

// Whether the products that are saved for so many cells outweigh combining the weights.
bool pays_for_weights(const FastAxes& fast, const AxisMaps& maps, std::int64_t cells, double left, double cost) {
  std::int64_t taps = 1;
  std::int64_t combined = 1;
  for (int a = 0; a < kSpatialAxes; ++a) {
    std::int64_t along = 0;
    for (const AxisTarget& target : maps[a].targets) along += static_cast<std::int64_t>(target.taps.size());
    const auto on_axis = std::ranges::find(fast, a, &FastAxis::axis);
    taps *= along;
    combined *= on_axis == fast.end() ? along : combined_along(*on_axis);
  }
  return static_cast<double>(cells * taps) * (1 - left) >= cost * static_cast<double>(combined);
}

}  // namespace

double products_left(const FastAxes& fast, const AxisMaps& maps) {
  double left = 1;
  for (const FastAxis& each : fast) left *= left_along(each, maps[each.axis], true);
  return left;
}

FastAxes find_fast_axes(const AxisMaps& maps, const FastSearch& search) {
  if (std::min(search.sources, search.targets) < kFewestChannels) return {};
  std::int64_t cells = search.images;
  std::int64_t depth = search.sources;  // in the phase with the fewest taps
  for (const AxisMap& map : maps) {
    cells *= map.cells;
    std::size_t fewest = most_taps(map);
    for (const AxisTarget& target : map.targets) {
      if (!target.taps.empty()) fewest = std::min(fewest, target.taps.size());
    }
    depth *= static_cast<std::int64_t>(fewest);
  }
  if (cells < kFewestCells || depth < kFewestDepth) return {};
  std::optional<FastAxis> first = best_axis(maps, search, kSpatialAxes, 0);
  if (!first) return {};
  std::optional<FastAxis> second;
  if (cells >= kFewestOfTwo) second = best_axis(maps, search, first->axis, kFirstAtFour);
  FastAxes fast = {std::move(*first)};
  if (second) fast.push_back(std::move(*second));
  double left = 1;
  for (const FastAxis& each : fast) left *= cost_along(each, maps[each.axis], search.shifted);
  if (left >= kMostLeft) return {};
  const double cost = std::ranges::any_of(fast, is_incomplete) ? kIncompleteCost : search.weight_cost;
  if (!pays_for_weights(fast, maps, cells, left, cost)) return {};
  return fast;
}

std::int64_t targets_of_block(const Roles& roles, std::int64_t most) {
  return std::min(round_up(even_parts(roles.target_channels, most), kMostLanes), roles.target_channels);
}

FastWeights choose_fast_weights(const AxisMaps& maps, const Problem& problem, const Roles& roles, bool by_phase) {
  FastSearch search{roles.source_channels, roles.target_channels};
  // What a sample's output is may not depend on how many there are; its gradient may.
  if (problem.direction == Direction::grad_input) search.images = problem.batch;
  search.incomplete = true;
  search.weight_cost = kWeightCost;
  std::size_t lattices = 1;  // of source and target: where they are many, packing takes longer than all else
  for (const AxisMap& map : maps) lattices *= static_cast<std::size_t>(filled_targets(map)) * map.sources.size();
  const bool side_by_side = roles.source_strides[1] == 1 && roles.target_strides[1] == 1;
  search.fewest_of_two = side_by_side || lattices > kFewLattices ? kFewestChannels : kFewestOfTwoTaps;
  const bool several_phases = problem.direction == Direction::forward && lattices > 1;
  const bool several_lattices = problem.direction == Direction::grad_input && lattices > 1;
  if (most_taps(maps[0]) == 1) {  // otherwise combined rows are multiplied more often
    const std::int64_t products = roles.source_channels * roles.target_channels;
    const std::int64_t moved = roles.source_channels + roles.target_channels;
    if (side_by_side && several_phases && products < kFewestOfPhases * moved) return {};
    if (!side_by_side) search.fewest_of_three = kFewestOfThreeTaps;
  }
  search.fewest_incomplete = side_by_side && several_phases ? kFewestIncompleteInPlace : kFewestIncomplete;
  if (side_by_side && several_lattices) search.targets_of_incomplete = kFewestOfLattices;
  FastWeights chosen{find_fast_axes(maps, search)};
  FastAxes& axes = chosen.axes;
  if (axes.empty()) return {};
  if (side_by_side && several_phases && roles.target_channels % kMostLanes == 0 && kSchemes[axes[0].scheme].taps == 2) {
    const std::int64_t fewest = most_taps(maps[0]) > 1 ? kFewestOfTwoInVolumes : kFewestOfTwoInPlace;
    if (roles.source_channels * roles.target_channels < fewest * (roles.source_channels + roles.target_channels)) {
      return {};
    }
  }
  // What two taps save for few target channels is lost where combined rows, whole vectors of source channels, are idle
  // for more than an eighth.
  if (side_by_side && several_lattices && kSchemes[axes[0].scheme].taps == 2 && roles.target_channels <= kFewColumns &&
      7 * round_up(roles.source_channels, kMostLanes) > 8 * roles.source_channels) {
    return {};
  }
  std::int64_t all = element_count(problem.weight_sizes());
  for (const FastAxis& each : axes) {
    all = all / problem.axes[each.axis].kernel * combined_along(each);
  }
  std::int64_t phases = 1;
  for (const AxisMap& map : maps) phases *= filled_targets(map);
  const std::int64_t tensors = element_count(problem.input_sizes()) + element_count(problem.output_sizes());
  const std::int64_t share = tensors / kRoomForWeights;
  for (const std::int64_t room : {share, std::max(share, kFewWeights)}) {
    chosen.room = room;
    chosen.targets = targets_of_block(roles, kMostTargets);
    if (all <= room) return chosen;
    // A block of targets at a time, and a phase: what is combined anew for each of them must not be much.
    const std::int64_t of_a_target = all / roles.target_channels / roles.groups / (by_phase ? phases : 1);
    const bool shared = room == share && !by_phase;
    const std::int64_t fewest = shared ? std::max(kFewestTargets / phases, kFewestOfPhase) : kFewestTargets;
    for (std::int64_t most = kMostTargets; most >= fewest; most /= 2) {
      chosen.targets = targets_of_block(roles, most);
      if (of_a_target * chosen.targets > room) continue;
      chosen.at_once = false;
      return chosen;
    }
  }
  chosen.at_once = false;
  chosen.held = false;
  return chosen;
}

AxisMaps with_room_for(const FastAxes& fast, AxisMaps maps) {
  for (const FastAxis& each : fast) {
    const Scheme& scheme = kSchemes[each.scheme];
    AxisMap& map = maps[each.axis];
    map.unit = scheme.outputs;
    // Whole tiles from the first cell on, one more for cells that are shifted, and what the last one reads beyond.
    const std::int64_t shifted = round_up(each.most_shift(), scheme.outputs);
    map.highest = std::max(map.highest, std::ranges::max(each.bases) + shifted + scheme.taps - 1);
  }
  return maps;
}

FastAxes phase_by_phase(FastAxes fast) {
  for (FastAxis& each : fast) {
    each.starts = each.shifts;
    std::ranges::fill(each.shifts, 0);
  }
  return fast;
}

std::string describe_axes(const FastAxes& fast) {
  constexpr std::array kNames = {"depth", "height", "width"};
  std::string text;
  for (const FastAxis& each : fast) {
    const Scheme& scheme = kSchemes[each.scheme];
    if (!text.empty()) text += " and ";
    text += std::to_string(scheme.points) + " products for " + std::to_string(scheme.outputs) + " cells of " +
            std::to_string(scheme.taps) + " taps along the " + kNames[each.axis];
  }
  return text;
}

FastLine::FastLine(const FastAxes& fast, std::size_t levels, const AxisMaps& maps, const TileShape& shape)
    : pitch(shape.pitch) {
  std::array<bool, kSpatialAxes> combined{};
  for (std::size_t level = 0; level < levels; ++level) {
    const int axis = fast[level].axis;
    pitch[axis] = ceil_div(shape.block[axis] + fast[level].most_shift(), kSchemes[fast[level].scheme].outputs);
    combined[axis] = true;
  }
  steps = {pitch[1] * pitch[2], pitch[2], 1};
  image_step = pitch[0] * steps[0];
  for (int a = 0; a < kSpatialAxes; ++a) {
    if (!combined[a] && maps[a].lowest < 0) lead -= place(maps, shape, a, maps[a].lowest);
  }
  size = lead + shape.images * image_step + 1;
}

std::vector<FastLine> fast_lines(const FastAxes& fast, const Tiling& tiling) {
  std::vector<FastLine> lines;
  for (std::size_t level = 1; level <= fast.size(); ++level) {
    lines.emplace_back(fast, level, tiling.maps(), tiling.shape());
  }
  return lines;
}

TapGroups::TapGroups(const PhaseTile& phase, const FastAxes& fast, const FastLine& line, const Tiling& tiling) {
  const AxisMaps& maps = tiling.maps();
  // Of each axis, of which taps: one after the other, or those of a source lattice of a fast axis together.
  std::array<std::vector<std::vector<std::int64_t>>, kSpatialAxes> choices;
  Triple counts{};  // taps of each axis
  for (int a = 0; a < kSpatialAxes; ++a) {
    const auto same = [&](const AxisTarget& target) { return target.lattice.first == phase.lattice[a].first; };
    const auto which = std::ranges::find_if(maps[a].targets, same) - maps[a].targets.begin();
    counts[a] = static_cast<std::int64_t>(maps[a].targets[which].taps.size());
    const auto on_axis = std::ranges::find(fast, a, &FastAxis::axis);
    if (on_axis != fast.end()) {
      choices[a] = on_axis->taps[which];
    } else {
      for (std::int64_t t = 0; t < counts[a]; ++t) choices[a].push_back({t});
    }
  }
  for (const FastAxis& each : fast) {
    const auto& targets = maps[each.axis].targets;
    const auto same = [&](const AxisTarget& target) { return target.lattice.first == phase.lattice[each.axis].first; };
    const auto which = std::ranges::find_if(targets, same) - targets.begin();
    shifts.push_back(each.shifts[which]);
    starts.push_back(each.starts[which]);
  }
  const Triple steps = {counts[1] * counts[2], counts[2], 1};  // of the taps of the phase
  for (const auto& d : choices[0]) {
    for (const auto& h : choices[1]) {
      for (const auto& w : choices[2]) {
        const std::array<const std::vector<std::int64_t>*, kSpatialAxes> taps = {&d, &h, &w};
        TapGroup group;
        const auto tap_at = [&](std::int64_t first, std::int64_t second) {
          std::int64_t tap = 0;
          for (int a = 0; a < kSpatialAxes; ++a) {
            std::int64_t which = 0;
            if (a == fast[0].axis) which = first;
            if (fast.size() > 1 && a == fast[1].axis) which = second;
            if ((*taps[a])[which] == kNoTap) return kNoTap;
            tap += (*taps[a])[which] * steps[a];
          }
          return tap;
        };
        std::size_t index = 0;
        const std::int64_t seconds = fast.size() > 1 ? kSchemes[fast[1].scheme].taps : 1;
        for (std::int64_t second = 0; second < seconds; ++second) {
          for (std::int64_t first = 0; first < kSchemes[fast[0].scheme].taps; ++first) {
            group.taps[index++] = tap_at(first, second);
          }
        }
        const int last = kSchemes[fast[0].scheme].points - 1;
        const int second_points = fast.size() > 1 ? kSchemes[fast[1].scheme].points : 1;
        for (int point = 0; point < points_of(fast); ++point) {
          const auto is_zero = [&](int level, int along, int last_along) {
            const auto& neighbours = *taps[fast[level].axis];
            return (along == 0 && neighbours.front() == kNoTap) || (along == last_along && neighbours.back() == kNoTap);
          };
          const bool zero = is_zero(0, point / second_points, last) ||
                            (fast.size() > 1 && is_zero(1, point % second_points, second_points - 1));
          group.zero_at.set(point, zero);
        }
        const Tap& tap = phase.taps[*std::ranges::find_if(group.taps, [](std::int64_t t) { return t != kNoTap; })];
        group.source = tap.source;
        group.shift = tap.shift;
        for (int a = 0; a < kSpatialAxes; ++a) {
          if (std::ranges::find(fast, a, &FastAxis::axis) == fast.end()) {
            group.offset += line.place(maps, tiling.shape(), a, tap.shift[a]);
          }
        }
        all.push_back(group);
      }
    }
  }
}

std::int64_t choose_cells(const FastAxes& fast, const AxisMaps& maps, std::int64_t batch, const TileWish& wish,
                          const Caches& caches) {
  const std::int64_t points = points_of(fast);
  for (std::int64_t cells = kLargestTile;; cells -= cells / 4) {
    const TileShape shape(maps, batch, cells);
    const FastLine line(fast, fast.size(), maps, shape);
    const bool fits = line.size * points * wish.width <= caches.elements(kCacheShare);
    const bool feeds = shape.tiles >= wish.tiles || cells <= kSmallTile;
    if ((fits && feeds) || cells <= std::max<std::int64_t>(wish.fewest, points)) return cells;
  }
}

std::int64_t even_cells(const AxisMaps& maps, std::int64_t batch, std::int64_t cells, std::int64_t most,
                        std::int64_t tasks_of_tile, std::int64_t threads, std::int64_t tile_cost) {
  const auto time_of = [&](std::int64_t each) {
    const TileShape shape(maps, batch, each);
    const std::int64_t tile = shape.images * shape.block[0] * shape.block[1] * shape.block[2];
    return ceil_div(shape.tiles * tasks_of_tile, threads) * (tile + tile_cost);
  };
  std::int64_t all = batch;
  for (const AxisMap& map : maps) all *= map.cells;
  const std::int64_t tiles = TileShape(maps, batch, cells).tiles;
  std::int64_t best = cells;
  for (std::int64_t count = ceil_div(all, std::max(most, cells)); count <= tiles + threads; ++count) {
    const std::int64_t each = std::max<std::int64_t>(ceil_div(all, count), 1);
    if (kWorthCutting * static_cast<double>(time_of(best)) > static_cast<double>(time_of(each))) best = each;
  }
  return best;
}

}  // namespace tconv::cpu
