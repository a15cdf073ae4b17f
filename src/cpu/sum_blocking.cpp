#include "cpu/sum_blocking.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "cpu/blocking.h"
#include "cpu/windows.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kMostSums = std::int64_t{1} << 17;  // elements of one block of results
// Elements of a packed operand. Where no tap reads the cells around, there is no reason to leave the L2 cache.
constexpr std::int64_t kMostPacked = std::int64_t{1} << 17;
constexpr std::int64_t kMostPackedAlone = std::int64_t{1} << 15;
constexpr std::int64_t kFewestTasks = 4;           // for which tiles, or blocks of input channels, are cut
constexpr std::int64_t kRows = 16;                 // output channels are cut at multiples of this
constexpr std::int64_t kMostOutputs = 16 * kRows;  // of a block
constexpr std::int64_t kFewestInputs = 32;         // of a block where taps are rows
constexpr std::int64_t kFewestCells = 128;         // of a tile
constexpr std::int64_t kFewInputs = 12;            // fewer input channels than this: dot products
constexpr std::int64_t kMostStacked = 64;          // output channels of groups that are stacked

}  // namespace

SumBlocking choose_sum_blocking(const Problem& problem) {
  std::int64_t taps = 1;
  for (const Axis& axis : problem.axes) taps *= axis.kernel;
  SumBlocking blocking;
  blocking.group_inputs = problem.in_channels_per_group();
  blocking.group_outputs = problem.out_channels_per_group();
  const bool side_by_side = problem.input_strides[1] == 1 && problem.output_strides[1] == 1;
  // Those that fill a vector are multiplied by pairs.
  const bool in_pairs = problem.dtype == DType::bf16 && has_bf16_products() && blocking.group_inputs >= kMostLanes;
  if (side_by_side && !in_pairs && blocking.group_inputs <= kSmallGroup) {
    blocking.interleaved = problem.dtype == DType::f64 ? kMostInterleaved<double> : kMostInterleaved<float>;
    while (problem.groups % blocking.interleaved != 0) blocking.interleaved /= 2;
    // Dot products of lines are faster than few columns.
    const bool converts = size_of(problem.dtype) < sizeof(float);
    const bool few = blocking.group_inputs < kFewInputs && blocking.group_inputs * blocking.interleaved < kFewColumns;
    if (few && !converts && blocking.group_outputs <= kMostStacked) {
      blocking.interleaved = 1;
      blocking.stacked = stack_of(std::min(blocking.group_inputs, blocking.group_outputs), problem.groups);
    }
  }
  blocking.groups = problem.groups / blocking.interleaved;
  blocking.group_inputs *= blocking.interleaved;
  const std::int64_t inputs = std::max<std::int64_t>(blocking.group_inputs, 1);
  const std::int64_t outputs = std::max<std::int64_t>(blocking.group_outputs, 1);
  blocking.along_inputs = inputs >= kFewInputs || blocking.interleaved > 1;
  blocking.taps_are_rows = blocking.along_inputs && blocking.interleaved == 1 && outputs < kFewOutputs && taps > 1;
  const std::int64_t fewest_inputs = blocking.along_inputs ? 16 : 1;
  const auto even = [](std::int64_t all, std::int64_t most, std::int64_t unit) {
    return round_up(ceil_div(all, ceil_div(all, most)), unit);
  };
  blocking.inputs = std::clamp<std::int64_t>(kMostSums / (taps * kRows) / 16 * 16, fewest_inputs, 256);
  blocking.inputs = even(inputs, blocking.inputs, fewest_inputs);
  blocking.input_blocks = ceil_div(inputs, blocking.inputs);
  const std::int64_t most = std::clamp<std::int64_t>(kMostSums / (taps * blocking.inputs), kRows, kMostOutputs);
  blocking.outputs = even(outputs, most / kRows * kRows, kRows);
  blocking.output_blocks = ceil_div(outputs, blocking.outputs);
  // Groups of several blocks are summed by themselves; without room for partial sums groups are the tasks.
  if (blocking.input_blocks * blocking.output_blocks > 1) blocking.stacked = 1;
  if (2 * taps * blocking.elements() > room_for_partials(problem)) {
    blocking.stacked = std::min(blocking.stacked, ceil_div(blocking.groups, kFewestTasks));
  }
  const std::int64_t widest =
      std::max(std::min(blocking.inputs, inputs), std::min(blocking.outputs, outputs) * blocking.interleaved) *
      blocking.stacked;
  const bool alone = std::ranges::all_of(problem.axes, [](const Axis& axis) { return axis.kernel <= axis.stride; });
  // Of interleaved groups, all phases of a row are packed together.
  const bool small = alone || blocking.interleaved > 1;
  blocking.cells = std::clamp<std::int64_t>((small ? kMostPackedAlone : kMostPacked) / widest, kFewestCells, 2048);
  std::int64_t cells = problem.batch;
  for (const Axis& axis : problem.axes) cells *= axis.input;
  // Of few blocks, few tiles are as many as splits can share evenly.
  const auto tiles = static_cast<std::uint64_t>(ceil_div(cells, blocking.cells));
  if (blocking.tasks_of_split() < kFewestTasks && tiles < kSumTasksWanted &&
      room_for_partials(problem) >= 2 * taps * blocking.elements()) {
    const auto even_tiles = static_cast<std::int64_t>(std::bit_ceil(std::max<std::uint64_t>(tiles, 2)));
    blocking.cells = std::max(ceil_div(cells, even_tiles), kFewestCells);
  }
  if (blocking.taps_are_rows) {
    // Where there is no room for partial sums, blocks of input channels are the tasks.
    const bool one_split = room_for_partials(problem) < 2 * taps * outputs * blocking.inputs;
    const std::int64_t wanted = std::max(ceil_div(cells, one_split ? kFewestTasks : kSumTasksWanted), kFewestCells);
    const auto of_window = cells_of_window(problem, std::min(blocking.cells, wanted), kMostPacked);
    blocking.taps_are_rows = of_window.has_value();
    if (of_window) {
      blocking.cells = *of_window;
      blocking.outputs = outputs;
      if (one_split && cells > kFewestCells && inputs > kFewestInputs) {
        blocking.inputs = kFewestInputs;
        blocking.input_blocks = ceil_div(inputs, kFewestInputs);
      }
    }
  }
  return blocking;
}

}  // namespace tconv::cpu
