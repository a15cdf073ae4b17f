// grad_weight of layers with kernel == stride and contiguous tensors. What a cell reads of grad_output, its patch, is
// read by no other:
//   grad_weight[ci][k] = sum over cells of  input[ci][cell] patch[k][cell],   k: output channel and tap
// The input is rows of the product where it lies, and results are summed where they belong. Patches alone are packed,
// in panels of columns, k. Each element is one chain of multiply-adds in an order that depends on the layer alone.
#include <algorithm>
#include <vector>

#include "cpu/blocking.h"
#include "cpu/panels.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kFewestRows = 96;     // input channels: what is packed is used for all of them
constexpr std::int64_t kFewestColumns = 32;  // cells of an image, and k
constexpr std::int64_t kColumns = kMostVectors * kMostLanes;
constexpr std::int64_t kTasksOfThread = 4;  // no more are needed to keep it busy

// Where patches lie in grad_output: that of a cell begins where the cell does, and its k are at the same distances.
class PatchPlaces {
 public:
  explicit PatchPlaces(const Problem& problem) : step_(problem.axes[2].stride) {
    const Strides& strides = problem.output_strides;
    const auto& [depth, height, width] = problem.axes;
    for (std::int64_t channel = 0; channel < problem.out_channels_per_group(); ++channel) {
      for (std::int64_t d = 0; d < depth.kernel; ++d) {
        for (std::int64_t h = 0; h < height.kernel; ++h) {
          for (std::int64_t w = 0; w < width.kernel; ++w) {
            of_k_.push_back(channel * strides[1] + d * strides[2] + h * strides[3] + w);
          }
        }
      }
    }
    row_ = width.input;
    for (std::int64_t d = 0; d < depth.input; ++d) {
      for (std::int64_t h = 0; h < height.input; ++h) {
        of_row_.push_back(d * depth.stride * strides[2] + h * height.stride * strides[3]);
      }
    }
  }

  std::int64_t depth() const { return std::ssize(of_k_); }

  // to[k to_step + cell] for some k and cells of an image.
  template <typename T>
  void load(const T* image, std::int64_t first_k, std::int64_t k_count, std::int64_t first_cell,
            std::int64_t cell_count, T* to, std::int64_t to_step) const {
    constexpr std::int64_t kShort = 16;
    const ElementOps<T, T>& ops = element_ops<T, T>();
    for (std::int64_t k = 0; k < k_count; ++k) {
      const T* const from = image + of_k_[first_k + k];
      T* line = to + k * to_step;
      std::int64_t row = first_cell / row_;
      std::int64_t within = first_cell % row_;
      for (std::int64_t left = cell_count; left > 0; ++row, within = 0) {
        const std::int64_t count = std::min(left, row_ - within);
        const T* const cells = from + of_row_[row] + within * step_;
        if (count >= kShort) {
          ops.load(cells, step_, line, 1, count);
        } else {
          for (std::int64_t i = 0; i < count; ++i) line[i] = cells[i * step_];
        }
        line += count;
        left -= count;
      }
    }
  }

 private:
  std::int64_t step_ = 1;
  std::int64_t row_ = 1;              // cells
  std::vector<std::int64_t> of_row_;  // of cells
  std::vector<std::int64_t> of_k_;
};

template <typename T>
class PatchWeights final : public Kernel {
 public:
  PatchWeights(const Problem& problem, std::int64_t threads)
      : problem_(problem), places_(problem), rows_(problem.in_channels_per_group()) {
    cells_ = 1;
    for (const Axis& axis : problem.axes) cells_ *= axis.input;
    panels_ = ceil_div(places_.depth(), kColumns) * problem.groups;
    // Blocks of rows, each of which packs for itself, where panels alone would leave threads idle.
    std::int64_t blocks = 1;
    while (panels_ * blocks < kTasksOfThread * threads && panels_ * blocks % threads != 0 &&
           rows_ >= (blocks + 1) * kFewestRows) {
      ++blocks;
    }
    block_ = ceil_div(rows_, blocks);
    blocks_ = ceil_div(rows_, block_);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    for_each_task(execution, panels_ * blocks_, [&](std::int64_t task) {
      const std::int64_t first = task % blocks_ * block_;
      const std::int64_t rows = std::min(block_, rows_ - first);
      grad_weight(static_cast<const T*>(buffers.output), static_cast<const T*>(buffers.input),
                  static_cast<T*>(buffers.weight), task / blocks_, first, rows);
    });
  }

  std::string describe() const override {
    return "patches, " + std::to_string(panels_) + " panels, " + std::to_string(blocks_) + " blocks of " +
           std::to_string(block_) + " input channels, " + target_name();
  }

 private:
  struct Memory {
    Scratch<T> lines;
    Scratch<T> panel;
    Scratch<T> sums;
  };

  const T* image_of(const T* grad, std::int64_t image, std::int64_t group) const {
    return grad + image * problem_.output_strides[0] +
           group * problem_.out_channels_per_group() * problem_.output_strides[1];
  }

  // Adds products to `columns` columns of some rows of a tensor, step by step. Rows that do not end with a whole vector
  // are summed elsewhere: something else stands behind them.
  class Sums {
   public:
    Sums(T* to, std::int64_t to_step, std::int64_t rows, std::int64_t columns, Memory& memory)
        : math_(math_ops<T>()),
          size_(math_.tile_for_cells(rows, columns)),
          to_(to),
          to_step_(to_step),
          rows_(rows),
          columns_(columns),
          memory_(memory) {
      width_ = round_up(columns, math_.lanes);
      if (width_ > columns) own_ = memory.sums.get(rows * width_);
    }

