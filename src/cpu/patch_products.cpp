// forward and grad_input of layers with kernel == stride whose rows lie side by side. What a cell of the input gives to
// the output, or gets from its gradient, is its patch, which belongs to no other:
//   output[cell's patch][k] = bias + sum over ci of  weight[ci][k] input[ci][cell],    k: output channel and tap
//   grad_input[ci][cell]    = sum over k of          weight[ci][k] grad_output[cell's patch][k]
// Cells of all images are the columns of the product. Both operands are packed; patches are taken apart while they are
// packed, and put together in registers, so that results leave as pieces of lines, and are written once. Each element
// is one chain of multiply-adds in an order that depends on the layer alone.
#include <hwy/cache_control.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "cpu/blocking.h"
#include "cpu/past_caches.h"
#include "cpu/patch_sides.h"
#include "cpu/patches_simd.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kPanelRows = 48;  // of weights that are packed side by side: whole register tiles and vectors
constexpr std::int64_t kUnit = kMostPatchVectors * kMostLanes;  // cells are cut at multiples of this
constexpr std::int64_t kMostColumns = 512;                      // packed at a time
constexpr std::int64_t kFewestColumns = 256;                    // of an image, where it is packed by itself
constexpr std::int64_t kMostVisits = 8;                         // as often, by a task
constexpr double kCellsShare = 0.25;                            // of the L2 cache, that packed cells fill
constexpr double kPanelShare = 0.5;                             // that a panel of them may fill
constexpr std::int64_t kOwnWeights = std::int64_t{1} << 18;     // elements that a task packs for itself
constexpr std::int64_t kFewestRows = 96;                        // of a task, where there are not enough of them
constexpr std::int64_t kTasksOfThread = 4;                      // no more are needed to keep it busy
constexpr std::int64_t kMostAhead = 64;                         // lines that are asked for by a register tile
constexpr std::int64_t kDepthTogether = 768;                    // multiply-adds between two visits to sums of one tap
constexpr std::int64_t kMostDepth = 4096;                       // multiply-adds of a sum

template <typename T>
class PatchProducts final : public Kernel {
 public:
  PatchProducts(const Problem& problem, std::int64_t threads)
      : problem_(problem), forward_(problem.direction == Direction::forward) {
    source_ = forward_ ? side_of_input(problem) : side_of_output(problem);
    target_ = forward_ ? side_of_output(problem) : side_of_input(problem);
    depth_ = source_.lines() * source_.taps;
    const auto taps = static_cast<std::uint64_t>(target_.taps);
    in_registers_ = std::has_single_bit(taps) && std::countr_zero(taps) <= kMostTapShift;
    shift_ = in_registers_ ? std::countr_zero(taps) : 0;
    tile_taps_ = in_registers_ ? target_.taps : 1;
    const std::int64_t alternating = forward_ ? problem.axes[1].kernel : 1;
    group_lines_ = alternating * target_.taps <= kPanelRows ? alternating : 1;
    panel_lines_ = std::max<std::int64_t>(kPanelRows / target_.taps / group_lines_, 1) * group_lines_;
    if (!forward_) panel_lines_ = kFewestRows;
    panel_step_ = round_up(panel_lines_ * target_.taps, kMostLanes);
    panels_ = ceil_div(target_.lines(), panel_lines_);
    // Forward adds nothing up in memory.
    const bool in_parts = !forward_ && in_registers_ && target_.taps == 1 && depth_ > kDepthTogether;
    part_lines_ = in_parts ? even_parts(source_.lines(), std::max<std::int64_t>(kDepthTogether / source_.taps, 1))
                           : source_.lines();
    for (std::int64_t row = 0; row < panel_lines_ + kMostCells; ++row) {
      weight_places_.push_back(std::min(row, panel_lines_ - 1) * problem.weight_strides[0]);
    }
    target_places_ = target_.line_places;
    target_places_.resize(target_places_.size() + kMostCells, target_places_.empty() ? 0 : target_places_.back());
    aligned_ = target_.begins_at_multiples_of(64 / sizeof(T));
    cut(threads);
  }

