#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "cuda/reduce.h"
#include "cuda/reduce_boxes.h"
#include "cuda/reduce_cost.h"
#include "cuda/reduce_fit.h"

namespace tconv::cuda {
namespace {

constexpr std::int64_t kIntMax = std::numeric_limits<int>::max();
constexpr std::size_t kMostWorkspace = 64 << 20;
constexpr int kMostUnits = 64;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
int round_up(int a, int b) { return (a + b - 1) / b * b; }

void keep_unique(std::vector<int>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

// Where TF32 is allowed it is taken for groups of any size: fp32 out of TF32 costs three products and more.
TileMath math_of(const Problem& problem) {
  switch (problem.dtype) {
    case DType::f16: return TileMath::f16;
    case DType::bf16: return TileMath::bf16;
    default: break;
  }
  return problem.precision == Precision::tf32 ? TileMath::tf32 : TileMath::fp32x3;
}

ReduceShape base_shape(const Problem& problem, const Reduction& reduction) {
  ReduceShape shape{};
  shape.math = math_of(problem);
  shape.element_bytes = static_cast<int>(size_of(problem.dtype));
  shape.rows = static_cast<int>(reduction.rows);
  shape.columns = static_cast<int>(reduction.columns);
  for (int a = 0; a < kSpatialAxes; ++a) {
    shape.kernel[a] = static_cast<int>(reduction.axes[a].kernel);
    shape.step[a] = static_cast<int>(reduction.axes[a].step);
    shape.tap_step[a] = static_cast<int>(reduction.axes[a].tap_step);
  }
  const auto channels_last = [](const Strides& strides) { return strides[1] == 1 && strides[4] != 1; };
  shape.rows_channels_last = channels_last(reduction.row_strides);
  shape.columns_channels_last = channels_last(reduction.column_strides);
  shape.row_vector = shape.column_vector = shape.row_copy = shape.column_copy = 1;
  shape.columns_first = reduction.weight_strides[2] == 1;
  return shape;
}

// Teams of four warps or, where none can be built, of one. Tiles of 64 rows that are mostly empty are better cut into
// tiles of 16; threads that load and multiply in turns are not made for fp32 out of TF32 by warpgroups.
std::vector<bool> warpgroup_choices(const ReduceShape& base, const DeviceProperties& device) {
  if (device.arch != 90 || !device.has_wgmma || base.rows < 24) return {false};
  return base.math == TileMath::fp32x3 ? std::vector<bool>{true, false} : std::vector<bool>{true};
}

// A block's taps and how many of them a product takes.
struct TapChoice {
  std::array<int, 3> taps;
  int run;
};

// Sets the block's taps; false: the run's taps would not lie side by side.
bool set_taps(ReduceShape& shape, const TapChoice& choice) {
  shape.run = choice.run;
  for (int a = 0; a < kSpatialAxes; ++a) {
    shape.taps[a] = choice.taps[a];
    const int reach = (shape.taps[a] - 1) * shape.tap_step[a] + 1;
    shape.apart[a] = reach <= shape.step[a] && shape.taps[a] < shape.step[a];
  }
  return shape.run == 1 || shape.place_tap(2) == 1;
}

std::vector<int> run_choices(int kernel) {
  std::vector<int> runs = {1};
  for (const int pieces : {1, 2, 3, 4}) runs.push_back(static_cast<int>(ceil_div(kernel, pieces)));
  for (const int run : {2, 3, 4, 8, 16}) {
    if (run < kernel) runs.push_back(run);
  }
  runs.erase(std::remove_if(runs.begin(), runs.end(), [](int run) { return run > 64; }), runs.end());
  keep_unique(runs);
  return runs;
}

std::vector<TapChoice> tap_choices(const ReduceShape& base) {
  const auto counts = [](int kernel) {
    std::vector<int> values = {1, kernel, static_cast<int>(ceil_div(kernel, 2))};
    values.erase(std::remove_if(values.begin(), values.end(), [](int count) { return count > 8; }), values.end());
    keep_unique(values);
    return values;
  };
  std::vector<TapChoice> choices;
  for (const int run : run_choices(base.kernel[2])) {
    std::vector<int> widths = {run, 2 * run, 3 * run, 4 * run};
    for (int& width : widths) width = std::min(width, base.kernel[2]);
    keep_unique(widths);
    for (const int width : widths) {
      for (const int height : counts(base.kernel[1])) {
        for (const int depth : counts(base.kernel[0])) {
          // Outer taps together only when the inner ones are.
          if (depth > 1 && height < base.kernel[1]) continue;
          if (height > 1 && width < base.kernel[2]) continue;
          choices.push_back({{depth, height, width}, run});
        }
      }
    }
  }
  return choices;
}

struct PixelTile {
  std::array<int, 4> split;
  std::array<int, 4> tile;
  double waste;  // pixels multiplied for each that exists
};

std::vector<std::array<int, 4>> splits_of(int vector) {
  std::vector<std::array<int, 4>> splits;
  for (int n = 1; n <= vector; n *= 2) {
    for (int d = 1; n * d <= vector; d *= 2) {
      for (int h = 1; n * d * h <= vector; h *= 2) splits.push_back({n, d, h, vector / (n * d * h)});
    }
  }
  return splits;
}

// Boxes of pixels for a stage, those that waste least first, a few of each size.
std::vector<PixelTile> pixel_tiles(const Problem& problem, const Reduction& reduction, const ReduceShape& base) {
  const std::array<std::int64_t, 4> size = {problem.batch, reduction.axes[0].row_size, reduction.axes[1].row_size,
                                            reduction.axes[2].row_size};
  std::vector<PixelTile> tiles;
  for (const auto& split : splits_of(base.vector())) {
    std::array<std::vector<int>, 4> lengths;
    for (int i = 0; i < 4; ++i) {
      const std::int64_t units = ceil_div(size[i], split[i]);
      for (const int length : {1, 2, 4, 8, 16, 32}) {
        if (length < 2 * units) lengths[i].push_back(length);
      }
      for (std::int64_t pieces = 1; pieces <= 4; ++pieces) {
        if (ceil_div(units, pieces) <= kMostUnits) lengths[i].push_back(static_cast<int>(ceil_div(units, pieces)));
      }
      if (i == 3) {
        for (int& length : lengths[i]) length = round_up(length, 2);
      }
      keep_unique(lengths[i]);
    }
    for (const int w : lengths[3]) {
      for (const int h : lengths[2]) {
        if (w * h > kMostUnits) break;
        for (const int d : lengths[1]) {
          if (w * h * d > kMostUnits) break;
          for (const int n : lengths[0]) {
            if (w * h * d * n > kMostUnits) break;
            const PixelTile tile = {split, {n, d, h, w}, 1};
            double waste = 1;
            for (int i = 0; i < 4; ++i) {
              const std::int64_t length = static_cast<std::int64_t>(split[i]) * tile.tile[i];
              waste *= static_cast<double>(ceil_div(size[i], length) * length) / static_cast<double>(size[i]);
            }
            tiles.push_back({tile.split, tile.tile, waste});
          }
        }
      }
    }
  }
  return tiles;
}

// Of all boxes the few that promise most for the taps of a block: little waste, little halo, long rows of memory.
std::vector<PixelTile> best_tiles(const std::vector<PixelTile>& all, ReduceShape shape) {
  struct Scored {
    const PixelTile* tile;
    double score;
  };
  std::array<std::vector<Scored>, 5> classes;  // by units
  for (const PixelTile& tile : all) {
    std::copy(tile.split.begin(), tile.split.end(), std::begin(shape.split));
    std::copy(tile.tile.begin(), tile.tile.end(), std::begin(shape.tile));
    const int units = shape.row_units();
    const std::size_t at = units <= 4 ? 0 : units <= 8 ? 1 : units <= 16 ? 2 : units <= 32 ? 3 : 4;
    const double halo = static_cast<double>(shape.column_units()) / units;
    const bool rows = !shape.rows_channels_last || !shape.columns_channels_last;
    const double run = static_cast<double>(tile.tile[3]) * tile.split[3] * shape.element_bytes;
    const double score = tile.waste * (1 + 0.25 * halo) * (rows ? 1 + 12 / (run + 16) : 1) * (1 + 1.0 / units);
    classes[at].push_back({&tile, score});
  }
  std::vector<PixelTile> best;
  for (auto& scored : classes) {
    const std::size_t count = std::min<std::size_t>(scored.size(), 2);
    std::partial_sort(scored.begin(), scored.begin() + static_cast<std::ptrdiff_t>(count), scored.end(),
                      [](const Scored& a, const Scored& b) { return a.score < b.score; });
    for (std::size_t i = 0; i < count; ++i) best.push_back(*scored[i].tile);
  }
  return best;
}

struct TeamChoice {
  int row_tiles;
  int row_teams;
  int column_teams;
  int run_teams;
};

std::vector<TeamChoice> team_choices(const ReduceShape& shape) {
  std::vector<TeamChoice> choices;
  const int needed = static_cast<int>(ceil_div(shape.rows, shape.tile_rows()));  // row tiles of the problem
  const int most_teams = shape.warpgroup ? 4 : 8;
  for (const int row_tiles : shape.warpgroup ? std::vector<int>{1, 2} : std::vector<int>{1, 2, 4}) {
    for (const int row_teams : {1, 2, 4}) {
      if (row_tiles > needed || (row_teams > 1 && row_tiles * (row_teams - 1) >= needed)) continue;
      for (const int column_teams : {1, 2, 4}) {
        for (const int run_teams : {1, 2, 3, 4, 5, 8}) {
          const int teams = row_teams * column_teams * run_teams;
          if (teams <= most_teams) {
            choices.push_back({row_tiles, row_teams, column_teams, run_teams});
          }
        }
      }
    }
  }
  return choices;
}

std::vector<int> column_choices(const ReduceShape& base) {
  std::vector<int> choices;
  for (const int channels : {8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 256}) {
    if (channels < base.columns) choices.push_back(channels);
  }
  for (const int pieces : {1, 2, 3, 4}) {
    const std::int64_t channels = ceil_div(base.columns, pieces);
    if (channels <= 256 && (pieces == 1 || channels >= 8)) {
      choices.push_back(pieces == 1 ? base.columns : round_up(static_cast<int>(channels), 8));
    }
  }
  keep_unique(choices);
  return choices;
}

// The parts into which the pixels may be cut: none, or as many as fill the chip once or some times.
void add_parts(std::vector<ReduceCandidate>& candidates, const ReduceShape& shape, const Problem& problem,
               const Reduction& reduction, const DeviceProperties& device) {
  ReduceParams params = reduce_params(problem, reduction, shape, 1);
  double tiles = static_cast<double>(problem.groups) * params.row_blocks * params.column_blocks;
  for (const int blocks : params.tap_blocks) tiles *= blocks;
  double stages = 1;
  for (const int count : params.tiles) stages *= count;
  constexpr auto kMost = static_cast<double>(kIntMax);
  if (tiles > kMost / 1024 || stages > kMost / 2) return;
  constexpr int kMostImages = 65535;  // along the second side of a grid
  if (shape.packed && reduce_row_images(params) + reduce_column_images(params) > kMostImages) return;
  const double slots = static_cast<double>(device.multiprocessors) * shape.blocks_per_multiprocessor;
  std::vector<int> choices = {1};
  for (const double waves : {0.5, 1.0, 2.0, 3.0}) {
    const double parts = std::min(std::floor(slots * waves / tiles), stages);
    if (parts >= 2 && parts <= 4096) choices.push_back(static_cast<int>(parts));
  }
  keep_unique(choices);
  for (const int parts : choices) {
    ReduceCandidate candidate{shape, reduction.swapped, parts, 0};
    candidate.shape.partial = parts > 1;
    if (static_cast<std::size_t>(candidate.shape.shared_bytes()) * shape.blocks_per_multiprocessor +
            1024 * shape.blocks_per_multiprocessor >
        device.shared_bytes_per_multiprocessor) {
      continue;
    }
    params.parts = parts;
    if (reduce_workspace_bytes(candidate.shape, params) > kMostWorkspace) continue;
    candidate.expected_seconds = reduce_seconds(candidate.shape, params, problem, reduction, device);
    candidates.push_back(candidate);
  }
}

// Warps that only load, and whether the tensors are packed before.
struct LoadChoice {
  int warps;
  bool packed;
};

std::vector<LoadChoice> load_choices(const ReduceShape& shape, bool packs) {
  // Products of single warps take as long as the loads, and longer where half of their rows are empty.
  if (!shape.warpgroup)
    return shape.rows < 16 ? std::vector<LoadChoice>{{0, false}} : std::vector<LoadChoice>{{0, false}, {4, false}};
  std::vector<LoadChoice> choices = {{0, false}, {4, false}, {8, false}};
  if (packs) choices.push_back({4, true});
  return choices;
}

void add_candidates(std::vector<ReduceCandidate>& candidates, const Problem& problem, const Reduction& reduction,
                    bool warpgroup, const DeviceProperties& device, const ReduceOptions& options) {
  ReduceShape base = base_shape(problem, reduction);
  base.warpgroup = warpgroup;
  const std::vector<PixelTile> tiles = pixel_tiles(problem, reduction, base);
  const auto bytes =
      static_cast<std::size_t>(element_count(problem.input_sizes()) + element_count(problem.output_sizes())) *
      static_cast<std::size_t>(base.element_bytes);
  const bool packs =
      !device.any_batch && base.math != TileMath::fp32x3 && bytes >= options.least_packed && bytes <= kMostWorkspace;
  for (const TapChoice& taps : tap_choices(base)) {
    ReduceShape shape = base;
    if (!set_taps(shape, taps)) continue;
    const std::vector<PixelTile> boxes = best_tiles(tiles, shape);
    for (const int columns : column_choices(base)) {
      shape.team_columns = columns;
      if (shape.run_columns() > 256 || columns > 256) continue;
      if (shape.run_columns() < 64 && columns < base.columns && shape.run < base.kernel[2])
        continue;  // needlessly small
      for (const TeamChoice& teams : team_choices(base)) {
        if (teams.run_teams > shape.runs()) continue;
        if (teams.column_teams > 1 && columns * (teams.column_teams - 1) >= base.columns) continue;
        shape.row_tiles = teams.row_tiles;
        shape.row_teams = teams.row_teams;
        shape.column_teams = teams.column_teams;
        shape.run_teams = teams.run_teams;
        shape.team_runs = static_cast<int>(ceil_div(shape.runs(), teams.run_teams));
        if (shape.team_runs * (teams.run_teams - 1) >= shape.runs()) continue;
        const int sums = 4 * shape.row_tiles * shape.team_runs * shape.column_tiles();
        if (sums > (shape.splits() ? 80 : shape.warpgroup ? 160 : shape.math == TileMath::tf32 ? 120 : 96)) continue;
        for (const PixelTile& box : boxes) {
          std::copy(box.split.begin(), box.split.end(), std::begin(shape.split));
          std::copy(box.tile.begin(), box.tile.end(), std::begin(shape.tile));
          for (const LoadChoice& loads : load_choices(base, packs)) {
            shape.loader_warps = loads.warps;
            shape.packed = loads.packed;
            if (fit_to_device(shape, reduction, device, options)) {
              add_parts(candidates, shape, problem, reduction, device);
            }
          }
        }
      }
    }
  }
}

}  // namespace

std::string_view why_no_reduce(const Problem& problem, const DeviceProperties& device) {
  if (problem.direction != Direction::grad_weight) return "computes grad_weight only";
  if (problem.dtype == DType::f64) return "tensor cores as used here have no float64";
  if (device.arch < 80) return "needs sm_80 or later";
  if (element_count(problem.input_sizes()) == 0 || element_count(problem.output_sizes()) == 0) {
    return "nothing to add up";
  }
  if (problem.in_channels_per_group() == 1 && problem.out_channels_per_group() == 1) {
    return "one channel in a group fills no matrix";
  }
  if (problem.in_channels > kIntMax / 2 || problem.out_channels > kIntMax / 2 || problem.batch > kIntMax / 2 ||
      element_count(problem.weight_sizes()) > kIntMax / 2) {
    return "channel counts beyond 32 bits";
  }
  // Split factors lose a few bits of each product, once for all of a sum: more than the roundings of a short sum in
  // fp32.
  constexpr std::int64_t kFewProducts = 16;
  std::int64_t products = problem.batch;
  for (const Axis& axis : problem.axes) products *= std::min(axis.input, kFewProducts);
  if (math_of(problem) == TileMath::fp32x3 && products < kFewProducts) {
    return "sums of so few products are more exact in fp32 itself";
  }
  for (const Strides* strides : {&problem.input_strides, &problem.output_strides}) {
    for (const std::int64_t stride : *strides) {
      if (stride < 0) return "negative strides in memory";
    }
  }
  for (const Axis& axis : problem.axes) {
    if (axis.input > kIntMax / 4 || axis.output() > kIntMax / 4 || axis.kernel > 65536 || axis.stride > 16384 ||
        axis.dilation > 16384 || axis.pad_begin > kIntMax / 4) {
      return "sizes along an axis beyond what a tile can hold";
    }
  }
  return {};
}

std::vector<ReduceCandidate> reduce_candidates(const Problem& problem, const DeviceProperties& device,
                                               const ReduceOptions& options) {
  std::vector<ReduceCandidate> candidates;
  for (const bool swapped : {false, true}) {
    const auto reduction = reduction_of(problem, swapped);
    if (!reduction) continue;
    if (options.aligned) {
      for (const ReduceShape& shape : box_shapes(problem, *reduction, base_shape(problem, *reduction), device))
        add_parts(candidates, shape, problem, *reduction, device);
    }
    const std::size_t boxes = candidates.size();
    for (const bool warpgroup : warpgroup_choices(base_shape(problem, *reduction), device)) {
      if (candidates.size() == boxes) add_candidates(candidates, problem, *reduction, warpgroup, device, options);
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const ReduceCandidate& a, const ReduceCandidate& b) {
    return a.expected_seconds < b.expected_seconds;
  });
  return candidates;
}

}  // namespace tconv::cuda
