// The "depthwise" family, gradients where rows lie side by side (contiguous tensors): vectors run along the row. Boxes
// of a channel's input are computed one after the other. What a box reads of the gradient of the output is copied,
// phase by phase and with zeros around, so that a tap is a distance, and then used for both gradients; what the next
// box reads is asked for meanwhile.
//   grad_input[j]    = sum over taps of  phase(tap)[j + offset(tap)] weight[tap]
//   grad_weight[tap] = sum over j of     phase(tap)[j + offset(tap)] input[j]
#include <algorithm>
#include <array>
#include <vector>

#include "cpu/axis_map.h"
#include "cpu/depthwise_boxes.h"
#include "cpu/depthwise_gradients_simd.h"
#include "cpu/panels.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"
#include "cpu/tile.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kBoxWanted = std::int64_t{1} << 13;  // elements of the gradient of the output, about
constexpr std::int64_t kMostBox = std::int64_t{1} << 16;    // where a smaller box would read much twice
constexpr std::int64_t kMostCopied = std::int64_t{1} << 18;
constexpr std::int64_t kMostPhases = 1024;
constexpr std::int64_t kMostTaps = std::int64_t{1} << 10;

// Positions along an axis that are computed together.
struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
};

// What taps need of a source lattice beyond the positions of the target.
struct Halo {
  std::int64_t low = 0;
  std::int64_t high = 0;

  std::int64_t size() const { return high - low; }
};

std::vector<Halo> halos_of(const AxisMap& map) {
  std::vector<Halo> halos(map.sources.size());
  std::vector<bool> seen(map.sources.size());
  for (const AxisTap& tap : map.targets[0].taps) {
    Halo& halo = halos[tap.source];
    halo.low = seen[tap.source] ? std::min(halo.low, tap.offset) : tap.offset;
    halo.high = seen[tap.source] ? std::max(halo.high, tap.offset) : tap.offset;
    seen[tap.source] = true;
  }
  return halos;
}

std::vector<Span> cut(std::int64_t size, std::int64_t most) {
  const std::int64_t count = ceil_div(size, std::max<std::int64_t>(most, 1));
  std::vector<Span> spans;
  for (std::int64_t i = 0; i < count; ++i) spans.push_back({size * i / count, size * (i + 1) / count});
  return spans;
}

// How boxes are cut and what is copied for them: a plane for every combination of source lattices.
struct Boxes {
  AxisMaps maps;
  std::array<std::vector<Halo>, kSpatialAxes> halos;
  std::array<std::vector<Span>, kSpatialAxes> spans;
  std::int64_t lead = 0;     // elements before position 0 of a copied row
  std::int64_t line = 0;     // from one copied row to the next, of the planes, the input and the results
  std::int64_t heights = 0;  // rows of a plane, of one depth
  std::int64_t plane = 0;
  std::int64_t copied = 0;  // elements of all planes

  Boxes(const Problem& problem, AxisMaps axis_maps) : maps(std::move(axis_maps)) {
    const auto& [depth, height, width] = problem.axes;
    std::array<std::int64_t, kSpatialAxes> halo{};
    for (int a = 0; a < kSpatialAxes; ++a) {
      halos[a] = halos_of(maps[a]);
      for (const Halo& one : halos[a]) halo[a] = std::max(halo[a], one.size());
    }
    // As many cells along an axis as elements of the gradient allow, and four times what neighbours read twice.
    const auto fit = [&](int a, std::int64_t elements) {
      const std::int64_t cell = std::max<std::int64_t>(elements * std::ssize(maps[a].sources), 1);
      return std::clamp<std::int64_t>(std::max(kBoxWanted / cell, std::min(4 * halo[a], kMostBox / cell)), 1,
                                      problem.axes[a].input);
    };
    spans[2] = cut(width.input, fit(2, 1));
    const std::int64_t row = longest(2) * std::ssize(maps[2].sources);
    spans[1] = cut(height.input, fit(1, row));
    spans[0] = cut(depth.input, fit(0, row * longest(1) * std::ssize(maps[1].sources)));
    lead = round_up(std::max<std::int64_t>(-maps[2].lowest, 0), kMostLanes);
    line = lead + round_up(longest(2) + std::max<std::int64_t>(maps[2].highest, 0), kMostLanes) + kMostLanes;
    // Rows that are a power of two apart compete for few places of the cache.
    if (line % 64 == 0) line += kMostLanes;
    heights = longest(1) + halo[1];
    plane = (longest(0) + halo[0]) * heights * line;
    copied = plane * std::ssize(maps[0].sources) * std::ssize(maps[1].sources) * std::ssize(maps[2].sources);
  }

