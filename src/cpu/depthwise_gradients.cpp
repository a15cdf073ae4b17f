// The "depthwise" family, gradients where channels lie side by side (channels-last). Row by row of the input; what a
// row reads of the gradient of the output is used for both gradients, and what the next one reads is asked for
// meanwhile. A vector holds channels:
//   grad_input[j][c]    = sum over taps of  grad_output[j stride - padding + tap dilation][c] weight[tap][c]
//   grad_weight[tap][c] = sum over j of     grad_output[j stride - padding + tap dilation][c] input[j][c]
#include <hwy/cache_control.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/caches.h"
#include "cpu/depthwise_gradients_simd.h"
#include "cpu/panels.h"
#include "cpu/past_caches.h"
#include "cpu/phases_kernels.h"
#include "cpu/reaching_taps.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"
#include "cpu/tile.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kMostSplits = 32;       // of the rows, each with sums of its own
constexpr std::int64_t kShareOfPartials = 32;  // of the tensors, at most
constexpr std::int64_t kFewTasks = 8;          // blocks of channels are smaller before there are fewer
constexpr std::int64_t kCellsASum = 256;       // that are summed before the sum is added to that of others, about
constexpr std::int64_t kNearBytes = 8 << 10;   // weights and sums of the channels that a row is computed for at a time

template <typename E, typename T>
class DepthwiseGradients final : public Kernel {
 public:
  explicit DepthwiseGradients(const Problem& problem)
      : problem_(problem), padded_channels_(round_up(problem.in_channels, kMostLanes)) {
    const auto& [depth, height, width] = problem.axes;
    taps_ = depth.kernel * height.kernel * width.kernel;
    // What the cells of a row read, and what those of the next one will read beyond that, fits half of the L2 cache.
    constexpr std::int64_t kLeast = std::max<std::int64_t>(kMostLanes, 64 / sizeof(E));
    constexpr std::int64_t kFewCells = 8;
    const auto fit = static_cast<std::int64_t>(
        static_cast<double>(caches().l2_bytes) / 2 / sizeof(E) / static_cast<double>(depth.kernel) /
        static_cast<double>(width.stride) / (static_cast<double>(height.kernel) + static_cast<double>(height.stride)));
    block_ = std::max(fit / std::min(width.input, kFewCells) / kLeast * kLeast, kLeast);
    block_ = block_ >= channels() ? channels() : round_up(ceil_div(channels(), ceil_div(channels(), block_)), kLeast);
    const std::int64_t near = kNearBytes / static_cast<std::int64_t>(2 * sizeof(T)) / taps_;
    near_ = std::max(std::min(near, block_) / kLeast * kLeast, kLeast);
    cut_row(std::max<std::int64_t>(fit / block_, 1));
    units_ = problem.batch * std::ssize(segments_) * depth.input * height.input;
    const std::int64_t elements = element_count(problem.input_sizes()) + element_count(problem.output_sizes());
    const bool has_partials = problem.direction == Direction::grad_weight;
    const std::int64_t most_splits = has_partials ? elements / kShareOfPartials / weights() : kMostSplits;
    splits_ = std::clamp<std::int64_t>(std::min(units_, most_splits), 1, kMostSplits);
    while (block_ > kLeast && splits_ * ceil_div(channels(), block_) < kFewTasks)
      block_ = round_up(ceil_div(block_, 2), kLeast);
  }

  // Weights, then the sums of every split.
  std::size_t workspace_bytes() const {
    const std::int64_t sums = problem_.direction == Direction::grad_weight ? splits_ : 0;
    return (sums + 1) * weights() * sizeof(T);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    if (problem_.direction == Direction::grad_input) {
      compute(this, &buffers, nullptr, execution);
    } else {
      compute(nullptr, nullptr, &buffers, execution);
    }
  }

  bool run_with(const Kernel& grad_input, const Buffers& of_input, const Buffers& of_weight,
                const Execution& execution) const override {
    const auto* const other = dynamic_cast<const DepthwiseGradients*>(&grad_input);
    // Axes are joined where tensors allow it, which input and its gradient may not both do.
    if (other == nullptr || other->problem_.axes != problem_.axes ||
        other->problem_.output_strides != problem_.output_strides || of_input.output != of_weight.output) {
      return false;
    }
    compute(other, &of_input, &of_weight, execution);
    return true;
  }

