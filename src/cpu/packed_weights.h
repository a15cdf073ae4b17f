// The weights of forward and grad_input in the order in which the register tiles read them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "cpu/blocking.h"
#include "cpu/panels.h"
#include "cpu/simd.h"
#include "cpu/tile.h"
#include "cpu/word_weights.h"
#include "tconv/problem.h"

namespace tconv::cpu {

// A block of target channels of one group.
struct TargetBlock {
  std::int64_t group = 0;
  std::int64_t first = 0;
  std::int64_t targets = 0;
};

// The phases first <= phase < last.
struct PhaseRange {
  std::size_t first = 0;
  std::size_t last = 0;
};

// What the columns of the register tiles are, and so the order of the packed weights of a block of targets and a chunk
// of source channels, without gaps:
enum class WeightOrder {
  along_cells,      // cells: [phase][panel of targets][channel][tap][target of the panel]
  along_targets,    // targets: [phase][panel][channel][tap][target], the last panel filled with zeros to whole vectors
  channels_inside,  // targets, channels innermost in the source: [phase][panel][tap][channel][target]
  taps_inside,      // targets, taps innermost in the source: as along_targets
};

template <typename E, typename T>
class PackedWeights {
 public:
  PackedWeights() = default;
  PackedWeights(const Problem& problem, const Roles& roles, const Tiling& tiling, WeightOrder order)
      : roles_(roles), order_(order), longest_(tiling.longest()) {
    group_step_ = problem.in_channels_per_group() * problem.weight_strides[0];
    std::int64_t taps_so_far = 0;
    for (const PhaseTile& phase : tiling.phases()) {
      taps_before_.push_back(taps_so_far);
      taps_so_far += static_cast<std::int64_t>(phase.taps.size());
      std::vector<std::int64_t>& places = taps_.emplace_back();
      for (const Tap& tap : phase.taps) {
        std::int64_t place = 0;
        for (int a = 0; a < kSpatialAxes; ++a) place += tap.tap[a] * problem.weight_strides[2 + a];
        places.push_back(place);
      }
    }
  }

  // Targets that a block takes up.
  std::int64_t targets(std::int64_t count) const {
    return order_ == WeightOrder::along_cells ? count : round_up(count, kMostLanes);
  }
  // Taps of the phases before this one.
  std::int64_t taps_before(std::size_t phase) const { return taps_before_[phase]; }
  // Where the weights of a phase begin in those of a block and chunk, of which the phases from `first` on are packed.
  std::int64_t place_of_phase(const TargetBlock& block, std::int64_t channels, std::size_t phase,
                              std::size_t first = 0) const {
    return targets(block.targets) * channels * (taps_before_[phase] - taps_before_[first]);
  }
  std::int64_t taps_of(const PhaseRange& phases) const {
    std::size_t taps = 0;
    for (std::size_t phase = phases.first; phase < phases.last; ++phase) taps += taps_[phase].size();
    return static_cast<std::int64_t>(taps);
  }
  PhaseRange all_phases() const { return {0, taps_.size()}; }

  // The register tiles whose columns are target channels.
  MathOps<T>::TileSize tile_along_targets(const MathOps<T>& math, std::int64_t count) const {
    return order_ == WeightOrder::along_targets ? math.tile_for(longest_, count) : math.tile_for_cells(longest_, count);
  }

  void pack(const E* weight, const TargetBlock& block, std::int64_t first_channel, std::int64_t channels,
            const PhaseRange& phases, T* packed) const {
    if (roles_.interleaved > 1) return pack_interleaved(weight, block, first_channel, channels, phases, packed);
    pack_piece(weight, block, first_channel, channels, 0, channels, phases, packed);
  }

  // The same of some of these channels, begin <= channel < end; not of interleaved groups.
  void pack_piece(const E* weight, const TargetBlock& block, std::int64_t first_channel, std::int64_t channels,
                  std::int64_t begin, std::int64_t end, const PhaseRange& phases, T* packed) const {
    for_each_panel(weight, block, first_channel, channels, begin, end, phases, packed,
                   [](const PackWeights<E, T>& job) {
                     element_ops<E, T>().pack_weights(job);
                     return true;
                   });
  }

  // Channels innermost, two of them a word. False: not done, since it is better to pair what pack has put there.
  bool pack_pairs(const E* weight, const TargetBlock& block, std::int64_t first_channel, std::int64_t channels,
                  const PhaseRange& phases, T* packed) const {
    return for_each_panel(weight, block, first_channel, channels, 0, channels, phases, packed,
                          [](const PackWeights<E, T>& job) {
                            if (!packs_words(job)) return false;
                            pack_words(job);
                            return true;
                          });
  }

