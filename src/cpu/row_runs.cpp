// forward and grad_input of few source channels that lie side by side, as the target channels do: what the taps of a
// kernel row read for a cell is one run of a row of the source, and neighbouring cells' runs overlap. So rows are
// copied with zeros around them, cells are rows of the product where they lie,
//   target[cell][ct] = bias[ct] + sum over kernel rows and k of the run of  row[first of the run + k] weight[k][ct],
// and sums go from registers to the tensor. Rows that are not there are left out. Each element is one chain of
// multiply-adds in an order that depends on the layer alone.
#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu/blocking.h"
#include "cpu/packed_weights.h"
#include "cpu/panels.h"
#include "cpu/past_caches.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"
#include "cpu/windows.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kMostSources = 7;  // source channels
constexpr std::int64_t kFewestTargets = 2 * kMostLanes;
constexpr std::int64_t kLongestRow = std::int64_t{1} << 16;  // elements of a row of the source, with what surrounds it
constexpr std::int64_t kMostCopied = std::int64_t{1} << 18;  // elements of the rows that a few rows of cells read
constexpr std::int64_t kBandCopied = std::int64_t{1} << 16;  // the same of a band of more rows: in the L2 cache
constexpr std::int64_t kMostTaps = std::int64_t{1} << 12;
constexpr std::int64_t kFewestRows = 4;  // of cells, of a task, which have rows of the source in common
constexpr std::int64_t kTasksWanted = 32;

// An axis from cells, positions of a lattice of the target, to what their taps read: cell * step + offset of the tap.
struct CellAxis {
  std::vector<AxisTarget> targets;
  std::int64_t step = 1;
  std::int64_t cells = 0;  // of the longest lattice
  std::int64_t lowest = 0;
  std::int64_t highest = 0;
  std::int64_t source = 0;  // positions

  CellAxis(const AxisMap& map, const Problem& problem, int a) : targets(map.targets), cells(map.cells) {
    const Axis& axis = problem.axes[a];
    const bool forward = problem.direction == Direction::forward;
    step = forward ? 1 : axis.stride;
    source = forward ? axis.input : axis.output();
    bool first = true;
    for (AxisTarget& target : targets) {
      for (AxisTap& tap : target.taps) {
        if (!forward) tap.offset = tap.tap * axis.dilation - axis.pad_begin;
        lowest = first ? tap.offset : std::min(lowest, tap.offset);
        highest = first ? tap.offset : std::max(highest, tap.offset);
        first = false;
      }
    }
  }

  // Positions that some cells read, [begin, end).
  std::int64_t begin_of(std::int64_t first) const { return std::clamp<std::int64_t>(first * step + lowest, 0, source); }
  std::int64_t end_of(std::int64_t last) const {
    return std::clamp<std::int64_t>((last - 1) * step + highest + 1, 0, source);
  }
  std::int64_t positions_of(std::int64_t count) const { return (count - 1) * step + highest - lowest + 1; }
};
using CellAxes = std::array<CellAxis, kSpatialAxes>;

template <typename T>
class RowRuns final : public Kernel {
 public:
  // Taps along the row in the order of what they read.
  RowRuns(const Problem& problem, const Roles& roles, const Tiling& tiling, CellAxes axes)
      : problem_(problem),
        roles_(roles),
        axes_(std::move(axes)),
        packed_(problem, roles, tiling, WeightOrder::channels_inside),
        forward_(problem.direction == Direction::forward) {
    const CellAxis& width = axes_[2];
    const std::int64_t channels = roles.source_channels;
    lead_ = std::max<std::int64_t>(-width.lowest, 0) * channels;
    const std::int64_t read = (width.cells - 1) * width.step + std::max<std::int64_t>(width.highest, 0) + 1;
    line_ = lead_ + std::max(width.source, read) * channels;
    for (const AxisTarget& target : width.targets) {
      RowPhase& phase = row_phases_.emplace_back();
      const std::int64_t first = target.taps.empty() ? 0 : target.taps[0].offset;
      const std::int64_t step = roles.target_strides[4];
      phase.cells.add(first * channels, width.step * channels, target.lattice.first * step, target.lattice.step * step,
                      target.lattice.count);
      phase.run = std::ssize(target.taps) * channels;
    }
    for (const AxisTarget& target : axes_[0].targets) {
      for (std::int64_t cell = 0; cell < target.lattice.count; ++cell) depths_.push_back({&target, cell});
    }
    const std::int64_t slices = problem.batch * std::ssize(depths_);
    const std::int64_t rows = axes_[1].cells;
    const std::int64_t bands = std::clamp<std::int64_t>(ceil_div(kTasksWanted, slices), 1, ceil_div(rows, kFewestRows));
    band_ = even_parts(rows, std::min(ceil_div(rows, bands), most_rows()));
    bands_ = ceil_div(rows, band_);
  }
  RowRuns(const RowRuns&) = delete;  // depths refer to the axes
  RowRuns& operator=(const RowRuns&) = delete;

