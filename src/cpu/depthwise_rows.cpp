// The "depthwise" family where rows lie side by side (contiguous tensors), forward: vectors run along the row. The rows
// that a band of output rows reads are copied with zeros around them, long ones piece by piece; every cell is a short
// sum over its taps, and the phases of a row are interleaved while they are put together:
//   row[j phases + p] = bias + sum over taps t of phase p of  source[j + offset(t)] weight[t]
#include <hwy/cache_control.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <type_traits>
#include <vector>

#include "cpu/axis_map.h"
#include "cpu/depthwise_blocks.h"
#include "cpu/depthwise_flat.h"
#include "cpu/depthwise_rows_simd.h"
#include "cpu/panels.h"
#include "cpu/past_caches.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"
#include "cpu/tile.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kMostSource = std::int64_t{1} << 14;    // elements of the rows that a band reads, about
constexpr std::int64_t kLongestRow = std::int64_t{1} << 18;    // cells
constexpr std::int64_t kMostTerms = std::int64_t{1} << 18;     // of the sums of all rows of an image
constexpr std::int64_t kMostTogether = std::int64_t{1} << 12;  // elements of rows that are stored at a time
constexpr std::int64_t kTaskElements = std::int64_t{1} << 17;
constexpr std::int64_t kFewestTasks = 64;
constexpr std::int64_t kPiece = std::int64_t{1} << 10;  // cells of a long row, computed at a time
constexpr std::int64_t kLongRow = 16 * kMostLanes;      // cells that are worth storing from registers

template <typename E, typename T>
class DepthwiseRows final : public Kernel {
 public:
  DepthwiseRows(const Problem& problem, const AxisMaps& maps) : problem_(problem) {
    const auto& [depth, height, width] = problem.axes;
    phases_ = std::ssize(maps[2].targets);
    cells_ = ceil_div(width.output(), phases_);
    lowest_ = std::min<std::int64_t>(maps[2].lowest, 0);
    highest_ = std::max<std::int64_t>(maps[2].highest, 0);
    piece_ = round_up(ceil_div(cells_, std::max<std::int64_t>(cells_ / kPiece, 1)), kMostLanes);
    if (piece_ >= cells_) piece_ = cells_;
    lead_ = round_up(-lowest_, kMostLanes);
    const std::int64_t past = highest_ + 2 * kMostLanes;
    line_ = round_up(lead_ + std::max(one_piece() ? width.input : 0, piece_ + past), kMostLanes) + kMostLanes;
    std::vector<const AxisTarget*> in_order(phases_);
    for (const AxisTarget& target : maps[2].targets) in_order[target.lattice.first] = &target;
    const std::vector<RowStep> of_row = steps_of_row(in_order);
    // Rows of the output, and what they read.
    const auto targets_of = [](const AxisMap& map, std::int64_t size) {
      std::vector<std::pair<const AxisTarget*, std::int64_t>> all(size);
      for (const AxisTarget& target : map.targets) {
        for (std::int64_t j = 0; j < target.lattice.count; ++j) {
          all[target.lattice.first + j * target.lattice.step] = {&target, j};
        }
      }
      return all;
    };
    for (const auto& [in_depth, d] : targets_of(maps[0], depth.output())) {
      for (const auto& [in_height, h] : targets_of(maps[1], height.output())) {
        Row row;
        row.first_step = std::ssize(steps_);
        for (const AxisTap& kd : in_depth->taps) {
          for (const AxisTap& kh : in_height->taps) {
            const std::int64_t z = d + kd.offset;
            const std::int64_t y = h + kh.offset;
            if (z < 0 || z >= depth.input || y < 0 || y >= height.input) continue;
            const std::int64_t source = z * height.input + y;
            row.first_source = std::min(row.first_source, source);
            row.last_source = std::max(row.last_source, source);
            const std::int64_t tap = (kd.tap * height.kernel + kh.tap) * width.kernel;
            for (RowStep step : of_row) {
              step.offset += source * line_ + lead_;
              for (std::int32_t& place : step.places) place += place < 0 ? 0 : static_cast<std::int32_t>(tap);
              steps_.push_back(step);
            }
          }
        }
        row.last_step = std::ssize(steps_);
        row.pattern = row_pattern(steps_.data() + row.first_step, steps_.data() + row.last_step, phases_);
        const auto index = std::ssize(rows_);
        row.place =
            index / height.output() * problem.output_strides[2] + index % height.output() * problem.output_strides[3];
        rows_.push_back(row);
      }
    }
    cut_bands();
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const auto* const bias = problem_.bias ? static_cast<const E*>(buffers.bias) : nullptr;
    const std::int64_t bands = std::ssize(bands_);
    const bool past_caches = exceeds_caches(problem_.output_sizes(), problem_.input_sizes(), sizeof(E));
    const std::int64_t pieces = ceil_div(cells_, piece_);
    const std::int64_t tasks = problem_.batch * problem_.in_channels * bands * pieces;
    // A few bands at a time: one may take less than a microsecond.
    const std::int64_t work = band_work() / pieces;
    const auto pieces_of = [&](std::int64_t elements) { return elements / std::max<std::int64_t>(work, 1); };
    const std::int64_t together =
        std::max({pieces_of(kMostSource), std::min(pieces_of(kTaskElements), tasks / kFewestTasks), std::int64_t{1}});
    for_each_task(execution, ceil_div(tasks, together), [&](std::int64_t group) {
      thread_local Memory memory;
      bool cleared = false;
      for (std::int64_t task = group * together; task < std::min((group + 1) * together, tasks); ++task) {
        const std::int64_t first_cell = task % pieces * piece_;
        const Band& band = bands_[task / pieces % bands];
        const std::int64_t channel = task / pieces / bands % problem_.in_channels;
        const std::int64_t image = task / pieces / bands / problem_.in_channels;
        const auto place = [&](const Strides& strides) { return image * strides[0] + channel * strides[1]; };
        T first = 0;
        if (bias != nullptr) element_ops<E, T>().load(bias + channel, 1, &first, 1, 1);
        // What surrounds whole rows is the same for all of them.
        T* const source = memory.source.get(most_sources_ * line_);
        if (one_piece() && !cleared) std::fill_n(source, most_sources_ * line_, T{0});
        cleared = true;
        const E* const input = static_cast<const E*>(buffers.input) + place(problem_.input_strides);
        WeighLine<T> job;
        job.weights =
            load_weights(static_cast<const E*>(buffers.weight) + channel * problem_.weight_strides[0], memory);
        job.from = in_place(band, first_cell, input);
        if (job.from == nullptr) {
          load_source(input, band, first_cell, source);
          job.from = band.sources() > 0 ? source - band.first_source * line_ : source;
        }
        job.phases = phases_;
        job.bias = first;
        run_band(job, static_cast<E*>(buffers.output) + place(problem_.output_strides), band, first_cell, past_caches,
                 memory);
      }
      if (past_caches) hwy::FlushStream();  // before another thread reads the results
    });
  }