  std::string describe() const override {
    std::string text = std::to_string(units_) + " rows, " + std::to_string(splits_) + " splits, ";
    if (block_ < channels()) text += "blocks of " + std::to_string(block_) + " channels, ";
    return text + "vectors along channels, " + target_name();
  }

 private:
  // Cells of a row that the same taps reach.
  struct Piece {
    std::int64_t first;
    std::int64_t cells;
    std::int64_t first_tap;
    std::int64_t taps;
  };
  struct Segment {
    std::int64_t begin;
    std::int64_t end;
    std::vector<Piece> pieces;
  };
  // A row, or a part of it, and the kernel rows that reach it.
  struct Unit {
    std::int64_t image = 0;
    std::int64_t segment = 0;
    std::int64_t depth = 0;
    std::int64_t height = 0;
    std::vector<KernelRow> rows;

    std::int64_t in(const Strides& strides) const {
      return image * strides[0] + depth * strides[2] + height * strides[3];
    }
  };
  struct Memory {
    Scratch<T> sums;
    Unit now;
    Unit next;
    std::vector<CellsAhead<E>> ahead;           // from the first cell of a unit on
    std::vector<CellsAhead<E>> ahead_of_piece;  // of it
  };
  struct Job {
    const E* grad = nullptr;
    const E* input = nullptr;  // nullptr: no grad_weight
    const T* weights = nullptr;
    T* sums = nullptr;
    E* results = nullptr;  // nullptr: no grad_input
    Strides result_strides{};
    bool past_caches = false;
    std::int64_t first_channel = 0;
    std::int64_t channels = 0;
  };

  std::int64_t channels() const { return problem_.in_channels; }
  std::int64_t weights() const { return taps_ * padded_channels_; }
  std::int64_t block_size() const { return taps_ * kMostLanes; }  // of the weights of kMostLanes channels

  void cut_row(std::int64_t most) {
    const Axis& width = problem_.axes[2];
    const std::int64_t count = ceil_div(width.input, most);
    std::int64_t inner = 0;  // cells that all taps reach: [inner, outer)
    while (inner < width.input && taps_that_reach(width, inner) != std::pair{std::int64_t{0}, width.kernel}) ++inner;
    std::int64_t outer = width.input;
    while (outer > inner && taps_that_reach(width, outer - 1) != std::pair{std::int64_t{0}, width.kernel}) --outer;
    for (std::int64_t s = 0; s < count; ++s) {
      Segment segment{width.input * s / count, width.input * (s + 1) / count, {}};
      for (std::int64_t j = segment.begin; j < segment.end;) {
        const auto [first, last] = taps_that_reach(width, j);
        std::int64_t end = j >= inner && j < outer ? std::min(outer, segment.end) : j + 1;
        while (end < segment.end && taps_that_reach(width, end) == std::pair{first, last}) ++end;
        segment.pieces.push_back({j, end - j, first, last - first});
        j = end;
      }
      segments_.push_back(std::move(segment));
    }
  }

  // Rows follow each other, so that they find what they share in the cache.
  void enter(std::int64_t index, Unit& unit) const {
    const auto& [depth, height, width] = problem_.axes;
    const auto segments = std::ssize(segments_);
    unit.height = index % height.input;
    unit.depth = index / height.input % depth.input;
    unit.segment = index / (height.input * depth.input) % segments;
    unit.image = index / (height.input * depth.input) / segments;
    unit.rows.clear();
    const auto [first_d, last_d] = taps_that_reach(depth, unit.depth);
    const auto [first_h, last_h] = taps_that_reach(height, unit.height);
    for (std::int64_t kd = first_d; kd < last_d; ++kd) {
      const std::int64_t d = unit.depth * depth.stride - depth.pad_begin + kd * depth.dilation;
      for (std::int64_t kh = first_h; kh < last_h; ++kh) {
        const std::int64_t h = unit.height * height.stride - height.pad_begin + kh * height.dilation;
        unit.rows.push_back({d * problem_.output_strides[2] + h * problem_.output_strides[3],
                             (kd * height.kernel + kh) * width.kernel * kMostLanes});
      }
    }
  }

