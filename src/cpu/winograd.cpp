// The "winograd" family: forward and grad_input of layers whose taps along one axis are two or three neighbours. Along
// that axis tiles of neighbouring cells are combined (winograd_simd.h), so that 6 products do for 4 cells of 3 taps, or
// 4 for 3 cells of 2 taps; along the other axes and over the channels the products are summed as ever:
//   source tile -> packed line, channels innermost -> `points` combined lines -> products with combined weights,
//   summed over channels and the taps of the other axes -> combined back into cells.
// Sums are in an order that depends on the layer alone; so neither threads nor blocking nor batch change a result.
#include <algorithm>
#include <array>
#include <map>
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
#include "cpu/winograd_rows.h"

namespace tconv::cpu {
namespace {

using T = float;

constexpr std::int64_t kMostTogether = 128;   // source channels summed before the next tap's
constexpr std::int64_t kMostTargets = 128;    // target channels of a task
constexpr std::int64_t kMostDepth = 640;      // multiply-adds between two visits to the products
constexpr std::int64_t kTasksWanted = 8;      // for each thread
constexpr std::int64_t kTileAlone = 1024;     // cells of a tile that combines its own weights
constexpr std::int64_t kPackedTogether = 16;  // channels of weights that are packed before they are combined

struct Memory {
  Scratch<T> source;
  Scratch<T> combined;
  Scratch<T> packed;
  Scratch<T> weights;
  Scratch<T> products;
  Scratch<T> sums;
};

template <typename E>
class Winograd final : public Kernel {
 public:
  Winograd(const Problem& problem, const FastAxis& fast, Tiling tiling, std::int64_t chunk, std::int64_t targets)
      : problem_(problem),
        roles_(problem),
        fast_(fast),
        scheme_(kSchemes[fast.scheme]),
        tiling_(std::move(tiling)),
        line_(fast, tiling_.maps(), tiling_.shape()),
        chunk_(chunk),
        targets_(targets),
        target_blocks_(ceil_div(roles_.target_channels, targets)),
        packed_(problem, roles_, tiling_, WeightOrder::channels_inside),
        source_(tiling_, fast, line_, roles_.source_strides, chunk, roles_.source_channels % kMostLanes == 0) {
    for (const PhaseTile& phase : tiling_.phases()) {
      groups_before_.push_back(all_groups_);
      groups_.emplace_back(phase, fast_, line_, tiling_);
      all_groups_ += groups_.back().count();
    }
    stores_in_place_ = std::is_same_v<E, T> && roles_.target_strides[1] == 1 &&
                       roles_.target_channels % kMostLanes == 0 && targets_ % kMostLanes == 0;
    shares_weights_ = tiling_.tiles() > 1 && shares_combined_weights(problem, fast);
  }

  std::size_t workspace_bytes() const {
    if (!shares_weights_) return 0;
    return roles_.groups * target_blocks_ * round_up(targets_, kMostLanes) * roles_.source_channels * all_groups_ *
           scheme_.points * sizeof(T);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const bool forward = problem_.direction == Direction::forward;
    const Tensors tensors{static_cast<const E*>(forward ? buffers.input : buffers.output),
                          static_cast<const E*>(buffers.weight),
                          problem_.bias && forward ? static_cast<const E*>(buffers.bias) : nullptr,
                          static_cast<E*>(forward ? buffers.output : buffers.input)};
    T* const shared = shares_weights_ ? static_cast<T*>(buffers.workspace) : nullptr;
    if (shared != nullptr) {
      const std::int64_t pieces = ceil_div(roles_.source_channels, kPackedTogether);
      for_each_task(execution, roles_.groups * target_blocks_ * pieces, [&](std::int64_t task) {
        const TargetBlock block = block_at(task / pieces);
        const std::int64_t first = task % pieces * kPackedTogether;
        const std::int64_t begin = first / chunk_ * chunk_;
        const std::int64_t channels = std::min(kPackedTogether, roles_.source_channels - first);
        combine_weights(tensors.weight, block, begin, first - begin, channels, shared + shared_place(block, begin));
      });
    }
    for_each_task(execution, roles_.groups * target_blocks_ * tiling_.tiles(),
                  [&](std::int64_t task) { run_task(tensors, shared, task); });
  }

  std::string describe() const override {
    constexpr std::array kNames = {"depth", "height", "width"};
    return std::to_string(scheme_.points) + " products for " + std::to_string(scheme_.outputs) + " cells of " +
           std::to_string(scheme_.taps) + " taps along the " + kNames[fast_.axis] + ", " +
           std::to_string(tiling_.tiles()) + " tiles of up to " + std::to_string(tiling_.longest()) + " cells, " +
           std::to_string(targets_) + " target channels, " + std::to_string(chunk_) + " source channels a step, " +
           target_name();
  }