  std::size_t workspace_bytes() const {
    return shares_weights_ ? problem_.groups * panels_ * panel_size() * sizeof(T) : 0;
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const Call call(*this, buffers);
    const std::int64_t tasks = problem_.groups * panel_blocks_ * column_blocks_;
    if (!shares_weights_) {
      return for_each_task(execution, tasks, [&](std::int64_t task) { run_task(call, task, nullptr); });
    }
    T* const shared = static_cast<T*>(buffers.workspace);
    for_each_step(execution, {problem_.groups * panels_, tasks}, [&](std::size_t step, std::int64_t task) {
      if (step == 1) return run_task(call, task, shared);
      pack_weights(call, task / panels_, task % panels_, shared + task * panel_size());
    });
  }

  std::string describe() const override {
    return "patches, " + std::to_string(column_blocks_) + " blocks of " +
           std::to_string(ceil_div(columns(), column_blocks_)) + " cells, " + std::to_string(panel_blocks_) + " of " +
           std::to_string(ceil_div(panels_, panel_blocks_) * panel_lines_ * target_.taps) + " rows, " + target_name();
  }

 private:
  // What is known of a call.
  struct Call {
    const PatchOps<T>& ops;
    const MathOps<T>& math;
    const T* source;
    const T* weight;
    T* target;
    std::vector<T> initial;  // [line of register tiles]
    std::int64_t vectors;    // of a panel of cells
    std::int64_t rows = 1;   // of a register tile of grad_input
    bool past_caches;
    bool direct;     // pieces of lines are stored where they belong
    bool one_image;  // columns that are packed together are of one image

    Call(const PatchProducts& kernel, const Buffers& buffers)
        : ops(patch_ops<T>()),
          math(math_ops<T>()),
          source(static_cast<const T*>(kernel.forward_ ? buffers.input : buffers.output)),
          weight(static_cast<const T*>(buffers.weight)),
          target(static_cast<T*>(kernel.forward_ ? buffers.output : buffers.input)),
          vectors(ops.vectors[kernel.shift_]) {
      const Problem& problem = kernel.problem_;
      const std::int64_t channels = kernel.forward_ ? problem.out_channels : problem.in_channels;
      const std::int64_t of_channel = problem.groups * kernel.tile_lines() / channels;
      const T* const bias = kernel.forward_ && problem.bias ? static_cast<const T*>(buffers.bias) : nullptr;
      for (std::int64_t channel = 0; channel < channels; ++channel) {
        initial.insert(initial.end(), of_channel, bias == nullptr ? T{0} : bias[channel]);
      }
      const std::int64_t most = caches().elements(kPanelShare) * static_cast<std::int64_t>(sizeof(float)) /
                                static_cast<std::int64_t>(sizeof(T));
      if (!kernel.forward_) {
        const auto size = math.tile_for_cells(kernel.target_.lines(), kUnit);
        vectors = size.vectors;
        rows = size.rows;
      }
      while (vectors > 1 && vectors * ops.lanes * kernel.part_depth() > most) --vectors;
      past_caches = exceeds_caches(kernel.forward_ ? problem.output_sizes() : problem.input_sizes(), sizeof(T));
      const bool whole_lines = kernel.aligned_ && reinterpret_cast<std::uintptr_t>(target) % 64 == 0;
      direct = kernel.in_registers_ && kernel.target_.row % ops.lanes == 0 && (!past_caches || whole_lines);
      // Rows of the product have all columns of a panel side by side: those of one image.
      one_image = kernel.source_.cells >= (kernel.forward_ ? kMostColumns : kFewestColumns);
      direct = direct && (kernel.forward_ || one_image);
    }
  };

  struct Memory {
    Scratch<T> weights;
    Scratch<T> cells;
    Scratch<T> lines;
  };

  // Some columns, packed as panels, and what they are multiplied by.
  struct Visit {
    const Call& call;
    std::int64_t group;
    std::int64_t first_panel;  // of weights
    std::int64_t last_panel;
    const T* weights;
    T* cells;
    std::int64_t begin = 0;  // columns
    std::int64_t end = 0;
    std::int64_t width = 0;       // of a panel
    std::int64_t first_line = 0;  // of the source: those that are packed
    std::int64_t last_line = 0;
    Ahead<T> ahead{};  // what is packed next
    std::int64_t lines_ahead = 0;
  };

