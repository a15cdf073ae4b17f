// The "winograd" family: forward and grad_input of layers whose taps along one or two axes are two or three neighbours.
// Along such an axis tiles of neighbouring cells are combined (winograd_simd.h), so that 6 products do for 4 cells of 3
// taps, or 4 for 3 cells of 2 taps; along the other axes and over the channels the products are summed as ever:
//   source tile -> packed line, channels innermost -> `points` combined lines -> products with combined weights,
//   summed over channels and the taps of the other axes -> combined back into cells.
// Sums are in an order that depends on the layer alone; so neither threads nor blocking change a result, nor does the
// batch, but that it has a say in whether this family is chosen for grad_input.
#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <type_traits>
#include <vector>

#include "cpu/blocking.h"
#include "cpu/cell_places.h"
#include "cpu/packed_weights.h"
#include "cpu/packing.h"
#include "cpu/panels.h"
#include "cpu/phases_kernels.h"
#include "cpu/results.h"
#include "cpu/scratch.h"
#include "cpu/wide_rows.h"
#include "cpu/winograd_rows.h"

namespace tconv::cpu {
namespace {

using T = float;

// Source channels summed before the next tap's, from one source lattice or from several.
constexpr std::int64_t kMostTogether = 128;
constexpr std::int64_t kMostOfSeveral = 64;
constexpr std::int64_t kFewestInPlace = 32;   // of those that lie side by side: they are read piece by piece
constexpr std::int64_t kLongVisit = 256;      // multiply-adds between two visits to the products that are enough
constexpr std::int64_t kMostCombined = 16;    // of a source whose channels lie side by side
constexpr std::int64_t kMostDepth = 640;      // multiply-adds between two visits to the products
constexpr std::int64_t kTasksWanted = 8;      // for each thread
constexpr std::int64_t kTilesOfStage = 2;     // the same where the weights of one block are held at a time
constexpr std::int64_t kTileAlone = 1024;     // cells of a tile that combines its own weights
constexpr std::int64_t kPackedTogether = 16;  // channels of weights that are packed before they are combined
// Where each tile combines its own weights: target channels of a block, and combining the source, for each block, in
// products of a target channel. Another block size must be worth so much.
constexpr std::int64_t kTargetsAlone = 64;
// Cells whose products take as long as what a tile costs beside them, without and with weights of its own.
constexpr std::int64_t kTileCost = 40;
constexpr std::int64_t kOwnCost = 300;
constexpr std::int64_t kFewTiles = 512;  // cells of a tile that may be one of few: less waits for one that is held up
constexpr double kCombineCost = 24;
constexpr double kWorthChanging = 0.95;
constexpr std::int64_t kFewestWithGaps = 128;  // source channels, where outputs that no tap reaches are stored too

// The weights of a tap that a lattice does not have.
constexpr std::array<T, kPackedTogether * kMostVectors * kMostLanes> kNoWeights{};

struct Memory {
  Scratch<T> source;
  Scratch<T> half;  // combined along the first of two axes
  Scratch<T> combined;
  Scratch<T> packed;
  Scratch<T> weights;
  Scratch<T> products;
  Scratch<T> sums;
};

// Tensors whose channels lie side by side, in whole vectors, are written where they are.
template <typename E>
bool stores_in_place(const Roles& roles) {
  return std::is_same_v<E, T> && roles.target_strides[1] == 1 && roles.target_channels % kMostLanes == 0;
}

// Phases that have to be kept between two steps take more room than combining the source for each of them.
bool phases_one_by_one(const Roles& roles, std::int64_t chunk, bool in_place) {
  return in_place && chunk < roles.source_channels;
}

template <typename E>
class Winograd final : public Kernel {
 public:
  Winograd(const Problem& problem, const FastWeights& fast, Tiling tiling, std::int64_t chunk)
      : problem_(problem),
        roles_(problem),
        fast_(fast.axes),
        points_(points_of(fast_)),
        tiling_(std::move(tiling)),
        lines_(fast_lines(fast_, tiling_)),
        chunk_(chunk),
        targets_(fast.targets),
        target_blocks_(ceil_div(roles_.target_channels, targets_)),
        packed_(problem, roles_, tiling_, WeightOrder::channels_inside),
        source_(tiling_, fast_, lines_, roles_.source_strides, chunk, roles_.source_channels % kMostLanes == 0) {
    for (const PhaseTile& phase : tiling_.phases()) {
      groups_before_.push_back(all_groups_);
      groups_.emplace_back(phase, fast_, lines_.back(), tiling_);
      all_groups_ += groups_.back().count();
    }
    stores_in_place_ = stores_in_place<E>(roles_);
    one_by_one_ = phases_one_by_one(roles_, chunk, stores_in_place_);
    plan_stages(tiling_.tiles() > 1 && fast.held, fast.room);
  }

