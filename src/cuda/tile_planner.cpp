#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "cuda/tile.h"
#include "cuda/tile_cost.h"
#include "cuda/tile_cuts.h"
#include "tconv/phases.h"

namespace tconv::cuda {
namespace {

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
  shape.line_axis = -1;
  shape.window = 1;
  shape.item_steps = 1;
  shape.row_vector = 1;
  shape.weight_vector = 1;
  shape.most_blocks = static_cast<int>(kIntMax);
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
    shape.phases[a] = shape.planes[a] = shape.fold[a] = 1;
    shape.back_step[a] = axis.stride == 1 ? shape.dilation[a] : 1;
    shape.backs[a] = static_cast<int>(-site_of(axis, axis.kernel - 1).shift) / shape.back_step[a] + 1;
  }
  shape.window_taps = shape.kernel[2];
  const Strides& input_strides = tile_input_strides(problem);
  shape.input_channels_last = input_strides[1] == 1 && shape.channels * problem.groups > 1;
  shape.output_channels_last = tile_output_strides(problem)[1] == 1 && shape.out_channels * problem.groups > 1;
  bool wide = shape.input_channels_last && shape.channels % shape.vector() == 0;
  for (const int d : {0, 2, 3, 4}) wide = wide && input_strides[d] % shape.vector() == 0;
  shape.wide_input = wide;
  return shape;
}

// Phases with taps times output channels of a group: the rows of the whole problem.
std::int64_t rows_of(const Problem& problem) {
  if (problem.direction == Direction::grad_input) return problem.in_channels_per_group();
  std::int64_t rows = problem.out_channels_per_group();
  for (const Axis& axis : problem.axes) rows *= static_cast<std::int64_t>(residues_with_taps(axis).size());
  return rows;
}

