#include <algorithm>
#include <bit>
#include <cmath>

#include "cuda/kernels/tile_pack_params.cuh"
#include "cuda/tile_cost.h"
#include "cuda/tile_cuts.h"

namespace tconv::cuda {

namespace {

// Bytes to add to the outputs' where blocks write less of a channels-last pixel than a line of the cache: lines reach
// the memory in parts.
double part_line_bytes(const TileShape& shape, const Problem& problem) {
  if (!shape.output_channels_last) return 0;
  constexpr double kLine = 128;
  const double pixel = static_cast<double>(shape.out_channels) * static_cast<double>(problem.groups);
  const double whole = std::min(kLine, pixel * shape.element_bytes);
  const double part = static_cast<double>(shape.block_channels) * shape.element_bytes;
  const auto outputs =
      static_cast<double>(element_count(shape.gradient ? problem.input_sizes() : problem.output_sizes()));
  return part < whole ? 0.5 * outputs * shape.element_bytes * (whole / part - 1) : 0;
}

// What measured gradients took beyond the rest of the model: boxes bring elements that no tap reads, and products of
// few rows are mostly empty.
double gradient_surplus(const TileShape& shape) {
  if (!shape.gradient) return 1;
  if (shape.plane_boxes()) return 1;
  bool sparse = false;
  for (int a = 0; a < 3; ++a) sparse = sparse || shape.phases[a] < shape.stride[a];
  return (sparse ? 1.45 : 1.0) * (shape.row_unit < 32 ? 1.2 : 1.0);
}

// Distances at which a chunk is multiplied, in the mean over the residues that it may hold.
double mean_backs(const TileShape& shape) {
  if (shape.even_planes()) return shape.all_backs();
  return static_cast<double>(shape.all_group_taps()) / shape.all_plane_groups();
}

// How many bytes are read for each byte of weights that is wanted, where they are read in place: taps of one phase lie
// between those of others.
double read_per_weight(const TileShape& shape) {
  if (shape.copies_weights() || shape.weight_steps[2] != 1) return 1;
  double taps = 1;
  double wanted = 1;
  for (int a = 0; a < 3; ++a) {
    taps *= shape.kernel[a];
    wanted *= static_cast<double>(shape.kernel[a]) * shape.span[a] / shape.stride[a];
  }
  const double sector = 32.0 / shape.element_bytes;
  const double run = shape.span[2] == shape.stride[2] ? static_cast<double>(shape.kernel[2]) : shape.span[2];
  return std::min(taps / wanted, std::max(1.0, sector / run));
}

// What the warps take that bring a block's weights in place: loads after loads, and instructions for each cell.
double weight_loading_cycles(const TileShape& shape) {
  if (!shape.loads_weights()) return 0;
  // Short runs of channels meet in few banks.
  const int runs = shape.weight_steps[1] == 1 ? shape.block_channels / shape.weight_vector : 8;
  const double words = shape.weight_registers() >= 88 ? 32 : 16;
  // Elements that are loaded alone take a register and a sector each, whatever their size.
  const int load_bytes = shape.weight_vector * shape.element_bytes;
  const double turn = (shape.weight_steps[2] == 1 ? 1900 : 1500) *
                      (runs >= 16  ? 0.95
                       : runs >= 8 ? 1.0
                       : runs >= 4 ? 1.4
                                   : 1.8) *
                      (words == 32 ? 1.0 : 1.3) * (load_bytes <= 4 ? 1.2 : 1.0);
  const double stage_bytes = static_cast<double>(shape.weight_stage_bytes()) / shape.weight_parts();
  const double turns = std::ceil(stage_bytes / (std::min(load_bytes, 4) * words * kStreamThreads));
  const double per_cell = 4 + 2.0 * shape.vector() / shape.weight_vector;
  const double issued = stage_bytes / 16 / kStreamThreads * per_cell;
  return shape.block_chunks() * shape.stages_per_chunk() * (turns * turn + issued);
}

// What the two warps take that round a block's weights where they lie.
double rounding_cycles(const TileShape& shape) {
  if (!shape.rounds_boxes()) return 0;
  return 0.03 * shape.block_chunks() * mean_backs(shape) * shape.weight_back_pitch() * 16;
}

}  // namespace

double blocks_side_by_side(const TileShape& shape, const DeviceProperties& device) {
  const double share = shape.depth_blocks > 4 ? 104.0 : shape.depth_blocks > 2 ? 120.0 : 132.0;
  return device.multiprocessors * share / 132;
}

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
  const double backs = mean_backs(shape);
  double rows = 0;  // over all distances; a product of fewer than 32 takes as long
  for (int back = 0; back < shape.all_backs(); ++back)
    rows += std::popcount(row_tiles_with_tap(shape, back)) * std::max(shape.row_unit, 32);
  rows *= backs / shape.all_backs();
  const double products = (shape.splits() ? 3 : 1) * steps * cell_tiles * rows * 64 * 2 * shape.vector() / peak;
  const double items = steps * backs / shape.line_backs();
  const bool on_all_banks =
      shape.input_step(2) % 2 == 1 || shape.splits_rows() || shape.window > 1 || shape.plane_boxes();
  const double conflicts = (shape.tile[3] % 8 == 0 ? 1.0 : 1.12) * (on_all_banks ? 1.0 : 1.57);
  const bool pairs = shape.element_bytes == 2 && !shape.input_channels_last && shape.window == 1;
  const double words = pairs && !shape.names_vectors() ? 2 : 1;
  const double fragments = items * shape.line_fragments() * shape.column_teams * 16 * conflicts * words;
  // The warps that multiply split fragments, and add up parts while the others' products go on.
  const double parts = items / shape.part_items() * cell_tiles * shape.rows() / 2;
  // Kept weights: two teams hide less of each other's loads of fragments than three, and inputs come late where there
  // is room for two chunks only.
  const bool few_teams = shape.keeps_weights && shape.column_teams * shape.blocks_per_multiprocessor < 3;
  const double late = shape.keeps_weights && shape.input_ring < 3 && shape.blocks_per_multiprocessor == 1 ? 1.08 : 1.0;
  // Of many columns, two teams leave gaps between products that a third one fills.
  const bool fills_gaps = !shape.gradient && !shape.output_channels_last && shape.element_bytes == 4 &&
                          !shape.keeps_weights && shape.all_backs() > 1 && shape.rows() >= 128 &&
                          shape.column_teams * shape.blocks_per_multiprocessor >= 3;
  const double gaps_left = fills_gaps ? 0.92 : 1.0;
  const double multiply = shape.splits() ? 1.05 * products + 0.5 * fragments + 0.5 * parts
                                         : late * gaps_left * (0.55 * products + (few_teams ? 2.0 : 1.74) * fragments);
  const double copies =
      0.37 * chunks * (shape.input_channels_last ? 1 : shape.chunk_read_channels()) * shape.copy_places();

