// The "depthwise" family, gradients of images whose rows fill no vectors (contiguous tensors, stride 1): an image of
// the gradient of the output is copied as one line, as in depthwise_flat.cpp, so that a tap is a distance and vectors
// run on from row to row. Both gradients come from one reading of it. Blocks of channels are tasks, and go through all
// images.
#include <algorithm>
#include <atomic>
#include <vector>

#include "cpu/depthwise_flat_gradients_simd.h"
#include "cpu/depthwise_rows_simd.h"
#include "cpu/panels.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"
#include "cpu/tile.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kLargestImage = 2048;               // of an image with what surrounds it
constexpr std::int64_t kMostHeld = std::int64_t{1} << 12;  // elements of lines that are copied at a time, about
constexpr std::int64_t kFewestChannels = 32;               // that are enough tasks for threads
constexpr std::int64_t kMostBlock = 8;                     // channels of a task
constexpr std::int64_t kFewTaps = 9;

std::atomic<std::int64_t> next_id{0};  // of kernels: their addresses come back

using T = float;

class DepthwiseFlatGradients final : public Kernel {
 public:
  explicit DepthwiseFlatGradients(const Problem& problem) : problem_(problem) {
    std::int64_t lowest = 0;
    std::int64_t highest = 0;
    for (int a = kSpatialAxes - 1; a >= 0; --a) {
      const Axis& axis = problem.axes[a];
      output_[a] = axis.output();
      const std::int64_t low = std::min<std::int64_t>(-axis.pad_begin, 0);
      const std::int64_t high = std::max<std::int64_t>((axis.kernel - 1) * axis.dilation - axis.pad_begin, 0);
      lowest += low * step_[a];
      highest += high * step_[a];
      // What is read before a row's first cell, or after its last, is beyond the rows around it.
      if (a > 0) step_[a - 1] = step_[a] * std::max(output_[a] - low, axis.input + high);
    }
    const auto& [depth, height, width] = problem.axes;
    const std::int64_t cells =
        (depth.input - 1) * step_[0] + (height.input - 1) * step_[1] + (width.input - 1) * step_[2] + 1;
    vectors_ = ceil_div(cells, ops_.lanes);
    lead_ = round_up(-lowest, kMostLanes);
    const std::int64_t past = (output_[0] - 1) * step_[0] + output_[1] * step_[1];
    line_ = round_up(lead_ + std::max(past, vectors_ * ops_.lanes + highest), kMostLanes);
    block_ = std::clamp<std::int64_t>(kMostHeld / line_, 1, kMostBlock);
    images_ = std::clamp<std::int64_t>(kMostHeld / (line_ * block_), 1, problem.batch);
    list_taps();
  }

  // Whether the line is not too long beside vectors of each row by itself, whose taps take one pass if they are few;
  // where a row has several vectors, most of them are no ends of it.
  bool pays() const {
    const auto& [depth, height, width] = problem_.axes;
    const std::int64_t in_row = ceil_div(width.input, ops_.lanes);
    const bool few_taps = taps() <= kFewTaps;
    const double most = in_row == 1 ? (few_taps ? 1 : 1.2) : (few_taps ? 0.75 : 0.95);
    return static_cast<double>(vectors_) <= most * static_cast<double>(depth.input * height.input * in_row);
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
    const auto* const other = dynamic_cast<const DepthwiseFlatGradients*>(&grad_input);
    if (other == nullptr || other->problem_.axes != problem_.axes ||
        other->problem_.output_strides != problem_.output_strides || of_input.output != of_weight.output) {
      return false;
    }
    compute(&other->problem_, &of_input, &of_weight, execution);
    return true;
  }

  std::string describe() const override {
    return std::to_string(vectors_) + " vectors an image, rows one after the other, " + std::to_string(block_) +
           " channels and " + std::to_string(images_) + " images at a time, in place, " + target_name();
  }

 private:
  struct Memory {
    Scratch<T> grad;  // [channel][image][line]
    Scratch<T> partial_results;
    Scratch<T> weights;
    Scratch<T> sums;
    std::int64_t cleared_by = -1;  // the kernel whose lines `grad` holds
  };

  std::int64_t taps() const { return std::ssize(taps_); }
  std::int64_t channels() const { return problem_.in_channels; }