  std::size_t workspace_bytes() const { return workspace_bytes_; }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const bool forward = problem_.direction == Direction::forward;
    const Tensors tensors{static_cast<const E*>(forward ? buffers.input : buffers.output),
                          static_cast<const E*>(buffers.weight),
                          problem_.bias && forward ? static_cast<const E*>(buffers.bias) : nullptr,
                          static_cast<E*>(forward ? buffers.output : buffers.input)};
    T* const shared = workspace_bytes_ > 0 ? static_cast<T*>(buffers.workspace) : nullptr;
    if (shared == nullptr) {
      const Stage& stage = stages_.front();
      for_each_task(execution, stage.blocks * tiling_.tiles(),
                    [&](std::int64_t task) { run_task(tensors, stage, nullptr, task); });
      return;
    }
    const std::int64_t pieces = ceil_div(roles_.source_channels, kPackedTogether);
    std::vector<std::int64_t> tasks;
    for (const Stage& stage : stages_) {
      tasks.push_back(stage.blocks * pieces);
      tasks.push_back(stage.blocks * tiling_.tiles());
    }
    for_each_step(execution, tasks, [&](std::size_t step, std::int64_t task) {
      const Stage& stage = stages_[step / 2];
      if (step % 2 == 1) return run_task(tensors, stage, shared, task);
      const TargetBlock block = block_at(stage.first_block + task / pieces);
      const std::int64_t first = task % pieces * kPackedTogether;
      const std::int64_t begin = first / chunk_ * chunk_;
      const std::int64_t channels = std::min(kPackedTogether, roles_.source_channels - first);
      combine_weights(tensors.weight, block, stage.phases, begin, first - begin, channels,
                      shared + shared_place(stage, block, begin));
    });
  }

  std::string describe() const override {
    return describe_axes(fast_) + ", " + std::to_string(tiling_.tiles()) + " tiles of up to " +
           std::to_string(tiling_.longest()) + " cells, " + std::to_string(targets_) + " target channels, " +
           std::to_string(chunk_) + " source channels a step, " + target_name();
  }

 private:
  struct Tensors {
    const E* source;
    const E* weight;
    const E* bias;
    E* target;
  };

  // Blocks of targets, of all groups in turn, and phases whose weights are combined at a time.
  struct Stage {
    std::int64_t first_block = 0;
    std::int64_t blocks = 0;
    PhaseRange phases;
  };

  // All of them where the call may hold so much, otherwise block by block or phase by phase.
  void plan_stages(bool shares_weights, std::int64_t room) {
    const std::int64_t blocks = roles_.groups * target_blocks_;
    const PhaseRange all = packed_.all_phases();
    const auto size_of_stage = [&](const Stage& stage) {
      return stage.blocks * packed_.targets(targets_) * roles_.source_channels * groups_of(stage.phases) * points_;
    };
    const auto fits = [&](const Stage& stage) { return size_of_stage(stage) <= room; };
    if (!shares_weights || fits({0, blocks, all})) {
      stages_.push_back({0, blocks, all});
    } else {
      for (std::int64_t block = 0; block < blocks; ++block) {
        const bool whole = !stores_in_place_ || fits({block, 1, all});
        for (PhaseRange phases = all; phases.first < all.last; phases.first = phases.last) {
          phases.last = whole ? all.last : phases.first + 1;
          stages_.push_back({block, 1, phases});
        }
      }
    }
    if (!shares_weights) return;
    for (const Stage& stage : stages_) {
      workspace_bytes_ = std::max(workspace_bytes_, static_cast<std::size_t>(size_of_stage(stage)) * sizeof(T));
    }
  }

  // Of taps, in some phases.
  std::int64_t groups_of(const PhaseRange& phases) const {
    const std::int64_t end = phases.last < groups_.size() ? groups_before_[phases.last] : all_groups_;
    return end - groups_before_[phases.first];
  }

