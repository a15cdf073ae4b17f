#include <algorithm>
#include <bit>
#include <cmath>

#include "cuda/tile_cost.h"

namespace tconv::cuda {

// Like tile_seconds, for blocks whose warps have roles. What bounds them is the way of a team from fragments to
// products, the traffic, or one copy after the other.
double stream_seconds(const TileShape& shape, const Problem& problem, const DeviceProperties& device) {
  const auto blocks = static_cast<double>(tile_blocks(shape, problem));
  const double clock = 1.7e9;
  const double half = shape.element_bytes == 2 ? 2.0 : 1.0;
  const double peak = device.tf32_rate / 2 / device.multiprocessors / clock * half;
  const double chunks = shape.block_chunks();
  const double steps = chunks * shape.slabs / 2;
  const double cell_tiles = shape.column_tiles / 8.0 * shape.column_teams;
  double rows = 0;  // over all distances
  for (int back = 0; back < shape.all_backs(); ++back)
    rows += std::popcount(row_tiles_with_tap(shape, back)) * shape.row_unit;
  const double products = steps * cell_tiles * rows * 64 * 2 * shape.vector() / peak;
  const double items = steps * shape.all_backs() / shape.line_backs();
  const bool on_all_banks = !shape.gradient || shape.stride[2] % 2 == 1 || shape.splits_rows();
  const double conflicts = (shape.tile[3] % 8 == 0 ? 1.0 : 1.19) * (on_all_banks ? 1.0 : 2.1);
  const double words = shape.element_bytes == 2 && !shape.input_channels_last ? 2 : 1;
  const double fragments = items * shape.line_fragments() * shape.column_teams * 16 * conflicts * words;
  const double multiply = 0.63 * products + 2.1 * fragments + 6.5 * chunks * shape.column_teams;
  const double copies = 0.64 * chunks * (shape.input_channels_last ? 1 : shape.chunk_channels()) * shape.copy_places();

  const double input_bytes = chunks * shape.input_stage_bytes();
  const double weight_bytes = chunks * shape.all_backs() * shape.slabs * shape.rows() * 16;
  const double outputs = static_cast<double>(shape.positions()) * shape.block_channels / shape.depth_blocks;
  const double gaps = static_cast<double>(shape.output_step(2)) / shape.span[2];
  const double row_bytes = static_cast<double>(shape.tile[3]) * shape.span[2] * shape.element_bytes;
  const double output_sectors = shape.output_channels_last ? 1.0 : (1 + 19.0 / row_bytes) * std::min(gaps, 8.0);
  const double traffic = (input_bytes + weight_bytes + 2.4 * outputs * shape.element_bytes * output_sectors) / 52;
  const double epilogue = (outputs * 12 + static_cast<double>(shape.rows()) * shape.columns() * 2) * 0.0115;
  const double main = std::max(multiply, copies);
  const double busy = std::max(main, traffic) + 0.06 * std::min(main, traffic) + epilogue;
  // What a block takes alone: items follow each other.
  const double latency = 3900 + items * 167 + 0.52 * (products + fragments) / shape.column_teams + 1.8 * epilogue +
                         (shape.depth_blocks > 1 ? 8500 : 0);
  const int resident = shape.blocks_per_multiprocessor;
  const double slots = static_cast<double>(device.multiprocessors) * resident;
  const double full_waves = std::floor(blocks / slots);
  const double rest = blocks - full_waves * slots;
  double cycles = full_waves * std::max(busy * resident, latency);
  if (rest > 0) cycles += std::max(busy * std::ceil(rest / device.multiprocessors), latency);

  const double bytes =
      static_cast<double>(element_count(problem.input_sizes()) + element_count(problem.output_sizes()) +
                          element_count(problem.weight_sizes())) *
      shape.element_bytes;
  const double packed_bytes = weight_bytes * shape.depth_blocks * static_cast<double>(tile_block_rows(shape, problem));
  const double packing = 6.5e-6 + 2 * packed_bytes / 1.48e12;
  const bool whole_rows = shape.span[1] == shape.output_step(1) && shape.span[2] == shape.output_step(2);
  // How both kinds of blocks compare where both were measured.
  const bool strided = shape.stride[0] * shape.stride[1] * shape.stride[2] > 1;
  const double preference = (whole_rows ? 0.98 : 1.0) * (strided || shape.all_backs() == 1 ? 0.88 : 1.02);
  return (std::max(cycles / clock, 1.29 * bytes / device.bandwidth) + 3e-6 + packing) * preference;
}

}  // namespace tconv::cuda
