// The "depthwise" family, gradients where rows lie side by side (contiguous tensors) and tensors are used where they
// are. Bands of the rows of a channel are computed one after the other, both gradients from one reading of the gradient
// of the output; what the next band reads is asked for meanwhile.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "cpu/depthwise_boxes.h"
#include "cpu/depthwise_line_gradients_simd.h"
#include "cpu/panels.h"
#include "cpu/phases_kernels.h"
#include "cpu/reaching_taps.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kBandWanted = std::int64_t{1} << 13;   // elements of the gradient of the output, about
constexpr std::int64_t kMostWeights = std::int64_t{1} << 14;  // of a task, with the lanes that repeat them
constexpr std::int64_t kSegmentUnit = 64;                     // cells

std::int64_t blocks_of(const Axis& width) { return ceil_div(width.kernel, width.stride); }

template <typename T>
class DepthwiseLineGradients final : public DepthwiseBoxes<DepthwiseLineGradients<T>, T, T> {
 public:
  explicit DepthwiseLineGradients(const Problem& problem) : Base(problem) {
    const auto& [depth, height, width] = problem.axes;
    for (int a = 0; a < kSpatialAxes; ++a) outputs_[a] = problem.axes[a].output();
    for (std::int64_t d = 0; d < depth.input; ++d) depth_taps_.push_back(taps_that_reach(depth, d));
    for (std::int64_t h = 0; h < height.input; ++h) height_taps_.push_back(taps_that_reach(height, h));
    row_weights_ = blocks_of(width) * lanes_;
    channel_weights_ = depth.kernel * height.kernel * row_weights_;
    // Segments alike: what the next box reads is asked for meanwhile, which a short one has no time for.
    const std::int64_t pieces = std::max<std::int64_t>((width.input * width.stride + kBandWanted / 2) / kBandWanted, 1);
    segment_ = std::min(round_up(ceil_div(width.input, pieces), kSegmentUnit), width.input);
    const std::int64_t most = std::max<std::int64_t>(kBandWanted / (segment_ * width.stride) / height.stride, 1);
    const std::int64_t bands = ceil_div(height.input, most);
    for (std::int64_t b = 0; b < bands; ++b) {
      bands_.push_back({height.input * b / bands, height.input * (b + 1) / bands});
    }
    segments_ = ceil_div(width.input, segment_);
    this->share_out(depth.kernel * height.kernel * width.kernel, depth.input * bands * segments_,
                    kMostWeights / channel_weights_);
  }

  std::string describe() const override {
    return std::to_string(this->boxes_) + " bands of up to " + std::to_string(bands_.back().end - bands_.back().begin) +
           " x " + std::to_string(segment_) + " cells, " + std::to_string(this->splits_) +
           " splits, vectors along rows in place, " + target_name();
  }

 private:
  using Base = DepthwiseBoxes<DepthwiseLineGradients<T>, T, T>;
  friend Base;
  using Base::problem_;
  using typename Base::Channel;

  struct Band {
    std::int64_t begin;
    std::int64_t end;
  };
  // A band at a depth, and the cells of its rows.
  struct Box {
    std::int64_t depth;
    const Band* band;
    std::int64_t begin;
    std::int64_t end;
  };
  struct Memory {
    Scratch<T> weights;
    Scratch<T> sums;
    Scratch<T> partial_results;
    Scratch<T> results;
    GradientLines<T> job;
    std::vector<Strip> strips;
    std::vector<KernelRow> kernel_rows;
  };
  std::int64_t channel_weights() const { return channel_weights_; }
  std::int64_t channel_sums() const { return channel_weights_; }
  void make_room(Memory& /*memory*/) const {}

  Box box(std::int64_t index) const {
    if (this->boxes_ == 1) return {0, &bands_[0], 0, problem_.axes[2].input};
    const std::int64_t segment = index % segments_;
    const std::int64_t row = index / segments_;
    const auto bands = std::ssize(bands_);
    return {row / bands, &bands_[row % bands], segment * segment_,
            std::min((segment + 1) * segment_, problem_.axes[2].input)};
  }

  // Visits the taps (d, h, w) in the order of partial sums.
  template <typename Visit>
  void for_each_tap(const Visit& visit) const {
    const auto& [depth, height, width] = problem_.axes;
    std::int64_t tap = 0;
    for (std::int64_t d = 0; d < depth.kernel; ++d) {
      for (std::int64_t h = 0; h < height.kernel; ++h) {
        for (std::int64_t w = 0; w < width.kernel; ++w) visit(d, h, w, tap++);
      }
    }
  }