  TargetBlock block_at(std::int64_t index) const {
    TargetBlock block;
    block.group = index / target_blocks_;
    block.first = index % target_blocks_ * targets_;
    block.targets = std::min(targets_, roles_.target_channels - block.first);
    return block;
  }

  // Where the weights shared by all tiles begin: [group][block][chunk]
  std::int64_t shared_place(const Stage& stage, const TargetBlock& block, std::int64_t first_channel) const {
    const std::int64_t index = block.group * target_blocks_ + block.first / targets_ - stage.first_block;
    return (index * packed_.targets(targets_) * roles_.source_channels +
            packed_.targets(block.targets) * first_channel) *
           groups_of(stage.phases) * points_;
  }

  // Where the weights of a phase and point begin in those of a block and chunk, of which the phases from `first` on are
  // combined: [phase][point][panel][group][channel][target]
  std::int64_t place_of(const TargetBlock& block, std::int64_t channels, std::size_t first, std::size_t phase,
                        std::int64_t point) const {
    const std::int64_t before = groups_before_[phase] - groups_before_[first];
    return packed_.targets(block.targets) * channels * (before * points_ + point * groups_[phase].count());
  }

  // The weights of `channels` source channels from first + within on, into those of the chunk that begins at `first`.
  void combine_weights(const E* weight, const TargetBlock& block, const PhaseRange& phases, std::int64_t first,
                       std::int64_t within, std::int64_t channels, T* to) const {
    thread_local Scratch<T> scratch;
    const MathOps<T>& math = math_ops<T>();
    const std::int64_t chunk = std::min(chunk_, roles_.source_channels - first);
    const std::int64_t panel = packed_.tile_along_targets(math, block.targets).vectors * math.lanes;
    T* const packed = scratch.get(channels * tiling_.all_taps() * packed_.targets(block.targets));
    packed_.pack(weight, block, first + within, channels, phases, packed);
    for (std::size_t p = phases.first; p < phases.last; ++p) {
      const auto taps = static_cast<std::int64_t>(tiling_.phases()[p].taps.size());
      const auto groups = groups_[p].count();
      const T* const from = packed + packed_.place_of_phase(block, channels, p, phases.first);
      for (std::int64_t row = 0; row < block.targets; row += panel) {
        const std::int64_t width = panel_width(math, panel, block.targets, row);
        for (std::int64_t g = 0; g < groups; ++g) {
          const TapGroup& group = groups_[p].all[g];
          const auto tap_at = [&](std::int64_t tap) {
            if (group.taps[tap] == kNoTap) return kNoWeights.data();
            return from + (row * taps + group.taps[tap] * width) * channels;
          };
          const auto point_at = [&](std::int64_t point) -> T* {
            if (group.zero_at[point]) return nullptr;
            return to + place_of(block, chunk, phases.first, p, point) + row * chunk * groups +
                   (g * chunk + within) * width;
          };
          combine_group(channels * width, tap_at, point_at);
        }
      }
    }
  }

  // The weights of one group of taps.
  template <typename TapAt, typename PointAt>
  void combine_group(std::int64_t count, const TapAt& tap_at, const PointAt& point_at) const {
    thread_local Scratch<T> scratch;
    const Scheme& first = kSchemes[fast_[0].scheme];
    const Scheme second = fast_.size() > 1 ? kSchemes[fast_[1].scheme] : Scheme{1, 1, 1};
    T* const half = fast_.size() > 1 ? scratch.get(count * second.taps * first.points) : nullptr;
    Combine<T> job;
    job.count = count;
    for (int tap = 0; tap < second.taps; ++tap) {
      for (int k = 0; k < first.taps; ++k) job.from[k] = tap_at(tap * first.taps + k);
      for (int point = 0; point < first.points; ++point) {
        job.to[point] = half == nullptr ? point_at(point) : half + (tap * first.points + point) * count;
      }
      winograd_ops().weights[fast_[0].scheme](job);
    }
    for (int point = 0; half != nullptr && point < first.points; ++point) {
      for (int k = 0; k < second.taps; ++k) job.from[k] = half + (k * first.points + point) * count;
      for (int q = 0; q < second.points; ++q) job.to[q] = point_at(point * second.points + q);
      winograd_ops().weights[fast_[1].scheme](job);
    }
  }