  std::size_t workspace_bytes() const { return weights() * sizeof(T); }
  std::int64_t weights() const {
    return packed_.targets(roles_.target_channels) * roles_.source_channels * packed_.taps_of(packed_.all_phases());
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    T* const weights = static_cast<T*>(buffers.workspace);
    const Sizes sizes = forward_ ? problem_.output_sizes() : problem_.input_sizes();
    const Sizes sources = forward_ ? problem_.input_sizes() : problem_.output_sizes();
    const Tensors tensors{static_cast<const T*>(forward_ ? buffers.input : buffers.output), weights,
                          forward_ && problem_.bias ? static_cast<const T*>(buffers.bias) : nullptr,
                          static_cast<T*>(forward_ ? buffers.output : buffers.input)};
    const bool past_caches =
        exceeds_caches(sizes, sources, sizeof(T)) && has_whole_lines(tensors.target, sizes, roles_.target_strides);
    const std::int64_t tasks = problem_.batch * std::ssize(depths_) * bands_;
    for_each_step(execution, {1, tasks}, [&](std::size_t step, std::int64_t task) {
      if (step == 0) {
        packed_.pack(static_cast<const T*>(buffers.weight), block(), 0, roles_.source_channels, packed_.all_phases(),
                     weights);
        return;
      }
      run_band(tensors, task, past_caches);
      if (past_caches) hwy::FlushStream();  // before another thread reads the results
    });
  }

  std::string describe() const override {
    return "runs of rows, " + std::to_string(bands_) + " bands of up to " + std::to_string(band_) + " rows of cells, " +
           std::to_string(row_phases_.size()) + " phases of a row, " + target_name();
  }

 private:
  // Of cells, of a band, whose rows of the source are copied.
  std::int64_t most_rows() const {
    const CellAxis& heights = axes_[1];
    std::size_t depths = 1;
    for (const AxisTarget& target : axes_[0].targets) depths = std::max(depths, target.taps.size());
    const std::int64_t positions = kBandCopied / (line_ * static_cast<std::int64_t>(depths));
    return std::max((positions - heights.positions_of(1)) / heights.step + 1, kFewestRows);
  }

  struct RowPhase {
    CellList cells;
    std::int64_t run = 0;  // elements that the taps of a kernel row read for a cell
  };
  // A position of the output.
  struct Depth {
    const AxisTarget* target;
    std::int64_t cell;
  };
  struct Memory {
    Scratch<T> rows;
    std::vector<std::int64_t> offsets;  // of the runs of a row of cells in the copied rows
    std::vector<std::int64_t> taps;     // in depth and height, of these runs
    std::vector<std::int64_t> places;   // of the runs among the weights
  };

  struct Tensors {
    const T* source;
    const T* weights;  // packed
    const T* bias;
    T* target;
  };

  TargetBlock block() const { return {0, 0, roles_.target_channels}; }

