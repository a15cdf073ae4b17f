// The kernel of the "columns" family: products with rows of weights as they lie, of whose other operand, D
// (columns.cpp), there is only a tile at a time.
#pragma once

#include <hwy/cache_control.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "cpu/blocking.h"
#include "cpu/column_map.h"
#include "cpu/column_panels.h"
#include "cpu/column_streams.h"
#include "cpu/families.h"
#include "cpu/panels.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"

namespace tconv::cpu {

template <typename E, typename T>
class Columns final : public Kernel {
  static constexpr std::int64_t kDepth = 112;  // of the sums between two visits to memory
  static constexpr std::int64_t kCells = 252;  // of a tile
  static constexpr std::int64_t kMostCells = 3 * kCells;
  static constexpr std::int64_t kSplits = 4;       // of the columns, for grad_input: shorter sums
  static constexpr std::int64_t kChannels = 112;   // the same: whose weights are held at a time
  static constexpr std::size_t kRoomForSums = 16;  // part of input and output that splits may take
  static constexpr std::int64_t kListed = 32;      // rows of taps, forward: no more are listed at a time
  static constexpr std::int64_t kRowsAhead = 4;    // of weights, that are asked for
  // Columns of a tile: more where cells are few, so that weights are read in longer pieces.
  static constexpr std::int64_t kColumns = 256;
  static constexpr std::int64_t kMostColumns = 1024;
  static constexpr std::int64_t kFewestTogether = 128;
  static constexpr std::int64_t kSums = std::int64_t{1} << 17;  // of a tile of gradients of weights, in the L2 cache

  // An odd number of cache lines, so that rows do not fall into the same cache sets.
  static std::int64_t line_of(std::int64_t count) { return round_up(count, 2 * kMostLanes) + kMostLanes; }

  struct Memory {
    Scratch<T> lines;
    Scratch<T> rows;
    Scratch<T> panels;
    Scratch<T> sums;
    Scratch<T> output;
    Scratch<std::int64_t> offsets;
  };

 public:
  // `together`: the columns of a tile, which are those of the whole where this is a piece of it; 0: found here.
  Columns(const Problem& problem, ColumnOrder order, std::int64_t threads, std::int64_t together = 0)
      : problem_(problem), map_(problem, problem.output_strides, order), together_(together) {
    const std::int64_t cells = problem.direction == Direction::grad_weight ? map_.cells() : map_.image_cells();
    const std::int64_t most = problem.direction == Direction::grad_input ? kMostOfDots : kMostStreamed;
    // Images of one cell that are rows of a product come in numbers.
    const bool many = map_.rows_are_images() && problem.direction == Direction::grad_input;
    streams_ = std::is_same_v<E, T> && cells <= most && !many;
    inputs_ = problem.in_channels_per_group();
    const std::int64_t outputs = problem.out_channels_per_group();
    switch (problem.direction) {
      case Direction::forward:
        // Channels that are cut in pieces are cut alike whatever the batch.
        if (together_ == 0) {
          together_ = std::clamp<std::int64_t>(
              kColumns * kCells / (map_.taps() > kColumns ? map_.image_cells() : map_.cells()), kColumns, kMostColumns);
        }
        columns_ = together_;
        // Whole output channels, so that no other task adds to the same outputs.
        if (!map_.rows_are_images()) columns_ = std::max(map_.taps(), together_ / map_.taps() * map_.taps());
        images_ = std::clamp<std::int64_t>(kCells / map_.image_cells(), 1, problem.batch);
        break;
      case Direction::grad_input: {
        if (streams_) {
          rows_ = streams().channels_of_task(threads);
          columns_ = map_.columns();
          break;
        }
        columns_ = ceil_div(map_.columns(), kSplits);
        // Weights are packed for so many cells.
        cells_ = std::clamp(kSums / 2 / std::max<std::int64_t>(inputs_, 1) / kCells * kCells, kCells, kMostCells);
        cells_line_ = round_up(std::min(cells_, map_.cells()), kMostLanes);
        // A task has a split of the columns, and their sums are added up in memory; or, where those take too much of
        // it, some input channels, although D is then packed for each of them (10 to 30% of the time).
        workspace_bytes_ = problem.groups * kSplits * inputs_ * cells_line_ * sizeof(T);
        const std::int64_t tensors = element_count(problem.input_sizes()) + element_count(problem.output_sizes());
        by_rows_ = inputs_ >= kSplits * kChannels && workspace_bytes_ > tensors * size_of(problem.dtype) / kRoomForSums;
        rows_ = by_rows_ ? round_up(ceil_div(inputs_, kSplits), kMostLanes) : inputs_;
        if (by_rows_) workspace_bytes_ = 0;
        break;
      }
      default:
        columns_ = streams_ ? kStreamedBlock
                            : std::clamp(kSums / std::max<std::int64_t>(inputs_, 1), kFewestTogether, kMostColumns);
        break;
    }
    columns_ = std::min(columns_, outputs * map_.taps());
    blocks_ = ceil_div(map_.columns(), columns_);
  }