  // The cells of a phase with tiles in their place along the first `levels` fast axes.
  Triple tiles_of(Triple count, std::size_t phase, std::size_t levels) const {
    for (std::size_t level = 0; level < levels; ++level) {
      std::int64_t& along = count[fast_[level].axis];
      if (along > 0) along = ceil_div(along + groups_[phase].shifts[level], kSchemes[fast_[level].scheme].outputs);
    }
    return count;
  }

  // The rows of the products of a phase, by the groups that read something in depth and height.
  using Rows = std::map<std::vector<std::int64_t>, CellList>;
  Rows rows_of(const Tile& tile, std::size_t phase, std::int64_t row_size) const {
    const Triple count = tiles_of(tiling_.cells_of(tile, tiling_.phases()[phase]), phase, fast_.size());
    const FastLine& line = lines_.back();
    Rows rows;
    if (count[0] * count[1] * count[2] == 0) return rows;
    std::vector<std::int64_t> reached;
    for (std::int64_t image = 0; image < tile.images; ++image) {
      for (std::int64_t d = 0; d < count[0]; ++d) {
        for (std::int64_t h = 0; h < count[1]; ++h) {
          reached.clear();
          for (std::size_t g = 0; g < groups_[phase].all.size(); ++g) {
            if (reads(tile, groups_[phase].all[g], {d, h, 0})) reached.push_back(static_cast<std::int64_t>(g));
          }
          const std::int64_t place = image * line.image_step + d * line.steps[0] + h * line.steps[1];
          rows[reached].add(place * source_.cell_step(), source_.cell_step(), place * row_size, row_size, count[2]);
        }
      }
    }
    return rows;
  }

  bool reads(const Tile& tile, const TapGroup& group, const Triple& cell) const {
    for (int a = 0; a < 2; ++a) {
      if (std::ranges::find(fast_, a, &FastAxis::axis) != fast_.end()) continue;
      const std::int64_t position = tile.begin[a] + cell[a] + group.shift[a];
      if (position < 0 || position >= tiling_.sources()[group.source][a].count) return false;
    }
    return true;
  }

  void run_task(const Tensors& tensors, const Stage& stage, const T* shared, std::int64_t task) const {
    thread_local Memory memory;
    const std::int64_t together = std::min(stage.blocks, target_blocks_);  // of a group
    const Tile tile = tiling_.tile(task / together % tiling_.tiles());
    const TargetBlock block =
        block_at(stage.first_block + task / (together * tiling_.tiles()) * together + task % together);
    const std::int64_t row_size = round_up(block.targets, math_ops<T>().lanes);
    Results<T> results;
    if (!stores_in_place_) {
      results = {nullptr, false, row_size, row_size * tile.length};
      results.sums = memory.sums.get(tiling_.slots() * results.phase_size + kMostLanes);
      if (tiling_.has_empty_phases()) {
        std::fill_n(results.sums + (tiling_.slots() - 1) * results.phase_size, results.phase_size, T{0});
      }
    }
    for (PhaseRange phases = stage.phases; phases.first < stage.phases.last; phases.first = phases.last) {
      phases.last = one_by_one_ ? phases.first + 1 : stage.phases.last;
      run_phases(tensors, stage, phases, shared, tile, block, row_size, results, memory);
    }
    if (!stores_in_place_) {
      const ResultStore<E, T> put(tiling_, target_sizes(), roles_.target_strides, tensors.bias, tensors.target);
      put(tile, block.group * roles_.target_channels + block.first, block.targets, results);
    } else {
      hwy::FlushStream();  // before another thread reads the results
    }
  }

