// grad_weight: for every tap of every phase,
//   grad_weight[ci][co][tap] = sum over cells p of  grad_output[co][p] input[ci][p + offset(tap)],
// a matrix product over the cells of the packed line. With enough input channels the vectors run along them (the input
// is packed with its channels innermost, or read in place where they are); with few, along the cells, as dot products.
// With few output channels, their taps are the rows of the product instead: each reads a window of grad_output from
// another place.
#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <type_traits>
#include <vector>

#include "core/parallel.h"
#include "cpu/blocking.h"
#include "cpu/mirror.h"
#include "cpu/packing.h"
#include "cpu/pair_weight.h"
#include "cpu/panels.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"
#include "cpu/sum_blocking.h"
#include "cpu/tap_pairs.h"
#include "cpu/weight_blocks.h"
#include "cpu/windows.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kDepth =
    112;  // cells between two visits to the results: a panel of inputs stays in the L1 cache
constexpr std::int64_t kLongTapRow = 4;       // taps that are rows of a product by themselves
constexpr std::int64_t kFewestInRow = 12;     // cells that are read in place
constexpr std::int64_t kMostAlternating = 4;  // phases of a row that are read together
constexpr std::int64_t kFewestOutputs = 8;    // of a block that is cut for threads, and what it is a multiple of
constexpr std::int64_t kPacking = 16;         // products that packing an element of the input takes as long as
constexpr double kMostFilled = 1.1;           // a line that is longer than its cells by more is closed up

