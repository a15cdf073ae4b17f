// The "depthwise" family: one channel a group. Here, forward where channels lie side by side in memory (channels-last).
// Nothing is packed but the weights, as [tap][channel]; a vector holds channels, and every position is a short sum over
// its taps:
//   output[j][c] = bias[c] + sum over taps of  input[j + offset(tap)][c] weight[tap][c]
// Rows of positions are read where they lie. Those at the borders, which fewer taps reach, go one by one.
#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "cpu/axis_map.h"
#include "cpu/depthwise_simd.h"
#include "cpu/past_caches.h"
#include "cpu/phases_kernels.h"
#include "cpu/simd.h"
#include "cpu/tile.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kFewestChannels = 8;

template <typename E, typename T>
class Depthwise final : public Kernel {
 public:
  Depthwise(const Problem& problem, AxisMaps maps) : problem_(problem), maps_(std::move(maps)) {
    for (int a = 0; a < 2; ++a) {
      for (const AxisTarget& target : maps_[a].targets) {
        for (std::int64_t j = 0; j < target.lattice.count; ++j) {
          rows_[a].push_back({target.lattice.first + j * target.lattice.step, j, &target});
        }
      }
      std::sort(rows_[a].begin(), rows_[a].end(), [](const Row& x, const Row& y) { return x.position < y.position; });
    }
    for (const Axis& axis : problem.axes) taps_ *= axis.kernel;
    row_count_ = problem.batch * static_cast<std::int64_t>(rows_[0].size() * rows_[1].size());
  }

  // The order of the rows refers to the maps.
  Depthwise(const Depthwise&) = delete;
  Depthwise& operator=(const Depthwise&) = delete;

  std::size_t workspace_bytes() const { return taps_ * channels() * sizeof(T); }

  void run(const Buffers& buffers, const Execution& execution) const override {
    T* const workspace = static_cast<T*>(buffers.workspace);
    for_each_weight(static_cast<const E*>(buffers.weight), [&](const E* weight, std::int64_t tap) {
      element_ops<E, T>().load(weight, problem_.weight_strides[0], workspace + tap * channels(), 1, channels());
    });
    WeighCells<E, T> job;
    job.weights = workspace;
    job.from_step = problem_.input_strides[4];
    job.channels = channels();
    job.bias = problem_.bias ? static_cast<const E*>(buffers.bias) : nullptr;
    const E* const source = static_cast<const E*>(buffers.input);
    E* const target = static_cast<E*>(buffers.output);
    const Sizes sizes = problem_.output_sizes();
    job.past_caches = exceeds_caches(sizes, problem_.input_sizes(), sizeof(E)) &&
                      has_whole_lines(target, sizes, problem_.output_strides);
    const std::int64_t rows = rows_of_task();
    for_each_task(execution, ceil_div(row_count_, rows), [&](std::int64_t task) {
      WeighCells<E, T> own = job;
      std::vector<RowTap> taps;
      for (std::int64_t row = task * rows; row < std::min((task + 1) * rows, row_count_); ++row) {
        const auto [from, to] = enter_row(row, taps);
        for_each_piece(taps, [&](const AxisTarget& width, std::int64_t first, std::int64_t cells, const Taps& pieces) {
          own.from = source + from;
          own.to = target + to + (width.lattice.first + first * width.lattice.step) * problem_.output_strides[4];
          own.to_step = width.lattice.step * problem_.output_strides[4];
          own.cells = cells;
          own.offsets = pieces.offsets.data();
          own.places = pieces.places.data();
          own.taps = static_cast<std::int64_t>(pieces.offsets.size());
          depthwise_ops<E, T>().weigh(own);
        });
      }
      if (own.past_caches) hwy::FlushStream();  // before another thread reads the results
    });
  }

  std::string describe() const override {
    return std::to_string(row_count_) + " rows, vectors along channels, " + target_name();
  }

 private:
  struct Row {
    std::int64_t position;
    std::int64_t cell;  // of its lattice
    const AxisTarget* target;
  };
  // Taps in depth and height that a row reads: where their rows begin in the source, and in the weights.
  struct RowTap {
    std::int64_t offset;
    std::int64_t place;
  };
  struct Taps {
    std::vector<std::int64_t> offsets;
    std::vector<std::int64_t> places;
  };
  struct Places {
    std::int64_t source;
    std::int64_t target;
  };

  std::int64_t channels() const { return problem_.in_channels; }
  // Rows that are worth a thread, and more where there are many: a thread that is held up holds up no other.
  std::int64_t rows_of_task() const {
    constexpr std::int64_t kElements = 1 << 14;
    constexpr std::int64_t kTasksWanted = 32;
    const std::int64_t row = maps_[2].cells * channels();
    return std::max(ceil_div(kElements, std::max<std::int64_t>(row, 1)), ceil_div(row_count_, kTasksWanted));
  }

  template <typename Visit>
  void for_each_weight(const E* weight, const Visit& visit) const {
    const Strides& strides = problem_.weight_strides;
    const auto& [depth, height, width] = problem_.axes;
    std::int64_t tap = 0;
    for (std::int64_t d = 0; d < depth.kernel; ++d) {
      for (std::int64_t h = 0; h < height.kernel; ++h) {
        for (std::int64_t w = 0; w < width.kernel; ++w) {
          visit(weight + d * strides[2] + h * strides[3] + w * strides[4], tap++);
        }
      }
    }
  }