  std::int64_t longest(int a) const {
    std::int64_t most = 0;
    for (const Span& span : spans[a]) most = std::max(most, span.size());
    return most;
  }
  std::int64_t count() const { return std::ssize(spans[0]) * std::ssize(spans[1]) * std::ssize(spans[2]); }
  std::array<Span, kSpatialAxes> box(std::int64_t index) const {
    const std::int64_t widths = std::ssize(spans[2]);
    const std::int64_t rows = std::ssize(spans[1]);
    return {spans[0][index / (widths * rows)], spans[1][index / widths % rows], spans[2][index % widths]};
  }
  // Where the row of position (d, h) of source lattices begins in the first plane of the row.
  std::int64_t row_place(std::int64_t source_d, std::int64_t d, std::int64_t source_h, std::int64_t h) const {
    const std::int64_t planes = (source_d * std::ssize(maps[1].sources) + source_h) * std::ssize(maps[2].sources);
    return planes * plane + ((d - halos[0][source_d].low) * heights + h - halos[1][source_h].low) * line;
  }
};

template <typename E, typename T>
class DepthwiseRowGradients final : public DepthwiseBoxes<DepthwiseRowGradients<E, T>, E, T> {
 public:
  DepthwiseRowGradients(const Problem& problem, Boxes boxes) : Base(problem), cut_(std::move(boxes)) {
    const auto& [depth, height, width] = problem.axes;
    for (const AxisTap& kd : cut_.maps[0].targets[0].taps) {
      for (const AxisTap& kh : cut_.maps[1].targets[0].taps) {
        for (const AxisTap& kw : cut_.maps[2].targets[0].taps) {
          offsets_.push_back(cut_.row_place(kd.source, kd.offset, kh.source, kh.offset) + kw.source * cut_.plane +
                             cut_.lead + kw.offset);
          places_.push_back({kd.tap, kh.tap, kw.tap});
        }
      }
    }
    for (std::int64_t d = 0; d < depth.kernel; ++d) {
      for (std::int64_t h = 0; h < height.kernel; ++h) {
        for (std::int64_t w = 0; w < width.kernel; ++w) {
          const std::array<std::int64_t, kSpatialAxes> place{d, h, w};
          if (std::find(places_.begin(), places_.begin() + std::ssize(offsets_), place) ==
              places_.begin() + std::ssize(offsets_)) {
            places_.push_back(place);
          }
        }
      }
    }
    this->share_out(std::ssize(places_), cut_.count(), kMostTaps / std::ssize(places_));
  }

  std::string describe() const override {
    return std::to_string(cut_.count()) + " boxes of up to " + std::to_string(cut_.longest(0)) + " x " +
           std::to_string(cut_.longest(1)) + " x " + std::to_string(cut_.longest(2)) + " cells, " +
           std::to_string(this->splits_) + " splits, vectors along rows, " + target_name();
  }

 private:
  using Base = DepthwiseBoxes<DepthwiseRowGradients<E, T>, E, T>;
  friend Base;
  using Base::problem_;
  using typename Base::Channel;

