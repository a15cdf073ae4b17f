// forward and grad_input: every target phase is a dense correlation of step one over the packed source,
//   target[ct][p] = sum over source channels and taps of  weight[cs][ct][tap] source[cs][p + offset(tap)],
// a matrix product whose second operand is read in place. Each element is one chain of multiply-adds in an order that
// depends on the layer alone (source channel, then tap), so neither threads nor blocking nor batch change a result.
#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "cpu/packing.h"
#include "cpu/phases_kernels.h"
#include "cpu/scalar.h"
#include "cpu/scratch.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kMostSums = std::int64_t{1} << 19;     // elements of the tile of results
constexpr std::int64_t kMostSource = std::int64_t{1} << 17;   // elements of the packed source
constexpr std::int64_t kMostWeights = std::int64_t{1} << 17;  // elements of the packed weights
constexpr std::int64_t kDepth = 512;                          // multiply-adds between two visits to the results
constexpr std::int64_t kMostChannels = 128;                   // source channels of one visit
constexpr std::size_t kManyPhases = 32;
constexpr std::int64_t kWeightLines = 1024;
constexpr std::int64_t kTasksWanted = 16;  // enough to keep the threads of a small machine busy

// The problem with the names that forward and grad_input share.
struct Roles {
  std::int64_t source_channels = 0;  // of a group
  std::int64_t target_channels = 0;
  Strides source_strides{};
  Strides target_strides{};
  std::int64_t weight_source_step = 0;
  std::int64_t weight_target_step = 0;

  explicit Roles(const Problem& problem) {
    const bool forward = problem.direction == Direction::forward;
    source_channels = forward ? problem.in_channels_per_group() : problem.out_channels_per_group();
    target_channels = forward ? problem.out_channels_per_group() : problem.in_channels_per_group();
    source_strides = forward ? problem.input_strides : problem.output_strides;
    target_strides = forward ? problem.output_strides : problem.input_strides;
    weight_source_step = problem.weight_strides[forward ? 0 : 1];
    weight_target_step = problem.weight_strides[forward ? 1 : 0];
  }
};

AxisMaps maps_of(const Problem& problem) {
  AxisMaps maps;
  for (int a = 0; a < kSpatialAxes; ++a) {
    const Axis& axis = problem.axes[a];
    maps[a] = problem.direction == Direction::forward ? map_from_output(axis) : map_from_input(axis);
  }
  return maps;
}

struct Blocking {
  std::int64_t cells = 0;  // of a tile
  std::int64_t target_channels = 0;
  std::int64_t target_blocks = 0;  // of a group
};

Blocking choose_blocking(const AxisMaps& maps, const Problem& problem, const Roles& roles) {
  std::int64_t phases = 1;
  std::int64_t sources = 1;
  std::int64_t cells = problem.batch;
  for (const AxisMap& map : maps) {
    phases *= std::max<std::int64_t>(static_cast<std::int64_t>(map.targets.size()), 1);
    sources *= std::max<std::int64_t>(static_cast<std::int64_t>(map.sources.size()), 1);
    cells *= std::max<std::int64_t>(map.cells, 1);
  }
  const std::int64_t channels = std::max<std::int64_t>(roles.target_channels, 1);
  Blocking blocking;
  blocking.cells = std::min({kMostSums / (phases * std::min<std::int64_t>(channels, 64)), kMostSource / (8 * sources),
                             std::int64_t{channels >= 16 ? 1024 : 4096}});
  const std::int64_t fewest = std::clamp<std::int64_t>(kMostSums / (phases * kRows), 1, 64);
  blocking.cells = std::max(blocking.cells, fewest);
  cells = std::max<std::int64_t>(cells, 1);
  const std::int64_t room = kMostSums / (phases * std::min(blocking.cells, cells)) * 4 / 5;
  blocking.target_channels = std::clamp<std::int64_t>(room / kRows * kRows, kRows, round_up(channels, kRows));
  // Few tasks: more blocks of target channels pack the source again, more tiles pack the weights again.
  std::int64_t taps = 1;
  for (const Axis& axis : problem.axes) taps *= axis.kernel;
  const bool source_is_cheap = 4 * sources * cells < taps * channels;
  const auto tasks = [&] {
    return problem.groups * ceil_div(channels, blocking.target_channels) * ceil_div(cells, blocking.cells);
  };
  const auto split_targets = [&] {
    while (tasks() < kTasksWanted && blocking.target_channels > 8 * kRows) {
      blocking.target_channels = round_up(blocking.target_channels / 2, kRows);
    }
  };
  if (source_is_cheap) split_targets();
  blocking.cells = std::min(blocking.cells, cells);
  while (tasks() < kTasksWanted && blocking.cells > 256) blocking.cells = ceil_div(blocking.cells, 2);
  split_targets();
  blocking.target_blocks = ceil_div(channels, blocking.target_channels);
  blocking.target_channels = round_up(ceil_div(channels, blocking.target_blocks), kRows);
  blocking.target_blocks = ceil_div(channels, blocking.target_channels);
  return blocking;
}