  std::size_t workspace_bytes() const { return workspace_bytes_; }
  std::int64_t tasks() const { return problem_.groups * blocks_; }
  std::int64_t columns_together() const { return together_; }

  void run(const Buffers& buffers, const Execution& execution) const override {
    switch (problem_.direction) {
      case Direction::forward:
        for_each_task(execution, tasks(), [&](std::int64_t task) { forward(buffers, task); });
        break;
      case Direction::grad_input:
        if constexpr (std::is_same_v<E, T>) {
          if (streams_) return stream_grad_input(buffers, execution);
        }
        for (std::int64_t cell = 0; cell < map_.cells(); cell += cells_) grad_input(buffers, cell, execution);
        break;
      default: for_each_task(execution, tasks(), [&](std::int64_t task) { grad_weight(buffers, task); });
    }
  }

  std::string describe() const override {
    if (streams_) return std::to_string(map_.cells()) + " cells, weights as they lie, " + target_name();
    return std::to_string(map_.cells()) + " cells, " + std::to_string(blocks_) + " blocks of " +
           std::to_string(columns_) + " columns, " + target_name();
  }

 private:
  using TileSize = MathOps<T>::TileSize;

  ColumnStreams<T> streams() const { return {problem_, map_}; }

  const E* input_of(const Buffers& buffers, std::int64_t group, std::int64_t channel) const {
    return static_cast<const E*>(buffers.input) + (group * inputs_ + channel) * problem_.input_strides[1];
  }
  E* weight_of(const Buffers& buffers, std::int64_t group, std::int64_t channel) const {
    return static_cast<E*>(buffers.weight) + (group * inputs_ + channel) * problem_.weight_strides[0];
  }
  E* output_of(const Buffers& buffers, std::int64_t group) const {
    return static_cast<E*>(buffers.output) + group * problem_.out_channels_per_group() * problem_.output_strides[1];
  }

  // A block of columns.
  void forward(const Buffers& buffers, std::int64_t task) const {
    thread_local Memory memory;
    const std::int64_t group = task / blocks_;
    const std::int64_t begin = task % blocks_ * columns_;
    const std::int64_t end = std::min(begin + columns_, map_.columns());
    const std::int64_t first_channel = begin / map_.taps();
    const std::int64_t channels = (end - begin) / map_.taps();
    Sizes sizes = problem_.output_sizes();
    sizes[1] = channels;
    sizes[0] = images_;
    const Strides strides = contiguous_strides(sizes);
    const ColumnMap local(problem_, strides);
    T* const output = memory.output.get(element_count(sizes));
    for (std::int64_t image = 0; image < problem_.batch; image += images_) {
      sizes[0] = std::min(images_, problem_.batch - image);
      if (!map_.rows_are_images()) std::fill_n(output, element_count(sizes), T{0});
      // Columns first: what an output adds up, and when, depends neither on where tiles of cells end nor on how many
      // cells there are.
      const std::int64_t last = (image + sizes[0]) * map_.image_cells();
      for (std::int64_t column = begin; column < end; column += together_) {
        const std::int64_t count = std::min(together_, end - column);
        for (std::int64_t cell = image * map_.image_cells(); cell < last; cell += kCells) {
          const std::int64_t cells = std::min(kCells, last - cell);
          const T* const tile = multiply_input(buffers, group, cell, cells, column, count, memory);
          if (map_.rows_are_images()) {
            store_rows(buffers, group, cell, cells, column, count, tile);
            continue;
          }
          // Whole channels: which rows are added first does not depend on where lists end.
          const std::int64_t listed =
              std::max<std::int64_t>(kListed * problem_.axes[2].kernel / map_.taps(), 1) * map_.taps();
          for (std::int64_t first = column - begin; first < column - begin + count; first += listed) {
            const auto& rows = local.rows(first, std::min(first + listed, column - begin + count));
            for (std::int64_t i = 0; i < cells; ++i) {
              const T* const from = tile + i * line_of(count) - (column - begin);
              local.for_each_piece(local.cell_at(cell + i - image * map_.image_cells()), rows,
                                   [&](std::int64_t j, std::int64_t length, std::int64_t place) {
                                     add_to(output + place, local.step(), length, from + j);
                                   });
            }
          }
        }
      }
      if (!map_.rows_are_images()) store_output(buffers, group, first_channel, image, sizes, strides, output);
    }
  }

