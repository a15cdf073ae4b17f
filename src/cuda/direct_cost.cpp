#include "cuda/direct_cost.h"

#include <algorithm>
#include <cmath>

namespace tconv::cuda {
namespace {

int threads_limit(int arch) { return arch == 80 || arch == 90 || arch == 100 ? 2048 : 1536; }

}  // namespace

int resident_blocks(const DirectGeometry& g, int registers, const DeviceProperties& device) {
  const auto by_shared =
      static_cast<int>(device.shared_bytes_per_multiprocessor / (static_cast<std::size_t>(g.shared_bytes) + 1024));
  const int by_registers = 65536 / (g.threads * registers);
  return std::min({by_shared, by_registers, threads_limit(device.arch) / g.threads, 16});
}

BlockCost block_cost(const DirectConfig& c, const DirectGeometry& g, const DeviceProperties& device) {
  const bool server = device.arch == 80 || device.arch == 90 || device.arch == 100;
  // Issue slots of a warp's multiply-add: sm_80 has 64 fp32 lanes, later ones 128; fp64 has half or 1/64 of them.
  const double multiply = c.accumulator_bytes == 8 ? (server ? 2 : 64) : (device.arch == 80 ? 2 : 1);

  // One (in channel, tap of depth, tap of height) of a warp, in issue slots and in cycles of the shared memory.
  const int packs = c.strip % g.vector != 0 ? 0 : (g.window + g.vector - 2) / g.vector;
  const int singles = g.window - std::min(g.window, packs * g.vector);
  const int weight_packs = g.weight_row / g.vector;
  const double fma = static_cast<double>(c.strips) * c.strip * c.width.kernel * c.thread_channels;
  const double body_issue = fma * multiply + c.strips * (packs + singles) + weight_packs + 8;
  const bool mixed_planes = c.planes > 1 && (c.output_channels_last != 0 || g.items < 32);
  const double body_shared =
      c.strips * (packs * 4.0 + singles * (c.accumulator_bytes / 4.0)) + weight_packs * (mixed_planes ? 3.0 : 1.0);
  constexpr double kEfficiency = 0.85;  // of the issue slots, with enough warps
  const double bodies = g.lanes / 32.0 * c.channel_parts * c.depth.kernel * c.height.kernel * c.in_channels;
  const bool uneven = c.phase_parts > 1 && (g.depth.even == 0 || g.height.even == 0);
  // Two strips of several channels measured slower than one strip of more channels.
  const double compute = bodies * std::max(body_issue / 4 / kEfficiency, body_shared) * (uneven ? 1.2 : 1.0) *
                         (c.strips > 1 && c.thread_channels > 1 ? 1.12 : 1.0);

  // Loads and stores, in issue slots of a warp.
  const double rows = static_cast<double>(c.planes) * c.in_channels * g.rows_depth * g.rows_height;
  const double inputs = rows * g.row_length;
  const double taps = static_cast<double>(c.depth.kernel) * c.height.kernel * c.width.kernel;
  const double weights = c.planes * taps * c.in_channels * c.channel_parts * c.thread_channels;
  const double outputs = static_cast<double>(g.lanes) * c.channel_parts * g.sums * g.phases;
  const double row_lanes = std::min(1.0, g.row_length / 32.0);
  const double load = c.input_channels_last != 0
                          ? inputs / 32 * 40
                          : rows * row_lanes * (6 + 3 * std::ceil(g.row_length / 32.0) + 50.0 / c.chunk);
  const double store =
      c.output_channels_last != 0
          ? outputs / 32 * (9 + 10.0 / g.strip_outputs)
          : outputs / 32 * (1.5 + (g.piece != 0 ? 2.5 : 9 + 10.0 / c.thread_channels) / std::max(1, g.store));
  const double reduce = (c.chunk_parts - 1.0) * g.threads / c.chunk_parts / 32 * g.sums * 3;

  BlockCost cost;
  cost.busy = 200 + compute + (load + store + reduce + weights / 32 * (c.weight_packed != 0 ? 4 : 8)) / 4 / kEfficiency;
  // Each chunk waits for its loads, and a warp alone issues at most every cycle.
  cost.latency = 2000 + 1500.0 * (g.chunks - 1) + bodies * body_issue * 32 / g.threads;
  cost.resident = std::max(1, std::min(resident_blocks(g, direct_registers(c, g), device), c.min_blocks));
  // Few warps and few blocks hide less, and the four schedulers of a multiprocessor share the warps unevenly.
  const double warps = cost.resident * g.threads / 32;
  cost.busy *= std::ceil(warps / 4) * 4 / warps + 0.5 / warps + 0.12 / cost.resident;
  cost.bytes = (inputs + weights + outputs) * c.element_bytes;
  return cost;
}

double grid_seconds(const BlockCost& cost, double blocks, double tensor_bytes, const DeviceProperties& device) {
  constexpr double kLaunch = 3e-6;
  constexpr double kCacheRate = 1.3;  // of the memory's
  const double clock = device.fp32_rate / 2 / device.multiprocessors / (device.arch == 80 ? 64 : 128);
  const double slots = cost.resident * device.multiprocessors;
  const double full = std::floor(blocks / slots);
  const double rest = std::ceil((blocks - full * slots) / device.multiprocessors);
  const double wave = std::max(cost.resident * cost.busy, cost.latency + cost.busy);
  const double last = rest > 0 ? std::max(rest * cost.busy, cost.latency + cost.busy) : 0;
  // Blocks start when others end, so that waves overlap: the last one is felt half.
  const double part = wave * (blocks - full * slots) / slots;
  const double cycles = full > 0 ? full * wave + (part + last) / 2 : last;
  const double traffic =
      std::max(tensor_bytes / device.bandwidth, blocks * cost.bytes / (kCacheRate * device.bandwidth));
  // Neither side hides the other quite.
  return kLaunch + std::max(cycles / clock, traffic) + 0.15 * std::min(cycles / clock, traffic);
}

int direct_registers(const DirectConfig& c, const DirectGeometry& g) {
  const int words = c.accumulator_bytes / 4;
  const int main_loop = (c.strips * (g.window + 3) + 8) * words + 2 * c.strips;
  const int store = 3 * (c.output_channels_last != 0 ? c.thread_channels : g.strip_outputs);
  // With several chunks the next one is loaded while the sums are held.
  const int count = g.sums * words + std::max(main_loop, store) + (g.chunks > 1 ? 64 : 40);
  return std::max(40, (count + 7) / 8 * 8);
}

}  // namespace tconv::cuda
