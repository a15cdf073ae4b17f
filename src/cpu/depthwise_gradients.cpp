// The "depthwise" family, gradients where channels lie side by side (channels-last). Row by row of the input; what a row
// reads of the gradient of the output is used for both gradients, and the rows that the next one reads are asked for
// meanwhile. A vector holds channels:
//   grad_input[j][c]    = sum over taps of  grad_output[j + offset(tap)][c] weight[tap][c]
//   grad_weight[tap][c] = sum over j of     grad_output[j + offset(tap)][c] input[j][c]
#include <hwy/cache_control.h>

#include <algorithm>
#include <vector>

#include "cpu/axis_map.h"
#include "cpu/caches.h"
#include "cpu/depthwise_gradients_simd.h"
#include "cpu/depthwise_pieces.h"
#include "cpu/depthwise_simd.h"
#include "cpu/panels.h"
#include "cpu/past_caches.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"
#include "cpu/tile.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kMostSplits = 32;       // of the rows, each with sums of its own
constexpr std::int64_t kShareOfPartials = 32;  // of the tensors, at most
constexpr std::int64_t kMostStrips = 64;

template <typename E, typename T>
class DepthwiseGradients final : public Kernel {
 public:
  DepthwiseGradients(const Problem& problem, const AxisMaps& maps)
      : problem_(problem),
        tap_size_(round_up(problem.in_channels, kMostLanes)),
        pieces_(problem, maps, problem.output_strides, tap_size_) {
    for (const Axis& axis : problem.axes) taps_ *= axis.kernel;
    const std::int64_t elements = element_count(problem.input_sizes()) + element_count(problem.output_sizes());
    splits_ = std::min(pieces_.row_count(), elements / kShareOfPartials / std::max<std::int64_t>(weights(), 1));
    splits_ = std::clamp<std::int64_t>(splits_, 1, kMostSplits);
    // What a row reads, and what the next one will read beyond that, fits half of the L2 cache.
    const std::int64_t rows = problem.axes[0].kernel * (problem.axes[1].kernel + problem.axes[1].stride);
    const std::int64_t row = rows * problem.axes[2].output() * static_cast<std::int64_t>(sizeof(E));
    constexpr std::int64_t kLeast = std::max<std::int64_t>(kMostLanes, 64 / sizeof(E));
    const std::int64_t fit = caches().l2_bytes / 2 / std::max<std::int64_t>(row, 1) / kLeast * kLeast;
    block_ = std::clamp<std::int64_t>(fit, kLeast, std::max(kLeast, channels()));
    if (block_ < channels()) block_ = round_up(ceil_div(channels(), ceil_div(channels(), block_)), kLeast);
  }

  std::size_t workspace_bytes() const {
    const std::int64_t sums = problem_.direction == Direction::grad_weight ? splits_ : 0;
    return (sums + 1) * weights() * sizeof(T);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    if (problem_.direction == Direction::grad_input) {
      compute(this, &buffers, nullptr, static_cast<T*>(buffers.workspace), execution);
    } else {
      compute(nullptr, nullptr, &buffers, static_cast<T*>(buffers.workspace), execution);
    }
  }

  bool run_with(const Kernel& grad_input, const Buffers& of_input, const Buffers& of_weight,
                const Execution& execution) const override {
    const auto* const other = dynamic_cast<const DepthwiseGradients*>(&grad_input);
    if (other == nullptr || other->problem_.output_strides != problem_.output_strides ||
        of_input.output != of_weight.output) {
      return false;
    }
    compute(other, &of_input, &of_weight, static_cast<T*>(of_weight.workspace), execution);
    return true;
  }

  std::string describe() const override {
    std::string text = std::to_string(pieces_.row_count()) + " rows, " + std::to_string(splits_) + " splits, ";
    if (block_ < channels()) text += "blocks of " + std::to_string(block_) + " channels, ";
    return text + "vectors along channels, " + target_name();
  }

 private:
  struct Memory {
    Scratch<T> row;
    std::vector<DepthwisePieces::RowTap> taps;
    std::vector<DepthwisePieces::RowTap> next_taps;
    DepthwisePieces::Taps reach;
    std::vector<Strip> strips;
  };

  std::int64_t channels() const { return problem_.in_channels; }
  std::int64_t weights() const { return taps_ * tap_size_; }
  std::int64_t cells() const { return problem_.axes[2].input; }

