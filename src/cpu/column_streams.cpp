#include "cpu/column_streams.h"

#include <hwy/cache_control.h>

#include <algorithm>

#include "cpu/blocking.h"
#include "cpu/column_panels.h"
#include "cpu/column_rows_simd.h"
#include "cpu/panels.h"
#include "cpu/past_caches.h"

namespace tconv::cpu {
namespace {

// Elements of D, and columns, that are multiplied at a time: they stay in the L1 cache.
constexpr std::int64_t kElements = 8192;
constexpr std::int64_t kShortestRun = 256;
constexpr std::int64_t kLongestRun = 2048;
constexpr std::int64_t kTasksOfThread = 2;
constexpr std::int64_t kMostSums = 4096;  // of a task of grad_input: vectors
constexpr std::int64_t kTilesOfRows = 4;  // grad_weight: register tiles whose rows are written at a time

std::int64_t run_of(std::int64_t cells) {
  return std::clamp(kElements / cells / kMostLanes * kMostLanes, kShortestRun, kLongestRun);
}

template <typename T>
struct Memory {
  Scratch<T> input;
  Scratch<T> grad;
  Scratch<T> sums;
  Scratch<T> results;
};

template <typename T>
Memory<T>& memory_of_thread() {
  thread_local Memory<T> memory;
  return memory;
}

}  // namespace

template <typename T>
const T* ColumnStreams<T>::products(const T* input, const T* weight, std::int64_t first_cell, std::int64_t cells,
                                    std::int64_t columns, std::int64_t row_size) const {
  Memory<T>& memory = memory_of_thread<T>();
  const std::int64_t channels = problem_.in_channels_per_group();
  T* const packed = memory.input.get(round_up(channels, kRowsTogether) * cells);
  const auto pack = [&](std::int64_t first, std::int64_t count, std::int64_t place, std::int64_t step) {
    for (std::int64_t k = 0; k < channels; ++k) {
      const T* const from = input + k * problem_.input_strides[1] + place;
      for (std::int64_t i = 0; i < count; ++i) packed[place_in_rows(k, first + i, cells)] = from[i * step];
    }
  };
  for_each_cell_piece(problem_, first_cell, cells, pack);
  T* const sums = memory.sums.get(cells * row_size);
  std::fill_n(sums, cells * row_size, T{0});
  AddRows<T> job;
  job.a = packed;
  job.cells = cells;
  job.w_step = problem_.weight_strides[0];
  job.depth = channels;
  job.d_step = row_size;
  const std::int64_t run = run_of(cells);
  for (std::int64_t n = 0; n < columns; n += run) {
    job.columns = std::min(run, columns - n);
    job.w = weight + n;
    job.d = sums + n;
    add_rows(job);
  }
  return sums;
}

template <typename T>
std::int64_t ColumnStreams<T>::cells_of_dots() const {
  return std::min(kMostOfDots, map_.cells());
}

template <typename T>
std::int64_t ColumnStreams<T>::channels_of_task(std::int64_t threads) const {
  const std::int64_t channels = problem_.in_channels_per_group();
  const std::int64_t most = std::min(ceil_div(channels, kTasksOfThread * threads), kMostSums / cells_of_dots());
  return round_up(even_parts(channels, most), kRowsTogether);
}

template <typename T>
void ColumnStreams<T>::grad_input(const T* grad_output, const T* weight, std::int64_t channels, T* grad_input) const {
  Memory<T>& memory = memory_of_thread<T>();
  const std::int64_t lanes = math_ops<T>().lanes;
  const std::int64_t most = cells_of_dots();
  const std::int64_t run = run_of(most);
  DotRows<T> job;
  job.w_step = problem_.weight_strides[0];
  job.rows = channels;
  job.g_step = run + kMostLanes;  // an odd number of cache lines
  T* const packed = memory.grad.get(most * job.g_step);
  job.g = packed;
  job.sums = memory.sums.get(channels * most * lanes);
  T* const results = memory.results.get(channels * most);
  for (std::int64_t cell = 0; cell < map_.cells(); cell += most) {
    job.cells = std::min(most, map_.cells() - cell);
    const std::int64_t count = channels * job.cells;
    std::fill_n(job.sums, count * lanes, T{0});
    for (std::int64_t column = 0; column < map_.columns(); column += run) {
      job.columns = std::min(run, map_.columns() - column);
      pack_rows_of_columns(map_, grad_output, cell, job.cells, {column, job.columns}, job.g_step, packed);
      job.w = weight + column;
      dot_rows(job);
    }
    sum_lanes(job.sums, count, results);
    store_cells(problem_, results, channels, cell, job.cells, job.cells, grad_input);
  }
}

template <typename T>
void ColumnStreams<T>::grad_weight(const T* input, const T* grad_output, std::int64_t first, std::int64_t columns,
                                   T* weight) const {
  Memory<T>& memory = memory_of_thread<T>();
  const MathOps<T>& math = math_ops<T>();
  const std::int64_t cells = map_.cells();
  const std::int64_t channels = problem_.in_channels_per_group();
  const std::int64_t step = problem_.weight_strides[0];
  const std::int64_t whole = columns / math.lanes * math.lanes;  // columns that fill vectors, and are written in place
  const auto size = math.tile_for_cells(channels, columns);
  const std::int64_t line = round_up(cells, 2 * kMostLanes) + kMostLanes;  // an odd number of cache lines
  T* const lines = memory.input.get(channels * line);
  load_cells(problem_, input, channels, 0, cells, line, lines);
  T* const panels = memory.grad.get(cells * round_up(columns, kMostLanes));
  pack_panels_of_columns(map_, grad_output, 0, cells, {first, whole}, size.vectors * math.lanes, panels);
  const std::int64_t zero = 0;
  MultiplyCells<T> job;
  job.offsets = &zero;
  job.places = &zero;
  job.parts = 1;
  job.depth = cells;
  T* const to = weight + first;
  const auto begins_line = [](const T* at) { return reinterpret_cast<std::uintptr_t>(at) % 64 == 0; };
  const bool whole_lines = begins_line(to) && begins_line(to + step) && math.lanes * sizeof(T) == 64;
  job.past_caches = whole_lines && exceeds_caches(problem_.weight_sizes(), sizeof(T));
  // A few rows at a time, so that all columns of one are written soon after each other.
  const std::int64_t together = kTilesOfRows * size.rows;
  for (std::int64_t row = 0; row < channels; row += together) {
    CellList rows;
    rows.add(0, line, 0, step, std::min(together, channels - row));
    job.a = lines + row * line;
    job.c = to + row * step;
    rows.multiply(math, size, whole, {panels, cells}, job);
  }
  if (job.past_caches) hwy::FlushStream();  // before another thread reads them
  if (whole == columns) return;
  pack_panels_of_columns(map_, grad_output, 0, cells, {first + whole, columns - whole}, math.lanes, panels);
  CellList rows;
  rows.add(0, line, 0, math.lanes, channels);
  job.a = lines;
  job.c = memory.sums.get(channels * math.lanes);
  job.past_caches = false;
  rows.multiply(math, {size.rows, 1}, columns - whole, {panels, cells}, job);
  for (std::int64_t c = 0; c < channels; ++c) {
    std::copy_n(job.c + c * math.lanes, columns - whole, to + c * step + whole);
  }
}

template class ColumnStreams<float>;
template class ColumnStreams<double>;

}  // namespace tconv::cpu
