// grad_weight: for every tap of every phase,
//   grad_weight[ci][co][tap] = sum over cells p of  grad_output[co][p] input[ci][p + offset(tap)],
// a matrix product over the cells of the packed line. With enough input channels the vectors run along them (the input
// is packed with its channels innermost); with few, along the cells, as dot products.
//
// Cells are cut into splits by the problem alone; each split sums into its own block and the blocks are added in order,
// so that threads change no result.
#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "core/parallel.h"
#include "cpu/packing.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kMostSums = std::int64_t{1} << 19;      // elements of one block of results
constexpr std::int64_t kMostPacked = std::int64_t{1} << 17;    // elements of a packed operand
constexpr std::int64_t kMostPartials = std::int64_t{1} << 22;  // elements of all blocks, when the cells are split
constexpr std::int64_t kDepth = 128;                           // cells between two visits to the results
constexpr std::int64_t kTasksWanted = 16;
constexpr std::int64_t kRows = 14;       // output channels are cut at multiples of this
constexpr std::int64_t kFewInputs = 12;  // fewer input channels than this: dot products

struct Blocking {
  bool along_inputs = true;  // vectors run along the input channels
  std::int64_t inputs = 1;   // channels of a block
  std::int64_t outputs = 1;
  std::int64_t input_blocks = 0;  // of a group
  std::int64_t output_blocks = 0;
  std::int64_t cells = 1;
};

Blocking choose_blocking(const Problem& problem) {
  std::int64_t taps = 1;
  for (const Axis& axis : problem.axes) taps *= axis.kernel;
  const std::int64_t inputs = std::max<std::int64_t>(problem.in_channels_per_group(), 1);
  const std::int64_t outputs = std::max<std::int64_t>(problem.out_channels_per_group(), 1);
  Blocking blocking;
  blocking.along_inputs = inputs >= kFewInputs;
  const std::int64_t fewest_inputs = blocking.along_inputs ? 16 : 1;
  const auto even = [](std::int64_t all, std::int64_t most, std::int64_t unit) {
    return round_up(ceil_div(all, ceil_div(all, most)), unit);
  };
  blocking.inputs = std::clamp<std::int64_t>(kMostSums / (taps * kRows) / 16 * 16, fewest_inputs, 256);
  blocking.inputs = even(inputs, blocking.inputs, fewest_inputs);
  blocking.outputs = std::clamp<std::int64_t>(kMostSums / (taps * blocking.inputs), kRows, 132);
  blocking.outputs = even(outputs, blocking.outputs / kRows * kRows, kRows);
  blocking.input_blocks = ceil_div(inputs, blocking.inputs);
  blocking.output_blocks = ceil_div(outputs, blocking.outputs);
  const std::int64_t widest = std::max(std::min(blocking.inputs, inputs), std::min(blocking.outputs, outputs));
  blocking.cells = std::clamp<std::int64_t>(kMostPacked / widest, 128, 2048);
  return blocking;
}