  void list_taps() {
    const auto& [depth, height, width] = problem_.axes;
    const auto reads = [&](int a, std::int64_t cell, std::int64_t tap) {
      const Axis& axis = problem_.axes[a];
      const std::int64_t place = cell - axis.pad_begin + tap * axis.dilation;
      return place >= 0 && place < output_[a];
    };
    wanted_.assign(vectors_, 0);
    reads_.assign(depth.kernel * height.kernel * width.kernel * vectors_, 0);
    const auto set = [&](std::uint16_t* lanes, std::int64_t d, std::int64_t h, std::int64_t w) {
      const std::int64_t cell = d * step_[0] + h * step_[1] + w * step_[2];
      std::uint16_t& vector = lanes[cell / ops_.lanes];
      vector = static_cast<std::uint16_t>(vector | 1U << cell % ops_.lanes);
    };
    const auto for_each_cell = [&](const auto& visit) {
      for (std::int64_t d = 0; d < depth.input; ++d) {
        for (std::int64_t h = 0; h < height.input; ++h) {
          for (std::int64_t w = 0; w < width.input; ++w) visit(d, h, w);
        }
      }
    };
    for_each_cell([&](std::int64_t d, std::int64_t h, std::int64_t w) { set(wanted_.data(), d, h, w); });
    for (std::int64_t kd = 0; kd < depth.kernel; ++kd) {
      for (std::int64_t kh = 0; kh < height.kernel; ++kh) {
        for (std::int64_t kw = 0; kw < width.kernel; ++kw) {
          std::uint16_t* const lanes = reads_.data() + taps() * vectors_;
          for_each_cell([&](std::int64_t d, std::int64_t h, std::int64_t w) {
            if (reads(0, d, kd) && reads(1, h, kh) && reads(2, w, kw)) set(lanes, d, h, w);
          });
          taps_.push_back({(kd * depth.dilation - depth.pad_begin) * step_[0] +
                               (kh * height.dilation - height.pad_begin) * step_[1] +
                               (kw * width.dilation - width.pad_begin) * step_[2],
                           taps()});
        }
      }
    }
  }

  // grad_input as `input` has it, or none (nullptr), and grad_weight, or none.
  void compute(const Problem* input, const Buffers* of_input, const Buffers* of_weight,
               const Execution& execution) const {
    for_each_task(execution, ceil_div(channels(), block_), [&](std::int64_t task) {
      thread_local Memory memory;
      if (memory.cleared_by != id_) memory.cleared_by = -1;  // should there be no memory
      T* const lines = memory.grad.get(block_ * images_ * line_);
      if (memory.cleared_by != id_) {
        std::fill_n(lines, block_ * images_ * line_, T{0});
        memory.cleared_by = id_;
      }
      const std::int64_t first = task * block_;
      const std::int64_t count = std::min(block_, channels() - first);
      T* const weights = memory.weights.get(block_ * taps());
      T* const sums = memory.sums.get(block_ * taps());
      std::fill_n(sums, count * taps(), T{0});
      if (input != nullptr) {
        each_weight(input->weight_strides, first, count, [&](std::int64_t place, std::int64_t i) {
          weights[i] = static_cast<const T*>(of_input->weight)[place];
        });
      }
      FlatGradients<T> job;
      job.grad_step = line_;
      job.taps = taps_.data();
      job.tap_count = taps();
      job.vectors = vectors_;
      job.wanted = wanted_.data();
      job.reads = reads_.data();
      job.count = problem_.axes[0].input * problem_.axes[1].input * problem_.axes[2].input;
      job.input_step = problem_.input_strides[0];
      job.result_step = input != nullptr ? input->input_strides[0] : 0;
      job.partial_results = memory.partial_results.get(images_ * vectors_ * ops_.lanes);
      const Buffers& any = of_weight != nullptr ? *of_weight : *of_input;
      for (std::int64_t image = 0; image < problem_.batch; image += images_) {
        job.lines = std::min(images_, problem_.batch - image);
        const auto place = [&](const Strides& strides, std::int64_t c) {
          return image * strides[0] + (first + c) * strides[1];
        };
        for (std::int64_t c = 0; c < count; ++c) {
          for (std::int64_t i = 0; i < job.lines; ++i) {
            const T* const grad = static_cast<const T*>(any.output) + place(problem_.output_strides, c);
            load(grad + i * problem_.output_strides[0], lines + (c * images_ + i) * line_ + lead_);
          }
        }
        for (std::int64_t c = 0; c < count; ++c) {
          job.grad = lines + c * images_ * line_ + lead_;
          if (of_weight != nullptr) {
            job.input = static_cast<const T*>(of_weight->input) + place(problem_.input_strides, c);
            job.sums = sums + c * taps();
          }
          if (input != nullptr) {
            job.results = static_cast<T*>(of_input->input) + place(input->input_strides, c);
            job.weights = weights + c * taps();
          }
          ops_.gradients(job);
        }
      }
      if (of_weight == nullptr) return;
      each_weight(problem_.weight_strides, first, count,
                  [&](std::int64_t place, std::int64_t i) { static_cast<T*>(of_weight->weight)[place] = sums[i]; });
    });
  }