  void run_band(const Tensors& tensors, std::int64_t task, bool past_caches) const {
    thread_local Memory memory;
    const MathOps<T>& math = math_ops<T>();
    const CellAxis& heights = axes_[1];
    const Strides& strides = roles_.target_strides;
    const std::int64_t begin = task % bands_ * band_;
    const std::int64_t end = std::min(begin + band_, heights.cells);
    const Depth& depth = depths_[task / bands_ % std::ssize(depths_)];
    const std::int64_t image = task / bands_ / std::ssize(depths_);
    const std::int64_t first_row = heights.begin_of(begin);
    const std::int64_t last_row = std::max(heights.end_of(end), first_row);
    const std::int64_t rows_there = last_row - first_row;
    T* const rows = memory.rows.get(std::ssize(depth.target->taps) * heights.positions_of(band_) * line_ + kMostLanes);
    const T* const source = tensors.source + image * roles_.source_strides[0];
    for (std::int64_t d = 0; d < std::ssize(depth.target->taps); ++d) {
      const std::int64_t z = depth.cell * axes_[0].step + depth.target->taps[d].offset;
      if (z < 0 || z >= axes_[0].source) continue;
      load_rows(source + z * roles_.source_strides[2], first_row, last_row, rows + d * rows_there * line_);
    }
    const auto height_phases = std::ssize(heights.targets);
    const auto depth_phase = depth.target - axes_[0].targets.data();
    const auto tile = packed_.tile_along_targets(math, roles_.target_channels);
    MultiplyCells<T> job;
    job.a = rows + lead_;
    job.initial = tensors.bias;
    job.past_caches = past_caches;
    const std::int64_t z = depth.target->lattice.first + depth.cell * depth.target->lattice.step;
    T* const target = tensors.target + image * strides[0] + z * strides[2];
    for (std::int64_t cell = begin; cell < end; ++cell) {
      for (std::int64_t h = 0; h < height_phases; ++h) {
        const AxisTarget& height = heights.targets[h];
        if (cell >= height.lattice.count) continue;
        find_runs(depth, height, cell, first_row, rows_there, memory);
        job.c = target + (height.lattice.first + cell * height.lattice.step) * strides[3];
        job.offsets = memory.offsets.data();
        for (std::size_t w = 0; w < row_phases_.size(); ++w) {
          const RowPhase& phase = row_phases_[w];
          const auto index = static_cast<std::size_t>(depth_phase * height_phases + h) * row_phases_.size() + w;
          memory.places.clear();
          for (const std::int64_t tap : memory.taps) memory.places.push_back(tap * phase.run);
          job.places = memory.places.data();
          job.parts = phase.run == 0 ? 0 : std::ssize(memory.places);
          job.depth = phase.run;
          const std::int64_t all = std::ssize(depth.target->taps) * std::ssize(height.taps) * phase.run;
          const T* const weights = tensors.weights + packed_.place_of_phase(block(), roles_.source_channels, index);
          phase.cells.multiply(math, tile, roles_.target_channels, Panels<T>{weights, all}, job);
        }
      }
    }
  }

  // Rows of one depth, with zeros around them.
  void load_rows(const T* from, std::int64_t first, std::int64_t last, T* to) const {
    const std::int64_t count = axes_[2].source * roles_.source_channels;
    for (std::int64_t y = first; y < last; ++y, to += line_) {
      std::fill_n(to, lead_, T{0});
      std::copy_n(from + y * roles_.source_strides[3], count, to + lead_);
      std::fill(to + lead_ + count, to + line_, T{0});
    }
  }

  // The kernel rows that read something for a row of cells; of each depth, `rows` rows are there, from `first` on.
  void find_runs(const Depth& depth, const AxisTarget& height, std::int64_t cell, std::int64_t first, std::int64_t rows,
                 Memory& memory) const {
    memory.offsets.clear();
    memory.taps.clear();
    for (std::int64_t d = 0; d < std::ssize(depth.target->taps); ++d) {
      const std::int64_t z = depth.cell * axes_[0].step + depth.target->taps[d].offset;
      if (z < 0 || z >= axes_[0].source) continue;
      for (std::int64_t h = 0; h < std::ssize(height.taps); ++h) {
        const std::int64_t y = cell * axes_[1].step + height.taps[h].offset;
        if (y < 0 || y >= axes_[1].source) continue;
        memory.offsets.push_back((d * rows + y - first) * line_);
        memory.taps.push_back(d * std::ssize(height.taps) + h);
      }
    }
  }

