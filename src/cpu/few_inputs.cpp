// forward of few input channels that lie side by side, as the output channels do: what the taps of a kernel row read
// for a cell is one run of a row of the input, and neighbouring cells' runs overlap. So rows are copied with zeros
// around them, cells are rows of the product where they lie,
//   output[cell][co] = bias[co] + sum over kernel rows and k of the run of  row[first of the run + k] weight[k][co],
// and sums go from registers to the tensor. Rows that are not there are left out. Each element is one chain of
// multiply-adds in an order that depends on the layer alone.
#include <hwy/cache_control.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "cpu/blocking.h"
#include "cpu/packed_weights.h"
#include "cpu/panels.h"
#include "cpu/past_caches.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kFewInputs = kMostLanes / 2;  // fewer input channels than this
constexpr std::int64_t kFewestTargets = 2 * kMostLanes;
constexpr std::int64_t kLongestRow = std::int64_t{1} << 16;  // elements of a row of the input, with what surrounds it
constexpr std::int64_t kMostCopied = std::int64_t{1} << 18;  // elements of the rows that one row of cells reads
constexpr std::int64_t kMostTaps = std::int64_t{1} << 12;
constexpr std::int64_t kFewestRows = 4;  // of cells, of a task, which have rows of the input in common
constexpr std::int64_t kTasksWanted = 32;

template <typename T>
class FewInputs final : public Kernel {
 public:
  // Taps along the row in the order of what they read.
  FewInputs(const Problem& problem, const Roles& roles, const Tiling& tiling)
      : problem_(problem), maps_(tiling.maps()), packed_(problem, roles, tiling, WeightOrder::channels_inside) {
    const std::int64_t channels = problem.in_channels;
    lead_ = std::max<std::int64_t>(-maps_[2].lowest, 0) * channels;
    const std::int64_t read = maps_[2].cells + std::max<std::int64_t>(maps_[2].highest, 0);
    line_ = lead_ + std::max(problem.axes[2].input, read) * channels;
    for (const AxisTarget& target : maps_[2].targets) {
      RowPhase& phase = row_phases_.emplace_back();
      const std::int64_t first = target.taps.empty() ? 0 : target.taps[0].offset;
      const std::int64_t step = problem.output_strides[4];
      phase.cells.add(first * channels, channels, target.lattice.first * step, target.lattice.step * step,
                      target.lattice.count);
      phase.run = std::ssize(target.taps) * channels;
    }
    for (const AxisTarget& target : maps_[0].targets) {
      for (std::int64_t cell = 0; cell < target.lattice.count; ++cell) depths_.push_back({&target, cell});
    }
    const std::int64_t slices = problem.batch * std::ssize(depths_);
    const std::int64_t rows = maps_[1].cells;
    const std::int64_t bands = std::clamp<std::int64_t>(ceil_div(kTasksWanted, slices), 1, ceil_div(rows, kFewestRows));
    band_ = ceil_div(rows, bands);
    bands_ = ceil_div(rows, band_);
    reach_ = maps_[1].highest - maps_[1].lowest;
  }
  FewInputs(const FewInputs&) = delete;  // depths refer to the maps
  FewInputs& operator=(const FewInputs&) = delete;

  std::size_t workspace_bytes() const { return weights() * sizeof(T); }
  std::int64_t weights() const {
    return packed_.targets(problem_.out_channels) * problem_.in_channels * packed_.taps_of(packed_.all_phases());
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    T* const weights = static_cast<T*>(buffers.workspace);
    const Sizes sizes = problem_.output_sizes();
    const bool past_caches = exceeds_caches(sizes, problem_.input_sizes(), sizeof(T)) &&
                             has_whole_lines(static_cast<const T*>(buffers.output), sizes, problem_.output_strides);
    const std::int64_t tasks = problem_.batch * std::ssize(depths_) * bands_;
    for_each_step(execution, {1, tasks}, [&](std::size_t step, std::int64_t task) {
      if (step == 0) {
        packed_.pack(static_cast<const T*>(buffers.weight), block(), 0, problem_.in_channels, packed_.all_phases(),
                     weights);
        return;
      }
      run_band(buffers, weights, task, past_caches);
      if (past_caches) hwy::FlushStream();  // before another thread reads the results
    });
  }

