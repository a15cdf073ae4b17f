#include "cuda/tile_cost.h"

#include <algorithm>
#include <cmath>

namespace tconv::cuda {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

const Strides& tile_input_strides(const Problem& problem) {
  return problem.direction == Direction::forward ? problem.input_strides : problem.output_strides;
}

const Strides& tile_output_strides(const Problem& problem) {
  return problem.direction == Direction::forward ? problem.output_strides : problem.input_strides;
}

std::int64_t tile_cells(const Problem& problem, int a) {
  const Axis& axis = problem.axes[static_cast<std::size_t>(a)];
  if (problem.direction == Direction::grad_input) return axis.input;
  return (axis.output() - 1 + axis.pad_begin) / axis.stride - axis.pad_begin / axis.stride + 1;
}

long long tile_block_rows(const TileShape& shape, const Problem& problem) {
  long long blocks = problem.groups * ceil_div(shape.out_channels, shape.block_channels);
  for (int a = 0; a < kSpatialAxes; ++a) blocks *= ceil_div(shape.output_step(a), shape.span[a]);
  return blocks;
}

long long tile_block_cells(const TileShape& shape, const Problem& problem) {
  long long blocks = ceil_div(problem.batch, shape.tile[0]);
  for (int a = 0; a < kSpatialAxes; ++a) blocks *= ceil_div(tile_cells(problem, a), shape.tile[1 + a]);
  return blocks;
}

unsigned row_tiles_with_tap(const TileShape& shape, int back_index) {
  if (shape.gradient) return (1U << ceil_div(shape.block_channels, shape.tile_rows())) - 1;
  const int back[3] = {back_index / (shape.backs[2] * shape.backs[1]), back_index / shape.backs[2] % shape.backs[1],
                       back_index % shape.backs[2]};
  unsigned tiles = 0;
  for (int slot = 0; slot < shape.all_slots(); ++slot) {
    const int slots[3] = {slot / (shape.slots[2] * shape.slots[1]), slot / shape.slots[2] % shape.slots[1],
                          slot % shape.slots[2]};
    bool tap = true;
    for (int a = 0; a < kSpatialAxes; ++a) {
      if (shape.span[a] < shape.stride[a]) continue;  // differs from block to block: multiplied by stored zeros
      tap = tap && shape.has_tap(a, shape.residue_of(a, slots[a]), back[a]);
    }
    if (!tap) continue;
    const int first = slot * shape.block_channels / shape.tile_rows();
    const int last = ((slot + 1) * shape.block_channels - 1) / shape.tile_rows();
    for (int tile = first; tile <= last; ++tile) tiles |= 1U << tile;
  }
  return tiles;
}

namespace {

// Registers that a gradient's loaders need: a cell on its way holds its values, its place and, while it is loaded,
// addresses. Two-byte elements of different channels wait in a register each.
int gradient_loader_registers(const TileShape& shape) {
  const int inputs = static_cast<int>(ceil_div(shape.slabs * shape.pixels() * shape.all_planes(), shape.threads()));
  const int per_input = (shape.wide_input           ? 6
                         : shape.element_bytes == 2 ? 18
                         : shape.warpgroup          ? 9
                                                    : 6) +
                        (shape.all_planes() > 1 ? 2 : 0);
  if (shape.packed) return inputs * per_input;
  const int weights = static_cast<int>(ceil_div(shape.stage_backs * shape.slabs * shape.rows(), shape.threads()));
  return inputs * per_input + (shape.element_bytes == 2 ? 72 + 20 * weights : 72 + 7 * weights);
}

}  // namespace

int tile_registers(const TileShape& shape) {
  const int accumulators = 4 * shape.row_tiles * shape.column_tiles;
  const int fragments =
      shape.warpgroup ? 0 : 5 * shape.column_tiles / 2 + 8 + (shape.math == TileMath::fp32x3 ? 24 : 0);
  if (shape.gradient) {
    const int rest = shape.warpgroup ? 28 : shape.element_bytes == 2 ? 80 : 60;
    return accumulators + fragments + gradient_loader_registers(shape) + rest;
  }
  const int input_items = static_cast<int>(ceil_div(shape.slabs * shape.pixels(), shape.threads()));
  // Two-byte elements of different channels wait in a register each, and take more to be put together.
  const int per_item = shape.wide_input ? 5 : shape.element_bytes == 2 ? 16 : 5;
  int weights = 8;
  if (!shape.packed) {
    const int items = shape.chunk_channels() * shape.block_channels * shape.all_slots() * shape.all_backs();
    weights = 28 + 4 * static_cast<int>(ceil_div(items, shape.threads()));
  }
  return accumulators + fragments + input_items * (per_item + 1) + weights +
         (shape.warpgroup            ? 40
          : shape.element_bytes == 2 ? 72
                                     : 52);
}

// Cost of a candidate in seconds. Per block: multiplication, traffic beyond the block and instructions of the loader
// and the epilogue; the largest of them counts fully and the others in part, since resident blocks overlap. The
// constants come from measurements on an H200; docs/notes/tile.md says how well they choose.
double tile_seconds(const TileShape& shape, const Problem& problem, const DeviceProperties& device, long long tiles) {
  const double blocks = static_cast<double>(tiles) * shape.depth_blocks;
  const double clock = 1.7e9;
  const double half = shape.element_bytes == 2 ? 2.0 : 1.0;
  const double peak = device.tf32_rate / 2 / device.multiprocessors / clock * half;  // multiply-adds per cycle
  double tile_products = 0;  // products of one row tile, all columns of a team and one step of depth
  for (int back = 0; back < shape.all_backs(); ++back)
    tile_products += __builtin_popcount(row_tiles_with_tap(shape, back));
  if (shape.skips_backs()) {
    for (int a = 0; a < kSpatialAxes; ++a) {
      if (shape.span[a] != 1 || shape.stride[a] == 1) continue;
      double taps = 0;
      for (int residue = 0; residue < shape.stride[a]; ++residue) {
        for (int back = 0; back < shape.backs[a]; ++back) taps += shape.has_tap(a, residue, back) ? 1 : 0;
      }
      tile_products *= taps / (static_cast<double>(shape.stride[a]) * shape.backs[a]);
    }
  }
  const double chunks = shape.block_chunks();
  tile_products *= chunks * shape.slabs / 2 * shape.column_teams;
  const double step_channels = 2.0 * shape.vector();
  const double columns = 8.0 * shape.column_tiles;
  double multiply = 0;
  if (shape.warpgroup) {
    const double reads = (64 + columns) * 32 / 128;  // cycles to bring both operands from shared memory
    multiply = tile_products * std::max(64 * columns * step_channels / (peak * 0.92), reads * 1.05);
  } else {
    const double reads = 4.0 * (1 + shape.column_tiles / 2.0 / shape.row_tiles);
    const double rate = peak * 0.55 / (shape.math == TileMath::fp32x3 ? 3.5 : 1.0);
    multiply = tile_products * std::max(16 * columns * step_channels / rate, reads * 1.1);
  }
  const double input_bytes = chunks * shape.input_stage_bytes();
  const double weight_bytes = chunks * shape.all_backs() * shape.slabs * shape.rows() * 16;
  const double outputs = static_cast<double>(shape.positions()) * shape.block_channels / shape.depth_blocks;
  // Rows that begin and end inside a sector move it whole.
  const auto with_sectors = [&](int elements) { return 1 + 32.0 / (elements * shape.element_bytes); };
  double input_sectors = shape.input_channels_last ? 1.0 : with_sectors(shape.patch(3) * shape.planes[2]);
  if (shape.gradient && !shape.input_channels_last) {  // residues that a patch leaves out move with the others
    const double per_sector = 32.0 / shape.element_bytes;
    input_sectors *= std::min<double>(shape.stride[2], per_sector) / std::min<double>(shape.planes[2], per_sector);
  }
  const double output_sectors = shape.output_channels_last ? 1.0 : with_sectors(shape.tile[3] * shape.span[2]);
  const double traffic =
      (input_bytes * input_sectors + weight_bytes + 1.5 * outputs * shape.element_bytes * output_sectors) / 30;
  const double weight_instructions = shape.packed     ? weight_bytes / 16 * 4
                                     : shape.gradient ? weight_bytes / 16 * (6 + 4 * shape.vector())
                                                      : weight_bytes / shape.element_bytes * 90;
  const double loader = input_bytes / 16 * (shape.wide_input ? 8 : 4 + 3 * shape.vector()) + weight_instructions;
  const double epilogue = outputs * 9 + static_cast<double>(shape.rows()) * shape.columns() * 2 * shape.depth_teams;
  const double instructions = (loader + epilogue) / 128 / 0.6;
  const double stages = chunks * shape.stages_per_chunk();

  const double sum = multiply + traffic + instructions;
  const double busy = 0.65 * std::max({multiply, traffic, instructions}) + 0.35 * sum;
  // A gradient's steps wait for memory: the next patch, and weights that are read in place, set out one step ahead.
  const double step = !shape.gradient ? 650 : shape.packed ? 1000 : 1800;
  const double latency = 2500 + stages * step + outputs / shape.threads() * 12 + 0.6 * multiply +
                         (shape.gradient && shape.depth_blocks > 1 ? 8000 : 0);
  const int resident = std::max(shape.blocks_per_multiprocessor, 1);
  const double slots = static_cast<double>(device.multiprocessors) * resident;
  const double full_waves = std::floor(blocks / slots);
  const double rest = blocks - full_waves * slots;
  double cycles = full_waves * std::max(busy * resident, latency);
  if (rest > 0) cycles += std::max(busy * std::ceil(rest / device.multiprocessors), latency);
  cycles *= resident == 1 ? 1.25 : resident == 2 ? 1.0 : 0.9;  // more blocks overlap more of each other's start and end
  if (shape.warpgroup && shape.row_teams > 1)
    cycles *= 1.2;  // warpgroups of a block wait for each other at every stage
  const double bytes =
      static_cast<double>(element_count(problem.input_sizes()) + element_count(problem.output_sizes()) +
                          element_count(problem.weight_sizes())) *
      shape.element_bytes;
  const double packing = shape.packed ? 3e-6 + 2 * weight_bytes * shape.depth_blocks *
                                                   static_cast<double>(tile_block_rows(shape, problem)) / 2e12
                                      : 0;
  const double seconds = std::max(cycles / clock, 1.15 * bytes / device.bandwidth) + 2e-6 + packing;
  // Among equals: all phases of a row in one block, but not lines of packed weights too short for a few threads.
  const bool whole_rows = shape.span[1] == shape.output_step(1) && shape.span[2] == shape.output_step(2);
  return seconds * (whole_rows ? 0.98 : 1.0) * (shape.block_channels < 4 && shape.out_channels >= 4 ? 1.2 : 1.0);
}

}  // namespace tconv::cuda
