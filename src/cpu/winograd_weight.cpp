// grad_weight in the "winograd" family: the transpose of forward. Along the fast axes, tiles of grad_output and of the
// input are combined; the products of their points, summed over all cells, are combined into the taps at the end:
//   sums[point][other taps][co][ci] = sum over cells of  combined grad_output[co][cell] combined input[ci][cell +
//   offset]
#include <algorithm>
#include <vector>

#include "cpu/packing.h"
#include "cpu/pair_weight.h"
#include "cpu/panels.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"
#include "cpu/weight_blocks.h"
#include "cpu/winograd_rows.h"

namespace tconv::cpu {
namespace {

using T = float;

constexpr std::int64_t kMostChannels = 128;  // of a block, input and output
// Elements of the sums of one block, all points: what the L2 cache holds, or more where the input would otherwise be
// combined for many blocks of outputs.
constexpr std::int64_t kNearSums = std::int64_t{1} << 18;
constexpr std::int64_t kMostSums = std::int64_t{1} << 19;
constexpr std::int64_t kFewBlocks = 2;
constexpr std::int64_t kFewestChannels = 64;  // that pay for combining two taps
constexpr std::int64_t kFewestTasks = 2;
constexpr std::int64_t kFewestIncomplete = 20;  // products of two channels that pay for combining incomplete lattices
constexpr std::int64_t kSmallBlock = 32;        // channels, that are not cut
constexpr std::int64_t kTilesWanted = 16;
constexpr double kWorthCombining = 0.85;  // products that are left where each phase combines the input for itself
// Products that combining an element of the input for one point takes as long as.
constexpr std::int64_t kPacking = 16;
constexpr std::int64_t kDepth = 128;  // cells between two visits to the sums

struct Memory {
  Scratch<T> packed;
  Scratch<T> half;  // combined along the first of two axes
  Scratch<T> input;
  Scratch<T> packed_grad;
  Scratch<T> grad;
  Scratch<T> sums;
};

template <typename E>
class WinogradWeight final : public Kernel {
 public:
  WinogradWeight(const Problem& problem, const FastAxes& fast, bool by_phase, const WeightBlocking& blocking,
                 Tiling tiling)
      : problem_(problem),
        fast_(fast),
        by_phase_(by_phase),
        points_(points_of(fast)),
        blocking_(blocking),
        tiling_(std::move(tiling)),
        lines_(fast_lines(fast, tiling_)),
        blocks_(problem, blocking, tiling_),
        source_(tiling_, fast, lines_, problem.input_strides, blocking.inputs,
                blocking.group_inputs % kMostLanes == 0) {
    for (const PhaseTile& phase : tiling_.phases()) {
      groups_before_.push_back(all_groups_);
      groups_.emplace_back(phase, fast_, lines_.back(), tiling_);
      all_groups_ += groups_.back().count();
    }
    grad_step_ = round_up(blocking.outputs, kMostLanes);
    grad_step_ += grad_step_ / kMostLanes % 2 == 0 ? kMostLanes : 0;
    grads_in_place_ =
        std::is_same_v<E, T> && problem.output_strides[1] == 1 && blocking.group_outputs % kMostLanes == 0;
  }

  std::size_t workspace_bytes() const { return blocks_.workspace_bytes(); }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const auto* input = static_cast<const E*>(buffers.input);
    const auto* grad = static_cast<const E*>(buffers.output);
    blocks_.run(buffers, execution, [&](const ChannelBlock& channels, std::int64_t split, T* block) {
      sum_cells(input, grad, channels, split, block);
    });
  }

  std::string describe() const override {
    return describe_axes(fast_) + ", blocks of " + std::to_string(blocking_.inputs) + " x " +
           std::to_string(blocking_.outputs) + " channels, " + std::to_string(tiling_.tiles()) + " tiles of up to " +
           std::to_string(tiling_.longest()) + " cells in " + std::to_string(blocks_.splits()) + " splits, " +
           target_name();
  }