template <typename T>
struct Memory {
  Scratch<T> source;
  Scratch<T> weights;
  Scratch<T> sums;
  Scratch<std::int64_t> offsets;
};

template <typename E, typename T>
class Correlate final : public Kernel {
 public:
  Correlate(const Problem& problem, const Blocking& blocking, Tiling tiling)
      : problem_(problem), roles_(problem), blocking_(blocking), tiling_(std::move(tiling)) {
    for (const PhaseTile& phase : tiling_.phases()) {
      std::vector<std::int64_t>& steps = weight_taps_.emplace_back();
      for (const Tap& tap : phase.taps) {
        std::int64_t step = 0;
        for (int a = 0; a < kSpatialAxes; ++a) step += tap.tap[a] * problem.weight_strides[2 + a];
        steps.push_back(step);
      }
    }
    const bool forward = problem.direction == Direction::forward;
    std::int64_t all = 1;
    for (const Axis& axis : problem.axes) all *= forward ? axis.output() : axis.input;
    std::int64_t covered = 0;
    for (const PhaseTile& phase : tiling_.phases()) {
      covered += phase.lattice[0].count * phase.lattice[1].count * phase.lattice[2].count;
    }
    fills_first_ = covered < all || tiling_.all_taps() == 0 || roles_.source_channels == 0;
    empty_ = all == 0 || problem.batch == 0 || roles_.target_channels == 0;
    const auto sources = static_cast<std::int64_t>(tiling_.sources().size());
    const std::int64_t taps = std::max<std::int64_t>(tiling_.most_taps(), 1);
    chunk_ = std::min({kMostSource / std::max<std::int64_t>(sources * tiling_.plane_size(), 1),
                       kMostWeights / (taps * blocking.target_channels), std::max<std::int64_t>(kDepth / taps, 8),
                       kMostChannels, roles_.source_channels});
    // With a long kernel each phase takes one element of every cache line of the weights that it touches, and the next
    // phase the one beside it: few enough lines to be still there.
    if (tiling_.phases().size() > kManyPhases)
      chunk_ = std::min(chunk_, kWeightLines / (taps * blocking.target_channels));
    chunk_ = std::max<std::int64_t>(chunk_, 1);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    if (empty_) return;
    const bool forward = problem_.direction == Direction::forward;
    const Tensors tensors{static_cast<const E*>(forward ? buffers.input : buffers.output),
                          static_cast<const E*>(buffers.weight),
                          problem_.bias && forward ? static_cast<const E*>(buffers.bias) : nullptr,
                          static_cast<E*>(forward ? buffers.output : buffers.input)};
    if (fills_first_) fill_with_bias(tensors, execution);
    if (tiling_.all_taps() == 0 || roles_.source_channels == 0) return;
    const std::int64_t tasks = problem_.groups * blocking_.target_blocks * tiling_.tiles();
    parallel_for(execution, tasks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) run_task(tensors, task);
    });
  }

  std::string describe() const override {
    return std::to_string(tiling_.phases().size()) + " phases, " + std::to_string(tiling_.tiles()) +
           " tiles of up to " + std::to_string(tiling_.longest()) + " cells, " +
           std::to_string(blocking_.target_channels) + " target channels, " + std::to_string(chunk_) +
           " source channels a step, " + target_name();
  }

 private:
  struct Tensors {
    const E* source;
    const E* weight;
    const E* bias;
    E* target;
  };

  T bias_of(const Tensors& tensors, std::int64_t channel) const {
    T bias = 0;
    if (tensors.bias != nullptr) element_ops<E, T>().load(tensors.bias + channel, 1, &bias, 1, 1);
    return bias;
  }

  // For outputs that no tap reaches.
  void fill_with_bias(const Tensors& tensors, const Execution& execution) const {
    const bool forward = problem_.direction == Direction::forward;
    const Sizes sizes = forward ? problem_.output_sizes() : problem_.input_sizes();
    const Strides& strides = roles_.target_strides;
    const std::int64_t rows = sizes[0] * sizes[1] * sizes[2] * sizes[3];
    const ElementOps<E, T>& ops = element_ops<E, T>();
    parallel_for(execution, rows, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t h = row % sizes[3];
        const std::int64_t d = row / sizes[3] % sizes[2];
        const std::int64_t channel = row / (sizes[3] * sizes[2]) % sizes[1];
        const std::int64_t image = row / (sizes[3] * sizes[2] * sizes[1]);
        const T zero = 0;
        ops.store(&zero, 0,
                  tensors.target + image * strides[0] + channel * strides[1] + d * strides[2] + h * strides[3],
                  strides[4], sizes[4], bias_of(tensors, channel));
      }
    });
  }

  // The tile of results: [phase][m][n], where m, n are target channel and cell, or cell and target channel.
  struct Results {
    T* sums = nullptr;
    bool cells_are_columns = true;
    std::int64_t row_size = 0;
    std::int64_t phase_size = 0;

    std::int64_t channel_step() const { return cells_are_columns ? row_size : 1; }
    std::int64_t cell_step() const { return cells_are_columns ? 1 : row_size; }
  };

  void run_task(const Tensors& tensors, std::int64_t task) const {
    thread_local Memory<T> memory;
    const std::int64_t block = task % blocking_.target_blocks;
    const Tile tile = tiling_.tile(task / blocking_.target_blocks % tiling_.tiles());
    const std::int64_t group = task / (blocking_.target_blocks * tiling_.tiles());
    const std::int64_t first_target = block * blocking_.target_channels;
    const std::int64_t targets = std::min(blocking_.target_channels, roles_.target_channels - first_target);
    const MathOps<T>& math = math_ops<T>();
    const auto phases = static_cast<std::int64_t>(tiling_.phases().size());
    const auto sources = static_cast<std::int64_t>(tiling_.sources().size());

    Results results;
    const std::int64_t whole_cells = round_up(tile.length, math.lanes);
    const std::int64_t whole_targets = round_up(targets, math.lanes);
    results.cells_are_columns = whole_cells * targets <= tile.length * whole_targets * 9 / 8;
    results.row_size = results.cells_are_columns ? whole_cells : whole_targets;
    results.phase_size = results.cells_are_columns ? targets * whole_cells : tile.length * whole_targets;
    results.sums = memory.sums.get(phases * results.phase_size);

    T* const source = memory.source.get(chunk_ * sources * tiling_.plane_size());
    T* const weights = memory.weights.get(chunk_ * tiling_.most_taps() * whole_targets);
    std::int64_t* const offsets = memory.offsets.get(chunk_ * tiling_.most_taps());
    for (std::int64_t c = 0; c < roles_.source_channels; c += chunk_) {
      const std::int64_t channels = std::min(chunk_, roles_.source_channels - c);
      const std::int64_t channel = group * roles_.source_channels + c;
      pack_source(tiling_, tile,
                  View<const E>{tensors.source + channel * roles_.source_strides[1], roles_.source_strides, channels},
                  PackedSteps{sources * tiling_.plane_size(), 1}, source);
      const E* const weight = tensors.weight + c * roles_.weight_source_step +
                              first_target * roles_.weight_target_step +
                              group * problem_.in_channels_per_group() * problem_.weight_strides[0];
      for (std::int64_t phase = 0; phase < phases; ++phase) {
        const std::vector<Tap>& taps = tiling_.phases()[phase].taps;
        const auto tap_count = static_cast<std::int64_t>(taps.size());
        for (std::int64_t i = 0; i < channels; ++i) {
          for (std::int64_t t = 0; t < tap_count; ++t) {
            offsets[i * tap_count + t] = (i * sources + taps[t].source) * tiling_.plane_size() + taps[t].offset;
          }
        }
        PackWeights<E, T> packing;
        packing.source = weight;
        packing.channel_step = roles_.weight_source_step;
        packing.channels = channels;
        packing.taps = weight_taps_[phase].data();
        packing.tap_count = tap_count;
        packing.target_step = roles_.weight_target_step;
        Multiply<T> job;
        job.offsets = offsets;
        job.depth = channels * tap_count;
        job.c = results.sums + phase * results.phase_size;
        job.c_step = results.row_size;
        job.accumulate = c > 0;
        if (results.cells_are_columns) {
          multiply_along_cells(math, packing, weights, source + tiling_.lead(), targets, tile.length, job);
        } else {
          multiply_along_targets(math, packing, weights, source + tiling_.lead(), targets, tile.length, job);
        }
      }
    }
    store(tensors, tile, group * roles_.target_channels + first_target, targets, results);
  }

  static void multiply_along_cells(const MathOps<T>& math, PackWeights<E, T> packing, T* weights, const T* source,
                                   std::int64_t targets, std::int64_t cells, Multiply<T> job) {
    // weights = [target / kRows][source channel][tap][kRows]
    const E* const first = packing.source;
    for (std::int64_t m = 0; m < targets; m += kRows) {
      packing.source = first + m * packing.target_step;
      packing.valid = packing.width = std::min(kRows, targets - m);
      packing.packed = weights + m * job.depth;
      element_ops<E, T>().pack_weights(packing);
    }
    T* const sums = job.c;
    for (std::int64_t n = 0; n < cells;) {
      const std::int64_t vectors = math.vectors_for(cells - n);
      job.b = source + n;
      for (std::int64_t m = 0; m < targets; m += kRows) {
        job.a = weights + m * job.depth;
        job.c = sums + m * job.c_step + n;
        math.multiply_b_in_place[std::min(kRows, targets - m) - 1][math.choice_of(vectors)](job);
      }
      n += vectors * math.lanes;
    }
  }

  static void multiply_along_targets(const MathOps<T>& math, PackWeights<E, T> packing, T* weights, const T* source,
                                     std::int64_t targets, std::int64_t cells, Multiply<T> job) {
    // weights = [step of targets][source channel][tap][targets of the step]
    const E* const first = packing.source;
    T* const sums = job.c;
    for (std::int64_t n = 0; n < targets;) {
      const std::int64_t vectors = math.vectors_for(targets - n);
      packing.source = first + n * packing.target_step;
      packing.width = vectors * math.lanes;
      packing.valid = std::min(packing.width, targets - n);
      packing.packed = weights;
      element_ops<E, T>().pack_weights(packing);
      job.b = weights;
      job.b_step = packing.width;
      job.a_step = 1;
      for (std::int64_t m = 0; m < cells; m += kRows) {
        job.a = source + m;
        job.c = sums + m * job.c_step + n;
        math.multiply_a_in_place[std::min(kRows, cells - m) - 1][math.choice_of(vectors)](job);
      }
      n += vectors * math.lanes;
    }
  }

  void store(const Tensors& tensors, const Tile& tile, std::int64_t first_channel, std::int64_t channels,
             const Results& results) const {
    const Strides& strides = roles_.target_strides;
    const View<E> view{tensors.target + first_channel * strides[1], strides, channels};
    const auto phases = static_cast<std::int64_t>(tiling_.phases().size());
    const std::int64_t in_row = tiling_.row_phases();
    for (std::int64_t p = 0; p < phases; p += in_row) {
      std::int64_t together = 0;  // cells that every phase of the row has
      if (in_row > 1 && neighbours(p)) together = store_rows(tensors, tile, p, first_channel, view, results);
      for (std::int64_t q = p; q < p + in_row; ++q)
        store_phase(tensors, tile, q, together, first_channel, view, results);
    }
  }

  // Whether the phases of a row lie side by side.
  bool neighbours(std::int64_t first) const {
    for (std::int64_t w = 1; w < tiling_.row_phases(); ++w) {
      if (tiling_.phases()[first + w].lattice[2].first != tiling_.phases()[first].lattice[2].first + w) return false;
    }
    return true;
  }

  // Stores the cells that all phases of the rows have, interleaved; returns how many of a row, 0 for nothing done.
  std::int64_t store_rows(const Tensors& tensors, const Tile& tile, std::int64_t first_phase,
                          std::int64_t first_channel, const View<E>& view, const Results& results) const {
    // The last phase is the shortest.
    const Runs shortest =
        target_runs(tiling_, tile, tiling_.phases()[first_phase + tiling_.row_phases() - 1], view.strides);
    const PhaseTile& phase = tiling_.phases()[first_phase];
    const Runs runs = target_runs(tiling_, tile, phase, view.strides);
    if (!runs.along_row() || !shortest.along_row()) return 0;
    Interleave<E, T> job;
    job.phase_size = results.phase_size;
    job.phases = tiling_.row_phases();
    job.cell_step = results.cell_step();
    job.to_step = view.strides[4];
    job.period = runs.tensor_step();
    job.count = shortest.count();
    for_each_channel_and_run(view, runs, false, [&](std::int64_t channel, const Runs::Run& run) {
      job.from = results.sums + first_phase * results.phase_size + channel * results.channel_step() +
                 run.line * results.cell_step();
      job.to = view.data + channel * view.strides[1] + run.tensor;
      job.bias = bias_of(tensors, first_channel + channel);
      element_ops<E, T>().interleave(job);
    });
    return job.count;
  }

  // Stores what one phase has beyond the first `done` cells of each row.
  void store_phase(const Tensors& tensors, const Tile& tile, std::int64_t index, std::int64_t done,
                   std::int64_t first_channel, const View<E>& view, const Results& results) const {
    const PhaseTile& phase = tiling_.phases()[index];
    if (phase.lattice[2].count - tile.begin[2] <= done || tile.count[2] <= done) return;
    Tile rest = tile;
    rest.begin[2] += done;
    rest.count[2] -= done;
    const Runs runs = target_runs(tiling_, rest, phase, view.strides);
    const T* const sums = results.sums + index * results.phase_size + done * results.cell_step();
    for_each_channel_and_run(view, runs, false, [&](std::int64_t channel, const Runs::Run& run) {
      element_ops<E, T>().store(sums + channel * results.channel_step() + run.line * results.cell_step(),
                                runs.line_step() * results.cell_step(),
                                view.data + channel * view.strides[1] + run.tensor, runs.tensor_step(), runs.count(),
                                bias_of(tensors, first_channel + channel));
    });
  }

  Problem problem_;
  Roles roles_;
  Blocking blocking_;
  Tiling tiling_;
  std::int64_t chunk_ = 1;
  std::vector<std::vector<std::int64_t>> weight_taps_;  // of each phase: where its taps lie in the weight
  bool fills_first_ = false;
  bool empty_ = false;
};

}  // namespace

Proposal propose_correlate(const Problem& problem) {
  const Roles roles(problem);
  AxisMaps maps = maps_of(problem);
  const Blocking blocking = choose_blocking(maps, problem, roles);
  Tiling tiling(std::move(maps), problem.batch, blocking.cells);
  if (tiling.plane_size() > kLongestLine) {
    return Proposal::decline("a packed line must not exceed " + std::to_string(kLongestLine) + " elements, got " +
                             std::to_string(tiling.plane_size()));
  }
  return with_types(problem.dtype, [&]<typename E, typename T>() -> std::shared_ptr<const Kernel> {
    return std::make_shared<Correlate<E, T>>(problem, blocking, tiling);
  });
}

}  // namespace tconv::cpu