  void run_phases(const Tensors& tensors, const Stage& stage, const PhaseRange& phases, const T* shared,
                  const Tile& tile, const TargetBlock& block, std::int64_t row_size, const Results<T>& results,
                  Memory& memory) const {
    const MathOps<T>& math = math_ops<T>();
    const auto size = packed_.tile_along_targets(math, block.targets);
    const auto has_taps = [&](std::size_t p) { return groups_[p].count() > 0; };
    std::int64_t kept = 0;  // phases
    std::vector<Rows> rows;
    for (std::size_t p = phases.first; p < phases.last; ++p) {
      rows.push_back(has_taps(p) ? rows_of(tile, p, row_size) : Rows{});
      kept += has_taps(p) ? 1 : 0;
    }
    if (chunk_ >= roles_.source_channels) kept = 1;
    T* const combined = memory.combined.get(source_.size());
    const std::int64_t point_size = row_size * lines_.back().size;
    T* const products = memory.products.get(kept * points_ * point_size);
    for (std::int64_t c = 0; c < roles_.source_channels; c += chunk_) {
      const std::int64_t channels = std::min(chunk_, roles_.source_channels - c);
      const E* const first = tensors.source + (block.group * roles_.source_channels + c) * roles_.source_strides[1];
      const T* const packed = source_.pack(tiling_, tile, first, channels, memory.source);
      source_.combine(tiling_, tile, first, packed, channels, groups_[phases.first].starts, memory.half, combined);
      const T* weights = nullptr;
      std::size_t first_phase = stage.phases.first;
      if (shared != nullptr) {
        weights = shared + shared_place(stage, block, c);
      } else {
        first_phase = phases.first;
        T* const own = memory.weights.get(chunk_ * groups_of(phases) * points_ * packed_.targets(block.targets));
        for (std::int64_t within = 0; within < channels; within += kPackedTogether) {
          combine_weights(tensors.weight, block, phases, c, within, std::min(kPackedTogether, channels - within), own);
        }
        weights = own;
      }
      const bool last = c + channels == roles_.source_channels;
      T* of_phase = products;
      for (std::size_t p = phases.first; p < phases.last; ++p) {
        if (!has_taps(p)) continue;
        for (int point = 0; point < points_; ++point) {
          MultiplyCells<T> job;
          job.a = combined + (point * lines_.back().size + lines_.back().lead) * source_.cell_step();
          job.c = of_phase + point * point_size;
          job.depth = channels;
          job.accumulate = c > 0;
          multiply(math, size, block, p, point, weights + place_of(block, channels, first_phase, p, point),
                   rows[p - phases.first], job);
        }
        if (last) store(tensors, tile, block, p, of_phase, row_size, results, memory.half);
        if (kept > 1) of_phase += points_ * point_size;
      }
    }
  }

  void multiply(const MathOps<T>& math, const MathOps<T>::TileSize& size, const TargetBlock& block, std::size_t phase,
                int point, const T* weights, Rows& rows, MultiplyCells<T> job) const {
    const std::int64_t channels = job.depth;
    const bool accumulate = job.accumulate;
    const Panels<T> panels{weights, groups_[phase].count() * channels};
    std::vector<std::int64_t> offsets;
    std::vector<std::int64_t> places;
    for (auto& [groups, cells] : rows) {
      offsets.clear();
      places.clear();
      for (const std::int64_t g : groups) {
        if (groups_[phase].all[g].zero_at[point]) continue;
        offsets.push_back(groups_[phase].all[g].source * source_.source_size() +
                          groups_[phase].all[g].offset * source_.cell_step());
        places.push_back(g * channels);
      }
      const auto count = static_cast<std::int64_t>(places.size());
      if (count == 0 && accumulate) continue;
      const std::int64_t parts = even_parts(count, kMostDepth / channels);
      // At least once: what no tap reaches is zero.
      for (std::int64_t g = 0; g == 0 || g < count; g += parts) {
        job.offsets = offsets.data() + g;
        job.places = places.data() + g;
        job.parts = std::min(parts, count - g);
        job.accumulate = accumulate || g > 0;
        cells.multiply(math, size, block.targets, panels, job);
      }
    }
  }

  Sizes target_sizes() const {
    return problem_.direction == Direction::forward ? problem_.output_sizes() : problem_.input_sizes();
  }

  bool writes_whole_lines(const E* target, const TargetBlock& block) const {
    const Sizes sizes = target_sizes();
    return exceeds_caches(sizes, sizeof(E)) && has_whole_lines(target, sizes, roles_.target_strides) &&
           (block.group * roles_.target_channels + block.first) % kMostLanes == 0 && block.targets % kMostLanes == 0;
  }

