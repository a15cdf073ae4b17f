#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "cuda/columns.h"
#include "tconv/phases.h"

namespace tconv::cuda {
namespace {

constexpr std::int64_t kIntMax = std::numeric_limits<std::int32_t>::max();
constexpr int kMostRows = 256;
constexpr int kMostCells = 256;
constexpr std::size_t kMostCandidates = 24;

int ceil_div(int a, int b) { return (a + b - 1) / b; }
int round_up(int a, int b) { return ceil_div(a, b) * b; }

std::int64_t taps_of(const Problem& problem) {
  std::int64_t taps = 1;
  for (const Axis& axis : problem.axes) taps *= axis.kernel;
  return taps;
}

// Whether the taps of a channel are neighbours, in their order.
bool has_inner_taps(const Problem& problem) {
  std::int64_t expected = 1;
  for (int a = kSpatialAxes - 1; a >= 0; --a) {
    const auto axis = static_cast<std::size_t>(a);
    if (problem.axes[axis].kernel > 1 && problem.weight_strides[2 + axis] != expected) return false;
    expected *= problem.axes[axis].kernel;
  }
  return problem.out_channels_per_group() == 1 || problem.weight_strides[1] == expected;
}

// Whether the channels of a tap are neighbours.
bool has_inner_channels(const Problem& problem) {
  return problem.out_channels_per_group() == 1 || problem.weight_strides[1] == 1;
}

// Whether the cells of an image lie at one distance from each other, in their order.
bool has_even_cells(const Problem& problem) {
  std::int64_t expected = -1;
  for (int a = kSpatialAxes - 1; a >= 0; --a) {
    const auto axis = static_cast<std::size_t>(a);
    if (problem.axes[axis].input <= 1) continue;
    if (expected >= 0 && problem.input_strides[2 + axis] != expected) return false;
    expected = problem.input_strides[2 + axis] * problem.axes[axis].input;
  }
  return true;
}

// The axis along which an image is cut: the outermost that has more than one cell.
int box_axis_of(const Problem& problem) {
  for (int a = 0; a < kSpatialAxes - 1; ++a) {
    if (problem.axes[static_cast<std::size_t>(a)].input > 1) return a;
  }
  return kSpatialAxes - 1;
}

// What every candidate of a problem shares.
ColumnsShape base_shape(const Problem& problem) {
  ColumnsShape shape{};
  shape.element_bytes = static_cast<int>(size_of(problem.dtype));
  shape.channels = static_cast<int>(problem.in_channels_per_group());
  shape.out_channels = static_cast<int>(problem.out_channels_per_group());
  for (int a = 0; a < kSpatialAxes; ++a) {
    const Axis& axis = problem.axes[static_cast<std::size_t>(a)];
    const std::int64_t common = std::gcd(axis.stride, axis.dilation);
    shape.kernel[a] = static_cast<int>(axis.kernel);
    shape.stride[a] = static_cast<int>(axis.stride);
    shape.dilation[a] = static_cast<int>(axis.dilation);
    shape.pad[a] = static_cast<int>(axis.pad_begin);
    shape.input[a] = static_cast<int>(axis.input);
    shape.output[a] = static_cast<int>(axis.output());
    shape.tap_step[a] = static_cast<int>(axis.stride / common);
    shape.input_step[a] = static_cast<int>(axis.dilation / common);
  }
  shape.bias = problem.bias;
  shape.taps_inner = has_inner_taps(problem);
  shape.weight_stride = static_cast<int>(problem.weight_strides[0]);
  shape.channel_stride = static_cast<int>(problem.input_strides[1]);
  shape.input_channels_last = problem.input_strides[1] == 1 && shape.channels > 1;
  shape.output_channels_last = problem.output_strides[1] == 1 && shape.out_channels > 1;
  shape.box_axis = box_axis_of(problem);
  return shape;
}

// The largest copy of weights that all rows of all blocks allow.
int weight_bytes_of(const ColumnsShape& shape, const Problem& problem, const ColumnsOptions& options) {
  const int taps = shape.taps_inner ? static_cast<int>(taps_of(problem)) : 1;
  for (const int bytes : {16, 8, 4}) {
    if (!options.aligned || bytes <= shape.element_bytes) break;
    const auto fits = [&](std::int64_t elements) { return elements * shape.element_bytes % bytes == 0; };
    bool all = fits(problem.weight_strides[0]) && fits(shape.block_channels * taps) && fits(shape.out_channels * taps);
    for (int a = 0; a < kSpatialAxes && !shape.taps_inner; ++a)
      all = all && (shape.kernel[a] == 1 || fits(problem.weight_strides[std::size_t{2} + static_cast<std::size_t>(a)]));
    if (all) return bytes;
  }
  return shape.element_bytes;
}

bool can_copy_cells(const ColumnsShape& shape, const Problem& problem) {
  if (!shape.input_channels_last || shape.channels % shape.vector() != 0) return false;
  if (problem.batch > 1 && problem.input_strides[0] % shape.vector() != 0) return false;
  for (std::size_t a = 0; a < problem.axes.size(); ++a) {
    if (problem.axes[a].input > 1 && problem.input_strides[2 + a] % shape.vector() != 0) return false;
  }
  return true;
}

// Channels that a thread's outputs have: as many as one store takes where they are neighbours, otherwise a few that
// share the look for their taps.
void set_runs(ColumnsShape& shape, const Problem& problem, const ColumnsOptions& options) {
  const int threads = shape.threads();
  const std::int64_t outputs = std::int64_t{shape.samples} * shape.block_channels * shape.all_places();
  for (const int run : {8, 4, 2, 1}) {
    shape.run_channels = run;
    shape.stores_runs = shape.output_channels_last && run > 1;
    if (run == 1) return;
    if (run * shape.element_bytes > 16 || shape.block_channels % run != 0 || (run > 4 && !shape.stores_runs)) continue;
    if (outputs / run < threads) continue;
    bool fits = !shape.stores_runs || (options.aligned && shape.out_channels % run == 0);
    for (const std::size_t i : {0, 2, 3, 4})
      fits = fits && (!shape.stores_runs || problem.output_strides[i] % run == 0);
    if (fits) return;
  }
}

// Every phase of an axis has the same number of taps, so that blocks may have a phase each.
bool can_split_phases(const ColumnsShape& shape) {
  bool several = false;
  for (int a = 0; a < kSpatialAxes; ++a) {
    if (shape.tap_step[a] != shape.stride[a] || shape.kernel[a] % shape.stride[a] != 0) return false;
    several = several || shape.stride[a] > 1;
  }
  return several;
}

int cell_items(const ColumnsShape& shape) { return ceil_div(shape.slabs() * shape.padded_cells(), shape.threads()); }

// Registers of a thread, rather too many.
int registers_of(const ColumnsShape& shape) {
  const int sums = 16 * shape.row_units * shape.cell_units;
  const int fragments = 4 * shape.cell_units + 16;
  const int waiting = cell_items(shape) * (shape.copies_cells ? 2 : 2 + shape.vector());
  return sums + fragments + waiting + 56;
}

long long blocks_of(const ColumnsShape& shape, const Problem& problem) {
  return (problem.batch + shape.samples - 1) / shape.samples * shape.boxes * shape.residues() * problem.groups *
         ceil_div(shape.out_channels, shape.block_channels);
}

// Chunk, stages and residency around the rows and cells of a block; false when it cannot be built. `most_resident` is
// how many blocks a multiprocessor gets.
bool complete(ColumnsShape& shape, const DeviceProperties& device, long long most_resident) {
  constexpr int kKiB = 1024;
  const int least = kColumnsDepth * shape.step_channels();
  const int deepest = round_up(shape.channels, least);
  shape.chunk = 4 * least;
  const auto is_large = [&] {
    return shape.chunk > deepest || shape.weight_stage_bytes() > 34 * kKiB || shape.cell_stage_bytes() > 34 * kKiB ||
           (!shape.copies_cells && cell_items(shape) * shape.vector() > 16) || cell_items(shape) > 16;
  };
  while (shape.chunk > least && is_large()) shape.chunk /= 2;
  if (cell_items(shape) > 16) return false;

  const int registers = registers_of(shape);
  if (registers > 250) return false;
  const int by_registers = 65536 / (shape.threads() * round_up(registers, 8));
  if (by_registers < 1) return false;
  const int most = static_cast<int>(std::min<long long>({by_registers, most_resident, 4}));
  // A multiprocessor needs some 40 KiB on their way.
  const int stage_bytes = shape.weight_stage_bytes() + (shape.copies_cells ? shape.cell_stage_bytes() : 0);
  for (int resident = most; resident >= 1; --resident) {
    const int wanted = 1 + ceil_div(64 * kKiB / resident, stage_bytes);
    for (shape.stages = std::clamp(wanted, 3, 8); shape.stages >= 3; --shape.stages) {
      const auto shared = static_cast<std::size_t>(shape.shared_bytes());
      if (shared > device.shared_bytes_per_block) continue;
      if (static_cast<std::size_t>(resident) * (shared + kKiB) > device.shared_bytes_per_multiprocessor) continue;
      shape.blocks_per_multiprocessor = resident;
      return true;
    }
  }
  return false;
}

// Instructions of a warp for a chunk, as the compiler makes them.
double chunk_instructions(const ColumnsShape& shape) {
  const int lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(shape.row_bytes() / shape.weight_bytes)));
  const int copies =
      ceil_div(shape.chunk * std::min(lanes, shape.threads()), shape.threads()) * std::max(lanes / shape.threads(), 1);
  const double cells = cell_items(shape) * (shape.copies_cells ? 4.0 : 3.0 * shape.vector());
  const bool single = shape.element_bytes == 4;  // rounded on its way to the tensor cores
  const double rows = 2 * shape.row_units * ((single ? 6.0 : 1.0) + 2 * shape.cell_units);
  const double columns = shape.cell_units * (single && shape.copies_cells ? 5.0 : 1.0);
  const double steps = static_cast<double>(shape.chunk) / shape.step_channels() / kColumnsDepth;
  return 60 + 3 * copies + cells + steps * (rows + columns);
}