  // grad_input by `input`'s strides, or none (nullptr), and grad_weight by this one's, or none. Rows are cut into
  // splits by the problem alone, and the splits are added in order.
  void compute(const DepthwiseGradients* input, const Buffers* of_input, const Buffers* of_weight,
               const Execution& execution) const {
    T* const workspace = static_cast<T*>((of_weight != nullptr ? of_weight : of_input)->workspace);
    T* const sums = workspace + weights();
    Job all;
    all.grad = static_cast<const E*>((of_weight != nullptr ? of_weight : of_input)->output);
    all.weights = workspace;
    if (of_weight != nullptr) all.input = static_cast<const E*>(of_weight->input);
    if (of_input != nullptr) {
      const Problem& problem = input->problem_;
      all.result_strides = problem.input_strides;
      all.results = static_cast<E*>(of_input->input);
      const Sizes sizes = problem.input_sizes();
      all.past_caches = exceeds_caches(sizes, sizeof(E)) && has_whole_lines(all.results, sizes, problem.input_strides);
      for_each_weight(problem, static_cast<const E*>(of_input->weight), [&](const E* weight, std::int64_t tap) {
        for_each_block([&](std::int64_t first, std::int64_t count) {
          T* const to = workspace + first * taps_ + tap * kMostLanes;
          const std::int64_t step = problem.weight_strides[0];
          element_ops<E, T>().load(weight + first * step, step, to, 1, count);
          std::fill(to + count, to + kMostLanes, T{0});
        });
      });
    }
    const std::int64_t blocks = ceil_div(channels(), block_);
    for_each_task(execution, splits_ * blocks, [&](std::int64_t task) {
      const std::int64_t split = task / blocks;
      Job job = all;
      job.first_channel = task % blocks * block_;
      job.channels = std::min(block_, channels() - job.first_channel);
      if (of_weight != nullptr) {
        job.sums = sums + split * weights() + job.first_channel * taps_;
        std::fill_n(job.sums, round_up(job.channels, kMostLanes) * taps_, T{0});
      }
      run_units(job, units_ * split / splits_, units_ * (split + 1) / splits_);
      if (job.past_caches) hwy::FlushStream();  // before another thread reads the results
    });
    if (of_weight == nullptr) return;
    for (std::int64_t split = 1; split < splits_; ++split) {
      const T* const more = sums + split * weights();
      for (std::int64_t i = 0; i < weights(); ++i) sums[i] += more[i];
    }
    for_each_weight(problem_, static_cast<E*>(of_weight->weight), [&](E* weight, std::int64_t tap) {
      for_each_block([&](std::int64_t first, std::int64_t count) {
        const std::int64_t step = problem_.weight_strides[0];
        element_ops<E, T>().store(sums + first * taps_ + tap * kMostLanes, 1, weight + first * step, step, count, T{0});
      });
    });
  }

  // Channels whose weights lie side by side: [channel / kMostLanes][tap][channel % kMostLanes].
  template <typename Visit>
  void for_each_block(const Visit& visit) const {
    for (std::int64_t c = 0; c < channels(); c += kMostLanes) visit(c, std::min(kMostLanes, channels() - c));
  }

  template <typename Weight, typename Visit>
  static void for_each_weight(const Problem& problem, Weight* weight, const Visit& visit) {
    const Strides& strides = problem.weight_strides;
    const auto& [depth, height, width] = problem.axes;
    std::int64_t tap = 0;
    for (std::int64_t d = 0; d < depth.kernel; ++d) {
      for (std::int64_t h = 0; h < height.kernel; ++h) {
        for (std::int64_t w = 0; w < width.kernel; ++w) {
          visit(weight + d * strides[2] + h * strides[3] + w * strides[4], tap++);
        }
      }
    }
  }

  void run_units(const Job& job, std::int64_t begin, std::int64_t end) const {
    thread_local Memory memory;
    // Sums of a few rows, which are added to the others then: long sums would lose digits.
    const std::int64_t sum_count = round_up(job.channels, kMostLanes) * taps_;
    const std::int64_t units_a_sum =
        std::max<std::int64_t>(kCellsASum * std::ssize(segments_) / problem_.axes[2].input, 1);
    T* const sums = job.sums == nullptr ? nullptr : memory.sums.get(sum_count);
    enter(begin, memory.now);
    for (std::int64_t u = begin; u < end; ++u) {
      memory.ahead.clear();
      if (u + 1 < end) {
        enter(u + 1, memory.next);
        plan_ahead(job, memory);
      }
      if (sums != nullptr && (u - begin) % units_a_sum == 0) std::fill_n(sums, sum_count, T{0});
      for (std::int64_t c = 0; c < job.channels; c += near_) {
        run_unit(job, memory, c, std::min(near_, job.channels - c), sums);
      }
      if (sums != nullptr && ((u + 1 - begin) % units_a_sum == 0 || u + 1 == end)) {
        for (std::int64_t i = 0; i < sum_count; ++i) job.sums[i] += sums[i];
      }
      std::swap(memory.now, memory.next);
    }
  }

