// Every row of cells is cut into pairs, so that two products are one (bf16_products.h):
//   grad_weight[ci][co][tap] = sum over the first cells p of pairs of
//     grad_output[co][p] input[ci][p + offset(tap)] + grad_output[co][p + 1] input[ci][p + 1 + offset(tap)]
// The gradient of the output is packed as words of both cells, an odd last one beside zero: lines of them per channel
// or, where channels lie side by side, channels per pair. In the input, which taps read at any distance, every position
// is a word with the next one.
#include "cpu/pair_weight.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "cpu/bf16_products.h"
#include "cpu/blocking.h"
#include "cpu/mirror.h"
#include "cpu/packing.h"
#include "cpu/panels.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"

namespace tconv::cpu {
namespace {

using E = BFloat16;
using T = float;

constexpr std::int64_t kDepth = 112;    // pairs between two visits to the results: their input stays in the L1 cache
constexpr std::int64_t kRangeCost = 8;  // of pairs that are multiplied by themselves, in pairs

class PairWeight final : public Kernel {
 public:
  PairWeight(const Problem& problem, const SumBlocking& blocking, Tiling tiling)
      : problem_(problem), blocking_(blocking), tiling_(std::move(tiling)), blocks_(problem, blocking, tiling_) {
    half_ = tiling_.plane_size() / 2 + 1;
    const TileShape& shape = tiling_.shape();
    const std::int64_t pairs = shape.images * shape.block[0] * shape.block[1] * ceil_div(shape.block[2], 2);
    // An odd number of cache lines, so that rows do not fall into the same cache sets.
    line_size_ = round_up(pairs, 2 * kMostLanes) + kMostLanes;
    cell_size_ = round_up(blocking.outputs, 2 * kMostLanes) + kMostLanes;
    channels_inside_ = problem.output_strides[1] == 1;
    grad_size_ = channels_inside_ ? pairs * cell_size_ : blocking.outputs * line_size_;
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const auto* input = static_cast<const E*>(buffers.input);
    const auto* grad = static_cast<const E*>(buffers.output);
    blocks_.run(buffers, execution, [&](const ChannelBlock& channels, std::int64_t split, T* block) {
      sum_cells(input, grad, channels, split, block);
    });
  }

  std::size_t workspace_bytes() const { return blocks_.workspace_bytes(); }

  std::string describe() const override {
    return std::to_string(tiling_.phases().size()) + " phases, blocks of " + std::to_string(blocking_.inputs) + " x " +
           std::to_string(blocking_.outputs) + " channels, " + std::to_string(tiling_.tiles()) + " tiles of up to " +
           std::to_string(tiling_.longest()) + " cells in " + std::to_string(blocks_.splits()) +
           " splits, pairs of bfloat16, " + target_name();
  }

 private:
  // The pairs of a phase in a tile.
  struct Pairs {
    std::vector<std::int64_t> places;  // where on the line the first cell of each is
    std::int64_t of_row = 0;
    bool joined = false;  // all rows are one
  };
  struct Range {
    std::int64_t first = 0;
    std::int64_t last = 0;
  };
  struct Memory {
    Scratch<T> input;
    Scratch<T> grad;
    Scratch<E> lines;
    Pairs pairs;
    std::vector<std::vector<Range>> reached;  // by each tap
  };

  // Adds the tiles of one split to the block.
  void sum_cells(const E* input, const E* grad, const ChannelBlock& channels, std::int64_t split, T* block) const {
    thread_local Memory memory;
    const MathOps<T>& math = math_ops<T>();
    const std::int64_t input_channel = channels.group * blocking_.group_inputs + channels.first_input;
    const std::int64_t output_channel = channels.group * blocking_.group_outputs + channels.first_output;
    const View<const E> input_view{input + input_channel * problem_.input_strides[1], problem_.input_strides,
                                   channels.inputs};
    const View<const E> grad_view{grad + output_channel * problem_.output_strides[1], problem_.output_strides,
                                  channels.outputs};
    auto tile_size = math.tile_for_cells(channels.outputs, channels.inputs);
    if (tile_size.vectors == 1) tile_size.rows = even_parts(channels.outputs, kMostWordRows);
    T* const packed_input = memory.input.get(2 * half_ * round_up(blocking_.inputs, kMostLanes));
    T* const packed_grad = memory.grad.get(grad_size_);
    const std::int64_t first_tile = tiling_.tiles() * split / blocks_.splits();
    const std::int64_t last_tile = tiling_.tiles() * (split + 1) / blocks_.splits();
    for (std::int64_t index = first_tile; index < last_tile; ++index) {
      const Tile tile = tiling_.tile(index);
      pack_input(tile, input_view, tile_size.vectors * math.lanes, memory.lines, packed_input);
      for (std::size_t p = 0; p < tiling_.phases().size(); ++p) {
        const PhaseTile& phase = tiling_.phases()[p];
        if (phase.taps.empty()) continue;
        pack_grad(tile, phase, grad_view, packed_grad, memory.pairs);
        find_reached(tile, phase, memory.pairs, memory.reached);
        multiply(math, tile_size, phase, channels, packed_grad, memory, packed_input, block + blocks_.phase_begin(p));
      }
    }
  }