 private:
  // Adds the tiles of one split to the block.
  void sum_cells(const E* input, const E* grad, const ChannelBlock& channels, std::int64_t split, T* block) const {
    thread_local Memory memory;
    const std::int64_t input_channel = channels.group * blocking_.group_inputs + channels.first_input;
    const std::int64_t output_channel = channels.group * blocking_.group_outputs + channels.first_output;
    const E* const first_input = input + input_channel * problem_.input_strides[1];
    const View<const E> grads{grad + output_channel * problem_.output_strides[1], problem_.output_strides,
                              channels.outputs};
    const std::int64_t size = blocking_.outputs * blocking_.inputs;  // of the sums of a group and point
    T* const combined = memory.input.get(source_.size());
    T* const combined_grad = memory.grad.get(points_ * lines_.back().size * grad_step_);
    const std::int64_t first_tile = tiling_.tiles() * split / blocks_.splits();
    const std::int64_t last_tile = tiling_.tiles() * (split + 1) / blocks_.splits();
    std::int64_t combined_tile = -1;  // of which the input is combined, for tiles that begin so
    const std::vector<std::int64_t>* combined_starts = nullptr;
    // All phases at a time, or those of a row.
    const std::size_t together = by_phase_ ? tiling_.row_phases() : groups_.size();
    for (std::size_t first = 0; first < groups_.size(); first += together) {
      const std::size_t last = first + together;
      const std::int64_t groups = (last < groups_.size() ? groups_before_[last] : all_groups_) - groups_before_[first];
      T* const sums = memory.sums.get(groups * points_ * size);
      std::fill_n(sums, groups * points_ * size, T{0});
      for (std::int64_t index = first_tile; index < last_tile; ++index) {
        const Tile tile = tiling_.tile(index);
        const T* const packed = source_.pack(tiling_, tile, first_input, channels.inputs, memory.packed);
        const T* packed_grad = nullptr;  // of a row of phases
        for (std::size_t p = first; p < last; ++p) {
          // Neighbouring phases often begin at the same cells.
          if (index != combined_tile || groups_[p].starts != *combined_starts) {
            source_.combine(tiling_, tile, first_input, packed, channels.inputs, groups_[p].starts, memory.half,
                            combined);
            combined_tile = index;
            combined_starts = &groups_[p].starts;
          }
          const std::int64_t of_row = static_cast<std::int64_t>(p) % tiling_.row_phases();
          if (!grads_in_place_ && of_row == 0) packed_grad = pack_grads(tile, p, grads, memory.packed_grad);
          const T* const phase_grad = grads_in_place_ ? nullptr : packed_grad + of_row * tile.length * grad_step_;
          const Triple cells = tiling_.cells_of(tile, tiling_.phases()[p]);
          if (cells[0] * cells[1] * cells[2] == 0) continue;
          combine_grad(tile, p, cells, grads, phase_grad, memory.half, combined_grad);
          multiply(tile, p, cells, channels, combined_grad, combined,
                   sums + (groups_before_[p] - groups_before_[first]) * points_ * size);
        }
      }
      for (std::size_t p = first; p < last; ++p) {
        const auto taps = static_cast<std::int64_t>(tiling_.phases()[p].taps.size());
        for (std::int64_t g = 0; g < groups_[p].count(); ++g) {
          const T* const from = sums + (groups_before_[p] - groups_before_[first] + g) * points_ * size;
          for (std::int64_t output = 0; output < channels.outputs; ++output) {
            T* const to = block + blocks_.phase_begin(p) + output * taps * blocking_.inputs;
            store_sums(from + output * blocking_.inputs, size, groups_[p].all[g], to, memory.half);
          }
        }
      }
    }
  }