  // `count` channels from the job's channel `first` on.
  void run_unit(const Job& job, Memory& memory, std::int64_t first, std::int64_t count, T* sums) const {
    const Axis& width = problem_.axes[2];
    const Strides& grad_strides = problem_.output_strides;
    const Unit& unit = memory.now;
    const Segment& segment = segments_[unit.segment];
    const std::int64_t c = job.first_channel + first;
    GradientCells<E, T> part;
    part.cell_step = width.input > 1 ? width.stride * grad_strides[4] : 0;
    part.tap_step = width.kernel > 1 ? width.dilation * grad_strides[4] : 0;
    part.input_step = problem_.input_strides[4];
    part.block_size = block_size();
    part.channels = count;
    part.rows = unit.rows.data();
    part.row_count = std::ssize(unit.rows);
    part.result_step = job.result_strides[4];
    part.past_caches = job.past_caches;
    std::vector<CellsAhead<E>>& ahead = memory.ahead_of_piece;
    for (const Piece& piece : segment.pieces) {
      const std::int64_t place = piece.first * width.stride - width.pad_begin + piece.first_tap * width.dilation;
      const std::int64_t tap = piece.first_tap * kMostLanes;
      part.grad = job.grad + unit.image * grad_strides[0] + place * grad_strides[4] + c;
      if (job.input != nullptr) {
        part.input = job.input + unit.in(problem_.input_strides) + piece.first * problem_.input_strides[4] + c;
        part.sums = sums + first * taps_ + tap;
      }
      part.weights = job.weights + c * taps_ + tap;
      if (job.results != nullptr) {
        part.results = job.results + unit.in(job.result_strides) + piece.first * job.result_strides[4] + c;
      }
      part.taps = piece.taps;
      part.cells = piece.cells;
      ahead = memory.ahead;
      for (CellsAhead<E>& row : ahead) row.from += (piece.first - segment.begin) * row.cell_step + first;
      part.ahead = ahead.data();
      part.ahead_count = std::ssize(ahead);
      depthwise_gradient_ops<E, T>().cells(part);
    }
  }

  // What the next unit reads and this one does not.
  void plan_ahead(const Job& job, Memory& memory) const {
    const Axis& width = problem_.axes[2];
    const Unit& now = memory.now;
    const Unit& next = memory.next;
    const std::int64_t first_cell = segments_[next.segment].begin;
    const std::int64_t step = problem_.output_strides[4];
    const E* const grad = job.grad + next.image * problem_.output_strides[0] +
                          (first_cell * width.stride - width.pad_begin) * step + job.first_channel;
    for (const KernelRow& row : next.rows) {
      const auto same = [&](const KernelRow& other) { return other.offset == row.offset; };
      if (next.image == now.image && next.segment == now.segment &&
          std::any_of(now.rows.begin(), now.rows.end(), same)) {
        continue;
      }
      memory.ahead.push_back({grad + row.offset, width.stride * step, std::min(width.stride, width.kernel), step});
    }
    if (job.input != nullptr) {
      const std::int64_t cell_step = problem_.input_strides[4];
      memory.ahead.push_back(
          {job.input + next.in(problem_.input_strides) + first_cell * cell_step + job.first_channel, cell_step, 1, 0});
    }
  }

  Problem problem_;
  std::int64_t padded_channels_ = 1;
  std::int64_t taps_ = 1;
  std::int64_t block_ = 1;  // channels of a task
  std::int64_t near_ = 1;   // of which as many are computed at a time
  std::vector<Segment> segments_;
  std::int64_t units_ = 0;
  std::int64_t splits_ = 1;
};

}  // namespace

Proposal propose_depthwise_gradients(const Problem& problem) {
  return with_types(problem.dtype, [&]<typename E, typename T> {
    Proposal proposal;
    const auto kernel = std::make_shared<DepthwiseGradients<E, T>>(problem);
    proposal.workspace_bytes = kernel->workspace_bytes();
    proposal.kernel = kernel;
    return proposal;
  });
}

}  // namespace tconv::cpu