// What a multiprocessor takes for the chunks of the blocks that it has at once: issuing, products, shared memory or
// bytes from L2, whichever takes longest; then the outputs. Cycles of an instruction and the shares of the peaks are
// those that were seen on an H200 (docs/notes/columns.md).
double seconds_of(const ColumnsShape& shape, const Problem& problem, const DeviceProperties& device) {
  constexpr double kClock = 1.7e9;
  constexpr double kLaunch = 3e-6;
  constexpr double kIssue = 4.3;  // cycles of a warp for an instruction
  const double bytes = shape.element_bytes;
  const double half = shape.element_bytes == 2 ? 2 : 1;
  const auto blocks = static_cast<double>(blocks_of(shape, problem));
  const double most = std::ceil(blocks / device.multiprocessors);
  const double together = std::min<double>(most, shape.blocks_per_multiprocessor);
  const double rounds = std::ceil(most / together);
  // More than 14 warps wait for each other; schedulers with fewer warps than others wait for those.
  const int warps = shape.threads() / 32;
  const double uneven = 0.7 + 0.3 * round_up(warps, 4) / warps;
  const double schedulers = uneven * std::max(1.0, together * warps / 14);

  const double peak = half * device.tf32_rate / 2 / device.multiprocessors / kClock;  // multiply-adds per cycle
  const double multiply = static_cast<double>(shape.padded_rows()) * shape.chunk * shape.padded_cells() / (0.5 * peak);
  const double reads =
      bytes * shape.chunk * (shape.padded_rows() * shape.cell_warps + shape.padded_cells() * shape.row_warps);
  const double writes = bytes * shape.chunk * (shape.rows() + shape.padded_cells());
  // Runs of weights that are no whole sectors read what they do not need.
  const double run = bytes * (shape.taps_inner ? shape.rows() : shape.block_channels);
  const double torn = std::fmod(run, 32) == 0 ? 1 : (run + 24) / run;
  const double fetched = bytes * shape.chunk * (shape.rows() * torn + shape.cells());
  const double chunk = std::max({kIssue * schedulers * chunk_instructions(shape), together * multiply,
                                 together * (reads + writes) / 100, together * fetched / 24});
  const double taps = std::ceil(static_cast<double>(shape.all_slots()) /
                                (shape.one_phase ? 1 : shape.stride[0] * shape.stride[1] * shape.stride[2]));
  const double items = std::ceil(static_cast<double>(shape.samples) * shape.block_channels * shape.all_places() /
                                 shape.run_channels / shape.threads());
  const double sums = 16.0 * shape.row_units * shape.cell_units;
  const double epilogue = kIssue * schedulers * (2 * sums + items * (90 + shape.run_channels * (5 + 2 * taps)));
  const double cycles = rounds * (2000 + 500 * together + shape.chunks() * chunk + epilogue);
  // Weights come once from memory, in pieces of a run, and again from the cache for other cells.
  const double pieces = 1 + 0.05 * (std::max(128 / run, 1.0) - 1);
  const double again =
      0.15 * (static_cast<double>(shape.boxes) * std::ceil(static_cast<double>(problem.batch) / shape.samples) - 1);
  const double elements =
      static_cast<double>(element_count(problem.weight_sizes())) * (pieces + std::min(again, 1.0)) +
      static_cast<double>(element_count(problem.input_sizes()) + element_count(problem.output_sizes()));
  // Among equals, the one that multiplies less for nothing.
  const double used = static_cast<double>(shape.rows()) * shape.cells() / shape.padded_rows() / shape.padded_cells();
  const double computing = (1.15 - 0.15 * used) * cycles / kClock;
  const double fetching = 1.3 * bytes * elements / device.bandwidth + 2e-6;
  return kLaunch + std::max(computing, fetching) + 0.15 * std::min(computing, fetching);
}

