#include "cpu/axis_map.h"

#include <algorithm>

namespace tconv::cpu {
namespace {

// A single input never meets a second tap in any output, whatever the stride: with a stride that keeps the taps apart,
// every tap is a phase of its own and no multiplication is spent on the cells around the input.
Axis with_taps_apart(Axis axis) {
  if (axis.input == 1) axis.stride = axis.dilation * (axis.kernel - 1) + 1;
  return axis;
}

void measure(AxisMap& map) {
  bool first = true;
  for (const AxisTarget& target : map.targets) {
    map.cells = std::max(map.cells, target.lattice.count);
    for (const AxisTap& tap : target.taps) {
      map.lowest = first ? tap.offset : std::min(map.lowest, tap.offset);
      map.highest = first ? tap.offset : std::max(map.highest, tap.offset);
      first = false;
    }
  }
  for (const Lattice& source : map.sources) map.source_size = std::max(map.source_size, source.count);
}

}  // namespace

std::int64_t filled_targets(const AxisMap& map) {
  return std::ranges::count_if(map.targets, [](const AxisTarget& target) { return !target.taps.empty(); });
}

AxisMap map_from_output(const Axis& axis) {
  const Axis apart = with_taps_apart(axis);
  AxisMap map;
  map.sources = {{0, 1, apart.input}};
  for (const Phase& phase : phases(apart)) {
    AxisTarget target{{phase.first_output, apart.stride, phase.outputs}, {}};
    for (std::int64_t t = 0; t < phase.taps; ++t) {
      target.taps.push_back({phase.first_tap + t * phase.tap_step, 0, phase.first_input - t * phase.input_step});
    }
    map.targets.push_back(std::move(target));
  }
  // By position rather than by residue: neighbouring lattices interleave into whole rows.
  std::sort(map.targets.begin(), map.targets.end(),
            [](const AxisTarget& a, const AxisTarget& b) { return a.lattice.first < b.lattice.first; });
  measure(map);
  return map;
}

AxisMap map_from_whole_output(const Axis& axis) {
  constexpr std::int64_t kMostTargets = 32;
  AxisMap map = map_from_output(axis);
  if (axis.input == 1 || axis.stride > kMostTargets || map.targets.empty()) return map;
  std::vector<AxisTarget> all;
  std::size_t next = 0;
  for (std::int64_t first = 0; first < std::min(axis.stride, axis.output()); ++first) {
    if (next < map.targets.size() && map.targets[next].lattice.first == first) {
      all.push_back(std::move(map.targets[next++]));
    } else {
      all.push_back({{first, axis.stride, (axis.output() - 1 - first) / axis.stride + 1}, {}});
    }
  }
  map.targets = std::move(all);
  measure(map);
  return map;
}

AxisMap map_from_input(const Axis& axis) {
  const Axis apart = with_taps_apart(axis);
  AxisMap map;
  AxisTarget target{{0, 1, apart.input}, {}};
  for (const Phase& phase : phases(apart)) {
    const auto source = static_cast<std::int64_t>(map.sources.size());
    map.sources.push_back({phase.first_output, apart.stride, phase.outputs});
    for (std::int64_t t = 0; t < phase.taps; ++t) {
      target.taps.push_back({phase.first_tap + t * phase.tap_step, source, t * phase.input_step - phase.first_input});
    }
  }
  map.targets = {std::move(target)};
  measure(map);
  return map;
}

}  // namespace tconv::cpu