// Rows that would leave most of a tensor-core tile empty. With sums as long as these CUDA cores take several times as
// long as the memory does, and streams of four rows less.
bool has_few_rows(const Problem& problem, const DeviceProperties& device) {
  constexpr std::int64_t kFewRows = 4;
  constexpr std::int64_t kLongSum = 512;
  const std::int64_t rows = rows_of(problem);
  if (rows != kFewRows || device.arch != 90 || !device.has_wgmma) return rows <= kFewRows;
  if (problem.direction != Direction::forward || math_of(problem) == TileMath::fp32x3) return true;
  std::int64_t depth = problem.in_channels_per_group();
  for (const Axis& axis : problem.axes) depth *= axis.kernel;
  return depth < kLongSum * rows;
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
// left, since adding up costs as much as many products (channels-last, by vectors, not as many). Samples of a few
// blocks come in batches, which fill the chip anyway; those of one or two are too small for that.
int gradient_depth_blocks(const Problem& problem, const TileShape& shape) {
  const double blocks = blocks_of_sample(problem);
  const double least_depth = shape.output_channels_last ? (blocks < 16 ? 640 : 512)
                             : blocks < 4               ? 640
                             : blocks < 16              ? 2048
                                                        : 640;
  double depth = shape.channels;
  for (const int kernel : shape.kernel) depth *= kernel;
  int found = 1;
  for (const int share : {2, 4, 8}) {
    const double most = share == 2 ? 200 : 132;
    if (depth >= 2048 && depth / share >= least_depth && shape.chunks() % share == 0 && blocks * share <= most)
      found = share;
  }
  return found;
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
  // A cluster costs a dozen microseconds, channels-last a few more: each block must keep a long enough sum. A sample of
  // very few blocks comes in batches (a GAN's first layers): splitting it to fill the chip alone would only make those
  // slower.
  const double steps = std::ceil(static_cast<double>(shape.channels) / (2 * shape.vector())) * products;
  const double least = !shape.output_channels_last ? 128 : shape.element_bytes == 2 ? 512 : 256;
  for (const int share : {2, 4}) {
    const bool fills = blocks * share <= 160 && steps / share >= least;
    const bool has_long_sums = blocks * share <= 400 && steps / share >= 512;
    if (blocks >= 8 * share && shape.chunks() % share == 0 && (fills || has_long_sums)) shape.depth_blocks = share;
  }
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

// Whether the summed channels of a gradient's weights are neighbours that can be read as vectors.
bool reads_wide_weights(const TileShape& shape, const Problem& problem) {
  const Strides& strides = problem.weight_strides;
  if (!shape.gradient || shape.math == TileMath::fp32x3 || strides[1] != 1 || shape.channels % shape.vector() != 0)
    return false;
  return std::all_of(std::begin(strides), std::end(strides),
                     [&](std::int64_t stride) { return stride == 1 || stride % shape.vector() == 0; });
}

// Products of a warp (row tiles by column tiles) at each step of depth. For other architectures than sm_90 the
// assembler loads and splits fragments of four-byte elements earlier than it has registers for, most of all for sm_100.
int most_warp_products(const TileShape& shape, const DeviceProperties& device) {
  if (device.arch == 90 || shape.element_bytes != 4) return kIntMax;
  if (shape.math == TileMath::fp32x3) return device.arch == 100 ? 10 : 15;
  return device.arch == 100 ? 31 : kIntMax;
}

// What split factors in single warps take beyond the estimate, which is sm_90's: most for long rows of products, whose
// fragments are all split ahead.
int more_registers(const TileShape& shape, const DeviceProperties& device) {
  if (shape.math != TileMath::fp32x3 || shape.warpgroup || device.arch == 90) return 0;
  if (shape.column_tiles > 4) return 80;
  return device.arch == 100 ? 40 : 16;
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
  if (shape.row_tiles * shape.column_tiles > most_warp_products(shape, device)) return false;
  const int registers = tile_registers(shape) + more_registers(shape, device);
  const int most_registers = shape.element_bytes == 2 ? 240 : 250;  // the estimate is coarser for half types
  if (registers > most_registers || shape.threads() * registers > 65536) return false;
  const std::size_t shared = static_cast<std::size_t>(shape.shared_bytes());
  if (shared > device.shared_bytes_per_block) return false;
  const int by_registers = 65536 / (shape.threads() * static_cast<int>(round_up(registers, 8)));
  const int by_shared = static_cast<int>(device.shared_bytes_per_multiprocessor / (shared + 1024));
  shape.blocks_per_multiprocessor = std::clamp(std::min(by_registers, by_shared), 1, 8);
  return true;
}

}  // namespace

namespace {

// Summed channels below which a depth of eight (or sixteen) is too empty. With many rows and a few channels of depth a
// layer writes far more than it reads, and multiplies by zeros in the meantime.
std::int64_t least_summed_channels(const Problem& problem) {
  if (problem.groups == 1 && rows_of(problem) >= 32 && math_of(problem) != TileMath::fp32x3) {
    // Taps of a long row are depth as good as channels, where there are cells enough for them.
    constexpr double kManyCells = 4096;
    double cells = 1;
    for (const Axis& axis : problem.axes) cells *= static_cast<double>(axis.input);
    const bool windows = problem.direction == Direction::grad_input && problem.output_strides[4] == 1;
    return windows && problem.axes[2].kernel >= 8 && cells >= kManyCells ? 1 : 3;
  }
  return problem.direction == Direction::forward && problem.groups > 1 ? 16 : 8;
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
  if (has_few_rows(problem, device)) {
    return "few rows (phases times output channels of a group: " + std::to_string(rows_of(problem)) +
           "), which would leave most of a tensor-core tile empty";
  }
  return {};
}

namespace {

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

}  // namespace

namespace {

std::vector<TileCandidate> sorted_candidates(const Problem& problem, const DeviceProperties& device,
                                             const TileOptions& options) {
  TileShape base = base_shape(problem);
  base.wide_input = base.wide_input && options.aligned;
  base.wide_weights = options.aligned && reads_wide_weights(base, problem);
  base.warpgroup = prefers_warpgroups(problem, device, base);
  if (base.gradient && !set_planes(problem, base)) return {};
  set_depth(problem, base);
  std::vector<TileCandidate> candidates;
  for (const auto& span : span_choices(base)) {
    TileShape shape = base;
    bool fits = true;
    for (int a = 0; a < kSpatialAxes; ++a) fits = fits && set_span(shape, problem.axes[a], a, span[a]);
    if (!fits) continue;
    std::map<int, std::vector<CellTile>> tiles_of;  // by columns
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
  if (base.math == TileMath::fp32x3) {  // whose tiles are cut for warps
    base.warpgroup = true;
    set_depth(problem, base);
  }
  add_streams(problem, device, base, options.aligned, candidates);
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
  const auto stream = std::find_if(candidates.begin(), candidates.end(), streams);
  if (stream == candidates.end()) return candidates;
  // Kinds of kernels may differ in the order of their sums. Which kind comes first is decided for a batch of its own,
  // whatever the problem's is: the least that fills the chip, and for large samples one that keeps it busy.
  const double blocks = blocks_of_sample(problem) * stream->shape.depth_blocks;
  const double wanted = blocks < 132 ? 132 : 16 * 132;
  Problem filled = problem;
  filled.batch = static_cast<std::int64_t>(std::ceil(wanted / blocks));
  const std::vector<TileCandidate> others = sorted_candidates(filled, device, options);
  // Where streams take taps as depth they were never the slower kind.
  const auto windows = [](const TileCandidate& candidate) { return candidate.shape.window > 1; };
  const bool prefers_streams =
      (!others.empty() && others.front().shape.streams) || std::any_of(candidates.begin(), candidates.end(), windows);
  std::stable_partition(candidates.begin(), candidates.end(),
                        [&](const TileCandidate& candidate) { return streams(candidate) == prefers_streams; });
  return candidates;
}

}  // namespace tconv::cuda