  std::string describe() const override {
    return "few inputs, " + std::to_string(bands_) + " bands of up to " + std::to_string(band_) + " rows of cells, " +
           std::to_string(row_phases_.size()) + " phases of a row, " + target_name();
  }

 private:
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

  TargetBlock block() const { return {0, 0, problem_.out_channels}; }

  void run_band(const Buffers& buffers, const T* weights, std::int64_t task, bool past_caches) const {
    thread_local Memory memory;
    const MathOps<T>& math = math_ops<T>();
    const Strides& strides = problem_.output_strides;
    const std::int64_t begin = task % bands_ * band_;
    const std::int64_t end = std::min(begin + band_, maps_[1].cells);
    const Depth& depth = depths_[task / bands_ % std::ssize(depths_)];
    const std::int64_t image = task / bands_ / std::ssize(depths_);
    const std::int64_t first_row = std::clamp<std::int64_t>(begin + maps_[1].lowest, 0, problem_.axes[1].input);
    const std::int64_t last_row = std::clamp<std::int64_t>(end + maps_[1].highest, first_row, problem_.axes[1].input);
    const std::int64_t slice = (last_row - first_row) * line_;
    T* const rows = memory.rows.get(std::ssize(depth.target->taps) * (band_ + reach_) * line_ + kMostLanes);
    const T* const input = static_cast<const T*>(buffers.input) + image * problem_.input_strides[0];
    for (std::int64_t d = 0; d < std::ssize(depth.target->taps); ++d) {
      const std::int64_t z = depth.cell + depth.target->taps[d].offset;
      if (z < 0 || z >= problem_.axes[0].input) continue;
      load_rows(input + z * problem_.input_strides[2], first_row, last_row, rows + d * slice);
    }
    const AxisMap& heights = maps_[1];
    const auto height_phases = std::ssize(heights.targets);
    const auto depth_phase = depth.target - maps_[0].targets.data();
    const auto tile = packed_.tile_along_targets(math, problem_.out_channels);
    MultiplyCells<T> job;
    job.initial = problem_.bias ? static_cast<const T*>(buffers.bias) : nullptr;
    job.past_caches = past_caches;
    const std::int64_t z = depth.target->lattice.first + depth.cell * depth.target->lattice.step;
    T* const output = static_cast<T*>(buffers.output) + image * strides[0] + z * strides[2];
    for (std::int64_t cell = begin; cell < end; ++cell) {
      for (std::int64_t h = 0; h < height_phases; ++h) {
        const AxisTarget& height = heights.targets[h];
        if (cell >= height.lattice.count) continue;
        find_runs(depth, height, cell, first_row, last_row - first_row, memory);
        T* const row = output + (height.lattice.first + cell * height.lattice.step) * strides[3];
        for (std::size_t w = 0; w < row_phases_.size(); ++w) {
          const RowPhase& phase = row_phases_[w];
          const auto index = static_cast<std::size_t>(depth_phase * height_phases + h) * row_phases_.size() + w;
          memory.places.clear();
          for (const std::int64_t tap : memory.taps) memory.places.push_back(tap * phase.run);
          job.a = rows + lead_;
          job.c = row;
          job.offsets = memory.offsets.data();
          job.places = memory.places.data();
          job.parts = phase.run == 0 ? 0 : std::ssize(memory.places);
          job.depth = phase.run;
          const std::int64_t all =
              std::ssize(depth.target->taps) * std::ssize(height.taps) * phase.run;  // k of the phase
          const T* const packed = weights + packed_.place_of_phase(block(), problem_.in_channels, index);
          phase.cells.multiply(math, tile, problem_.out_channels, Panels<T>{packed, all}, job);
        }
      }
    }
  }

  // Rows of one depth, with zeros around them.
  void load_rows(const T* from, std::int64_t first, std::int64_t last, T* to) const {
    const std::int64_t count = problem_.axes[2].input * problem_.in_channels;
    for (std::int64_t y = first; y < last; ++y, to += line_) {
      std::fill_n(to, lead_, T{0});
      std::copy_n(from + y * problem_.input_strides[3], count, to + lead_);
      std::fill(to + lead_ + count, to + line_, T{0});
    }
  }

