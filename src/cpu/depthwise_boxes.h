// What gradients of layers with one channel a group have in common where rows lie side by side (contiguous tensors).
// Boxes of a channel's input are computed one after the other, both gradients from one reading of the gradient of the
// output; what the next box reads is asked for meanwhile.
#pragma once

#include <hwy/cache_control.h>

#include <algorithm>

#include "cpu/depthwise_gradients_simd.h"
#include "cpu/past_caches.h"
#include "cpu/phases_kernels.h"
#include "cpu/simd.h"
#include "cpu/tile.h"

namespace tconv::cpu {

// How a box is computed is Derived's business. It has (for this class, as a friend):
//   Memory              what a thread needs: `weights` and `sums` (Scratch<T>), `strips` (of what is asked for), more
//   box(index)          a box of the channel's input
//   channel_weights(), channel_sums()          how many elements load_weights() and run_box() use of a channel
//   make_room(memory)                          before the first box of a task
//   load_weights(weight, strides, to)          the weights of a channel, as run_box() wants them
//   run_box(channel, box, memory)
//   ask_for(channel, box, strips)              what the box reads
//   add_lanes(sums, count, to)                 to [channel][tap]
//   for_each_tap(visit(d, h, w, tap))          in the order of `tap`
template <class Derived, typename E, typename T>
class DepthwiseBoxes : public Kernel {
 public:
  std::size_t workspace_bytes() const {
    return problem_.direction == Direction::grad_weight ? splits_ * weights() * sizeof(T) : 0;
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    if (problem_.direction == Direction::grad_input) {
      compute(&problem_, &buffers, nullptr, execution);
    } else {
      compute(nullptr, nullptr, &buffers, execution);
    }
  }

  bool run_with(const Kernel& grad_input, const Buffers& of_input, const Buffers& of_weight,
                const Execution& execution) const override {
    const auto* const other = dynamic_cast<const Derived*>(&grad_input);
    // Axes are joined where tensors allow it, which input and its gradient may not both do.
    if (other == nullptr || other->problem_.axes != problem_.axes ||
        other->problem_.output_strides != problem_.output_strides || of_input.output != of_weight.output) {
      return false;
    }
    compute(&other->problem_, &of_input, &of_weight, execution);
    return true;
  }

 private:
  friend Derived;

  // One channel of one image; nullptr for what is not wanted.
  struct Channel {
    const E* grad = nullptr;
    const E* input = nullptr;
    std::int64_t place = 0;  // in the tensor of the input
    E* results = nullptr;
    const Strides* result_strides = nullptr;
    const T* weights = nullptr;
    T* sums = nullptr;
    bool past_caches = false;
  };

  explicit DepthwiseBoxes(const Problem& problem) : problem_(problem) {}

  // Cuts the work into tasks of up to `most_channels` channels, once taps and boxes are known.
  void share_out(std::int64_t taps, std::int64_t boxes, std::int64_t most_channels) {
    constexpr std::int64_t kTasksWanted = 32;
    constexpr std::int64_t kShareOfPartials = 32;  // of the tensors, at most
    constexpr std::int64_t kRun = std::int64_t{1}
                                  << 16;  // elements of neighbouring channels that a task reads in order
    taps_ = taps;
    boxes_ = boxes;
    const auto& [depth, height, width] = problem_.axes;
    const std::int64_t image = depth.output() * height.output() * width.output();
    block_ = std::clamp<std::int64_t>(kRun / image, 1, std::max<std::int64_t>(most_channels, 1));
    block_ = std::min(block_, channels());
    const std::int64_t elements = element_count(problem_.input_sizes()) + element_count(problem_.output_sizes());
    const std::int64_t most = std::min(problem_.batch * boxes_, elements / kShareOfPartials / weights());
    splits_ = std::clamp<std::int64_t>(ceil_div(kTasksWanted, blocks()), 1, std::max<std::int64_t>(most, 1));
  }

  std::int64_t channels() const { return problem_.in_channels; }
  std::int64_t weights() const { return taps_ * channels(); }
  std::int64_t blocks() const { return ceil_div(channels(), block_); }

  const Derived& derived() const { return static_cast<const Derived&>(*this); }

