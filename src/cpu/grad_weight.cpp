// grad_weight: for every tap of every phase,
//   grad_weight[ci][co][tap] = sum over cells p of  grad_output[co][p] input[ci][p + offset(tap)],
// a matrix product over the cells of the packed line. With enough input channels the vectors run along them (the input
// is packed with its channels innermost); with few, along the cells, as dot products.
// With few output channels, their taps are the rows of the product instead: grad_output is read at another place for
// each, and the input where it is.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "core/parallel.h"
#include "cpu/blocking.h"
#include "cpu/mirror.h"
#include "cpu/packing.h"
#include "cpu/panels.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"
#include "cpu/weight_blocks.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kMostSums = std::int64_t{1} << 17;  // elements of one block of results
// Elements of a packed operand. Where no tap reads the cells around, there is no reason to leave the L2 cache.
constexpr std::int64_t kMostPacked = std::int64_t{1} << 17;
constexpr std::int64_t kMostPackedAlone = std::int64_t{1} << 15;
constexpr std::int64_t kDepth =
    112;  // cells between two visits to the results: a panel of inputs stays in the L1 cache
constexpr std::int64_t kTasksWanted = 8;
constexpr std::int64_t kFewestTasks = 4;           // for which blocks of output channels are cut
constexpr std::int64_t kFewestOutputs = 64;        // of a block that is cut for it
constexpr std::int64_t kRows = 16;                 // output channels are cut at multiples of this
constexpr std::int64_t kMostOutputs = 16 * kRows;  // of a block
constexpr std::int64_t kFewInputs = 12;            // fewer input channels than this: dot products
constexpr std::int64_t kFewOutputs = 6;            // fewer output channels than this: their taps are the rows
constexpr std::int64_t kMostAlternating = 4;       // phases of a row that are read together
constexpr double kMostFilled = 1.1;                // a line that is longer than its cells by more is closed up

struct SumBlocking : WeightBlocking {
  bool along_inputs = true;  // vectors run along the input channels
  bool taps_are_rows = false;
  std::int64_t cells = 1;
};

SumBlocking choose_sum_blocking(const Problem& problem) {
  std::int64_t taps = 1;
  for (const Axis& axis : problem.axes) taps *= axis.kernel;
  SumBlocking blocking;
  blocking.group_inputs = problem.in_channels_per_group();
  blocking.group_outputs = problem.out_channels_per_group();
  const bool side_by_side = problem.input_strides[1] == 1 && problem.output_strides[1] == 1;
  if (side_by_side && blocking.group_inputs <= kSmallGroup) {
    blocking.interleaved = problem.dtype == DType::f64 ? kMostInterleaved<double> : kMostInterleaved<float>;
    while (problem.groups % blocking.interleaved != 0) blocking.interleaved /= 2;
  }
  blocking.groups = problem.groups / blocking.interleaved;
  blocking.group_inputs *= blocking.interleaved;
  const std::int64_t inputs = std::max<std::int64_t>(blocking.group_inputs, 1);
  const std::int64_t outputs = std::max<std::int64_t>(blocking.group_outputs, 1);
  blocking.along_inputs = inputs >= kFewInputs || blocking.interleaved > 1;
  blocking.taps_are_rows = blocking.along_inputs && blocking.interleaved == 1 && outputs < kFewOutputs && taps > 1;
  const std::int64_t fewest_inputs = blocking.along_inputs ? 16 : 1;
  const auto even = [](std::int64_t all, std::int64_t most, std::int64_t unit) {
    return round_up(ceil_div(all, ceil_div(all, most)), unit);
  };
  blocking.inputs = std::clamp<std::int64_t>(kMostSums / (taps * kRows) / 16 * 16, fewest_inputs, 256);
  blocking.inputs = even(inputs, blocking.inputs, fewest_inputs);
  blocking.input_blocks = ceil_div(inputs, blocking.inputs);
  // Smaller blocks where there is no room for as many partial sums as tasks.
  std::int64_t most = std::clamp<std::int64_t>(kMostSums / (taps * blocking.inputs), kRows, kMostOutputs);
  for (std::int64_t tasks = 0; tasks < kFewestTasks; most /= 2) {
    blocking.outputs = even(outputs, std::max(most / kRows, std::int64_t{1}) * kRows, kRows);
    blocking.output_blocks = ceil_div(outputs, blocking.outputs);
    const std::int64_t sums = blocking.blocks() * taps * blocking.inputs * blocking.outputs;
    tasks = most < 2 * kFewestOutputs
                ? kFewestTasks
                : blocking.blocks() * std::max<std::int64_t>(room_for_partials(problem) / sums, 1);
  }
  const std::int64_t widest =
      std::max(std::min(blocking.inputs, inputs), std::min(blocking.outputs, outputs) * blocking.interleaved);
  const bool alone = std::ranges::all_of(problem.axes, [](const Axis& axis) { return axis.kernel <= axis.stride; });
  blocking.cells = std::clamp<std::int64_t>((alone ? kMostPackedAlone : kMostPacked) / widest, 128, 2048);
  return blocking;
}

