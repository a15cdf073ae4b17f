#include "cpu/blocking.h"

#include <algorithm>

namespace tconv::cpu {
namespace {

// Shares of the L2 cache: of the tile of results, of the packed source of a task, of weights that stay there.
constexpr double kSumsShare = 0.5;
constexpr double kSumsShareAlone = 0.8;  // where each task packs its own weights: the fewer tiles the better
constexpr double kSourceShare = 0.4;
constexpr double kSourceShareGroups = 0.5;  // where groups are interleaved: packing costs more than anything else
constexpr double kWeightsShare = 0.4;
// Of the weights that a task packs for itself and multiplies by all cells. Threads have no weights in common then,
// which cost as much to hand over as packing does.
constexpr double kOwnWeightsShare = 0.5;
constexpr double kMostIdle = 1.1;
constexpr std::int64_t kFewestInRow = 32;     // cells of a piece of a row that is cut
constexpr std::int64_t kFewestCells = 64;     // fewer leave too little to do for what is packed
constexpr std::int64_t kTasksWanted = 16;     // no more are needed to keep the threads busy
constexpr std::int64_t kPanel = 14;           // target channels are cut at multiples of this
constexpr std::int64_t kRoomForWeights = 12;  // packed ones: one part in this of input and output

constexpr std::int64_t kWidestPanel = kMostVectors * kMostLanes;
constexpr std::int64_t kManyTargets = 32;  // channels that fill wide register tiles
constexpr double kMostRead = 0.7;          // of the products of a layer that leaves many of them out
// Channels added up before the next tap's, where they have to be packed and where they are read in place.
constexpr std::int64_t kMostTogether = 128;
constexpr std::int64_t kMostInPlace = 1024;
constexpr std::int64_t kMostRounded = 4096;   // multiply-adds of a sum of pairs that is rounded at once
constexpr std::int64_t kPanelWeights = 4096;  // of a target channel, packed at a time

// In cycles, roughly.
constexpr double kTaskCost = 3000;
constexpr double kTeamCost = 20000;  // of waking other threads, where there is more than one task
constexpr double kRowCost = 25;      // of a row of the source, however short
// Of a weight that comes from the L2 cache, or from beyond it.
constexpr double kNearWeight = 0.06;
constexpr double kFarWeight = 0.3;
constexpr double kOwnWeight = 4;   // of packing one, where each task packs its own: it leaves the caches meanwhile
constexpr double kCellCost = 0.2;  // of a cell and tap, in front of each block of targets

// Of the phase that has most.
std::int64_t most_taps(const AxisMaps& maps) {
  std::int64_t taps = 1;
  for (const AxisMap& map : maps) {
    std::size_t most = 0;
    for (const AxisTarget& target : map.targets) most = std::max(most, target.taps.size());
    taps *= static_cast<std::int64_t>(most);
  }
  return taps;
}

// Whether target channels that would be few columns, or leave much of their vectors idle, are better rows: cells are
// then the columns, packed as lines although channels lie side by side. A vector that they fill has little to lose, but
// is bound by what is broadcast.
bool rather_lines(const Roles& roles, const AxisMaps& maps, std::size_t lattices, std::int64_t taps) {
  constexpr std::int64_t kManyTaps = 12;
  constexpr std::size_t kMostLattices = 4;  // that are taken apart
  constexpr std::int64_t kMostColumns = 2 * kMostLanes;
  constexpr double kWaste = 1.4;  // of columns, that is more than transposing costs
  if (roles.multiplies_pairs || taps == 1 || lattices > kMostLattices) return false;
  const std::int64_t targets = roles.target_channels;
  if (targets < kMostLanes) return true;
  const std::int64_t row = maps[kSpatialAxes - 1].cells;
  const std::int64_t columns = round_up(targets, kMostLanes);
  if (targets == kMostLanes && lattices == 1) {
    return (!roles.converts && row >= 2 * kMostLanes) || (roles.source_channels <= kMostLanes && taps >= kManyTaps);
  }
  return !roles.converts && columns <= kMostColumns && row >= kMostLanes &&
         static_cast<double>(columns) > kWaste * static_cast<double>(targets);
}

// The share of all products of cells and taps that read something, and no padding.
double share_that_reads(const AxisMaps& maps) {
  double share = 1;
  for (const AxisMap& map : maps) {
    std::int64_t all = 0;
    std::int64_t reading = 0;
    for (const AxisTarget& target : map.targets) {
      for (const AxisTap& tap : target.taps) {
        const std::int64_t end = std::min(target.lattice.count, map.sources[tap.source].count - tap.offset);
        all += target.lattice.count;
        reading += std::max<std::int64_t>(end - std::max<std::int64_t>(-tap.offset, 0), 0);
      }
    }
    share *= all == 0 ? 1 : static_cast<double>(reading) / static_cast<double>(all);
  }
  return share;
}

}  // namespace

AxisMaps maps_of(const Problem& problem) {
  AxisMaps maps;
  for (int a = 0; a < kSpatialAxes; ++a) {
    const Axis& axis = problem.axes[a];
    maps[a] = problem.direction == Direction::forward ? map_from_whole_output(axis) : map_from_input(axis);
  }
  // Where groups are interleaved, packing costs more than anything else, and products leave out what lies between rows.
  if (problem.direction == Direction::grad_input && Roles(problem).interleaved > 1) {
    maps[kSpatialAxes - 1].fewest_in_row = kFewestInRow;
  }
  return maps;
}

std::int64_t room_for_weights(const Problem& problem) {
  const std::int64_t element = problem.dtype == DType::f64 ? 8 : 4;
  const std::int64_t tensors = element_count(problem.input_sizes()) + element_count(problem.output_sizes());
  return tensors * static_cast<std::int64_t>(size_of(problem.dtype)) / kRoomForWeights / element;
}

std::int64_t channels_together(const AxisMaps& maps, const Roles& roles) {
  const std::int64_t taps = most_taps(maps);
  std::int64_t all_taps = 1;
  std::size_t sources = 1;
  for (const AxisMap& map : maps) {
    std::size_t all = 0;
    for (const AxisTarget& target : map.targets) all += target.taps.size();
    all_taps *= static_cast<std::int64_t>(all);
    sources *= map.sources.size();
  }
  const std::int64_t channels = roles.source_channels;
  if (roles.interleaved > 1) return even_parts(channels, kMostTogether);
  if (roles.stacked > 1) return 0;
  if (std::min(channels, roles.target_channels) < kMostLanes / 2) return 0;
  const bool side_by_side = roles.source_strides[1] == 1 && roles.target_strides[1] == 1;
  // Lines are multiplied with what lies around them, which single cells leave out.
  const std::int64_t many_targets = share_that_reads(maps) < kMostRead ? kMostLanes : kManyTargets;
  // Pairs, which save half of the products, pay for packing sooner.
  const bool pays = roles.multiplies_pairs ? roles.target_channels >= kMostLanes && channels * taps >= kLongSum / 2
                                           : roles.target_channels >= many_targets && channels * taps >= kLongSum;
  if (side_by_side ? rather_lines(roles, maps, sources, taps) : !pays) return 0;
  // Of several lattices no more than a long visit to the results needs: they are packed, and then read, in the cache.
  std::int64_t most = kMostTogether;
  if (sources > 1) {
    const std::int64_t enough = round_up(kDepthInPlace / std::max<std::int64_t>(taps, 1), kMostLanes);
    most = nearest_parts(channels, std::clamp(enough, kMostLanes, kMostTogether / 2));
  }
  if (side_by_side && (!roles.converts || roles.reads_pairs)) {
    const std::int64_t in_place = roles.reads_pairs ? 2 * kMostTogether : kMostTogether;
    most = sources > 1 ? in_place
                       : std::clamp(kPanelWeights / std::max<std::int64_t>(all_taps, 1), in_place, kMostInPlace);
  }
  return std::min(round_up(even_parts(channels, most), kMostLanes), channels);
}

bool fits_room(const Problem& problem, const Roles& roles, std::int64_t targets, std::int64_t taps) {
  return roles.stacked == 1 &&
         round_up(targets, kMostLanes) * roles.source_channels * taps <= room_for_weights(problem);
}

bool rounds_in_place(const AxisMaps& maps, const Roles& roles, std::int64_t together) {
  return together >= roles.source_channels && roles.reads_pairs && roles.interleaved == 1 &&
         roles.target_strides[1] == 1 && most_taps(maps) * together <= kMostRounded;
}

double column_cost(std::int64_t columns) {
  const std::int64_t vectors = ceil_div(columns, kMostLanes);
  const std::int64_t lonely = vectors % 2;
  return static_cast<double>((vectors - lonely) * kMostLanes) + 1.6 * static_cast<double>(lonely * kMostLanes);
}

// Counts the cycles of a group.
Blocking choose_blocking(const AxisMaps& maps, const Problem& problem, const Roles& roles, std::int64_t threads,
                         const Caches& caches) {
  std::int64_t phases = 1;
  std::int64_t sources = 1;
  std::int64_t taps = 1;
  std::int64_t cells = std::max<std::int64_t>(problem.batch, 1);
  for (const AxisMap& map : maps) {
    phases *= std::max<std::int64_t>(filled_targets(map), 1);
    sources *= std::max<std::int64_t>(static_cast<std::int64_t>(map.sources.size()), 1);
    cells *= std::max<std::int64_t>(map.cells, 1);
  }
  for (const Axis& axis : problem.axes) taps *= axis.kernel;
  const std::int64_t channels = std::max<std::int64_t>(roles.target_channels * roles.stacked, 1);
  const std::int64_t together = channels_together(maps, roles);
  const bool stacked = roles.stacked > 1;                                      // all of them are one block then
  const bool many = !stacked && (channels >= 2 * kMostLanes || together > 0);  // targets can be the columns
  const std::int64_t unit = many ? kMostLanes : kPanel;
  // Packed once, all of them or stage by stage; or by each task for itself.
  const bool rounds = rounds_in_place(maps, roles, together);
  const bool in_place = reads_in_place(roles, together) && (writes_in_place(roles, together) || rounds);
  const bool shared = in_place || element_count(problem.weight_sizes()) <= room_for_weights(problem);
  const auto with_targets = [&](Blocking blocking, std::int64_t targets) {
    blocking.target_blocks = ceil_div(channels, std::clamp<std::int64_t>(targets, 1, channels));
    const std::int64_t each = ceil_div(channels, blocking.target_blocks);
    // Whole vectors or, better, whole panels.
    const std::int64_t whole = channels % kWidestPanel == 0 && each > kWidestPanel ? kWidestPanel : kMostLanes;
    blocking.target_channels = std::min(round_up(each, many ? whole : 1), channels);
    blocking.target_blocks = ceil_div(channels, blocking.target_channels);
    return blocking;
  };
  // Weights that are packed stage by stage take as little room as panels allow.
  const bool in_stages = in_place && element_count(problem.weight_sizes()) > room_for_weights(problem);
  const auto most_targets = [&](std::int64_t tiles) {
    if (!in_stages) return channels;
    const std::int64_t depth = together * std::max<std::int64_t>(most_taps(maps), 1);
    const std::int64_t panels = room_for_weights(problem) / stages_at_once(tiles) / (depth * kWidestPanel);
    return std::max<std::int64_t>(panels, 1) * kWidestPanel;
  };
  const std::int64_t most_sums = caches.elements(shared ? kSumsShare : kSumsShareAlone);
  // Results that are written to the tensor once and for all need no room in the cache.
  const bool written_once = rounds || (together >= roles.source_channels && writes_in_place(roles, together) &&
                                       most_taps(maps) * together <= kDepthInPlace);
  const std::int64_t kept = written_once ? 1 : phases;
  const std::int64_t most_source = caches.elements(roles.interleaved > 1 ? kSourceShareGroups : kSourceShare);
  // Channels of the packed source at a time; no more than needed where all taps of a channel are added up at once.
  const std::int64_t packed_channels = stacked ? std::min(roles.source_channels, kStackedChannels) * roles.stacked
                                               : std::max<std::int64_t>(together * roles.interleaved / 2, 8);
  if (in_stages) {
    const std::int64_t depth = together * taps;
    const std::int64_t targets = caches.elements(kOwnWeightsShare) / depth / kWidestPanel * kWidestPanel;
    Blocking whole = with_targets({}, std::max(targets, kWidestPanel));
    whole.most_source = most_source;
    whole.channels_together = together;
    whole.cells = cells;
    const std::int64_t tasks = roles.groups * whole.target_blocks;
    const std::int64_t source = cells * sources * roles.cell_channels() * static_cast<std::int64_t>(sizeof(float));
    const bool fits = targets > 0 && source <= caches.last_bytes;
    if (fits && static_cast<double>(round_up(tasks, threads)) <= kMostIdle * static_cast<double>(tasks)) return whole;
  }
  Blocking best;
  double least = 0;
  for (std::int64_t parts = 1;; parts += ceil_div(parts, 3)) {
    Blocking blocking;
    blocking.most_source = most_source;
    blocking.channels_together = together;
    blocking.cells = ceil_div(cells, parts);
    const TileShape shape(maps, problem.batch, blocking.cells);
    const std::int64_t line = shape.images * shape.image_step;
    const bool last = blocking.cells <= kFewestCells;
    if (!last && (line * sources * packed_channels > most_source || shape.longest() * kept * kPanel > most_sums))
      continue;
    const auto tiles = static_cast<double>(shape.tiles);
    const auto weights = static_cast<double>(taps * channels);
    const double length = static_cast<double>(shape.longest());
    const double columns = column_cost(shape.longest());
    const bool near = taps * channels * roles.source_channels <= caches.elements(kWeightsShare);
    const double read_weights = weights * tiles * (near ? kNearWeight : kFarWeight);
    const double rows = static_cast<double>(line) / static_cast<double>(std::max<std::int64_t>(shape.block[2], 1));
    const double pack_source = static_cast<double>(sources * roles.interleaved * roles.stacked) *
                               (0.7 * static_cast<double>(line) + kRowCost * rows) * tiles;
    const double pack_rows = kCellCost * static_cast<double>(taps) * length * tiles;
    const std::int64_t room = std::min(most_sums / (kept * shape.longest()), most_targets(shape.tiles));
    if (stacked && !last && room < channels) continue;
    const std::int64_t whole = stacked ? channels : room >= unit ? room / unit * unit : room;
    for (std::int64_t targets = room >= channels ? channels : whole;; targets = ceil_div(targets, 2)) {
      blocking = with_targets(blocking, targets);
      const double filled =
          static_cast<double>(blocking.target_blocks * round_up(blocking.target_channels, kMostLanes)) /
          static_cast<double>(channels);
      const double multiply = weights * tiles * (many ? std::min(columns, 1.1 * length * filled) : columns) / 32;
      const std::int64_t tasks = ceil_div(roles.groups, roles.stacked) * blocking.target_blocks * shape.tiles;
      const bool in_blocks = !shared && shape.tiles > 1 && fits_room(problem, roles, blocking.target_channels, taps);
      const double pack_weights = weights * (shared || in_blocks ? 1 : tiles * kOwnWeight);
      // Threads wait for each other at the end of a stage, which is all tiles of one block.
      const std::int64_t at_once = (in_stages || in_blocks) && shape.tiles > 1 ? shape.tiles : tasks;
      const double idle = static_cast<double>(round_up(at_once, threads)) / static_cast<double>(at_once);
      const double team = tasks > 1 && threads > 1 ? kTeamCost : 0;
      const double cost = ((multiply + pack_weights + read_weights +
                            (pack_source + pack_rows) * static_cast<double>(blocking.target_blocks)) *
                               static_cast<double>(roles.source_channels) +
                           kTaskCost * static_cast<double>(blocking.target_blocks) * tiles) *
                              idle +
                          team;
      if (best.cells == 0 || cost < least) {
        least = cost;
        best = blocking;
        if (stacked) best.target_channels = roles.target_channels;
      }
      if (stacked || (tasks >= kTasksWanted && (shared || in_blocks)) || targets < 2 * unit) break;
    }
    if (last) return best;
  }
}

}  // namespace tconv::cpu
