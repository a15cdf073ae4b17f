// How forward and grad_input are cut into tiles and blocks of channels. The cut depends on the problem and the machine;
// what is computed does not depend on the cut.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "cpu/bf16_products.h"
#include "cpu/caches.h"
#include "cpu/panels.h"
#include "cpu/tile.h"
#include "tconv/problem.h"

namespace tconv::cpu {

// Target channels of a group that are too few for wide register tiles.
inline constexpr std::int64_t kSmallGroup = 16;

// Columns that are too few to be of several groups: their channels are lines rather.
inline constexpr std::int64_t kFewColumns = 2 * kMostLanes;

// How many groups are stacked (Roles::stacked): so many that either side has whole vectors of channels to transpose.
inline std::int64_t stack_of(std::int64_t channels, std::int64_t groups) {
  constexpr std::int64_t kWanted = 2 * kMostLanes;  // channels
  const std::int64_t each = std::max<std::int64_t>(channels, 1);
  const std::int64_t most = round_up(ceil_div(kWanted, each), kMostLanes / std::gcd(kMostLanes, each));
  return std::clamp<std::int64_t>(groups, 1, most);
}

// Source channels of a group that a stack of groups packs at a time: of most groups all of them.
inline constexpr std::int64_t kStackedChannels = 8;

// The problem with the names that forward and grad_input share. Small groups whose channels lie side by side are
// interleaved: one here is 2 or 4 of the problem, whose target channels alternate.
struct Roles {
  bool converts = false;          // elements are computed in another type
  bool multiplies_pairs = false;  // of bfloat16, if source channels are innermost
  bool reads_pairs = false;       // of those whose channels lie side by side: pairs as they are, none of them torn
  std::int64_t interleaved = 1;   // groups of the problem that are one here
  std::int64_t stacked = 1;       // groups here whose channels become lines, and lines channels again, together
  std::int64_t groups = 1;
  std::int64_t source_channels = 0;  // of a group of the problem: the length of a sum
  std::int64_t target_channels = 0;  // of all that are interleaved
  Strides source_strides{};
  Strides target_strides{};
  std::int64_t weight_source_step = 0;
  std::int64_t weight_target_step = 0;

  Roles() = default;
  explicit Roles(const Problem& problem) {
    const bool forward = problem.direction == Direction::forward;
    converts = size_of(problem.dtype) < sizeof(float);
    source_channels = forward ? problem.in_channels_per_group() : problem.out_channels_per_group();
    target_channels = forward ? problem.out_channels_per_group() : problem.in_channels_per_group();
    source_strides = forward ? problem.input_strides : problem.output_strides;
    target_strides = forward ? problem.output_strides : problem.input_strides;
    weight_source_step = problem.weight_strides[forward ? 0 : 1];
    weight_target_step = problem.weight_strides[forward ? 1 : 0];
    const bool side_by_side = source_strides[1] == 1 && target_strides[1] == 1;
    // Pairs of channels that are read and written in place, and fill a vector, want no others beside them.
    const bool in_pairs = problem.dtype == DType::bf16 && has_bf16_products() && source_channels % 2 == 0 &&
                          std::min(source_channels, target_channels) >= kMostLanes;
    if (side_by_side && !in_pairs && target_channels <= kSmallGroup && std::max(source_channels, target_channels) > 1) {
      const std::int64_t most = problem.dtype == DType::f64 ? kMostInterleaved<double> : kMostInterleaved<float>;
      for (interleaved = most; problem.groups % interleaved != 0;) interleaved /= 2;
      // Lines are multiplied faster than narrow columns are, but many channels of short pieces of lattices are slow to
      // transpose.
      const bool strided = std::ranges::any_of(problem.axes, [](const Axis& axis) { return axis.stride > 1; });
      const bool many_pieces = !forward && strided && source_channels >= kSmallGroup / 2;
      const std::int64_t few = many_pieces ? kMostLanes / interleaved : kSmallGroup;
      if (!converts && target_channels < few) {
        interleaved = 1;
        stacked = stack_of(std::min(source_channels, target_channels), problem.groups);
      }
    }
    groups = problem.groups / interleaved;
    target_channels *= interleaved;
    const auto even = [](std::int64_t step) { return step % 2 == 0; };
    multiplies_pairs = problem.dtype == DType::bf16 && has_bf16_products() && interleaved == 1;
    reads_pairs = multiplies_pairs && source_strides[1] == 1 && even(source_channels) && even(source_strides[0]) &&
                  even(source_strides[2]) && even(source_strides[3]) && even(source_strides[4]);
  }