  // Lines of register tiles, of all channels of a group.
  std::int64_t tile_lines() const { return target_.lines() * target_.taps / tile_taps_; }
  std::int64_t lines_of(std::int64_t panel) const {
    return std::min(panel_lines_, target_.lines() - panel * panel_lines_);
  }
  // Register tiles of a panel.
  std::int64_t tiles_of(const Call& call, std::int64_t panel) const {
    return ceil_div(lines_of(panel) * target_.taps / tile_taps_, forward_ ? call.ops.lines[shift_] : call.rows);
  }
  // Of packed weights: those of grad_input are used where they are.
  std::int64_t panel_size() const { return forward_ ? depth_ * panel_step_ : 0; }
  std::int64_t part_depth() const { return part_lines_ * source_.taps; }
  std::int64_t columns() const { return problem_.batch * source_.cells; }

  void cut(std::int64_t threads) {
    shares_weights_ = forward_ && problem_.groups * panels_ * panel_size() <= room_for_weights(problem_);
    const std::int64_t most = caches().elements(kCellsShare) / part_depth() / kUnit * kUnit;
    visit_ = std::clamp(most, kUnit, kMostColumns);
    std::int64_t block_panels = panels_;
    if (forward_ && !shares_weights_) block_panels = std::clamp<std::int64_t>(kOwnWeights / panel_size(), 1, panels_);
    std::int64_t block_columns = columns();
    // Each split of the taps packs the cells again, each of the cells the weights, if they are not shared.
    if (shares_weights_ || !forward_)
      block_columns =
          std::clamp(columns() / (kTasksOfThread * threads) / visit_, std::int64_t{1}, kMostVisits) * visit_;
    const std::int64_t fewest_panels = ceil_div(kFewestRows, panel_lines_ * target_.taps);
    for (;;) {
      panel_blocks_ = ceil_div(panels_, block_panels);
      column_blocks_ = ceil_div(columns(), block_columns);
      const std::int64_t tasks = problem_.groups * panel_blocks_ * column_blocks_;
      if (tasks >= kTasksOfThread * threads) break;
      if (!forward_ && tasks % threads == 0) break;  // packing patches again costs more
      if (block_panels >= 2 * fewest_panels) {
        block_panels = ceil_div(block_panels, 2);
      } else if (block_columns >= 2 * visit_) {
        block_columns = round_up(ceil_div(block_columns, 2), kUnit);
      } else {
        break;
      }
    }
    // So many that none is left over by the threads.
    const auto even = [&](std::int64_t& blocks, std::int64_t others, std::int64_t most_blocks) {
      while (blocks > 1 && blocks < most_blocks && blocks * others % threads != 0) ++blocks;
    };
    even(column_blocks_, problem_.groups * panel_blocks_, columns() / visit_);
    even(panel_blocks_, problem_.groups * column_blocks_, panels_ / fewest_panels);
  }

  void pack_weights(const Call& call, std::int64_t group, std::int64_t panel, T* to) const {
    const std::int64_t step = problem_.weight_strides[0];
    const T* const weight = call.weight + group * problem_.in_channels_per_group() * step;
    const std::int64_t first = panel * panel_lines_ * target_.taps;
    const std::int64_t count = lines_of(panel) * target_.taps;
    call.ops.copy_rows({weight + first, step, to, panel_step_, depth_, count});
  }