  // Rows of D that are images as they are: some columns of some of them.
  void store_rows(const Buffers& buffers, std::int64_t group, std::int64_t first_cell, std::int64_t cells,
                  std::int64_t column, std::int64_t columns, const T* tile) const {
    E* const to = output_of(buffers, group) + first_cell * problem_.output_strides[0];
    const std::int64_t piece = problem_.bias ? map_.taps() : map_.columns();  // with one bias
    for (std::int64_t j = 0; j < columns;) {
      const std::int64_t count = std::min(piece - (column + j) % piece, columns - j);
      T bias = 0;
      if (problem_.bias) {
        const std::int64_t channel = group * problem_.out_channels_per_group() + (column + j) / map_.taps();
        element_ops<E, T>().load(static_cast<const E*>(buffers.bias) + channel, 1, &bias, 1, 1);
      }
      for (std::int64_t i = 0; i < cells; ++i) {
        element_ops<E, T>().store(tile + i * line_of(columns) + j, 1, to + i * problem_.output_strides[0] + column + j,
                                  1, count, bias);
      }
      j += count;
    }
  }

  static void ask_for(const E* from, std::int64_t count) {
    constexpr std::int64_t kLine = 64 / sizeof(E);
    for (std::int64_t i = 0; i < count; i += kLine) hwy::Prefetch(from + i);
  }

  static void add_to(T* to, std::int64_t step, std::int64_t count, const T* from) {
    if (step == 1) {
      for (std::int64_t t = 0; t < count; ++t) to[t] += from[t];
    } else {
      for (std::int64_t t = 0; t < count; ++t) to[t * step] += from[t];
    }
  }

  // D[cell][column], rows of line_of(columns).
  const T* multiply_input(const Buffers& buffers, std::int64_t group, std::int64_t cell, std::int64_t cells,
                          std::int64_t column, std::int64_t columns, Memory& memory) const {
    if constexpr (std::is_same_v<E, T>) {
      if (streams_ && cells <= kMostStreamed) {
        return streams().products(input_of(buffers, group, 0), weight_of(buffers, group, 0) + column, cell, cells,
                                  columns, line_of(columns));
      }
    }
    const MathOps<T>& math = math_ops<T>();
    const TileSize size = math.tile_for(cells, columns);
    const std::int64_t panel = size.vectors * math.lanes;
    const std::int64_t line = line_of(cells);
    T* const lines = memory.lines.get(kDepth * line + kRowSlack);
    const RowPanels row_panels(math, size.rows);
    T* const packed = memory.rows.get(row_panels.size(cells, kDepth));
    T* const panels = memory.panels.get(kDepth * round_up(columns, kMostLanes));
    std::int64_t* const offsets = memory.offsets.get(kDepth);
    Multiply<T> job;
    job.a = packed;
    job.c_step = line_of(columns);
    job.c = memory.sums.get(cells * job.c_step);
    for (std::int64_t k = 0; k < kDepth; ++k) offsets[k] = k * line;
    for (std::int64_t channel = 0; channel < inputs_; channel += kDepth) {
      job.depth = std::min(kDepth, inputs_ - channel);
      load_cells(problem_, input_of(buffers, group, channel), job.depth, cell, cells, line, lines);
      pack_rows(math, row_panels, cells, lines, offsets, job.depth, packed);
      const E* const weight = weight_of(buffers, group, channel) + column;
      // Row by row: they are far apart in memory.
      for (std::int64_t k = 0; k < job.depth; ++k) {
        for (std::int64_t n = 0; n < columns; n += panel) {
          const std::int64_t width = panel_width(math, panel, columns, n);
          const std::int64_t count = std::min(width, columns - n);
          T* const row = panels + n * job.depth + k * width;
          const E* const from = weight + k * problem_.weight_strides[0] + n;
          if (channel + k + kRowsAhead < inputs_) ask_for(from + kRowsAhead * problem_.weight_strides[0], count);
          element_ops<E, T>().load(from, 1, row, 1, count);
          std::fill(row + count, row + width, T{0});
        }
      }
      multiply_panels(math, size, cells, columns, {panels, job.depth}, job);
      job.accumulate = true;
    }
    return job.c;
  }

