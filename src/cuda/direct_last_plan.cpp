#include "cuda/direct_last_plan.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "cuda/direct_axis.h"

namespace tconv::cuda {
namespace {

constexpr std::int64_t kInt = std::numeric_limits<std::int32_t>::max();
constexpr int kMostSums = 64;    // of a thread, in 32-bit registers
constexpr int kMostRow = 80;     // registers of a row of the window
constexpr int kMostBody = 1024;  // unrolled multiply-adds
constexpr int kMostSharedBytes = 56 * 1024;
constexpr int kMostInChannels = 32;  // of a group with several: beyond, tensor cores or the kernel for any layout
constexpr int kBlockThreads = 256;
constexpr int kMostLanes = 32;  // along the channels

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// What is read and what is written.
struct Sides {
  Sizes in_sizes, out_sizes;
  Strides in_strides, out_strides;
  std::int64_t in_channels, out_channels;  // of a group
  bool gradient;

  explicit Sides(const Problem& problem) : gradient(problem.direction == Direction::grad_input) {
    in_sizes = gradient ? problem.output_sizes() : problem.input_sizes();
    out_sizes = gradient ? problem.input_sizes() : problem.output_sizes();
    in_strides = gradient ? problem.output_strides : problem.input_strides;
    out_strides = gradient ? problem.input_strides : problem.output_strides;
    in_channels = gradient ? problem.out_channels_per_group() : problem.in_channels_per_group();
    out_channels = gradient ? problem.in_channels_per_group() : problem.out_channels_per_group();
  }
  bool depthwise() const { return in_channels == 1 && out_channels == 1; }
};

std::int64_t cells(const Problem& problem, int axis) {
  const Axis& a = problem.axes[static_cast<std::size_t>(axis)];
  return problem.direction == Direction::grad_input ? a.input : ceil_div(a.output(), a.stride);
}

// Channels that can be moved together, as far as the layout goes: `count` of them lie side by side. The batch's stride
// counts whatever the batch, so that the batch changes no kernel.
int together(const Sizes& sizes, const Strides& strides, std::int64_t count, int most) {
  const auto divides = [&](std::size_t i) { return (i > 0 && sizes[i] == 1) || strides[i] % most == 0; };
  while (most > 1 && !(count % most == 0 && divides(0) && divides(2) && divides(3) && divides(4))) most /= 2;
  return most;
}

std::string declines(const Problem& problem, const DeviceProperties& device) {
  if (problem.direction != Direction::forward && problem.direction != Direction::grad_input) {
    return "it computes forward and grad_input alone";
  }
  if (device.arch < 80) return "it needs sm_80 or later, got sm_" + std::to_string(device.arch);
  if (device.any_batch) return "its grid belongs to one batch";
  const Sides sides(problem);
  if (element_count(sides.out_sizes) == 0 || element_count(sides.in_sizes) == 0) return "a tensor is empty";
  if (sides.in_sizes[1] == 1 && sides.out_sizes[1] == 1) return "there is one channel";
  if (sides.in_strides[1] != 1 || sides.out_strides[1] != 1) return "channels are not side by side";
  if (sides.in_channels > kMostInChannels) {
    return "a group has more than " + std::to_string(kMostInChannels) + " channels to sum up";
  }
  for (const Axis& axis : problem.axes) {
    if (std::max({axis.input, axis.output(), axis.pad_begin}) > kInt / 1024 ||
        axis.dilation > kInt / 1024 / axis.kernel || axis.stride > kInt / 1024) {
      return "an axis is longer than " + std::to_string(kInt / 1024);
    }
  }
  return {};
}

// The config without a tile.
LastConfig shape_of(const Problem& problem) {
  const Sides sides(problem);
  LastConfig c{};
  c.depth = direct_axis(problem.axes[0]);
  c.height = direct_axis(problem.axes[1]);
  c.width = direct_axis(problem.axes[2]);
  c.gradient = sides.gradient ? 1 : 0;
  c.element_bytes = static_cast<int>(size_of(problem.dtype));
  c.accumulator_bytes = problem.dtype == DType::f64 ? 8 : 4;
  c.bias = problem.bias && !sides.gradient ? 1 : 0;
  c.in_channels = static_cast<int>(sides.in_channels);
  c.out_channels = static_cast<int>(sides.out_channels);
  const int most = 16 / c.element_bytes;
  if (sides.depthwise()) {
    c.load = std::min(together(sides.in_sizes, sides.in_strides, sides.in_sizes[1], most),
                      together(sides.out_sizes, sides.out_strides, sides.out_sizes[1], most));
    c.store = c.channels = c.chunk = c.load;
  } else {
    c.load = together(sides.in_sizes, sides.in_strides, sides.in_channels, most);
    c.store = c.channels = together(sides.out_sizes, sides.out_strides, sides.out_channels, most);
    c.chunk = std::max(c.load, 1);
    while (c.chunk < 8 && sides.in_channels % (2 * c.chunk) == 0) c.chunk *= 2;
  }
  return c;
}

// A guess from above at the registers of a thread.
int registers_of(const LastConfig& c) {
  const LastGeometry g = last_geometry(c);
  const int words = c.accumulator_bytes / 4;
  const int sums = (g.outputs_width + 1) * c.channels * words;
  const int places = c.depth.kernel == 1 ? 56 : c.gradient != 0 ? 72 : 64;
  return sums + g.window * c.chunk * words + places;
}

// Of a multiprocessor, by registers.
int blocks_of(const LastConfig& c) {
  if (c.accumulator_bytes == 8 || c.unrolled != 0) return 1;  // the compiler then takes what it wants
  return std::clamp(65536 / (last_geometry(c).threads * registers_of(c)), 1, 8);
}

bool fits(const LastConfig& c) {
  const LastGeometry g = last_geometry(c);
  const int words = c.accumulator_bytes / 4;
  const int row = c.width.kernel * c.cells * (g.depthwise != 0 ? 1 : c.chunk) * c.channels;
  const int rows = c.depth.kernel * c.height.kernel;
  if (row > kMostBody || g.outputs_width * c.channels * words > kMostSums) return false;
  if (g.window * c.chunk * c.element_bytes / 4 > kMostRow) return false;
  if (c.unrolled != 0 && row * rows * g.depth > kMostBody) return false;
  return registers_of(c) <= 200;
}

// Lanes along the channels: as many as fit, evenly; fewer where their weights need too much shared memory.
bool choose_lanes_channels(LastConfig& c, std::int64_t channels) {
  const std::int64_t vectors = ceil_div(channels, c.channels);
  for (std::int64_t blocks = ceil_div(vectors, kMostLanes); blocks <= vectors; ++blocks) {
    c.lanes_channels = static_cast<int>(ceil_div(vectors, blocks));
    c.lanes_height = c.lanes_width = 1;
    if (last_geometry(c).shared_bytes <= kMostSharedBytes) return true;
    if (c.lanes_channels == 1) return false;
  }
  return false;
}

// The lanes of the two axes: little halo, and few threads without work.
void choose_lanes(LastConfig& c, const Problem& problem) {
  const std::int64_t columns = ceil_div(cells(problem, 2), c.cells);
  const std::int64_t rows = cells(problem, 1);
  const int positions = std::max(1, kBlockThreads / c.lanes_channels);
  double least = std::numeric_limits<double>::infinity();
  LastConfig best = c;
  for (int width = 1; width <= positions && width < 2 * columns; width *= 2) {
    c.lanes_width = static_cast<int>(std::min<std::int64_t>(width, columns));
    c.lanes_height = static_cast<int>(std::min<std::int64_t>(std::max(1, positions / c.lanes_width), rows));
    const LastGeometry g = last_geometry(c);
    const auto whole = [](std::int64_t size, int tile) {
      return static_cast<double>(ceil_div(size, tile) * tile) / static_cast<double>(size);
    };
    const double waste = whole(columns, c.lanes_width) * whole(rows, c.lanes_height);
    const double read = static_cast<double>(last_window(c.width, c.gradient, g.tile_width)) *
                        last_window(c.height, c.gradient, c.lanes_height);
    const double owned = static_cast<double>(g.step_width * g.tile_width) * (g.step_height * c.lanes_height);
    const double few = static_cast<double>(kBlockThreads) / g.threads;  // small blocks stage the same weights
    const double cost = waste * (1 + 0.3 * read / owned) + 0.05 * few;
    if (cost >= least) continue;
    least = cost;
    best = c;
  }
  c = best;
}

// Tiles worth considering, best first.
std::vector<LastConfig> tiles(const Problem& problem) {
  std::vector<LastConfig> found;
  LastConfig c = shape_of(problem);
  const Sides sides(problem);
  if (!choose_lanes_channels(c, sides.out_sizes[1])) return found;
  // Where the weights of a cell's channels do not fit, lines are read in parts, and the kernel for any layout is
  // faster.
  if (!sides.depthwise() && c.lanes_channels < std::min<std::int64_t>(kMostLanes, sides.out_sizes[1] / c.channels))
    return found;
  // As measured: a short loop over the rows of taps is best, but for cells of many outputs; half as many cells where
  // the elements are halves, whose sums need as many registers.
  const bool many = !sides.gradient && c.height.stride * c.width.stride >= 16;
  const bool halves = c.element_bytes == 2;
  for (const int unrolled : {many ? 1 : 0, many ? 0 : 1}) {
    for (const int width : {halves ? 2 : 4, halves ? 4 : 2, 1}) {
      c.cells = width;
      c.unrolled = unrolled;
      if ((width > 1 && width >= 2 * cells(problem, 2)) || !fits(c)) continue;
      choose_lanes(c, problem);
      c.min_blocks = blocks_of(c);
      found.push_back(c);
    }
  }
  return found;
}

}  // namespace

void complete(LastPlan& plan, const Problem& problem, const DeviceProperties& device) {
  const LastConfig& c = plan.config;
  const LastGeometry g = last_geometry(c);
  const Sides sides(problem);
  LastArguments& a = plan.arguments;
  a.input_batch = sides.in_strides[0];
  a.input_depth = sides.in_strides[2];
  a.input_height = sides.in_strides[3];
  a.input_width = sides.in_strides[4];
  a.weight_group = problem.in_channels_per_group() * problem.weight_strides[0];
  a.weight_out = problem.weight_strides[sides.gradient ? 0 : 1];
  a.weight_in = problem.weight_strides[sides.gradient ? 1 : 0];
  a.weight_depth = problem.weight_strides[2];
  a.weight_height = problem.weight_strides[3];
  a.weight_width = problem.weight_strides[4];
  a.output_batch = sides.out_strides[0];
  a.output_depth = sides.out_strides[2];
  a.output_height = sides.out_strides[3];
  a.output_width = sides.out_strides[4];
  a.channels = static_cast<int>(sides.out_sizes[1]);
  a.channel_blocks = static_cast<int>(ceil_div(a.channels, g.block_channels));
  a.in_depth = static_cast<int>(sides.in_sizes[2]);
  a.in_height = static_cast<int>(sides.in_sizes[3]);
  a.in_width = static_cast<int>(sides.in_sizes[4]);
  a.out_depth = static_cast<int>(sides.out_sizes[2]);
  a.out_height = static_cast<int>(sides.out_sizes[3]);
  a.out_width = static_cast<int>(sides.out_sizes[4]);
  const auto first = [&](int axis, int low) {
    const Axis& its = problem.axes[static_cast<std::size_t>(axis)];
    return static_cast<int>(sides.gradient ? -its.pad_begin : its.pad_begin / its.stride + low);
  };
  a.first_depth = first(0, g.low_depth);
  a.first_height = first(1, g.low_height);
  a.first_width = first(2, g.low_width);
  a.tiles_depth = static_cast<int>(cells(problem, 0));
  a.tiles_height = static_cast<int>(ceil_div(cells(problem, 1), c.lanes_height));
  a.tiles_width = static_cast<int>(ceil_div(cells(problem, 2), g.tile_width));
  const double tiles = static_cast<double>(problem.batch) * a.tiles_depth * a.tiles_height * a.tiles_width;
  if (tiles * a.channel_blocks > static_cast<double>(kInt) / 2) {
    plan.declined = "the tensor needs more tiles than can be counted";
    return;
  }
  a.tiles = static_cast<int>(tiles);
  a.by_channel_blocks = direct_divisor(a.channel_blocks);
  a.by_tiles_width = direct_divisor(a.tiles_width);
  a.by_tiles_height = direct_divisor(a.tiles_height);
  a.by_tiles_depth = direct_divisor(a.tiles_depth);
  // About as many blocks as the chip holds at once, and all with the same number of tiles.
  constexpr int kThreads = 1024;  // of a multiprocessor
  const int by_shared = static_cast<int>(device.shared_bytes_per_multiprocessor) / (g.shared_bytes + 1024);
  const std::int64_t resident = std::max(1, std::min(kThreads / g.threads, by_shared));
  const std::int64_t slots = std::max<std::int64_t>(1, resident * device.multiprocessors / a.channel_blocks);
  const std::int64_t rounds = ceil_div(a.tiles, slots);
  a.starts = static_cast<int>(ceil_div(a.tiles, rounds));
  plan.blocks = static_cast<std::int64_t>(a.starts) * a.channel_blocks;
}

LastPlan unaligned(const LastPlan& plan, const Problem& problem, const DeviceProperties& device) {
  LastPlan other = plan;
  LastConfig& c = other.config;
  c.load = c.store = 1;
  // Elements that come one by one hold a register each, and the halves of a word one more.
  if (c.element_bytes == 2) c.min_blocks = 1;
  if (c.cells > 2 && c.chunk > 4) {
    LastPlan narrow = other;
    narrow.config.cells = 2;
    choose_lanes(narrow.config, problem);
    complete(narrow, problem, device);
    if (narrow.declined.empty()) return narrow;
  }
  return other;  // whose tiles are the plan's
}

int last_cuts(const Problem& problem) { return static_cast<int>(tiles(problem).size()); }

LastPlan plan_last(const Problem& problem, const DeviceProperties& device, int cut) {
  LastPlan plan;
  plan.declined = declines(problem, device);
  if (!plan.declined.empty()) return plan;
  const std::vector<LastConfig> found = tiles(problem);
  if (found.empty()) {
    plan.declined = "a thread would need too many registers, or a block too much shared memory";
    return plan;
  }
  if (cut >= static_cast<int>(found.size())) {
    plan.declined = "has " + std::to_string(found.size()) + " cuts for this problem";
    return plan;
  }
  plan.config = found[static_cast<std::size_t>(cut)];
  complete(plan, problem, device);
  if (!plan.declined.empty()) return plan;

  constexpr double kLaunch = 3.5e-6;
  constexpr double kEfficiency = 0.7;  // of the bandwidth that a copy reaches, and of the multiply-adds
  const double bytes =
      static_cast<double>(element_count(problem.output_sizes()) + element_count(problem.input_sizes())) *
      static_cast<double>(size_of(problem.dtype));
  plan.expected_seconds =
      kLaunch + std::max(bytes / device.bandwidth, 2 * multiply_adds(problem) / device.fp32_rate) / kEfficiency;
  return plan;
}

}  // namespace tconv::cuda