  // visit(place in the tensor, index in [channel][tap]) of some channels.
  template <typename Visit>
  void each_weight(const Strides& strides, std::int64_t first, std::int64_t count, const Visit& visit) const {
    const auto& [depth, height, width] = problem_.axes;
    std::int64_t index = 0;
    for (std::int64_t c = first; c < first + count; ++c) {
      for (std::int64_t d = 0; d < depth.kernel; ++d) {
        for (std::int64_t h = 0; h < height.kernel; ++h) {
          const std::int64_t row = c * strides[0] + d * strides[2] + h * strides[3];
          for (std::int64_t w = 0; w < width.kernel; ++w) visit(row + w * strides[4], index++);
        }
      }
    }
  }

  void load(const T* image, T* to) const {
    const Strides& strides = problem_.output_strides;
    for (std::int64_t d = 0; d < output_[0]; ++d) {
      row_ops_.copy_rows(image + d * strides[2], strides[3], to + d * step_[0], step_[1], output_[1], output_[2]);
    }
  }

  Problem problem_;
  const FlatGradientOps<T>& ops_ = flat_gradient_ops<T>();
  const DepthwiseRowOps<T, T>& row_ops_ = depthwise_row_ops<T, T>();
  std::int64_t id_ = next_id++;
  Triple output_{};
  Triple step_ = {0, 0, 1};  // along the line, from one to the next
  std::int64_t lead_ = 0;    // zeros before an image
  std::int64_t line_ = 0;    // from one image to the next
  std::int64_t block_ = 1;   // channels of a task
  std::int64_t images_ = 1;  // that are copied at a time
  std::int64_t vectors_ = 0;
  std::vector<FlatTap> taps_;
  std::vector<std::uint16_t> wanted_;  // [vector]: cells that are no gaps
  std::vector<std::uint16_t> reads_;   // [tap][vector]: of these, the cells for which a tap reads something
};

}  // namespace

Proposal propose_depthwise_flat_gradients(const Problem& problem) {
  if (problem.dtype != DType::f32) return Proposal::decline("needs float32");
  if (flat_gradient_ops<T>().lanes == 0) return Proposal::decline("needs masked products");
  if (problem.in_channels < kFewestChannels) return Proposal::decline("needs more channels");
  std::int64_t cells = 1;
  std::int64_t taps = 1;
  for (const Axis& axis : problem.axes) {
    if (axis.stride != 1 && axis.input > 1) return Proposal::decline("needs neighbouring cells");
    if (axis.kernel > kLargestImage || axis.dilation > kLargestImage || axis.pad_begin > kLargestImage ||
        axis.input > kLargestImage || axis.output() > kLargestImage) {
      return Proposal::decline("needs small images");
    }
    taps *= axis.kernel;
    cells *= std::max(axis.input, axis.output()) + axis.pad_begin + (axis.kernel - 1) * axis.dilation;
    if (cells > kLargestImage || taps > kLargestImage) return Proposal::decline("needs small images");
  }
  const auto dense = [&](const Strides& strides) {
    const auto& [depth, height, width] = problem.axes;
    return strides[4] == 1 && (height.input == 1 || strides[3] == width.input) &&
           (depth.input == 1 || strides[2] == width.input * height.input);
  };
  if (!dense(problem.input_strides) || problem.output_strides[4] != 1) return Proposal::decline("needs dense images");
  const auto kernel = std::make_shared<DepthwiseFlatGradients>(problem);
  if (!kernel->pays()) return Proposal::decline("needs rows that fill no vectors");
  Proposal proposal;
  proposal.kernel = kernel;
  return proposal;
}

}  // namespace tconv::cpu