  std::string describe() const override {
    return std::to_string(rows_.size()) + " rows of " + std::to_string(phases_) + " phases, " +
           std::to_string(bands_.size()) + " bands, vectors along rows, " + target_name();
  }

 private:
  struct Row {
    std::int64_t place = 0;  // in the output
    std::int64_t first_source = std::numeric_limits<std::int64_t>::max();
    std::int64_t last_source = -1;
    std::int64_t first_step = 0;
    std::int64_t last_step = 0;
    int pattern = -1;
  };
  struct Band {
    std::int64_t begin = 0;  // rows of the output
    std::int64_t end = 0;
    std::int64_t first_source = std::numeric_limits<std::int64_t>::max();
    std::int64_t last_source = -1;

    std::int64_t first_alike = 0;
    std::int64_t last_alike = 0;

    std::int64_t sources() const { return last_source < first_source ? 0 : last_source - first_source + 1; }
    void add(const Row& row) {
      ++end;
      first_source = std::min(first_source, row.first_source);
      last_source = std::max(last_source, row.last_source);
    }
  };
  struct Alike {
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::int64_t to_step = 0;
  };
  struct Memory {
    Scratch<T> source;
    Scratch<T> results;
    Scratch<T> weights;
  };

  bool one_piece() const { return piece_ == cells_; }
  std::int64_t band_work() const { return std::ssize(rows_) * phases_ * cells_ / std::ssize(bands_); }

