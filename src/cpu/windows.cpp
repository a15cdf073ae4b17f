// grad_input of layers with few output channels: every cell is a row of the product, read from its window where it is,
//   grad_input[cell][ci] = sum over taps and co of  window[place of the cell + place of (co, tap)] weight[co, tap][ci].
// Each element is one chain of multiply-adds in an order that depends on the layer alone. Of bfloat16, pairs of
// neighbours are multiplied where the processor has such products: a window is then there twice, once with the pairs
// that begin at even places, once with those at odd ones, if any cell begins there.
#include "cpu/windows.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "cpu/bf16_products.h"
#include "cpu/blocking.h"
#include "cpu/cell_places.h"
#include "cpu/packed_weights.h"
#include "cpu/panels.h"
#include "cpu/phases_kernels.h"
#include "cpu/results.h"
#include "cpu/scratch.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kFewestTargets = 12;  // channels that vectors run along
constexpr std::int64_t kShortSum = 32;       // products that do not pay for transposing a result
constexpr std::size_t kFewLattices = 4;
constexpr double kMostFilled = 1.1;         // a line that is longer than its cells by more is mostly gaps
constexpr std::int64_t kMostTargets = 256;  // of a block
constexpr double kSumsShare = 0.3;          // of the L2 cache
constexpr double kWindowShare = 0.15;
constexpr std::int64_t kFewestCells = 64;
constexpr std::int64_t kTasksWanted = 16;
constexpr double kFewestProducts = 40000;  // vectors of a task, where another thread has to be woken for it

template <typename E, typename T>
class GradInputFromWindows final : public Kernel {
 public:
  GradInputFromWindows(const Problem& problem, const Roles& roles, Tiling tiling, std::int64_t targets)
      : problem_(problem),
        roles_(roles),
        tiling_(std::move(tiling)),
        window_(problem, tiling_.shape()),
        targets_(targets),
        target_blocks_(ceil_div(roles.target_channels, targets)),
        packed_(problem, roles, tiling_,
                window_.channels_inside() ? WeightOrder::channels_inside : WeightOrder::taps_inside) {
    for (int a = 0; a < kSpatialAxes; ++a) kernel_[a] = problem.axes[a].kernel;
    const std::int64_t taps = tiling_.all_taps();
    const std::int64_t width = problem.axes[2].kernel;
    run_ = window_.channels_inside() ? width * roles.source_channels : width;
    pairs_ = std::is_same_v<E, BFloat16> && has_bf16_products();
    const std::int64_t lines = window_.channels_inside() ? 1 : roles.source_channels;
    for (std::int64_t channel = 0; channel < lines; ++channel) {
      for (std::int64_t t = 0; t < taps; t += width) {
        const std::int64_t place = window_.place_of_tap(channel, tiling_.phases()[0].taps[t].tap);
        offsets_.push_back(pairs_ ? place / 2 : place);
      }
    }
    rounds_in_place_ = pairs_ && roles.target_strides[1] == 1;
    cell_step_ = window_.place_of_cell(0, {0, 0, 1});
    half_ = window_.size() / 2 + 1;
    stores_in_place_ = std::is_same_v<E, T> && roles.target_strides[1] == 1 && roles.target_channels % kMostLanes == 0;
    // Where a tile is whole images, all are the same.
    if (tiling_.shape().tiles_along == Triple{1, 1, 1}) whole_ = cells_of(tiling_.tile(0));
    const std::int64_t blocks = roles.groups * target_blocks_;
    const std::int64_t all = blocks * weights_of_block();
    if (tiling_.tiles() > 1 && all <= room_for_weights(problem)) workspace_bytes_ = all * sizeof(T);
  }