  void run_task(const Call& call, std::int64_t task, const T* shared) const {
    thread_local Memory memory;
    const std::int64_t panel_block = task % panel_blocks_;
    const std::int64_t first_panel = panels_ * panel_block / panel_blocks_;
    const std::int64_t last_panel = panels_ * (panel_block + 1) / panel_blocks_;
    const std::int64_t column_block = task / panel_blocks_ % column_blocks_;
    const std::int64_t units = ceil_div(columns(), kUnit);
    const std::int64_t first = units * column_block / column_blocks_ * kUnit;
    const std::int64_t last = std::min(units * (column_block + 1) / column_blocks_ * kUnit, columns());
    const std::int64_t group = task / panel_blocks_ / column_blocks_;
    const T* weights = nullptr;
    if (shared != nullptr) {
      weights = shared + (group * panels_ + first_panel) * panel_size();
    } else if (forward_) {
      T* const own = memory.weights.get((last_panel - first_panel) * panel_size());
      for (std::int64_t p = first_panel; p < last_panel; ++p) {
        pack_weights(call, group, p, own + (p - first_panel) * panel_size());
      }
      weights = own;
    }
    const std::int64_t lanes = call.ops.lanes;
    T* const cells = memory.cells.get(part_depth() * (visit_ + kUnit));
    for (std::int64_t begin = first; begin < last; begin = end_of_visit(call, begin, last)) {
      Visit visit{call, group, first_panel, last_panel, weights, cells};
      visit.begin = begin;
      visit.end = end_of_visit(call, begin, last);
      visit.width = even_parts(ceil_div(visit.end - begin, lanes), call.vectors) * lanes;
      std::int64_t tiles = 0;
      for (std::int64_t p = first_panel; p < last_panel; ++p) tiles += tiles_of(call, p);
      tiles *= ceil_div(visit.end - begin, visit.width);
      for (std::int64_t line = 0; line < source_.lines(); line += part_lines_) {
        visit.first_line = line;
        visit.last_line = std::min(line + part_lines_, source_.lines());
        pack_cells(visit);
        visit.ahead =
            visit.last_line < source_.lines()
                ? Ahead<T>(source_of(visit), source_, visit.last_line, part_lines_, begin, visit.end)
                : Ahead<T>(source_of(visit), source_, 0, part_lines_, visit.end, end_of_visit(call, visit.end, last));
        visit.lines_ahead = std::min(ceil_div(visit.ahead.lines(), tiles), kMostAhead);
        if (call.direct) {
          multiply_direct(visit);
        } else {
          multiply_lines(visit, memory);
        }
      }
    }
    if (call.past_caches) hwy::FlushStream();  // before another thread reads the results
  }

  std::int64_t end_of_visit(const Call& call, std::int64_t begin, std::int64_t last) const {
    const std::int64_t visits = std::max<std::int64_t>(ceil_div(last - begin, visit_), 1);
    const std::int64_t end = std::min(begin + round_up(ceil_div(last - begin, visits), kUnit), last);
    return call.one_image ? std::min(end, round_up(begin + 1, source_.cells)) : end;
  }

  // [panel of `width` columns][line and tap][column]
  void pack_cells(const Visit& visit) const {
    std::vector<LineSegment> segments;
    for (std::int64_t column = visit.begin, count = 0; column < visit.end; column += count) {
      const std::int64_t within = (column - visit.begin) % visit.width;
      count = std::min(source_.run_at(column, visit.end), visit.width - within);
      segments.push_back({0, source_.place_of(column), (column - visit.begin - within) * part_depth() + within, count});
    }
    SplitLine<T> job;
    job.taps = source_.taps;
    job.segments = segments.data();
    job.count = std::ssize(segments);
    job.to_step = visit.width;
    for (std::int64_t line = visit.first_line; line < visit.last_line; ++line) {
      job.from = source_of(visit) + source_.line_places[line];
      job.to = visit.cells + (line - visit.first_line) * source_.taps * visit.width;
      visit.call.ops.split_line(job);
    }
  }

  const T* source_of(const Visit& visit) const { return visit.call.source + visit.group * source_.group_step; }
  T* target_of(const Visit& visit) const { return visit.call.target + visit.group * target_.group_step; }

  // The same for grad_input, whose weights are rows of the product where they lie.
  void multiply_rows(Visit& visit, std::int64_t panel, std::int64_t column, const MultiplyPatches<T>& places) const {
    const std::int64_t rows = lines_of(panel);
    const std::int64_t vectors = ceil_div(std::min(visit.width, visit.end - column), visit.call.ops.lanes);
    const std::int64_t zero = 0;
    MultiplyCells<T> job;
    job.a = visit.call.weight + (visit.group * target_.lines() + panel * panel_lines_) * problem_.weight_strides[0] +
            visit.first_line * source_.taps;
    job.offsets = &zero;
    job.places = &zero;
    job.parts = 1;
    job.depth = (visit.last_line - visit.first_line) * source_.taps;
    job.b = visit.cells + (column - visit.begin) * part_depth();
    job.b_step = visit.width;
    job.c = places.to + places.vector_places[0];
    job.accumulate = visit.first_line > 0;
    job.past_caches = places.past_caches;
    const std::int64_t tiles = tiles_of(visit.call, panel);
    for (std::int64_t i = 0; i < tiles; ++i) {
      const std::int64_t begin = rows * i / tiles;
      job.a_places = weight_places_.data() + begin;
      job.c_places = places.line_places + begin;
      visit.call.math.multiply_cells[0][rows * (i + 1) / tiles - begin - 1][vectors - 1](job);
      visit.ahead.ask(visit.lines_ahead);
    }
  }

