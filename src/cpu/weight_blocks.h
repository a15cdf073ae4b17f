// The gradient of the weights as blocks of channels, each summed by itself, and how they get into the tensor. Cells are
// cut into splits by the problem alone; each split sums into its own block and the blocks are added in order, so that
// threads change no result.
#pragma once

#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"
#include "cpu/tile.h"

namespace tconv::cpu {

struct WeightBlocking {
  // Small groups whose channels lie side by side are interleaved: one here is 2 or 4 of the problem, whose input
  // channels alternate.
  std::int64_t interleaved = 1;
  std::int64_t groups = 1;
  // Groups, of one block each, that are summed together, since their channels become lines together.
  std::int64_t stacked = 1;
  std::int64_t group_inputs = 1;   // channels, of all that are interleaved
  std::int64_t group_outputs = 1;  // of each
  std::int64_t inputs = 1;         // channels of a block
  std::int64_t outputs = 1;
  std::int64_t input_blocks = 0;  // of a group
  std::int64_t output_blocks = 0;
  std::int64_t splits = 1;  // of the tiles of cells, each summed by itself: partial sums

  std::int64_t blocks() const { return groups * input_blocks * output_blocks; }
  std::int64_t tasks_of_split() const { return ceil_div(blocks(), stacked); }
  std::int64_t elements() const { return blocks() * inputs * outputs; }  // of all blocks, for a tap
};

struct ChannelBlock {
  std::int64_t group;
  std::int64_t first_input;  // of the group
  std::int64_t first_output;
  std::int64_t inputs;
  std::int64_t outputs;
  // Groups from this one on whose sums are wanted, each block_step behind the last.
  std::int64_t groups = 1;
  std::int64_t block_step = 0;

  ChannelBlock(const WeightBlocking& blocking, std::int64_t index) {
    first_output = index % blocking.output_blocks * blocking.outputs;
    index /= blocking.output_blocks;
    first_input = index % blocking.input_blocks * blocking.inputs;
    group = index / blocking.input_blocks;
    inputs = std::min(blocking.inputs, blocking.group_inputs - first_input);
    outputs = std::min(blocking.outputs, blocking.group_outputs - first_output);
  }
};

// Whether the elements of a tensor that is written, none of them twice, fill one piece of memory in some order.
inline bool is_dense(const Sizes& sizes, const Strides& strides) {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && strides[d] <= 0) return false;
    last += (sizes[d] - 1) * strides[d];
  }
  return last + 1 == element_count(sizes);
}

// Elements of partial sums that a call may hold: one part in 16 of input and output.
inline std::int64_t room_for_partials(const Problem& problem) {
  const std::int64_t tensors = element_count(problem.input_sizes()) + element_count(problem.output_sizes());
  const std::int64_t element = problem.dtype == DType::f64 ? 8 : 4;
  return tensors * static_cast<std::int64_t>(size_of(problem.dtype)) / element / 16;
}

inline constexpr std::int64_t kSumTasksWanted = 8;

// The splits that the cells of a problem are summed in: as many tasks as are wanted and partial sums have room for, and
// such that they take two or four threads about the same time. They set the order of the sums, so that this depends on
// the problem alone.
std::int64_t choose_splits(const Problem& problem, const WeightBlocking& blocking, std::int64_t tiles);

// Cuts output channels further, at multiples of `unit`, where that lets so many threads end together; it changes no
// sum. The input is packed once more for every block, which costs as much as `packing` products of an element.
void cut_for_threads(WeightBlocking& blocking, std::int64_t taps, std::int64_t threads, std::int64_t unit,
                     std::int64_t packing);

