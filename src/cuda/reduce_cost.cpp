#include "cuda/reduce_cost.h"

#include <algorithm>
#include <cmath>

namespace tconv::cuda {

int reduce_registers(const ReduceShape& shape) {
  const int sums = 4 * shape.row_tiles * shape.team_runs * shape.column_tiles();
  const bool split = shape.math == TileMath::fp32x3;
  const int fragments = shape.warpgroup ? 0 : (split ? 12 : 4) * shape.row_tiles + (split ? 16 : 8);
  if (shape.loader_warps > 0) return sums + shape.team_runs + 32;
  return sums + fragments + shape.batch_words() + shape.team_runs + (shape.warpgroup ? 60 : split ? 92 : 64);
}

std::size_t reduce_part_bytes(const ReduceShape& shape, const ReduceParams& params) {
  return sizeof(float) * static_cast<std::size_t>(reduce_tiles(params)) * static_cast<std::size_t>(shape.block_rows()) *
         static_cast<std::size_t>(shape.block_sums());
}

// Per stage of a block: multiplication, traffic beyond the block, the pipe of shared memory and the instructions of the
// loader; the largest of them counts fully and the others in part, since resident blocks overlap.
double reduce_seconds(const ReduceShape& shape, const ReduceParams& params, const Problem& problem,
                      const Reduction& reduction, const DeviceProperties& device) {
  constexpr double kClock = 1.7e9;
  const double depth = 2.0 * shape.vector();  // pixels of one product
  const double half = shape.element_bytes == 2 ? 2.0 : 1.0;
  const double peak = device.tf32_rate / 2 / device.multiprocessors / kClock * half;  // multiply-adds per cycle
  const double columns = shape.run_columns();
  const double products =
      static_cast<double>(shape.products()) * shape.team_runs * shape.row_tiles * shape.teams();  // of one tile's rows
  double multiply = 0;
  double operand_reads = 0;  // cycles of the pipe of shared memory
  if (shape.warpgroup) {
    multiply = products * 64 * columns * depth / (peak * 0.92);
    operand_reads = products * (64 + columns) * 32 / 128;
  } else {
    multiply = products * 16 * columns * depth / (peak * 0.55) * (shape.math == TileMath::fp32x3 ? 4.0 : 1.0);
    operand_reads = products * 4 * (1 + columns / 16 / shape.row_tiles);
  }

  const double row_cells = static_cast<double>(shape.row_units()) * shape.loaded_rows();
  const double column_cells = static_cast<double>(shape.column_units()) * shape.loaded_columns();
  const double row_chunks = shape.row_chunks();
  const double column_chunks = shape.column_chunks();
  // A load takes a cycle for each line of memory that it touches, a store four, or twice that where lanes meet a bank.
  const auto lines = [&](bool channels_last, int lanes, int vector, int width) {
    const double bytes = static_cast<double>(vector) * shape.element_bytes;
    if (channels_last) return lanes * std::max(32 / lanes * bytes / 128, 1.0);
    const double rows = std::max(static_cast<double>(lanes) * vector / width, 1.0);
    return 32.0 / lanes * std::max(lanes * bytes / 128 + 0.5, 1.25 * rows);
  };
  const bool conflicts = shape.team_columns % 8 == 0 && !shape.columns_channels_last && shape.column_vector == 1;
  const double pipe =
      operand_reads +
      row_chunks * (4 * shape.row_vector + shape.vector() * lines(shape.rows_channels_last, shape.row_lanes,
                                                                  shape.row_vector, shape.tile[3])) +
      column_chunks * (4 * shape.column_vector * (conflicts ? 2 : 1) +
                       shape.vector() * lines(shape.columns_channels_last, shape.column_lanes, shape.column_vector,
                                              shape.extent(2)));

  // Rows that begin and end inside a sector move it whole, and so do elements that no tap reads.
  const auto sectors = [&](bool channels_last, double run, std::int64_t stride) {
    if (channels_last) return 1.0;
    return (1 + 32.0 / std::max(run * static_cast<double>(stride) * shape.element_bytes, 32.0)) *
           static_cast<double>(std::min<std::int64_t>(stride, 32 / shape.element_bytes));
  };
  const double traffic =
      16 *
      (row_cells * sectors(shape.rows_channels_last, shape.tile[3] * shape.split[3], reduction.row_strides[4]) +
       column_cells * sectors(shape.columns_channels_last, shape.places(2) * (shape.split[3] > 1 ? 2 : 1),
                              reduction.column_strides[4])) /
      36;
  const double loader = row_chunks * (shape.vector() * (4 + 2 * shape.row_vector) + 24) +
                        column_chunks * (shape.vector() * (4 + 2 * shape.column_vector) + 24);
  const double ldmatrix =
      shape.warpgroup ? 0 : products * (columns / 8 * (shape.math == TileMath::fp32x3 ? 12 : 1) + 3);
  const double instructions = (loader + ldmatrix) / 4 / 0.7;

  const double sum = multiply + pipe + traffic + instructions;
  const double busy = 0.65 * std::max({multiply, pipe, traffic, instructions}) + 0.2 * sum;
  // Warps that do both load a batch, wait for it and store it between two pieces of the product, all at the same time.
  const double loading = 1100.0 * shape.batches() + pipe - operand_reads;
  const double latency = 500 + (shape.loader_warps > 0 ? std::max(loading, 1.2 * multiply) : loading + 0.6 * multiply);
  const double all = static_cast<double>(params.tiles[0]) * params.tiles[1] * params.tiles[2] * params.tiles[3];
  const double stages = std::ceil(all / params.parts);
  const double outputs = static_cast<double>(shape.block_rows()) * shape.block_sums();
  // Pieces of the weight that lie together, in bytes; results take two ways through shared memory.
  const bool whole_taps = shape.taps[1] == shape.kernel[1] && shape.taps[2] == shape.kernel[2];
  const double piece = whole_taps ? 64 : shape.taps[2] * shape.element_bytes;
  const double ending =
      shape.partial ? outputs * 4 / 24 + 1500 : outputs * (0.3 + 32 / std::min(piece, 32.0) * 4 / 24) + 3000;
  const int resident = shape.blocks_per_multiprocessor;
  const double blocks = static_cast<double>(reduce_tiles(params)) * params.parts;
  const double slots = static_cast<double>(device.multiprocessors) * resident;
  const auto wave = [&](double at_once) {
    return std::max((stages + 0.7) * busy * at_once, (stages + 1) * latency) + ending * at_once + 1500;
  };
  const double full_waves = std::floor(blocks / slots);
  const double rest = blocks - full_waves * slots;
  double cycles = full_waves * wave(resident);
  if (rest > 0) cycles += wave(std::ceil(rest / device.multiprocessors));

  const double bytes =
      static_cast<double>(element_count(problem.input_sizes()) + element_count(problem.output_sizes()) +
                          element_count(problem.weight_sizes())) *
      shape.element_bytes;
  const double sums = static_cast<double>(reduce_part_bytes(shape, params)) * params.parts;
  const double finish = shape.partial ? 3e-6 + 2 * sums / 3e12 : 0;
  return std::max(cycles / kClock, 1.1 * bytes / device.bandwidth) + 3e-6 + finish;
}

}  // namespace tconv::cuda
