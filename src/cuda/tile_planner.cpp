#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "cuda/tile.h"
#include "cuda/tile_cost.h"
#include "tconv/phases.h"

namespace tconv::cuda {
namespace {

constexpr std::int64_t kIntMax = std::numeric_limits<int>::max();

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

TileMath math_of(const Problem& problem) {
  switch (problem.dtype) {
    case DType::f16: return TileMath::f16;
    case DType::bf16: return TileMath::bf16;
    default: return problem.precision == Precision::tf32 ? TileMath::tf32 : TileMath::fp32x3;
  }
}

// What every candidate of a problem shares.
TileShape base_shape(const Problem& problem) {
  TileShape shape{};
  shape.math = math_of(problem);
  shape.element_bytes = static_cast<int>(size_of(problem.dtype));
  shape.gradient = problem.direction == Direction::grad_input;
  shape.channels = static_cast<int>(problem.in_channels_per_group());
  shape.out_channels = static_cast<int>(problem.out_channels_per_group());
  if (shape.gradient) std::swap(shape.channels, shape.out_channels);
  shape.bias = problem.bias && !shape.gradient;
  for (int a = 0; a < kSpatialAxes; ++a) {
    const Axis& axis = problem.axes[a];
    shape.kernel[a] = static_cast<int>(axis.kernel);
    shape.stride[a] = static_cast<int>(axis.stride);
    shape.dilation[a] = static_cast<int>(axis.dilation);
    shape.phases[a] = shape.planes[a] = 1;
    shape.back_step[a] = axis.stride == 1 ? shape.dilation[a] : 1;
    shape.backs[a] = static_cast<int>(-site_of(axis, axis.kernel - 1).shift) / shape.back_step[a] + 1;
  }
  const Strides& input_strides = tile_input_strides(problem);
  shape.input_channels_last = input_strides[1] == 1 && shape.channels * problem.groups > 1;
  shape.output_channels_last = tile_output_strides(problem)[1] == 1 && shape.out_channels * problem.groups > 1;
  bool wide = shape.input_channels_last && shape.channels % shape.vector() == 0;
  for (const int d : {0, 2, 3, 4}) wide = wide && input_strides[d] % shape.vector() == 0;
  shape.wide_input = wide;
  return shape;
}

std::vector<int> residues_with_taps(const Axis& axis) {
  std::set<int> residues;
  for (std::int64_t k = 0; k < axis.kernel && static_cast<std::int64_t>(residues.size()) < axis.stride; ++k) {
    residues.insert(static_cast<int>(site_of(axis, k).residue));
  }
  return {residues.begin(), residues.end()};
}

// Phases with taps times output channels of a group: the rows of the whole problem.
std::int64_t rows_of(const Problem& problem) {
  if (problem.direction == Direction::grad_input) return problem.in_channels_per_group();
  std::int64_t rows = problem.out_channels_per_group();
  for (const Axis& axis : problem.axes) rows *= static_cast<std::int64_t>(residues_with_taps(axis).size());
  return rows;
}

constexpr std::int64_t kFewRows = 4;

// Gives a block the residues [0, span) of an axis (and of every later block the next span).
bool set_span(TileShape& shape, const Axis& axis, int a, int span) {
  shape.span[a] = span;
  shape.slots[a] = span;
  if (span < shape.output_step(a) || shape.gradient) return true;
  const std::vector<int> residues = residues_with_taps(axis);
  if (static_cast<std::int64_t>(residues.size()) == axis.stride) return true;
  if (span > 15) return false;
  shape.slots[a] = static_cast<int>(residues.size());
  shape.slot_nibbles[a] = ~0ULL;
  shape.residue_nibbles[a] = 0;
  for (std::size_t slot = 0; slot < residues.size(); ++slot) {
    shape.slot_nibbles[a] &= ~(15ULL << (4 * residues[slot]));
    shape.slot_nibbles[a] |= static_cast<unsigned long long>(slot) << (4 * residues[slot]);
    shape.residue_nibbles[a] |= static_cast<unsigned long long>(residues[slot]) << (4 * slot);
  }
  return true;
}

// Whether each phase of a block has a tap at each distance, so that no product can be left out.
bool every_phase_has_every_tap(const TileShape& shape) {
  if (shape.gradient) return true;
  for (int a = 0; a < kSpatialAxes; ++a) {
    if (shape.span[a] < shape.stride[a]) continue;  // differs from block to block: see skips_backs
    for (int slot = 0; slot < shape.slots[a]; ++slot) {
      for (int back = 0; back < shape.backs[a]; ++back) {
        if (!shape.has_tap(a, shape.residue_of(a, slot), back)) return false;
      }
    }
  }
  return true;
}

// Which residues of a gradient's axes lie in a patch together: those of all axes as long as they are few, otherwise
// chunk after chunk some of them. Where the taps do not divide evenly among them, chunks multiply by zeros.
bool set_planes(const Problem& problem, TileShape& shape) {
  constexpr int kFewPlanes = 4;
  constexpr int kMostGroups = 32;  // a bit each in the loader
  int together = 1;
  for (int a = 0; a < kSpatialAxes; ++a) {
    const std::vector<int> residues = residues_with_taps(problem.axes[a]);
    shape.phases[a] = static_cast<int>(residues.size());
    if (shape.stride[a] > 15) shape.phases[a] = shape.stride[a];
    if (shape.phases[a] < shape.stride[a]) {
      for (std::size_t phase = 0; phase < residues.size(); ++phase)
        shape.residue_nibbles[a] |= static_cast<unsigned long long>(residues[phase]) << (4 * phase);
    }
    shape.planes[a] = shape.phases[a];
    together *= shape.planes[a];
    if (together > 65536) return false;
  }
  for (int a = 0; a < kSpatialAxes; ++a) {
    const int phases = shape.phases[a];
    int most = kFewPlanes;
    // An odd number of phases of the width stays together: each alone would read every sector for itself.
    if (a == 2 && phases % 2 == 1 && phases < 2 * kFewPlanes) most = 2 * kFewPlanes;
    if (together <= most) continue;
    const int others = together / phases;
    int planes = std::max(1, most / others);
    if (phases < shape.stride[a]) planes = 1;  // those of a patch must be neighbours
    while (phases % planes != 0) --planes;
    planes = std::max(planes, static_cast<int>(ceil_div(phases, kMostGroups)));
    shape.planes[a] = planes;
    together = others * planes;
  }
  return shape.all_plane_groups() <= kMostGroups;
}

// Blocks of 64 rows by 128 cells that one sample gives: the measure of how well it fills a chip.
double blocks_of_sample(const Problem& problem) {
  double cells = 1;
  for (int a = 0; a < kSpatialAxes; ++a) cells *= static_cast<double>(tile_cells(problem, a));
  return std::ceil(static_cast<double>(rows_of(problem)) / 64) * std::ceil(cells / 128) *
         static_cast<double>(problem.groups);
}

// Blocks of a cluster that share a gradient's tile: as many as a sample needs to fill the chip, each with a long sum
// left, since adding up costs as much as many products.
int gradient_depth_blocks(const Problem& problem, const TileShape& shape) {
  constexpr double kLeastDepth = 640;
  double depth = shape.channels;
  for (const int kernel : shape.kernel) depth *= kernel;
  int blocks = 1;
  for (const int share : {2, 4, 8}) {
    const double most = share == 2 ? 200 : 132;
    if (depth >= 2048 && depth / share >= kLeastDepth && shape.chunks() % share == 0 &&
        blocks_of_sample(problem) * share <= most)
      blocks = share;
  }
  return blocks;
}

// Everything that sets the order of the sums, from one sample alone: channels per chunk, and who shares a sum when the
// sample alone could not fill the chip (the blocks of a cluster, or the warps of a block).
void set_depth(const Problem& problem, TileShape& shape) {
  const double blocks = blocks_of_sample(problem);
  const bool small = blocks < 48;
  const int products = shape.all_backs();
  int slabs = products >= 8 ? 2 : products >= 2 ? 4 : 8;
  if (small) slabs = products >= 9 ? 2 : products >= 4 ? 4 : 8;
  const int needed = static_cast<int>(round_up(ceil_div(shape.channels, shape.vector()), 2));
  shape.slabs = std::min(slabs, needed);
  if (shape.slabs == 6) shape.slabs = 4;
  // A patch of several planes is that much larger.
  while (shape.gradient && shape.slabs > 2 && shape.slabs * shape.all_planes() > 8) shape.slabs /= 2;
  shape.depth_teams = 1;
  shape.depth_blocks = 1;
  if (!shape.warpgroup) {
    if (small && products * shape.slabs / 2 >= 4) shape.depth_teams = 4;
    return;
  }
  if (shape.gradient) {
    shape.depth_blocks = gradient_depth_blocks(problem, shape);
    return;
  }
  // A cluster costs a few microseconds: each block must keep a long enough sum. A sample of very few blocks comes in
  // batches (a GAN's first layers): splitting it to fill the chip alone would only make those slower.
  const double steps = std::ceil(static_cast<double>(shape.channels) / (2 * shape.vector())) * products;
  for (const int share : {2, 4}) {
    const bool fills = blocks * share <= 160 && steps / share >= 64;
    const bool has_long_sums = blocks * share <= 400 && steps / share >= 128;
    if (blocks >= 8 * share && shape.chunks() % share == 0 && (fills || has_long_sums)) shape.depth_blocks = share;
  }
}

using CellTile = std::array<int, 4>;

// Lengths into which `whole` may be cut, none above `most`: even cuts and round numbers.
std::vector<int> cut_lengths(std::int64_t whole, std::int64_t most) {
  most = std::max<std::int64_t>(std::min(whole, most), 1);
  std::vector<int> lengths;
  std::int64_t pieces = ceil_div(whole, most);
  for (int i = 0; i < 4; ++i, ++pieces)
    lengths.push_back(static_cast<int>(std::max<std::int64_t>(ceil_div(whole, pieces), 1)));
  for (int power = 8; power <= most; power *= 2) lengths.push_back(power);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

// Boxes of cells that fill at most `columns` columns of the shape's teams.
std::vector<CellTile> cell_tiles(const Problem& problem, TileShape shape, int columns) {
  const std::array<std::int64_t, 4> size = {std::max<std::int64_t>(problem.batch, 1), tile_cells(problem, 0),
                                            tile_cells(problem, 1), tile_cells(problem, 2)};
  const auto fits = [&](int n, int d, int h, int w) {
    const CellTile tile = {n, d, h, w};
    std::copy(tile.begin(), tile.end(), std::begin(shape.tile));
    return shape.needed_columns() <= columns;
  };
  // How often the next outer length fits, given the inner ones.
  const auto most = [&](auto&& fits_length) {
    std::int64_t length = 1;
    while (length < columns && fits_length(static_cast<int>(length + 1))) ++length;
    return length;
  };
  std::vector<CellTile> tiles;
  for (const int w : cut_lengths(size[3], columns)) {
    if (w < std::min<std::int64_t>(size[3], 16)) continue;  // rows of memory in useful lengths
    for (const int h : cut_lengths(size[2], most([&](int length) { return fits(1, 1, length, w); }))) {
      for (const int d : cut_lengths(size[1], most([&](int length) { return fits(1, length, h, w); }))) {
        if (!fits(1, d, h, w)) continue;
        int n = 1;  // several samples only when each is whole
        if (d == size[1] && h == size[2] && w == size[3]) {
          n = static_cast<int>(std::min(size[0], most([&](int length) { return fits(length, d, h, w); })));
        }
        tiles.push_back({n, d, h, w});
      }
    }
  }
  return tiles;
}

// Inside a block, offsets from the sample's and the chunk's first element are 32-bit.
bool offsets_fit(const TileShape& shape, const Problem& problem) {
  const auto span = [](const Strides& strides, const std::array<std::int64_t, 5>& extent) {
    double reach = 0;
    for (std::size_t i = 0; i < extent.size(); ++i)
      reach += static_cast<double>(strides[i]) * static_cast<double>(extent[i]);
    return reach;
  };
  std::array<std::int64_t, 5> patch = {shape.tile[0] - 1, shape.chunk_channels() - 1, 0, 0, 0};
  const std::array<std::int64_t, 5> taps = {shape.chunk_channels() - 1, shape.out_channels - 1, shape.kernel[0] - 1,
                                            shape.kernel[1] - 1, shape.kernel[2] - 1};
  std::array<std::int64_t, 5> outputs = {shape.tile[0] - 1, 0, 0, 0, 0};
  for (int a = 0; a < kSpatialAxes; ++a) {
    outputs[2 + a] = static_cast<std::int64_t>(shape.tile[1 + a] + 1) * shape.output_step(a);
    // A gradient counts from the patch's own first element.
    patch[2 + a] =
        shape.gradient ? static_cast<std::int64_t>(shape.patch(1 + a)) * shape.stride[a] : problem.axes[a].input - 1;
  }
  return span(tile_input_strides(problem), patch) * shape.element_bytes < static_cast<double>(kIntMax) &&
         (!shape.output_channels_last || span(tile_output_strides(problem), outputs) < static_cast<double>(kIntMax)) &&
         (shape.packed || span(problem.weight_strides, taps) * shape.element_bytes < static_cast<double>(kIntMax));
}

// Whether a packed copy of the weights may be made: a grid of the pack kernel has limits, and blocks of a few phases
// out of many would multiply the copy's size.
bool may_pack(const TileShape& shape, const Problem& problem) {
  if (problem.groups > 65535 || shape.out_channels / shape.block_channels > 60000) return false;
  const double weights = static_cast<double>(element_count(problem.weight_sizes())) * shape.element_bytes;
  const double packed =
      static_cast<double>(shape.packed_bytes()) * static_cast<double>(tile_block_rows(shape, problem));
  return packed < 8 * weights + (64 << 20);
}

// Whether a gradient's weights can be read where they lie: from one stage or group of planes to the next, all taps must
// move by the same distance.
bool reads_in_place(const TileShape& shape, const Problem& problem) {
  const double reach = static_cast<double>(shape.rows()) * static_cast<double>(problem.weight_strides[0]) +
                       static_cast<double>(shape.chunk_channels()) * static_cast<double>(problem.weight_strides[1]);
  if (reach * shape.element_bytes > static_cast<double>(kIntMax) / 2) return false;
  if (shape.stages_per_chunk() > 1) {
    const Strides& strides = problem.weight_strides;
    return shape.all_plane_groups() == 1 && strides[3] == strides[4] * problem.axes[2].kernel &&
           strides[2] == strides[3] * problem.axes[1].kernel;
  }
  for (int a = 0; a < kSpatialAxes; ++a) {
    if (shape.plane_groups(a) > 1 && (shape.dilation[a] != 1 || shape.phases[a] * shape.backs[a] != shape.kernel[a] ||
                                      shape.phases[a] % shape.planes[a] != 0))
      return false;
  }
  return true;
}

// Fits stages and residency around rows and columns; false when it cannot be built.
bool complete(TileShape& shape, const Problem& problem, const DeviceProperties& device) {
  shape.all_taps = every_phase_has_every_tap(shape);
  const int most_weight_bytes = (shape.warpgroup ? 20 : 40) * 1024;
  const int per_back = shape.slabs * shape.rows() * 16;
  if (shape.packed) {
    shape.stage_backs = std::clamp(most_weight_bytes / per_back, 1, shape.all_backs());
    shape.stage_backs = static_cast<int>(ceil_div(shape.all_backs(), ceil_div(shape.all_backs(), shape.stage_backs)));
  } else if (shape.gradient) {
    const int cells = shape.element_bytes == 2 ? 4 : 8;  // of a thread, on their way
    const int most = cells * shape.threads() / (shape.slabs * shape.rows());
    shape.stage_backs = static_cast<int>(ceil_div(shape.all_backs(), ceil_div(shape.all_backs(), std::max(most, 1))));
    if (!reads_in_place(shape, problem)) return false;
  } else {
    shape.stage_backs = shape.all_backs();
    if (loads_in_place(shape) > 40) return false;
  }
  shape.unroll = shape.stage_backs * shape.slabs / 2 % 3 == 0 ? 3 : 2;
  const int registers = tile_registers(shape);
  if (registers > 250 || shape.threads() * registers > 65536) return false;
  const std::size_t shared = static_cast<std::size_t>(shape.shared_bytes());
  if (shared > device.shared_bytes_per_block) return false;
  const int by_registers = 65536 / (shape.threads() * static_cast<int>(round_up(registers, 8)));
  const int by_shared = static_cast<int>(device.shared_bytes_per_multiprocessor / (shared + 1024));
  shape.blocks_per_multiprocessor = std::clamp(std::min(by_registers, by_shared), 1, 8);
  return true;
}

}  // namespace

namespace {

// Summed channels below which a depth of eight (or sixteen) is too empty. A gradient with many rows and a few channels
// of depth writes far more than it reads, and multiplies by zeros in the meantime.
std::int64_t least_summed_channels(const Problem& problem) {
  if (problem.direction == Direction::forward) return problem.groups > 1 ? 16 : 8;
  return problem.groups == 1 && rows_of(problem) >= 32 && math_of(problem) != TileMath::fp32x3 ? 3 : 8;
}

}  // namespace

std::string why_no_tile(const Problem& problem, const DeviceProperties& device) {
  if (problem.direction != Direction::forward && problem.direction != Direction::grad_input)
    return "computes the forward direction and the gradient of the input";
  if (problem.dtype == DType::f64) return "tensor-core tiles have no float64";
  if (device.arch < 80) return "needs sm_80 or later";
  const std::int64_t summed =
      problem.direction == Direction::forward ? problem.in_channels_per_group() : problem.out_channels_per_group();
  if (summed < least_summed_channels(problem)) {
    return "few input channels in a group (" + std::to_string(summed) + "): CUDA cores do that at the memory's speed";
  }
  if (problem.in_channels_per_group() > kIntMax / 2 || problem.out_channels_per_group() > kIntMax / 2) {
    return "channel counts beyond 32 bits";
  }
  for (const Strides* strides : {&problem.input_strides, &problem.weight_strides, &problem.output_strides}) {
    for (const std::int64_t stride : *strides) {
      if (stride < 0) return "negative strides in memory";
    }
  }
  std::int64_t taps = 1;
  for (const Axis& axis : problem.axes) {
    if (axis.input > kIntMax / 2 || axis.output() > kIntMax / 2 || axis.kernel > 65536 || axis.stride > 65536 ||
        axis.dilation > 65536 || axis.pad_begin > kIntMax / 2) {
      return "sizes along an axis beyond 32 bits";
    }
    taps *= problem.direction == Direction::forward ? -site_of(axis, axis.kernel - 1).shift + 1 : axis.kernel;
    if (taps > 4096) return "too many distances between outputs and inputs (" + std::to_string(taps) + ")";
  }
  if (rows_of(problem) <= kFewRows) {
    return "few rows (phases times output channels of a group: " + std::to_string(rows_of(problem)) +
           "), which would leave most of a tensor-core tile empty";
  }
  return {};
}

namespace {

// Which phases a block computes together: all, or fewer of the outer axes, or a run of the width's.
std::vector<std::array<int, 3>> span_choices(const TileShape& base) {
  if (base.gradient) return {{1, 1, 1}};
  std::vector<std::array<int, 3>> spans = {
      {base.stride[0], base.stride[1], base.stride[2]}, {1, base.stride[1], base.stride[2]}, {1, 1, base.stride[2]}};
  for (const int width : {4, 8, 16, 32}) {
    if (width < base.stride[2]) spans.push_back({1, 1, width});
  }
  // Phases with different numbers of taps share a row tile at the price of products by zero; alone, each has its own.
  const bool uneven = base.kernel[2] % base.stride[2] != 0 && base.out_channels >= 64;
  if (uneven && base.stride[2] <= 4) spans.push_back({1, 1, 1});
  std::sort(spans.begin(), spans.end());
  spans.erase(std::unique(spans.begin(), spans.end()), spans.end());
  return spans;
}

std::vector<int> channel_choices(const TileShape& base) {
  std::vector<int> choices = {base.out_channels};
  for (const int channels : {1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 128}) {
    if (channels < base.out_channels || (channels >= 16 && channels < base.out_channels + 16))
      choices.push_back(channels);
  }
  std::sort(choices.begin(), choices.end());
  choices.erase(std::unique(choices.begin(), choices.end()), choices.end());
  return choices;
}

struct TeamChoice {
  int row_tiles;
  int column_tiles;
  int row_teams;
  int column_teams;
};

// Arrangements of teams for that many rows. For warpgroups the columns are fitted to the cells later.
std::vector<TeamChoice> team_choices(const TileShape& shape, int used_rows) {
  std::vector<TeamChoice> choices;
  for (const int row_tiles : {1, 2, 3, 4, 5}) {
    const int rows = shape.tile_rows() * row_tiles;
    const int row_teams = static_cast<int>(ceil_div(used_rows, rows));
    if (rows * row_teams - used_rows >= shape.tile_rows() * row_teams) continue;
    if (shape.warpgroup) {
      if (row_tiles > 2 || row_teams > 2) continue;
      for (const int column_tiles : {4, 8, 16, 20, 24, 32}) {
        for (const int column_teams : {1, 2}) {
          if (row_tiles * column_tiles <= 40 && row_teams * column_teams * shape.depth_teams <= 4)
            choices.push_back({row_tiles, column_tiles, row_teams, column_teams});
        }
      }
      continue;
    }
    if (row_teams != 1 && row_teams != 2 && row_teams != 4) continue;
    for (const int column_tiles : {2, 4, 8, 16}) {
      for (const int column_teams : {1, 2, 4, 8}) {
        const int teams = row_teams * column_teams * shape.depth_teams;
        if (row_tiles * column_tiles <= 32 && teams >= 2 && teams <= 8) {
          choices.push_back({row_tiles, column_tiles, row_teams, column_teams});
        }
      }
    }
  }
  return choices;
}

// Warpgroups have tiles of 64 rows; fewer rows than half of that are better off with warps.
bool prefers_warpgroups(const Problem& problem, const DeviceProperties& device, const TileShape& base) {
  return device.arch == 90 && device.has_wgmma && base.math != TileMath::fp32x3 && rows_of(problem) > 32;
}

// The largest copies that the rows of the input allow: whole ones, all inside or all outside. 0: none.
int granule_of(const Problem& problem, const TileShape& shape, bool aligned) {
  const Strides& strides = tile_input_strides(problem);
  if (shape.input_channels_last) return shape.wide_input ? shape.vector() : 0;
  if (strides[4] != 1) return 0;
  const Axis& width = problem.axes[2];
  const std::int64_t length = shape.gradient ? width.output() : width.input;
  for (int granule = aligned ? shape.vector() : 1; granule * shape.element_bytes >= 4; granule /= 2) {
    bool fits = length % granule == 0;
    for (const int d : {0, 1, 2, 3}) fits = fits && strides[d] % granule == 0;
    if (fits) return granule;
  }
  return 0;
}

// How far the copies of a row begin before the box, where that is the same for all blocks.
int lead_of(const Problem& problem, const TileShape& shape) {
  if (shape.input_channels_last) return 0;
  const Axis& width = problem.axes[2];
  const std::int64_t step = shape.tile[3] * shape.input_step(2);
  if (step % shape.granule != 0 && shape.tile[3] < tile_cells(problem, 2)) return -1;
  const std::int64_t first = shape.gradient ? -width.pad_begin : width.pad_begin / width.stride - shape.halo(2);
  return static_cast<int>((first % shape.granule + shape.granule) % shape.granule);
}

constexpr int kMostCopyPlaces = 12;  // of a thread, in registers

// Fits rings and residency around rows and cells; false when it cannot be built.
bool complete_stream(TileShape& shape, const DeviceProperties& device) {
  const int used = shape.all_slots() * shape.block_channels;
  shape.all_taps = every_phase_has_every_tap(shape);
  const bool apart = !shape.all_taps && shape.block_channels % 8 == 0 && shape.block_channels >= 16;
  shape.all_taps = !apart;  // or multiplied by stored zeros
  shape.row_unit = apart ? shape.block_channels : static_cast<int>(round_up(used, 8));
  shape.row_tiles = apart ? shape.all_slots() : 1;
  shape.row_teams = 1;
  const int sums = shape.rows() / 2 * shape.column_tiles / 8;
  const int needed = sums + 8 * (shape.column_tiles / 8) + 28;
  for (const int blocks : {3, 2, 1}) {
    const int at_start = 65536 / (shape.threads() * blocks) / 8 * 8;
    const int loading = at_start < 128 ? 48 : 56;
    const int left = (at_start * shape.threads() - loading * kStreamThreads) / shape.multiplying_threads() / 8 * 8;
    if (std::min(left, 240) < needed || shape.row_unit / 2 + 30 > at_start) continue;
    shape.blocks_per_multiprocessor = blocks;
    const int room = std::min(static_cast<int>(device.shared_bytes_per_block),
                              static_cast<int>(device.shared_bytes_per_multiprocessor) / blocks - 1024);
    const int per_back = shape.slabs * shape.rows() * 16;
    const int most = (blocks == 1 ? 32 : 16) * 1024;
    shape.stage_backs = std::clamp(most / per_back, 1, shape.all_backs());
    shape.stage_backs = static_cast<int>(ceil_div(shape.all_backs(), ceil_div(shape.all_backs(), shape.stage_backs)));
    shape.input_ring = std::min(2, shape.block_chunks());
    shape.weight_ring = 2;
    if (shape.shared_bytes() > room) continue;
    for (bool grew = true; grew;) {
      grew = false;
      for (int* const ring : {&shape.weight_ring, &shape.input_ring}) {
        const int limit = ring == &shape.input_ring ? std::min(4, shape.block_chunks()) : 4;
        if (*ring >= limit) continue;
        ++*ring;
        grew = shape.shared_bytes() <= room || grew;
        if (shape.shared_bytes() > room) --*ring;
      }
    }
    return true;
  }
  return false;
}

void add_streams(const Problem& problem, const DeviceProperties& device, TileShape base, bool aligned,
                 std::vector<TileCandidate>& candidates) {
  if (device.arch != 90 || !device.has_wgmma || base.math == TileMath::fp32x3) return;
  base.granule = granule_of(problem, base, aligned);
  if (base.granule == 0) return;
  base.streams = base.warpgroup = base.packed = true;
  if (base.splits_rows()) base.granule = 1;
  base.wide_input = base.input_channels_last || base.granule > 1;
  for (int a = 0; a < kSpatialAxes && base.gradient; ++a) base.planes[a] = base.phases[a];
  base.depth_teams = 1;
  std::map<int, std::vector<CellTile>> tiles_of;
  for (const auto& span : span_choices(base)) {
    TileShape shape = base;
    bool fits = true;
    for (int a = 0; a < kSpatialAxes; ++a) fits = fits && set_span(shape, problem.axes[a], a, span[a]);
    if (!fits || shape.skips_backs()) continue;
    std::vector<int> channel_counts = channel_choices(base);
    for (const int channels : {192, 256}) {
      if (channels < base.out_channels + 32) channel_counts.push_back(channels);
    }
    for (const int channels : channel_counts) {
      const std::int64_t used = static_cast<std::int64_t>(shape.all_slots()) * channels;
      if (used > 256 || (used < 64 && channels < base.out_channels)) continue;
      if (channels < 4 && base.out_channels >= 4) continue;  // stored in pieces
      shape.block_channels = channels;
      for (const auto& [tiles, teams] : {std::pair{1, 1}, {1, 2}, {2, 1}, {2, 2}, {1, 3}, {2, 3}, {1, 4}}) {
        shape.column_tiles = 8 * tiles;
        shape.column_teams = teams;
        auto [found, is_new] = tiles_of.try_emplace(shape.columns());
        if (is_new) found->second = cell_tiles(problem, shape, shape.columns());
        for (const CellTile& cells : found->second) {
          std::copy(cells.begin(), cells.end(), std::begin(shape.tile));
          if (shape.cells() * 2 <= shape.columns() && shape.columns() > 64) continue;
          shape.lead = lead_of(problem, shape);
          if (shape.copy_places() > kMostCopyPlaces * (kStreamThreads - 32)) continue;
          if (!offsets_fit(shape, problem) || !complete_stream(shape, device) || !may_pack(shape, problem)) continue;
          TileCandidate candidate;
          candidate.shape = shape;
          candidate.blocks = tile_blocks(shape, problem);
          if (candidate.blocks > kIntMax / 8) continue;
          candidate.expected_seconds = stream_seconds(shape, problem, device);
          candidates.push_back(candidate);
        }
      }
    }
  }
}

}  // namespace

namespace {

std::vector<TileCandidate> sorted_candidates(const Problem& problem, const DeviceProperties& device,
                                             const TileOptions& options) {
  TileShape base = base_shape(problem);
  base.wide_input = base.wide_input && options.aligned_input;
  base.warpgroup = prefers_warpgroups(problem, device, base);
  if (base.gradient && !set_planes(problem, base)) return {};
  set_depth(problem, base);
  std::vector<TileCandidate> candidates;
  std::map<int, std::vector<CellTile>> tiles_of;  // by columns
  for (const auto& span : span_choices(base)) {
    TileShape shape = base;
    bool fits = true;
    for (int a = 0; a < kSpatialAxes; ++a) fits = fits && set_span(shape, problem.axes[a], a, span[a]);
    if (!fits) continue;
    for (const int channels : channel_choices(base)) {
      const std::int64_t used_rows = static_cast<std::int64_t>(shape.all_slots()) * channels;
      if (used_rows > 128 || (used_rows < shape.tile_rows() && channels < base.out_channels)) continue;
      shape.block_channels = channels;
      std::set<std::tuple<int, int, int, CellTile>> seen;  // arrangements of teams may lead to the same cut
      for (const TeamChoice& teams : team_choices(shape, static_cast<int>(used_rows))) {
        shape.row_tiles = teams.row_tiles;
        shape.column_tiles = teams.column_tiles;
        shape.row_teams = teams.row_teams;
        shape.column_teams = teams.column_teams;
        const int columns = shape.columns();
        auto [found, is_new] = tiles_of.try_emplace(columns);
        if (is_new) found->second = cell_tiles(problem, shape, columns);
        for (const CellTile& cells : found->second) {
          std::copy(cells.begin(), cells.end(), std::begin(shape.tile));
          if (base.warpgroup)
            shape.column_tiles = static_cast<int>(ceil_div(shape.needed_columns(), 8 * shape.column_teams));
          if (!seen.emplace(teams.row_tiles, teams.column_teams, shape.column_tiles, cells).second) continue;
          for (const bool packed : {false, true}) {
            shape.packed = packed;
            if (!offsets_fit(shape, problem) || !complete(shape, problem, device)) continue;
            if (packed && !may_pack(shape, problem)) continue;
            TileCandidate candidate;
            candidate.shape = shape;
            candidate.blocks = tile_blocks(shape, problem);
            if (candidate.blocks > kIntMax / 8) continue;
            candidate.expected_seconds = tile_seconds(shape, problem, device);
            candidates.push_back(candidate);
          }
        }
      }
    }
  }
  add_streams(problem, device, base, options.aligned_input, candidates);
  std::stable_sort(candidates.begin(), candidates.end(), [](const TileCandidate& a, const TileCandidate& b) {
    return a.expected_seconds < b.expected_seconds;
  });
  return candidates;
}

}  // namespace

std::vector<TileCandidate> tile_candidates(const Problem& problem, const DeviceProperties& device,
                                           const TileOptions& options) {
  std::vector<TileCandidate> candidates = sorted_candidates(problem, device, options);
  const auto streams = [](const TileCandidate& candidate) { return candidate.shape.streams; };
  if (std::none_of(candidates.begin(), candidates.end(), streams)) return candidates;
  // Kinds of kernels may differ in the order of their sums. Which kind comes first is decided for a batch of its own,
  // whatever the problem's is: the least that fills the chip, and for large samples one that keeps it busy.
  const double blocks = blocks_of_sample(problem) * candidates.front().shape.depth_blocks;
  const double wanted = blocks < 132 ? 132 : 16 * 132;
  Problem filled = problem;
  filled.batch = static_cast<std::int64_t>(std::ceil(wanted / blocks));
  bool prefers_streams = candidates.front().shape.streams;
  if (filled.batch != problem.batch) {
    const std::vector<TileCandidate> others = sorted_candidates(filled, device, options);
    if (!others.empty()) prefers_streams = others.front().shape.streams;
  }
  std::stable_partition(candidates.begin(), candidates.end(),
                        [&](const TileCandidate& candidate) { return streams(candidate) == prefers_streams; });
  return candidates;
}

}  // namespace tconv::cuda