  const double input_bytes = chunks * shape.input_stage_bytes();
  const double weight_bytes = chunks * backs * shape.weight_back_pitch() * 16;
  const double outputs = static_cast<double>(shape.positions()) * shape.block_channels / shape.depth_blocks;
  const double stored = (outputs * 12 + static_cast<double>(shape.rows()) * shape.columns() * 2) * 0.0231;
  const double gaps = std::min(static_cast<double>(shape.output_step(2)) / shape.span[2], 8.0);
  const double traffic = (input_bytes + (shape.keeps_weights ? 0 : weight_bytes * read_per_weight(shape)) +
                          0.48 * outputs * shape.element_bytes * gaps) /
                         (shape.copies_weights() || shape.keeps_weights ? 64 : 30);
  // A block alone on its multiprocessor has nobody who multiplies while it stores; where weights are kept, its teams
  // go on by themselves. Two-byte channels-last blocks of two teams were the faster ones.
  const int others = (shape.keeps_weights ? shape.column_teams : shape.blocks_per_multiprocessor) - 1;
  const bool short_stores = shape.tensor_copies && shape.element_bytes == 2;
  const double alone = others == 0 && !short_stores ? 1.25 : others == 1 && shape.keeps_weights ? 1.08 : 1.0;
  const double turns = static_cast<double>(shape.block_channels) / shape.turn_channels();
  const bool in_rows = !shape.gradient && !shape.output_channels_last;  // what images were fitted to
  const bool image = in_rows && shape.image_row > 0;
  const double epilogue = shape.store_vector > 0 ? 0.69 * stored
                          : image                ? 0.54 * stored + 290 * turns
                                                 : stored + 147 * turns;
  const double main = std::max({multiply, copies, weight_loading_cycles(shape) * 0.25, rounding_cycles(shape) * 0.5});
  const double busy = std::max(main, traffic) + (in_rows ? 0.7 : 0.25) * std::min(main, traffic) + alone * epilogue;
  // What a block takes alone: items follow each other.
  const double sharing = shape.gathers_vectors() ? 5000 : shape.depth_blocks > 1 ? 11100 : 0;
  const double latency = (shape.stays ? 600 : 230) +
                         std::max({items / shape.item_steps * 109 + 1.41 * (products + fragments) / shape.column_teams,
                                   weight_loading_cycles(shape), rounding_cycles(shape)}) +
                         0.46 * epilogue + sharing;
  const int resident = shape.blocks_per_multiprocessor;
  const double side_by_side = blocks_side_by_side(shape, device);
  const double slots = side_by_side * resident;
  const double full_waves = std::floor(blocks / slots);
  const double rest = blocks - full_waves * slots;
  double cycles = full_waves * std::max(busy * resident, latency);
  if (rest > 0) cycles += std::max(busy * std::ceil(rest / side_by_side), latency);
  // Clusters of small blocks spread unevenly: a chip full of large ones is faster.
  if (shape.gradient && shape.depth_blocks > 1 && blocks > side_by_side) cycles *= 1.25;
  // So is one block of a multiprocessor than two of half its cells, which bring the same weights.
  const bool one_turn = shape.gradient && !shape.input_channels_last && blocks <= slots;
  if (one_turn && shape.depth_blocks == 1 && blocks > side_by_side) cycles *= 1.15;
  // Three or four teams of a block that has nothing to follow share the tensor cores less evenly than two.
  if (one_turn && shape.column_teams > 2) cycles *= 1 + 0.08 * (shape.column_teams - 2);