  Problem problem_;
  Roles roles_;
  CellAxes axes_;
  PackedWeights<T, T> packed_;
  bool forward_;
  std::int64_t lead_ = 0;  // zeros before a copied row
  std::int64_t line_ = 0;  // from one to the next
  std::vector<RowPhase> row_phases_;
  std::vector<Depth> depths_;
  std::int64_t band_ = 1;  // rows of cells of a task
  std::int64_t bands_ = 1;
};

}  // namespace

Proposal propose_row_runs(const Problem& problem) {
  const Roles roles(problem);
  const bool forward = problem.direction == Direction::forward;
  if (problem.groups > 1 || roles.source_channels == 0 || roles.source_channels > kMostSources ||
      roles.target_channels < kFewestTargets || roles.target_channels % kMostLanes != 0) {
    return Proposal::decline("needs few source channels, and target channels that are whole vectors");
  }
  const Strides& strides = roles.source_strides;
  const bool side_by_side = strides[4] == roles.source_channels && (roles.source_channels == 1 || strides[1] == 1);
  if (!side_by_side || roles.target_strides[1] != 1) return Proposal::decline("needs channels side by side");
  if (element_count(problem.input_sizes()) == 0 || element_count(problem.output_sizes()) == 0) {
    return Proposal::decline("needs at least one element");
  }
  std::int64_t taps = 1;
  for (const Axis& axis : problem.axes) {
    taps *= std::min(axis.kernel, kMostTaps + 1);
    if (axis.dilation > kLongestRow || axis.stride > kLongestRow) return Proposal::decline("needs taps that are near");
  }
  if (taps > kMostTaps) return Proposal::decline("needs fewer taps");
  AxisMaps maps = forward ? maps_of(problem) : maps_of_cells(problem);
  if (forward) std::ranges::for_each(maps[2].targets, [](AxisTarget& target) { std::ranges::reverse(target.taps); });
  const CellAxes axes{CellAxis(maps[0], problem, 0), CellAxis(maps[1], problem, 1), CellAxis(maps[2], problem, 2)};
  for (int a = 0; a < kSpatialAxes; ++a) {
    std::int64_t covered = 0;
    for (const AxisTarget& target : maps[a].targets) covered += target.lattice.count;
    const std::int64_t size = forward ? problem.axes[a].output() : problem.axes[a].input;
    if (covered != size) return Proposal::decline("needs rows without gaps");
  }
  for (const AxisTarget& target : axes[2].targets) {
    for (std::size_t t = 1; t < target.taps.size(); ++t) {
      if (target.taps[t].offset != target.taps[t - 1].offset + 1) return Proposal::decline("needs taps side by side");
    }
  }
  const std::int64_t row =
      (axes[2].source + axes[2].positions_of(axes[2].cells) + std::abs(axes[2].lowest)) * roles.source_channels;
  const std::int64_t in_depth = axes[0].positions_of(1);
  const std::int64_t in_height = axes[1].positions_of(kFewestRows);
  if (row > kLongestRow || in_depth > kMostCopied || in_height > kMostCopied ||
      in_depth * in_height > kMostCopied / row) {
    return Proposal::decline("needs shorter rows");
  }
  Problem sample = problem;  // forward may not depend on the batch: it changes the order of the sums
  sample.batch = 1;
  constexpr std::int64_t kCells = 1024;  // of which register tiles are chosen
  const Tiling tiling(std::move(maps), problem.batch, kCells);
  return with_types(problem.dtype, [&]<typename E, typename T> {
    Proposal proposal;
    if constexpr (!std::is_same_v<E, T>) {
      proposal.declined = "needs elements that are not converted";
    } else {
      const auto kernel = std::make_shared<RowRuns<T>>(problem, roles, tiling, axes);
      if (kernel->weights() > room_for_weights(sample)) return Proposal::decline("needs fewer weights");
      proposal.workspace_bytes = kernel->workspace_bytes();
      proposal.kernel = kernel;
    }
    return proposal;
  });
}

}  // namespace tconv::cpu