  std::size_t workspace_bytes() const { return workspace_bytes_; }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const auto* grad = static_cast<const E*>(buffers.output);
    const auto* weight = static_cast<const E*>(buffers.weight);
    auto* input = static_cast<E*>(buffers.input);
    T* const shared = workspace_bytes_ > 0 ? static_cast<T*>(buffers.workspace) : nullptr;
    const std::int64_t blocks = roles_.groups * target_blocks_;
    if (shared == nullptr) {
      for_each_task(execution, blocks * tiling_.tiles(), [&](std::int64_t task) {
        thread_local Scratch<T> memory;
        const TargetBlock block = block_at(task / tiling_.tiles());
        T* const own = memory.get(weights_of_block());
        pack(weight, block, own);
        run_task(grad, own, input, block, task % tiling_.tiles());
      });
      return;
    }
    for_each_step(execution, {blocks, blocks * tiling_.tiles()}, [&](std::size_t step, std::int64_t task) {
      const std::int64_t index = step == 0 ? task : task / tiling_.tiles();
      T* const weights = shared + index * weights_of_block();
      if (step == 0) return pack(weight, block_at(index), weights);
      run_task(grad, weights, input, block_at(index), task % tiling_.tiles());
    });
  }

  std::string describe() const override {
    return "windows, " + std::to_string(tiling_.tiles()) + " tiles of up to " + std::to_string(tiling_.longest()) +
           " cells, " + std::to_string(targets_) + " target channels, " + std::to_string(run_) +
           " neighbours a step, " + (pairs_ ? "pairs of bfloat16, " : "") + target_name();
  }

 private:
  struct Memory {
    Scratch<T> window;
    Scratch<T> sums;
  };

  std::int64_t weights_of_block() const {
    return roles_.source_channels * tiling_.all_taps() * packed_.targets(targets_);
  }

  TargetBlock block_at(std::int64_t index) const {
    TargetBlock block;
    block.group = index / target_blocks_;
    block.first = index % target_blocks_ * targets_;
    block.targets = std::min(targets_, roles_.target_channels - block.first);
    return block;
  }

  void pack(const E* weight, const TargetBlock& block, T* to) const {
    packed_.pack(weight, block, 0, roles_.source_channels, packed_.all_phases(), to);
    if (!pairs_) return;
    const MathOps<T>& math = math_ops<T>();
    const std::int64_t panel = packed_.tile_along_targets(math, block.targets).vectors * math.lanes;
    const auto runs = static_cast<std::int64_t>(offsets_.size());
    for (std::int64_t row = 0; row < block.targets; row += panel) {
      const std::int64_t width = panel_width(math, panel, block.targets, row);
      for (std::int64_t run = 0; run < runs; ++run) {
        if constexpr (std::is_same_v<T, float>) pair_rows(to + (row * runs + run * width) * run_, width, run_);
      }
    }
  }

  // Cells of a row of the tile, the first at `place` of the window.
  void add_row(CellList& cells, std::int64_t place, std::int64_t c, std::int64_t c_step, std::int64_t count) const {
    if (!pairs_) return cells.add(place, cell_step_, c, c_step, count);
    if (cell_step_ % 2 == 0) return cells.add(place / 2, cell_step_ / 2, c, c_step, count);
    cells.add(place / 2, cell_step_, c, 2 * c_step, ceil_div(count, 2));
    cells.add(half_ + (place + cell_step_) / 2, cell_step_, c + c_step, 2 * c_step, count / 2);
  }

  // Elements as they are, and once more from the second one on where pairs begin at odd places.
  void load_pairs(const Tile& tile, const BFloat16* grad, T* to) const {
    auto* const even = reinterpret_cast<BFloat16*>(to);
    window_.load(tile, grad, even, copy_elements);
    if (cell_step_ % 2 != 0) std::copy_n(even + 1, window_.size() - 1, reinterpret_cast<BFloat16*>(to + half_));
  }

  // The cells of a tile that the same taps in depth and height reach, counted from its first one, and where the runs of
  // these taps are in the window and among the weights.
  struct Reached {
    std::array<Window::TapRange, 2> taps;
    std::vector<std::int64_t> offsets;
    std::vector<std::int64_t> places;
    CellList cells;
  };
  std::vector<Reached> cells_of(const Tile& tile) const {
    std::vector<Reached> all;
    CellPlaces to = CellPlaces::on_line(tiling_, round_up(targets_, kMostLanes));
    if (stores_in_place_ || rounds_in_place_)
      to = CellPlaces::in_tensor({}, tiling_.phases()[0].lattice, roles_.target_strides);
    for (std::int64_t image = 0; image < tile.images; ++image) {
      for (std::int64_t d = 0; d < tile.count[0]; ++d) {
        for (std::int64_t h = 0; h < tile.count[1]; ++h) {
          const std::array taps = {window_.taps_of_cell(0, tile.begin[0] + d),
                                   window_.taps_of_cell(1, tile.begin[1] + h)};
          auto same = std::ranges::find(all, taps, &Reached::taps);
          if (same == all.end()) same = all.insert(all.end(), reached_by(taps));
          add_row(same->cells, window_.place_of_cell(image, {d, h, 0}), to.of({image, {d, h, 0}, 2, 1, {}}), to.step[2],
                  tile.count[2]);
        }
      }
    }
    return all;
  }

  Reached reached_by(const std::array<Window::TapRange, 2>& taps) const {
    Reached reached{taps, {}, {}, {}};
    for (std::int64_t line = 0; line < std::ssize(offsets_); line += kernel_[0] * kernel_[1]) {
      for (std::int64_t d = taps[0].first; d < taps[0].last; ++d) {
        for (std::int64_t h = taps[1].first; h < taps[1].last; ++h) {
          const std::int64_t run = line + d * kernel_[1] + h;
          reached.offsets.push_back(offsets_[run]);
          reached.places.push_back(run * run_);
        }
      }
    }
    return reached;
  }

  void run_task(const E* grad, const T* weights, E* input, const TargetBlock& block, std::int64_t index) const {
    thread_local Memory memory;
    const MathOps<T>& math = math_ops<T>();
    const Tile tile = tiling_.tile(index);
    T* const window = memory.window.get(std::max(window_.size(), 2 * half_));
    const E* const from = grad + block.group * roles_.source_channels * roles_.source_strides[1];
    if constexpr (std::is_same_v<E, BFloat16>) {
      if (pairs_) load_pairs(tile, from, window);
    }
    if (!pairs_) window_.load(tile, from, window);
    const std::int64_t target = roles_.first_target(block.group, block.first);
    MultiplyCells<T> job;
    job.a = window;
    job.depth = pairs_ ? ceil_div(run_, 2) : run_;
    job.torn = pairs_ && run_ % 2 != 0;
    Results<T> results;
    const CellPlaces places = CellPlaces::in_tensor(tile, tiling_.phases()[0].lattice, roles_.target_strides);
    if constexpr (std::is_same_v<E, T>) {
      if (stores_in_place_) job.c = input + target + places.of({});
    }
    if constexpr (std::is_same_v<E, BFloat16>) {
      if (rounds_in_place_) job.rounded = input + target + places.of({});
      job.columns = block.targets;
    }
    if (!stores_in_place_ && !rounds_in_place_) {
      results.cells_are_columns = false;
      results.row_size = round_up(targets_, kMostLanes);
      results.phase_size = results.row_size * tile.length;
      results.sums = memory.sums.get(results.phase_size + kMostLanes);
      job.c = results.sums;
    }
    const bool known = !whole_.empty() && tile.images == tiling_.tile(0).images;
    const std::vector<Reached> own = known ? std::vector<Reached>() : cells_of(tile);
    const auto size = packed_.tile_along_targets(math, block.targets);
    for (const Reached& reached : known ? whole_ : own) {
      job.offsets = reached.offsets.data();
      job.places = reached.places.data();
      job.parts = std::ssize(reached.places);
      const Panels<T> panels{weights, std::ssize(offsets_) * run_};
      if constexpr (std::is_same_v<T, float>) {
        if (pairs_) {
          reached.cells.multiply_by(bf16_cells(), math, size, block.targets, panels, job);
          continue;
        }
      }
      reached.cells.multiply(math, size, block.targets, panels, job);
    }
    if (!stores_in_place_ && !rounds_in_place_) {
      const ResultStore<E, T> put(tiling_, problem_.input_sizes(), roles_.target_strides, nullptr, input);
      put(tile, target, block.targets, results);
    }
  }

  Problem problem_;
  Roles roles_;
  Tiling tiling_;
  Window window_;
  std::int64_t targets_ = 1;  // of a block
  std::int64_t target_blocks_ = 1;
  PackedWeights<E, T> packed_;
  std::int64_t run_ = 1;               // elements of a window, and of the sum, that lie side by side
  std::vector<std::int64_t> offsets_;  // of these runs in the window: [channel][tap in depth][tap in height]
  Triple kernel_{};
  bool stores_in_place_ = false;
  bool pairs_ = false;            // of neighbours, bfloat16, are multiplied together
  bool rounds_in_place_ = false;  // stores, of sums of pairs
  std::int64_t cell_step_ = 0;    // from a cell to the next in the window
  std::int64_t half_ = 0;         // words of pairs that begin at even places
  std::vector<Reached> whole_;    // of a tile of whole images
  std::size_t workspace_bytes_ = 0;
};