  // Where a tap is in the weights of a channel: in this lane, and again every `stride` lanes.
  std::int64_t lane_of(std::int64_t d, std::int64_t h, std::int64_t w) const {
    const std::int64_t stride = problem_.axes[2].stride;
    return (d * problem_.axes[1].kernel + h) * row_weights_ + w / stride * lanes_ + w % stride;
  }

  void load_weights(const T* weight, const Strides& strides, T* to) const {
    const std::int64_t stride = problem_.axes[2].stride;
    std::fill_n(to, channel_weights_, T{0});
    for_each_tap([&](std::int64_t d, std::int64_t h, std::int64_t w, std::int64_t /*tap*/) {
      T* const place = to + lane_of(d, h, w);
      const T value = weight[d * strides[2] + h * strides[3] + w * strides[4]];
      for (std::int64_t i = 0; i + w % stride < lanes_; i += stride) place[i] = value;
    });
  }

  void add_lanes(const T* sums, std::int64_t count, T* to) const {
    const std::int64_t stride = problem_.axes[2].stride;
    for (std::int64_t c = 0; c < count; ++c, sums += channel_weights_, to += this->taps_) {
      for_each_tap([&](std::int64_t d, std::int64_t h, std::int64_t w, std::int64_t tap) {
        const T* const place = sums + lane_of(d, h, w);
        T sum{0};
        for (std::int64_t i = 0; i + w % stride < lanes_; i += stride) sum += place[i];
        to[tap] = sum;
      });
    }
  }

  void run_box(const Channel& channel, const Box& box, Memory& memory) const {
    const auto& [depth, height, width] = problem_.axes;
    const Strides& grad_strides = problem_.output_strides;
    const Strides& input_strides = problem_.input_strides;
    const auto [first_d, last_d] = depth_taps_[box.depth];
    const std::int64_t cells = box.end - box.begin;
    const std::int64_t vectors = ceil_div(cells, lanes_) + 1;
    // Short rows have few whole vectors as it is.
    constexpr std::int64_t kFewVectors = 4;
    const bool is_long = vectors > kFewVectors;
    GradientLines<T>& job = memory.job;  // every member is set: clearing them takes as long as a row
    job.grad = channel.grad;
    job.grad_step = height.stride * grad_strides[3];
    job.stride = width.stride;
    job.taps = width.kernel;
    job.pad = width.pad_begin;
    job.outputs = outputs_[2];
    job.input_step = input_strides[3];
    job.begin = box.begin;
    job.end = box.end;
    job.weights = channel.weights;
    job.sums = channel.sums;
    job.past_caches = channel.past_caches;
    const std::int64_t kernel_rows = (last_d - first_d) * height.kernel;
    const std::int64_t passes = ceil_div(kernel_rows * blocks_of(width), ops_->blocks_together);
    job.lines_ahead = lines_at_a_time(
        memory.strips, kKernelTaps,
        (box.band->end - box.band->begin) * (vectors - 1) * width.stride * std::max<std::int64_t>(passes, 1));
    memory.strips.emplace_back();
    job.ahead = memory.strips.data();
    const std::int64_t first = box.band->begin;
    job.rows = box.band->end - first;
    job.row_taps = height_taps_.data() + first;
    job.kernel_height = height.kernel;
    memory.kernel_rows.clear();
    for (std::int64_t kd = first_d; kd < last_d; ++kd) {
      const std::int64_t d = box.depth * depth.stride - depth.pad_begin + kd * depth.dilation;
      for (std::int64_t kh = 0; kh < height.kernel; ++kh) {
        const std::int64_t h = first * height.stride - height.pad_begin + kh * height.dilation;
        memory.kernel_rows.push_back(
            {d * grad_strides[2] + h * grad_strides[3], (kd * height.kernel + kh) * row_weights_});
      }
    }
    job.kernel_rows = memory.kernel_rows.data();
    job.kernel_row_count = std::ssize(memory.kernel_rows);
    const std::int64_t row = box.depth * input_strides[2] + first * input_strides[3];
    job.place = is_long ? channel.place + row : -1;
    job.input = channel.input == nullptr ? nullptr : channel.input + row;
    T* to = nullptr;
    std::int64_t to_step = 0;
    if (channel.results != nullptr) {
      const Strides& strides = *channel.result_strides;
      to = channel.results + box.depth * strides[2] + first * strides[3];
      to_step = strides[3];
    }
    if (job.kernel_row_count == 0) {
      for (std::int64_t r = 0; to != nullptr && r < job.rows; ++r) {
        std::fill_n(to + r * to_step + box.begin, cells, T{0});
      }
      return;
    }
    job.partial_results = memory.partial_results.get(job.rows * vectors * lanes_);
    // Short rows that follow each other are put together as whole lines.
    const bool together =
        to != nullptr && job.past_caches && !is_long && cells % lanes_ != 0 && to_step == cells && job.rows > 1;
    job.results = together ? memory.results.get(job.rows * cells) - box.begin : to;
    job.result_step = to_step;
    job.past_caches = channel.past_caches && !together;
    ops_->lines(job);
    if (together) ops_->put_row(job.results + box.begin, to + box.begin, job.rows * cells, true);
  }