  // What the phases of a row read of one row of the input, from right to left: as the taps of each phase do.
  static std::vector<RowStep> steps_of_row(const std::vector<const AxisTarget*>& phases) {
    std::map<std::int64_t, RowStep, std::greater<>> by_offset;
    for (std::size_t p = 0; p < phases.size(); ++p) {
      for (const AxisTap& tap : phases[p]->taps) {
        RowStep none{tap.offset, {-1, -1, -1, -1}};
        by_offset.try_emplace(tap.offset, none).first->second.places[p] = static_cast<std::int32_t>(tap.tap);
      }
    }
    std::vector<RowStep> steps;
    for (const auto& [offset, step] : by_offset) steps.push_back(step);
    return steps;
  }

  // Bands of rows of the output that read about kMostSource elements.
  void cut_bands() {
    bands_.emplace_back();
    for (const Row& row : rows_) {
      Band more = bands_.back();
      more.add(row);
      if (more.end > more.begin + 1 && more.sources() * line_ > kMostSource) {
        more = {bands_.back().end, bands_.back().end};
        more.add(row);
        bands_.push_back(more);
      } else {
        bands_.back() = more;
      }
    }
    for (Band& band : bands_) {
      most_sources_ = std::max(most_sources_, band.sources());
      find_alike(band);
    }
  }

  // Rows of a band of which each is computed from the next row of the input, the one before it being a stride above.
  void find_alike(Band& band) {
    band.first_alike = std::ssize(alike_);
    const std::int64_t stride = problem_.axes[1].stride;
    std::vector<bool> done(band.end - band.begin);
    for (std::int64_t first = band.begin; first < band.end; ++first) {
      if (done[first - band.begin]) continue;
      Alike rows{first, 1, 0};
      for (std::int64_t r = first; stride < band.end - r && follows(rows_[r], rows_[r + stride]);) {
        const std::int64_t step = rows_[r + stride].place - rows_[r].place;
        if (rows.count > 1 && step != rows.to_step) break;
        r += stride;
        rows.to_step = step;
        done[r - band.begin] = true;
        ++rows.count;
      }
      alike_.push_back(rows);
    }
    band.last_alike = std::ssize(alike_);
  }

  bool follows(const Row& a, const Row& b) const {
    return std::equal(steps_.begin() + a.first_step, steps_.begin() + a.last_step, steps_.begin() + b.first_step,
                      steps_.begin() + b.last_step, [this](const RowStep& x, const RowStep& y) {
                        return x.offset + line_ == y.offset && x.places == y.places;
                      });
  }

  // The weights of a channel, side by side.
  const T* load_weights(const E* weight, Memory& memory) const {
    const auto& [depth, height, width] = problem_.axes;
    const Strides& strides = problem_.weight_strides;
    if constexpr (std::is_same_v<E, T>) {
      if (strides[4] == 1 && strides[3] == width.kernel && strides[2] == height.kernel * width.kernel) return weight;
    }
    T* const weights = memory.weights.get(depth.kernel * height.kernel * width.kernel);
    T* to = weights;
    const ElementOps<E, T>& ops = element_ops<E, T>();
    for (std::int64_t d = 0; d < depth.kernel; ++d) {
      for (std::int64_t h = 0; h < height.kernel; ++h, to += width.kernel) {
        ops.load(weight + d * strides[2] + h * strides[3], strides[4], to, 1, width.kernel);
      }
    }
    return weights;
  }

  // What `from` is of a piece that reads one row of the image in the middle of it: the row itself; otherwise nullptr.
  const T* in_place(const Band& band, std::int64_t first_cell, const E* image) const {
    if constexpr (std::is_same_v<E, T>) {
      const std::int64_t last = first_cell + piece_ + highest_ + 2 * kMostLanes;
      if (one_piece() || band.sources() != 1 || first_cell + lowest_ < 0 || last > problem_.axes[2].input)
        return nullptr;
      const std::int64_t height = problem_.axes[1].input;
      const std::int64_t row = band.first_source;
      const Strides& strides = problem_.input_strides;
      return image + row / height * strides[2] + row % height * strides[3] + first_cell - lead_ - row * line_;
    }
    return nullptr;
  }