  // grad_input by `input`'s strides, or none (nullptr), and grad_weight by this one's, or none. Workspace: weights,
  // then sums of every split. Rows are cut into splits by the problem alone, and the splits are added in order.
  void compute(const DepthwiseGradients* input, const Buffers* of_input, const Buffers* of_weight, T* workspace,
               const Execution& execution) const {
    Job all;
    all.grad = static_cast<const E*>(of_input != nullptr ? of_input->output : of_weight->output);
    all.weights = workspace;
    if (input != nullptr) {
      const Problem& problem = input->problem_;
      all.result_strides = problem.input_strides;
      all.results = static_cast<E*>(of_input->input);
      const Sizes sizes = problem.input_sizes();
      all.past_caches = exceeds_caches(sizes, sizeof(E)) && has_whole_lines(all.results, sizes, problem.input_strides);
      DepthwisePieces::for_each_weight(
          problem, static_cast<const E*>(of_input->weight), [&](const E* weight, std::int64_t tap) {
            T* const to = workspace + tap * tap_size_;
            element_ops<E, T>().load(weight, problem.weight_strides[0], to, 1, channels());
            std::fill(to + channels(), to + tap_size_, T{0});
          });
    }
    T* const sums = workspace + weights();
    if (of_weight != nullptr) all.input = static_cast<const E*>(of_weight->input);
    const std::int64_t blocks = ceil_div(channels(), block_);
    for_each_task(execution, splits_ * blocks, [&](std::int64_t task) {
      const std::int64_t split = task / blocks;
      Job job = all;
      job.first_channel = task % blocks * block_;
      job.channels = std::min(block_, channels() - job.first_channel);
      if (of_weight != nullptr) {
        job.sums = sums + split * weights();
        for (std::int64_t tap = 0; tap < taps_; ++tap) {
          std::fill_n(job.sums + tap * tap_size_ + job.first_channel, round_up(job.channels, kMostLanes), T{0});
        }
      }
      const std::int64_t rows = pieces_.row_count();
      run_rows(job, rows * split / splits_, rows * (split + 1) / splits_);
      if (job.past_caches) hwy::FlushStream();  // before another thread reads the results
    });
    if (of_weight == nullptr) return;
    for (std::int64_t split = 1; split < splits_; ++split) {
      const T* const more = sums + split * weights();
      for (std::int64_t i = 0; i < weights(); ++i) sums[i] += more[i];
    }
    DepthwisePieces::for_each_weight(
        problem_, static_cast<E*>(of_weight->weight), [&](E* weight, std::int64_t tap) {
          element_ops<E, T>().store(sums + tap * tap_size_, 1, weight, problem_.weight_strides[0], channels(), T{0});
        });
  }

  struct Job {
    const E* grad = nullptr;
    const E* input = nullptr;
    const T* weights = nullptr;
    T* sums = nullptr;
    E* results = nullptr;
    Strides result_strides{};
    bool past_caches = false;
    std::int64_t first_channel = 0;
    std::int64_t channels = 0;
  };

  void run_rows(const Job& job, std::int64_t begin, std::int64_t end) const {
    thread_local Memory memory;
    const DepthwiseGradientOps<E, T>& ops = depthwise_gradient_ops<E, T>();
    const Strides& grad_strides = problem_.output_strides;
    const Strides& input_strides = problem_.input_strides;
    const std::int64_t c = job.first_channel;
    T* const row = memory.row.get(cells() * job.channels);
    Ahead ahead;
    GradientCells<E, T> part;
    part.grad_step = pieces_.maps()[2].sources[0].step * grad_strides[4];
    part.input_step = input_strides[4];
    part.weights = job.weights + c;
    part.channels = job.channels;
    part.result_step = job.channels;
    part.sums = job.sums == nullptr ? nullptr : job.sums + c;
    part.ahead = &ahead;
    DepthwisePieces::RowAt at = pieces_.enter_row(begin, memory.taps);
    for (std::int64_t r = begin; r < end; ++r) {
      DepthwisePieces::RowAt next{};
      memory.strips.clear();
      if (r + 1 < end) {
        next = pieces_.enter_row(r + 1, memory.next_taps);
        plan_ahead(job, at, next, memory, ahead);
      } else {
        ahead = Ahead{};
      }
      pieces_.for_each_piece(memory.taps, memory.reach,
                             [&](const AxisTarget& /*width*/, std::int64_t first, std::int64_t count,
                                 const DepthwisePieces::Taps& reach) {
                               part.grad = job.grad + at.image * grad_strides[0] + c;
                               if (job.input != nullptr) {
                                 part.input = job.input + at.in(input_strides) + first * input_strides[4] + c;
                               }
                               part.results = job.results == nullptr ? nullptr : row + first * job.channels;
                               part.cells = count;
                               part.offsets = reach.offsets.data();
                               part.places = reach.places.data();
                               part.taps = std::ssize(reach.offsets);
                               ops.cells(part);
                             });
      if (job.results != nullptr) put(job, row, job.results + at.in(job.result_strides) + c);
      at = next;
      std::swap(memory.taps, memory.next_taps);
    }
  }