  // What a box reads of the tensors, where rows follow each other.
  void ask_for(const Channel& channel, const Box& box, std::vector<Strip>& strips) const {
    const auto add = [&](const T* data, std::int64_t row_step, std::int64_t rows, std::int64_t count) {
      if (rows <= 0 || count <= 0 || (rows > 1 && row_step != count)) return;
      strips.push_back({reinterpret_cast<const char*>(data), reinterpret_cast<const char*>(data + rows * count)});
    };
    const auto range = [&](int a, std::int64_t begin, std::int64_t end) {
      const Axis& axis = problem_.axes[a];
      const std::int64_t first = begin * axis.stride - axis.pad_begin;
      const std::int64_t last = (end - 1) * axis.stride - axis.pad_begin + (axis.kernel - 1) * axis.dilation;
      return std::pair{std::clamp<std::int64_t>(first, 0, outputs_[a]),
                       std::clamp<std::int64_t>(last + 1, 0, outputs_[a])};
    };
    const Strides& grad = problem_.output_strides;
    const Strides& input = problem_.input_strides;
    const auto [z, z_end] = range(0, box.depth, box.depth + 1);
    const auto [y, y_end] = range(1, box.band->begin, box.band->end);
    const auto [x, x_end] = range(2, box.begin, box.end);
    for (std::int64_t d = z; d < z_end; d += problem_.axes[0].dilation) {
      add(channel.grad + d * grad[2] + y * grad[3] + x, grad[3], y_end - y, x_end - x);
    }
    if (channel.input == nullptr) return;
    add(channel.input + box.depth * input[2] + box.band->begin * input[3] + box.begin, input[3],
        box.band->end - box.band->begin, box.end - box.begin);
  }

  static constexpr std::int64_t kKernelTaps = 8;  // what lines_at_a_time counts as one time

  std::array<std::int64_t, kSpatialAxes> outputs_{};
  std::vector<std::pair<std::int64_t, std::int64_t>> depth_taps_;  // that reach each position
  std::vector<std::pair<std::int64_t, std::int64_t>> height_taps_;
  const LineGradientOps<T>* ops_ = &line_gradient_ops<T>();  // of the instruction set that the plan is made for
  std::int64_t lanes_ = ops_->lanes;
  std::int64_t row_weights_ = 1;      // of a kernel row
  std::int64_t channel_weights_ = 1;  // of a channel
  std::int64_t segment_ = 1;          // cells of a row
  std::int64_t segments_ = 1;         // of a row
  std::vector<Band> bands_;
};

template <typename T>
Proposal propose(const Problem& problem) {
  const auto& [depth, height, width] = problem.axes;
  const std::int64_t lanes = line_gradient_ops<T>().lanes;
  if (lanes == 0) return Proposal::decline("needs masked products");
  if (problem.input_strides[4] != 1 || problem.output_strides[4] != 1) return Proposal::decline("needs rows");
  if ((width.kernel > 1 && width.dilation != 1) || width.stride == 3 || width.stride > 4) {
    return Proposal::decline("needs taps side by side and a stride that divides a vector");
  }
  // Lanes beyond the last tap are computed too.
  if (2 * (blocks_of(width) * width.stride - width.kernel) > width.kernel) return Proposal::decline("needs more taps");
  const double weights = static_cast<double>(depth.kernel) * static_cast<double>(height.kernel) *
                         static_cast<double>(blocks_of(width) * lanes);
  if (weights > kMostWeights) return Proposal::decline("needs fewer taps");
  Proposal proposal;
  const auto kernel = std::make_shared<DepthwiseLineGradients<T>>(problem);
  proposal.workspace_bytes = kernel->workspace_bytes();
  proposal.kernel = kernel;
  return proposal;
}

}  // namespace

Proposal propose_depthwise_line_gradients(const Problem& problem) {
  // Double precision would take as long to compile again, and fewer people use it.
  if (problem.dtype != DType::f32) return Proposal::decline("needs float32");
  return propose<float>(problem);
}

}  // namespace tconv::cpu