 private:
  struct Tensors {
    const E* source;
    const E* weight;
    const E* bias;
    E* target;
  };

  TargetBlock block_at(std::int64_t index) const {
    TargetBlock block;
    block.group = index / target_blocks_;
    block.first = index % target_blocks_ * targets_;
    block.targets = std::min(targets_, roles_.target_channels - block.first);
    return block;
  }

  // Where the weights shared by all tiles begin: [group][block][chunk]
  std::int64_t shared_place(const TargetBlock& block, std::int64_t first_channel) const {
    const std::int64_t before = (block.group * target_blocks_ + block.first / targets_) * packed_.targets(targets_);
    return (before * roles_.source_channels + packed_.targets(block.targets) * first_channel) * all_groups_ *
           scheme_.points;
  }

  // Where the weights of a phase and point begin in those of a block and chunk:
  // [phase][point][panel][group][channel][target]
  std::int64_t place_of(const TargetBlock& block, std::int64_t channels, std::size_t phase, std::int64_t point) const {
    const auto groups = groups_[phase].count();
    return packed_.targets(block.targets) * channels * (groups_before_[phase] * scheme_.points + point * groups);
  }

  // The weights of `channels` source channels from first + within on, into those of the chunk that begins at `first`.
  void combine_weights(const E* weight, const TargetBlock& block, std::int64_t first, std::int64_t within,
                       std::int64_t channels, T* to) const {
    thread_local Scratch<T> scratch;
    const MathOps<T>& math = math_ops<T>();
    const std::int64_t chunk = std::min(chunk_, roles_.source_channels - first);
    const std::int64_t panel = packed_.tile_along_targets(math, block.targets).vectors * math.lanes;
    T* const packed = scratch.get(channels * tiling_.all_taps() * packed_.targets(block.targets));
    packed_.pack(weight, block, first + within, channels, packed_.all_phases(), packed);
    Combine<T> job;
    for (std::size_t p = 0; p < groups_.size(); ++p) {
      const auto taps = static_cast<std::int64_t>(tiling_.phases()[p].taps.size());
      const auto groups = groups_[p].count();
      const T* const from = packed + packed_.place_of_phase(block, channels, p);
      for (std::int64_t row = 0; row < block.targets; row += panel) {
        const std::int64_t width = panel_width(math, panel, block.targets, row);
        job.count = channels * width;
        for (std::int64_t g = 0; g < groups; ++g) {
          for (int k = 0; k < scheme_.taps; ++k) {
            job.from[k] = from + (row * taps + groups_[p].all[g].taps[k] * width) * channels;
          }
          for (int point = 0; point < scheme_.points; ++point) {
            job.to[point] = to + place_of(block, chunk, p, point) + row * chunk * groups + (g * chunk + within) * width;
          }
          winograd_ops().weights[fast_.scheme](job);
        }
      }
    }
  }

  // Tiles along the fast axis that a phase has.
  std::int64_t tiles_of(const Triple& count, std::size_t phase) const {
    return count[fast_.axis] == 0 ? 0 : ceil_div(count[fast_.axis] + groups_[phase].shift, scheme_.outputs);
  }

