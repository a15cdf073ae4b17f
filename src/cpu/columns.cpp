// The "columns" family: few input cells and many weights, or very long kernels. There the weights are what costs, and
// they are best read as they lie: row ci of the weight is a run of columns j = (co, tap), and with the input cells i
// and D[i][j] for what lies at (co, i s - p + k d) of the output,
//   forward:      D[i][j] = sum over ci of  input[ci][i] weight[ci][j],  added up into the output
//   grad_input:   grad_input[ci][i] = sum over j of  weight[ci][j] D[i][j]
//   grad_weight:  grad_weight[ci][j] = sum over i of  input[ci][i] D[i][j]
// are matrix products; of D there is only a tile at a time. What is taken forward depends on the layer and one sample,
// never on the batch, and all sums run in an order that depends on the layer alone.
#include <algorithm>
#include <vector>

#include "cpu/blocking.h"
#include "cpu/column_map.h"
#include "cpu/columns_kernel.h"
#include "cpu/columns_last.h"
#include "cpu/families.h"
#include "cpu/pair_weight.h"
#include "cpu/phases_kernels.h"
#include "cpu/pieces.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kMostImageCells = 8;  // of one sample; more have enough to do for packed weights
// The same where weights do not stay in any cache: packed ones go to memory and back.
constexpr std::int64_t kManyWeights = std::int64_t{1} << 22;  // elements
constexpr std::int64_t kMostCellsOfMany = 64;
constexpr std::int64_t kTapsOfLine = 16;    // that lie in one cache line
constexpr double kUsedOfManyCells = 0.7;    // of pairs of cells and taps, channels-last: others take weights as well
constexpr std::int64_t kMostOfPairs = 32;   // cells, of grad_weight: more are multiplied faster by pairs of bfloat16
constexpr std::int64_t kLongKernel = 64;    // taps along a row
constexpr std::int64_t kShortestRow = 3;    // taps; D is put together from pieces of this size
constexpr std::int64_t kFewestInputs = 32;  // channels of a group
constexpr std::int64_t kManyInputs = 512;
constexpr std::int64_t kFewestColumns = 256;
constexpr std::int64_t kTasksOfThread = 1;
constexpr std::int64_t kPieceCells = 64;  // of a row that are worth a task of their own

// The share of all pairs of cells and taps that reach the output.
double used_share(const Problem& problem) {
  double share = 1;
  for (const Axis& axis : problem.axes) {
    std::int64_t used = 0;
    for (std::int64_t i = 0; i < axis.input; ++i) {
      const std::int64_t first = i * axis.stride - axis.pad_begin;
      const std::int64_t low = first >= 0 ? 0 : ceil_div(-first, axis.dilation);
      const std::int64_t high = std::max<std::int64_t>(axis.output() - first + axis.dilation - 1, 0) / axis.dilation;
      used += std::max<std::int64_t>(std::min(high, axis.kernel) - low, 0);
    }
    share *= static_cast<double>(used) / static_cast<double>(std::max<std::int64_t>(axis.input * axis.kernel, 1));
  }
  return share;
}

// Images of one cell whose outputs lie in the order of their weights are rows of one product: a layer of one output
// channel with a kernel as long as all of them.
Problem in_one_row(const Problem& problem) {
  if (problem.groups != 1 || problem.bias) return problem;
  Problem product = problem;
  std::int64_t columns = problem.out_channels;
  std::int64_t last = (problem.out_channels - 1) * problem.weight_strides[1];
  bool same = problem.out_channels == 1 || problem.weight_strides[1] == problem.output_strides[1];
  for (int a = 0; a < kSpatialAxes; ++a) {
    const Axis& axis = problem.axes[a];
    const std::int64_t step = problem.weight_strides[2 + a];
    same = same && axis.input == 1 && axis.output() == axis.kernel && axis.pad_begin == 0;
    same = same && (axis.kernel == 1 || (axis.dilation == 1 && step == problem.output_strides[2 + a] && step > 0));
    last += (axis.kernel - 1) * step;
    columns *= axis.kernel;
    product.axes[a] = Axis{};
  }
  if (!same || last + 1 != columns) return problem;
  product.out_channels = 1;
  product.axes[2].kernel = columns;
  for (std::size_t d = 1; d < product.weight_strides.size(); ++d) {
    product.weight_strides[d] = product.output_strides[d] = 1;
  }
  return product;
}

bool rows_are_dense(const Problem& problem) {
  std::int64_t step = 1;
  for (int a = kSpatialAxes - 1; a >= 0; --a) {
    if (problem.axes[a].kernel > 1 && problem.weight_strides[2 + a] != step) return false;
    step *= problem.axes[a].kernel;
  }
  return problem.out_channels_per_group() == 1 || problem.weight_strides[1] == step;
}

}  // namespace