struct CellCut {
  int samples;
  int box;
  int boxes;
};

// Whole images, several of them if they are small; or boxes of one.
std::vector<CellCut> cell_cuts(const ColumnsShape& base, const Problem& problem) {
  std::vector<CellCut> cuts;
  ColumnsShape shape = base;
  shape.samples = 1;
  shape.boxes = 1;
  const int image = shape.box_cells();
  const int whole = shape.output_cells(shape.box_axis);
  for (int samples = 1; samples * image <= kMostCells; ++samples) {
    const bool even = samples == 1 || samples == problem.batch || (samples & (samples - 1)) == 0 ||
                      (samples * image) % 64 == 0 || ((samples + 1) * image - 1) / 16 > (samples * image - 1) / 16;
    if (samples <= problem.batch && even) cuts.push_back({samples, whole, 1});
  }
  for (int box = 1; box < whole; ++box) {
    shape.box = box;
    shape.boxes = ceil_div(whole, box);
    if (shape.box_cells() > kMostCells) break;
    if (box > 1 && ceil_div(whole, box - 1) == shape.boxes) continue;  // the same number of smaller boxes
    cuts.push_back({1, box, shape.boxes});
  }
  return cuts;
}

std::vector<int> channel_choices(const ColumnsShape& shape) {
  std::vector<int> choices;
  const int taps = shape.all_slots();
  for (int channels = 1; channels <= shape.out_channels && channels * taps <= kMostRows; ++channels) {
    const bool even = channels == shape.out_channels || (channels & (channels - 1)) == 0 || channels % 8 == 0;
    const bool fills = (channels * taps - 1) / kColumnsRowUnit < ((channels + 1) * taps - 1) / kColumnsRowUnit;
    if (even || (shape.taps_inner && fills)) choices.push_back(channels);
  }
  // Parts of sectors only where there is nothing else.
  const int least = std::min(shape.out_channels, 32 / shape.element_bytes);
  if (!shape.taps_inner) std::erase_if(choices, [&](int channels) { return channels < least; });
  if (choices.empty() && taps <= kMostRows) choices.push_back(std::min(shape.out_channels, kMostRows / taps));
  return choices;
}

}  // namespace