  void store_output(const Buffers& buffers, std::int64_t group, std::int64_t first_channel, std::int64_t first_image,
                    const Sizes& sizes, const Strides& from_strides, const T* from) const {
    const Strides& strides = problem_.output_strides;
    const std::int64_t bias_channel = group * problem_.out_channels_per_group() + first_channel;
    E* const to = output_of(buffers, group) + first_image * strides[0] + first_channel * strides[1];
    for (std::int64_t image = 0; image < sizes[0]; ++image) {
      for (std::int64_t channel = 0; channel < sizes[1]; ++channel) {
        T bias = 0;
        if (problem_.bias) {
          element_ops<E, T>().load(static_cast<const E*>(buffers.bias) + bias_channel + channel, 1, &bias, 1, 1);
        }
        for (std::int64_t d = 0; d < sizes[2]; ++d) {
          for (std::int64_t h = 0; h < sizes[3]; ++h) {
            element_ops<E, T>().store(
                from + image * from_strides[0] + channel * from_strides[1] + d * from_strides[2] + h * from_strides[3],
                1, to + image * strides[0] + channel * strides[1] + d * strides[2] + h * strides[3], strides[4],
                sizes[4], bias);
          }
        }
      }
    }
  }

  void grad_input(const Buffers& buffers, std::int64_t cell, const Execution& execution) const {
    const std::int64_t cells = std::min(cells_, map_.cells() - cell);
    if (!by_rows_) return grad_input_by_splits(buffers, cell, cells, execution);
    const std::int64_t tasks = ceil_div(inputs_, rows_);
    for_each_task(execution, problem_.groups * tasks, [&](std::int64_t task) {
      thread_local Memory memory;
      const std::int64_t group = task / tasks;
      const std::int64_t first = task % tasks * rows_;
      const std::int64_t channels = std::min(rows_, inputs_ - first);
      const std::int64_t size = channels * cells_line_;
      T* const sums = memory.sums.get(2 * size);
      for (std::int64_t block = 0; block < blocks_; ++block) {
        T* const own = block == 0 ? sums : sums + size;
        multiply_weight(buffers, group, block, cell, cells, first, channels, own, memory);
        for (std::int64_t i = 0; i < size && block > 0; ++i) sums[i] += own[i];
      }
      store_sums(buffers, group, first, channels, cell, cells, sums);
    });
  }

  void stream_grad_input(const Buffers& buffers, const Execution& execution) const {
    const std::int64_t tasks = ceil_div(inputs_, rows_);
    for_each_task(execution, problem_.groups * tasks, [&](std::int64_t task) {
      const std::int64_t group = task / tasks;
      const std::int64_t first = task % tasks * rows_;
      streams().grad_input(output_of(buffers, group), weight_of(buffers, group, first),
                           std::min(rows_, inputs_ - first),
                           static_cast<E*>(buffers.input) + (group * inputs_ + first) * problem_.input_strides[1]);
    });
  }

  void grad_input_by_splits(const Buffers& buffers, std::int64_t cell, std::int64_t cells,
                            const Execution& execution) const {
    T* const parts = static_cast<T*>(buffers.workspace);
    for_each_task(execution, problem_.groups * blocks_, [&](std::int64_t task) {
      thread_local Memory memory;
      multiply_weight(buffers, task / blocks_, task % blocks_, cell, cells, 0, inputs_,
                      parts + task * inputs_ * cells_line_, memory);
    });
    // The splits are added in order.
    for_each_task(execution, problem_.groups * ceil_div(inputs_, kMostLanes), [&](std::int64_t task) {
      const std::int64_t group = task / ceil_div(inputs_, kMostLanes);
      const std::int64_t first = task % ceil_div(inputs_, kMostLanes) * kMostLanes;
      const std::int64_t channels = std::min(kMostLanes, inputs_ - first);
      T* const sums = parts + (group * blocks_ * inputs_ + first) * cells_line_;
      for (std::int64_t split = 1; split < blocks_; ++split) {
        const T* const more = sums + split * inputs_ * cells_line_;
        for (std::int64_t i = 0; i < channels * cells_line_; ++i) sums[i] += more[i];
      }
      store_sums(buffers, group, first, channels, cell, cells, sums);
    });
  }

  void store_sums(const Buffers& buffers, std::int64_t group, std::int64_t first, std::int64_t channels,
                  std::int64_t cell, std::int64_t cells, const T* sums) const {
    store_cells(problem_, sums, channels, cell, cells, cells_line_,
                static_cast<E*>(buffers.input) + (group * inputs_ + first) * problem_.input_strides[1]);
  }