// Where cells are the columns nothing has to be transposed, but lattices are packed one by one, and what lies between
// rows is computed too. It does not depend on the batch: it changes the order of the sums.
bool pays_for_transposing(const Problem& problem, std::int64_t products) {
  constexpr std::int64_t kMostCells = 1024;
  if (products < kShortSum) return false;
  const AxisMaps maps = maps_of(problem);
  std::size_t lattices = 1;
  for (const AxisMap& map : maps) lattices *= map.sources.size();
  const TileShape shape(maps, 1, kMostCells);
  const std::int64_t cells = shape.block[0] * shape.block[1] * shape.block[2];
  return lattices > kFewLattices || static_cast<double>(shape.longest()) > kMostFilled * static_cast<double>(cells);
}

}  // namespace

std::optional<std::int64_t> cells_of_window(const Problem& problem, std::int64_t most, std::int64_t room) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 18;
  std::int64_t of_image = 1;
  std::int64_t of_cell = problem.out_channels_per_group();
  if (of_cell == 0) return {};
  for (const Axis& axis : problem.axes) {
    if (axis.input == 0 || axis.output() <= 0) return {};
    // Where padding takes most of it away, an output is small whatever lies between its taps and cells.
    const bool far_taps = axis.kernel > 1 && axis.dilation > kLargest / (axis.kernel - 1);
    const bool far_cells = axis.input > 1 && axis.stride > kLargest;
    if (far_taps || far_cells) return {};
    of_image *= axis.input;
    of_cell *= axis.input > 1 ? axis.stride : 1;
  }
  const std::int64_t cells = std::max(std::min(most, room / of_cell), kFewestCells);
  const TileShape shape(maps_of_cells(problem), 1, cells);
  const std::int64_t size = Window(problem, shape).size();
  if (size > kLargest) return {};
  return shape.tiles > 1 ? cells : std::min(cells, kLargest / size * of_image);
}