  void put(const Job& job, const T* row, E* to) const {
    const DepthwiseOps<E, T>& ops = depthwise_ops<E, T>();
    const std::int64_t step = job.result_strides[4];
    if (step == job.channels || cells() == 1) return ops.put_row(row, to, cells() * job.channels, job.past_caches);
    for (std::int64_t j = 0; j < cells(); ++j) {
      ops.put_row(row + j * job.channels, to + j * step, job.channels, job.past_caches);
    }
  }

  // The lines that the next row reads and this one does not.
  void plan_ahead(const Job& job, const DepthwisePieces::RowAt& at, const DepthwisePieces::RowAt& next, Memory& memory,
                  Ahead& ahead) const {
    std::int64_t lines = 0;
    const auto add = [&](const E* first, std::int64_t count, std::int64_t step) {
      constexpr std::int64_t kLine = 64;
      const auto bytes = [](std::int64_t elements) { return elements * static_cast<std::int64_t>(sizeof(E)); };
      const auto* const begin = reinterpret_cast<const char*>(first);
      if (step < 0 || std::ssize(memory.strips) >= kMostStrips) return;
      if (step <= job.channels || count == 1) {
        memory.strips.push_back({begin, begin + bytes((count - 1) * step + job.channels), kLine});
        lines += ceil_div(bytes((count - 1) * step + job.channels), kLine);
        return;
      }
      for (std::int64_t line = 0; line < bytes(job.channels) && std::ssize(memory.strips) < kMostStrips;
           line += kLine) {
        memory.strips.push_back({begin + line, begin + line + bytes((count - 1) * step) + 1, bytes(step)});
        lines += count;
      }
    };
    const Strides& grad_strides = problem_.output_strides;
    for (const DepthwisePieces::RowTap& tap : memory.next_taps) {
      const auto same = [&](const DepthwisePieces::RowTap& other) { return other.offset == tap.offset; };
      if (next.image == at.image && std::any_of(memory.taps.begin(), memory.taps.end(), same)) continue;
      add(job.grad + next.image * grad_strides[0] + tap.offset + job.first_channel, problem_.axes[2].output(),
          grad_strides[4]);
    }
    if (job.input != nullptr) {
      add(job.input + next.in(problem_.input_strides) + job.first_channel, cells(), problem_.input_strides[4]);
    }
    const std::int64_t groups = ceil_div(std::ssize(memory.taps) * problem_.axes[2].kernel,
                                         depthwise_gradient_ops<E, T>().taps_at_a_time);
    const std::int64_t times = std::max<std::int64_t>(groups * cells() * ceil_div(job.channels, kMostLanes), 1);
    ahead = {memory.strips.data(), std::ssize(memory.strips), ceil_div(lines, times)};
  }

  Problem problem_;
  std::int64_t tap_size_ = 1;  // elements of the weights, or the sums, of a tap
  DepthwisePieces pieces_;
  std::int64_t taps_ = 1;
  std::int64_t splits_ = 1;
  std::int64_t block_ = 1;  // channels
};

}  // namespace

Proposal propose_depthwise_gradients(const Problem& problem) {
  AxisMaps maps;
  for (int a = 0; a < kSpatialAxes; ++a) {
    maps[a] = map_from_input(problem.axes[a]);
    if (maps[a].sources.empty()) return Proposal::decline("needs a tap that reaches the output");
  }
  return with_types(problem.dtype, [&]<typename E, typename T> {
    Proposal proposal;
    const auto kernel = std::make_shared<DepthwiseGradients<E, T>>(problem, maps);
    proposal.workspace_bytes = kernel->workspace_bytes();
    proposal.kernel = kernel;
    return proposal;
  });
}

}  // namespace tconv::cpu