  // Register tiles of a panel of weights and one of cells; job.to, its places and past_caches are the caller's.
  void multiply_tiles(Visit& visit, std::int64_t panel, std::int64_t column, MultiplyPatches<T> job) const {
    if (!forward_) return multiply_rows(visit, panel, column, job);
    const std::int64_t of_line = target_.taps / tile_taps_;
    const std::int64_t lines = lines_of(panel) * of_line;
    const std::int64_t vectors = ceil_div(std::min(visit.width, visit.end - column), visit.call.ops.lanes);
    const T* const a =
        visit.weights + (panel - visit.first_panel) * panel_size() + visit.first_line * source_.taps * panel_step_;
    const T* const initial = visit.call.initial.data() + visit.group * tile_lines() + panel * panel_lines_ * of_line;
    const std::int64_t* const line_places = job.line_places;
    job.a_step = panel_step_;
    job.b = visit.cells + (column - visit.begin) * part_depth();
    job.b_step = visit.width;
    job.depth = (visit.last_line - visit.first_line) * source_.taps;
    const std::int64_t tiles = tiles_of(visit.call, panel);
    for (std::int64_t i = 0; i < tiles; ++i) {
      const std::int64_t begin = lines * i / tiles;
      const std::int64_t end = lines * (i + 1) / tiles;
      job.a = a + begin * tile_taps_;
      job.initial = initial + begin;
      job.line_places = line_places + begin;
      visit.call.ops.multiply[shift_][end - begin - 1][vectors - 1](job);
      visit.ahead.ask(visit.lines_ahead);
    }
  }

  // Where a vector of cells never spans two rows, and the output has whole cache lines or stays in the caches.
  void multiply_direct(Visit& visit) const {
    std::array<std::int64_t, kMostPatchVectors> vector_places{};
    MultiplyPatches<T> job;
    job.to = target_of(visit);
    job.vector_places = vector_places.data();
    job.past_caches = visit.call.past_caches && part_lines_ == source_.lines();
    for (std::int64_t column = visit.begin; column < visit.end; column += visit.width) {
      const std::int64_t end = std::min(column + visit.width, visit.end);
      for (std::int64_t at = column, v = 0; at < end; at += visit.call.ops.lanes)
        vector_places[v++] = target_.place_of(at);
      for (std::int64_t panel = visit.first_panel; panel < visit.last_panel; ++panel) {
        job.line_places = target_places_.data() + panel * panel_lines_;
        multiply_tiles(visit, panel, column, job);
      }
    }
  }

  // Lines are put together elsewhere, as many cells as were packed, and then copied.
  void multiply_lines(Visit& visit, Memory& memory) const {
    const std::int64_t width = round_up(visit.end - visit.begin, visit.width);
    const std::vector<LineSegment> segments = segments_of(visit);
    std::vector<std::int64_t> places;
    for (std::int64_t line = 0; line < panel_lines_ * target_.taps / tile_taps_; ++line) {
      places.push_back(line * width * tile_taps_);
    }
    places.resize(places.size() + kMostCells, places.back());
    std::array<std::int64_t, kMostPatchVectors> vector_places{};
    for (std::int64_t v = 0; v < kMostPatchVectors; ++v) vector_places[v] = v * visit.call.ops.lanes * tile_taps_;
    const std::int64_t size = panel_lines_ * target_.taps * width + kMostLanes;
    // Sums of parts stay until the last one: those of all panels.
    const bool in_parts = part_lines_ < source_.lines();
    const std::int64_t kept = in_parts ? visit.last_panel - visit.first_panel : 1;
    T* const memory_of_lines = memory.lines.get(in_registers_ ? kept * size : 2 * size);
    MultiplyPatches<T> job;
    job.line_places = places.data();
    job.vector_places = vector_places.data();
    PutLines<T> put;
    put.line_step = width * target_.taps;
    put.segments = segments.data();
    put.count = std::ssize(segments);
    put.past_caches = visit.call.past_caches;
    for (std::int64_t panel = visit.first_panel; panel < visit.last_panel; ++panel) {
      T* const tiles = memory_of_lines + (in_parts ? panel - visit.first_panel : 0) * size;
      T* const lines = in_registers_ ? tiles : tiles + size;
      for (std::int64_t column = visit.begin; column < visit.end; column += visit.width) {
        job.to = tiles + (column - visit.begin) * tile_taps_;
        multiply_tiles(visit, panel, column, job);
      }
      if (visit.last_line < source_.lines()) continue;
      if (!in_registers_) interleave(tiles, places, width, lines_of(panel), lines);
      for (std::int64_t line = 0; line < lines_of(panel); line += group_lines_) {
        put.from = lines + line * put.line_step;
        put.to = target_of(visit) + target_.line_places[panel * panel_lines_ + line];
        visit.call.ops.put_lines(put);
      }
    }
  }

