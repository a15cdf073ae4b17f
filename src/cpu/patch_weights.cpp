// grad_weight of layers with kernel == stride and contiguous tensors. What a cell reads of grad_output, its patch, is
// read by no other:
//   grad_weight[ci][k] = sum over cells of  input[ci][cell] patch[k][cell],   k: output channel and tap
// The input is rows of the product where it lies, and results are summed where they belong. Patches alone are packed,
// in panels of columns, k. Each element is one chain of multiply-adds in an order that depends on the layer alone.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "cpu/blocking.h"
#include "cpu/panels.h"
#include "cpu/patch_sides.h"
#include "cpu/patches_simd.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"
#include "cpu/weight_blocks.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kFewestChannels = 32;  // of the input: what is packed is used for all of them
constexpr std::int64_t kFewestRows = 96;      // of a block of them
constexpr std::int64_t kFewestColumns = 32;   // cells of an image, and k
constexpr std::int64_t kPanel = kMostVectors * kMostLanes;
constexpr std::int64_t kManyChannels = 128;  // of the input: two panels then share what is read of them
constexpr std::int64_t kTasksWanted = 8;     // for which partial sums are made
constexpr std::int64_t kFewestSteps = 2;     // of a split
constexpr std::int64_t kTasksOfThread = 4;   // no more are needed to keep it busy

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
    // Kernel rows are taken apart as a whole, if all of them are wanted.
    if (first_k % step_ == 0 && k_count % step_ == 0) {
      std::vector<LineSegment> segments;
      for (std::int64_t cell = 0, count = 0; cell < cell_count; cell += count) {
        const std::int64_t within = (first_cell + cell) % row_;
        count = std::min(cell_count - cell, row_ - within);
        segments.push_back({0, of_row_[(first_cell + cell) / row_] + within * step_, cell, count});
      }
      SplitLine<T> job;
      job.taps = step_;
      job.segments = segments.data();
      job.count = std::ssize(segments);
      job.to_step = to_step;
      for (std::int64_t k = 0; k < k_count; k += step_) {
        job.from = image + of_k_[first_k + k];
        job.to = to + k * to_step;
        patch_ops<T>().split_line(job);
      }
      return;
    }
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
      : problem_(problem), places_(problem), side_(side_of_output(problem)), rows_(problem.in_channels_per_group()) {
    cells_ = 1;
    for (const Axis& axis : problem.axes) cells_ *= axis.input;
    task_columns_ = rows_ >= kManyChannels ? 2 * kPanel : kPanel;
    panels_ = ceil_div(places_.depth(), task_columns_) * problem.groups;
    most_cells_ = even_parts(cells_, kDepthInPlace);
    // Partial sums, where panels are few: as many as the layer has room for, whatever the threads.
    const std::int64_t steps = problem.batch * ceil_div(cells_, most_cells_);
    const std::int64_t room = room_for_partials(problem) / std::max<std::int64_t>(partial_size(), 1);
    splits_ = std::clamp<std::int64_t>(std::min({kTasksWanted / panels_, room, steps / kFewestSteps}), 1, kTasksWanted);
    panels_ *= splits_;
    // Blocks of rows, each of which packs for itself, where panels alone would leave threads idle.
    std::int64_t blocks = 1;
    while (panels_ * blocks < kTasksOfThread * threads && panels_ * blocks % threads != 0 &&
           rows_ >= (blocks + 1) * kFewestRows) {
      ++blocks;
    }
    block_ = ceil_div(rows_, blocks);
    blocks_ = ceil_div(rows_, block_);
  }

  std::size_t workspace_bytes() const { return splits_ > 1 ? splits_ * partial_size() * sizeof(T) : 0; }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const auto* const grad = static_cast<const T*>(buffers.output);
    const auto* const input = static_cast<const T*>(buffers.input);
    auto* const weight = static_cast<T*>(buffers.weight);
    auto* const partials = static_cast<T*>(buffers.workspace);
    const auto sum = [&](std::int64_t task) {
      const std::int64_t split = task / blocks_ % splits_;
      const std::int64_t first = task % blocks_ * block_;
      const std::int64_t rows = std::min(block_, rows_ - first);
      T* const to = splits_ > 1 ? partials + split * partial_size() : weight;
      const std::int64_t step = splits_ > 1 ? places_.depth() : problem_.weight_strides[0];
      grad_weight(grad, input, to, step, task / blocks_ / splits_, split, first, rows);
    };
    if (splits_ == 1) return for_each_task(execution, panels_ * blocks_, sum);
    for_each_step(execution, {panels_ * blocks_, problem_.in_channels}, [&](std::size_t step, std::int64_t task) {
      if (step == 0) return sum(task);
      T* const to = weight + task * problem_.weight_strides[0];
      for (std::int64_t k = 0; k < places_.depth(); ++k) {
        T all = 0;
        for (std::int64_t split = 0; split < splits_; ++split) {
          all += partials[split * partial_size() + task * places_.depth() + k];
        }
        to[k] = all;
      }
    });
  }

  std::string describe() const override {
    return "patches, " + std::to_string(panels_) + " panels in " + std::to_string(splits_) + " splits, " +
           std::to_string(blocks_) + " blocks of " + std::to_string(block_) + " input channels, " + target_name();
  }

 private:
  struct Memory {
    Scratch<T> lines;
    Scratch<T> panel;
    Scratch<T> sums;
  };

  std::int64_t partial_size() const { return problem_.in_channels * places_.depth(); }

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
    void add(const T* a, std::int64_t a_step, std::int64_t depth, Ahead<T> ahead, const Pack& pack) {
      T* const packed = memory_.panel.get(depth * width_);
      const std::int64_t panel = size_.vectors * math_.lanes;
      for (std::int64_t n = 0; n < columns_; n += panel) {
        const std::int64_t width = panel_width(math_, panel, columns_, n);
        const std::int64_t count = std::min(width, columns_ - n);
        T* const to = packed + n * depth;
        if (count < width) std::fill_n(to, depth * width, T{0});
        pack(n, count, width, to);
      }
      T* const c = own_ != nullptr ? own_ : to_;
      const std::int64_t c_step = own_ != nullptr ? width_ : to_step_;
      const std::int64_t tiles = ceil_div(rows_, size_.rows);
      const std::int64_t lines = ceil_div(ahead.lines(), tiles * ceil_div(columns_, panel));
      const std::int64_t zero = 0;
      MultiplyCells<T> job;
      job.offsets = &zero;
      job.places = &zero;
      job.parts = 1;
      job.depth = depth;
      job.accumulate = begun_;
      for (std::int64_t n = 0; n < columns_; n += panel) {
        job.b_step = panel_width(math_, panel, columns_, n);
        job.b = packed + n * depth;
        for (std::int64_t i = 0; i < tiles; ++i) {
          const std::int64_t begin = rows_ * i / tiles;
          const std::int64_t end = rows_ * (i + 1) / tiles;
          // Those of the tile, and as many that follow.
          std::array<std::int64_t, 2 * kMostCells> a_places;
          std::array<std::int64_t, 2 * kMostCells> c_places;
          for (std::int64_t m = 0; m < 2 * (end - begin); ++m) {
            const std::int64_t row = std::min(begin + m, rows_ - 1);
            a_places[m] = row * a_step;
            c_places[m] = row * c_step;
          }
          job.a = a;
          job.a_places = a_places.data();
          job.c = c + n;
          job.c_places = c_places.data();
          math_.multiply_cells[0][end - begin - 1][job.b_step / math_.lanes - 1](job);
          ahead.ask(lines);
        }
      }
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

  // Some rows and a panel of k, summed over the steps of a split.
  void grad_weight(const T* grad, const T* input, T* weight, std::int64_t weight_step, std::int64_t panel,
                   std::int64_t split, std::int64_t first_row, std::int64_t rows) const {
    thread_local Memory memory;
    const std::int64_t in_group = ceil_div(places_.depth(), task_columns_);
    const std::int64_t k = panel % in_group * task_columns_;
    const std::int64_t group = panel / in_group;
    const std::int64_t row = group * rows_ + first_row;
    Sums sums(weight + row * weight_step + k, weight_step, rows, std::min(task_columns_, places_.depth() - k), memory);
    const std::int64_t line = round_up(most_cells_, kMostLanes) + kMostLanes;
    T* const lines = memory.lines.get(task_columns_ * line);
    const std::int64_t in_image = ceil_div(cells_, most_cells_);
    const std::int64_t steps = problem_.batch * in_image;
    for (std::int64_t step = steps * split / splits_; step < steps * (split + 1) / splits_; ++step) {
      const std::int64_t image = step / in_image;
      const std::int64_t cell = step % in_image * most_cells_;
      const T* const patches = image_of(grad, image, group);
      const std::int64_t depth = std::min(most_cells_, cells_ - cell);
      const std::int64_t next = step + 1;
      Ahead<T> ahead;
      if (next < steps * (split + 1) / splits_) {
        const std::int64_t first = next / in_image * cells_ + next % in_image * most_cells_;
        ahead = Ahead<T>(grad + group * side_.group_step, side_, k / side_.taps, task_columns_ / side_.taps, first,
                         std::min(first + most_cells_, (next / in_image + 1) * cells_));
      }
      sums.add(input + image * problem_.input_strides[0] + row * problem_.input_strides[1] + cell,
               problem_.input_strides[1], depth, std::move(ahead),
               [&](std::int64_t n, std::int64_t count, std::int64_t width, T* to) {
                 places_.load(patches, k + n, count, cell, depth, lines, line);
                 element_ops<T, T>().load_channels(lines, line, to, width, count, depth);
               });
    }
    sums.finish();
  }

  Problem problem_;
  PatchPlaces places_;
  Side side_;                    // of the gradient of the output
  std::int64_t rows_ = 0;        // input channels of a group
  std::int64_t cells_ = 1;       // of an image
  std::int64_t most_cells_ = 1;  // of a step
  std::int64_t task_columns_ = kPanel;
  std::int64_t panels_ = 1;  // columns of tasks, of all splits
  std::int64_t splits_ = 1;  // that have partial sums each
  std::int64_t block_ = 1;   // rows of a task
  std::int64_t blocks_ = 1;
};

}  // namespace

Proposal propose_patch_weights(const Problem& problem, const DeviceProperties& device) {
  const std::int64_t threads = std::max(device.threads, 1);
  if (const char* const reason = why_no_patches(problem)) return Proposal::decline(reason);
  const Side output = side_of_output(problem);
  const std::int64_t depth = output.lines() * output.taps;
  if (depth == problem.out_channels_per_group() || problem.in_channels_per_group() < kFewestChannels ||
      std::min(output.cells, depth) < kFewestColumns) {
    return Proposal::decline("needs more taps, channels and cells");
  }
  const auto propose = []<typename T>(std::shared_ptr<PatchWeights<T>> kernel) {
    Proposal proposal;
    proposal.workspace_bytes = kernel->workspace_bytes();
    proposal.kernel = std::move(kernel);
    return proposal;
  };
  if (problem.dtype == DType::f64) return propose(std::make_shared<PatchWeights<double>>(problem, threads));
  return propose(std::make_shared<PatchWeights<float>>(problem, threads));
}

}  // namespace tconv::cpu
