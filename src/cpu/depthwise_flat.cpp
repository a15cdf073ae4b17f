// The "depthwise" family where rows lie side by side (contiguous tensors), forward, of images whose rows fill no
// vectors: an image is copied as one line, its rows apart by as many zeros as taps reach beyond them, so that a tap is
// a distance and vectors run on from row to row. Of what is computed, the cells between rows are left out.
#include "cpu/depthwise_flat.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <atomic>
#include <type_traits>
#include <vector>

#include "cpu/axis_map.h"
#include "cpu/depthwise_flat_simd.h"
#include "cpu/depthwise_rows_simd.h"
#include "cpu/panels.h"
#include "cpu/past_caches.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kMostHeld = std::int64_t{1} << 12;  // elements of the lines that are copied at a time, about
constexpr std::int64_t kTaskElements = std::int64_t{1} << 17;
constexpr std::int64_t kFewestTasks = 64;

std::atomic<std::int64_t> next_id{0};  // of kernels: their addresses come back

template <typename E, typename T>
class DepthwiseFlat final : public Kernel {
 public:
  DepthwiseFlat(const Problem& problem, const AxisMaps& maps) : problem_(problem) {
    for (int a = kSpatialAxes - 1; a >= 0; --a) {
      const Axis& axis = problem.axes[a];
      output_[a] = axis.output();
      lowest_ += std::min<std::int64_t>(maps[a].lowest, 0) * step_[a];
      highest_ += std::max<std::int64_t>(maps[a].highest, 0) * step_[a];
      // What is read before a row's first cell, or after its last, is beyond the rows around it.
      const std::int64_t apart = std::max(axis.input - std::min<std::int64_t>(maps[a].lowest, 0),
                                          output_[a] + std::max<std::int64_t>(maps[a].highest, 0));
      if (a > 0) step_[a - 1] = step_[a] * apart;
    }
    list_taps(maps);
    const std::int64_t cells =
        (output_[0] - 1) * step_[0] + (output_[1] - 1) * step_[1] + (output_[2] - 1) * step_[2] + 1;
    vectors_ = ceil_div(cells, ops_.lanes);
    lead_ = round_up(-lowest_, kMostLanes);
    const std::int64_t past = (problem.axes[0].input - 1) * step_[0] + problem.axes[1].input * step_[1];
    const std::int64_t read = vectors_ * ops_.lanes + highest_;
    line_ = round_up(lead_ + std::max(past, read), kMostLanes);
    held_ = std::max<std::int64_t>(kMostHeld / line_, 1);
    wanted_.resize(vectors_ * ops_.lanes / 8 + 1);
    for (std::int64_t d = 0; d < output_[0]; ++d) {
      for (std::int64_t h = 0; h < output_[1]; ++h) {
        for (std::int64_t w = 0; w < output_[2]; ++w) {
          const std::int64_t cell = d * step_[0] + h * step_[1] + w;
          wanted_[cell / 8] = static_cast<std::uint8_t>(wanted_[cell / 8] | 1U << cell % 8);
        }
      }
    }
  }

  // Whether the line is that much shorter than vectors of each row, whose loads serve several rows.
  bool pays() const {
    constexpr double kShare = 0.75;
    const std::int64_t of_rows = output_[0] * output_[1] * ceil_div(output_[2], ops_.lanes);
    return static_cast<double>(vectors_) <= kShare * static_cast<double>(of_rows);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const std::int64_t images = problem_.batch * problem_.in_channels;
    const bool past_caches = exceeds_caches(problem_.output_sizes(), problem_.input_sizes(), sizeof(E));
    const std::int64_t together =
        std::max({2 * kMostHeld / size(), std::min(kTaskElements / size(), images / kFewestTasks), std::int64_t{1}});
    for_each_task(execution, ceil_div(images, together), [&](std::int64_t task) {
      thread_local Memory memory;
      const std::int64_t end = std::min((task + 1) * together, images);
      for (std::int64_t first = task * together; first < end;) {
        const std::int64_t channel = first % problem_.in_channels;
        const std::int64_t count = std::min({held_, end - first, problem_.in_channels - channel});
        run_channels(buffers, first / problem_.in_channels, channel, count, past_caches, memory);
        first += count;
      }
      if (past_caches) hwy::FlushStream();  // before another thread reads the results
    });
  }

