// The "depthwise" family where rows lie side by side (contiguous tensors), forward, of images: vectors run along the
// row, and several rows of the output are computed at a time, so that each vector of the source is loaded once for all
// of them. The rows that a band of output rows reads are copied with zeros around them; rows of a phase along the
// height are computed together, and the phases along the row are interleaved in registers.
#include "cpu/depthwise_blocks.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <type_traits>
#include <vector>

#include "cpu/axis_map.h"
#include "cpu/depthwise_blocks_simd.h"
#include "cpu/depthwise_rows_simd.h"
#include "cpu/panels.h"
#include "cpu/past_caches.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"
#include "cpu/tile.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kMostSource = std::int64_t{1} << 13;    // elements of the rows that a band reads, about
constexpr std::int64_t kMostTogether = std::int64_t{1} << 12;  // elements of rows that are stored at a time
constexpr std::int64_t kTaskElements = std::int64_t{1} << 17;
constexpr std::int64_t kFewestTasks = 64;

std::atomic<std::int64_t> next_id{0};  // of kernels: their addresses come back

template <typename E, typename T>
class DepthwiseBlocks final : public Kernel {
 public:
  DepthwiseBlocks(const Problem& problem, const AxisMaps& maps) : problem_(problem) {
    const auto& [depth, height, width] = problem.axes;
    phases_ = std::ssize(maps[2].targets);
    cells_ = ceil_div(width.output(), phases_);
    lead_ = round_up(std::max<std::int64_t>(-maps[2].lowest, 0), kMostLanes);
    const std::int64_t reach = round_up(cells_, kMostLanes) + std::max<std::int64_t>(maps[2].highest, 0);
    line_ = round_up(lead_ + std::max(width.input, reach), kMostLanes);
    constexpr std::int64_t kPage = 4096 / sizeof(T);
    if (line_ % (kPage / 4) == 0) line_ += kMostLanes;  // lines of few sets of the cache
    find_steps(maps[2]);
    for (const AxisTarget& target : maps[1].targets) {
      RowPhase phase{target.lattice, 0, -1, 0, {}};
      if (!target.taps.empty()) {
        const auto [low, high] = std::ranges::minmax(target.taps, {}, &AxisTap::offset);
        phase.lowest = low.offset;
        phase.highest = high.offset;
        phase.tap_rows.assign(high.offset - low.offset + 1, -1);
        for (const AxisTap& tap : target.taps) phase.tap_rows[tap.offset - low.offset] = tap.tap * row_weights();
        phase.tap_rows_apart = distance_of(phase.tap_rows);
      }
      row_phases_.push_back(std::move(phase));
    }
    slices_.resize(depth.output());
    for (const AxisTarget& target : maps[0].targets) {
      for (std::int64_t j = 0; j < target.lattice.count; ++j) {
        for (const AxisTap& tap : target.taps) {
          const std::int64_t z = j + tap.offset;
          if (z < 0 || z >= depth.input) continue;
          slices_[target.lattice.first + j * target.lattice.step].push_back(
              {z, tap.tap * height.kernel * row_weights()});
        }
      }
    }
    cut_bands();
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const auto* const bias = problem_.bias ? static_cast<const E*>(buffers.bias) : nullptr;
    const std::int64_t bands = std::ssize(bands_);
    const bool past_caches = exceeds_caches(problem_.output_sizes(), problem_.input_sizes(), sizeof(E));
    const std::int64_t tasks = problem_.batch * problem_.in_channels * bands;
    // A few bands at a time: one may take less than a microsecond.
    const std::int64_t work = std::max<std::int64_t>(output_elements() / bands, 1);
    const std::int64_t together =
        std::max({2 * kMostSource / work, std::min(kTaskElements / work, tasks / kFewestTasks), std::int64_t{1}});
    for_each_task(execution, ceil_div(tasks, together), [&](std::int64_t group) {
      thread_local Memory memory;
      if (memory.cleared_by != id_) memory.cleared_by = -1;  // should there be no memory
      T* const source = memory.source.get(held_ * most_lines_ * line_);
      clear_around(source, memory);
      std::int64_t loaded = -1;  // channel whose weights are there
      WeighBlock<T> job = common_job();
      const std::int64_t end = std::min((group + 1) * together, tasks);
      for (std::int64_t first = group * together; first < end; first += held_) {
        const std::int64_t held = std::min(held_, end - first);
        Piece piece = piece_at(first);
        for (std::int64_t i = 0; i < held; ++i, go_on(piece)) {
          load_source(static_cast<const E*>(buffers.input) + place_of(piece, problem_.input_strides),
                      bands_[piece.band], source + i * most_lines_ * line_);
        }
        piece = piece_at(first);
        for (std::int64_t i = 0; i < held; ++i, go_on(piece)) {
          if (piece.channel != loaded) {
            const E* const weight = static_cast<const E*>(buffers.weight);
            job.weights = load_weights(weight + piece.channel * problem_.weight_strides[0], memory);
            if (bias != nullptr) element_ops<E, T>().load(bias + piece.channel, 1, &job.bias, 1, 1);
            loaded = piece.channel;
          }
          run_band(job, source + i * most_lines_ * line_, bands_[piece.band],
                   static_cast<E*>(buffers.output) + place_of(piece, problem_.output_strides), past_caches, memory);
        }
      }
      if (past_caches) hwy::FlushStream();  // before another thread reads the results
    });
  }