template <typename E, typename T>
class GradWeight final : public Kernel {
 public:
  GradWeight(const Problem& problem, const SumBlocking& blocking, Tiling tiling)
      : problem_(problem),
        blocking_(blocking),
        tiling_(std::move(tiling)),
        blocks_(problem, blocking, tiling_, kTasksWanted, room_for_partials(problem)) {}

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
           " splits, vectors along " + (blocking_.along_inputs ? "input channels" : "cells") +
           (blocking_.taps_are_rows ? ", rows of taps" : "") + ", " + target_name();
  }

 private:
  struct Memory {
    Scratch<T> input;
    Scratch<T> grad;
    Scratch<T> rows;
    Scratch<std::int64_t> offsets;
  };

  // Adds the tiles of one split to the block.
  void sum_cells(const E* input, const E* grad, const ChannelBlock& channels, std::int64_t split, T* block) const {
    thread_local Memory memory;
    const MathOps<T>& math = math_ops<T>();
    const std::int64_t groups = blocking_.interleaved;
    const std::int64_t input_channel = channels.group * blocking_.group_inputs + channels.first_input / groups;
    const std::int64_t output_channel = channels.group * groups * blocking_.group_outputs + channels.first_output;
    const View<const E> input_view{input + input_channel * problem_.input_strides[1], problem_.input_strides,
                                   channels.inputs / groups};
    const View<const E> grad_view{grad + output_channel * problem_.output_strides[1], problem_.output_strides,
                                  channels.outputs};
    const std::int64_t first_tile = tiling_.tiles() * split / blocks_.splits();
    const std::int64_t last_tile = tiling_.tiles() * (split + 1) / blocks_.splits();
    if (blocking_.taps_are_rows) {
      for (std::int64_t index = first_tile; index < last_tile; ++index) {
        sum_tile_by_taps(tiling_.tile(index), input_view, grad_view, block, memory);
      }
      return;
    }
    // An odd number of cache lines, so that rows do not fall into the same cache sets.
    const std::int64_t line_size = round_up(tiling_.longest(), 2 * kMostLanes) + kMostLanes;
    const std::int64_t cell_size = round_up(blocking_.outputs * groups, 2 * kMostLanes) + kMostLanes;
    // Where output channels lie side by side they are rows of the product as they are. Otherwise they are put so, and
    // phases that alternate along a row are read together.
    const bool transposes = std::is_same_v<E, T> && problem_.output_strides[4] == 1 &&
                            tiling_.row_phases() <= kMostAlternating && groups == 1;
    const bool side_by_side = blocking_.along_inputs && (problem_.output_strides[1] == 1 || transposes);
    const std::int64_t together = side_by_side && transposes ? tiling_.row_phases() : 1;
    auto tile_size = math.tile_for(channels.outputs, channels.inputs);
    if (tile_size.vectors * math.lanes % groups != 0) tile_size = {1, kMostVectors};  // single lanes: groups are whole
    const std::int64_t panel = tile_size.vectors * math.lanes;  // input channels that a register tile spans
    T* const packed_input =
        memory.input.get(tiling_.plane_size() * std::max(round_up(blocking_.inputs, kMostLanes), panel));
    const std::int64_t phase_size = std::max(blocking_.outputs * line_size, tiling_.longest() * cell_size);
    T* const packed_grad = memory.grad.get(together * phase_size);
    T* const rows =
        memory.rows.get(blocking_.along_inputs ? RowPanels(math, tile_size.rows).size(channels.outputs, kDepth) : 0);
    std::int64_t* const offsets =
        memory.offsets.get(blocking_.along_inputs ? kDepth : tiling_.most_taps() * blocking_.inputs);
    const PackedSteps steps =
        side_by_side ? PackedSteps{1, cell_size, groups, problem_.out_channels_per_group()} : PackedSteps{line_size, 1};
    std::vector<Runs> runs;
    std::vector<T*> lines;
    std::vector<std::vector<std::int64_t>> positions(together);  // of the cells of each phase, where gaps are left out
    for (std::int64_t index = first_tile; index < last_tile; ++index) {
      const Tile tile = tiling_.tile(index);
      if (blocking_.along_inputs) {
        pack_panels(math, tile, input_view, panel, packed_input);
      } else {
        pack_source(tiling_, tile, input_view, PackedSteps{tiling_.plane_size(), 1}, packed_input);
      }
      for (std::size_t p = 0; p < tiling_.phases().size(); p += together) {
        runs.clear();
        lines.clear();
        for (std::int64_t i = 0; i < together; ++i) {
          runs.push_back(target_runs(tiling_, tile, tiling_.phases()[p + i], problem_.output_strides));
          lines.push_back(packed_grad + i * phase_size);
          const auto cells = runs[i].count() * static_cast<std::int64_t>(runs[i].all().size());
          positions[i].clear();
          // The gaps must be zero: there the input is multiplied too. Dot products run on to whole vectors.
          if (side_by_side && groups == 1 && runs[i].count() > 0 && kMostFilled * cells < tile.length) {
            runs[i] = runs[i].closed_up(positions[i]);
          } else if (!side_by_side || !runs[i].is_one_run(tile.length)) {
            std::fill_n(lines[i], side_by_side ? tile.length * cell_size : channels.outputs * line_size, T{0});
          }
        }
        bool loaded = false;
        if constexpr (std::is_same_v<E, T>) {
          loaded = together > 1 && load_alternating(grad_view, runs, steps, lines);
        }
        for (std::int64_t i = 0; i < together; ++i) {
          const PhaseTile& phase = tiling_.phases()[p + i];
          if (!loaded) load_runs(grad_view, runs[i], steps, lines[i]);
          T* const sums = block + blocks_.phase_begin(p + i);
          if (blocking_.along_inputs) {
            multiply(math, tile_size, phase, channels, tile.length, lines[i], steps, positions[i], packed_input, rows,
                     offsets, sums);
          } else {
            dot(math, phase, channels, tile.length, lines[i], line_size, packed_input + tiling_.lead(), offsets, sums);
          }
        }
      }
    }
  }

  // One tile, where the taps are the rows: the tile is a tile of input cells, and grad_output has the halo.
  void sum_tile_by_taps(const Tile& tile, const View<const E>& input, const View<const E>& grad, T* sums,
                        Memory& memory) const {
    if (tile.length <= 0) return;  // an empty input
    const MathOps<T>& math = math_ops<T>();
    const PhaseTile& phase = tiling_.phases()[0];
    const auto taps = static_cast<std::int64_t>(phase.taps.size());
    const std::int64_t grad_size = static_cast<std::int64_t>(tiling_.sources().size()) * tiling_.plane_size();
    T* const packed_grad = memory.grad.get(grad.channels * grad_size);
    pack_source(tiling_, tile, grad, PackedSteps{grad_size, 1}, packed_grad);
    const std::int64_t row_count = grad.channels * taps;
    std::int64_t* const offsets = memory.offsets.get(row_count);
    for (std::int64_t m = 0; m < row_count; ++m) {
      const Tap& tap = phase.taps[m % taps];
      offsets[m] = m / taps * grad_size + tap.source * tiling_.plane_size() + tiling_.lead() + tap.offset;
    }

    // The positions of the line that are multiplied: what lies between rows is left out where it is much.
    Runs runs = target_runs(tiling_, tile, phase, input.strides);
    std::vector<std::int64_t> positions;
    std::int64_t length = tile.length;
    const std::int64_t cells = runs.count() * static_cast<std::int64_t>(runs.all().size());
    if (runs.along_row() && kMostFilled * static_cast<double>(cells) < static_cast<double>(length)) {
      runs = runs.closed_up(positions);
      length = cells;
    }
    const std::int64_t row_length = positions.empty() ? length : std::max<std::int64_t>(runs.count(), 1);

    const auto size = math.tile_for(row_count, input.channels);
    const std::int64_t panel = size.vectors * math.lanes;
    T* const packed_input = memory.input.get(round_up(input.channels, kMostLanes) * length);
    for (std::int64_t n = 0; n < input.channels; n += panel) {
      const std::int64_t width = panel_width(math, panel, input.channels, n);
      if (width > input.channels - n) {
        std::fill_n(packed_input + n * length, width * length, T{0});
      } else if (positions.empty()) {
        clear_around(runs, 0, length, width, packed_input + n * length);
      }
      load_runs(View<const E>{input.data + n * input.strides[1], input.strides, std::min(panel, input.channels - n)},
                runs, PackedSteps{1, width}, packed_input + n * length);
    }

    const RowPanels row_panels(math, size.rows);
    T* const rows = memory.rows.get(row_panels.size(row_count, kDepth));
    Multiply<T> job;
    job.a = rows;
    job.c = sums;
    job.c_step = blocking_.inputs;
    job.accumulate = true;
    for (std::int64_t k = 0; k < length; k += kDepth) {
      job.depth = std::min(kDepth, length - k);
      for (std::int64_t first = k; first < k + job.depth;) {
        const std::int64_t position = positions.empty() ? first : positions[first];
        const std::int64_t count = std::min(row_length - first % row_length, k + job.depth - first);
        for (std::int64_t m = 0; m < row_count; m += row_panels.rows) {
          element_ops<T, T>().load_lines(packed_grad + position, offsets + m,
                                         rows + row_panels.place(m, job.depth) + (first - k) * row_panels.step,
                                         row_panels.step, std::min(row_panels.rows, row_count - m), count);
        }
        first += count;
      }
      multiply_panels(math, size, row_count, input.channels, {packed_input, length, k}, job);
    }
  }

  // The input of a tile as [panel of channels][position][channel], zero wherever there is none.
  void pack_panels(const MathOps<T>& math, const Tile& tile, const View<const E>& view, std::int64_t panel,
                   T* packed) const {
    const Runs runs = source_runs(tiling_, tile, tiling_.sources()[0], view.strides);
    const std::int64_t groups = blocking_.interleaved;
    const std::int64_t columns = view.channels * groups;
    for (std::int64_t n = 0; n < columns; n += panel) {
      const std::int64_t width = panel_width(math, panel, columns, n);
      const std::int64_t channels = std::min(panel, columns - n) / groups;
      T* const to = packed + n * tiling_.plane_size();
      std::fill_n(to, width * tiling_.plane_size(), T{0});
      load_runs(View<const E>{view.data + n / groups * view.strides[1], view.strides, channels}, runs,
                PackedSteps{1, width, groups, problem_.in_channels_per_group()}, to + tiling_.lead() * width);
    }
  }

  // The cells of one phase: all `length` of them, or those at `positions` of the line, closed up.
  void multiply(const MathOps<T>& math, const MathOps<T>::TileSize& tile_size, const PhaseTile& phase,
                const ChannelBlock& channels, std::int64_t length, const T* grad, const PackedSteps& grad_steps,
                const std::vector<std::int64_t>& positions, const T* packed_input, T* rows, std::int64_t* offsets,
                T* sums) const {
    const auto taps = static_cast<std::int64_t>(phase.taps.size());
    const std::int64_t panel = tile_size.vectors * math.lanes;
    const RowPanels row_panels(math, tile_size.rows);
    Multiply<T> job;
    const bool in_place = grad_steps.channel == 1;
    const bool closed_up = !positions.empty();
    const std::int64_t cells = closed_up ? static_cast<std::int64_t>(positions.size()) : length;
    job.a_step = in_place ? grad_steps.cell : row_panels.step;
    job.c_step = taps * blocking_.inputs;
    job.accumulate = true;
    job.offsets = offsets;
    const std::int64_t groups = blocking_.interleaved;
    const auto& of_groups = groups == 2 ? math.multiply_pairs : math.multiply_fours;
    const auto& of_cells = closed_up ? math.multiply_in_place : math.multiply_packed;
    const auto& table = groups == 1 ? of_cells : of_groups;
    for (std::int64_t k = 0; k < cells; k += kDepth) {
      job.depth = std::min(kDepth, cells - k);
      if (!in_place) pack_lines(row_panels, channels.outputs, grad + k, grad_steps.channel, job.depth, rows);
      for (std::int64_t n = 0; n < channels.inputs; n += panel) {
        job.b_step = panel_width(math, panel, channels.inputs, n);
        const T* input = packed_input + n * tiling_.plane_size() + tiling_.lead() * job.b_step;
        if (closed_up) {
          for (std::int64_t i = 0; i < job.depth; ++i) offsets[i] = positions[k + i] * job.b_step;
        } else {
          input += k * job.b_step;
        }
        for (std::int64_t t = 0; t < taps; ++t) {
          job.b = input + phase.taps[t].offset * job.b_step;
          for (std::int64_t m = 0; m < channels.outputs; m += tile_size.rows) {
            job.a = in_place ? grad + k * grad_steps.cell + m * groups : rows + row_panels.place(m, job.depth);
            job.c = sums + (m * taps + t) * blocking_.inputs + n;
            const std::int64_t here = std::min(tile_size.rows, channels.outputs - m);
            table[here - 1][job.b_step / math.lanes - 1](job);
          }
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

  Problem problem_;
  SumBlocking blocking_;
  Tiling tiling_;
  WeightBlocks<E, T> blocks_;
};

Proposal propose_as_it_is(const Problem& problem) {
  const SumBlocking blocking = choose_sum_blocking(problem);
  AxisMaps maps;
  for (int a = 0; a < kSpatialAxes; ++a) {
    maps[a] = blocking.taps_are_rows ? map_from_input(problem.axes[a]) : map_from_output(problem.axes[a]);
  }
  Tiling tiling(std::move(maps), problem.batch, blocking.cells);
  if (tiling.plane_size() > kLongestLine) {
    return Proposal::decline("a packed line must not exceed " + std::to_string(kLongestLine) + " elements, got " +
                             std::to_string(tiling.plane_size()));
  }
  return with_types(problem.dtype, [&]<typename E, typename T> {
    Proposal proposal;
    const auto kernel = std::make_shared<GradWeight<E, T>>(problem, blocking, tiling);
    proposal.workspace_bytes = kernel->workspace_bytes();
    proposal.kernel = kernel;
    return proposal;
  });
}

}  // namespace

Proposal propose_grad_weight(const Problem& problem) {
  const std::optional<Problem> other = mirrored(problem);
  if (!other) return propose_as_it_is(problem);
  Proposal proposal = propose_as_it_is(*other);
  if (proposal.kernel != nullptr) proposal.kernel = run_mirrored(problem, proposal.kernel);
  return proposal;
}

}  // namespace tconv::cpu
