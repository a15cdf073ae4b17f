#include "cuda/direct_depthwise_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda/direct_axis.h"

namespace tconv::cuda {
namespace {

constexpr std::int64_t kInt = std::numeric_limits<std::int32_t>::max();
constexpr int kMostWeights = 64;  // held by a thread, in 32-bit registers
constexpr int kMostInputs = 48;   // likewise
constexpr int kMostBody = 640;    // unrolled multiply-adds
constexpr int kStripBytes = 16;   // of the output
constexpr int kBlockThreads = 128;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t cells(const Axis& axis) { return ceil_div(axis.output(), axis.stride); }

bool power_of_two(std::int64_t value) { return (value & (value - 1)) == 0; }

constexpr std::int64_t kTallestStride = 32;  // the kernel unrolls over the rows of a cell

std::string declines(const Problem& problem) {
  if (problem.direction != Direction::forward) return "it computes the forward direction alone";
  if (problem.in_channels_per_group() != 1) return "a group has several input channels";
  if (element_count(problem.output_sizes()) == 0) return "the output is empty";
  const Axis& depth = problem.axes[0];
  if (depth.kernel != 1 || depth.stride != 1 || depth.input != 1 || depth.output() != 1 || depth.pad_begin != 0) {
    return "it has a depth";
  }
  const Axis& height = problem.axes[1];
  const Axis& width = problem.axes[2];
  if (problem.input_strides[4] != 1 || problem.output_strides[4] != 1) return "elements of a row are apart";
  const auto widest = kStripBytes / static_cast<std::int64_t>(size_of(problem.dtype));
  if (!power_of_two(width.stride) || width.stride > widest) {
    return "the stride along the width is no power of two up to " + std::to_string(widest) + ": " +
           std::to_string(width.stride);
  }
  if (height.stride > kTallestStride) {
    return "the stride along the height is over " + std::to_string(kTallestStride) + ": " +
           std::to_string(height.stride);
  }
  const auto words = static_cast<std::int64_t>(std::max<std::size_t>(size_of(problem.dtype), 4) / 4);
  if (height.kernel > kMostWeights || width.kernel > kMostWeights ||
      height.kernel * width.kernel * words > kMostWeights) {
    return "a filter has more than " + std::to_string(kMostWeights / words) + " taps";
  }
  for (const Axis& axis : problem.axes) {
    if (std::max({axis.input, axis.output(), axis.pad_begin}) > kInt / 1024 ||
        axis.dilation > kInt / 1024 / axis.kernel || axis.stride > kInt / 1024) {
      return "an axis is longer than " + std::to_string(kInt / 1024);
    }
  }
  if (problem.batch > kInt / 2 / problem.out_channels) return "there are too many planes for a grid";
  return {};
}

// Cells that a plane's tiles may begin before its first one.
int most_shift(const Problem& problem, const DepthwiseConfig& c) {
  const bool aligned = (problem.batch == 1 || problem.output_strides[0] % c.store == 0) &&
                       (problem.out_channels == 1 || problem.output_strides[1] % c.store == 0);
  return aligned ? 0 : (c.store - 1) / c.width.stride;
}

// The config without a tile.
DepthwiseConfig shape_of(const Problem& problem) {
  DepthwiseConfig c{};
  c.height = direct_axis(problem.axes[1]);
  c.width = direct_axis(problem.axes[2]);
  c.element_bytes = static_cast<int>(size_of(problem.dtype));
  c.accumulator_bytes = problem.dtype == DType::f64 ? 8 : 4;
  c.bias = problem.bias ? 1 : 0;
  const Sizes sizes = problem.weight_sizes();
  c.weight_packed =
      (sizes[4] == 1 || problem.weight_strides[4] == 1) && (sizes[3] == 1 || problem.weight_strides[3] == sizes[4]) ? 1
                                                                                                                    : 0;
  c.store = kStripBytes / c.element_bytes;
  c.strip = c.store / c.width.stride;
  if (problem.axes[1].output() > 1) {
    while (problem.output_strides[3] % c.store != 0) c.store /= 2;
  }
  return c;
}

// A thread's rows: as many as keep its inputs in registers, since the halo is read again by the next thread.
int rows_of_thread(const DepthwiseConfig& c, std::int64_t rows) {
  int best = 1;
  for (const int height : {2, 4}) {
    DepthwiseConfig taller = c;
    taller.cells_height = height;
    const DepthwiseGeometry g = depthwise_geometry(taller);
    const int inputs = g.rows * g.window * c.strips * c.accumulator_bytes / 4;
    const int body = height * c.strips * c.strip * g.taps;
    if (height < 2 * rows && inputs <= kMostInputs && body <= kMostBody) best = height;
  }
  return best;
}

void choose_tile(DepthwiseConfig& c, const Problem& problem) {
  const std::int64_t columns = ceil_div(cells(problem.axes[2]) + c.store / c.width.stride, c.strip);
  const std::int64_t rows = cells(problem.axes[1]);
  const std::int64_t whole = ceil_div(cells(problem.axes[2]), c.strip);
  c.strips = 1;
  c.cells_height = rows_of_thread(c, rows);
  c.lanes_width = static_cast<int>(std::min<std::int64_t>(whole, kBlockThreads));
  if (whole > kBlockThreads && rows > 1) c.lanes_width = 32;  // rows of a thread share the halo already
  if (whole > kBlockThreads && rows == 1) {
    // Strips of a thread share its start-up (one strip costs about an eighth more, two a fiftieth); the threads of the
    // last block that find nothing to do cost about a tenth of the others.
    const DepthwiseGeometry g = depthwise_geometry(c);
    double least = std::numeric_limits<double>::infinity();
    for (const int strips : {4, 2, 1}) {
      if (strips > 1 && strips * g.window * c.accumulator_bytes / 4 > kMostInputs) continue;
      const std::int64_t slots = ceil_div(columns, kBlockThreads * strips) * kBlockThreads * strips;
      const double cost =
          (0.9 * static_cast<double>(columns) + 0.1 * static_cast<double>(slots)) * (strips == 4   ? 1.0
                                                                                     : strips == 2 ? 1.02
                                                                                                   : 1.12);
      if (cost >= least) continue;
      least = cost;
      c.strips = strips;
    }
  }
  c.lanes_height =
      static_cast<int>(std::min<std::int64_t>(kBlockThreads / c.lanes_width, ceil_div(rows, c.cells_height)));
  c.planes = std::max(1, kBlockThreads / (c.lanes_width * c.lanes_height));
  c.min_blocks = 1;
}

}  // namespace

void complete(DepthwisePlan& plan, const Problem& problem) {
  const DepthwiseConfig& c = plan.config;
  const DepthwiseGeometry g = depthwise_geometry(c);
  const int shift = most_shift(problem, c);
  DepthwiseArguments& a = plan.arguments;
  a.input_batch = problem.input_strides[0];
  a.input_channel = problem.input_strides[1];
  a.input_height = problem.input_strides[3];
  a.weight_in = problem.weight_strides[0];
  a.weight_out = problem.weight_strides[1];
  a.weight_height = problem.weight_strides[3];
  a.weight_width = problem.weight_strides[4];
  a.output_batch = problem.output_strides[0];
  a.output_channel = problem.output_strides[1];
  a.output_height = problem.output_strides[3];
  a.planes = static_cast<int>(problem.batch * problem.out_channels);
  a.channels = static_cast<int>(problem.out_channels);
  a.group_channels = static_cast<int>(problem.out_channels_per_group());
  a.tiles_width = static_cast<int>(ceil_div(cells(problem.axes[2]) + shift, g.tile_width));
  a.tiles = static_cast<int>(a.tiles_width * ceil_div(cells(problem.axes[1]), g.tile_height));
  a.shifts = shift > 0 ? 1 : 0;
  a.in_height = static_cast<int>(problem.axes[1].input);
  a.in_width = static_cast<int>(problem.axes[2].input);
  a.out_height = static_cast<int>(problem.axes[1].output());
  a.out_width = static_cast<int>(problem.axes[2].output());
  a.pad_cells_height = static_cast<int>(problem.axes[1].pad_begin / problem.axes[1].stride);
  a.pad_cells_width = static_cast<int>(problem.axes[2].pad_begin / problem.axes[2].stride);
  a.by_channels = direct_divisor(a.channels);
  a.by_group_channels = direct_divisor(a.group_channels);
  a.by_tiles = direct_divisor(a.tiles);
  a.by_tiles_width = direct_divisor(a.tiles_width);
  plan.blocks = ceil_div(a.planes, c.planes) * a.tiles;
}

DepthwisePlan plan_depthwise(const Problem& problem, const DeviceProperties& device) {
  DepthwisePlan plan;
  plan.declined = declines(problem);
  if (!plan.declined.empty()) return plan;
  plan.config = shape_of(problem);
  const DirectSpan width = direct_span(plan.config.width);
  const DirectSpan height = direct_span(plan.config.height);
  const int inputs = (1 + height.halo) * (plan.config.strip + width.halo) * plan.config.accumulator_bytes / 4;
  if (inputs > kMostInputs) {
    plan.declined = "a thread would need too many inputs: " + std::to_string(inputs);
    return plan;
  }
  choose_tile(plan.config, problem);
  const double tiles = static_cast<double>(cells(problem.axes[1])) *
                       std::ceil(static_cast<double>(cells(problem.axes[2])) / plan.config.strip);
  if (tiles * static_cast<double>(problem.batch * problem.out_channels) > static_cast<double>(kInt)) {
    plan.declined = "the tensor needs more blocks than a grid has";
    return plan;
  }
  complete(plan, problem);

  constexpr double kLaunch = 3.5e-6;
  constexpr double kEfficiency = 0.85;  // of the bandwidth that a copy reaches
  const double elements = static_cast<double>(element_count(problem.output_sizes())) +
                          static_cast<double>(element_count(problem.input_sizes())) +
                          static_cast<double>(element_count(problem.weight_sizes()));
  const double bytes = elements * static_cast<double>(size_of(problem.dtype));
  const double multiplies = static_cast<double>(element_count(problem.output_sizes())) *
                            depthwise_geometry(plan.config).taps /
                            (plan.config.height.stride * plan.config.width.stride);
  plan.expected_seconds = kLaunch + std::max(bytes / device.bandwidth / kEfficiency, multiplies * 4 / device.fp32_rate);
  return plan;
}

}  // namespace tconv::cuda
