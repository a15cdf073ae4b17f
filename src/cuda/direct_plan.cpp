#include "cuda/direct_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "cuda/direct_axis.h"
#include "cuda/direct_cost.h"

namespace tconv::cuda {
namespace {

constexpr std::int64_t kInt = std::numeric_limits<std::int32_t>::max();
// Tiles are chosen by their times at both batches, whatever the batch: small ones must not starve, large ones not
// dawdle.
constexpr std::array<std::int64_t, 2> kPlannedBatches = {1, 16};
constexpr int kWidestKernel = 32;  // taps of a row are unrolled
constexpr int kWidestStride = 32;  // the residues of a row are all held by a thread
constexpr int kLongestStride = 256;
constexpr int kMostPhases = 256;
constexpr int kMostSums = 96;    // accumulators of a thread, in 32-bit registers
constexpr int kMostRow = 640;    // cells of a row with its halo
constexpr int kMostBody = 1024;  // unrolled multiply-adds
constexpr std::size_t kMostSharedBytes = 100 * 1024;
constexpr int kMostThreads = 512;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t cells(const Axis& axis) { return ceil_div(axis.output(), axis.stride); }

std::string declines(const Problem& problem, const DeviceProperties& device) {
  if (problem.direction != Direction::forward) return "it computes the forward direction alone";
  if (device.arch < 80) return "it needs sm_80 or later (asynchronous copies), got sm_" + std::to_string(device.arch);
  if (element_count(problem.output_sizes()) == 0) return "the output is empty";
  if (problem.in_channels_per_group() == 0) return "there are no input channels";
  const auto in = problem.in_channels_per_group();
  const auto out = problem.out_channels_per_group();
  const bool tensor_cores = problem.dtype == DType::f16 || problem.dtype == DType::bf16 ||
                            (problem.dtype == DType::f32 && problem.precision == Precision::tf32);
  if (tensor_cores && in >= 32 && out >= 32 && in * out > 64 * 64) {
    return "a group is dense and large, which tensor cores may compute: " + std::to_string(in) + " -> " +
           std::to_string(out) + " channels";
  }
  if (in > 4096 || out > 4096) return "a group has more than 4096 channels: " + std::to_string(std::max(in, out));
  const Axis& width = problem.axes[2];
  if (width.kernel > kWidestKernel) {
    return "the kernel's width is over " + std::to_string(kWidestKernel) + ": " + std::to_string(width.kernel);
  }
  if (width.stride > kWidestStride) {
    return "the stride along the width is over " + std::to_string(kWidestStride) + ": " + std::to_string(width.stride);
  }
  double phases = 1;
  for (const Axis& axis : problem.axes) {
    if (axis.stride > kLongestStride || axis.kernel > 4096) {
      return "a stride is over " + std::to_string(kLongestStride) + " or a kernel over 4096";
    }
    if (std::max({axis.input, axis.output(), axis.pad_begin}) > kInt / 1024 ||
        axis.dilation > kInt / 1024 / axis.kernel) {
      return "an axis is longer than " + std::to_string(kInt / 1024);
    }
    if (&axis != &width) phases *= static_cast<double>(axis.stride);
  }
  if (phases > kMostPhases) return "depth and height have more than " + std::to_string(kMostPhases) + " phases";
  if (problem.batch > kInt / 2 / problem.out_channels) return "there are too many planes for a grid";
  if (problem.groups > kInt / 4096) return "there are too many groups: " + std::to_string(problem.groups);
  return {};
}

// Neighbours of an output's row that can be stored together, as far as the layout goes.
int together(const Problem& problem) {
  const Sizes sizes = problem.output_sizes();
  const Strides& strides = problem.output_strides;
  if (strides[4] != 1) return 0;
  int count = 16 / static_cast<int>(size_of(problem.dtype));
  // The batch's stride counts whatever the batch, so that the batch changes no kernel.
  while (sizes[4] % count != 0 || strides[0] % count != 0 || (sizes[1] > 1 && strides[1] % count != 0) ||
         (sizes[2] > 1 && strides[2] % count != 0) || (sizes[3] > 1 && strides[3] % count != 0)) {
    count /= 2;
  }
  return count;
}

// The config without a tile.
DirectConfig shape_of(const Problem& problem) {
  DirectConfig c{};
  c.depth = direct_axis(problem.axes[0]);
  c.height = direct_axis(problem.axes[1]);
  c.width = direct_axis(problem.axes[2]);
  c.in_channels = static_cast<int>(problem.in_channels_per_group());
  c.out_channels = static_cast<int>(problem.out_channels_per_group());
  c.element_bytes = static_cast<int>(size_of(problem.dtype));
  c.accumulator_bytes = problem.dtype == DType::f64 ? 8 : 4;
  c.bias = problem.bias ? 1 : 0;
  const auto channels_last = [](const Strides& strides, std::int64_t channels, std::int64_t width) {
    return channels > 1 && std::abs(strides[1]) < std::abs(strides[4]) && width > 1 ? 1 : 0;
  };
  c.input_channels_last = channels_last(problem.input_strides, problem.in_channels, problem.axes[2].input);
  const Strides packed = contiguous_strides(problem.weight_sizes());
  c.weight_packed = std::equal(packed.begin() + 1, packed.end(), problem.weight_strides.begin() + 1) ? 1 : 0;
  c.output_channels_last = channels_last(problem.output_strides, problem.out_channels, problem.axes[2].output());
  c.input_dense = problem.axes[2].input > 1 && problem.input_strides[4] == 1 ? 1 : 0;
  c.store = together(problem);
  return c;
}

int channel_blocks(const DirectConfig& c) {
  return static_cast<int>(ceil_div(c.out_channels, c.channel_parts * c.thread_channels));
}

// Strides of an axis with one element mean nothing, and would count as long ones.
std::int64_t stride_of(const Strides& strides, const Sizes& sizes, int dimension) {
  return sizes[dimension] > 1 ? strides[dimension] : 0;
}

DirectArguments arguments_for(const Problem& problem, const DirectConfig& c) {
  DirectArguments a{};
  const Sizes in = problem.input_sizes();
  const Sizes out = problem.output_sizes();
  a.groups = static_cast<int>(problem.groups);
  a.channel_blocks = channel_blocks(c);
  a.planes = static_cast<int>(problem.batch * problem.groups * a.channel_blocks);
  a.input_batch = stride_of(problem.input_strides, in, 0);
  a.input_channel = stride_of(problem.input_strides, in, 1);
  a.input_depth = stride_of(problem.input_strides, in, 2);
  a.input_height = stride_of(problem.input_strides, in, 3);
  a.input_width = stride_of(problem.input_strides, in, 4);
  a.weight_in = problem.weight_strides[0];
  a.weight_out = problem.weight_strides[1];
  a.weight_depth = problem.weight_strides[2];
  a.weight_height = problem.weight_strides[3];
  a.weight_width = problem.weight_strides[4];
  a.output_batch = stride_of(problem.output_strides, out, 0);
  a.output_channel = stride_of(problem.output_strides, out, 1);
  a.output_depth = stride_of(problem.output_strides, out, 2);
  a.output_height = stride_of(problem.output_strides, out, 3);
  a.output_width = stride_of(problem.output_strides, out, 4);
  a.tiles_depth = static_cast<int>(ceil_div(cells(problem.axes[0]), c.cells_depth));
  a.tiles_height = static_cast<int>(ceil_div(cells(problem.axes[1]), c.cells_height));
  a.tiles_width = static_cast<int>(ceil_div(cells(problem.axes[2]), c.cells_width));
  a.in_depth = static_cast<int>(in[2]);
  a.in_height = static_cast<int>(in[3]);
  a.in_width = static_cast<int>(in[4]);
  a.out_depth = static_cast<int>(out[2]);
  a.out_height = static_cast<int>(out[3]);
  a.out_width = static_cast<int>(out[4]);
  a.pad_cells_depth = static_cast<int>(problem.axes[0].pad_begin / problem.axes[0].stride);
  a.pad_cells_height = static_cast<int>(problem.axes[1].pad_begin / problem.axes[1].stride);
  a.pad_cells_width = static_cast<int>(problem.axes[2].pad_begin / problem.axes[2].stride);
  return a;
}

double block_count(const DirectArguments& a, const DirectConfig& c) {
  return static_cast<double>(ceil_div(a.planes, c.planes)) * a.tiles_depth * a.tiles_height * a.tiles_width;
}

// Offsets inside a block's tile of the output are 32 bits wide.
bool tile_is_addressable(const DirectArguments& a, const DirectConfig& c) {
  if (c.planes > 1) {
    if (a.channel_blocks > 1) return false;
    const bool one_image = a.groups % c.planes == 0;
    const double images = one_image ? 0.0 : static_cast<double>(c.planes) / a.groups + 1;
    const double channels = static_cast<double>(std::min(c.planes, a.groups)) * c.out_channels;
    const double reach = images * std::abs(static_cast<double>(a.output_batch)) +
                         channels * std::abs(static_cast<double>(a.output_channel));
    if (reach > static_cast<double>(kInt) / 2) return false;
  }
  const double depth =
      static_cast<double>(c.cells_depth) * c.depth.stride * std::abs(static_cast<double>(a.output_depth));
  const double height =
      static_cast<double>(c.cells_height) * c.height.stride * std::abs(static_cast<double>(a.output_height));
  const double width =
      static_cast<double>(c.cells_width) * c.width.stride * std::abs(static_cast<double>(a.output_width));
  return depth + height + width < static_cast<double>(kInt) / 2 && block_count(a, c) < static_cast<double>(kInt);
}

double tensor_bytes(const Problem& problem) {
  const std::int64_t elements = element_count(problem.output_sizes()) + element_count(problem.input_sizes()) +
                                element_count(problem.weight_sizes());
  return static_cast<double>(elements) * static_cast<double>(size_of(problem.dtype));
}

class Search {
 public:
  Search(const Problem& problem, const DeviceProperties& device)
      : device_(device), problem_(problem), shape_(shape_of(problem)) {
    problem_.batch = kPlannedBatches.back();
    bytes_ = tensor_bytes(problem_);
  }