  using Box = std::array<Span, kSpatialAxes>;
  struct Memory {
    Scratch<T> grad;
    Scratch<T> row;
    Scratch<T> input;
    Scratch<T> results;
    Scratch<T> weights;
    Scratch<T> sums;
    T* room = nullptr;
    std::vector<Strip> strips;
    std::vector<T*> lines;  // of the phases of a row
  };
  Box box(std::int64_t index) const { return cut_.box(index); }
  std::int64_t channel_weights() const { return this->taps_; }
  std::int64_t channel_sums() const { return this->taps_ * kMostLanes; }

  void load_weights(const E* weight, const Strides& strides, T* to) const {
    for (const auto& [d, h, w] : places_) {
      element_ops<E, T>().load(weight + d * strides[2] + h * strides[3] + w * strides[4], 1, to++, 1, 1);
    }
  }

  void add_lanes(const T* sums, std::int64_t count, T* to) const {
    depthwise_gradient_ops<E, T>().sum_lanes(sums, count * this->taps_, to);
  }

  template <typename Visit>
  void for_each_tap(const Visit& visit) const {
    std::int64_t tap = 0;
    for (const auto& [d, h, w] : places_) visit(d, h, w, tap++);
  }

  void run_box(const Channel& channel, const Box& box, Memory& memory) const {
    const auto& [depths, heights, widths] = box;
    load_grad(channel.grad, box, memory);
    GradientRows<T> job;
    job.offsets = offsets_.data();
    job.taps = std::ssize(offsets_);
    job.rows = heights.size();
    job.row_step = cut_.line;
    job.cells = widths.size();
    job.weights = channel.weights;
    job.sums = channel.sums;
    job.lines_ahead =
        lines_at_a_time(memory.strips, job.taps, depths.size() * heights.size() * ceil_div(widths.size(), kMostLanes));
    memory.strips.emplace_back();
    job.ahead = memory.strips.data();
    const std::int64_t size = depths.size() * heights.size() * cut_.line;
    if (channel.input != nullptr) load_input(channel.input, box, memory.input.get(size), memory);
    for (std::int64_t d = 0; d < depths.size(); ++d) {
      job.grad = memory.grad.get(cut_.copied) + d * cut_.heights * cut_.line;
      if (channel.input != nullptr) job.input = memory.input.get(size) + d * heights.size() * cut_.line;
      if (channel.results != nullptr) job.results = memory.results.get(size) + d * heights.size() * cut_.line;
      depthwise_gradient_ops<E, T>().rows(job);
      if (channel.results != nullptr) put_results(channel, depths.begin + d, heights, widths, job.results);
    }
  }

  void put_results(const Channel& channel, std::int64_t depth, const Span& heights, const Span& widths,
                   T* results) const {
    const Strides& strides = *channel.result_strides;
    PutRows<E, T> job;
    job.from = results;
    job.from_step = cut_.line;
    job.rows = heights.size();
    job.count = widths.size();
    job.to = channel.results + depth * strides[2] + heights.begin * strides[3] + widths.begin;
    job.to_step = strides[3];
    job.past_caches = channel.past_caches;
    depthwise_gradient_ops<E, T>().put_rows(job);
  }

  void load_input(const E* input, const Box& box, T* to, Memory& memory) const {
    const auto& [depths, heights, widths] = box;
    const Strides& strides = problem_.input_strides;
    SplitRows<E, T> job;
    job.from_step = strides[3];
    job.rows = heights.size();
    job.count = widths.size();
    job.to = &to;
    job.to_step = cut_.line;
    job.room = memory.room;
    const std::int64_t filled = round_up(widths.size(), kMostLanes);
    for (std::int64_t d = depths.begin; d < depths.end; ++d) {
      job.from = input + d * strides[2] + heights.begin * strides[3] + widths.begin;
      depthwise_gradient_ops<E, T>().split(job);
      for (std::int64_t h = 0; filled > widths.size() && h < heights.size(); ++h) {
        std::fill(to + h * cut_.line + widths.size(), to + h * cut_.line + filled, T{0});
      }
      to += heights.size() * cut_.line;
    }
  }

