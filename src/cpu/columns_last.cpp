// Forward of few cells with many weights where channels lie side by side in every tensor. As in columns.cpp the weights
// are what costs, and are read once, as they lie: an input channel has a run of output channels for every tap,
//   D[tap][cell][co] = sum over ci of  input[cell][ci] weight[ci][tap][co],
// and what a tap adds to an output is a run of D. A task has some output channels and all taps, so that no other adds
// to its outputs. Each element is one chain of multiply-adds for each tap, added tap by tap: an order that depends on
// the layer alone.
#include "cpu/columns_last.h"

#include <algorithm>
#include <vector>

#include "cpu/blocking.h"
#include "cpu/families.h"
#include "cpu/panels.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kOutputs = 128;     // channels of a task
constexpr std::int64_t kFewOutputs = 64;   // the same, where there would be too few tasks
constexpr std::int64_t kWantedBlocks = 4;  // tasks
constexpr std::int64_t kColumns = 512;     // (tap, output channel) that are multiplied together
constexpr std::int64_t kDepth = 112;       // input channels of a panel
constexpr std::int64_t kCells = 256;       // multiplied together: whole images, if they are smaller

template <typename T>
class ColumnsLast final : public Kernel {
 public:
  explicit ColumnsLast(const Problem& problem)
      : problem_(problem), inputs_(problem.in_channels_per_group()), outputs_(problem.out_channels_per_group()) {
    const bool few = ceil_div(outputs_, kOutputs) * problem.groups < kWantedBlocks;
    block_ = std::min(few ? kFewOutputs : kOutputs, outputs_);
    blocks_ = ceil_div(outputs_, block_);
    for (const Axis& axis : problem.axes) {
      taps_ *= axis.kernel;
      image_cells_ *= axis.input;
      image_outputs_ *= axis.output();
    }
    taps_together_ = std::clamp<std::int64_t>(kColumns / block_, 1, taps_);
    images_ = std::clamp<std::int64_t>(kCells / image_cells_, 1, problem.batch);
    for (std::int64_t tap = 0; tap < taps_; ++tap) pairs_.push_back(pairs_of(tap));
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    for_each_task(execution, problem_.groups * blocks_, [&](std::int64_t task) {
      const std::int64_t first = task % blocks_ * block_;
      run_block(buffers, task / blocks_, first, std::min(block_, outputs_ - first));
    });
  }

  std::string describe() const override {
    return std::to_string(image_cells_ * problem_.batch) + " cells, " + std::to_string(blocks_ * problem_.groups) +
           " blocks of " + std::to_string(block_) + " output channels, " + target_name();
  }

 private:
  struct Memory {
    Scratch<T> panels;
    Scratch<T> products;
    Scratch<T> output;
  };

  // A cell of an image, and the output that a tap adds its product to.
  struct Pair {
    std::int64_t cell = 0;
    std::int64_t output = 0;
  };

  std::vector<Pair> pairs_of(std::int64_t tap) const {
    const auto& axes = problem_.axes;
    const Triple taps = {tap / (axes[1].kernel * axes[2].kernel), tap / axes[2].kernel % axes[1].kernel,
                         tap % axes[2].kernel};
    std::vector<Pair> pairs;
    for (std::int64_t cell = 0; cell < image_cells_; ++cell) {
      const Triple cells = {cell / (axes[1].input * axes[2].input), cell / axes[2].input % axes[1].input,
                            cell % axes[2].input};
      std::int64_t output = 0;
      bool inside = true;
      for (int a = 0; a < kSpatialAxes; ++a) {
        const std::int64_t place = cells[a] * axes[a].stride - axes[a].pad_begin + taps[a] * axes[a].dilation;
        inside = inside && place >= 0 && place < axes[a].output();
        output = output * axes[a].output() + place;
      }
      if (inside) pairs.push_back({cell, output});
    }
    return pairs;
  }

  void run_block(const Buffers& buffers, std::int64_t group, std::int64_t first, std::int64_t outputs) const {
    thread_local Memory memory;
    const auto* const input = static_cast<const T*>(buffers.input) + group * inputs_;
    const auto* const weight = static_cast<const T*>(buffers.weight) + group * inputs_ * problem_.weight_strides[0];
    const std::int64_t channel = group * outputs_ + first;
    const T* const bias = problem_.bias ? static_cast<const T*>(buffers.bias) + channel : nullptr;
    T* const sums = memory.output.get(images_ * image_outputs_ * outputs);
    for (std::int64_t image = 0; image < problem_.batch; image += images_) {
      const std::int64_t images = std::min(images_, problem_.batch - image);
      for (std::int64_t i = 0; i < images * image_outputs_; ++i) {
        if (bias != nullptr) std::copy_n(bias, outputs, sums + i * outputs);
      }
      if (bias == nullptr) std::fill_n(sums, images * image_outputs_ * outputs, T{0});
      for (std::int64_t tap = 0; tap < taps_; tap += taps_together_) {
        const std::int64_t taps = std::min(taps_together_, taps_ - tap);
        const T* const products =
            multiply(input + image * problem_.input_strides[0], images, weight + first, {tap, taps, outputs}, memory);
        add(products, images, {tap, taps, outputs}, sums);
      }
      for (std::int64_t i = 0; i < images; ++i) {
        const T* const from = sums + i * image_outputs_ * outputs;
        T* const to = static_cast<T*>(buffers.output) + (image + i) * problem_.output_strides[0] + channel;
        for (std::int64_t o = 0; o < image_outputs_; ++o) {
          std::copy_n(from + o * outputs, outputs, to + o * problem_.output_strides[4]);
        }
      }
    }
  }

  // Some taps and the output channels of a block: the columns of a product.
  struct Columns {
    std::int64_t first_tap = 0;
    std::int64_t taps = 0;
    std::int64_t outputs = 0;