  // The best tiles, best first; empty when none fits.
  std::vector<DirectConfig> find() {
    for (int strip : {4, 2, 1}) {
      if (strip == 4 && shape_.accumulator_bytes == 8) continue;
      if (strip * shape_.width.stride > kWidestStride || (strip > 1 && strip / 2 >= cells(problem_.axes[2]))) continue;
      shape_.strip = strip;
      try_channels();
      if (!best_.empty()) break;
    }
    std::vector<DirectConfig> tiles;
    for (const Tile& tile : best_) tiles.push_back(tile.config);
    return tiles;
  }

 private:
  void try_channels() {
    for (int channels : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
      const bool whole = channels == shape_.out_channels;
      if (channels > shape_.out_channels || (!whole && (channels & (channels - 1)) != 0)) continue;
      if (!whole && channels == 1 && shape_.out_channels > 3) continue;
      for (int strips : {1, 2}) {
        DirectConfig c = shape_;
        c.thread_channels = channels;
        c.strips = strips;
        const int sums = strips * c.strip * c.width.stride * channels * (c.accumulator_bytes / 4);
        const int body = strips * c.strip * c.width.kernel * channels;
        if (sums > kMostSums || body > kMostBody) continue;
        for (int parts : {1, 2, 4, 8}) {
          if (parts > 1 && (parts - 1) * channels >= c.out_channels) break;
          c.channel_parts = parts;
          try_chunks(c);
        }
      }
    }
  }