  // The points of a group, `size` apart, into its taps.
  void store_sums(const T* from, std::int64_t size, const TapGroup& group, T* to, Scratch<T>& memory) const {
    const Scheme& first = kSchemes[fast_[0].scheme];
    const Scheme second = fast_.size() > 1 ? kSchemes[fast_[1].scheme] : Scheme{1, 1, 1};
    const std::int64_t inputs = blocking_.inputs;
    Combine<T> job;
    job.count = inputs;
    if (fast_.size() > 1) {
      T* const half = memory.get(inputs * second.taps * first.points);
      for (int point = 0; point < first.points; ++point) {
        for (int q = 0; q < second.points; ++q) job.from[q] = from + (point * second.points + q) * size;
        for (int k = 0; k < second.taps; ++k) job.to[k] = half + (k * first.points + point) * inputs;
        winograd_ops().sums[fast_[1].scheme](job);
      }
      from = half;
      size = inputs;
    }
    for (int tap = 0; tap < second.taps; ++tap) {
      for (int point = 0; point < first.points; ++point) job.from[point] = from + (tap * first.points + point) * size;
      for (int k = 0; k < first.taps; ++k) {
        const std::int64_t which = group.taps[tap * first.taps + k];
        job.to[k] = which == kNoTap ? nullptr : to + which * inputs;
      }
      winograd_ops().sums[fast_[0].scheme](job);
    }
  }

  // The cells of the phases that alternate along rows, from phase `first` on, as lines [phase][position][channel].
  const T* pack_grads(const Tile& tile, std::size_t first, const View<const E>& grads, Scratch<T>& memory) const {
    std::vector<Runs> runs;
    std::vector<T*> lines;
    T* const packed = memory.get(tiling_.row_phases() * tile.length * grad_step_);
    for (std::int64_t i = 0; i < tiling_.row_phases(); ++i) {
      runs.push_back(target_runs(tiling_, tile, tiling_.phases()[first + i], grads.strides));
      lines.push_back(packed + i * tile.length * grad_step_);
    }
    const PackedSteps steps{1, grad_step_};
    if constexpr (std::is_same_v<E, T>) {
      const bool transposes = tiling_.row_phases() > 1 && grads.strides[1] != 1 && grads.strides[4] == 1;
      if (transposes && load_alternating(grads, runs, steps, lines)) return packed;
    }
    for (std::size_t i = 0; i < runs.size(); ++i) load_runs(grads, runs[i], steps, lines[i]);
    return packed;
  }

  // The cells of a phase in a tile as lines [point][position][channel], zero between them.
  void combine_grad(const Tile& tile, std::size_t phase, const Triple& cells, const View<const E>& grads,
                    const T* packed, Scratch<T>& half, T* to) const {
    CellRows rows;
    if constexpr (std::is_same_v<E, T>) {
      if (grads_in_place_) {
        rows = CellRows::in_tensor(grads.data, grads.strides, tiling_.phases()[phase].lattice, tile.image, tile.images);
        rows.origin = rows.low = tile.begin;
      }
    }
    if (!grads_in_place_) rows = CellRows::on_line(packed, tiling_, grad_step_, tile.images);
    for (int a = 0; a < kSpatialAxes; ++a) rows.high[a] = rows.low[a] + cells[a];
    rows.origin[fast_[0].axis] -= groups_[phase].shifts[0];
    combine_along_all(winograd_ops().grads, &Scheme::outputs, rows, fast_, lines_, -groups_[phase].shifts.back(),
                      grads_in_place_ ? grads.channels : round_up(grads.channels, kMostLanes), grad_step_, half, to);
  }