  // The products of a phase into cells: of the tensor, or of the tile of results.
  void store(const Tensors& tensors, const Tile& tile, const TargetBlock& block, std::size_t phase, const T* products,
             std::int64_t row_size, const Results<T>& results, Scratch<T>& half) const {
    const PhaseTile& lattices = tiling_.phases()[phase];
    const Triple cells = tiling_.cells_of(tile, lattices);
    if (fast_.size() > 1) {
      const std::int64_t half_size = row_size * lines_[0].size;
      T* const halves = half.get(kSchemes[fast_[0].scheme].points * half_size);
      CellPlaces to{lines_[0].image_step * row_size, {}, {}};
      for (int a = 0; a < kSpatialAxes; ++a) to.step[a] = lines_[0].steps[a] * row_size;
      const std::int64_t points = kSchemes[fast_[1].scheme].points;
      for (int point = 0; point < kSchemes[fast_[0].scheme].points; ++point) {
        store_along(1, tile, phase, cells, products + point * points * row_size * lines_[1].size, row_size,
                    halves + point * half_size, to, nullptr, false);
      }
      products = halves;
    }
    CellPlaces to = CellPlaces::on_line(tiling_, row_size);
    T* sums = nullptr;
    const T* bias = nullptr;
    if constexpr (std::is_same_v<E, T>) {
      if (stores_in_place_) {
        const std::int64_t target = block.group * roles_.target_channels + block.first;
        to = CellPlaces::in_tensor(tile, lattices.lattice, roles_.target_strides);
        sums = tensors.target + target + begin_in_tensor(lattices.lattice, roles_.target_strides);
        bias = tensors.bias == nullptr ? nullptr : tensors.bias + target;
      }
    }
    if (sums == nullptr) sums = results.sums + tiling_.slot(phase) * results.phase_size;
    const bool past_caches = stores_in_place_ && writes_whole_lines(tensors.target, block);
    store_along(0, tile, phase, cells, products, row_size, sums, to, bias, past_caches);
  }

  // Lines that are combined along the axes up to `level` into lines that are not along this one, or into cells.
  void store_along(std::size_t level, const Tile& tile, std::size_t phase, const Triple& cells, const T* from,
                   std::int64_t row_size, T* sums, const CellPlaces& to, const T* bias, bool past_caches) const {
    const int axis = fast_[level].axis;
    const Scheme& scheme = kSchemes[fast_[level].scheme];
    const FastLine& line = lines_[level];
    const Triple count = tiles_of(cells, phase, level + 1);
    Combine<T> job;
    job.count = row_size;
    job.bias = bias;
    job.past_caches = past_caches;
    // A row of cells along the width at a time; where that is the fast axis, tiles that exist as a whole or one that
    // does not.
    job.from_steps.fill(row_size);
    job.to_step = (axis == 2 ? scheme.outputs : 1) * to.step[2];
    for (std::int64_t image = 0; image < tile.images; ++image) {
      for (std::int64_t d = 0; d < count[0]; ++d) {
        for (std::int64_t h = 0; h < count[1]; ++h) {
          job.cells = count[2];
          for (std::int64_t w = 0; w < count[2]; w += job.cells) {
            const std::int64_t place = image * line.image_step + d * line.steps[0] + h * line.steps[1] + w;
            for (int point = 0; point < scheme.points; ++point) {
              job.from[point] = from + (point * line.size + place) * row_size;
            }
            Segment cell{image, {d, h, w}, 2, 1, {}};
            const std::int64_t first = cell.cell[axis] * scheme.outputs - groups_[phase].shifts[level];
            if (axis == 2) {
              const std::int64_t whole = (cells[2] - first) / scheme.outputs;
              job.cells = first >= 0 && whole > 0 ? std::min(whole, count[2] - w) : 1;
            }
            for (int o = 0; o < scheme.outputs; ++o) {
              cell.cell[axis] = first + o;
              const bool exists = cell.cell[axis] >= 0 && cell.cell[axis] < cells[axis];
              job.to[o] = exists ? sums + to.of(cell) : nullptr;
            }
            winograd_ops().results[fast_[level].scheme](job);
          }
        }
      }
    }
  }

