// The "depthwise" family, gradients where channels lie side by side (channels-last). Row by row of the input; what a
// row reads of the gradient of the output is used for both gradients, and what the next one reads is asked for
// meanwhile. A vector holds channels:
//   grad_input[j][c]    = sum over taps of  grad_output[j stride - padding + tap dilation][c] weight[tap][c]
//   grad_weight[tap][c] = sum over j of     grad_output[j stride - padding + tap dilation][c] input[j][c]
// With more channels a group (spread.h) the cells of a row are spread first, each plane is computed so, with channels
// as the output has them, and what the planes give to the gradient of the input is gathered.
#include <hwy/cache_control.h>

#include <algorithm>
#include <numeric>
#include <type_traits>
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
#include "cpu/spread.h"
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
      : problem_(problem), groups_(problem), padded_channels_(round_up(problem.out_channels, kMostLanes)) {
    const auto& [depth, height, width] = problem.axes;
    taps_ = depth.kernel * height.kernel * width.kernel;
    // What the cells of a row read, and what those of the next one will read beyond that, fits half of the L2 cache.
    constexpr std::int64_t kVector = std::max<std::int64_t>(kMostLanes, 64 / sizeof(E));
    const std::int64_t least = std::lcm(kVector, groups_.outputs);  // channels of a block: whole groups
    constexpr std::int64_t kFewCells = 8;
    const double positions = static_cast<double>(depth.kernel) * static_cast<double>(width.stride) *
                             (static_cast<double>(height.kernel) + static_cast<double>(height.stride));
    const auto spread = static_cast<double>(groups_.alone() ? 0 : 2 * groups_.planes());
    const auto fit =
        static_cast<std::int64_t>(static_cast<double>(caches().l2_bytes) / 2 / sizeof(E) / (positions + spread));
    block_ = std::max(fit / std::min(width.input, kFewCells) / least * least, least);
    block_ = block_ >= channels() ? channels() : round_up(ceil_div(channels(), ceil_div(channels(), block_)), least);
    const std::int64_t near = kNearBytes / static_cast<std::int64_t>(2 * sizeof(T)) / taps_;
    near_ = std::max(std::min(near, block_) / kVector * kVector, kVector);
    cut_row(std::max<std::int64_t>(fit / block_, 1));
    units_ = problem.batch * std::ssize(segments_) * depth.input * height.input;
    const std::int64_t elements = element_count(problem.input_sizes()) + element_count(problem.output_sizes());
    const bool has_partials = problem.direction == Direction::grad_weight;
    const std::int64_t most_splits = has_partials ? elements / kShareOfPartials / weights() : kMostSplits;
    splits_ = std::clamp<std::int64_t>(std::min(units_, most_splits), 1, kMostSplits);
    while (block_ > least && splits_ * ceil_div(channels(), block_) < kFewTasks)
      block_ = std::min(round_up(ceil_div(block_, 2), least), channels());
    if constexpr (std::is_same_v<E, T>) {
      if (!groups_.alone()) plan_spreading();
    }
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
    if (!groups_.alone()) text += std::to_string(groups_.planes()) + " planes, ";
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
    Scratch<E> spread;   // cells of the input, [plane][cell][channel]
    Scratch<E> results;  // the same of its gradient
    Unit now;
    Unit next;
    std::vector<CellsAhead<E>> ahead;           // from the first cell of a unit on
    std::vector<CellsAhead<E>> ahead_of_piece;  // of it
  };
  // Channels of a block that are moved between a cell and its planes.
  struct Moves {
    ChannelPicks<T> spread;
    ChannelPicks<T> gather;
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
    const Moves* moves = nullptr;
  };

  std::int64_t channels() const { return problem_.out_channels; }
  std::int64_t plane_weights() const { return taps_ * padded_channels_; }
  std::int64_t weights() const { return groups_.planes() * plane_weights(); }
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

  void plan_spreading() {
    std::int64_t cells = 1;
    for (const Segment& segment : segments_) cells = std::max(cells, segment.end - segment.begin);
    spread_step_ = round_up(block_, kMostLanes);
    plane_size_ = cells * spread_step_;
    const auto moves_of = [this](std::int64_t count) {
      return Moves{spread_channels<T>(groups_, count, plane_size_), gather_channels<T>(groups_, count, plane_size_)};
    };
    moves_ = moves_of(block_);
    last_moves_ = moves_of(channels() - (channels() - 1) / block_ * block_);
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
        for_each_block([&](std::int64_t plane, std::int64_t first, std::int64_t count) {
          T* const to = workspace + plane * plane_weights() + first * taps_ + tap * kMostLanes;
          groups_.load_weights(weight, problem.weight_strides, plane, first, count, to);
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
      job.moves = job.first_channel + block_ < channels() ? &moves_ : &last_moves_;
      if (of_weight != nullptr) {
        job.sums = sums + split * weights() + job.first_channel * taps_;
        for (std::int64_t plane = 0; plane < groups_.planes(); ++plane) {
          std::fill_n(job.sums + plane * plane_weights(), round_up(job.channels, kMostLanes) * taps_, T{0});
        }
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
      for_each_block([&](std::int64_t plane, std::int64_t first, std::int64_t count) {
        const T* const from = sums + plane * plane_weights() + first * taps_ + tap * kMostLanes;
        groups_.store_weights(from, problem_.weight_strides, plane, first, count, weight);
      });
    });
  }

  // Channels whose weights lie side by side: [plane][channel / kMostLanes][tap][channel % kMostLanes].
  template <typename Visit>
  void for_each_block(const Visit& visit) const {
    for (std::int64_t plane = 0; plane < groups_.planes(); ++plane) {
      for (std::int64_t c = 0; c < channels(); c += kMostLanes) visit(plane, c, std::min(kMostLanes, channels() - c));
    }
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
    const std::int64_t all_sums = groups_.planes() * sum_count;
    T* const sums = job.sums == nullptr ? nullptr : memory.sums.get(all_sums);
    enter(begin, memory.now);
    for (std::int64_t u = begin; u < end; ++u) {
      memory.ahead.clear();
      if (u + 1 < end) {
        enter(u + 1, memory.next);
        plan_ahead(job, memory);
      }
      if (sums != nullptr && (u - begin) % units_a_sum == 0) std::fill_n(sums, all_sums, T{0});
      const Place place = enter_cells(job, memory);
      for (std::int64_t c = 0; c < job.channels; c += near_) {
        for (std::int64_t plane = 0; plane < groups_.planes(); ++plane) {
          T* const own = sums == nullptr ? nullptr : sums + plane * sum_count;
          run_unit(job, place, memory, plane, c, std::min(near_, job.channels - c), own);
        }
      }
      leave_cells(job, memory);
      if (sums != nullptr && ((u + 1 - begin) % units_a_sum == 0 || u + 1 == end)) {
        for (std::int64_t plane = 0; plane < groups_.planes(); ++plane) {
          T* const to = job.sums + plane * plane_weights();
          const T* const from = sums + plane * sum_count;
          for (std::int64_t i = 0; i < sum_count; ++i) to[i] += from[i];
        }
      }
      std::swap(memory.now, memory.next);
    }
  }

  // The cells of a unit, of the job's first channel: in the tensors, or spread.
  struct Place {
    const E* input = nullptr;
    std::int64_t input_step = 0;
    E* results = nullptr;
    std::int64_t result_step = 0;
  };

  std::int64_t cells_of(const Unit& unit) const { return segments_[unit.segment].end - segments_[unit.segment].begin; }
  std::int64_t place_of_cells(const Job& job, const Unit& unit, const Strides& strides) const {
    return unit.in(strides) + segments_[unit.segment].begin * strides[4] +
           job.first_channel / groups_.outputs * groups_.inputs;
  }

  Place enter_cells(const Job& job, Memory& memory) const {
    const Unit& unit = memory.now;
    Place place{nullptr, problem_.input_strides[4], nullptr, job.result_strides[4]};
    if (job.input != nullptr) place.input = job.input + place_of_cells(job, unit, problem_.input_strides);
    if (job.results != nullptr) place.results = job.results + place_of_cells(job, unit, job.result_strides);
    if constexpr (std::is_same_v<E, T>) {
      if (groups_.alone()) return place;
      const std::int64_t size = groups_.planes() * plane_size_;
      if (job.input != nullptr) {
        E* const spread = memory.spread.get(size);
        job.moves->spread(place.input, place.input_step, spread, spread_step_, cells_of(unit));
        place.input = spread;
      }
      if (job.results != nullptr) place.results = memory.results.get(size);
      place.input_step = place.result_step = spread_step_;
    }
    return place;
  }

  void leave_cells(const Job& job, Memory& memory) const {
    if constexpr (std::is_same_v<E, T>) {
      if (groups_.alone() || job.results == nullptr) return;
      job.moves->gather(memory.results.get(groups_.planes() * plane_size_), spread_step_,
                        job.results + place_of_cells(job, memory.now, job.result_strides), job.result_strides[4],
                        cells_of(memory.now), job.past_caches);
    }
  }

  // `count` channels from the job's channel `first` on.
  void run_unit(const Job& job, const Place& cells, Memory& memory, std::int64_t plane, std::int64_t first,
                std::int64_t count, T* sums) const {
    const Axis& width = problem_.axes[2];
    const Strides& grad_strides = problem_.output_strides;
    const Unit& unit = memory.now;
    const Segment& segment = segments_[unit.segment];
    const std::int64_t c = job.first_channel + first;
    GradientCells<E, T> part;
    part.cell_step = width.input > 1 ? width.stride * grad_strides[4] : 0;
    part.tap_step = width.kernel > 1 ? width.dilation * grad_strides[4] : 0;
    part.input_step = cells.input_step;
    part.block_size = block_size();
    part.channels = count;
    part.rows = unit.rows.data();
    part.row_count = std::ssize(unit.rows);
    part.result_step = cells.result_step;
    part.past_caches = job.past_caches && groups_.alone();
    std::vector<CellsAhead<E>>& ahead = memory.ahead_of_piece;
    for (const Piece& piece : segment.pieces) {
      const std::int64_t cell = piece.first - segment.begin;
      const std::int64_t place = piece.first * width.stride - width.pad_begin + piece.first_tap * width.dilation;
      const std::int64_t tap = piece.first_tap * kMostLanes;
      part.grad = job.grad + unit.image * grad_strides[0] + place * grad_strides[4] + c;
      if (job.input != nullptr) {
        part.input = cells.input + plane * plane_size_ + cell * cells.input_step + first;
        part.sums = sums + first * taps_ + tap;
      }
      part.weights = job.weights + plane * plane_weights() + c * taps_ + tap;
      if (job.results != nullptr) {
        part.results = cells.results + plane * plane_size_ + cell * cells.result_step + first;
      }
      part.taps = piece.taps;
      part.cells = piece.cells;
      ahead.clear();
      if (plane == 0) ahead = memory.ahead;
      for (CellsAhead<E>& row : ahead) row.from += cell * row.cell_step + first;
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
    if (job.input != nullptr && groups_.alone()) {
      const std::int64_t cell_step = problem_.input_strides[4];
      memory.ahead.push_back(
          {job.input + next.in(problem_.input_strides) + first_cell * cell_step + job.first_channel, cell_step, 1, 0});
    }
  }

  Problem problem_;
  SmallGroups groups_;
  std::int64_t padded_channels_ = 1;  // of the output
  std::int64_t taps_ = 1;
  std::int64_t block_ = 1;  // channels of a task
  std::int64_t near_ = 1;   // of which as many are computed at a time
  std::vector<Segment> segments_;
  std::int64_t units_ = 0;
  std::int64_t splits_ = 1;
  // Cells that are spread, of a block of channels and of the last one: how they are laid out.
  std::int64_t spread_step_ = 0;
  std::int64_t plane_size_ = 0;
  Moves moves_;
  Moves last_moves_;
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