  // Where the image of a row begins in the source and the row itself in the target, and the taps that reach it.
  Places enter_row(std::int64_t index, std::vector<RowTap>& taps) const {
    const auto heights = static_cast<std::int64_t>(rows_[1].size());
    const auto depths = static_cast<std::int64_t>(rows_[0].size());
    const Row& height = rows_[1][index % heights];
    const Row& depth = rows_[0][index / heights % depths];
    const std::int64_t image = index / (heights * depths);
    taps.clear();
    for (const AxisTap& kd : depth.target->taps) {
      const Lattice& in_depth = maps_[0].sources[kd.source];
      const std::int64_t d = depth.cell + kd.offset;
      if (d < 0 || d >= in_depth.count) continue;
      for (const AxisTap& kh : height.target->taps) {
        const Lattice& in_height = maps_[1].sources[kh.source];
        const std::int64_t h = height.cell + kh.offset;
        if (h < 0 || h >= in_height.count) continue;
        taps.push_back({(in_depth.first + d * in_depth.step) * problem_.input_strides[2] +
                            (in_height.first + h * in_height.step) * problem_.input_strides[3],
                        (kd.tap * problem_.axes[1].kernel + kh.tap) * problem_.axes[2].kernel * channels()});
      }
    }
    return {image * problem_.input_strides[0], image * problem_.output_strides[0] +
                                                   depth.position * problem_.output_strides[2] +
                                                   height.position * problem_.output_strides[3]};
  }

  // Calls visit(width target, first cell, cells, taps) for pieces of a row that the same taps reach.
  template <typename Visit>
  void for_each_piece(const std::vector<RowTap>& row_taps, const Visit& visit) const {
    Taps taps;
    for (const AxisTarget& width : maps_[2].targets) {
      const std::int64_t count = width.lattice.count;
      std::int64_t low = 0;  // low <= cell < high: all taps of the row reach it
      std::int64_t high = count;
      for (const AxisTap& tap : width.taps) {
        low = std::max(low, -tap.offset);
        high = std::min(high, maps_[2].sources[tap.source].count - tap.offset);
      }
      low = std::min(low, count);
      high = std::max(high, low);
      const auto piece = [&](std::int64_t first, std::int64_t cells) {
        if (cells <= 0) return;
        taps.offsets.clear();
        taps.places.clear();
        for (const RowTap& row : row_taps) {
          for (const AxisTap& tap : width.taps) {
            const Lattice& source = maps_[2].sources[tap.source];
            const std::int64_t cell = first + tap.offset;
            if (cell < 0 || cell >= source.count) continue;
            taps.offsets.push_back(row.offset + (source.first + cell * source.step) * problem_.input_strides[4]);
            taps.places.push_back(row.place + tap.tap * channels());
          }
        }
        visit(width, first, cells, taps);
      };
      for (std::int64_t j = 0; j < low; ++j) piece(j, 1);
      piece(low, high - low);
      for (std::int64_t j = high; j < count; ++j) piece(j, 1);
    }
  }

  Problem problem_;
  AxisMaps maps_;
  std::array<std::vector<Row>, 2> rows_;  // of depth and height, in the order of their positions
  std::int64_t taps_ = 1;
  std::int64_t row_count_ = 0;
};

// Whether the lattices of an axis are all of its positions.
bool is_covered(const AxisMap& map, std::int64_t size) {
  return std::transform_reduce(map.targets.begin(), map.targets.end(), std::int64_t{0}, std::plus<>(),
                               [](const AxisTarget& target) { return target.lattice.count; }) == size;
}

}  // namespace

Proposal propose_depthwise(const Problem& problem, const DeviceProperties& /*device*/) {
  if (problem.direction == Direction::grad_bias) return Proposal::decline("has no weights to read");
  if (problem.in_channels_per_group() != 1 || problem.out_channels_per_group() != 1) {
    return Proposal::decline("needs one channel a group, got " + std::to_string(problem.in_channels_per_group()) +
                             " and " + std::to_string(problem.out_channels_per_group()));
  }
  if (element_count(problem.input_sizes()) == 0 || element_count(problem.output_sizes()) == 0) {
    return Proposal::decline("needs at least one element");
  }
  const bool forward = problem.direction == Direction::forward;
  if (problem.input_strides[1] != 1 || problem.output_strides[1] != 1 || problem.in_channels < kFewestChannels) {
    if (forward) return propose_depthwise_rows(problem);
    Proposal proposal = propose_depthwise_line_gradients(problem);
    return proposal.kernel != nullptr ? proposal : propose_depthwise_row_gradients(problem);
  }
  if (!forward) return propose_depthwise_gradients(problem);
  AxisMaps maps;
  for (int a = 0; a < kSpatialAxes; ++a) {
    maps[a] = map_from_output(problem.axes[a]);
    if (maps[a].sources.empty() || !is_covered(maps[a], problem.axes[a].output())) {
      return Proposal::decline("needs a tap for every output");
    }
  }
  return with_types(problem.dtype, [&]<typename E, typename T> {
    Proposal proposal;
    const auto kernel = std::make_shared<Depthwise<E, T>>(problem, maps);
    proposal.workspace_bytes = kernel->workspace_bytes();
    proposal.kernel = kernel;
    return proposal;
  });
}

}  // namespace tconv::cpu
