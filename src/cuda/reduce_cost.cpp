#include "cuda/reduce_cost.h"

#include <algorithm>
#include <cmath>

namespace tconv::cuda {

int reduce_registers(const ReduceShape& shape) {
  const int sums = 4 * shape.row_tiles * shape.team_runs * shape.column_tiles();
  const bool split = shape.math == TileMath::fp32x3;
  const int fragments = shape.warpgroup ? 0 : (split ? 12 : 4) * shape.row_tiles + (split ? 16 : 8);
  if (shape.splits()) return 2 * sums + shape.team_runs + 40;
  if (shape.warps_read_boxes()) {
    const int vectors = 4 * shape.row_tiles + 2 * shape.team_runs * shape.column_tiles();
    return sums + 2 * vectors + 24;  // of two products
  }
  if (shape.loader_warps > 0) return sums + fragments + shape.team_runs + (shape.warpgroup ? 32 : 56);
  const int halves = shape.warpgroup && shape.element_bytes == 2 ? 24 : 0;  // that wait to be put together
  const int strided = shape.warpgroup && (shape.rows_channels_last || shape.columns_channels_last) ? 16 : 0;
  return sums + fragments + shape.batch_words() + shape.team_runs + halves + strided +
         (shape.warpgroup ? 64
          : split         ? 126
                          : 84);
}

std::size_t packed_row_bytes(const ReduceShape& shape, const ReduceParams& params) {
  if (!shape.packed) return 0;
  return std::size_t{16} * static_cast<std::size_t>(shape.row_cells()) *
         static_cast<std::size_t>(reduce_row_images(params) * reduce_stages(params));
}

std::size_t reduce_packed_bytes(const ReduceShape& shape, const ReduceParams& params) {
  if (!shape.packed) return 0;
  return packed_row_bytes(shape, params) +
         std::size_t{16} * static_cast<std::size_t>(shape.column_cells()) *
             static_cast<std::size_t>(reduce_column_images(params) * reduce_stages(params));
}

std::size_t reduce_workspace_bytes(const ReduceShape& shape, const ReduceParams& params) {
  const std::size_t sums = static_cast<std::size_t>(reduce_tiles(params)) *
                           static_cast<std::size_t>(shape.block_rows()) * static_cast<std::size_t>(shape.block_sums());
  return reduce_packed_bytes(shape, params) +
         (shape.partial ? sizeof(float) * sums * static_cast<std::size_t>(params.parts) : 0);
}

namespace {

// Constants of the model, fitted to measurements on an H200; docs/notes/reduce.md says how well they choose.
constexpr double kClock = 1.7e9;
constexpr double kWarpgroupShare = 1;  // of the tensor cores' peak that products reach
constexpr double kWarpShare = 0.341;
// Of single warps that read boxes of four-byte elements:
constexpr double kTileCycles = 6.3;  // of eight columns of sixteen rows of a product,
constexpr double kReadCycles = 3.4;  // and of an instruction that reads words of it
constexpr double kSchedulers = 4;
constexpr double kSharedScheduler = 0.9;   // what warps of the same scheduler take of the sum of theirs
constexpr double kSplitFactor = 4.63;      // products in fp32 out of TF32
constexpr double kTrafficRate = 63.6;      // bytes per cycle and multiprocessor
constexpr double kRowBytes = 60.1;         // that a row of memory costs beside its own
constexpr double kLoadCycles = 0.24;       // of the pipe to memory, for each line that a load touches
constexpr double kStoreCycles = 16.2;      // of the pipe to shared memory, for 32 cells
constexpr double kCopyCycles = 7.09;       // of the pipe to shared memory, for 32 copies
constexpr double kArrangeCycles = 8.89;    // to read 32 cells of copies and to write them
constexpr double kInstructionRate = 1.66;  // per cycle and multiprocessor
constexpr double kMix = 0.142;             // share of what is not the largest cost and does not overlap with it
constexpr double kThreadShare = 1.24;      // cuts without warps that only load take more than this sum,
constexpr double kLoaderShare = 0.94;      // those with four such warps less;
constexpr double kShortCopyShare = 0.88;   // eight help with copies shorter than 16 bytes
constexpr double kLongCopyShare = 1;       // and not with others
constexpr double kRingCycles = 50;         // of a stage, to pass it on
constexpr double kSmallBlock = 1.08;       // blocks of few sums: their stages bring more for each product
constexpr double kSmallBlockSums = 64 * 288;
constexpr double kFarParts = 1.08;  // parts of a cell that lie in different samples or slices
constexpr double kStageCycles = 870;
constexpr double kBatchCycles = 497;      // a batch of loads on its way
constexpr double kLoaderCycles = 1.24e3;  // of a stage, for a warp that only loads, beside its loads
constexpr double kTeamCycles = 200;       // and for a team beside its products
constexpr double kWarpCycles = 2.14;      // of an instruction in a warp that only loads
constexpr double kPairCycles = 6;         // of eight columns of a product, for a team of one warp
constexpr double kSplitCycles = 40;       // the same in fp32 out of TF32
constexpr double kSplitWait = 300;        // until a warpgroup's products have ended, and to add them
constexpr double kBlockCycles = 5.37e3;
constexpr double kEndRate = 86.5;  // bytes of results per cycle and multiprocessor

// Of cuts whose tensors are packed before.
constexpr double kPackRate = 3.47e12;    // bytes per second, read and written, of the kernel that packs
constexpr double kPackSeconds = 6.3e-6;  // its launch and the other kernel's, which begin together
constexpr double kBulkRate = 39.4;       // bytes per cycle and multiprocessor that the copy engine brings
constexpr double kBulkCycles = 1.04e3;   // until the first of them arrive
constexpr double kPackedStageCycles = 56;
constexpr double kHalfEmpty = 1.03;  // blocks of one wave that leave room for another, with fewer stages on their way
constexpr double kPackedBlockCycles = 2.44e3;
constexpr double kPackedPartRate = 200;  // bytes of parts per cycle and multiprocessor
constexpr double kPackedEndRate = 45.4;  // and of results

// Of cuts whose tensors come in boxes.
constexpr double kBoxMix = 0.05;  // share of what is not the largest cost
constexpr double kBoxStageCycles = 10;
constexpr double kBoxPartRate = 6e12;  // bytes of parts per second, written and read
constexpr double kBoxEndRate = 10;     // bytes of results per cycle and multiprocessor, of single warps
constexpr double kBoxBulkRate = 27;    // bytes of boxes that the copy engine brings them

// What a stage of a block asks for, in cycles.
struct StageCost {
  double multiply = 0;
  double operands = 0;  // read from shared memory by products
  double loads = 0;     // the loader's use of the pipe to memory and shared memory
  double traffic = 0;   // beyond the block
  double instructions = 0;
  double team = 0;    // what one team takes for its products
  double loader = 0;  // what one warp takes that does nothing but load
};

// What a stage of one tensor asks of the warps that do nothing but load.
struct WarpLoads {
  double pipe = 0;  // to memory and to shared memory
  double instructions = 0;