  // The rows of the cells of a visit, as they lie in the output: those of all lines of a group in turn.
  std::vector<LineSegment> segments_of(const Visit& visit) const {
    std::vector<LineSegment> segments;
    for (std::int64_t column = visit.begin, count = 0; column < visit.end; column += count) {
      count = target_.run_at(column, visit.end);
      for (std::int64_t line = 0; line < group_lines_; ++line) {
        segments.push_back({line, (column - visit.begin) * target_.taps,
                            target_.place_of(column) + target_.line_places[line] - target_.line_places[0],
                            count * target_.taps});
      }
    }
    return segments;
  }

  // Taps that are lines by themselves become lines of the output.
  void interleave(const T* from, const std::vector<std::int64_t>& places, std::int64_t width, std::int64_t lines,
                  T* to) const {
    Interleave<T, T> job;
    job.places = places.data();
    job.phases = target_.taps;
    job.cell_step = 1;
    job.to_step = 1;
    job.period = target_.taps;
    job.count = width;
    for (std::int64_t line = 0; line < lines; ++line) {
      job.from = from + line * target_.taps * width;
      job.to = to + line * target_.taps * width;
      element_ops<T, T>().interleave(job);
    }
  }

  Problem problem_;
  bool forward_ = true;
  Side source_;
  Side target_;
  std::int64_t depth_ = 1;       // of the sums
  bool in_registers_ = true;     // the taps of a line are put together
  int shift_ = 0;                // log2 of those that are
  std::int64_t tile_taps_ = 1;   // taps of a line of register tiles
  std::int64_t part_lines_ = 1;  // lines of the source that are added up together
  // Of the rows of a panel of weights, and of lines; as many as a register tile has follow.
  std::vector<std::int64_t> weight_places_;
  std::vector<std::int64_t> target_places_;
  bool aligned_ = false;          // pieces of the target begin with cache lines, if it does
  std::int64_t group_lines_ = 1;  // those of a panel that alternate in the target
  // Panels of weights, of whole groups of lines: [panel][input channel][tap]
  std::int64_t panel_lines_ = 1;
  std::int64_t panel_step_ = 1;
  std::int64_t panels_ = 1;
  bool shares_weights_ = false;  // packed once for all tasks
  std::int64_t visit_ = 1;       // cells that are packed at a time
  // What a task computes.
  std::int64_t panel_blocks_ = 1;
  std::int64_t column_blocks_ = 1;
};

}  // namespace

Proposal propose_patch_products(const Problem& problem, const DeviceProperties& device) {
  const std::int64_t threads = std::max(device.threads, 1);
  if (const char* const reason = why_no_patches(problem)) return Proposal::decline(reason);
  const bool forward = problem.direction == Direction::forward;
  const Side input = side_of_input(problem);
  const Side output = side_of_output(problem);
  const std::int64_t patch = output.lines() * output.taps;
  const std::int64_t rows = forward ? patch : input.lines();
  if (rows < kMostLanes || patch == 0 || input.lines() == 0 || (forward && input.lines() > kMostDepth) ||
      output.taps > kPanelRows) {
    return Proposal::decline("needs more channels and cells");
  }
  const auto propose = [&]<typename T>(std::shared_ptr<PatchProducts<T>> kernel) {
    Proposal proposal;
    proposal.workspace_bytes = kernel->workspace_bytes();
    proposal.kernel = std::move(kernel);
    return proposal;
  };
  if (problem.dtype == DType::f64) return propose(std::make_shared<PatchProducts<double>>(problem, threads));
  return propose(std::make_shared<PatchProducts<float>>(problem, threads));
}

}  // namespace tconv::cpu