// A block: [phase][output channel][tap][input channel]
template <typename E, typename T>
class WeightBlocks {
 public:
  WeightBlocks(const Problem& problem, const WeightBlocking& blocking, const Tiling& tiling)
      : problem_(problem), blocking_(blocking), splits_(blocking.splits) {
    struct Place {
      std::int64_t weight = 0;
      std::int64_t block = 0;  // of output channel 0
      std::int64_t output_step = 0;
    };
    std::vector<Place> all;
    std::int64_t phase_begin = 0;
    for (const PhaseTile& phase : tiling.phases()) {
      phase_begins_.push_back(phase_begin);
      const auto taps = static_cast<std::int64_t>(phase.taps.size());
      taps_.push_back(taps);
      all_taps_ += taps;
      for (std::int64_t t = 0; t < taps; ++t) {
        std::int64_t place = 0;
        for (int a = 0; a < kSpatialAxes; ++a) place += phase.taps[t].tap[a] * problem.weight_strides[2 + a];
        all.push_back({place, phase_begin + t * blocking.inputs, taps * blocking.inputs});
      }
      phase_begin += taps * blocking.outputs * blocking.inputs;
    }
    size_ = phase_begin;
    // In the order of memory, where they may be written side by side.
    std::ranges::sort(all, {}, &Place::weight);
    outputs_inside_ = blocking.interleaved == 1 && problem.weight_strides[1] == 1 && blocking.outputs > 1;
    for (std::int64_t i = 0; i < blocking.outputs * all_taps_; ++i) {
      const Place& place = all[outputs_inside_ ? i / blocking.outputs : i % all_taps_];
      const std::int64_t output = outputs_inside_ ? i % blocking.outputs : i / all_taps_;
      weight_places_.push_back(place.weight + output * problem.weight_strides[1]);
      block_places_.push_back(place.block + output * place.output_step);
    }
    std::int64_t volume = 1;
    for (const Axis& axis : problem.axes) volume *= axis.kernel;
    clears_first_ = all_taps_ < volume || problem.batch == 0;
  }

  std::int64_t splits() const { return splits_; }
  std::size_t workspace_bytes() const { return splits_ == 1 ? 0 : blocking_.blocks() * splits_ * size_ * sizeof(T); }
  // Where a phase begins in a block.
  std::int64_t phase_begin(std::size_t phase) const { return phase_begins_[phase]; }

  // The gradient, where sum(channels, split, block) adds the cells of a split to a block.
  template <typename Sum>
  void run(const Buffers& buffers, const Execution& execution, const Sum& sum) const {
    auto* weight = static_cast<E*>(buffers.weight);
    if (problem_.in_channels == 0 || problem_.out_channels == 0) return;
    if (clears_first_) clear(weight, execution);
    if (all_taps_ == 0 || problem_.batch == 0) return;
    T* const blocks = splits_ > 1 ? static_cast<T*>(buffers.workspace) : nullptr;
    for_each_task(execution, blocking_.tasks_of_split() * splits_, [&](std::int64_t task) {
      thread_local Scratch<T> own;
      const std::int64_t first = task / splits_ * blocking_.stacked;
      const std::int64_t split = task % splits_;
      ChannelBlock channels(blocking_, first);
      channels.groups = std::min(blocking_.stacked, blocking_.blocks() - first);
      channels.block_step = splits_ * size_;
      T* const block =
          blocks != nullptr ? blocks + (first * splits_ + split) * size_ : own.get(channels.groups * size_);
      for (std::int64_t g = 0; g < channels.groups; ++g) std::fill_n(block + g * channels.block_step, size_, T{0});
      sum(channels, split, block);
      for (std::int64_t g = 0; g < channels.groups && splits_ == 1; ++g) {
        store(block + g * size_, ChannelBlock(blocking_, first + g), 0, channels.outputs, weight);
      }
    });
    if (splits_ == 1) return;
    // A few output channels of one block at a time.
    constexpr std::int64_t kTogether = 16;
    const std::int64_t parts = ceil_div(blocking_.outputs, kTogether);
    for_each_task(execution, blocking_.blocks() * parts, [&](std::int64_t item) {
      const std::int64_t task = item / parts;
      const ChannelBlock channels(blocking_, task);
      T* const block = blocks + task * splits_ * size_;
      const std::int64_t first = item % parts * kTogether;
      const std::int64_t last = std::min(first + kTogether, channels.outputs);
      for (std::int64_t output = first; output < last; ++output) add_splits(block, output);
      store(block, channels, first, last, weight);
    });
  }