  void try_chunks(DirectConfig c) {
    int tried = 0;
    for (int chunk : {c.in_channels, 32, 16, 8, 4, 2, 1}) {
      if (chunk > c.in_channels || chunk > 64 || chunk == tried) continue;
      tried = chunk;
      for (int parts : {1, 2, 4, 8}) {
        // The parts take every so-many-th channel: the order of a sum must not depend on the size of a chunk.
        if (chunk % parts != 0 || (parts > 1 && c.in_channels < 8 * parts)) continue;
        c.chunk = chunk;
        c.chunk_parts = parts;
        try_phases(c);
      }
      if (chunk == c.in_channels && chunk <= 4) break;
    }
  }

  void try_phases(DirectConfig c) {
    const int phases = c.depth.stride * c.height.stride;
    const bool together = c.chunk < c.in_channels || c.chunk_parts > 1;  // a thread keeps its sums from chunk to chunk
    int tried = 0;
    for (int parts : {1, c.height.stride, phases}) {
      if ((together && parts != phases) || parts > 16 || parts == tried) continue;
      tried = parts;
      c.phase_parts = parts;
      try_tiles(c);
    }
  }

  void try_tiles(DirectConfig c) {
    const int fixed = c.channel_parts * c.phase_parts * c.chunk_parts;
    const std::array<std::int64_t, 3> size = {cells(problem_.axes[0]), cells(problem_.axes[1]),
                                              cells(problem_.axes[2])};
    for (int depth : {1, 2, 3, 4, 6, 8}) {
      for (int height : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32}) {
        for (int strips : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128}) {
          c.cells_depth = depth;
          c.cells_height = height;
          c.cells_width = strips * c.strip;
          const int items = (strips * height * depth + c.strips - 1) / c.strips;
          const bool whole = c.cells_width >= size[2] && height >= size[1] && depth >= size[0];
          for (int planes : {1, 2, 4, 8, 16, 32}) {
            if (planes > 1 && !whole && c.output_channels_last == 0 && c.input_channels_last == 0) break;
            const int threads = (planes * items + 31) / 32 * 32 * fixed;
            if (threads > kMostThreads) break;
            if (c.strips > 1 && threads < 128) continue;
            c.planes = planes;
            consider(c);
          }
          if (c.cells_width >= size[2]) break;
        }
        if (height >= size[1]) break;
      }
      if (depth >= size[0]) break;
    }
  }