Proposal propose_windows(const Problem& problem) {
  const Roles roles(problem);
  const std::int64_t width = problem.axes[2].kernel;
  if (problem.direction != Direction::grad_input || roles.interleaved > 1 || roles.stacked > 1 ||
      roles.source_channels == 0 || roles.source_channels >= kFewOutputs || roles.target_channels < kFewestTargets) {
    return Proposal::decline("needs few output channels");
  }
  if (width == 1 || problem.axes[2].dilation > 1) return Proposal::decline("needs taps side by side");
  std::int64_t taps = 1;
  std::int64_t cells = problem.batch;
  for (const Axis& axis : problem.axes) {
    taps *= axis.kernel;
    cells *= axis.input;
    if (axis.output() <= 0) return Proposal::decline("needs an output");
  }
  if (cells == 0) return Proposal::decline("needs an input");
  if (roles.target_strides[1] != 1 && !pays_for_transposing(problem, taps * roles.source_channels)) {
    return Proposal::decline("is not worth transposing for");
  }
  const std::int64_t targets =
      std::min(round_up(even_parts(roles.target_channels, kMostTargets), kMostLanes), roles.target_channels);
  const double products = static_cast<double>(cells) * static_cast<double>(taps * roles.source_channels) *
                          static_cast<double>(ceil_div(roles.target_channels, kMostLanes));
  const auto tasks = std::clamp<std::int64_t>(static_cast<std::int64_t>(products / kFewestProducts), 1, kTasksWanted);
  const auto most = cells_of_window(problem, caches().elements(kSumsShare) / round_up(targets, kMostLanes),
                                    caches().elements(kWindowShare));
  if (!most) return Proposal::decline("windows are too large");
  const Tiling tiling(maps_of_cells(problem), problem.batch,
                      std::min(*most, std::max(ceil_div(cells, tasks), kFewestCells)));
  return with_types(problem.dtype, [&]<typename E, typename T> {
    Proposal proposal;
    const auto kernel = std::make_shared<GradInputFromWindows<E, T>>(problem, roles, tiling, targets);
    proposal.workspace_bytes = kernel->workspace_bytes();
    proposal.kernel = kernel;
    return proposal;
  });
}

}  // namespace tconv::cpu