template <typename E, typename T>
class GradWeight final : public Kernel {
 public:
  GradWeight(const Problem& problem, const SumBlocking& blocking, Tiling tiling)
      : problem_(problem),
        blocking_(blocking),
        tiling_(std::move(tiling)),
        window_(blocking.taps_are_rows ? Window(problem, tiling_.shape()) : Window()),
        blocks_(problem, blocking, tiling_) {
    in_place_ = blocking.along_inputs && !blocking.taps_are_rows && blocking.interleaved == 1 &&
                problem.input_strides[1] == 1 && problem.output_strides[1] == 1 &&
                tiling_.shape().block[2] >= kFewestInRow;
    // Where a tile is whole images, all are the same.
    if (blocking.taps_are_rows && tiling_.shape().tiles_along == Triple{1, 1, 1} && problem.batch > 0) {
      const Tile tile = tiling_.tile(0);
      whole_ = tap_rows_of(tile, target_runs(tiling_, tile, tiling_.phases()[0], problem.input_strides));
    }
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
           " splits, vectors along " + (blocking_.along_inputs ? "input channels" : "cells") +
           (blocking_.taps_are_rows ? ", rows of taps" : "") +
           (blocking_.taps_are_rows && std::is_same_v<E, BFloat16> && has_bf16_products() ? ", pairs of bfloat16"
                                                                                          : "") +
           (blocking_.stacked > 1 ? ", " + std::to_string(blocking_.stacked) + " groups together" : "") + ", " +
           target_name();
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
                                   channels.inputs / groups * channels.groups};
    const View<const E> grad_view{grad + output_channel * problem_.output_strides[1], problem_.output_strides,
                                  channels.outputs * channels.groups};
    const std::int64_t first_tile = tiling_.tiles() * split / blocks_.splits();
    const std::int64_t last_tile = tiling_.tiles() * (split + 1) / blocks_.splits();
    if (blocking_.taps_are_rows) {
      for (std::int64_t index = first_tile; index < last_tile; ++index) {
        sum_tile_by_taps(tiling_.tile(index), input_view, grad_view.data, block, memory);
      }
      return;
    }
    if constexpr (std::is_same_v<E, T>) {
      if (in_place_ && channels.inputs % math.lanes == 0) {
        for (std::int64_t index = first_tile; index < last_tile; ++index) {
          sum_tile_in_place(tiling_.tile(index), channels, input_view.data, grad_view.data, block, memory);
        }
        return;
      }
    }
    // An odd number of cache lines, so that rows do not fall into the same cache sets.
    const std::int64_t line_size = round_up(tiling_.longest(), 2 * kMostLanes) + kMostLanes;
    const std::int64_t cell_size = round_up(blocking_.outputs * groups, 2 * kMostLanes) + kMostLanes;
    // Where output channels lie side by side they are rows of the product as they are. Otherwise they are put so, and
    // phases that alternate along a row are read together.
    const bool transposes = std::is_same_v<E, T> && problem_.output_strides[4] == 1 &&
                            tiling_.row_phases() <= kMostAlternating && groups == 1;
    const bool side_by_side = blocking_.along_inputs && (problem_.output_strides[1] == 1 || transposes);
    // Lines of phases that are read together.
    const bool apart = !blocking_.along_inputs && problem_.output_strides[4] == 1 && tiling_.row_phases() > 2 &&
                       tiling_.row_phases() <= kMostAlternating;
    const bool in_turn = groups > 1 && tiling_.row_phases() <= kMostAlternating;
    const std::int64_t together = (side_by_side && transposes) || apart || in_turn ? tiling_.row_phases() : 1;
    auto tile_size = math.tile_for(channels.outputs, channels.inputs);
    if (tile_size.vectors * math.lanes % groups != 0) tile_size = {1, kMostVectors};  // single lanes: groups are whole
    const std::int64_t panel = tile_size.vectors * math.lanes;  // input channels that a register tile spans
    T* const packed_input = memory.input.get(tiling_.plane_size() *
                                             std::max(round_up(blocking_.inputs * channels.groups, kMostLanes), panel));
    const std::int64_t phase_size =
        std::max(blocking_.outputs * channels.groups * line_size, tiling_.longest() * cell_size);
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
            std::fill_n(lines[i], side_by_side ? tile.length * cell_size : grad_view.channels * line_size, T{0});
          }
        }
        bool loaded = false;
        if constexpr (std::is_same_v<E, T>) {
          loaded = together > 1 && side_by_side && !in_turn && load_alternating(grad_view, runs, steps, lines);
        }
        if (in_turn && together > 1) loaded = load_groups_apart(grad_view, runs, steps, lines);
        if (apart && runs.front().tensor_step() > 1) loaded = load_apart(grad_view, runs, steps.channel, lines);
        for (std::int64_t i = 0; i < together; ++i) {
          const PhaseTile& phase = tiling_.phases()[p + i];
          if (!loaded) load_runs(grad_view, runs[i], steps, lines[i]);
          T* const sums = block + blocks_.phase_begin(p + i);
          if (blocking_.along_inputs) {
            multiply(math, tile_size, phase, channels, tile.length, lines[i], steps, positions[i], packed_input, rows,
                     offsets, sums);
          } else {
            for (std::int64_t g = 0; g < channels.groups; ++g) {
              dot(math, phase, channels, tile.length, lines[i] + g * channels.outputs * line_size, line_size,
                  packed_input + g * channels.inputs * tiling_.plane_size() + tiling_.lead(), offsets,
                  sums + g * channels.block_step);
            }
          }
        }
      }
    }
  }

  // One tile, where both tensors are rows of the product as they are. Each tap takes the cells at which it reads
  // something.
  void sum_tile_in_place(const Tile& tile, const ChannelBlock& channels, const T* input, const T* grad, T* block,
                         Memory& memory) const {
    const MathOps<T>& math = math_ops<T>();
    const auto size = math.tile_for_cells(channels.outputs, channels.inputs);
    const std::int64_t panel = size.vectors * math.lanes;
    std::int64_t* const rows = memory.offsets.get(channels.outputs);
    std::iota(rows, rows + channels.outputs, std::int64_t{0});
    const auto& source = tiling_.sources()[0];
    std::vector<std::int64_t> grad_places;
    std::vector<std::int64_t> input_places;
    for (std::size_t p = 0; p < tiling_.phases().size(); ++p) {
      const PhaseTile& phase = tiling_.phases()[p];
      const Triple count = tiling_.cells_of(tile, phase);
      const auto taps = static_cast<std::int64_t>(phase.taps.size());
      for (std::int64_t t = 0; t < taps; ++t) {
        Triple target_base{};
        Triple source_base{};
        Triple extent{};
        for (int a = 0; a < kSpatialAxes; ++a) {
          const std::int64_t shift = tile.begin[a] + phase.taps[t].shift[a];
          const std::int64_t low = std::clamp<std::int64_t>(-shift, 0, count[a]);
          extent[a] = std::clamp<std::int64_t>(source[a].count - shift, low, count[a]) - low;
          target_base[a] = tile.begin[a] + low;
          source_base[a] = shift + low;
        }
        const Runs from(tiling_, tile, phase.lattice, target_base, extent, problem_.output_strides);
        const Runs with(tiling_, tile, source, source_base, extent, problem_.input_strides);
        if (from.count() == 0 || from.all().empty()) continue;
        grad_places.clear();
        input_places.clear();
        for (const Runs::Run& run : from.all()) grad_places.push_back(run.tensor);
        for (const Runs::Run& run : with.all()) input_places.push_back(run.tensor);
        MultiplyTaps<T> job;
        job.a = grad;
        job.a_places = grad_places.data();
        job.a_step = from.tensor_step();
        job.b_places = input_places.data();
        job.b_step = with.tensor_step();
        job.parts = std::ssize(grad_places);
        job.depth = from.count();
        job.c_step = taps * blocking_.inputs;
        T* const sums = block + blocks_.phase_begin(p) + t * blocking_.inputs;
        for (std::int64_t n = 0; n < channels.inputs; n += panel) {
          job.b = input + n;
          const std::int64_t vectors = panel_width(math, panel, channels.inputs, n) / math.lanes;
          for (std::int64_t m = 0; m < channels.outputs; m += size.rows) {
            job.a_rows = rows + m;
            job.c = sums + m * job.c_step + n;
            math.multiply_taps[std::min(size.rows, channels.outputs - m) - 1][vectors - 1](job);
          }
        }
      }
    }
  }

  // One tile, where the taps are the rows: the tile is a tile of input cells, and each row reads the window of
  // grad_output from another place.
  void sum_tile_by_taps(const Tile& tile, const View<const E>& input, const E* grad, T* sums, Memory& memory) const {
    const MathOps<T>& math = math_ops<T>();
    const PhaseTile& phase = tiling_.phases()[0];
    const auto taps = static_cast<std::int64_t>(phase.taps.size());
    const std::int64_t row_count = blocking_.group_outputs * taps;
    std::vector<std::int64_t> row_places(row_count);
    for (std::int64_t m = 0; m < row_count; ++m) {
      row_places[m] = window_.place_of_tap(m / taps, phase.taps[m % taps].tap);
    }
    const std::int64_t* const rows = row_places.data();

    const Runs runs = target_runs(tiling_, tile, phase, input.strides);
    if (runs.count() == 0) return;
    const bool known = !whole_.empty() && tile.images == tiling_.tile(0).images;
    const std::vector<TapRows> own = known ? std::vector<TapRows>() : tap_rows_of(tile, runs);
    const std::vector<TapRows>& by_runs = known ? whole_ : own;
    if constexpr (std::is_same_v<E, BFloat16>) {
      if (has_bf16_products() && runs.count() > 1) {
        return sum_tap_pairs({window_, tile, runs, by_runs, row_places, input, grad, sums, blocking_.inputs});
      }
    }
    T* const window = memory.grad.get(window_.size());
    window_.load(tile, grad, window);
    MultiplyTaps<T> job;
    job.a_step = window_.place_on_line(runs.line_step());
    job.c_step = blocking_.inputs;
    // Pieces of runs, several of them between two visits to the results where they are short.
    const std::int64_t depth = even_parts(runs.count(), kDepth);
    const std::int64_t together = std::max<std::int64_t>(kDepth / depth, 1);
    std::vector<std::int64_t> positions;
    const Runs closed = runs.closed_up(positions);
    const auto size = math.tile_for(by_runs.front().rows, input.channels, kMostCells);
    const std::int64_t panel = size.vectors * math.lanes;
    const bool in_place = std::is_same_v<E, T> && input.strides[1] == 1 && input.channels % math.lanes == 0;
    const auto cells = static_cast<std::int64_t>(positions.size());
    T* const packed_input = in_place ? nullptr : memory.input.get(round_up(input.channels, kMostLanes) * cells);
    for (std::int64_t n = 0; n < input.channels && !in_place; n += panel) {
      const std::int64_t width = panel_width(math, panel, input.channels, n);
      for (std::int64_t i = 0; i < cells && width > input.channels - n; ++i) {
        T* const cell = packed_input + n * cells + i * width;
        std::fill(cell + input.channels - n, cell + width, T{0});
      }
      load_runs(View<const E>{input.data + n * input.strides[1], input.strides, std::min(panel, input.channels - n)},
                closed, PackedSteps{1, width}, packed_input + n * cells);
    }

    std::vector<std::int64_t> b_places;
    b_places.reserve(runs.all().size());
    for (std::int64_t n = 0; n < input.channels; n += panel) {
      const std::int64_t width = panel_width(math, panel, input.channels, n);
      job.b_step = in_place ? runs.tensor_step() : width;
      const T* columns = in_place ? nullptr : packed_input + n * cells;
      if constexpr (std::is_same_v<E, T>) {
        if (in_place) columns = input.data + n;
      }
      for (std::int64_t first = 0; first < runs.count(); first += depth) {
        job.depth = std::min(depth, runs.count() - first);
        job.a = window + first * job.a_step;
        job.b = columns + first * job.b_step;
        for (const TapRows& group : by_runs) {
          b_places.clear();
          for (const std::size_t r : group.runs) {
            b_places.push_back(in_place ? runs.all()[r].tensor : closed.all()[r].line * width);
          }
          const std::int64_t count = std::ssize(group.runs);
          for (std::int64_t r = 0; r < count; r += together) {
            job.a_places = group.places.data() + r;
            job.b_places = b_places.data() + r;
            job.parts = std::min(together, count - r);
            for (std::int64_t m = group.first; m < row_count; m += group.step) {
              for (std::int64_t i = m; i < m + group.rows; i += size.rows) {
                job.a_rows = rows + i;
                job.c = sums + i * blocking_.inputs + n;
                math.multiply_taps[std::min(size.rows, m + group.rows - i) - 1][width / math.lanes - 1](job);
              }
            }
          }
        }
      }
    }
  }

  // All of them together or, where much of what they read lies outside, the taps of a row by themselves.
  std::vector<TapRows> tap_rows_of(const Tile& tile, const Runs& runs) const {
    const std::int64_t taps = tiling_.all_taps();
    const std::int64_t width = problem_.axes[2].kernel;
    const std::size_t count = runs.all().size();
    std::vector<TapRows> all;
    const auto add = [&](TapRows& rows, std::size_t r) {
      rows.runs.push_back(r);
      rows.places.push_back(window_.place_on_line(runs.all()[r].line));
    };
    if (runs.along_row() && width >= kLongTapRow) {
      std::vector<std::array<Window::TapRange, 2>> reached;
      for (const Runs::Run& run : runs.all()) {
        const Triple cell = window_.cell_on_line(run.line);
        reached.push_back(
            {window_.taps_of_cell(0, tile.begin[0] + cell[0]), window_.taps_of_cell(1, tile.begin[1] + cell[1])});
      }
      std::size_t reading = 0;
      for (std::int64_t t = 0; t < taps; t += width) {
        const Triple& tap = tiling_.phases()[0].taps[t].tap;
        TapRows& group = all.emplace_back(TapRows{t, width, taps, {}, {}});
        for (std::size_t r = 0; r < count; ++r) {
          if (reached[r][0].has(tap[0]) && reached[r][1].has(tap[1])) add(group, r);
        }
        reading += group.runs.size();
      }
      if (kMostFilled * static_cast<double>(reading) < static_cast<double>(all.size() * count)) return all;
      all.clear();
    }
    const std::int64_t row_count = blocking_.group_outputs * taps;
    TapRows& together = all.emplace_back(TapRows{0, row_count, row_count, {}, {}});
    for (std::size_t r = 0; r < count; ++r) add(together, r);
    return all;
  }

  // The input of a tile as [panel of channels][position][channel], zero wherever there is none.
  void pack_panels(const MathOps<T>& math, const Tile& tile, const View<const E>& view, std::int64_t panel,
                   T* packed) const {
    const Runs runs = source_runs(tiling_, tile, tiling_.sources()[0], view.strides);
    const std::int64_t groups = blocking_.interleaved;
    const std::int64_t columns = view.channels * groups;
    const bool around = tiling_.reads_around() || !runs.is_one_run(tile.length);  // or nothing but the cells is read
    for (std::int64_t n = 0; n < columns; n += panel) {
      const std::int64_t width = panel_width(math, panel, columns, n);
      const std::int64_t channels = std::min(panel, columns - n) / groups;
      T* const to = packed + n * tiling_.plane_size();
      if (around || width > columns - n) std::fill_n(to, width * tiling_.plane_size(), T{0});
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
  bool in_place_ = false;  // both tensors can be
  // Where taps are rows: what they read, and which of them read what in a tile of whole images.
  Window window_;
  std::vector<TapRows> whole_;
  WeightBlocks<E, T> blocks_;
};

Proposal propose_as_it_is(const Problem& problem, std::int64_t threads) {
  SumBlocking blocking = choose_sum_blocking(problem);
  AxisMaps maps;
  for (int a = 0; a < kSpatialAxes; ++a) maps[a] = map_from_output(problem.axes[a]);
  if (blocking.taps_are_rows) maps = maps_of_cells(problem);
  Tiling tiling(std::move(maps), problem.batch, blocking.cells);
  if (tiling.plane_size() > kLongestLine) {
    return Proposal::decline("a packed line must not exceed " + std::to_string(kLongestLine) + " elements, got " +
                             std::to_string(tiling.plane_size()));
  }
  blocking.splits = choose_splits(problem, blocking, tiling.tiles());
  if (blocking.along_inputs && blocking.interleaved == 1 && !blocking.taps_are_rows) {
    cut_for_threads(blocking, tiling.all_taps(), threads, kFewestOutputs, kPacking);
  }
  if (sums_pairs(problem, blocking)) return propose_pair_weight(problem, blocking, std::move(tiling));
  return with_types(problem.dtype, [&]<typename E, typename T> {
    Proposal proposal;
    const auto kernel = std::make_shared<GradWeight<E, T>>(problem, blocking, tiling);
    proposal.workspace_bytes = kernel->workspace_bytes();
    proposal.kernel = kernel;
    return proposal;
  });
}

}  // namespace

Proposal propose_grad_weight(const Problem& problem, const DeviceProperties& device) {
  const std::int64_t threads = std::max(device.threads, 1);
  const std::optional<Problem> other = mirrored(problem);
  if (!other) return propose_as_it_is(problem, threads);
  Proposal proposal = propose_as_it_is(*other, threads);
  if (proposal.kernel != nullptr) proposal.kernel = run_mirrored(problem, proposal.kernel);
  return proposal;
}

}  // namespace tconv::cpu