  void consider(DirectConfig& c) {
    const DirectGeometry g = direct_geometry(c);
    const auto shared = static_cast<std::size_t>(g.shared_bytes);
    if (g.row_length > kMostRow || shared > std::min(kMostSharedBytes, device_.shared_bytes_per_block)) return;
    const int registers = direct_registers(c, g);
    const int resident = resident_blocks(g, registers, device_);
    const DirectArguments arguments = arguments_for(problem_, c);
    if (registers > 232 || resident < 1 || !tile_is_addressable(arguments, c)) return;
    c.min_blocks = resident;
    const BlockCost cost = block_cost(c, g, device_);
    const double tiles = static_cast<double>(arguments.tiles_depth) * arguments.tiles_height * arguments.tiles_width;
    double merit = 1;
    for (const std::int64_t batch : kPlannedBatches) {
      const auto planes = static_cast<double>(ceil_div(batch * arguments.groups * arguments.channel_blocks, c.planes));
      const double share = static_cast<double>(batch) / static_cast<double>(kPlannedBatches.back());
      merit *= grid_seconds(cost, planes * tiles, bytes_ * share, device_);
    }
    if (best_.size() == kMostTiles && merit >= best_.back().merit) return;
    // Of equals, whoever came first stays in front.
    const auto place =
        std::upper_bound(best_.begin(), best_.end(), merit, [](double m, const Tile& tile) { return m < tile.merit; });
    best_.insert(place, {merit, c});
    if (best_.size() > kMostTiles) best_.pop_back();
  }

  struct Tile {
    double merit = 0;
    DirectConfig config{};
  };
  static constexpr std::size_t kMostTiles = 16;

  const DeviceProperties& device_;
  Problem problem_;
  DirectConfig shape_;
  double bytes_ = 0;
  std::vector<Tile> best_;
};

}  // namespace

double direct_seconds(const Problem& problem, const DirectConfig& c, const DeviceProperties& device) {
  const BlockCost cost = block_cost(c, direct_geometry(c), device);
  return grid_seconds(cost, block_count(arguments_for(problem, c), c), tensor_bytes(problem), device);
}

void complete(DirectPlan& plan, const Problem& problem) {
  plan.arguments = arguments_for(problem, plan.config);
  plan.blocks = static_cast<std::int64_t>(block_count(plan.arguments, plan.config));
}

DirectPlan plan_direct(const Problem& problem, const DeviceProperties& device, int cut) {
  DirectPlan plan;
  plan.declined = declines(problem, device);
  if (!plan.declined.empty()) return plan;
  const std::vector<DirectConfig> tiles = Search(problem, device).find();
  if (tiles.empty()) {
    plan.declined = "no tile fits shared memory and registers";
    return plan;
  }
  if (cut >= static_cast<int>(tiles.size())) {
    plan.declined = "has " + std::to_string(tiles.size()) + " cuts for this problem";
    return plan;
  }
  plan.config = tiles[static_cast<std::size_t>(cut)];
  complete(plan, problem);
  if (!tile_is_addressable(plan.arguments, plan.config)) {
    plan.declined = "the tensor needs more blocks than a grid has, or its strides are too long for a tile";
    return plan;
  }
  plan.expected_seconds = direct_seconds(problem, plan.config, device);
  return plan;
}

}  // namespace tconv::cuda