  // Rows of a panel: the words that begin at even positions, then those at odd ones; position -1 is there as well.
  std::int64_t row_of(std::int64_t position) const {
    const std::int64_t place = position + tiling_.lead() + 1;
    return place % 2 * half_ + place / 2;
  }

  // The input of a tile as [panel of channels][row][channel], zero wherever there is none.
  void pack_input(const Tile& tile, const View<const E>& view, std::int64_t panel, Scratch<E>& memory,
                  T* packed) const {
    const Runs runs = source_runs(tiling_, tile, tiling_.sources()[0], view.strides, RunAxis::row);
    const std::int64_t count = runs.count();
    const bool in_lines = view.strides[1] != 1 && runs.tensor_step() != 1;
    const std::int64_t line_size = round_up(count, kMostLanes);
    E* const lines = in_lines ? memory.get(kPairedChannels * line_size) : nullptr;
    for (std::int64_t n = 0; n < view.channels; n += panel) {
      const std::int64_t width = panel_width(math_ops<T>(), panel, view.channels, n);
      const std::int64_t channels = std::min(panel, view.channels - n);
      T* const to = packed + n * 2 * half_;
      std::fill_n(to, width * 2 * half_, T{0});
      const auto place = [&](std::int64_t position) { return to + row_of(position) * width; };
      if (view.strides[1] == 1) {
        const E* last = nullptr;  // of the line before
        std::int64_t end = -1;
        for (const Runs::Run& run : runs.all()) {
          if (count == 0) break;
          const E* cell = view.data + n + run.tensor;
          pair_cells(end == run.line ? last : nullptr, cell, channels, place(run.line - 1));
          for (std::int64_t i = 0; i < count; ++i, cell += runs.tensor_step()) {
            last = cell;
            pair_cells(cell, i + 1 < count ? cell + runs.tensor_step() : nullptr, channels, place(run.line + i));
          }
          end = run.line + count;
        }
        continue;
      }
      for (std::int64_t c = 0; c < channels; c += kPairedChannels) {
        const std::int64_t some = std::min(kPairedChannels, channels - c);
        const E* const first = view.data + (n + c) * view.strides[1];
        for (const Runs::Run& run : runs.all()) {
          const E* from = first + run.tensor;
          if (in_lines) {
            for (std::int64_t line = 0; line < some; ++line) {
              for (std::int64_t i = 0; i < count; ++i) {
                lines[line * line_size + i] = from[line * view.strides[1] + i * runs.tensor_step()];
              }
            }
            from = lines;
          }
          pair_lines(from, in_lines ? line_size : view.strides[1], some, count, place(run.line) + c,
                     place(run.line - 1) + c, width);
        }
      }
    }
  }

  // The cells of one phase as pairs, and where on the line they are.
  void pack_grad(const Tile& tile, const PhaseTile& phase, const View<const E>& view, T* packed, Pairs& pairs) const {
    const Runs runs = target_runs(tiling_, tile, phase, view.strides, RunAxis::row);
    // Rows without anything between them are one.
    const bool joined = runs.is_one_run(tile.length);
    const std::int64_t count = joined ? tile.length : runs.count();
    const std::int64_t of_run = ceil_div(count, 2);
    const std::size_t all = joined ? 1 : runs.all().size();
    pairs.joined = joined;
    pairs.of_row = of_run;
    pairs.places.clear();
    for (std::size_t r = 0; r < all && count > 0; ++r) {
      for (std::int64_t i = 0; i < of_run; ++i) pairs.places.push_back(runs.all()[r].line + 2 * i);
    }
    if (pairs.places.empty()) return;
    const std::int64_t step = runs.tensor_step();
    if (!channels_inside_) {
      std::vector<std::int64_t> places;
      for (std::size_t r = 0; r < all; ++r) places.push_back(runs.all()[r].tensor);
      for (std::int64_t channel = 0; channel < view.channels; ++channel) {
        pair_runs(view.data + channel * view.strides[1], places.data(), std::ssize(places), step, count,
                  packed + channel * line_size_);
      }
      return;
    }
    T* to = packed;
    for (std::size_t r = 0; r < all; ++r) {
      const E* cell = view.data + runs.all()[r].tensor;
      for (std::int64_t i = 0; i < count; i += 2, cell += 2 * step, to += cell_size_) {
        pair_cells(cell, i + 1 < count ? cell + step : nullptr, view.channels, to);
      }
    }
  }