  WarpLoads operator+(const WarpLoads& other) const { return {pipe + other.pipe, instructions + other.instructions}; }
};

WarpLoads warp_loads(const ReduceShape& shape, bool of_rows) {
  const RawLines lines = shape.raw_lines(of_rows);
  const int copy = of_rows ? shape.row_copy : shape.column_copy;
  const int vector = of_rows ? shape.row_vector : shape.column_vector;
  const double channels = of_rows ? shape.loaded_rows() : shape.loaded_columns();
  const double cells = channels * (of_rows ? shape.row_units() : shape.column_units());
  const bool channels_last = shape.channels_last(of_rows);
  const int elements = channels_last ? 1 : copy;  // of a line in a copy
  const int line_copies = (lines.length + elements - 1) / elements;
  const int copies = lines.lines() * line_copies;
  // Instructions, and lines of memory that they touch.
  const int together = copies <= 16 ? 32 / copies : 1;  // channels
  const double rounds = std::ceil(copies / 32.0) / together;
  const double copying = channels_last ? copies * channels / copy / 32 : channels * rounds;
  // Elements between those that are read are passed over one by one.
  const double gaps = !of_rows && shape.apart[2] ? static_cast<double>(shape.step[2]) / shape.taps[2] : 1;
  const double spread = gaps > 1 && copy == 1 ? 3 : 1;
  const double line_bytes = static_cast<double>(line_copies) * copy * gaps * shape.element_bytes;
  const double touched =
      channels_last ? copies * std::max(channels * shape.element_bytes / 128.0, 1.0 * shape.side_warps(of_rows))
                    : channels * lines.lines() * std::max(line_bytes / 128.0 + 0.5, 1.0);
  WarpLoads loads;
  loads.pipe =
      kLoadCycles * touched + kCopyCycles * spread * copying + cells / 32 * (kArrangeCycles + 4.0 * (4.0 / vector - 1));
  loads.instructions = copying * 3 + cells / 32 * (shape.splits() ? 26 : shape.element_bytes == 4 ? 9 : 14);
  if (shape.splits()) loads.pipe += cells / 32 * kArrangeCycles / 2;
  return loads;
}

// What threads that load cells through registers ask for.
void add_thread_loads(StageCost& cost, const ReduceShape& shape, double row_step, double column_step) {
  const auto lines = [&](bool channels_last, int lanes, int vector, double width, double step) {
    const double bytes = static_cast<double>(vector) * shape.element_bytes;
    if (channels_last) return lanes * std::max(32.0 / lanes * bytes / 128, 1.0);
    const double rows = std::max(static_cast<double>(lanes) * vector / width, 1.0);
    return 32.0 / lanes * std::max(lanes * bytes * std::max(step, 1.0) / 128 + 0.5, 1.25 * rows);
  };
  const bool conflicts = shape.team_columns % 8 == 0 && !shape.columns_channels_last && shape.column_vector == 1;
  const double row_chunks = shape.row_chunks();
  const double column_chunks = shape.column_chunks();
  cost.loads = row_chunks * (kStoreCycles * shape.row_vector + kLoadCycles * shape.vector() *
                                                                   lines(shape.rows_channels_last, shape.row_lanes,
                                                                         shape.row_vector, shape.tile[3], row_step)) +
               column_chunks * (kStoreCycles * shape.column_vector * (conflicts ? 2 : 1) +
                                kLoadCycles * shape.vector() *
                                    lines(shape.columns_channels_last, shape.column_lanes, shape.column_vector,
                                          shape.extent(2), column_step));
  const double loader = row_chunks * (shape.vector() * (4 + 2 * shape.row_vector) + 24) +
                        column_chunks * (shape.vector() * (4 + 2 * shape.column_vector) + 24);
  cost.instructions = loader / kInstructionRate;
}

StageCost stage_cost(const ReduceShape& shape, const Reduction& reduction, const DeviceProperties& device) {
  StageCost cost;
  const double depth = 2.0 * shape.vector();  // pixels of one product, sixteen of two bytes
  const double half = shape.element_bytes == 2 ? 2.0 : 1.0;
  const double peak = device.tf32_rate / 2 / device.multiprocessors / kClock * half;  // multiply-adds per cycle
  const double columns = shape.run_columns();
  const bool split = shape.math == TileMath::fp32x3;
  const double products =
      static_cast<double>(shape.products()) * shape.team_runs * shape.row_tiles * shape.teams();  // of one tile's rows
  if (shape.warpgroup) {
    const double times = shape.splits() ? 3.0 : 1.0;
    cost.multiply = times * products * 64 * columns * depth / (peak * kWarpgroupShare);
    cost.operands = times * products * (64 + columns) * 32 / 128;
    // Sums of a few products are waited for and added.
    if (split) cost.team = (cost.multiply + cost.operands) / 2 / shape.teams() + shape.products() / 4.0 * kSplitWait;
  } else if (shape.warps_read_boxes()) {
    const double tiles = shape.team_runs * columns / 8;
    const double reads = 2 * (shape.row_tiles + tiles);
    cost.operands = shape.products() * shape.teams() * (2 * shape.row_tiles + tiles) * 2;
    cost.team = shape.products() * (kTileCycles * shape.row_tiles * tiles + kReadCycles * reads);
    cost.multiply = cost.team * shape.teams() / kSchedulers * kSharedScheduler;
  } else {
    cost.multiply = products * 16 * columns * depth / (peak * kWarpShare) * (split ? kSplitFactor : 1.0);
    cost.operands = products * 4 * (1 + columns / 16 / shape.row_tiles);
    cost.team = products / shape.teams() * columns / 8 * (split ? kSplitCycles : kPairCycles);
  }

  // Elements between neighbours in a row of cells.
  const double row_step = shape.rows_channels_last ? 1 : static_cast<double>(reduction.row_strides[4]);
  const double column_step = shape.columns_channels_last
                                 ? 1
                                 : static_cast<double>(reduction.column_strides[4]) *
                                       (shape.apart[2] ? static_cast<double>(shape.step[2]) / shape.taps[2] : 1.0);
  if (shape.packed || shape.boxes()) {
    cost.loads = 16.0 * shape.stage_cells() / 128;
    // The copy engine takes as long for a pixel of a few channels as for one of 128 bytes.
    const double short_rows = shape.boxes() ? 128.0 / (shape.column_box * shape.element_bytes) : 1.0;
    cost.traffic = 16.0 * (shape.row_cells() + short_rows * shape.column_cells()) /
                   (shape.warps_read_boxes() ? kBoxBulkRate : kBulkRate);
    return cost;
  }
  if (shape.loader_warps > 0) {
    const WarpLoads loads = warp_loads(shape, true) + warp_loads(shape, false);
    cost.loads = loads.pipe;
    cost.instructions = loads.instructions / kInstructionRate;
    cost.loader = loads.instructions / shape.loader_warps * kWarpCycles;
  } else {
    add_thread_loads(cost, shape, row_step, column_step);
  }
  if (!shape.warpgroup) cost.instructions += products * (columns / 8 * (split ? 12 : 1) + 3) / kInstructionRate;

  // Short rows of memory cost more than their bytes, and elements that no tap reads come with their neighbours.
  const auto sectors = [&](bool channels_last, double run, double step) {
    if (channels_last) return 1.0;
    return (1 + kRowBytes / std::max(run * step * shape.element_bytes, 16.0)) *
           std::clamp(step, 1.0, 32.0 / shape.element_bytes);
  };
  const double row_cells = static_cast<double>(shape.row_units()) * shape.loaded_rows();
  const double column_cells = static_cast<double>(shape.column_units()) * shape.loaded_columns();
  cost.traffic = 16 *
                 (row_cells * sectors(shape.rows_channels_last, shape.tile[3] * shape.split[3], row_step) +
                  column_cells * sectors(shape.columns_channels_last, shape.tile[3] * shape.step[2] * shape.split[3],
                                         column_step)) /
                 kTrafficRate;
  return cost;
}

// Cycles until all blocks have run, where wave(n) is what n blocks of a multiprocessor take at once.
template <typename Wave>
double cycles_of_waves(const ReduceShape& shape, const ReduceParams& params, const DeviceProperties& device,
                       const Wave& wave) {
  const double blocks = static_cast<double>(reduce_tiles(params)) * params.parts;
  const double slots = static_cast<double>(device.multiprocessors) * shape.blocks_per_multiprocessor;
  const double full_waves = std::floor(blocks / slots);
  const double rest = blocks - full_waves * slots;
  const double last = rest > 0 ? wave(std::ceil(rest / device.multiprocessors)) : 0;
  return full_waves * wave(static_cast<double>(shape.blocks_per_multiprocessor)) + last;
}

double share_of_sum(const ReduceShape& shape) {
  if (shape.loader_warps == 0) return kThreadShare;
  if (shape.loader_warps == 4) return kLoaderShare;
  return std::min(shape.row_copy, shape.column_copy) < shape.vector() ? kShortCopyShare : kLongCopyShare;
}

// Pieces of the weight that lie together, in bytes: what a store of 32 is used for.
double store_waste(const ReduceShape& shape) {
  const bool whole_taps = shape.taps[1] == shape.kernel[1] && shape.taps[2] == shape.kernel[2];
  return 32.0 / (whole_taps ? 32 : std::min(32, shape.taps[2] * shape.element_bytes));
}

// The copy engine brings stages into all slots of the ring: a slot waits for a copy and for the products of its stage.
double packed_cycles(const ReduceShape& shape, const ReduceParams& params, const StageCost& cost,
                     const DeviceProperties& device) {
  const double pipe = cost.operands + cost.loads;
  double busy = std::max({cost.multiply, pipe, cost.traffic});
  if (shape.warps_read_boxes()) busy += kBoxMix * (cost.multiply + pipe + cost.traffic - busy);
  const double multiplying = std::max(cost.multiply, cost.team);
  const double chain = std::max(multiplying + (shape.warps_read_boxes() ? kBoxStageCycles : kPackedStageCycles),
                                (kBulkCycles + cost.traffic + multiplying) / shape.stages);
  const double stages = std::ceil(static_cast<double>(reduce_stages(params)) / params.parts);
  const double outputs = 4.0 * shape.block_rows() * shape.block_sums();
  const double ending = shape.partial
                            ? outputs / kPackedPartRate
                            : outputs * store_waste(shape) / (shape.warps_read_boxes() ? kBoxEndRate : kPackedEndRate);
  const double cycles = cycles_of_waves(shape, params, device, [&](double at_once) {
    return std::max((stages + 0.7) * busy * at_once, (stages + 1) * chain) + ending * at_once + kPackedBlockCycles;
  });
  const bool one_wave = reduce_tiles(params) * params.parts <= device.multiprocessors;
  return shape.packed && one_wave && shape.blocks_per_multiprocessor > 1 ? kHalfEmpty * cycles : cycles;
}

}  // namespace

// Resident blocks overlap: the largest cost of a stage counts fully and the others in part; but no block is faster than
// its own chain of loads and products.
double reduce_seconds(const ReduceShape& shape, const ReduceParams& params, const Problem& problem,
                      const Reduction& reduction, const DeviceProperties& device) {
  const StageCost cost = stage_cost(shape, reduction, device);
  // Pixels of a channels-last tensor between those that taps reach are not read.
  double reached = 1;
  for (int a = 0; a < kSpatialAxes && shape.columns_channels_last; ++a)
    reached *= std::min(1.0, static_cast<double>(shape.kernel[a]) / shape.step[a]);
  const double bytes = (static_cast<double>(element_count(problem.input_sizes())) +
                        static_cast<double>(element_count(problem.output_sizes())) * reached +
                        static_cast<double>(element_count(problem.weight_sizes()))) *
                       shape.element_bytes;
  const auto packed = static_cast<double>(reduce_packed_bytes(shape, params));
  const double sums = static_cast<double>(reduce_workspace_bytes(shape, params)) - packed;
  const double finish = shape.partial ? 3e-6 + 2 * sums / (shape.warps_read_boxes() ? kBoxPartRate : 3e12) : 0;
  if (shape.packed) {
    return (bytes + packed) / kPackRate + kPackSeconds + packed_cycles(shape, params, cost, device) / kClock + finish;
  }

  if (shape.boxes()) {
    const double cycles = packed_cycles(shape, params, cost, device) / kClock;
    const double memory = 1.15 * bytes / device.bandwidth;
    return std::max(cycles, memory) + kBoxMix * std::min(cycles, memory) + 3e-6 + finish;
  }

  const double pipe = cost.operands + cost.loads;
  const double largest = std::max({cost.multiply, pipe, cost.traffic, cost.instructions});
  const double busy = largest + kMix * (cost.multiply + pipe + cost.traffic + cost.instructions - largest) +
                      (shape.loader_warps > 0 ? kRingCycles : 0);
  // Warps that only load have the next stage on its way while one is multiplied; the others load a batch, wait for it
  // and store it between two pieces of the product, all at the same time.
  const double multiplying = std::max({cost.multiply, cost.operands, cost.team});
  const double chain = shape.loader_warps > 0
                           ? std::max(kLoaderCycles + cost.loader, kTeamCycles + multiplying)
                           : kStageCycles + kBatchCycles * shape.batches() + cost.loads + multiplying;

  const double stages = std::ceil(static_cast<double>(reduce_stages(params)) / params.parts);
  // Results take two ways through shared memory.
  const double outputs = static_cast<double>(shape.block_rows()) * shape.block_sums();
  const double ending = shape.partial ? outputs * 4 / kEndRate : outputs * (0.3 + store_waste(shape) * 4 / kEndRate);
  double cycles = cycles_of_waves(shape, params, device, [&](double at_once) {
    return std::max((stages + 0.7) * busy * at_once, (stages + 1) * chain) + ending * at_once + kBlockCycles;
  });
  cycles *= share_of_sum(shape);
  if (shape.split[0] * shape.split[1] > 1) cycles *= kFarParts;

  const double memory = 1.15 * bytes / device.bandwidth;
  const bool rows_of_pixels = !shape.rows_channels_last && !shape.columns_channels_last;
  const bool small = shape.warpgroup && shape.loader_warps > 0 && rows_of_pixels && outputs <= kSmallBlockSums;
  if (small && cycles / kClock > memory) cycles *= kSmallBlock;
  return std::max(cycles / kClock, memory) + 3e-6 + finish;
}

}  // namespace tconv::cuda