  // Whether several phases along the row have steps that are known when the code is built; otherwise what rows share is
  // less than what it takes to find it out.
  bool pays() const {
    const auto is_known = [this](const RowPhase& phase) {
      const auto& taps = phase.tap_rows;
      return !taps.empty() && takes_tap_rows(kBlockPatterns[pattern_], std::ssize(taps)) &&
             std::ranges::all_of(taps, [](std::int64_t place) { return place >= 0; });
    };
    const auto shares = [](const RowPhase& phase) { return phase.tap_rows.size() > 1; };
    return phases_ == 1 || (pattern_ >= 0 && std::ranges::all_of(row_phases_, is_known) &&
                            (phases_ == 2 || std::ranges::any_of(row_phases_, shares)));
  }

  std::string describe() const override {
    return std::to_string(row_phases_.size()) + " x " + std::to_string(phases_) + " phases, " +
           std::to_string(bands_.size()) + " bands, vectors along rows, several at a time, " + target_name();
  }

 private:
  // Rows of the output: the positions of a lattice, and the weights of the rows of the source at a distance.
  struct RowPhase {
    Lattice lattice;
    std::int64_t lowest = 0;
    std::int64_t highest = -1;
    std::int64_t tap_rows_apart = 0;  // as in WeighBlock
    std::vector<std::int64_t> tap_rows;
  };
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t size() const { return end - begin; }
  };
  // Slices and rows of the output, and those of the input that they read.
  struct Band {
    Range depth;
    Range height;
    Range slices;
    Range sources;
    std::vector<Range> cells;                     // of the phases along the height
    std::vector<std::vector<BlockSlice>> placed;  // of each slice of the output: where they have been copied
    std::int64_t lines() const { return slices.size() * sources.size(); }
  };
  // A band of a channel of an image.
  struct Piece {
    std::int64_t band;
    std::int64_t channel;
    std::int64_t image;
  };
  struct Memory {
    Scratch<T> source;
    Scratch<T> results;
    Scratch<T> weights;
    std::vector<Range> cells;
    std::int64_t cleared_by = -1;  // the kernel whose rows `source` holds
  };

  Piece piece_at(std::int64_t task) const {
    const std::int64_t bands = std::ssize(bands_);
    return {task % bands, task / bands % problem_.in_channels, task / bands / problem_.in_channels};
  }
  void go_on(Piece& piece) const {
    if (++piece.band < std::ssize(bands_)) return;
    piece.band = 0;
    if (++piece.channel < problem_.in_channels) return;
    piece.channel = 0;
    ++piece.image;
  }
  static std::int64_t place_of(const Piece& piece, const Strides& strides) {
    return piece.image * strides[0] + piece.channel * strides[1];
  }

  std::int64_t output_elements() const {
    return problem_.axes[0].output() * problem_.axes[1].output() * problem_.axes[2].output();
  }
  std::int64_t row_weights() const { return std::ssize(kernel_taps_); }

  // From one place to the next, where all of them are evenly apart; otherwise 0.
  static std::int64_t distance_of(const std::vector<std::int64_t>& places) {
    if (places.size() < 2 || std::ranges::find(places, -1) != places.end()) return 0;
    for (std::size_t i = 1; i < places.size(); ++i) {
      if (places[i] - places[i - 1] != places[1] - places[0]) return 0;
    }
    return places[1] - places[0];
  }

  // What the phases of a row read of one row of the input, from right to left: as the taps of each phase do.
  void find_steps(const AxisMap& map) {
    std::map<std::int64_t, std::vector<std::int64_t>, std::greater<>> by_offset;
    for (const AxisTarget& target : map.targets) {
      for (const AxisTap& tap : target.taps) {
        by_offset.try_emplace(tap.offset, phases_, -1).first->second[target.lattice.first] = tap.tap;
      }
    }
    for (const auto& [offset, taps] : by_offset) {
      step_offsets_.push_back(offset);
      kernel_taps_.insert(kernel_taps_.end(), taps.begin(), taps.end());
    }
    const auto has = [&](std::int64_t step, std::int64_t p) { return kernel_taps_[step * phases_ + p] >= 0; };
    const auto steps = std::ssize(step_offsets_);
    for (int i = 0; i < static_cast<int>(kBlockPatterns.size()); ++i) {
      const BlockPattern& pattern = kBlockPatterns[i];
      bool is_alike = pattern.phases == phases_ && pattern.steps == steps;
      for (int s = 0; is_alike && s < pattern.steps; ++s) {
        for (int p = 0; p < pattern.phases; ++p) is_alike = is_alike && has(s, p) == pattern.has(s, p);
      }
      if (is_alike) pattern_ = i;
    }
  }

  // Whether steps are the taps of the kernel, one by one.
  bool in_order() const {
    for (std::int64_t i = 0; i < row_weights(); ++i) {
      if (kernel_taps_[i] != i) return false;
    }
    return row_weights() == problem_.axes[2].kernel;
  }

  // Rows of the input that some rows of the output read.
  Range sources_of(Range rows) const {
    Range sources{problem_.axes[1].input, 0};
    for (const RowPhase& phase : row_phases_) {
      const Range cells = cells_of(phase.lattice, rows);
      if (cells.size() <= 0 || phase.tap_rows.empty()) continue;
      sources.begin = std::min(sources.begin, cells.begin + phase.lowest);
      sources.end = std::max(sources.end, cells.end + phase.highest);
    }
    sources.begin = std::max<std::int64_t>(sources.begin, 0);
    sources.end = std::max(std::min(sources.end, problem_.axes[1].input), sources.begin);
    return sources;
  }
  Range slices_of(Range depth) const {
    Range slices{problem_.axes[0].input, 0};
    for (std::int64_t d = depth.begin; d < depth.end; ++d) {
      for (const BlockSlice& slice : slices_[d]) {
        slices.begin = std::min(slices.begin, slice.from);
        slices.end = std::max(slices.end, slice.from + 1);
      }
    }
    slices.end = std::max(slices.end, slices.begin);
    return slices;
  }
  // Cells of a lattice whose positions are in a range.
  static Range cells_of(const Lattice& lattice, Range positions) {
    const auto before = [&](std::int64_t position) {
      return std::clamp<std::int64_t>(ceil_div(std::max<std::int64_t>(position - lattice.first, 0), lattice.step), 0,
                                      lattice.count);
    };
    return {before(positions.begin), before(positions.end)};
  }

  // Several slices of the output, or some rows of one, that read about kMostSource elements.
  void cut_bands() {
    const std::int64_t depths = problem_.axes[0].output();
    const std::int64_t heights = problem_.axes[1].output();
    const auto band_of = [&](Range depth, Range height) {
      return Band{depth, height, slices_of(depth), sources_of(height), {}, {}};
    };
    const auto fits = [&](const Band& band) { return band.lines() * line_ <= kMostSource; };
    for (std::int64_t d = 0; d < depths;) {
      Band band = band_of({d, d + 1}, {0, heights});
      if (fits(band)) {
        while (band.depth.end < depths && band.depth.size() < kMostSlices) {
          const Band more = band_of({d, band.depth.end + 1}, {0, heights});
          if (!fits(more)) break;
          band = more;
        }
        bands_.push_back(band);
        d = band.depth.end;
        continue;
      }
      // As even as may be, of at least as many rows as share what they read.
      const std::int64_t parts = std::min(ceil_div(band.lines() * line_, kMostSource), ceil_div(heights, kFewestRows));
      for (std::int64_t part = 0; part < parts; ++part) {
        bands_.push_back(band_of({d, d + 1}, {heights * part / parts, heights * (part + 1) / parts}));
      }
      ++d;
    }
    for (Band& band : bands_) {
      most_lines_ = std::max(most_lines_, band.lines());
      for (const RowPhase& phase : row_phases_) band.cells.push_back(cells_of(phase.lattice, band.height));
      for (std::int64_t d = band.depth.begin; d < band.depth.end; ++d) {
        band.placed.push_back(slices_[d]);
        for (BlockSlice& slice : band.placed.back()) {
          slice.from = (slice.from - band.slices.begin) * band.sources.size() * line_;
        }
      }
    }
    // What has just been copied can't be read across the ends of what was written: a few small images first.
    held_ = std::max<std::int64_t>(kMostSource / 2 / (most_lines_ * line_), 1);
  }

  // The weights of a channel: [depth][height][step][phase].
  const T* load_weights(const E* weight, Memory& memory) const {
    const auto& [depth, height, width] = problem_.axes;
    const Strides& strides = problem_.weight_strides;
    if constexpr (std::is_same_v<E, T>) {
      if (strides[4] == 1 && strides[3] == width.kernel && strides[2] == height.kernel * width.kernel && in_order()) {
        return weight;
      }
    }
    T* const weights = memory.weights.get(depth.kernel * height.kernel * row_weights() + width.kernel);
    T* const row = weights + depth.kernel * height.kernel * row_weights();
    T* to = weights;
    for (std::int64_t d = 0; d < depth.kernel; ++d) {
      for (std::int64_t h = 0; h < height.kernel; ++h) {
        element_ops<E, T>().load(weight + d * strides[2] + h * strides[3], strides[4], row, 1, width.kernel);
        for (const std::int64_t tap : kernel_taps_) *to++ = tap < 0 ? T{0} : row[tap];
      }
    }
    return weights;
  }

  // What surrounds the rows is the same for all of them, and from one call to the next.
  void clear_around(T* source, Memory& memory) const {
    if (memory.cleared_by == id_) return;
    for (T* line = source; line < source + held_ * most_lines_ * line_; line += line_) {
      std::fill(line, line + lead_, T{0});
      std::fill(line + lead_ + problem_.axes[2].input, line + line_, T{0});
    }
    memory.cleared_by = id_;
  }

  void load_source(const E* image, const Band& band, T* source) const {
    const Strides& strides = problem_.input_strides;
    const std::int64_t width = problem_.axes[2].input;
    T* to = source + lead_;
    for (std::int64_t z = band.slices.begin; z < band.slices.end; ++z) {
      const E* const from = image + z * strides[2] + band.sources.begin * strides[3];
      depthwise_row_ops<E, T>().copy_rows(from, strides[3], to, line_, band.sources.size(), width);
      to += band.sources.size() * line_;
    }
  }

  // What is the same for all bands.
  WeighBlock<T> common_job() const {
    WeighBlock<T> job;
    job.from_step = line_;
    job.step_offsets = step_offsets_.data();
    job.steps = std::ssize(step_offsets_);
    job.pattern = pattern_;
    job.phases = phases_;
    job.cells = cells_;
    job.count = problem_.axes[2].output();
    return job;
  }

  void run_band(WeighBlock<T>& job, const T* source, const Band& band, E* output, bool past_caches,
                Memory& memory) const {
    const std::int64_t width = job.count;
    job.first_source = band.sources.begin;
    job.last_source = band.sources.end;
    job.past_caches = false;
    for (std::int64_t d = band.depth.begin; d < band.depth.end; ++d) {
      job.from = source + lead_ - band.sources.begin * line_;
      const std::vector<BlockSlice>& slices = band.placed[d - band.depth.begin];
      job.slices = slices.data();
      job.slice_count = std::ssize(slices);
      E* const slice = output + d * problem_.output_strides[2];
      if constexpr (std::is_same_v<E, T>) {
        if (!past_caches || has_whole_lines(slice)) {
          job.past_caches = past_caches;
          run_rows(job, band.cells, slice, problem_.output_strides[3]);
          continue;
        }
      }
      const std::int64_t most = std::max<std::int64_t>(kMostTogether / width, 1);
      T* const results = memory.results.get(most * width + kLine);
      for (std::int64_t row = band.height.begin; row < band.height.end; row += most) {
        const Range rows{row, std::min(row + most, band.height.end)};
        E* const to = slice + row * problem_.output_strides[3];
        // As far from a cache line as they will be in the tensor.
        T* const from = results + from_line(to);
        std::vector<Range>& cells = memory.cells;
        cells.clear();
        for (const RowPhase& phase : row_phases_) cells.push_back(cells_of(phase.lattice, rows));
        run_rows(job, cells, from - row * width, width);
        const DepthwiseRowOps<E, T>& ops = depthwise_row_ops<E, T>();
        if (problem_.output_strides[3] == width) {
          ops.put_row(from, to, rows.size() * width, past_caches);
          continue;
        }
        for (std::int64_t r = 0; r < rows.size(); ++r) {
          ops.put_row(from + r * width, to + r * problem_.output_strides[3], width, false);
        }
      }
    }
  }

  // Some cells of each phase; row r of the slice is at slice + r row_step.
  void run_rows(WeighBlock<T>& job, const std::vector<Range>& cells, T* slice, std::int64_t row_step) const {
    for (std::size_t p = 0; p < row_phases_.size(); ++p) {
      const RowPhase& phase = row_phases_[p];
      if (cells[p].size() <= 0) continue;
      job.first_row = cells[p].begin;
      job.last_row = cells[p].end;
      job.lowest = phase.lowest;
      job.highest = phase.highest;
      job.tap_rows = phase.tap_rows.data();
      job.tap_rows_apart = phase.tap_rows_apart;
      job.to = slice + phase.lattice.first * row_step;
      job.to_step = phase.lattice.step * row_step;
      depthwise_block_ops<T>().weigh_block(job);
    }
  }

  static constexpr std::int64_t kFewestRows = 8;
  static constexpr std::int64_t kMostSlices = 64;  // of a band, each of which is listed anew for the next
  static constexpr std::int64_t kLine = 64 / sizeof(T);
  static std::int64_t from_line(const E* place) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(place) / sizeof(E)) % kLine;
  }
  bool has_whole_lines(const E* slice) const {
    return from_line(slice) == 0 && problem_.output_strides[3] % kLine == 0 &&
           problem_.axes[2].output() % (phases_ * kLine) == 0;
  }

  Problem problem_;
  std::int64_t id_ = next_id++;
  std::int64_t phases_ = 1;  // along the row
  std::int64_t cells_ = 0;
  std::int64_t lead_ = 0;  // zeros before a copied row
  std::int64_t line_ = 0;  // from one to the next
  std::int64_t most_lines_ = 1;
  std::int64_t held_ = 1;                   // bands that are copied before the first of them is computed
  std::vector<std::int64_t> step_offsets_;  // what phases read along a row, from right to left
  std::vector<std::int64_t> kernel_taps_;   // [step][phase]: tap of the kernel; -1: none
  int pattern_ = -1;
  std::vector<RowPhase> row_phases_;
  std::vector<std::vector<BlockSlice>> slices_;  // of a depth of the output: `from` is that of the input
  std::vector<Band> bands_;
};

}  // namespace

std::shared_ptr<const Kernel> make_depthwise_blocks(const Problem& problem, const AxisMaps& maps) {
  constexpr std::int64_t kMostCells = 2048;  // of a row
  if (problem.axes[1].output() < 2 || ceil_div(problem.axes[2].output(), std::ssize(maps[2].targets)) > kMostCells ||
      problem.axes[2].input > 2 * kMostCells) {
    return nullptr;
  }
  for (const int a : {1, 2}) {  // far taps: rows of zeros, and lists of rows that have none
    if (maps[a].highest - maps[a].lowest > 2 * kMostCells) return nullptr;
  }
  return with_types(problem.dtype,
                    [&]<typename E, typename T> {
                      const auto kernel = std::make_shared<DepthwiseBlocks<E, T>>(problem, maps);
                      Proposal proposal;
                      if (kernel->pays()) proposal.kernel = kernel;
                      return proposal;
                    })
      .kernel;
}

}  // namespace tconv::cpu