  Problem problem_;
  Roles roles_;
  FastAxes fast_;
  int points_ = 1;  // of all axes
  Tiling tiling_;
  std::vector<FastLine> lines_;  // of each level
  std::int64_t chunk_ = 1;       // source channels
  std::int64_t targets_ = 1;     // of a block
  std::int64_t target_blocks_ = 1;
  PackedWeights<E, T> packed_;
  CombinedSource<E> source_;
  std::vector<TapGroups> groups_;  // of each phase
  std::vector<std::int64_t> groups_before_;
  std::int64_t all_groups_ = 0;
  bool stores_in_place_ = false;
  bool one_by_one_ = false;  // phases
  std::vector<Stage> stages_;
  std::size_t workspace_bytes_ = 0;
};

// Tiles that are many enough for all threads, or as large as the cache allows.
enum class TilesFor { threads, cache };

// Source channels that are combined at a time from several lattices: no more than long visits to the products need, so
// that what is combined from many lattices stays in the cache until it is read.
std::int64_t channels_of_several(const FastAxes& fast, const AxisMaps& maps, std::int64_t channels,
                                 std::int64_t fewest) {
  std::int64_t groups = 1;  // of taps
  for (int a = 0; a < kSpatialAxes; ++a) {
    const auto on_axis = std::ranges::find(fast, a, &FastAxis::axis);
    groups *= on_axis == fast.end() ? std::ssize(maps[a].targets.front().taps) : on_axis->groups();
  }
  const std::int64_t enough = round_up(kLongVisit / groups, kMostLanes);
  return nearest_parts(channels, std::clamp(enough, fewest, kMostOfSeveral));
}

// Whether the outputs of a row that can be seen as one (wide_rows.h) are so many, or channels so few, that this is
// worth more than fewer products.
bool rather_has_wide_rows(const Problem& problem) {
  constexpr std::int64_t kMany = 8;
  constexpr std::int64_t kFewChannels = 16;  // products of an input channel and an output channel, for moving both
  const std::optional<Problem> wide = with_wide_rows(problem);
  if (!wide) return false;
  if (wide->out_channels >= kMany * problem.out_channels) return true;
  const Axis& width = problem.axes[kSpatialAxes - 1];
  const bool few =
      problem.in_channels * problem.out_channels < kFewChannels * (problem.in_channels + problem.out_channels);
  return few && problem.direction != Direction::grad_weight && width.kernel <= 2 * width.stride;
}

}  // namespace