  // The rows of the products of a phase, by the groups that read something in depth and height.
  using Rows = std::map<std::vector<std::int64_t>, CellList>;
  Rows rows_of(const Tile& tile, std::size_t phase, std::int64_t row_size) const {
    Triple count = tiling_.cells_of(tile, tiling_.phases()[phase]);
    count[fast_.axis] = tiles_of(count, phase);
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
          const std::int64_t place = image * line_.image_step + d * line_.steps[0] + h * line_.steps[1];
          rows[reached].add(place * source_.cell_step(), source_.cell_step(), place * row_size, row_size, count[2]);
        }
      }
    }
    return rows;
  }

  bool reads(const Tile& tile, const TapGroup& group, const Triple& cell) const {
    for (int a = 0; a < 2; ++a) {
      if (a == fast_.axis) continue;
      const std::int64_t position = tile.begin[a] + cell[a] + group.shift[a];
      if (position < 0 || position >= tiling_.sources()[group.source][a].count) return false;
    }
    return true;
  }

  void run_task(const Tensors& tensors, const T* shared, std::int64_t task) const {
    thread_local Memory memory;
    const MathOps<T>& math = math_ops<T>();
    const Tile tile = tiling_.tile(task / target_blocks_ % tiling_.tiles());
    const TargetBlock block =
        block_at(task / (target_blocks_ * tiling_.tiles()) * target_blocks_ + task % target_blocks_);
    const auto phases = tiling_.phases().size();
    const auto size = packed_.tile_along_targets(math, block.targets);
    const std::int64_t row_size = round_up(block.targets, math.lanes);
    const bool in_steps = chunk_ < roles_.source_channels;

    Results<T> results;
    if (!stores_in_place_) {
      results = {nullptr, false, row_size, row_size * tile.length};
      results.sums = memory.sums.get(tiling_.slots() * results.phase_size + kMostLanes);
    }
    T* const combined = memory.combined.get(source_.size());
    const std::int64_t point_size = row_size * line_.size;
    T* const products =
        memory.products.get((in_steps ? static_cast<std::int64_t>(phases) : 1) * scheme_.points * point_size);
    std::vector<Rows> rows;
    for (std::size_t p = 0; p < phases; ++p) rows.push_back(rows_of(tile, p, row_size));
    for (std::int64_t c = 0; c < roles_.source_channels; c += chunk_) {
      const std::int64_t channels = std::min(chunk_, roles_.source_channels - c);
      const E* const first = tensors.source + (block.group * roles_.source_channels + c) * roles_.source_strides[1];
      source_.combine(tiling_, tile, first, channels, memory.source, combined);
      const T* weights = nullptr;
      if (shared != nullptr) {
        weights = shared + shared_place(block, c);
      } else {
        T* const own = memory.weights.get(chunk_ * all_groups_ * scheme_.points * packed_.targets(block.targets));
        for (std::int64_t within = 0; within < channels; within += kPackedTogether) {
          combine_weights(tensors.weight, block, c, within, std::min(kPackedTogether, channels - within), own);
        }
        weights = own;
      }
      const bool last = c + channels == roles_.source_channels;
      for (std::size_t p = 0; p < phases; ++p) {
        T* const of_phase = products + (in_steps ? static_cast<std::int64_t>(p) * scheme_.points * point_size : 0);
        for (int point = 0; point < scheme_.points; ++point) {
          MultiplyCells<T> job;
          job.a = combined + (point * line_.size + line_.lead) * source_.cell_step();
          job.c = of_phase + point * point_size;
          job.depth = channels;
          job.accumulate = c > 0;
          multiply(math, size, block, p, weights + place_of(block, channels, p, point), rows[p], job);
        }
        if (last) store(tensors, tile, block, p, of_phase, point_size, row_size, results);
      }
    }
    if (!stores_in_place_) {
      const ResultStore<E, T> put(tiling_, roles_.target_strides, tensors.bias, tensors.target);
      put(tile, block.group * roles_.target_channels + block.first, block.targets, results);
    }
  }

  void multiply(const MathOps<T>& math, const MathOps<T>::TileSize& size, const TargetBlock& block, std::size_t phase,
                const T* weights, Rows& rows, MultiplyCells<T> job) const {
    const std::int64_t channels = job.depth;
    const bool accumulate = job.accumulate;
    const Panels<T> panels{weights, groups_[phase].count() * channels};
    std::vector<std::int64_t> offsets;
    std::vector<std::int64_t> places;
    for (auto& [groups, cells] : rows) {
      offsets.clear();
      places.clear();
      for (const std::int64_t g : groups) {
        offsets.push_back(groups_[phase].all[g].source * source_.source_size() +
                          groups_[phase].all[g].offset * source_.cell_step());
        places.push_back(g * channels);
      }
      const auto count = static_cast<std::int64_t>(groups.size());
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

  // The products of a phase into cells: of the tensor, or of the tile of results.
  void store(const Tensors& tensors, const Tile& tile, const TargetBlock& block, std::size_t phase, const T* products,
             std::int64_t point_size, std::int64_t row_size, const Results<T>& results) const {
    const int axis = fast_.axis;
    const PhaseTile& lattices = tiling_.phases()[phase];
    const Triple cells = tiling_.cells_of(tile, lattices);
    Triple count = cells;
    count[axis] = tiles_of(cells, phase);
    Combine<T> job;
    job.count = row_size;
    CellPlaces to = CellPlaces::on_line(tiling_, row_size);
    T* sums = nullptr;
    if constexpr (std::is_same_v<E, T>) {
      if (stores_in_place_) {
        const std::int64_t target = block.group * roles_.target_channels + block.first;
        to = CellPlaces::in_tensor(tile, lattices.lattice, roles_.target_strides);
        sums = tensors.target + target + begin_in_tensor(lattices.lattice, roles_.target_strides);
        job.bias = tensors.bias == nullptr ? nullptr : tensors.bias + target;
      }
    }
    if (sums == nullptr) sums = results.sums + tiling_.slot(phase) * results.phase_size;
    // A row of cells along the width at a time; where that is the fast axis, tiles that exist as a whole or one that
    // does not.
    job.from_steps.fill(row_size);
    job.to_step = (axis == 2 ? scheme_.outputs : 1) * to.step[2];
    for (std::int64_t image = 0; image < tile.images; ++image) {
      for (std::int64_t d = 0; d < count[0]; ++d) {
        for (std::int64_t h = 0; h < count[1]; ++h) {
          job.cells = count[2];
          for (std::int64_t w = 0; w < count[2]; w += job.cells) {
            const std::int64_t place = image * line_.image_step + d * line_.steps[0] + h * line_.steps[1] + w;
            for (int point = 0; point < scheme_.points; ++point) {
              job.from[point] = products + point * point_size + place * row_size;
            }
            Segment cell{image, {d, h, w}, 2, 1, {}};
            const std::int64_t first = cell.cell[axis] * scheme_.outputs - groups_[phase].shift;
            if (axis == 2) {
              const std::int64_t whole = (cells[2] - first) / scheme_.outputs;
              job.cells = first >= 0 && whole > 0 ? std::min(whole, count[2] - w) : 1;
            }
            for (int o = 0; o < scheme_.outputs; ++o) {
              cell.cell[axis] = first + o;
              const bool exists = cell.cell[axis] >= 0 && cell.cell[axis] < cells[axis];
              job.to[o] = exists ? sums + to.of(cell) : nullptr;
            }
            winograd_ops().results[fast_.scheme](job);
          }
        }
      }
    }
  }

  Problem problem_;
  Roles roles_;
  FastAxis fast_;
  Scheme scheme_;
  Tiling tiling_;
  FastLine line_;
  std::int64_t chunk_ = 1;    // source channels
  std::int64_t targets_ = 1;  // of a block
  std::int64_t target_blocks_ = 1;
  PackedWeights<E, T> packed_;
  CombinedSource<E> source_;
  std::vector<TapGroups> groups_;  // of each phase
  std::vector<std::int64_t> groups_before_;
  std::int64_t all_groups_ = 0;
  bool stores_in_place_ = false;
  bool shares_weights_ = false;
};

}  // namespace