std::string why_no_columns(const Problem& problem, const DeviceProperties& device) {
  if (problem.direction != Direction::forward) return "computes the forward direction";
  if (problem.dtype == DType::f64) return "tensor cores have no float64 here";
  if (problem.dtype == DType::f32 && problem.precision != Precision::tf32) return "computes fp32 as TF32 alone";
  if (device.arch < 80) return "needs sm_80 or later";
  if (element_count(problem.output_sizes()) == 0 || element_count(problem.input_sizes()) == 0)
    return "nothing to compute";
  for (const Strides* strides : {&problem.input_strides, &problem.weight_strides, &problem.output_strides}) {
    if (std::any_of(strides->begin(), strides->end(), [](std::int64_t stride) { return stride < 0; }))
      return "negative strides in memory";
  }
  if (problem.in_channels_per_group() > kIntMax / 256 || problem.out_channels_per_group() > kIntMax / kMostRows ||
      problem.groups > kIntMax / 2 || problem.batch > kIntMax / 2)
    return "channel counts or batches beyond 32 bits";
  for (const Axis& axis : problem.axes) {
    if (axis.input > 65536 || axis.output() > kIntMax / 4 || axis.pad_begin > kIntMax / 4 || axis.kernel > 256 ||
        axis.stride > 4096 || axis.dilation > 65536)
      return "sizes along an axis beyond what the kernel counts";
  }
  if (problem.weight_strides[0] > kIntMax || problem.input_strides[1] > kIntMax)
    return "channels of the input or of the weights more than 2^31 elements apart";
  if (!has_even_cells(problem)) return "cells of the input at uneven distances";
  if (!has_inner_taps(problem) && !has_inner_channels(problem))
    return "neither the taps of an output channel nor the channels of a tap are neighbours";
  return {};
}