  void multiply(const MathOps<T>& math, const MathOps<T>::TileSize& tile_size, const PhaseTile& phase,
                const ChannelBlock& channels, const T* grad, const Memory& memory, const T* packed_input,
                T* sums) const {
    const auto taps = static_cast<std::int64_t>(phase.taps.size());
    const std::int64_t panel = tile_size.vectors * math.lanes;
    const WordsTable& table = channels_inside_ ? bf16_columns() : bf16_lines();
    const std::int64_t row_step = channels_inside_ ? 1 : line_size_;
    const std::int64_t pair_step = channels_inside_ ? cell_size_ : 1;
    const std::vector<std::int64_t>& pairs = memory.pairs.places;
    const auto all = static_cast<std::int64_t>(pairs.size());
    std::array<std::array<std::int64_t, kDepth>, 2> offsets{};  // of taps at even and at odd distances
    MultiplyWords job;
    job.a_step = channels_inside_ ? cell_size_ : line_size_;
    job.c_step = taps * blocking_.inputs;
    for (std::int64_t k = 0; k < all; k += kDepth) {
      const std::int64_t end = std::min(k + kDepth, all);
      for (std::int64_t n = 0; n < channels.inputs; n += panel) {
        const std::int64_t width = panel_width(math, panel, channels.inputs, n);
        for (std::int64_t i = k; i < end; ++i) {
          for (std::int64_t odd = 0; odd < 2; ++odd) offsets[odd][i - k] = row_of(pairs[i] + odd) * width;
        }
        for (std::int64_t t = 0; t < taps; ++t) {
          const std::int64_t distance = phase.taps[t].offset;
          const std::int64_t odd = distance & 1;
          job.b = packed_input + n * 2 * half_ + (distance - odd) / 2 * width;
          for (const Range& range : memory.reached[t]) {
            const std::int64_t first = std::max(range.first, k);
            job.depth = std::min(range.last, end) - first;
            if (job.depth <= 0) continue;
            job.offsets = offsets[odd].data() + first - k;
            for (std::int64_t m = 0; m < channels.outputs; m += tile_size.rows) {
              job.a = grad + m * row_step + first * pair_step;
              job.c = sums + (m * taps + t) * blocking_.inputs + n;
              table[std::min(tile_size.rows, channels.outputs - m) - 1][width / math.lanes - 1](job);
            }
          }
        }
      }
    }
  }

  // The pairs that a tap finds input for: all of them, or whole rows where that leaves out enough.
  void find_reached(const Tile& tile, const PhaseTile& phase, const Pairs& pairs,
                    std::vector<std::vector<Range>>& reached) const {
    const auto all = static_cast<std::int64_t>(pairs.places.size());
    reached.resize(std::max(reached.size(), phase.taps.size()));
    const Triple count = tiling_.cells_of(tile, phase);
    for (std::size_t t = 0; t < phase.taps.size(); ++t) {
      std::vector<Range>& ranges = reached[t];
      ranges.clear();
      if (all == 0) continue;
      std::array<Range, 2> rows;  // along depth and height
      for (int a = 0; a < 2; ++a) {
        const std::int64_t shift = tile.begin[a] + phase.taps[t].shift[a];
        rows[a].first = std::clamp<std::int64_t>(-shift, 0, count[a]);
        rows[a].last = std::clamp(tiling_.sources()[0][a].count - shift, rows[a].first, count[a]);
      }
      std::int64_t cost = 0;
      for (std::int64_t image = 0; image < tile.images; ++image) {
        for (std::int64_t d = rows[0].first; d < rows[0].last && rows[1].last > rows[1].first; ++d) {
          const std::int64_t row = (image * count[0] + d) * count[1];
          Range range{(row + rows[1].first) * pairs.of_row, (row + rows[1].last) * pairs.of_row};
          if (pairs.joined)
            range = {(row + rows[1].first) * count[2] / 2, ceil_div((row + rows[1].last) * count[2], 2)};
          if (!ranges.empty() && range.first <= ranges.back().last) {
            cost += range.last - ranges.back().last;
            ranges.back().last = range.last;
          } else {
            cost += range.last - range.first + kRangeCost;
            ranges.push_back(range);
          }
        }
      }
      if (cost >= all + kRangeCost) ranges.assign(1, {0, all});
    }
  }

  Problem problem_;
  SumBlocking blocking_;
  Tiling tiling_;
  WeightBlocks<E, T> blocks_;
  bool channels_inside_ = false;  // the packed gradient is [pair][channel], otherwise [channel][pair]
  std::int64_t half_ = 0;         // rows of a panel that begin at even positions, or at odd ones
  std::int64_t line_size_ = 0;    // of a channel of the packed gradient
  std::int64_t cell_size_ = 0;    // or of a pair
  std::int64_t grad_size_ = 0;
};

}  // namespace

bool sums_pairs(const Problem& problem, const SumBlocking& blocking) {
  return problem.dtype == DType::bf16 && blocking.along_inputs && !blocking.taps_are_rows &&
         blocking.interleaved == 1 && has_bf16_products();
}

bool sums_pairs(const Problem& problem) {
  if (problem.dtype != DType::bf16) return false;
  const Problem walked = mirrored(problem).value_or(problem);
  return sums_pairs(walked, choose_sum_blocking(walked));
}

Proposal propose_pair_weight(const Problem& problem, const SumBlocking& blocking, Tiling tiling) {
  Proposal proposal;
  const auto kernel = std::make_shared<PairWeight>(problem, blocking, std::move(tiling));
  proposal.workspace_bytes = kernel->workspace_bytes();
  proposal.kernel = kernel;
  return proposal;
}

}  // namespace tconv::cpu