  std::string describe() const override {
    return std::to_string(vectors_) + " vectors an image, rows one after the other, " + target_name();
  }

 private:
  struct Memory {
    Scratch<T> source;
    Scratch<T> results;
    Scratch<T> weights;
    std::int64_t cleared_by = -1;  // the kernel whose lines `source` holds
  };
  std::int64_t size() const { return output_[0] * output_[1] * output_[2]; }

  void list_taps(const AxisMaps& maps) {
    for (const AxisTap& d : maps[0].targets[0].taps) {
      for (const AxisTap& h : maps[1].targets[0].taps) {
        for (const AxisTap& w : maps[2].targets[0].taps) {
          const std::int64_t row = d.tap * problem_.axes[1].kernel + h.tap;
          taps_.push_back(
              {d.offset * step_[0] + h.offset * step_[1] + w.offset * step_[2], row * problem_.axes[2].kernel + w.tap});
        }
      }
    }
  }

  // Some channels of a sample: all are copied first, since what has just been written can't be read across the ends of
  // what was written.
  void run_channels(const Buffers& buffers, std::int64_t sample, std::int64_t channel, std::int64_t count,
                    bool past_caches, Memory& memory) const {
    const auto place = [&](const Strides& strides) { return sample * strides[0] + channel * strides[1]; };
    if (memory.cleared_by != id_) memory.cleared_by = -1;  // should there be no memory
    T* const source = memory.source.get(held_ * line_);
    if (memory.cleared_by != id_) {
      std::fill_n(source, held_ * line_, T{0});
      memory.cleared_by = id_;
    }
    const E* const input = static_cast<const E*>(buffers.input) + place(problem_.input_strides);
    for (std::int64_t i = 0; i < count; ++i) {
      load_source(input + i * problem_.input_strides[1], source + i * line_ + lead_);
    }
    WeighFlat<T> job;
    job.lines = count;
    job.from = source + lead_;
    job.from_step = line_;
    job.taps = taps_.data();
    job.tap_count = std::ssize(taps_);
    load_weights(buffers, channel, memory, job);
    job.vectors = vectors_;
    job.wanted = wanted_.data();
    job.count = size();
    E* const output = static_cast<E*>(buffers.output) + place(problem_.output_strides);
    const std::int64_t step = problem_.output_strides[1];
    if constexpr (std::is_same_v<E, T>) {
      if (!past_caches) {
        job.to = output;
        job.to_step = step;
        ops_.weigh_flat(job);
        return;
      }
    }
    // As far from a cache line as they will be in the tensor.
    job.to = memory.results.get(count * size() + kLine) + from_line(output);
    job.to_step = size();
    ops_.weigh_flat(job);
    const bool neighbours = count == 1 || step == size();
    for (std::int64_t i = 0; i < (neighbours ? 1 : count); ++i) {
      row_ops_.put_row(job.to + i * size(), output + i * step, size() * (neighbours ? count : 1),
                       neighbours && past_caches);
    }
  }

  void load_source(const E* image, T* to) const {
    const Strides& strides = problem_.input_strides;
    for (std::int64_t d = 0; d < problem_.axes[0].input; ++d) {
      row_ops_.copy_rows(image + d * strides[2], strides[3], to + d * step_[0], step_[1], problem_.axes[1].input,
                         problem_.axes[2].input);
    }
  }

