// The "depthwise" family where rows lie side by side (contiguous tensors), forward: vectors run along the row. The rows
// that a band of output rows reads are copied with zeros around them; every cell is a short sum over its taps, and the
// phases of a row are interleaved while they are put together:
//   row[j phases + p] = bias + sum over taps t of phase p of  source[j + offset(t)] weight[t]
#include <hwy/cache_control.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "cpu/axis_map.h"
#include "cpu/depthwise_simd.h"
#include "cpu/panels.h"
#include "cpu/past_caches.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"
#include "cpu/tile.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kMostPhases = 4;                        // that are interleaved in registers
constexpr std::int64_t kMostSource = std::int64_t{1} << 14;    // elements of the rows that a band reads, about
constexpr std::int64_t kLongestRow = std::int64_t{1} << 18;    // cells
constexpr std::int64_t kMostTerms = std::int64_t{1} << 18;     // of the sums of all rows of an image
constexpr std::int64_t kMostTogether = std::int64_t{1} << 12;  // elements of rows that are stored at a time

template <typename E, typename T>
class DepthwiseRows final : public Kernel {
 public:
  DepthwiseRows(const Problem& problem, const AxisMaps& maps) : problem_(problem) {
    const auto& [depth, height, width] = problem.axes;
    phases_ = std::ssize(maps[2].targets);
    cells_ = ceil_div(width.output(), phases_);
    lead_ = round_up(std::max<std::int64_t>(-maps[2].lowest, 0), kMostLanes);
    const std::int64_t past = std::max<std::int64_t>(maps[2].highest, 0) + 2 * kMostLanes;
    line_ = round_up(lead_ + std::max(width.input, cells_ + past), kMostLanes) + kMostLanes;
    std::vector<const AxisTarget*> in_order(phases_);
    for (const AxisTarget& target : maps[2].targets) in_order[target.lattice.first] = &target;
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
        for (const AxisTarget* const phase : in_order) {
          terms_.push_back(std::ssize(offsets_));
          for (const AxisTap& kd : in_depth->taps) {
            for (const AxisTap& kh : in_height->taps) {
              const std::int64_t z = d + kd.offset;
              const std::int64_t y = h + kh.offset;
              if (z < 0 || z >= depth.input || y < 0 || y >= height.input) continue;
              const std::int64_t source = z * height.input + y;
              row.first_source = std::min(row.first_source, source);
              row.last_source = std::max(row.last_source, source);
              for (const AxisTap& kw : phase->taps) {
                offsets_.push_back(source * line_ + lead_ + kw.offset);
                places_.push_back((kd.tap * height.kernel + kh.tap) * width.kernel + kw.tap);
              }
            }
          }
        }
        terms_.push_back(std::ssize(offsets_));
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
    const bool past_caches = exceeds_caches(problem_.output_sizes(), sizeof(E));
    const std::int64_t tasks = problem_.batch * problem_.in_channels * bands;
    // A few bands at a time: one may take less than a microsecond.
    const std::int64_t together = std::max<std::int64_t>(kMostSource / std::max<std::int64_t>(band_work(), 1), 1);
    for_each_task(execution, ceil_div(tasks, together), [&](std::int64_t group) {
      for (std::int64_t task = group * together; task < std::min((group + 1) * together, tasks); ++task) {
        const std::int64_t channel = task / bands % problem_.in_channels;
        const std::int64_t image = task / bands / problem_.in_channels;
        const auto place = [&](const Strides& strides) { return image * strides[0] + channel * strides[1]; };
        T first = 0;
        if (bias != nullptr) element_ops<E, T>().load(bias + channel, 1, &first, 1, 1);
        run_band(static_cast<const E*>(buffers.input) + place(problem_.input_strides),
                 static_cast<const E*>(buffers.weight) + channel * problem_.weight_strides[0], first,
                 static_cast<E*>(buffers.output) + place(problem_.output_strides), bands_[task % bands], past_caches);
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
  };
  struct Band {
    std::int64_t begin = 0;  // rows of the output
    std::int64_t end = 0;
    std::int64_t first_source = std::numeric_limits<std::int64_t>::max();
    std::int64_t last_source = -1;

    std::int64_t sources() const { return last_source < first_source ? 0 : last_source - first_source + 1; }
    void add(const Row& row) {
      ++end;
      first_source = std::min(first_source, row.first_source);
      last_source = std::max(last_source, row.last_source);
    }
  };
  struct Memory {
    Scratch<T> source;
    Scratch<T> results;
    Scratch<T> weights;
  };

  std::int64_t band_work() const { return std::ssize(rows_) * phases_ * cells_ / std::ssize(bands_); }

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
  }

  const T* load_weights(const E* weight, Memory& memory) const {
    const auto& [depth, height, width] = problem_.axes;
    const Strides& strides = problem_.weight_strides;
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

  // source: rows [first, last] of the image, with zeros around them.
  void load_source(const E* image, std::int64_t first, std::int64_t last, T* source) const {
    const Strides& strides = problem_.input_strides;
    const std::int64_t width = problem_.axes[2].input;
    const std::int64_t height = problem_.axes[1].input;
    const ElementOps<E, T>& ops = element_ops<E, T>();
    for (std::int64_t row = first; row <= last; ++row, source += line_) {
      std::fill_n(source, lead_, T{0});
      ops.load(image + row / height * strides[2] + row % height * strides[3], 1, source + lead_, 1, width);
      std::fill(source + lead_ + width, source + line_, T{0});
    }
  }

  void run_band(const E* image, const E* weight, T bias, E* output, const Band& band, bool past_caches) const {
    thread_local Memory memory;
    const DepthwiseOps<E, T>& ops = depthwise_ops<E, T>();
    const std::int64_t first = band.first_source;
    const std::int64_t last = band.last_source;
    T* const source = memory.source.get(std::max<std::int64_t>(band.sources(), 1) * line_);
    if (last >= first) load_source(image, first, last, source);
    WeighRow<T> job;
    job.weights = load_weights(weight, memory);
    job.from = last >= first ? source - first * line_ : source;
    job.phases = phases_;
    job.cells = cells_;
    job.bias = bias;
    job.offsets = offsets_.data();
    job.places = places_.data();
    const std::int64_t width = problem_.axes[2].output();
    // Rows that follow each other in memory are stored together, long ones piece by piece.
    const std::int64_t most = std::max<std::int64_t>(kMostTogether / width, 1);
    const std::int64_t piece = most > 1 ? cells_ : kMostTogether / kMostPhases;
    constexpr std::int64_t kLine = 64 / sizeof(T);
    T* const results = memory.results.get(2 * kMostTogether + 2 * kMostLanes * kMostPhases + kLine);
    for (std::int64_t r = band.begin; r < band.end;) {
      E* const to = output + rows_[r].place;
      // As far from a cache line as it will be in the tensor.
      const auto from_line = [](const E* place) {
        return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(place) / sizeof(E)) % kLine;
      };
      if (most == 1) {
        job.terms = terms_.data() + r * (phases_ + 1);
        for (std::int64_t j = 0; j < cells_; j += piece) {
          WeighRow<T> part = job;
          part.from += j;
          part.cells = std::min(piece, cells_ - j);
          part.to = results + from_line(to + j * phases_);
          ops.weigh_row(part);
          ops.put_row(part.to, to + j * phases_, std::min(piece * phases_, width - j * phases_), past_caches);
        }
        ++r;
        continue;
      }
      T* const from = results + from_line(to);
      std::int64_t count = 0;
      do {
        job.terms = terms_.data() + r * (phases_ + 1);
        job.to = from + count * width;
        ops.weigh_row(job);
        ++count;
        ++r;
      } while (r < band.end && count < most && output + rows_[r].place == to + count * width);
      ops.put_row(from, to, count * width, past_caches);
    }
  }

  Problem problem_;
  std::int64_t phases_ = 1;
  std::int64_t cells_ = 0;  // of a row
  std::int64_t lead_ = 0;   // zeros before a copied row
  std::int64_t line_ = 0;   // from one to the next
  std::vector<Row> rows_;
  std::vector<Band> bands_;
  std::vector<std::int64_t> terms_;  // [row][phase]: where they begin, and the end
  // Terms of the sums: where they are read in the copied image, and the tap.
  std::vector<std::int64_t> offsets_;
  std::vector<std::int64_t> places_;
};

}  // namespace

Proposal propose_depthwise_rows(const Problem& problem) {
  if (problem.direction != Direction::forward || problem.input_strides[4] != 1 || problem.output_strides[4] != 1) {
    return Proposal::decline("needs channels side by side, or rows forward");
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
  const std::int64_t longest = std::max(problem.axes[2].input, problem.axes[2].output());
  if (std::ssize(phases) > kMostPhases || rows * taps > kMostTerms || longest > kLongestRow ||
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