  // The kernel rows that read something for a row of cells; rows from `first` on are there, `rows` of each depth.
  void find_runs(const Depth& depth, const AxisTarget& height, std::int64_t cell, std::int64_t first, std::int64_t rows,
                 Memory& memory) const {
    memory.offsets.clear();
    memory.taps.clear();
    for (std::int64_t d = 0; d < std::ssize(depth.target->taps); ++d) {
      const std::int64_t z = depth.cell + depth.target->taps[d].offset;
      if (z < 0 || z >= problem_.axes[0].input) continue;
      for (std::int64_t h = 0; h < std::ssize(height.taps); ++h) {
        const std::int64_t y = cell + height.taps[h].offset;
        if (y < 0 || y >= problem_.axes[1].input) continue;
        memory.offsets.push_back((d * rows + y - first) * line_);
        memory.taps.push_back(d * std::ssize(height.taps) + h);
      }
    }
  }

  Problem problem_;
  AxisMaps maps_;
  PackedWeights<T, T> packed_;
  std::int64_t lead_ = 0;  // zeros before a copied row
  std::int64_t line_ = 0;  // from one to the next
  std::vector<RowPhase> row_phases_;
  std::vector<Depth> depths_;
  std::int64_t band_ = 1;  // rows of cells of a task
  std::int64_t bands_ = 1;
  std::int64_t reach_ = 0;  // rows of the input that a row of cells reads, but one
};

}  // namespace

Proposal propose_few_inputs(const Problem& problem) {
  const Roles roles(problem);
  const Strides& strides = problem.input_strides;
  if (problem.direction != Direction::forward || problem.groups > 1 || roles.source_channels == 0 ||
      roles.source_channels >= kFewInputs || roles.target_channels < kFewestTargets ||
      roles.target_channels % kMostLanes != 0) {
    return Proposal::decline("needs few input channels, and output channels that are whole vectors");
  }
  const bool side_by_side = strides[4] == problem.in_channels && (problem.in_channels == 1 || strides[1] == 1);
  if (!side_by_side || problem.output_strides[1] != 1) return Proposal::decline("needs channels side by side");
  if (element_count(problem.input_sizes()) == 0 || element_count(problem.output_sizes()) == 0) {
    return Proposal::decline("needs at least one element");
  }
  std::int64_t taps = 1;
  for (const Axis& axis : problem.axes) taps *= std::min(axis.kernel, kMostTaps + 1);
  if (taps > kMostTaps) return Proposal::decline("needs fewer taps");
  AxisMaps maps = maps_of(problem);
  for (int a = 0; a < kSpatialAxes; ++a) {
    std::int64_t covered = 0;
    for (const AxisTarget& target : maps[a].targets) covered += target.lattice.count;
    if (covered != problem.axes[a].output()) return Proposal::decline("needs rows without gaps");
  }
  for (AxisTarget& target : maps[2].targets) {
    std::ranges::reverse(target.taps);
    for (std::size_t t = 1; t < target.taps.size(); ++t) {
      if (target.taps[t].offset != target.taps[t - 1].offset + 1) return Proposal::decline("needs taps side by side");
    }
  }
  const auto reach_of = [](const AxisMap& map) { return map.highest - map.lowest + 1; };
  const std::int64_t row = (std::max(problem.axes[2].input, maps[2].cells) + reach_of(maps[2])) * problem.in_channels;
  if (row > kLongestRow || reach_of(maps[0]) > kMostCopied / row || reach_of(maps[1]) > kMostCopied / row ||
      reach_of(maps[0]) * (reach_of(maps[1]) + kFewestRows) > kMostCopied / row) {
    return Proposal::decline("needs shorter rows");
  }
  constexpr std::int64_t kCells = 1024;  // of which register tiles are chosen
  const Tiling tiling(maps, problem.batch, kCells);
  return with_types(problem.dtype, [&]<typename E, typename T> {
    Proposal proposal;
    if constexpr (!std::is_same_v<E, T>) {
      proposal.declined = "needs elements that are not converted";
    } else {
      const auto kernel = std::make_shared<FewInputs<T>>(problem, roles, tiling);
      if (kernel->weights() > room_for_weights(problem)) return Proposal::decline("needs fewer weights");
      proposal.workspace_bytes = kernel->workspace_bytes();
      proposal.kernel = kernel;
    }
    return proposal;
  });
}

}  // namespace tconv::cpu