  // Source channels of all that are interleaved.
  std::int64_t cell_channels() const { return source_channels * interleaved; }
  // The channel of the tensor that is target channel `first` of a group.
  std::int64_t first_target(std::int64_t group, std::int64_t first) const {
    return group * target_channels + first / interleaved;
  }
};

AxisMaps maps_of(const Problem& problem);

// Elements of packed weights that a call may hold.
std::int64_t room_for_weights(const Problem& problem);

// Stages of weights that share this room. With two, threads that have no tile left pack the next one; with many tiles
// they do not wait long, and larger stages read the source less often.
inline std::int64_t stages_at_once(std::int64_t tiles) {
  constexpr std::int64_t kFewTiles = 8;
  return tiles < kFewTiles ? 2 : 1;
}

// Whether all weights of a block of targets may be packed at a time, for all tiles: a stage.
bool fits_room(const Problem& problem, const Roles& roles, std::int64_t targets, std::int64_t taps);

// Where the packed source has its channels innermost: how many are added up before the next tap's. 0: it has not. This
// sets the order of the sums, so that it depends on the layer alone.
std::int64_t channels_together(const AxisMaps& maps, const Roles& roles);

// Whether tensors whose channels lie side by side are read, and written, where they are.
inline bool reads_in_place(const Roles& roles, std::int64_t together) {
  return together > 0 && roles.interleaved == 1 && (roles.converts ? roles.reads_pairs : roles.source_strides[1] == 1);
}
inline bool writes_in_place(const Roles& roles, std::int64_t together) {
  return together > 0 && !roles.converts && roles.interleaved == 1 && roles.target_strides[1] == 1 &&
         roles.target_channels % kMostLanes == 0;
}

// Whether sums of pairs are rounded and stored by the register tile that they are added up in, all of them at once.
bool rounds_in_place(const AxisMaps& maps, const Roles& roles, std::int64_t together);

// Multiply-adds between two visits to the results where cells are read in place: weights come from the L2 cache.
inline constexpr std::int64_t kDepthInPlace = 640;

inline constexpr std::int64_t kLongSum = 128;  // multiply-adds of a result that pay for transposing it

// The size of the parts that `count` is cut into, all about the same and none larger than `most`.
inline std::int64_t even_parts(std::int64_t count, std::int64_t most) {
  const std::int64_t all = std::max<std::int64_t>(count, 1);
  return ceil_div(all, ceil_div(all, std::max<std::int64_t>(most, 1)));
}

// The same where parts of about `enough` are wanted, a little larger or smaller: none is much smaller than that.
inline std::int64_t nearest_parts(std::int64_t count, std::int64_t enough) {
  const std::int64_t all = std::max<std::int64_t>(count, 1);
  return ceil_div(all, std::max<std::int64_t>((all + enough / 2) / enough, 1));
}

struct Blocking {
  std::int64_t cells = 0;  // of a tile
  std::int64_t target_channels = 0;
  std::int64_t target_blocks = 0;  // of a group; one where groups are stacked
  std::int64_t channels_together = 0;
  std::int64_t most_source = 0;  // elements of the packed source of a task
};

// Columns that a register tile pays for: a lonely last vector costs nearly as much as two.
double column_cost(std::int64_t columns);

// How many tiles and blocks of target channels, for so many threads and such caches.
Blocking choose_blocking(const AxisMaps& maps, const Problem& problem, const Roles& roles, std::int64_t threads,
                         const Caches& caches);

}  // namespace tconv::cpu