  void multiply(const Tile& tile, std::size_t phase, const Triple& cells, const ChannelBlock& channels, const T* grad,
                const T* input, T* sums) const {
    const MathOps<T>& math = math_ops<T>();
    const auto size = math.tile_for(channels.outputs, channels.inputs);
    const std::int64_t panel = size.vectors * math.lanes;
    const FastLine& line = lines_.back();
    std::vector<std::int64_t> places;
    MultiplyLines<T> job;
    job.a_step = grad_step_;
    job.b_step = source_.cell_step();
    job.c_step = blocking_.inputs;
    job.places = places.data();
    for (std::int64_t g = 0; g < groups_[phase].count(); ++g) {
      const TapGroup& group = groups_[phase].all[g];
      const std::int64_t depth = rows_of(tile, phase, cells, group, places);
      if (depth == 0 || places.empty()) continue;
      job.depth = depth;
      const std::int64_t together = std::max<std::int64_t>(kDepth / depth, 1);
      const auto parts = static_cast<std::int64_t>(places.size());
      for (int point = 0; point < points_; ++point) {
        if (group.zero_at[point]) continue;  // of taps that are missing alone
        const T* const a = grad + (point * line.size + line.lead) * grad_step_;
        const T* const b = input + (point * line.size + line.lead + group.offset) * source_.cell_step();
        T* const c = sums + (g * points_ + point) * blocking_.outputs * blocking_.inputs;
        for (std::int64_t part = 0; part < parts; part += together) {
          job.places = places.data() + part;
          job.parts = std::min(together, parts - part);
          for (std::int64_t n = 0; n < channels.inputs; n += panel) {
            const std::int64_t vectors = panel_width(math, panel, channels.inputs, n) / math.lanes;
            job.b = b + n;
            for (std::int64_t m = 0; m < channels.outputs; m += size.rows) {
              job.a = a + m;
              job.c = c + m * blocking_.inputs + n;
              math.multiply_lines[std::min(size.rows, channels.outputs - m) - 1][vectors - 1](job);
            }
          }
        }
      }
    }
  }

  // Where the rows of a phase begin that read something through a group of taps; returns their length.
  std::int64_t rows_of(const Tile& tile, std::size_t phase, const Triple& cells, const TapGroup& group,
                       std::vector<std::int64_t>& places) const {
    Triple low{};
    Triple high = cells;
    for (int a = 0; a < kSpatialAxes; ++a) {
      const auto fast = std::ranges::find(fast_, a, &FastAxis::axis);
      if (fast != fast_.end()) {
        high[a] = ceil_div(cells[a] + groups_[phase].shifts[fast - fast_.begin()], kSchemes[fast->scheme].outputs);
        continue;
      }
      const std::int64_t first = tile.begin[a] + group.shift[a];
      low[a] = std::clamp<std::int64_t>(-first, 0, cells[a]);
      high[a] = std::clamp<std::int64_t>(tiling_.sources()[group.source][a].count - first, low[a], cells[a]);
    }
    const FastLine& line = lines_.back();
    places.clear();
    for (std::int64_t image = 0; image < tile.images; ++image) {
      for (std::int64_t d = low[0]; d < high[0]; ++d) {
        for (std::int64_t h = low[1]; h < high[1]; ++h) {
          places.push_back(image * line.image_step + d * line.steps[0] + h * line.steps[1] + low[2]);
        }
      }
    }
    return high[2] - low[2];
  }

  Problem problem_;
  FastAxes fast_;
  bool by_phase_ = false;  // the input is combined for each of them
  int points_ = 1;         // of all axes
  WeightBlocking blocking_;
  Tiling tiling_;
  std::vector<FastLine> lines_;  // of each level
  WeightBlocks<E, T> blocks_;
  CombinedSource<E> source_;
  std::vector<TapGroups> groups_;  // of each phase
  std::vector<std::int64_t> groups_before_;
  std::int64_t all_groups_ = 0;
  std::int64_t grad_step_ = 1;
  bool grads_in_place_ = false;  // a tensor whose channels lie side by side
};

}  // namespace