  void load_grad(const E* grad, const Box& box, Memory& memory) const {
    const auto& [depths, heights, widths] = box;
    const auto& [in_depth, in_height, in_width] = cut_.maps;
    const Strides& strides = problem_.output_strides;
    T* const to = memory.grad.get(cut_.copied) + cut_.lead;
    for (std::int64_t sd = 0; sd < std::ssize(in_depth.sources); ++sd) {
      const Lattice& of_depth = in_depth.sources[sd];
      const Halo& depth_halo = cut_.halos[0][sd];
      for (std::int64_t d = depth_halo.low; d < depths.size() + depth_halo.high; ++d) {
        const std::int64_t z = depths.begin + d;
        for (std::int64_t sh = 0; sh < std::ssize(in_height.sources); ++sh) {
          const Lattice& of_height = in_height.sources[sh];
          const Halo& halo = cut_.halos[1][sh];
          // Rows [low, high), of which [begin, end) are there.
          const std::int64_t low = halo.low;
          const std::int64_t high = heights.size() + halo.high;
          std::int64_t begin = std::clamp(-heights.begin, low, high);
          std::int64_t end = std::clamp(of_height.count - heights.begin, begin, high);
          if (z < 0 || z >= of_depth.count) begin = end = high;
          T* const lines = to + cut_.row_place(sd, d, sh, 0);
          if (cut_.count() > 1) {
            clear_rows(lines, low, begin, widths);
            clear_rows(lines, end, high, widths);
          }
          if (begin == end) continue;
          load_rows(grad + (of_depth.first + z * of_depth.step) * strides[2] +
                        (of_height.first + (heights.begin + begin) * of_height.step) * strides[3],
                    of_height.step * strides[3], end - begin, widths, lines + begin * cut_.line, memory);
        }
      }
    }
  }

  // Zeros for what is read of rows that are not there.
  void clear_rows(T* lines, std::int64_t begin, std::int64_t end, const Span& widths) const {
    const AxisMap& map = cut_.maps[2];
    for (std::int64_t s = 0; s < std::ssize(map.sources); ++s, lines += cut_.plane) {
      for (std::int64_t row = begin; row < end; ++row) {
        T* const line = lines + row * cut_.line;
        std::fill(line + map.lowest, line + widths.size() + map.highest, T{0});
      }
    }
  }

  // The phases of rows, each into its plane, and zeros around them.
  void load_rows(const E* rows, std::int64_t step, std::int64_t count, const Span& widths, T* lines,
                 Memory& memory) const {
    const AxisMap& map = cut_.maps[2];
    const std::int64_t phases = map.sources[0].step;
    // Positions of the source lattices, of which begin <= position < end is there.
    const std::int64_t first = widths.begin + map.lowest;
    const std::int64_t last = widths.end + map.highest;
    const std::int64_t begin = std::max<std::int64_t>(first, 0);
    const std::int64_t end = std::max(begin, std::min(last, map.source_size));
    SplitRows<E, T> job;
    job.from = rows + begin * phases;
    job.from_step = step;
    job.rows = count;
    job.count = std::min(end * phases, problem_.axes[2].output()) - begin * phases;
    job.phases = phases;
    job.to = memory.lines.data();
    job.to_step = cut_.line;
    job.room = memory.room;
    for (std::int64_t s = 0; s < std::ssize(map.sources); ++s) {
      memory.lines[map.sources[s].first] = lines + s * cut_.plane + begin - widths.begin;
    }
    if (job.count > 0) depthwise_gradient_ops<E, T>().split(job);
    if (std::ssize(cut_.spans[2]) == 1) return;  // the same for all rows, and there from the beginning
    for (std::int64_t s = 0; s < std::ssize(map.sources); ++s, lines += cut_.plane) {
      const std::int64_t there = std::max(begin, std::min(end, map.sources[s].count));
      for (std::int64_t row = 0; row < count; ++row) {
        T* const line = lines + row * cut_.line;
        std::fill(line + map.lowest, line + std::min(begin, last) - widths.begin, T{0});
        if (there < last) std::fill(line + there - widths.begin, line + last - widths.begin, T{0});
      }
    }
  }