namespace {

// Small images with a few output channels: taps fill the rows of a tensor-core tile, phases would leave most of them
// empty.
bool fills_rows_with_taps(const Problem& problem) {
  constexpr std::int64_t kFewRows = 16;
  constexpr std::int64_t kManyTaps = 64;
  constexpr std::int64_t kSmallImage = 128;
  constexpr std::int64_t kManyChannels = 32;
  std::int64_t rows = problem.out_channels_per_group();
  std::int64_t taps = 1;
  std::int64_t cells = 1;
  for (const Axis& axis : problem.axes) {
    rows *= std::min(axis.stride, axis.kernel);
    taps *= axis.kernel;
    cells *= axis.input;
  }
  return rows <= kFewRows && taps >= kManyTaps && cells <= kSmallImage &&
         problem.in_channels_per_group() >= kManyChannels;
}

}  // namespace

std::string why_rather_no_columns(const Problem& problem, const DeviceProperties& device) {
  if (fills_rows_with_taps(problem)) return {};
  // Weights worth not being packed; few enough that the L2 cache keeps them for the other samples of a batch.
  constexpr std::int64_t kManyWeights = 3LL << 18U;
  constexpr std::int64_t kMostWeights = 1LL << 23U;
  const std::int64_t weights = element_count(problem.weight_sizes());
  if (weights < kManyWeights || weights > kMostWeights) {
    return "made for " + std::to_string(kManyWeights) + " to " + std::to_string(kMostWeights) + " weights, got " +
           std::to_string(weights);
  }
  // Blocks read all weights again for other cells.
  const bool many = weights >= kMostWeights / 2;
  std::int64_t most_cells = many ? 256 : 64;
  // Channels-last, streaming tiles read weights in place as well, by whole vectors or boxes: less is left to this
  // family.
  const bool streams = device.arch == 90 && device.has_wgmma && problem.input_strides[1] == 1;
  if (streams && !many) most_cells = 8;
  if (streams && many && problem.dtype == DType::f32) most_cells = 64;
  if (streams && many && problem.dtype != DType::f32 && problem.weight_strides[1] == 1) most_cells = 16;
  std::int64_t cells = 1;
  for (const Axis& axis : problem.axes) cells *= axis.input;
  if (cells > most_cells) {
    return "made for images of at most " + std::to_string(most_cells) + " cells with such weights, got " +
           std::to_string(cells);
  }
  if (problem.in_channels_per_group() < 64)
    return "made for many input channels, got " + std::to_string(problem.in_channels_per_group());
  return {};
}

std::vector<ColumnsCandidate> columns_candidates(const Problem& problem, const DeviceProperties& device,
                                                 const ColumnsOptions& options) {
  const ColumnsShape base = base_shape(problem);
  std::vector<ColumnsCandidate> candidates;
  const auto consider = [&](ColumnsShape shape) {
    shape.row_warps = ceil_div(shape.rows(), kColumnsRowUnit * shape.row_units);
    shape.cell_warps = ceil_div(shape.cells(), kColumnsCellUnit * shape.cell_units);
    if (shape.warps() > 8 || shape.row_units * shape.cell_units > 8) return;
    shape.idle_warps = std::max(0, 4 - shape.warps());
    // Smaller units would do.
    if (shape.padded_rows() - shape.rows() >= kColumnsRowUnit * shape.row_warps) return;
    if (shape.padded_cells() - shape.cells() >= kColumnsCellUnit * shape.cell_warps) return;
    shape.weight_bytes = weight_bytes_of(shape, problem, options);
    shape.copies_cells = options.aligned && can_copy_cells(shape, problem);
    set_runs(shape, problem, options);
    const long long blocks = blocks_of(shape, problem);
    const long long most_resident = (blocks + device.multiprocessors - 1) / device.multiprocessors;
    if (blocks > kIntMax || !complete(shape, device, most_resident)) return;
    candidates.push_back({shape, blocks, seconds_of(shape, problem, device)});
  };
  const std::vector<CellCut> cuts = cell_cuts(base, problem);
  for (const bool one_phase : {false, true}) {
    if (one_phase && (base.taps_inner || !can_split_phases(base))) continue;
    ColumnsShape shape = base;
    shape.one_phase = one_phase;
    for (const int channels : channel_choices(shape)) {
      shape.block_channels = channels;
      for (const CellCut& cut : cuts) {
        std::tie(shape.samples, shape.box, shape.boxes) = std::tie(cut.samples, cut.box, cut.boxes);
        for (shape.row_units = 1; shape.row_units <= 2; ++shape.row_units) {
          for (shape.cell_units = 1; shape.cell_units <= 4; ++shape.cell_units) consider(shape);
        }
      }
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const ColumnsCandidate& a, const ColumnsCandidate& b) {
    return a.expected_seconds < b.expected_seconds;
  });
  if (candidates.size() > kMostCandidates) candidates.resize(kMostCandidates);
  return candidates;
}

}  // namespace tconv::cuda