Proposal propose_winograd_weight(const Problem& problem, const DeviceProperties& device) {
  if (sums_pairs(problem)) return Proposal::decline("products of pairs of bfloat16 save more");
  AxisMaps plain;
  for (int a = 0; a < kSpatialAxes; ++a) plain[a] = map_from_output(problem.axes[a]);
  WeightBlocking blocking;
  blocking.groups = problem.groups;
  blocking.group_inputs = problem.in_channels_per_group();
  blocking.group_outputs = problem.out_channels_per_group();
  // Phases that share a combined input have shifted tiles; each by itself may need fewer of them.
  FastSearch search{blocking.group_inputs, blocking.group_outputs, problem.batch};
  search.incomplete = true;
  search.fewest_incomplete = kFewestIncomplete;
  FastAxes fast = find_fast_axes(plain, search);
  search.shifted = false;
  FastAxes apart = find_fast_axes(plain, search);
  const bool by_phase = products_left(phase_by_phase(apart), plain) < kWorthCombining * products_left(fast, plain);
  if (by_phase) fast = std::move(apart);
  if (fast.empty()) return Proposal::decline("no axis saves enough multiplications");
  const std::int64_t points = points_of(fast);
  std::int64_t groups = 1;  // of taps
  for (int a = 0; a < kSpatialAxes; ++a) {
    const auto on_axis = std::ranges::find(fast, a, &FastAxis::axis);
    groups *= on_axis == fast.end() ? problem.axes[a].kernel : on_axis->groups();
  }
  if (by_phase) groups = ceil_div(groups, static_cast<std::int64_t>(plain[0].targets.size() * plain[1].targets.size()));
  const auto cut = [](std::int64_t channels, std::int64_t most) {
    return round_up(ceil_div(channels, ceil_div(channels, most)), kMostLanes);
  };
  blocking.inputs = cut(blocking.group_inputs, kMostChannels);
  for (const std::int64_t sums : {kNearSums, kMostSums}) {
    const std::int64_t most = sums / (groups * points * blocking.inputs) / kMostLanes * kMostLanes;
    blocking.outputs = cut(blocking.group_outputs, std::clamp(most, kMostLanes, kMostChannels));
    if (ceil_div(blocking.group_outputs, blocking.outputs) <= kFewBlocks) break;
  }
  const auto count_blocks = [&] {
    blocking.input_blocks = ceil_div(blocking.group_inputs, blocking.inputs);
    blocking.output_blocks = ceil_div(blocking.group_outputs, blocking.outputs);
  };
  count_blocks();
  // Smaller blocks, whose inputs are combined again, rather than threads without any.
  const auto tasks = [&] {
    std::int64_t size = blocking.blocks() * blocking.inputs * blocking.outputs;
    for (const Axis& axis : problem.axes) size *= axis.kernel;
    return blocking.blocks() * std::max<std::int64_t>(room_for_partials(problem) / size, 1);
  };
  while (tasks() < kFewestTasks && std::max(blocking.inputs, blocking.outputs) > kSmallBlock) {
    if (blocking.outputs >= blocking.inputs) {
      blocking.outputs = cut(blocking.group_outputs, blocking.outputs / 2);
    } else {
      blocking.inputs = cut(blocking.group_inputs, blocking.inputs / 2);
    }
    count_blocks();
  }
  if (kSchemes[fast[0].scheme].taps == 2 && std::min(blocking.group_inputs, blocking.group_outputs) < kFewestChannels) {
    return Proposal::decline("two taps save too little for so few channels");
  }

  const AxisMaps maps = with_room_for(fast, plain);
  if (by_phase) fast = phase_by_phase(std::move(fast));
  TileWish wish;
  wish.width = blocking.inputs + blocking.outputs;
  // Tiles are for threads where there is room for partial sums; otherwise the fewer, the less often all sums are read.
  wish.tiles = tasks() > blocking.blocks() ? ceil_div(kTilesWanted, blocking.blocks()) : 1;
  const std::int64_t cells = choose_cells(fast, maps, problem.batch, wish, caches());
  Tiling tiling(maps, problem.batch, cells);
  if (tiling.plane_size() > kLongestLine) {
    return Proposal::decline("a packed line must not exceed " + std::to_string(kLongestLine) + " elements, got " +
                             std::to_string(tiling.plane_size()));
  }
  blocking.splits = choose_splits(problem, blocking, tiling.tiles());
  cut_for_threads(blocking, groups * points, std::max(device.threads, 1), kMostLanes, kPacking * points);
  return with_types(problem.dtype, [&]<typename E, typename Arithmetic> {
    Proposal proposal;
    if constexpr (std::is_same_v<Arithmetic, T>) {
      const auto kernel = std::make_shared<WinogradWeight<E>>(problem, fast, by_phase, blocking, tiling);
      proposal.workspace_bytes = kernel->workspace_bytes();
      proposal.kernel = kernel;
    }
    return proposal;
  });
}

}  // namespace tconv::cpu