  // The rows of the image that a band reads or, of long rows, what a piece of their cells reads with zeros around it.
  void load_source(const E* image, const Band& band, std::int64_t first_cell, T* source) const {
    const Strides& strides = problem_.input_strides;
    const std::int64_t width = problem_.axes[2].input;
    const std::int64_t height = problem_.axes[1].input;
    const std::int64_t begin = one_piece() ? 0 : std::min(std::max<std::int64_t>(first_cell + lowest_, 0), width);
    const std::int64_t end = one_piece() ? width : std::clamp(first_cell + piece_ + highest_, begin, width);
    T* const from = source + lead_ - first_cell;  // position 0
    const auto row_at = [&](std::int64_t row) {
      return image + row / height * strides[2] + row % height * strides[3] + begin;
    };
    for (std::int64_t i = 0; i < band.sources();) {
      // Rows of one depth, which are as far apart as those of the image.
      const std::int64_t row = band.first_source + i;
      const std::int64_t rows = std::min(band.sources() - i, height - row % height);
      T* const to = from + i * line_;
      depthwise_row_ops<E, T>().copy_rows(row_at(row), strides[3], to + begin, line_, rows, end - begin);
      i += rows;
    }
    for (std::int64_t i = 0; i < band.sources() && !one_piece(); ++i) {
      T* const to = from + i * line_;
      std::fill(source + i * line_, to + begin, T{0});
      std::fill(to + end, source + (i + 1) * line_, T{0});
    }
  }

  void run_band(WeighLine<T> job, E* output, const Band& band, std::int64_t first_cell, bool past_caches,
                Memory& memory) const {
    const DepthwiseRowOps<E, T>& ops = depthwise_row_ops<E, T>();
    const std::int64_t width = problem_.axes[2].output();
    job.cells = std::min(piece_, cells_ - first_cell);
    const std::int64_t count = std::min(width - first_cell * phases_, job.cells * phases_);  // elements of a row
    // Rows that follow each other in memory are stored together.
    const std::int64_t most = one_piece() ? std::max<std::int64_t>(kMostTogether / width, 1) : 1;
    T* const results =
        memory.results.get(std::max(most * width, job.cells * phases_) + kLine + 2 * kMostLanes * kMostRowPhases);
    if constexpr (std::is_same_v<E, T>) {
      if (one_piece() && has_whole_vectors(output, past_caches, ops.lanes)) {
        job.past_caches = past_caches;
        job.from_step = line_;
        for (std::int64_t i = band.first_alike; i < band.last_alike; ++i) {
          const Row& row = rows_[alike_[i].first];
          set_steps(job, row);
          job.to = output + row.place;
          job.rows = alike_[i].count;
          job.to_step = alike_[i].to_step;
          ops.weigh_line(job);
        }
        return;
      }
    }
    for (std::int64_t r = band.begin; r < band.end;) {
      E* const to = output + rows_[r].place + first_cell * phases_;
      if constexpr (std::is_same_v<E, T>) {
        if (count >= kLongRow * phases_ && (!past_caches || cells_to_line(to, ops.lanes) >= 0)) {
          run_row(ops, job, rows_[r], to, count, past_caches, results);
          ++r;
          continue;
        }
      }
      // As far from a cache line as they will be in the tensor.
      T* const from = results + from_line(to);
      std::int64_t rows = 0;
      do {
        set_steps(job, rows_[r]);
        job.to = from + rows * width;
        ops.weigh_line(job);
        ++rows;
        ++r;
      } while (r < band.end && rows < most && output + rows_[r].place == to + rows * width);
      ops.put_row(from, to, (rows - 1) * width + count, past_caches);
    }
  }