 private:
  void clear(E* weight, const Execution& execution) const {
    const Sizes sizes = problem_.weight_sizes();
    const Strides& strides = problem_.weight_strides;
    if (is_dense(sizes, strides)) {
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

  // The blocks of all splits into the first, for one output channel.
  void add_splits(T* block, std::int64_t output) const {
    for (std::size_t p = 0; p < phase_begins_.size(); ++p) {
      const std::int64_t size = taps_[p] * blocking_.inputs;
      T* const sums = block + phase_begins_[p] + output * size;
      for (std::int64_t split = 1; split < splits_; ++split) {
        const T* const more = sums + split * size_;
        for (std::int64_t i = 0; i < size; ++i) sums[i] += more[i];
      }
    }
  }

  // The output channels first <= output < last of a block.
  void store(const T* block, const ChannelBlock& channels, std::int64_t first, std::int64_t last, E* weight) const {
    if (blocking_.interleaved > 1) return store_interleaved(block, channels, first, last, weight);
    const Strides& strides = problem_.weight_strides;
    Scatter<E, T> job;
    job.to_step = strides[0];
    // A few input channels at a time, so that what is written together stays in the cache, and output channels that
    // fill a vector with their taps, or several where they are rounded.
    constexpr std::int64_t kTogether = 16;
    constexpr std::int64_t kRowsTogether = std::is_same_v<E, T> ? 16 : 64;
    const std::int64_t outputs = std::max<std::int64_t>(kRowsTogether / all_taps_, 1);
    const auto put = [&](std::int64_t place, std::int64_t count) {
      job.count = count;
      job.from_places = block_places_.data() + place;
      job.to_places = weight_places_.data() + place;
      element_ops<E, T>().scatter(job);
    };
    for (std::int64_t input = 0; input < channels.inputs; input += kTogether) {
      job.channels = std::min(kTogether, channels.inputs - input);
      job.from = block + input;
      job.to = weight + (channels.group * blocking_.group_inputs + channels.first_input + input) * strides[0] +
               channels.first_output * strides[1];
      if (outputs_inside_) {
        for (std::int64_t t = 0; t < all_taps_; ++t) put(t * blocking_.outputs + first, last - first);
      } else {
        for (std::int64_t output = first; output < last; output += outputs) {
          put(output * all_taps_, std::min(outputs, last - output) * all_taps_);
        }
      }
    }
  }

  // The same where the columns of a block are the input channels of several groups in turn.
  void store_interleaved(const T* block, const ChannelBlock& channels, std::int64_t first, std::int64_t last,
                         E* weight) const {
    const Strides& strides = problem_.weight_strides;
    const std::int64_t taps = all_taps_;
    const std::int64_t groups = blocking_.interleaved;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t group = channels.group * groups + g;
      const std::int64_t input = group * problem_.in_channels_per_group() + channels.first_input / groups;
      for (std::int64_t output = first; output < last; ++output) {
        E* const to = weight + input * strides[0] + (channels.first_output + output) * strides[1];
        for (std::int64_t t = 0; t < taps; ++t) {
          element_ops<E, T>().store(block + block_places_[output * taps + t] + g, groups, to + weight_places_[t],
                                    strides[0], channels.inputs / groups, T{0});
        }
      }
    }
  }

  Problem problem_;
  WeightBlocking blocking_;
  std::int64_t size_ = 0;  // of a block
  std::int64_t splits_ = 1;
  std::int64_t all_taps_ = 0;
  std::vector<std::int64_t> taps_;          // of each phase
  std::vector<std::int64_t> phase_begins_;  // in a block
  // [output channel][tap of all phases] or, where output channels lie side by side, [tap][output channel]
  bool outputs_inside_ = false;
  std::vector<std::int64_t> weight_places_;
  std::vector<std::int64_t> block_places_;  // of input channel 0
  bool clears_first_ = false;
};

}  // namespace tconv::cpu