Proposal propose_winograd(const Problem& problem, const DeviceProperties& device) {
  if (problem.direction == Direction::grad_bias) return Proposal::decline("has no weights to read");
  if (problem.dtype == DType::f64) return Proposal::decline("computes in fp32");
  if (problem.batch == 0) return Proposal::decline("needs at least one image");
  if (problem.direction == Direction::grad_weight) return propose_winograd_weight(problem);
  const Roles roles(problem);
  if (roles.interleaved > 1) return Proposal::decline("needs more channels a group");
  const AxisMaps plain = maps_of(problem);
  for (int a = 0; a < kSpatialAxes; ++a) {
    const Axis& axis = problem.axes[a];
    std::int64_t left = problem.direction == Direction::forward ? axis.output() : axis.input;
    for (const AxisTarget& target : plain[a].targets) left -= target.lattice.count;
    if (left != 0) return Proposal::decline("needs a tap for every output");
  }
  const std::optional<FastAxis> fast = choose_fast_axis(plain, problem, roles);
  if (!fast) return Proposal::decline("no axis saves enough multiplications");
  const AxisMaps maps = with_room_for(*fast, plain);
  const std::int64_t chunk =
      std::min(round_up(even_parts(roles.source_channels, kMostTogether), kMostLanes), roles.source_channels);
  const std::int64_t targets =
      std::min(round_up(even_parts(roles.target_channels, kMostTargets), kMostLanes), roles.target_channels);
  const auto all = [&maps](auto AxisMap::* lattices) {
    std::size_t count = 1;
    for (const AxisMap& map : maps) count *= (map.*lattices).size();
    return static_cast<std::int64_t>(count);
  };
  const std::int64_t kept = chunk < roles.source_channels ? all(&AxisMap::targets) : 1;  // phases at a time
  TileWish wish;
  wish.width = all(&AxisMap::sources) * chunk + kept * targets;
  wish.tiles =
      ceil_div(kTasksWanted * std::max(device.threads, 1), roles.groups * ceil_div(roles.target_channels, targets));
  wish.fewest = shares_combined_weights(problem, *fast) ? 1 : kTileAlone;
  const std::int64_t cells = choose_cells(*fast, maps, problem.batch, wish, caches());
  Tiling tiling(maps, problem.batch, cells);
  if (tiling.plane_size() > kLongestLine) {
    return Proposal::decline("a packed line must not exceed " + std::to_string(kLongestLine) + " elements, got " +
                             std::to_string(tiling.plane_size()));
  }
  return with_types(problem.dtype, [&]<typename E, typename Arithmetic> {
    Proposal proposal;
    if constexpr (std::is_same_v<Arithmetic, T>) {
      const auto kernel = std::make_shared<Winograd<E>>(problem, *fast, tiling, chunk, targets);
      proposal.workspace_bytes = kernel->workspace_bytes();
      proposal.kernel = kernel;
    }
    return proposal;
  });
}

}  // namespace tconv::cpu