Proposal propose_columns(const Problem& layer, const DeviceProperties& device) {
  const Problem problem = in_one_row(layer);
  if (problem.direction == Direction::grad_bias) return Proposal::decline("has no weights to read");
  const bool channels_inside = has_columns_last(problem);
  const bool last = channels_inside && problem.direction == Direction::forward;
  if (!channels_inside && !rows_are_dense(problem)) {
    return Proposal::decline("needs the taps of an input channel in one piece");
  }
  if (element_count(problem.input_sizes()) == 0 || element_count(problem.output_sizes()) == 0) {
    return Proposal::decline("needs at least one element");
  }
  const ColumnOrder order = channels_inside ? ColumnOrder::channels_inside : ColumnOrder::taps_inside;
  const ColumnMap map(problem, problem.output_strides, order);
  if (!channels_inside && problem.axes[2].kernel < kShortestRow && !map.rows_are_images()) {
    return Proposal::decline("needs at least " + std::to_string(kShortestRow) + " taps in a row, got " +
                             std::to_string(problem.axes[2].kernel));
  }
  if (problem.in_channels_per_group() < kFewestInputs || map.columns() < kFewestColumns) {
    return Proposal::decline("needs at least " + std::to_string(kFewestInputs) + " input channels and " +
                             std::to_string(kFewestColumns) + " weights of each, got " +
                             std::to_string(problem.in_channels_per_group()) + " and " + std::to_string(map.columns()));
  }
  // Of a long kernel D is whole rows; otherwise it is put together from short pieces, which many input channels pay
  // for. What is taken forward may not depend on the batch.
  const std::int64_t inputs = problem.in_channels_per_group();
  const bool streams = !last && (problem.dtype == DType::f32 || problem.dtype == DType::f64);
  const std::int64_t most_cells =
      element_count(problem.weight_sizes()) > kManyWeights ? kMostCellsOfMany : kMostImageCells;
  bool few = false;
  switch (problem.direction) {
    case Direction::forward:
      few = inputs >= kManyInputs && (map.image_cells() > 1 || streams) && map.image_cells() <= most_cells;
      break;
    case Direction::grad_input: few = streams && inputs >= kManyInputs && map.cells() <= kMostOfDots; break;
    default: few = inputs >= kManyInputs / 2 && map.cells() <= (sums_pairs(layer) ? kMostOfPairs : kMostStreamed);
  }
  if (!few && (channels_inside || (!map.rows_are_images() && problem.axes[2].kernel < kLongKernel))) {
    return Proposal::decline("needs few input cells of many channels or at least " + std::to_string(kLongKernel) +
                             " taps in a row, got " + std::to_string(map.image_cells()) + " cells of " +
                             std::to_string(inputs) + " channels and " + std::to_string(problem.axes[2].kernel) +
                             " taps");
  }
  const double used = used_share(problem);
  // Taps that are not used lie in the same cache lines as those that are.
  const bool free =
      streams && !channels_inside && few && map.image_cells() <= kMostImageCells && map.taps() <= kTapsOfLine;
  if (used < 0.5 && !free) return Proposal::decline("most taps fall outside of the output");
  if (last && map.image_cells() > kMostImageCells && used < kUsedOfManyCells) {
    return Proposal::decline("many taps fall outside of the output");
  }
  if (last) return propose_columns_last(problem);
  return with_types(problem.dtype, [&]<typename E, typename T> {
    Proposal proposal;
    const auto kernel = std::make_shared<Columns<E, T>>(problem, order, std::max(device.threads, 1));
    proposal.workspace_bytes = kernel->workspace_bytes();
    proposal.kernel = kernel;
    // A task has whole output channels: of few of them, some images and pieces of rows each.
    const std::int64_t wanted = ceil_div(kTasksOfThread * device.threads, kernel->tasks());
    if (problem.direction != Direction::forward || device.threads <= 1 || wanted <= 1) return proposal;
    const std::int64_t around =
        ceil_div(problem.axes[2].dilation * (problem.axes[2].kernel - 1), problem.axes[2].stride);
    std::vector<Pieces::Piece> pieces;
    for (const PieceOfProblem& piece : pieces_of(problem, wanted, std::max(kPieceCells, kPieceCells / 8 * around))) {
      const auto size = static_cast<std::int64_t>(size_of(problem.dtype));
      pieces.push_back({std::make_shared<Columns<E, T>>(piece.problem, order, 1, kernel->columns_together()),
                        piece.input * size, piece.output * size});
    }
    if (pieces.size() > 1) proposal.kernel = std::make_shared<Pieces>(std::move(pieces));
    return proposal;
  });
}

}  // namespace tconv::cpu