    std::int64_t count() const { return taps * outputs; }
    // An odd number of cache lines, so that rows do not fall into the same cache sets.
    std::int64_t line() const { return round_up(count(), 2 * kMostLanes) + kMostLanes; }
  };

  // D[cell][column] of some images.
  const T* multiply(const T* input, std::int64_t images, const T* weight, const Columns& columns,
                    Memory& memory) const {
    const MathOps<T>& math = math_ops<T>();
    const std::int64_t cells = images * image_cells_;
    const auto size = math.tile_for_cells(cells, columns.count());
    T* const panels = memory.panels.get(kDepth * round_up(columns.count(), kMostLanes));
    CellList list;
    for (std::int64_t image = 0; image < images; ++image) {
      list.add(image * problem_.input_strides[0], problem_.input_strides[4], image * image_cells_ * columns.line(),
               columns.line(), image_cells_);
    }
    const std::int64_t zero = 0;
    MultiplyCells<T> job;
    job.offsets = &zero;
    job.places = &zero;
    job.parts = 1;
    job.c = memory.products.get(cells * columns.line());
    for (std::int64_t channel = 0; channel < inputs_; channel += kDepth) {
      job.depth = std::min(kDepth, inputs_ - channel);
      job.a = input + channel;
      pack(weight + channel * problem_.weight_strides[0], job.depth, columns, size.vectors * math.lanes, panels);
      list.multiply(math, size, columns.count(), Panels<T>{panels, job.depth}, job);
      job.accumulate = true;
    }
    return job.c;
  }

  // Panels [panel][input channel][column], channel by channel: they are far apart in memory.
  void pack(const T* weight, std::int64_t depth, const Columns& columns, std::int64_t panel, T* panels) const {
    std::vector<PackTap> pieces;  // what a panel has of a tap
    PackWeights<T, T> job;
    job.source = weight + columns.first_tap * outputs_;
    job.channel_step = problem_.weight_strides[0];
    job.target_step = 1;
    job.channels = depth;
    job.packed = panels;
    const auto pack_pieces = [&](std::int64_t width) {
      job.taps = pieces.data();
      job.tap_count = std::ssize(pieces);
      job.width = job.valid = width;
      if (!pieces.empty()) element_ops<T, T>().pack_weights(job);
      pieces.clear();
    };
    std::int64_t width = 0;  // of the pieces so far
    for (std::int64_t n = 0; n < columns.count(); n += panel) {
      const std::int64_t of_panel = panel_width(math_ops<T>(), panel, columns.count(), n);
      const std::int64_t end = std::min(n + of_panel, columns.count());
      for (std::int64_t column = n, count = 0; column < end; column += count) {
        const std::int64_t output = column % columns.outputs;
        count = std::min(columns.outputs - output, end - column);
        if (count != width) pack_pieces(width);
        width = count;
        pieces.push_back({column / columns.outputs * outputs_ + output, n * depth + column - n, of_panel});
      }
      for (std::int64_t k = 0; end < n + of_panel && k < depth; ++k) {
        std::fill(panels + n * depth + k * of_panel + end - n, panels + n * depth + (k + 1) * of_panel, T{0});
      }
    }
    pack_pieces(width);
  }

  void add(const T* products, std::int64_t images, const Columns& columns, T* sums) const {
    for (std::int64_t tap = 0; tap < columns.taps; ++tap) {
      const T* const of_tap = products + tap * columns.outputs;
      for (std::int64_t image = 0; image < images; ++image) {
        for (const Pair& pair : pairs_[columns.first_tap + tap]) {
          const T* const from = of_tap + (image * image_cells_ + pair.cell) * columns.line();
          T* const to = sums + (image * image_outputs_ + pair.output) * columns.outputs;
          for (std::int64_t c = 0; c < columns.outputs; ++c) to[c] += from[c];
        }
      }
    }
  }

  Problem problem_;
  std::int64_t inputs_ = 0;  // channels of a group
  std::int64_t outputs_ = 0;
  std::int64_t block_ = 1;  // output channels of a task
  std::int64_t blocks_ = 1;
  std::int64_t taps_ = 1;
  std::int64_t taps_together_ = 1;
  std::int64_t image_cells_ = 1;
  std::int64_t image_outputs_ = 1;
  std::int64_t images_ = 1;               // multiplied together
  std::vector<std::vector<Pair>> pairs_;  // of each tap
};

// Whether each image of a tensor is a run of positions with their channels side by side.
bool is_channels_last(const Sizes& sizes, const Strides& strides) {
  std::int64_t step = strides[4];
  bool dense = strides[1] == 1 || sizes[1] == 1;
  for (const int d : {4, 3, 2}) {
    dense = dense && (sizes[d] == 1 || strides[d] == step);
    step *= sizes[d];
  }
  return dense && strides[4] >= sizes[1];
}

}  // namespace

bool has_columns_last(const Problem& problem) {
  const Sizes weights = problem.weight_sizes();
  return (problem.dtype == DType::f32 || problem.dtype == DType::f64) && problem.out_channels_per_group() > 1 &&
         is_channels_last(problem.input_sizes(), problem.input_strides) &&
         is_channels_last(problem.output_sizes(), problem.output_strides) &&
         is_channels_last(weights, problem.weight_strides) && problem.weight_strides[4] == weights[1];
}

Proposal propose_columns_last(const Problem& problem) {
  Proposal proposal;
  if (problem.dtype == DType::f64) {
    proposal.kernel = std::make_shared<ColumnsLast<double>>(problem);
  } else {
    proposal.kernel = std::make_shared<ColumnsLast<float>>(problem);
  }
  return proposal;
}

}  // namespace tconv::cpu