  // Room for what loading takes, phases that no tap reads, and zeros where nothing else will be.
  void make_room(Memory& memory) const {
    const AxisMap& map = cut_.maps[2];
    const std::int64_t phases = map.sources[0].step;
    const std::int64_t longest = std::max((cut_.line + 1) * phases, cut_.longest(2));
    const std::int64_t unread = cut_.heights * cut_.line;
    memory.room = memory.row.get(3 * longest + 64 * phases + unread);
    memory.lines.assign(phases, memory.room + 3 * longest + 64 * phases);
    std::fill_n(memory.grad.get(cut_.copied), cut_.copied, T{0});
  }

  // What a box reads of the tensors, where rows follow each other.
  void ask_for(const Channel& channel, const Box& box, std::vector<Strip>& strips) const {
    const auto& [depths, heights, widths] = box;
    const auto range = [&](int a) {
      const Axis& axis = problem_.axes[a];
      const std::int64_t first = box[a].begin * axis.stride - axis.pad_begin;
      const std::int64_t last = (box[a].end - 1) * axis.stride - axis.pad_begin + (axis.kernel - 1) * axis.dilation;
      return Span{std::clamp<std::int64_t>(first, 0, axis.output()),
                  std::clamp<std::int64_t>(last + 1, 0, axis.output())};
    };
    const auto add = [&](const E* data, const Strides& strides, const Span& z, const Span& y, const Span& x) {
      if (y.size() <= 0 || x.size() <= 0 || (y.size() > 1 && strides[3] != x.size())) return;
      for (std::int64_t d = z.begin; d < z.end; ++d) {
        const E* const first = data + d * strides[2] + y.begin * strides[3] + x.begin;
        strips.push_back(
            {reinterpret_cast<const char*>(first), reinterpret_cast<const char*>(first + y.size() * x.size())});
      }
    };
    add(channel.grad, problem_.output_strides, range(0), range(1), range(2));
    if (channel.input != nullptr) add(channel.input, problem_.input_strides, depths, heights, widths);
  }

  Boxes cut_;
  std::vector<std::int64_t> offsets_;                           // of every tap, in the copied planes
  std::vector<std::array<std::int64_t, kSpatialAxes>> places_;  // of the same taps, then of those that reach nothing
};

}  // namespace

Proposal propose_depthwise_row_gradients(const Problem& problem) {
  if (problem.input_strides[4] != 1 || problem.output_strides[4] != 1) {
    return Proposal::decline("needs channels or rows side by side");
  }
  AxisMaps maps;
  std::int64_t taps = 1;
  for (int a = 0; a < kSpatialAxes; ++a) {
    maps[a] = map_from_input(problem.axes[a]);
    if (maps[a].sources.empty()) return Proposal::decline("needs a tap that reaches the output");
    if (maps[a].highest - maps[a].lowest > kMostCopied) return Proposal::decline("needs taps that are not far apart");
    taps *= problem.axes[a].kernel;
  }
  // Rows are split in their phases, read or not.
  if (taps > kMostTaps || maps[2].sources[0].step > kMostPhases) return Proposal::decline("needs few taps and phases");
  Boxes boxes(problem, std::move(maps));
  if (boxes.copied > kMostCopied) return Proposal::decline("needs rows that fit the cache");
  return with_types(problem.dtype, [&]<typename E, typename T> {
    Proposal proposal;
    const auto kernel = std::make_shared<DepthwiseRowGradients<E, T>>(problem, boxes);
    proposal.workspace_bytes = kernel->workspace_bytes();
    proposal.kernel = kernel;
    return proposal;
  });
}

}  // namespace tconv::cpu