  // grad_input as `input` has it, or none (nullptr), and grad_weight, or none. Boxes are cut into splits by the problem
  // alone, and the splits are added in order.
  void compute(const Problem* input, const Buffers* of_input, const Buffers* of_weight,
               const Execution& execution) const {
    const Buffers& any = of_weight != nullptr ? *of_weight : *of_input;
    T* const partials = static_cast<T*>(any.workspace);  // [split][channel][tap], of grad_weight
    const std::int64_t units = problem_.batch * boxes_;
    const bool past_caches = input != nullptr && exceeds_caches(input->input_sizes(), sizeof(E));
    for_each_task(execution, splits_ * blocks(), [&](std::int64_t task) {
      thread_local typename Derived::Memory memory;
      const std::int64_t split = task / blocks();
      const std::int64_t first = task % blocks() * block_;
      const std::int64_t count = std::min(block_, channels() - first);
      const std::int64_t channel_weights = derived().channel_weights();
      const std::int64_t channel_sums = derived().channel_sums();
      T* const weights = memory.weights.get(count * channel_weights);
      T* const sums = memory.sums.get(count * channel_sums);
      std::fill_n(sums, count * channel_sums, T{0});
      for (std::int64_t c = 0; input != nullptr && c < count; ++c) {
        derived().load_weights(static_cast<const E*>(of_input->weight) + (first + c) * input->weight_strides[0],
                               input->weight_strides, weights + c * channel_weights);
      }
      derived().make_room(memory);
      const auto channel_at = [&](std::int64_t image, std::int64_t c) {
        Channel channel;
        const auto place = [&](const Strides& strides) { return image * strides[0] + (first + c) * strides[1]; };
        channel.grad = static_cast<const E*>(any.output) + place(problem_.output_strides);
        channel.place = place(problem_.input_strides);
        if (of_weight != nullptr) {
          channel.input = static_cast<const E*>(of_weight->input) + channel.place;
          channel.sums = sums + c * channel_sums;
        }
        if (input != nullptr) {
          channel.results = static_cast<E*>(of_input->input) + place(input->input_strides);
          channel.result_strides = &input->input_strides;
          channel.weights = weights + c * channel_weights;
          channel.past_caches = past_caches;
        }
        return channel;
      };
      // Images, their channels, their boxes.
      const std::int64_t begin = units * split / splits_;
      const std::int64_t end = units * (split + 1) / splits_;
      for (std::int64_t image = begin / boxes_; image * boxes_ < end; ++image) {
        const std::int64_t first_box = std::max(begin - image * boxes_, std::int64_t{0});
        const std::int64_t last_box = std::min(end - image * boxes_, boxes_);
        for (std::int64_t c = 0; c < count; ++c) {
          const Channel channel = channel_at(image, c);
          auto now = derived().box(first_box);
          for (std::int64_t b = first_box; b < last_box; ++b) {
            memory.strips.clear();
            auto next = now;
            if (b + 1 < last_box) {
              next = derived().box(b + 1);
              derived().ask_for(channel, next, memory.strips);
            } else if (c + 1 < count) {
              derived().ask_for(channel_at(image, c + 1), derived().box(first_box), memory.strips);
            } else if ((image + 1) * boxes_ < end) {
              derived().ask_for(channel_at(image + 1, 0), derived().box(0), memory.strips);
            }
            derived().run_box(channel, now, memory);
            now = next;
          }
        }
      }
      if (of_weight != nullptr) derived().add_lanes(sums, count, partials + (split * channels() + first) * taps_);
      if (past_caches) hwy::FlushStream();  // before another thread reads the results
    });
    if (of_weight != nullptr) store_weights(partials, static_cast<E*>(of_weight->weight));
  }

  void store_weights(T* partials, E* weight) const {
    for (std::int64_t split = 1; split < splits_; ++split) {
      const T* const more = partials + split * weights();
      for (std::int64_t i = 0; i < weights(); ++i) partials[i] += more[i];
    }
    const Strides& strides = problem_.weight_strides;
    derived().for_each_tap([&](std::int64_t d, std::int64_t h, std::int64_t w, std::int64_t tap) {
      element_ops<E, T>().store(partials + tap, taps_, weight + d * strides[2] + h * strides[3] + w * strides[4],
                                strides[0], channels(), T{0});
    });
  }

  Problem problem_;
  std::int64_t taps_ = 1;
  std::int64_t boxes_ = 1;  // of a channel
  std::int64_t block_ = 1;  // channels of a task
  std::int64_t splits_ = 1;
};

}  // namespace tconv::cpu
