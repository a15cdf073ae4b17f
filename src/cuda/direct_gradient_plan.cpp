#include "cuda/direct_gradient_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "tconv/phases.h"

namespace tconv::cuda {
namespace {

constexpr std::int64_t kInt = std::numeric_limits<std::int32_t>::max();
constexpr int kWidestKernel = 32;  // taps of a row are unrolled
constexpr int kMostWindow = 64;    // inputs of a row that a thread holds
constexpr int kMostBody = 1024;    // unrolled multiply-adds
constexpr std::size_t kMostSharedBytes = 100 * 1024;
constexpr int kMostThreads = 512;
// Tiles are chosen for this batch, whatever the batch.
constexpr std::int64_t kPlannedBatch = 16;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::string declines(const Problem& problem, const DeviceProperties& device) {
  if (device.arch < 80) return "it needs sm_80 or later, got sm_" + std::to_string(device.arch);
  if (element_count(problem.input_sizes()) == 0 || element_count(problem.output_sizes()) == 0)
    return "there is nothing to compute";
  if (problem.in_channels_per_group() > 65536 || problem.out_channels_per_group() > 65536)
    return "a group has more than 65536 channels";
  if (problem.axes[2].kernel > kWidestKernel) {
    return "the kernel's width is over " + std::to_string(kWidestKernel) + ": " +
           std::to_string(problem.axes[2].kernel);
  }
  for (const Axis& axis : problem.axes) {
    if (axis.stride > 256 || axis.kernel > 256) return "a stride or a kernel is over 256";
    if (std::max({axis.input, axis.output(), axis.pad_begin}) > kInt / 1024 ||
        axis.dilation > kInt / 1024 / axis.kernel || axis.input > kInt / 1024 / axis.stride) {
      return "an axis is longer than " + std::to_string(kInt / 1024);
    }
  }
  return {};
}

DirectGradientAxis axis_of(const Axis& axis) {
  DirectGradientAxis out{};
  out.kernel = static_cast<int>(axis.kernel);
  out.stride = static_cast<int>(axis.stride);
  out.dilation = static_cast<int>(axis.dilation);
  std::set<int> residues;
  for (std::int64_t tap = 0; tap < axis.kernel; ++tap) residues.insert(static_cast<int>(site_of(axis, tap).residue));
  out.planes = static_cast<int>(residues.size());
  int plane = 0;
  if (out.planes < out.stride && out.stride <= 15) {
    for (const int residue : residues) out.residue_nibbles |= static_cast<unsigned long long>(residue) << (4 * plane++);
  }
  out.halo = static_cast<int>(-site_of(axis, axis.kernel - 1).shift);
  return out;
}

// Neighbours of a row that can be stored together, as far as the layout goes.
int together(const Problem& problem) {
  const Sizes sizes = problem.input_sizes();
  const Strides& strides = problem.input_strides;
  if (strides[4] != 1) return 1;
  int count = 16 / static_cast<int>(size_of(problem.dtype));
  const auto divides = [&](int dimension) { return sizes[dimension] == 1 || strides[dimension] % count == 0; };
  // The batch's stride counts whatever the batch, so that the batch changes no kernel.
  while (count > 1 && (strides[0] % count != 0 || !divides(1) || !divides(2) || !divides(3))) count /= 2;
  return count;
}

DirectGradientConfig base_config(const Problem& problem) {
  DirectGradientConfig c{};
  c.type = static_cast<DirectFloat>(problem.dtype);
  for (int a = 0; a < kSpatialAxes; ++a) c.axes[a] = axis_of(problem.axes[a]);
  c.channels = static_cast<int>(problem.out_channels_per_group());
  c.out_channels = static_cast<int>(problem.in_channels_per_group());
  c.input_channels_last = problem.output_strides[1] == 1 && problem.output_strides[4] > 1 && c.channels > 1;
  c.output_channels_last = problem.input_strides[1] == 1 && problem.input_strides[4] > 1 && c.out_channels > 1;
  c.strip = std::max(4, 16 / c.sum_bytes());
  c.store = std::min(together(problem), c.strip);
  return c;
}

DirectGradientArguments arguments_for(const Problem& problem, const DirectGradientConfig& c) {
  DirectGradientArguments a{};
  std::copy(problem.output_strides.begin(), problem.output_strides.end(), a.input_strides);
  std::copy(problem.weight_strides.begin(), problem.weight_strides.end(), a.weight_strides);
  std::swap(a.weight_strides[0], a.weight_strides[1]);
  a.weight_group_stride = problem.in_channels_per_group() * problem.weight_strides[0];
  std::copy(problem.input_strides.begin(), problem.input_strides.end(), a.output_strides);
  a.groups = static_cast<int>(problem.groups);
  a.channel_blocks = static_cast<int>(ceil_div(c.out_channels, c.block_channels()));
  for (int i = 0; i < kSpatialAxes; ++i) {
    const Axis& axis = problem.axes[i];
    a.tiles[i] = static_cast<int>(ceil_div(axis.input, c.axes[i].cells));
    a.input_size[i] = static_cast<int>(axis.output());
    a.output_size[i] = static_cast<int>(axis.input);
    a.pad[i] = static_cast<int>(axis.pad_begin);
  }
  return a;
}

double block_count(const DirectGradientArguments& a, std::int64_t batch) {
  return static_cast<double>(batch) * a.groups * a.channel_blocks * a.tiles[0] * a.tiles[1] * a.tiles[2];
}

int registers_of(const DirectGradientConfig& c) {
  const int wide = c.sum_bytes() / 4;
  return 48 + wide * (c.strip * c.thread_channels + c.axes[2].planes * c.window() + 2 * c.vector());
}

// Seconds for `batch` samples: per block the multiply-adds, the reads of shared memory, the instructions of the loader
// and the traffic; the largest of them counts fully and the others in part, since resident blocks overlap.
double seconds_of(const DirectGradientConfig& c, const DirectGradientArguments& a, const DeviceProperties& device,
                  std::int64_t batch) {
  const double clock = 1.7e9;
  const double warps = c.threads() / 32.0;
  const double rows = static_cast<double>(c.channels) * c.outer_taps();
  const double products = static_cast<double>(c.axes[2].kernel) * c.strip * c.thread_channels;
  const double slower = c.type == DirectFloat::f64 ? 2 : 1;
  const double multiply = slower * warps * rows * (products * 1.1 + 12) / 4;
  const double vectors = static_cast<double>(c.axes[2].planes) * c.window() / c.vector();
  const double reads = warps * rows * (4.0 * vectors + 1.0 * c.weight_row() / c.vector());
  const double pieces = c.input_channels_last ? c.axes[2].length() : (c.axes[2].length() + 31) / 32 * 32;
  const double inputs = static_cast<double>(c.channels) * c.rows() * pieces;
  const double weights = rows * c.axes[2].kernel * c.block_channels();
  const double outputs = static_cast<double>(c.items()) * c.strip * c.block_channels();
  const double sectors = c.input_channels_last ? 8.0 / std::min(c.chunk, 8)
                                               : (1 + 8.0 / c.axes[2].length()) * c.axes[2].stride / c.axes[2].planes;
  const double instructions = (inputs * 24 + weights * 24 + outputs * (c.store > 1 ? 3 : 6)) / 32 / 4 / 0.7;
  const double traffic = ((inputs * sectors + outputs) * c.element_bytes() + weights * c.element_bytes()) / 30;
  const double sum = multiply + reads + instructions + traffic;
  const double busy = 0.7 * std::max({multiply, reads, instructions, traffic}) + 0.3 * sum;
  const double latency = 4000 + (c.chunks() - 1) * 2000 + busy;  // a block alone waits for memory, chunk after chunk
  const double resident = c.min_blocks;
  const double slots = static_cast<double>(device.multiprocessors) * resident;
  const double blocks = block_count(a, batch);
  const double waves = blocks < slots ? 1 : blocks / slots + 0.5;
  const double crowd = std::min(resident, std::max(1.0, blocks / device.multiprocessors));
  const double floor = blocks * (outputs + inputs / 1.3) * c.element_bytes() / device.bandwidth;
  return std::max(waves * std::max(busy * crowd, latency) / clock, floor) + 3e-6;
}

// Chooses the channels of a chunk and the residency for a tile; false: it cannot be built.
bool complete(DirectGradientConfig& c, const DeviceProperties& device) {
  if (c.threads() > kMostThreads) return false;
  if (c.axes[2].planes * c.window() * (c.sum_bytes() / 4) > kMostWindow) return false;
  if (c.axes[2].kernel * c.strip * c.thread_channels > kMostBody) return false;
  const auto most = std::min<std::size_t>(kMostSharedBytes, device.shared_bytes_per_block);
  c.chunk = std::min(c.channels, 16);
  while (c.chunk > 1 && static_cast<std::size_t>(c.shared_bytes()) > most / 2) c.chunk = (c.chunk + 1) / 2;
  if (static_cast<std::size_t>(c.shared_bytes()) > most) return false;
  const int registers = std::min(registers_of(c), 255);
  const int by_registers = 65536 / (c.threads() * static_cast<int>(ceil_div(registers, 8) * 8));
  const int by_shared =
      static_cast<int>(device.shared_bytes_per_multiprocessor / (static_cast<std::size_t>(c.shared_bytes()) + 1024));
  const int by_threads = (device.arch == 80 || device.arch == 90 || device.arch == 100 ? 2048 : 1536) / c.threads();
  c.min_blocks = std::clamp(std::min({by_registers, by_shared, by_threads}), 1, 16);
  return by_registers >= 1;
}

std::vector<int> cuts(std::int64_t size, std::initializer_list<int> lengths) {
  std::vector<int> result;
  for (const int length : lengths) {
    result.push_back(static_cast<int>(std::min<std::int64_t>(length, size)));
    if (length >= size) break;
  }
  return result;
}

// Inside a tile, positions are computed in 64 bits but sizes along the axes in 32.
bool fits(const DirectGradientArguments& a, std::int64_t batch) {
  return block_count(a, batch) < static_cast<double>(kInt);
}

}  // namespace

std::vector<DirectGradientPlan> direct_gradient_plans(const Problem& problem, const DeviceProperties& device) {
  DirectGradientConfig c = base_config(problem);
  std::vector<DirectGradientPlan> plans;
  for (const DirectGradientAxis& axis : c.axes) {
    if (axis.planes < axis.stride && axis.stride > 15) return plans;
  }
  for (const int width : cuts(problem.axes[2].input, {16, 32, 64, 128, 256, 512})) {
    for (const int height : cuts(problem.axes[1].input, {1, 2, 4, 8, 16, 32})) {
      for (const int depth : cuts(problem.axes[0].input, {1, 2, 4, 8})) {
        c.axes[0].cells = depth;
        c.axes[1].cells = height;
        c.axes[2].cells = width;
        for (const int channels : {1, 2, 4, 8}) {
          if (channels > 1 && channels >= 2 * c.out_channels) continue;
          for (const int parts : {1, 2, 4, 7, 8, 16}) {
            if (parts > 1 && parts * channels >= c.out_channels + channels) continue;
            c.thread_channels = channels;
            c.channel_parts = parts;
            if (!complete(c, device)) continue;
            DirectGradientPlan plan;
            plan.config = c;
            plan.arguments = arguments_for(problem, c);
            if (!fits(plan.arguments, problem.batch)) continue;
            plan.blocks = static_cast<std::int64_t>(block_count(plan.arguments, problem.batch));
            plan.expected_seconds = seconds_of(c, plan.arguments, device, kPlannedBatch);
            plans.push_back(plan);
          }
        }
      }
    }
  }
  std::stable_sort(plans.begin(), plans.end(), [](const DirectGradientPlan& x, const DirectGradientPlan& y) {
    return x.expected_seconds < y.expected_seconds;
  });
  for (DirectGradientPlan& plan : plans)
    plan.expected_seconds = seconds_of(plan.config, plan.arguments, device, problem.batch);
  return plans;
}

DirectGradientPlan plan_direct_gradient(const Problem& problem, const DeviceProperties& device, int cut) {
  DirectGradientPlan plan;
  plan.declined = declines(problem, device);
  if (!plan.declined.empty()) return plan;
  std::vector<DirectGradientPlan> plans = direct_gradient_plans(problem, device);
  if (plans.empty()) {
    plan.declined = "no tile fits registers and shared memory of the device";
    return plan;
  }
  if (cut >= static_cast<int>(plans.size())) {
    plan.declined = "has " + std::to_string(plans.size()) + " cuts for this problem";
    return plan;
  }
  return std::move(plans[static_cast<std::size_t>(cut)]);
}

}  // namespace tconv::cuda