template <typename E, typename T>
class GradWeight final : public Kernel {
 public:
  GradWeight(const Problem& problem, const Blocking& blocking, Tiling tiling)
      : problem_(problem), blocking_(blocking), tiling_(std::move(tiling)) {
    const std::int64_t channel_tasks = problem.groups * blocking.input_blocks * blocking.output_blocks;
    block_size_ = tiling_.all_taps() * blocking.outputs * blocking.inputs;
    const std::int64_t all = std::max<std::int64_t>(channel_tasks * block_size_, 1);
    splits_ = std::min(
        {ceil_div(kTasksWanted, std::max<std::int64_t>(channel_tasks, 1)), kMostPartials / all, tiling_.tiles()});
    splits_ = std::max<std::int64_t>(splits_, 1);

    // Block layout: [phase][output channel][tap][input channel]
    std::int64_t phase_begin = 0;
    for (const PhaseTile& phase : tiling_.phases()) {
      phase_begins_.push_back(phase_begin);
      const auto taps = static_cast<std::int64_t>(phase.taps.size());
      for (std::int64_t t = 0; t < taps; ++t) {
        std::int64_t place = 0;
        for (int a = 0; a < kSpatialAxes; ++a) place += phase.taps[t].tap[a] * problem.weight_strides[2 + a];
        weight_places_.push_back(place);
      }
      phase_begin += taps * blocking.outputs * blocking.inputs;
    }
    for (std::int64_t output = 0; output < blocking.outputs; ++output) {
      for (std::size_t p = 0; p < phase_begins_.size(); ++p) {
        const auto taps = static_cast<std::int64_t>(tiling_.phases()[p].taps.size());
        for (std::int64_t t = 0; t < taps; ++t) {
          block_places_.push_back(phase_begins_[p] + (output * taps + t) * blocking.inputs);
        }
      }
    }
    std::int64_t volume = 1;
    for (const Axis& axis : problem.axes) volume *= axis.kernel;
    clears_first_ = tiling_.all_taps() < volume || problem.batch == 0;
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const auto* input = static_cast<const E*>(buffers.input);
    const auto* grad = static_cast<const E*>(buffers.output);
    auto* weight = static_cast<E*>(buffers.weight);
    if (problem_.in_channels == 0 || problem_.out_channels == 0) return;
    if (clears_first_) clear(weight, execution);
    if (tiling_.all_taps() == 0 || problem_.batch == 0) return;
    const std::int64_t channel_tasks = problem_.groups * blocking_.input_blocks * blocking_.output_blocks;
    Scratch<T> partials;
    T* const blocks = splits_ > 1 ? partials.get(channel_tasks * splits_ * block_size_) : nullptr;
    parallel_for(execution, channel_tasks * splits_, 1, [&](std::int64_t begin, std::int64_t end) {
      thread_local Scratch<T> own;
      for (std::int64_t task = begin; task < end; ++task) {
        T* const block = blocks != nullptr ? blocks + task * block_size_ : own.get(block_size_);
        std::fill(block, block + block_size_, T{0});
        sum_cells(input, grad, ChannelBlock(*this, task / splits_), task % splits_, block);
        if (splits_ == 1) store(block, ChannelBlock(*this, task), weight);
      }
    });
    if (splits_ == 1) return;
    // One output channel of one block at a time.
    parallel_for(execution, channel_tasks * blocking_.outputs, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t task = item / blocking_.outputs;
        const std::int64_t output = item % blocking_.outputs;
        const ChannelBlock channels(*this, task);
        if (output >= channels.outputs) continue;
        T* const block = blocks + task * splits_ * block_size_;
        add_splits(block, output);
        for (std::int64_t row = 0; row < channels.inputs; ++row) store_cell(block, channels, row, output, weight);
      }
    });
  }

  std::string describe() const override {
    return std::to_string(tiling_.phases().size()) + " phases, blocks of " + std::to_string(blocking_.inputs) + " x " +
           std::to_string(blocking_.outputs) + " channels, " + std::to_string(tiling_.tiles()) + " tiles of up to " +
           std::to_string(tiling_.longest()) + " cells in " + std::to_string(splits_) + " splits, vectors along " +
           (blocking_.along_inputs ? "input channels" : "cells") + ", " + target_name();
  }

 private:
  struct ChannelBlock {
    std::int64_t group;
    std::int64_t first_input;  // of the group
    std::int64_t first_output;
    std::int64_t inputs;
    std::int64_t outputs;

    ChannelBlock(const GradWeight& kernel, std::int64_t index) {
      const Blocking& blocking = kernel.blocking_;
      first_output = index % blocking.output_blocks * blocking.outputs;
      index /= blocking.output_blocks;
      first_input = index % blocking.input_blocks * blocking.inputs;
      group = index / blocking.input_blocks;
      inputs = std::min(blocking.inputs, kernel.problem_.in_channels_per_group() - first_input);
      outputs = std::min(blocking.outputs, kernel.problem_.out_channels_per_group() - first_output);
    }
  };

  struct Memory {
    Scratch<T> input;
    Scratch<T> grad;
    Scratch<std::int64_t> offsets;
  };

  void clear(E* weight, const Execution& execution) const {
    const Sizes sizes = problem_.weight_sizes();
    const Strides& strides = problem_.weight_strides;
    if (strides == contiguous_strides(sizes)) {
      parallel_for(execution, element_count(sizes), 1 << 16,
                   [&](std::int64_t begin, std::int64_t end) { std::fill(weight + begin, weight + end, E{}); });
      return;
    }
    const std::int64_t rows = sizes[0] * sizes[1] * sizes[2] * sizes[3];
    parallel_for(execution, rows, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t h = row % sizes[3];
        const std::int64_t d = row / sizes[3] % sizes[2];
        const std::int64_t output = row / (sizes[3] * sizes[2]) % sizes[1];
        const std::int64_t input = row / (sizes[3] * sizes[2] * sizes[1]);
        const T zero = 0;
        element_ops<E, T>().store(&zero, 0,
                                  weight + input * strides[0] + output * strides[1] + d * strides[2] + h * strides[3],
                                  strides[4], sizes[4], zero);
      }
    });
  }

  // Adds the tiles of one split to the block.
  void sum_cells(const E* input, const E* grad, const ChannelBlock& channels, std::int64_t split, T* block) const {
    thread_local Memory memory;
    const MathOps<T>& math = math_ops<T>();
    const std::int64_t line_size = round_up(tiling_.longest(), math.lanes);
    const PackedSteps steps =
        blocking_.along_inputs ? PackedSteps{1, blocking_.inputs} : PackedSteps{tiling_.plane_size(), 1};
    T* const packed_input = memory.input.get(tiling_.plane_size() * blocking_.inputs);
    T* const packed_grad = memory.grad.get(blocking_.outputs * line_size);
    std::int64_t* const offsets =
        memory.offsets.get(std::max(kDepth, tiling_.most_taps() * (blocking_.along_inputs ? 1 : blocking_.inputs)));
    const std::int64_t input_channel = channels.group * problem_.in_channels_per_group() + channels.first_input;
    const std::int64_t output_channel = channels.group * problem_.out_channels_per_group() + channels.first_output;
    const View<const E> input_view{input + input_channel * problem_.input_strides[1], problem_.input_strides,
                                   channels.inputs};
    const View<const E> grad_view{grad + output_channel * problem_.output_strides[1], problem_.output_strides,
                                  channels.outputs};
    const std::int64_t first_tile = tiling_.tiles() * split / splits_;
    const std::int64_t last_tile = tiling_.tiles() * (split + 1) / splits_;
    for (std::int64_t index = first_tile; index < last_tile; ++index) {
      const Tile tile = tiling_.tile(index);
      pack_source(tiling_, tile, input_view, steps, packed_input);
      for (std::size_t p = 0; p < tiling_.phases().size(); ++p) {
        const PhaseTile& phase = tiling_.phases()[p];
        // The gaps must be zero: there the input is multiplied too.
        std::fill_n(packed_grad, channels.outputs * line_size, T{0});
        load_runs(grad_view, target_runs(tiling_, tile, phase, problem_.output_strides), PackedSteps{line_size, 1},
                  packed_grad);
        T* const sums = block + phase_begins_[p];
        if (blocking_.along_inputs) {
          multiply(math, phase, channels, tile.length, packed_grad, line_size,
                   packed_input + tiling_.lead() * blocking_.inputs, offsets, sums);
        } else {
          dot(math, phase, channels, tile.length, packed_grad, line_size, packed_input + tiling_.lead(), offsets, sums);
        }
      }
    }
  }

  void multiply(const MathOps<T>& math, const PhaseTile& phase, const ChannelBlock& channels, std::int64_t length,
                const T* grad, std::int64_t line_size, const T* input, std::int64_t* offsets, T* sums) const {
    std::iota(offsets, offsets + kDepth, 0);
    const auto taps = static_cast<std::int64_t>(phase.taps.size());
    const std::int64_t panel = math.rows_for(channels.outputs);
    Multiply<T> job;
    job.offsets = offsets;
    job.a_step = line_size;
    job.b_step = blocking_.inputs;
    job.c_step = taps * blocking_.inputs;
    job.accumulate = true;
    for (std::int64_t k = 0; k < length; k += kDepth) {
      job.depth = std::min(kDepth, length - k);
      for (std::int64_t t = 0; t < taps; ++t) {
        for (std::int64_t n = 0; n < channels.inputs;) {
          const std::int64_t vectors = math.vectors_for(channels.inputs - n, panel);
          job.b = input + (k + phase.taps[t].offset) * blocking_.inputs + n;
          for (std::int64_t m = 0; m < channels.outputs; m += panel) {
            job.a = grad + m * line_size + k;
            job.c = sums + (m * taps + t) * blocking_.inputs + n;
            const std::int64_t rows = std::min(panel, channels.outputs - m);
            math.multiply_a_in_place[rows - 1][vectors - 1](job);
          }
          n += vectors * math.lanes;
        }
      }
    }
  }

  void dot(const MathOps<T>& math, const PhaseTile& phase, const ChannelBlock& channels, std::int64_t length,
           const T* grad, std::int64_t line_size, const T* input, std::int64_t* offsets, T* sums) const {
    const auto taps = static_cast<std::int64_t>(phase.taps.size());
    const std::int64_t columns = taps * blocking_.inputs;
    // A block that is not full repeats its last channel; the extra columns are never stored.
    for (std::int64_t n = 0; n < columns; ++n) {
      const std::int64_t channel = std::min(n % blocking_.inputs, channels.inputs - 1);
      offsets[n] = channel * tiling_.plane_size() + phase.taps[n / blocking_.inputs].offset;
    }
    Dot<T> job;
    job.b = input;
    job.a_step = line_size;
    job.length = length;
    job.c_step = columns;
    for (std::int64_t n = 0; n < columns; n += kDotRows) {
      job.offsets = offsets + n;
      for (std::int64_t m = 0; m < channels.outputs; m += kDotRows) {
        job.a = grad + m * line_size;
        job.c = sums + m * columns + n;
        math.dot[std::min(kDotRows, channels.outputs - m) - 1][std::min(kDotRows, columns - n) - 1](job);
      }
    }
  }

  // The blocks of all splits into the first, for one output channel.
  void add_splits(T* block, std::int64_t output) const {
    for (std::size_t p = 0; p < phase_begins_.size(); ++p) {
      const std::int64_t size = static_cast<std::int64_t>(tiling_.phases()[p].taps.size()) * blocking_.inputs;
      T* const sums = block + phase_begins_[p] + output * size;
      for (std::int64_t split = 1; split < splits_; ++split) {
        const T* const more = sums + split * block_size_;
        for (std::int64_t i = 0; i < size; ++i) sums[i] += more[i];
      }
    }
  }

  // In the order in which the weight lies in memory.
  void store(const T* block, const ChannelBlock& channels, E* weight) const {
    if (std::abs(problem_.weight_strides[0]) < std::abs(problem_.weight_strides[1])) {
      for (std::int64_t output = 0; output < channels.outputs; ++output) {
        for (std::int64_t row = 0; row < channels.inputs; ++row) store_cell(block, channels, row, output, weight);
      }
    } else {
      for (std::int64_t input = 0; input < channels.inputs; ++input) {
        for (std::int64_t output = 0; output < channels.outputs; ++output)
          store_cell(block, channels, input, output, weight);
      }
    }
  }

  // All taps of one pair of channels.
  void store_cell(const T* block, const ChannelBlock& channels, std::int64_t input, std::int64_t output,
                  E* weight) const {
    const auto taps = static_cast<std::int64_t>(weight_places_.size());
    const Strides& strides = problem_.weight_strides;
    const std::int64_t input_channel = channels.group * problem_.in_channels_per_group() + channels.first_input + input;
    E* const to = weight + input_channel * strides[0] + (channels.first_output + output) * strides[1];
    element_ops<E, T>().scatter(block + input, block_places_.data() + output * taps, to, weight_places_.data(), taps);
  }

  Problem problem_;
  Blocking blocking_;
  Tiling tiling_;
  std::int64_t block_size_ = 0;
  std::int64_t splits_ = 1;
  std::vector<std::int64_t> phase_begins_;   // in a block
  std::vector<std::int64_t> weight_places_;  // [tap of all phases]
  std::vector<std::int64_t> block_places_;   // [output channel][tap of all phases], of input channel 0
  bool clears_first_ = false;
};

}  // namespace

Proposal propose_grad_weight(const Problem& problem) {
  AxisMaps maps;
  for (int a = 0; a < kSpatialAxes; ++a) maps[a] = map_from_output(problem.axes[a]);
  const Blocking blocking = choose_blocking(problem);
  Tiling tiling(std::move(maps), problem.batch, blocking.cells);
  if (tiling.plane_size() > kLongestLine) {
    return Proposal::decline("a packed line must not exceed " + std::to_string(kLongestLine) + " elements, got " +
                             std::to_string(tiling.plane_size()));
  }
  return with_types(problem.dtype, [&]<typename E, typename T>() {
    Proposal proposal;
    proposal.kernel = std::make_shared<GradWeight<E, T>>(problem, blocking, tiling);
    return proposal;
  });
}

}  // namespace tconv::cpu