  // The weights, and the bias, of some channels, side by side.
  void load_weights(const Buffers& buffers, std::int64_t channel, Memory& memory, WeighFlat<T>& job) const {
    const auto& [depth, height, width] = problem_.axes;
    const Strides& strides = problem_.weight_strides;
    const E* const weight = static_cast<const E*>(buffers.weight) + channel * strides[0];
    const E* const bias = problem_.bias ? static_cast<const E*>(buffers.bias) + channel : nullptr;
    if constexpr (std::is_same_v<E, T>) {
      if (strides[4] == 1 && strides[3] == width.kernel && strides[2] == height.kernel * width.kernel) {
        job.weights = weight;
        job.weights_step = strides[0];
        job.bias = bias;
        return;
      }
    }
    job.weights_step = depth.kernel * height.kernel * width.kernel;
    T* to = memory.weights.get(job.lines * (job.weights_step + 1));
    job.weights = to;
    for (std::int64_t i = 0; i < job.lines; ++i) {
      for (std::int64_t d = 0; d < depth.kernel; ++d) {
        for (std::int64_t h = 0; h < height.kernel; ++h, to += width.kernel) {
          const E* const row = weight + i * strides[0] + d * strides[2] + h * strides[3];
          element_ops<E, T>().load(row, strides[4], to, 1, width.kernel);
        }
      }
    }
    if (bias == nullptr) return;
    element_ops<E, T>().load(bias, 1, to, 1, job.lines);
    job.bias = to;
  }

  static constexpr std::int64_t kLine = 64 / sizeof(T);
  static std::int64_t from_line(const E* place) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(place) / sizeof(E)) % kLine;
  }

  Problem problem_;
  const DepthwiseFlatOps<T>& ops_ = depthwise_flat_ops<T>();
  const DepthwiseRowOps<E, T>& row_ops_ = depthwise_row_ops<E, T>();
  std::int64_t id_ = next_id++;
  Triple output_{};
  Triple step_ = {0, 0, 1};  // along the line, from one to the next
  std::int64_t lowest_ = 0;  // what the first tap and the last one read beside a cell
  std::int64_t highest_ = 0;
  std::int64_t lead_ = 0;  // zeros before an image
  std::int64_t line_ = 0;  // from one image to the next
  std::int64_t held_ = 1;  // images
  std::int64_t vectors_ = 0;
  std::vector<FlatTap> taps_;
  std::vector<std::uint8_t> wanted_;  // bits: cells that are no gaps
};

}  // namespace

std::shared_ptr<const Kernel> make_depthwise_flat(const Problem& problem, const AxisMaps& maps) {
  constexpr std::int64_t kMostCells = 2048;  // of an image with what surrounds it: they stay in the L1 cache
  std::int64_t cells = 1;
  for (int a = 0; a < kSpatialAxes; ++a) {
    const std::vector<AxisTarget>& targets = maps[a].targets;
    if (targets.size() != 1 || targets[0].lattice.step != 1) return nullptr;
    const std::int64_t longest = std::max(problem.axes[a].input, problem.axes[a].output());
    const std::int64_t reach = std::max<std::int64_t>(maps[a].highest, 0) - std::min<std::int64_t>(maps[a].lowest, 0);
    if (longest > kMostCells || reach > kMostCells) return nullptr;
    cells *= longest + reach;
    if (cells > kMostCells) return nullptr;
  }
  const Strides& strides = problem.output_strides;
  const std::int64_t row = problem.axes[2].output();
  const bool side_by_side = (problem.axes[1].output() == 1 || strides[3] == row) &&
                            (problem.axes[0].output() == 1 || strides[2] == row * problem.axes[1].output());
  if (!side_by_side) return nullptr;
  return with_types(problem.dtype,
                    [&]<typename E, typename T> {
                      Proposal proposal;
                      if (depthwise_flat_ops<T>().weigh_flat == nullptr) return proposal;
                      const auto kernel = std::make_shared<DepthwiseFlat<E, T>>(problem, maps);
                      if (kernel->pays()) proposal.kernel = kernel;
                      return proposal;
                    })
      .kernel;
}

}  // namespace tconv::cpu
