#include "cuda/reduce_fit.h"

#include <algorithm>
#include <array>
#include <limits>

#include "cuda/reduce_cost.h"

namespace tconv::cuda {
namespace {

constexpr std::int64_t kIntMax = std::numeric_limits<int>::max();

int round_up(int a, int b) { return (a + b - 1) / b * b; }

// The length of the vectors in which a tensor can be loaded: neighbours in memory at multiples of the length.
int longest_vector(const Strides& strides, std::int64_t offset, bool channels_last, std::int64_t channels,
                   std::int64_t width, int most) {
  int vector = most;
  const auto divides = [&](std::int64_t value) { return value % vector == 0; };
  const int along = channels_last ? 1 : 4;
  const auto fits = [&] {
    if (strides[static_cast<std::size_t>(along)] != 1 || !divides(channels_last ? channels : width)) return false;
    for (int i = 0; i < 5; ++i) {
      if (i != along && !divides(strides[static_cast<std::size_t>(i)])) return false;
    }
    return divides(offset);
  };
  while (vector > 1 && !fits()) vector /= 2;
  return vector;
}

// How far the blocks' first elements of the shifted tensor lie behind multiples of what is loaded at once.
int most_lead(const ReduceShape& shape, const Reduction& reduction) {
  const std::int64_t unit = shape.column_unit();
  std::int64_t most = 0;
  for (int tap = 0; tap < shape.kernel[2]; tap += shape.taps[2]) {
    const std::int64_t first = std::int64_t{tap} * shape.tap_step[2] - reduction.axes[2].pad;
    most = std::max(most, (first % unit + unit) % unit);
  }
  return static_cast<int>(most);
}

// Lanes of a warp along the units of a tensor; the others go along the channels. Sixteen bytes of eight lanes at a time
// reach shared memory: they meet no bank twice where units start on different banks (`padded`) and half of them where
// units touch.
int lanes_of(bool channels_last, bool padded, int vector, int units, int channels) {
  if (channels_last) {
    int lanes = 1;
    while (lanes < 8 && 32 / lanes >= 2 * (channels / vector)) lanes *= 2;
    return lanes;
  }
  int others = padded ? vector : vector > 1 ? 8 : 4;
  while (others > 1 && others >= 2 * channels) others /= 2;
  int lanes = 32 / others;
  while (lanes > 1 && lanes >= 2 * (units / vector)) lanes /= 2;
  return lanes;
}

// Inside a stage, offsets from its first element are 32-bit.
bool offsets_fit(const ReduceShape& shape, const Reduction& reduction) {
  const auto reach = [&](const Strides& strides, int channels, const std::array<int, 3>& extent) {
    double elements =
        static_cast<double>(strides[0]) * (shape.tile[0] - 1) + static_cast<double>(strides[1]) * channels;
    for (int a = 0; a < kSpatialAxes; ++a) elements += static_cast<double>(strides[2 + a]) * extent[a];
    return elements * shape.element_bytes;
  };
  std::array<int, 3> columns{};
  for (int a = 0; a < kSpatialAxes; ++a) columns[a] = shape.reach(a, shape.extent(a) - 1);
  return reach(reduction.row_strides, shape.loaded_rows(), {shape.tile[1], shape.tile[2], shape.tile[3]}) <
             static_cast<double>(kIntMax) &&
         reach(reduction.column_strides, shape.loaded_columns(), columns) < static_cast<double>(kIntMax);
}

// The vectors that a tile of pixels allows.
void set_vectors(ReduceShape& shape, const Reduction& reduction, const ReduceOptions& options) {
  const int most = options.aligned ? 4 : 1;
  shape.row_vector = shape.column_vector = 1;
  if (most == 1) return;
  if (shape.rows_channels_last) {
    if (shape.element_bytes == 2) {
      shape.row_vector = longest_vector(reduction.row_strides, reduction.row_offset, true, shape.rows, 0, 2);
    }
  } else {
    shape.row_vector =
        longest_vector(reduction.row_strides, reduction.row_offset, false, 0, reduction.axes[2].row_size, most);
    while (shape.tile[3] % shape.row_vector != 0) shape.row_vector /= 2;
  }
  if (shape.columns_channels_last) {
    if (shape.element_bytes == 2) {
      shape.column_vector =
          longest_vector(reduction.column_strides, reduction.column_offset, true, shape.columns, 0, 2);
    }
  } else if (!shape.apart[2]) {
    shape.column_vector = longest_vector(reduction.column_strides, reduction.column_offset, false, 0,
                                         reduction.axes[2].column_size, most);
    while (shape.tile[3] * shape.step[2] % shape.column_vector != 0) shape.column_vector /= 2;
  }
}

// Elements that warps which only load copy at once, and cells that they arrange at once; false: they cannot copy.
bool set_copies(ReduceShape& shape, const Reduction& reduction) {
  const int most = shape.vector();
  shape.row_copy = longest_vector(reduction.row_strides, reduction.row_offset, shape.rows_channels_last, shape.rows,
                                  reduction.axes[2].row_size, most);
  shape.column_copy = longest_vector(reduction.column_strides, reduction.column_offset, shape.columns_channels_last,
                                     shape.columns, reduction.axes[2].column_size, most);
  // Every stage starts at a multiple of a copy.
  const int width = shape.tile[3] * shape.split[3];
  while (!shape.rows_channels_last && width % shape.row_copy != 0) shape.row_copy /= 2;
  while (!shape.columns_channels_last && width * shape.step[2] % shape.column_copy != 0) shape.column_copy /= 2;
  shape.row_vector = shape.column_vector = most;
  while (shape.tile[3] % shape.row_vector != 0) shape.row_vector /= 2;
  while (shape.tile[3] * shape.place_step(2) % shape.column_vector != 0) shape.column_vector /= 2;
  if (shape.rows_channels_last) shape.row_vector = 1;
  if (shape.columns_channels_last) {
    shape.column_vector = 1;
    while (shape.block_columns() < shape.columns && shape.block_columns() % shape.column_copy != 0) {
      shape.column_copy /= 2;
    }
  } else if (shape.apart[2]) {
    // The taps of a pixel together, if they are neighbours.
    if (shape.tap_step[2] != 1) shape.column_copy = 1;
    const std::int64_t pad = reduction.axes[2].pad;
    while (shape.taps[2] % shape.column_copy != 0 || shape.step[2] % shape.column_copy != 0 ||
           pad % shape.column_copy != 0) {
      shape.column_copy /= 2;
    }
  }
  // The smallest copy has four bytes; a kernel that packs can do without copies.
  const int least = shape.packed ? 1 : 4 / shape.element_bytes;
  return shape.row_copy >= least && shape.column_copy >= least;
}

// How warps that only load share out the two tensors: each has channels of both, or each of one only. A warp that has
// fewer than eight channels of a tensor meets the same banks of shared memory with several of its lanes.
void share_out(ReduceShape& shape) {
  const auto cycles = [&](bool of_rows, int warps) {
    const int channels = of_rows ? shape.loaded_rows() : shape.loaded_columns();
    const int own = (channels + warps - 1) / warps;
    const int lanes = own <= 1 ? 1 : own <= 2 ? 2 : own <= 4 ? 4 : 8;
    const double units = of_rows ? shape.row_units() : shape.column_units();
    return units * own * (1 + 8.0 / lanes);
  };
  shape.row_warps = shape.column_warps = shape.loader_warps;
  if (shape.loader_warps == 0 || shape.packed || shape.rows_channels_last || shape.columns_channels_last) return;
  double least = cycles(true, shape.loader_warps) + cycles(false, shape.loader_warps);
  for (int rows = 1; rows < shape.loader_warps; ++rows) {
    const double most = std::max(cycles(true, rows), cycles(false, shape.loader_warps - rows));
    if (most >= 0.95 * least) continue;
    least = most;
    shape.row_warps = rows;
    shape.column_warps = shape.loader_warps - rows;
  }
}

int blocks_by_shared(const ReduceShape& shape, const DeviceProperties& device) {
  const auto shared = static_cast<std::size_t>(shape.shared_bytes());
  if (shared > device.shared_bytes_per_block) return 0;
  return static_cast<int>(device.shared_bytes_per_multiprocessor / (shared + 1024));
}

// Adds stages while the blocks still fit: of copied lines first, then of cells.
void add_stages(ReduceShape& shape, const DeviceProperties& device) {
  const bool whole = shape.packed || shape.boxes();
  const int most_stages = whole ? 6 : 4;
  for (bool grown = true; grown;) {
    grown = false;
    for (int ReduceShape::* stages : {&ReduceShape::raw_stages, &ReduceShape::stages}) {
      if (shape.*stages == most_stages || (whole && stages == &ReduceShape::raw_stages)) continue;
      ++(shape.*stages);
      if (blocks_by_shared(shape, device) >= shape.blocks_per_multiprocessor) {
        grown = true;
      } else {
        --(shape.*stages);
      }
    }
  }
}

// What split factors in single warps take beyond the estimate, which is sm_90's.
int more_registers(const ReduceShape& shape, const DeviceProperties& device) {
  const bool split = shape.math == TileMath::fp32x3 && !shape.warpgroup;
  return split && device.arch != 90 ? 10 : 0;
}

// Warps that only load: all threads start with the same registers; where teams need more, those that load give up what
// they don't need.
bool complete_divided(ReduceShape& shape, const DeviceProperties& device, int most_threads) {
  const int loader_registers = shape.warps_read_boxes() ? 56 : shape.packed || shape.boxes() ? 40 : 88;
  constexpr int kRingRegisters = 8;  // of a team, for its way around the stages
  constexpr int kSpare = 16;         // that all threads should have left where registers don't change hands
  const int registers = reduce_registers(shape) + kRingRegisters + more_registers(shape, device);
  const int team_threads = 32 * shape.team_warps();
  const int loader_threads = 32 * shape.loader_warps;
  shape.loader_registers = loader_registers;
  for (int blocks = std::min({blocks_by_shared(shape, device), most_threads / shape.threads(), 4}); blocks >= 1;
       --blocks) {
    // Four schedulers share the registers, and the warps of a block go around among them.
    const int start = std::min(65536 / blocks / round_up(shape.threads(), 128) / 8 * 8, 248);
    // One instruction must fit what all threads start with.
    if (start < shape.loader_registers || start < 4 * shape.column_tiles() + 32) continue;
    shape.blocks_per_multiprocessor = blocks;
    shape.team_registers = 0;
    // Registers change hands between warpgroups; warps that read boxes come in whole ones where they need more.
    const bool changes = shape.warpgroup || (shape.warps_read_boxes() && shape.team_warps() % 4 == 0);
    if (!changes && registers > start) continue;
    if (changes && registers + kSpare > start) {
      const int most = (start * shape.threads() - shape.loader_registers * loader_threads) / team_threads / 8 * 8;
      if (most < registers) continue;
      shape.team_registers = std::min({most, round_up(registers + 24, 8), 240});
    }
    add_stages(shape, device);
    return true;
  }
  return false;
}

constexpr int kWarpgroupThreads = 2048;  // of a multiprocessor that has wgmma

// Fits lanes, batches and residency around rows, columns and pixels; false when it cannot be built.
bool complete(ReduceShape& shape, const DeviceProperties& device) {
  shape.stages = shape.raw_stages = 2;
  shape.partial = true;
  // What a descriptor can say.
  if (shape.warpgroup && shape.place_step(2) * shape.team_columns >= 1 << 14) return false;
  const int most_threads = (device.arch == 80 || device.arch >= 90) && device.arch != 120 ? 2048 : 1536;
  if (shape.loader_warps > 0) {
    shape.row_lanes = shape.column_lanes = 32;  // of threads that load; here there are none
    shape.most_cells = 8;
    if (shape.packed && static_cast<std::size_t>(shape.pack_bytes()) > device.shared_bytes_per_block) return false;
    return complete_divided(shape, device, most_threads);
  }
  if (shape.splits()) return false;
  shape.row_lanes = lanes_of(shape.rows_channels_last, true, shape.row_vector, shape.row_units(), shape.loaded_rows());
  shape.column_lanes = lanes_of(shape.columns_channels_last, shape.team_columns % 2 == 1, shape.column_vector,
                                shape.column_units(), shape.loaded_columns());
  shape.most_cells = shape.element_bytes == 2 && shape.row_vector + shape.column_vector < 4 ? 4 : 8;
  if (shape.batches() > 8) return false;
  // Four schedulers share the registers, and the warps of a block go around among them.
  const int threads = round_up(shape.threads(), 128);
  const int registers = reduce_registers(shape) + more_registers(shape, device);
  if (registers > 250 || threads * registers > 65536) return false;
  const int by_registers = 65536 / (threads * round_up(registers, 8));
  const int by_shared = blocks_by_shared(shape, device);
  shape.blocks_per_multiprocessor = std::min({by_registers, by_shared, most_threads / shape.threads(), 8});
  return shape.blocks_per_multiprocessor > 0;
}

}  // namespace

bool fit_to_device(ReduceShape& shape, const Reduction& reduction, const DeviceProperties& device,
                   const ReduceOptions& options) {
  if (shape.loader_warps == 0) {
    set_vectors(shape, reduction, options);
  } else if (device.arch < 90 || !options.aligned || !set_copies(shape, reduction)) {
    return false;
  }
  share_out(shape);
  shape.most_lead = most_lead(shape, reduction);
  return offsets_fit(shape, reduction) && complete(shape, device);
}

bool fit_boxes_to_device(ReduceShape& shape, const DeviceProperties& device) {
  shape.stages = 2;
  shape.partial = true;
  shape.loader_warps = shape.row_warps = shape.column_warps = 4;
  shape.row_vector = shape.column_vector = 1;
  shape.row_copy = shape.column_copy = shape.vector();
  shape.row_lanes = shape.column_lanes = 32;
  shape.most_cells = 8;
  return complete_divided(shape, device, kWarpgroupThreads);
}

}  // namespace tconv::cuda