Proposal propose_winograd(const Problem& problem, const DeviceProperties& device) {
  if (problem.direction == Direction::grad_bias) return Proposal::decline("has no weights to read");
  if (problem.dtype == DType::f64) return Proposal::decline("computes in fp32");
  if (problem.batch == 0) return Proposal::decline("needs at least one image");
  if (rather_has_wide_rows(problem)) return Proposal::decline("rows as channels save more");
  if (problem.direction == Direction::grad_weight) return propose_winograd_weight(problem, device);
  const Roles roles(problem);
  if (roles.interleaved > 1 || roles.stacked > 1) return Proposal::decline("needs more channels a group");
  const AxisMaps plain = maps_of(problem);
  for (int a = 0; a < kSpatialAxes; ++a) {
    const Axis& axis = problem.axes[a];
    std::int64_t left = problem.direction == Direction::forward ? axis.output() : axis.input;
    for (const AxisTarget& target : plain[a].targets) left -= target.lattice.count;
    if (left != 0) return Proposal::decline("needs a tap for every output");
  }
  const bool in_place = problem.dtype == DType::f32 && stores_in_place<float>(roles);
  const auto has_gaps = [](const AxisMap& map) { return filled_targets(map) < std::ssize(map.targets); };
  const bool gaps = std::ranges::any_of(plain, has_gaps);
  if (in_place && gaps) return Proposal::decline("needs a tap for every output");
  FastWeights fast = choose_fast_weights(plain, problem, roles, in_place);
  if (fast.axes.empty()) return Proposal::decline("no axis saves enough multiplications");
  if (gaps && fast.axes.size() == 1 && roles.source_channels < kFewestWithGaps) {
    return Proposal::decline("rows with gaps are put together faster from lines");
  }
  const std::int64_t plain_together = channels_together(plain, roles);
  // Lines of few target channels waste no lanes, which fewer products of two taps, or of few channels, do not outweigh.
  const bool lines = plain_together == 0 && roles.source_strides[1] == 1 && roles.target_strides[1] == 1;
  const bool wastes = roles.target_channels % kMostLanes != 0 && roles.source_channels < 2 * kMostLanes;
  if (lines && (wastes || kSchemes[fast.axes[0].scheme].taps == 2)) {
    return Proposal::decline("rows of " + std::to_string(roles.target_channels) + " target channels save more");
  }
  if (roles.multiplies_pairs && plain_together > 0) {
    return Proposal::decline("products of pairs of bfloat16 save more");
  }
  const AxisMaps maps = with_room_for(fast.axes, plain);
  std::int64_t sources = 1;
  std::int64_t phases = 1;  // that have taps
  for (const AxisMap& map : maps) {
    sources *= std::ssize(map.sources);
    phases *= filled_targets(map);
  }
  if (sources > kMostCombined && roles.source_strides[1] == 1) {
    return Proposal::decline("combining each of " + std::to_string(sources) +
                             " lattices takes longer than reading them in place");
  }
  const std::int64_t fewest = roles.source_strides[1] == 1 ? kFewestInPlace : kMostLanes;
  const std::int64_t together =
      sources > 1 ? channels_of_several(fast.axes, plain, roles.source_channels, fewest) : kMostTogether;
  const std::int64_t chunk =
      std::min(round_up(even_parts(roles.source_channels, together), kMostLanes), roles.source_channels);
  const bool one_by_one = phases_one_by_one(roles, chunk, in_place);
  if (one_by_one) fast.axes = phase_by_phase(std::move(fast.axes));
  const std::int64_t kept = chunk < roles.source_channels && !one_by_one ? phases : 1;  // phases at a time
  const std::int64_t threads = std::max(device.threads, 1);
  const auto cells_with = [&](std::int64_t targets, TilesFor purpose = TilesFor::threads) {
    const std::int64_t blocks = roles.groups * ceil_div(roles.target_channels, targets);
    TileWish wish;
    wish.width = sources * chunk + kept * targets;
    wish.tiles = fast.at_once ? ceil_div(kTasksWanted * threads, blocks) : kTilesOfStage * threads;
    if (purpose == TilesFor::cache) wish.tiles = 1;
    wish.fewest = fast.held ? 1 : kTileAlone;
    return choose_cells(fast.axes, maps, problem.batch, wish, caches());
  };
  const bool alone = TileShape(maps, problem.batch, cells_with(fast.targets)).tiles == 1;  // nobody shares its weights
  if (!fast.held || alone) {
    // More targets a block share a combined source, fewer keep the threads busy.
    const auto cost_of = [&](std::int64_t targets) {
      const std::int64_t tiles = TileShape(maps, problem.batch, cells_with(targets)).tiles;
      const std::int64_t tasks = tiles * roles.groups * ceil_div(roles.target_channels, targets);
      const double idle = static_cast<double>(round_up(tasks, threads)) / static_cast<double>(tasks);
      const std::int64_t uses = one_by_one ? 1 : phases;  // of a combined source
      return idle * (1 + kCombineCost / static_cast<double>(targets * uses));
    };
    fast.targets = targets_of_block(roles, kTargetsAlone);
    double least = kWorthChanging * cost_of(fast.targets);
    for (const std::int64_t most : {2 * kTargetsAlone, kTargetsAlone / 2}) {
      const std::int64_t targets = targets_of_block(roles, most);
      if (cost_of(targets) >= least) continue;
      least = cost_of(targets);
      fast.targets = targets;
    }
  }
  const std::int64_t cells = even_cells(
      maps, problem.batch, cells_with(fast.targets), std::min(cells_with(fast.targets, TilesFor::cache), kFewTiles),
      roles.groups * ceil_div(roles.target_channels, fast.targets), threads, fast.held ? kTileCost : kOwnCost);
  Tiling tiling(maps, problem.batch, cells);
  if (tiling.plane_size() > kLongestLine) {
    return Proposal::decline("a packed line must not exceed " + std::to_string(kLongestLine) + " elements, got " +
                             std::to_string(tiling.plane_size()));
  }
  return with_types(problem.dtype, [&]<typename E, typename Arithmetic> {
    Proposal proposal;
    if constexpr (std::is_same_v<Arithmetic, T>) {
      const auto kernel = std::make_shared<Winograd<E>>(problem, fast, tiling, chunk);
      proposal.workspace_bytes = kernel->workspace_bytes();
      proposal.kernel = kernel;
    }
    return proposal;
  });
}

}  // namespace tconv::cpu
