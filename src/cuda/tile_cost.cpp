#include "cuda/tile_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "cuda/tile_cuts.h"

namespace tconv::cuda {
namespace {

// Cells of `step` outputs that an axis has, the first of them at a multiple of it.
std::int64_t cells_of(const Axis& axis, std::int64_t step) {
  return (axis.output() - 1 + axis.pad_begin) / step - axis.pad_begin / step + 1;
}

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
  return cells_of(axis, axis.stride);
}

long long tile_block_rows(const TileShape& shape, const Problem& problem) {
  return problem.groups * shape.channel_blocks() * shape.all_residue_blocks();
}

std::int64_t tile_cells(const TileShape& shape, const Problem& problem, int a) {
  const Axis& axis = problem.axes[a];
  if (shape.follows_residue(a)) return ceil_div(axis.output(), axis.stride);
  if (shape.gradient) return axis.input;
  return cells_of(axis, shape.output_step(a));
}

long long tile_block_cells(const TileShape& shape, const Problem& problem) {
  long long blocks = ceil_div(problem.batch, shape.tile[0]);
  for (int a = 0; a < kSpatialAxes; ++a) blocks *= ceil_div(tile_cells(shape, problem, a), shape.tile[1 + a]);
  return blocks;
}

long long tile_blocks(const TileShape& shape, const Problem& problem) {
  return tile_block_rows(shape, problem) * tile_block_cells(shape, problem) * shape.depth_blocks;
}

unsigned row_tiles_with_tap(const TileShape& shape, int back_index) {
  if (shape.gradient) return (1U << ceil_div(shape.block_channels, shape.tile_rows())) - 1;
  unsigned tiles = 0;
  for (int slot = 0; slot < shape.all_slots(); ++slot) {
    const int slots[3] = {slot / (shape.slots[2] * shape.slots[1]), slot / shape.slots[2] % shape.slots[1],
                          slot % shape.slots[2]};
    bool tap = true;
    for (int a = 0; a < kSpatialAxes; ++a) {
      if (shape.span[a] < shape.stride[a]) continue;  // differs from block to block: multiplied by stored zeros
      tap = tap && shape.has_tap(a, shape.residue_of(a, slots[a]), shape.back_along(a, back_index));
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
                        (shape.all_planes() == 1     ? 0
                         : shape.warpgroup           ? (shape.input_channels_last && !shape.wide_input ? 4 : 2)
                         : shape.input_channels_last ? 5
                                                     : 3);
  if (shape.packed) return inputs * per_input;
  const int weights = static_cast<int>(ceil_div(shape.stage_backs * shape.slabs * shape.rows(), shape.threads()));
  return inputs * per_input + (shape.element_bytes == 2 ? 72 + 20 * weights : 72 + 7 * weights);
}

}  // namespace

int loads_in_place(const TileShape& shape) {
  const int cells = shape.slabs * shape.block_channels * shape.all_slots() * shape.all_backs();
  return shape.vector() * static_cast<int>(ceil_div(cells, shape.threads()));
}

int tile_registers(const TileShape& shape) {
  const int accumulators = 4 * shape.row_tiles * shape.column_tiles;
  const int fragments =
      shape.warpgroup ? 0 : 5 * shape.column_tiles / 2 + 8 + (shape.math == TileMath::fp32x3 ? 24 : 0);
  if (shape.gradient) {
    const int rest = shape.warpgroup ? 28 : shape.element_bytes == 2 ? 80 : 60;
    return accumulators + fragments + gradient_loader_registers(shape) + rest;
  }
  const int input_items = static_cast<int>(ceil_div(shape.slabs * shape.pixels(), shape.threads()));
  // A cell on its way holds its values, its place and, while it is loaded, addresses. Two-byte elements of different
  // channels wait in a register each.
  const int per_item = shape.wide_input ? 6 : shape.element_bytes == 2 ? 17 : shape.warpgroup ? 9 : 6;
  // Values of weights in place wait in a register each, and the compiler works out all addresses before the first load.
  const int weights = shape.packed ? 0 : 24 + 4 * loads_in_place(shape);
  // What a warpgroup that loads for itself holds beside that: halves that wait to be put together.
  const int halves = shape.element_bytes == 2 && !shape.wide_input ? 24 : 0;
  const int rest = shape.warpgroup ? (shape.packed ? 28 : 48) + halves : shape.element_bytes == 2 ? 80 : 60;
  // Fragments of long rows are split ahead of their products; many pixels on their way leave no room for that.
  const bool splits_many = shape.math == TileMath::fp32x3 && shape.input_channels_last && input_items > 8;
  const int split = splits_many && shape.row_tiles * shape.column_tiles >= 8 ? 40 : 0;
  return accumulators + fragments + input_items * per_item + weights + split + rest;
}

namespace {

// Products of one row tile, all columns of a team and one step of depth, that a block computes for one step of
// channels. The row teams of a block wait for the one with the most.
double row_tile_products(const TileShape& shape) {
  double products = 0;
  for (int back = 0; back < shape.all_backs(); ++back) {
    const unsigned tiles = row_tiles_with_tap(shape, back);
    int most = 0;
    for (int team = 0; team < shape.row_teams; ++team) {
      const unsigned own = tiles >> (team * shape.row_tiles) & ((1U << shape.row_tiles) - 1);
      most = std::max(most, std::popcount(own));
    }
    products += most * shape.row_teams;
  }
  if (!shape.skips_backs()) return products;
  for (int a = 0; a < kSpatialAxes; ++a) {
    if (shape.span[a] != 1 || shape.stride[a] == 1) continue;
    double taps = 0;
    for (int residue = 0; residue < shape.stride[a]; ++residue) {
      for (int back = 0; back < shape.backs[a]; ++back) taps += shape.has_tap(a, residue, back) ? 1 : 0;
    }
    products *= taps / (static_cast<double>(shape.stride[a]) * shape.backs[a]);
  }
  return products;
}

}  // namespace

namespace {

constexpr int kSectorBytes = 32;

// Neighbours in memory that a block stores: of a row, or of rows that follow each other.
double row_bytes(const TileShape& shape) {
  const int outputs =
      shape.joins_rows ? shape.tile[2] * shape.span[1] * shape.image_row : shape.tile[3] * shape.span[2];
  return static_cast<double>(outputs) * shape.element_bytes;
}

// Whether two blocks write those sectors in parts, each of which costs a read besides.
bool tears_sectors(const TileShape& shape, const Problem& problem) {
  const auto outputs = [&](int axis) {
    return shape.gradient ? problem.axes[axis].input : problem.axes[axis].output();
  };
  const int axis = shape.joins_rows ? 1 : 2;
  const std::int64_t step = shape.element_bytes * (shape.joins_rows ? outputs(2) : 1);
  if (outputs(axis) * step % kSectorBytes != 0) return true;
  const Axis& cut = problem.axes[axis];
  const bool begins_inside = cut.pad_begin % shape.output_step(axis) * step % kSectorBytes != 0;
  return shape.tile[1 + axis] < tile_cells(shape, problem, axis) &&
         (std::fmod(row_bytes(shape), kSectorBytes) != 0 || begins_inside);
}

// The share of those sectors that two blocks write: a block that has whole rows writes most of them itself.
double torn_share(const TileShape& shape, const Problem& problem) {
  const bool whole_rows = !shape.joins_rows && shape.tile[3] >= tile_cells(shape, problem, 2);
  return whole_rows ? 1.0 / (shape.tile[2] * shape.span[1]) : 1.0;
}

}  // namespace

double row_end_bytes(const TileShape& shape, const Problem& problem) {
  if (shape.output_channels_last) return 0;
  const auto outputs =
      static_cast<double>(element_count(shape.gradient ? problem.input_sizes() : problem.output_sizes()));
  return outputs * shape.element_bytes * 2 * kSectorBytes / row_bytes(shape);
}

double torn_bytes(const TileShape& shape, const Problem& problem) {
  return tears_sectors(shape, problem) ? row_end_bytes(shape, problem) * torn_share(shape, problem) : 0;
}

// Cost of a candidate in seconds. Per block: multiplication, traffic beyond the block and instructions of the loader
// and the epilogue; the largest of them counts fully and the others in part, since resident blocks overlap. The
// constants are fitted to measurements on an H200; docs/notes/tile.md says how, and how well they choose.
double tile_seconds(const TileShape& shape, const Problem& problem, const DeviceProperties& device) {
  const auto blocks = static_cast<double>(tile_blocks(shape, problem));
  const double clock = 1.7e9;
  const double half = shape.element_bytes == 2 ? 2.0 : 1.0;
  const double peak = device.tf32_rate / 2 / device.multiprocessors / clock * half;  // multiply-adds per cycle
  const double chunks = shape.block_chunks();
  const double products = row_tile_products(shape) * chunks * shape.slabs / 2 * shape.column_teams;
  const double step_channels = 2.0 * shape.vector();
  const double columns = 8.0 * shape.column_tiles;
  double multiply = 0;
  if (shape.warpgroup) {
    const double reads = (64 + columns) * 32 / 128;  // cycles to bring both operands from shared memory
    multiply = products * std::max(64 * columns * step_channels / peak, reads * 0.8);
  } else {
    const double reads = 4.0 * (1 + shape.column_tiles / 2.0 / shape.row_tiles);
    // Three products, parts of either factor worked out for each, and sums added up outside of the tensor cores.
    const double rate = peak * 0.55 / (shape.math == TileMath::fp32x3 ? 7 : 1);
    multiply = products * std::max(16 * columns * step_channels / rate, reads * 1.1);
  }
  const double input_bytes = chunks * shape.input_stage_bytes();
  const double weight_bytes = chunks * shape.all_backs() * shape.slabs * shape.rows() * 16;
  const double outputs = static_cast<double>(shape.positions()) * shape.block_channels / shape.depth_blocks;
  // Rows that begin and end inside a sector move more than their bytes.
  const auto with_sectors = [&](int elements) { return 1 + 19.0 / (elements * shape.element_bytes); };
  double input_sectors = shape.input_channels_last ? 1.0 : with_sectors(shape.patch(3) * shape.planes[2]);
  if (shape.gradient && !shape.input_channels_last) {  // residues that a patch leaves out move with the others
    const double per_sector = 32.0 / shape.element_bytes;
    input_sectors *= std::min<double>(shape.stride[2], per_sector) / std::min<double>(shape.planes[2], per_sector);
  }
  // Where other blocks write the outputs in between, every sector is written in part, several times.
  const double gaps = static_cast<double>(shape.output_step(2)) / shape.span[2];
  const double output_sectors =
      shape.output_channels_last ? 1.0 : with_sectors(shape.tile[3] * shape.span[2]) * std::min(gaps, 8.0);
  // Runs of taps in place that begin and end inside a sector: twice what is wanted, and as many instructions.
  const double run_bytes =
      static_cast<double>(shape.kernel[0]) * shape.kernel[1] * shape.kernel[2] * shape.element_bytes;
  const bool torn_runs = !shape.packed && !shape.wide_weights && shape.gradient && std::fmod(run_bytes, 32) != 0;
  const double weight_sectors = torn_runs ? 1 + 28 / run_bytes : 1.0;
  const double traffic = (input_bytes * input_sectors + weight_bytes * weight_sectors +
                          2.55 * outputs * shape.element_bytes * output_sectors) /
                         59;
  const double weight_instructions = shape.bulk_weights() ? 0
                                     : shape.packed       ? 4
                                     : shape.wide_weights ? 8
                                     : shape.gradient     ? 22
                                                          : 71;  // per cell
  const double loader = input_bytes / 16 * (shape.wide_input ? 8 : 4 + 3 * shape.vector()) +
                        weight_bytes / 16 * weight_instructions * weight_sectors;
  const double epilogue = outputs * 12.3 + static_cast<double>(shape.rows()) * shape.columns() * 2 * shape.depth_teams;
  const double instructions = (loader + epilogue) / 128 / 0.52;
  const double sum = multiply + traffic + instructions;
  const double busy = 0.53 * std::max({multiply, traffic, instructions}) + 0.47 * sum;

  // What a block takes alone, however empty the chip.
  const double stages = chunks * shape.stages_per_chunk();
  const double items =
      std::ceil(static_cast<double>(shape.slabs) * shape.pixels() * shape.all_planes() / shape.threads());
  const double latency = 2800 + stages * 650 + chunks * items * 112 + outputs / shape.threads() * 4.7 + 0.46 * multiply;
  const int resident = std::max(shape.blocks_per_multiprocessor, 1);
  // Clusters of eight, several blocks of which share a multiprocessor, leave some empty. (One of each: measured worse
  // alone, and better beside the gradient of the weight.)
  const double side_by_side = device.multiprocessors * (shape.depth_blocks > 4 && resident > 1 ? 120.0 / 132 : 1.0);
  const double slots = side_by_side * resident;
  const double full_waves = std::floor(blocks / slots);
  const double rest = blocks - full_waves * slots;
  double cycles = full_waves * std::max(busy * resident, latency);
  if (rest > 0) cycles += std::max(busy * std::ceil(rest / side_by_side), latency);
  cycles *= 0.86 + 0.39 * 8 / (resident * shape.threads() / 32.0);  // more warps hide more of each other's waiting
  // Warpgroups of a block wait for each other at every stage.
  if (shape.warpgroup && shape.row_teams > 1) cycles *= 1.13;
  if (shape.warpgroup && shape.column_teams > 1) cycles *= 1.17;

  const double bytes =
      static_cast<double>(element_count(problem.input_sizes()) + element_count(problem.output_sizes()) +
                          element_count(problem.weight_sizes())) *
      shape.element_bytes;
  const double packed_bytes = weight_bytes * shape.depth_blocks * static_cast<double>(tile_block_rows(shape, problem));
  const double pack_rate = shape.wide_weights ? 3.3e12 : shape.gradient && has_weight_runs(problem) ? 2.5e12 : 2.8e12;
  const double packing = shape.packed ? 5e-6 + 2 * packed_bytes / pack_rate : 0;
  const double torn = shape.gradient ? 0 : 4 * torn_bytes(shape, problem);
  const double transfer = 1.15 * (bytes + torn) / device.bandwidth;
  // Among gradients that the memory bounds, those whose loads more blocks of a multiprocessor have under way, and with
  // less to compute.
  const bool waits = shape.gradient && shape.all_planes() == 1 && cycles / clock < transfer;
  const double besides = waits ? 0.05 * cycles / clock + 0.03 * std::max(3 - resident, 0) * transfer : 0;
  const double seconds = std::max(cycles / clock, transfer) + besides + 2e-6 + packing;
  // Among equals: all phases of a row in one block, but not lines of packed weights too short for a few threads.
  const bool whole_rows = shape.span[1] == shape.output_step(1) && shape.span[2] == shape.output_step(2);
  const double preference = whole_rows ? 0.98 : gaps > 1 ? 1.03 : 1.0;
  // The constants were fitted to the forward direction. Short gradients take longer than they say, and so do those that
  // read several planes.
  const double taken = shape.gradient ? (shape.all_planes() == 1 ? 0.85 : 1.1) * seconds + 6e-6 : seconds;
  // Nor were they fitted to channels-last weights in place: four bytes took longer, two bytes less.
  const double in_place = !shape.wide_weights || shape.packed ? 1.0 : shape.element_bytes == 4 ? 1.5 : 0.65;
  // Nor to single warps forward (those of strict arithmetic have a rate of their own).
  const bool warps = !shape.warpgroup && !shape.gradient && shape.math != TileMath::fp32x3;
  // Nor to pixels of two-byte channels.
  const double pixels = shape.output_channels_last && shape.element_bytes == 2 ? 1.4 : 1.0;
  return taken * in_place * (warps ? 1.4 : 1.0) * pixels * preference *
         (shape.block_channels < 4 && shape.out_channels >= 4 ? 1.2 : 1.0);
}

}  // namespace tconv::cuda
