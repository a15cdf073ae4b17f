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
#include "cpu/depthwise_pieces.h"
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
  Depthwise(const Problem& problem, AxisMaps maps)
      : problem_(problem), pieces_(problem, std::move(maps), problem.input_strides, problem.in_channels) {
    for (const Axis& axis : problem.axes) taps_ *= axis.kernel;
  }

  std::size_t workspace_bytes() const { return taps_ * channels() * sizeof(T); }

  void run(const Buffers& buffers, const Execution& execution) const override {
    T* const weights = static_cast<T*>(buffers.workspace);
    DepthwisePieces::for_each_weight(
        problem_, static_cast<const E*>(buffers.weight), [&](const E* weight, std::int64_t tap) {
          element_ops<E, T>().load(weight, problem_.weight_strides[0], weights + tap * channels(), 1, channels());
        });
    const Strides& input_strides = problem_.input_strides;
    const Strides& output_strides = problem_.output_strides;
    WeighCells<E, T> job;
    job.weights = weights;
    job.from_step = pieces_.maps()[2].sources[0].step * input_strides[4];
    job.channels = channels();
    job.bias = problem_.bias ? static_cast<const E*>(buffers.bias) : nullptr;
    const E* const input = static_cast<const E*>(buffers.input);
    E* const output = static_cast<E*>(buffers.output);
    const Sizes sizes = problem_.output_sizes();
    job.past_caches = exceeds_caches(sizes, sizeof(E)) && has_whole_lines(output, sizes, output_strides);
    parallel_for(execution, pieces_.row_count(), grain(), [&](std::int64_t begin, std::int64_t end) {
      WeighCells<E, T> own = job;
      std::vector<DepthwisePieces::RowTap> row_taps;
      DepthwisePieces::Taps taps;
      for (std::int64_t row = begin; row < end; ++row) {
        const DepthwisePieces::RowAt at = pieces_.enter_row(row, row_taps);
        pieces_.for_each_piece(
            row_taps, taps,
            [&](const AxisTarget& width, std::int64_t first, std::int64_t cells, const DepthwisePieces::Taps& reach) {
              own.from = input + at.image * input_strides[0];
              own.to = output + at.in(output_strides) +
                       (width.lattice.first + first * width.lattice.step) * output_strides[4];
              own.to_step = width.lattice.step * output_strides[4];
              own.cells = cells;
              own.offsets = reach.offsets.data();
              own.places = reach.places.data();
              own.taps = std::ssize(reach.offsets);
              depthwise_ops<E, T>().weigh(own);
            });
      }
      if (own.past_caches) hwy::FlushStream();  // before another thread reads the results
    });
  }

  std::string describe() const override {
    return std::to_string(pieces_.row_count()) + " rows, vectors along channels, " + target_name();
  }

 private:
  std::int64_t channels() const { return problem_.in_channels; }
  // Rows that are worth a thread.
  std::int64_t grain() const {
    return std::max<std::int64_t>((1 << 14) / std::max<std::int64_t>(pieces_.maps()[2].cells * channels(), 1), 1);
  }

  Problem problem_;
  DepthwisePieces pieces_;
  std::int64_t taps_ = 1;
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
    return forward ? propose_depthwise_rows(problem) : propose_depthwise_row_gradients(problem);
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