 private:
  // Some channels of a panel at a time, until one is not packed.
  template <typename Pack>
  bool for_each_panel(const E* weight, const TargetBlock& block, std::int64_t first_channel, std::int64_t channels,
                      std::int64_t begin, std::int64_t end, const PhaseRange& phases, T* packed,
                      const Pack& pack) const {
    const MathOps<T>& math = math_ops<T>();
    const bool inside = order_ == WeightOrder::channels_inside;
    const std::int64_t panel = panel_of(math, block.targets);
    const std::int64_t panels = ceil_div(block.targets, panel);
    const std::int64_t tap_count = taps_of(phases);
    std::vector<PackTap> taps(panels * tap_count);
    std::size_t index = 0;
    for (std::int64_t row = 0; row < block.targets; row += panel) {
      const std::int64_t width = width_of(math, panel, block.targets, row);
      for (std::size_t phase = phases.first; phase < phases.last; ++phase) {
        const auto count = static_cast<std::int64_t>(taps_[phase].size());
        const std::int64_t place = place_of_phase(block, channels, phase, phases.first) + row * channels * count;
        for (std::int64_t t = 0; t < count; ++t) {
          taps[index++] = {taps_[phase][t], place + (inside ? t * channels : t) * width, (inside ? 1 : count) * width};
        }
      }
    }
    PackWeights<E, T> job;
    job.channel_step = roles_.weight_source_step;
    job.tap_count = tap_count;
    job.whole_taps = std::all_of(taps.begin(), taps.end(),
                                 [&](const PackTap& tap) { return tap.from >= 0 && tap.from < job.tap_count; });
    job.target_step = roles_.weight_target_step;
    job.packed = packed;
    const E* const source = weight + block.group * group_step_ + first_channel * roles_.weight_source_step +
                            block.first * roles_.weight_target_step;
    // A few channels at a time where their targets lie together, so that memory is read in order.
    const bool in_order = std::abs(job.channel_step) > std::abs(job.target_step);
    const std::int64_t step = in_order ? std::int64_t{4} : channels;
    for (job.first_channel = begin; job.first_channel < end; job.first_channel += step) {
      job.channels = std::min(step, end - job.first_channel);
      for (std::int64_t p = 0; p < panels; ++p) {
        const std::int64_t row = p * panel;
        job.width = width_of(math, panel, block.targets, row);
        job.valid = std::min(job.width, block.targets - row);
        job.taps = taps.data() + p * tap_count;
        job.source = source + row * roles_.weight_target_step;
        if (!pack(job)) return false;
      }
    }
    return true;
  }

  // Targets of the panels of a block, and of one that begins at `row`.
  std::int64_t panel_of(const MathOps<T>& math, std::int64_t count) const {
    if (order_ == WeightOrder::along_cells) return math.tile_for(count, longest_).rows;
    return tile_along_targets(math, count).vectors * math.lanes;
  }
  std::int64_t width_of(const MathOps<T>& math, std::int64_t panel, std::int64_t count, std::int64_t row) const {
    return order_ == WeightOrder::along_cells ? std::min(panel, count - row) : panel_width(math, panel, count, row);
  }

  // The same with channels innermost in the source, of groups whose targets alternate.
  void pack_interleaved(const E* weight, const TargetBlock& block, std::int64_t first_channel, std::int64_t channels,
                        const PhaseRange& phases, T* packed) const {
    const MathOps<T>& math = math_ops<T>();
    const std::int64_t panel = panel_of(math, block.targets);
    for (std::size_t phase = phases.first; phase < phases.last; ++phase) {
      T* to = packed + place_of_phase(block, channels, phase, phases.first);
      for (std::int64_t row = 0; row < block.targets; row += panel) {
        const std::int64_t width = width_of(math, panel, block.targets, row);
        const std::int64_t valid = std::min(width, block.targets - row);
        for (const std::int64_t tap : taps_[phase]) {
          for (std::int64_t c = first_channel; c < first_channel + channels; ++c, to += width) {
            std::fill(to + valid, to + width, T{0});
            for (std::int64_t n = 0; n < std::min(valid, roles_.interleaved); ++n) {
              const std::int64_t column = block.first + row + n;
              const E* const from =
                  weight + tap + (block.group * roles_.interleaved + column % roles_.interleaved) * group_step_ +
                  c * roles_.weight_source_step + column / roles_.interleaved * roles_.weight_target_step;
              element_ops<E, T>().load(from, roles_.weight_target_step, to + n, roles_.interleaved,
                                       ceil_div(valid - n, roles_.interleaved));
            }
          }
        }
      }
    }
  }

  Roles roles_;
  WeightOrder order_ = WeightOrder::along_cells;
  std::int64_t longest_ = 1;                     // cells of a tile
  std::int64_t group_step_ = 0;                  // from the weights of a group to the next
  std::vector<std::vector<std::int64_t>> taps_;  // of each phase: where its taps lie in the weight
  std::vector<std::int64_t> taps_before_;        // of each phase: taps of the phases before it
};

}  // namespace tconv::cpu