    // a: `depth` elements of each row, a_step apart. pack(n, count, width, panel) packs `count` columns from column n
    // on as [depth][width].
    template <typename Pack>
    void add(const T* a, std::int64_t a_step, std::int64_t depth, const Pack& pack) {
      T* const packed = memory_.panel.get(depth * width_);
      const std::int64_t panel = size_.vectors * math_.lanes;
      for (std::int64_t n = 0; n < columns_; n += panel) {
        const std::int64_t width = panel_width(math_, panel, columns_, n);
        const std::int64_t count = std::min(width, columns_ - n);
        T* const to = packed + n * depth;
        if (count < width) std::fill_n(to, depth * width, T{0});
        pack(n, count, width, to);
      }
      CellList cells;
      cells.add(0, a_step, 0, own_ != nullptr ? width_ : to_step_, rows_);
      const std::int64_t zero = 0;
      MultiplyCells<T> job;
      job.a = a;
      job.offsets = &zero;
      job.places = &zero;
      job.parts = 1;
      job.depth = depth;
      job.c = own_ != nullptr ? own_ : to_;
      job.accumulate = begun_;
      cells.multiply(math_, size_, columns_, Panels<T>{packed, depth}, job);
      begun_ = true;
    }

    void finish() const {
      if (own_ == nullptr) return;
      for (std::int64_t row = 0; row < rows_; ++row) {
        std::copy_n(own_ + row * width_, columns_, to_ + row * to_step_);
      }
    }

   private:
    const MathOps<T>& math_;
    MathOps<T>::TileSize size_;
    T* to_;
    std::int64_t to_step_;
    std::int64_t rows_;
    std::int64_t columns_;
    Memory& memory_;
    std::int64_t width_ = 0;  // columns, in whole vectors
    T* own_ = nullptr;
    bool begun_ = false;
  };

  void grad_weight(const T* grad, const T* input, T* weight, std::int64_t panel, std::int64_t first_row,
                   std::int64_t rows) const {
    thread_local Memory memory;
    const std::int64_t in_group = ceil_div(places_.depth(), kColumns);
    const std::int64_t k = panel % in_group * kColumns;
    const std::int64_t group = panel / in_group;
    const std::int64_t row = group * rows_ + first_row;
    Sums sums(weight + row * problem_.weight_strides[0] + k, problem_.weight_strides[0], rows,
              std::min(kColumns, places_.depth() - k), memory);
    const std::int64_t most = even_parts(cells_, kDepthInPlace);
    const std::int64_t line = round_up(most, kMostLanes) + kMostLanes;
    T* const lines = memory.lines.get(kColumns * line);
    for (std::int64_t image = 0; image < problem_.batch; ++image) {
      const T* const patches = image_of(grad, image, group);
      for (std::int64_t cell = 0; cell < cells_; cell += most) {
        const std::int64_t depth = std::min(most, cells_ - cell);
        sums.add(input + image * problem_.input_strides[0] + row * problem_.input_strides[1] + cell,
                 problem_.input_strides[1], depth, [&](std::int64_t n, std::int64_t count, std::int64_t width, T* to) {
                   places_.load(patches, k + n, count, cell, depth, lines, line);
                   element_ops<T, T>().load_channels(lines, line, to, width, count, depth);
                 });
      }
    }
    sums.finish();
  }

  Problem problem_;
  PatchPlaces places_;
  std::int64_t rows_ = 0;   // input channels of a group
  std::int64_t cells_ = 1;  // of an image
  std::int64_t panels_ = 1;
  std::int64_t block_ = 1;  // rows of a task
  std::int64_t blocks_ = 1;
};

}  // namespace

Proposal propose_patch_weights(const Problem& problem, const DeviceProperties& device) {
  const std::int64_t threads = std::max(device.threads, 1);
  if (problem.dtype != DType::f32 && problem.dtype != DType::f64) return Proposal::decline("computes in place");
  std::int64_t taps = 1;
  std::int64_t cells = 1;
  for (int a = kSpatialAxes - 1; a >= 0; --a) {
    const Axis& axis = problem.axes[a];
    if (axis.kernel != axis.stride || axis.dilation != 1 || axis.pad_begin != 0 ||
        axis.output() < axis.input * axis.stride) {
      return Proposal::decline("needs kernel == stride");
    }
    if ((axis.input > 1 && problem.input_strides[2 + a] != cells) ||
        (axis.kernel > 1 && problem.weight_strides[2 + a] != taps)) {
      return Proposal::decline("needs contiguous tensors");
    }
    taps *= axis.kernel;
    cells *= axis.input;
  }
  const std::int64_t depth = problem.out_channels_per_group() * taps;
  if ((problem.out_channels_per_group() > 1 && problem.weight_strides[1] != taps) || problem.output_strides[4] != 1) {
    return Proposal::decline("needs contiguous tensors");
  }
  if (taps == 1 || problem.batch == 0 || problem.in_channels_per_group() < kFewestRows ||
      std::min(cells, depth) < kFewestColumns) {
    return Proposal::decline("needs more channels and cells");
  }
  Proposal proposal;
  if (problem.dtype == DType::f64) {
    proposal.kernel = std::make_shared<PatchWeights<double>>(problem, threads);
  } else {
    proposal.kernel = std::make_shared<PatchWeights<float>>(problem, threads);
  }
  return proposal;
}

}  // namespace tconv::cpu