  const double bytes =
      static_cast<double>(element_count(problem.input_sizes()) + element_count(problem.output_sizes()) +
                          element_count(problem.weight_sizes())) *
      shape.element_bytes;
  const double packed_bytes = weight_bytes * shape.depth_blocks * static_cast<double>(tile_block_rows(shape, problem));
  // A block of the pack kernel has a share of the bandwidth.
  const double packing_blocks = static_cast<double>(problem.groups) * shape.channel_blocks() * pack_blocks(shape);
  const bool runs = shape.gradient && has_weight_runs(problem);
  const double pack_rate = shape.wide_weights ? 3.3e12
                           : runs             ? 2.5e12 * std::min(1.0, packing_blocks / device.multiprocessors)
                                              : 2.8e12 * std::min(1.0, packing_blocks / 2 / device.multiprocessors);
  // Kept weights that threads bring are all there before the first product: about 30 GB/s for a block.
  const double whole_weight =
      static_cast<double>(element_count(problem.weight_sizes())) / problem.groups * shape.element_bytes;
  const double bringing = !shape.keeps_weights ? 0 : 1.5e-6 + (shape.copies_weights() ? 0 : whole_weight / 30e9);
  const double packing = shape.packed ? 3.2e-6 + 2 * packed_bytes / pack_rate : bringing;
  // Of short rows the memory has a little more work, of torn sectors much more.
  const double ends = row_end_bytes(shape, problem);
  const double torn = torn_bytes(shape, problem);
  const double part_lines = part_line_bytes(shape, problem);
  const double transfer = 1.23 * (bytes + 5 * torn + 0.09 * ends + part_lines) / device.bandwidth;
  const bool whole_rows = shape.span[1] == shape.output_step(1) && shape.span[2] == shape.output_step(2);
  // How both kinds of blocks compare where both were measured.
  const bool strided = shape.stride[0] * shape.stride[1] * shape.stride[2] > 1;
  const double preference = strided || shape.all_backs() == 1 || shape.line_axis >= 0 ? 0.80 : 0.78;
  // Outputs of one residue lie between those of others.
  const bool scattered = shape.follows_residue(2) && !shape.output_channels_last && shape.all_taps;
  const double split = whole_rows ? 1.0 : scattered ? 1.2 : 1.03;
  const double computed = cycles / clock + (0.26 * torn + (in_rows ? 0.48 : 0.18) * ends) / device.bandwidth;
  // Among cuts that the memory bounds, those with less to compute.
  const double besides = (shape.gradient || shape.output_channels_last ? 0.05 : 0.03) * std::min(computed, transfer);
  // What rows of two bytes gain from kept weights beyond the rest of the model.
  const double kept = shape.keeps_weights && in_rows && shape.element_bytes == 2 ? 0.93 : 1.0;
  const double seconds = ((std::max(computed, transfer) + besides) * split + 5.5e-6 + packing) * preference * kept *
                         gradient_surplus(shape);
  // A call that is over before its launches are is better off with one, even where that takes a little longer.
  if (shape.packed || problem.batch > 1) return seconds;
  constexpr double kLaunch = 4e-6;
  return blocks <= slots || shape.splits() || shape.gradient ? 0.8 * seconds
                                                             : std::max(0.92 * seconds, seconds - kLaunch);
}

}  // namespace tconv::cuda