  static constexpr std::int64_t kLine = 64 / sizeof(T);
  static std::int64_t from_line(const E* place) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(place) / sizeof(E)) % kLine;
  }

  void set_steps(WeighLine<T>& job, const Row& row) const {
    job.steps = steps_.data() + row.first_step;
    job.last = steps_.data() + row.last_step;
    job.pattern = row.pattern;
  }

  // Whether rows are whole vectors of cells and, where they go past the caches, whole cache lines.
  bool has_whole_vectors(const E* output, bool past_caches, std::int64_t lanes) const {
    const std::int64_t width = problem_.axes[2].output();
    if (width % (lanes * phases_) != 0) return false;
    const auto whole = [](std::int64_t elements) { return elements % kLine == 0; };
    return !past_caches || (whole(from_line(output)) && whole(lanes * phases_) && whole(problem_.output_strides[2]) &&
                            whole(problem_.output_strides[3]));
  }

  // Cells before the first that begins a cache line; -1: none does, or vectors of cells are no lines.
  std::int64_t cells_to_line(const E* to, std::int64_t lanes) const {
    for (std::int64_t cells = 0; cells < kLine && lanes * phases_ % kLine == 0; ++cells) {
      if (from_line(to + cells * phases_) == 0) return cells;
    }
    return -1;
  }

  // Some cells of a row by way of the cache, up to a line that is stored past it; lines; and the cells behind them.
  void run_row(const DepthwiseRowOps<E, T>& ops, WeighLine<T> job, const Row& row, T* to, std::int64_t count,
               bool past_caches, T* results) const {
    set_steps(job, row);
    const auto through_results = [&](std::int64_t cells, std::int64_t elements) {
      job.cells = cells;
      job.to = results;
      job.past_caches = false;
      ops.weigh_line(job);
      std::copy_n(results, elements, to);
    };
    const auto go_on = [&](std::int64_t cells) {
      job.from += cells;
      to += cells * phases_;
      count -= cells * phases_;
    };
    if (const std::int64_t before = past_caches ? cells_to_line(to, ops.lanes) : 0; before > 0) {
      through_results(before, before * phases_);
      go_on(before);
    }
    const std::int64_t whole = count / phases_ / ops.lanes * ops.lanes;
    job.cells = whole;
    job.to = to;
    job.past_caches = past_caches;
    ops.weigh_line(job);
    go_on(whole);
    if (count > 0) through_results(ceil_div(count, phases_), count);
  }

  Problem problem_;
  std::int64_t phases_ = 1;
  std::int64_t cells_ = 0;   // of a row
  std::int64_t piece_ = 0;   // cells computed at a time
  std::int64_t lowest_ = 0;  // what the first tap and the last one read beside a cell
  std::int64_t highest_ = 0;
  std::int64_t lead_ = 0;  // zeros before a copied row
  std::int64_t line_ = 0;  // from one to the next
  std::int64_t most_sources_ = 1;
  std::vector<Row> rows_;
  std::vector<Band> bands_;
  std::vector<RowStep> steps_;
  std::vector<Alike> alike_;
};

}  // namespace

Proposal propose_depthwise_rows(const Problem& problem) {
  if (problem.input_strides[4] != 1 || problem.output_strides[4] != 1) {
    return Proposal::decline("needs channels or rows side by side");
  }
  AxisMaps maps;
  std::int64_t rows = 1;
  std::int64_t taps = 1;
  for (int a = 0; a < kSpatialAxes; ++a) {
    const Axis& axis = problem.axes[a];
    maps[a] = map_from_whole_output(axis);
    std::int64_t covered = 0;
    for (const AxisTarget& target : maps[a].targets) covered += target.lattice.count;
    const bool plain = maps[a].sources.size() == 1 && maps[a].sources[0].first == 0 && maps[a].sources[0].step == 1;
    if (!plain || covered != axis.output()) return Proposal::decline("needs rows without gaps");
    taps *= axis.kernel;
    if (a < 2) rows *= axis.output();
  }
  const std::vector<AxisTarget>& phases = maps[2].targets;
  for (const AxisTarget& phase : phases) {
    if (phase.lattice.step != std::ssize(phases) || phase.lattice.first >= std::ssize(phases)) {
      return Proposal::decline("needs a phase for every place of a row");
    }
  }
  const bool few_phases = std::ssize(phases) <= kMostRowPhases;
  auto kernel = make_depthwise_flat(problem, maps);
  if (kernel == nullptr && few_phases) kernel = make_depthwise_blocks(problem, maps);
  if (kernel != nullptr) {
    Proposal proposal;
    proposal.kernel = std::move(kernel);
    return proposal;
  }
  const std::int64_t longest = std::max(problem.axes[2].input, problem.axes[2].output());
  if (!few_phases || rows * taps > kMostTerms || longest > kLongestRow ||
      maps[2].highest - maps[2].lowest > kLongestRow) {
    return Proposal::decline("needs few phases and rows that are not too long");
  }
  return with_types(problem.dtype, [&]<typename E, typename T> {
    Proposal proposal;
    proposal.kernel = std::make_shared<DepthwiseRows<E, T>>(problem, maps);
    return proposal;
  });
}

}  // namespace tconv::cpu