  // sums[channel][cell] of some channels over one block of columns
  void multiply_weight(const Buffers& buffers, std::int64_t group, std::int64_t block, std::int64_t cell,
                       std::int64_t cells, std::int64_t first_channel, std::int64_t all_channels, T* sums,
                       Memory& memory) const {
    const MathOps<T>& math = math_ops<T>();
    const TileSize size = math.tile_for(all_channels, cells);
    const std::int64_t panel = size.vectors * math.lanes;
    const RowPanels row_panels(math, size.rows);
    T* const packed = memory.rows.get(row_panels.size(kChannels, kDepth));
    T* const panels = memory.panels.get(kDepth * round_up(cells, kMostLanes));
    const E* const grad = output_of(buffers, group);
    const std::int64_t end = std::min((block + 1) * columns_, map_.columns());
    Multiply<T> job;
    job.a = packed;
    job.c_step = cells_line_;
    for (std::int64_t column = block * columns_; column < end; column += kDepth) {
      job.depth = std::min(kDepth, end - column);
      pack_panels_of_cells(map_, grad, cell, cells, {column, job.depth}, panel, panels);
      for (std::int64_t channel = 0; channel < all_channels; channel += kChannels) {
        const std::int64_t channels = std::min(kChannels, all_channels - channel);
        const E* const weight = weight_of(buffers, group, first_channel + channel) + column;
        pack_lines(row_panels, channels, weight, problem_.weight_strides[0], job.depth, packed);
        job.c = sums + channel * cells_line_;
        multiply_panels(math, size, channels, cells, {panels, job.depth}, job);
      }
      job.accumulate = true;
    }
  }

  void grad_weight(const Buffers& buffers, std::int64_t task) const {
    thread_local Memory memory;
    if constexpr (std::is_same_v<E, T>) {
      if (streams_) {
        const std::int64_t first = task % blocks_ * columns_;
        return streams().grad_weight(input_of(buffers, task / blocks_, 0), output_of(buffers, task / blocks_), first,
                                     std::min(columns_, map_.columns() - first), weight_of(buffers, task / blocks_, 0));
      }
    }
    const MathOps<T>& math = math_ops<T>();
    const std::int64_t group = task / blocks_;
    const std::int64_t column = task % blocks_ * columns_;
    const std::int64_t columns = std::min(columns_, map_.columns() - column);
    const TileSize size = math.tile_for(inputs_, columns);
    const std::int64_t panel = size.vectors * math.lanes;
    const std::int64_t line = line_of(kDepth);
    T* const lines = memory.lines.get(inputs_ * line);
    const RowPanels row_panels(math, size.rows);
    T* const packed = memory.rows.get(row_panels.size(inputs_, kDepth));
    T* const panels = memory.panels.get(kDepth * round_up(columns, kMostLanes));
    const E* const grad = output_of(buffers, group);
    Multiply<T> job;
    job.a = packed;
    job.c_step = line_of(columns);
    job.c = memory.sums.get(inputs_ * job.c_step);
    for (std::int64_t cell = 0; cell < map_.cells(); cell += kDepth) {
      job.depth = std::min(kDepth, map_.cells() - cell);
      load_cells(problem_, input_of(buffers, group, 0), inputs_, cell, job.depth, line, lines);
      pack_lines(row_panels, inputs_, lines, line, job.depth, packed);
      pack_panels_of_columns(map_, grad, cell, job.depth, {column, columns}, panel, panels);
      multiply_panels(math, size, inputs_, columns, {panels, job.depth}, job);
      job.accumulate = true;
    }
    for (std::int64_t c = 0; c < inputs_; ++c) {
      element_ops<E, T>().store(job.c + c * job.c_step, 1, weight_of(buffers, group, c) + column, 1, columns, T{0});
    }
  }

  Problem problem_;
  ColumnMap map_;
  std::int64_t inputs_ = 0;
  std::int64_t together_ = 0;  // forward: columns of a tile
  std::int64_t columns_ = 0;   // of a block
  std::int64_t blocks_ = 0;
  std::int64_t images_ = 1;      // forward: added up at a time
  std::int64_t cells_ = kCells;  // grad_input: of a tile
  std::int64_t cells_line_ = 0;  // the same, in whole vectors
  std::int64_t rows_ = 0;        // input channels of a task
  bool by_rows_ = false;
  bool streams_ = false;  // few cells: weights are read, or written, as they lie
  std::size_t workspace_bytes_ = 0;
};

}  // namespace tconv::cpu
