#include "cuda/group.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/element_name.h"
#include "cuda/jit_kernel.h"
#include "cuda/kernels/group_params.cuh"

namespace tconv::cuda {
namespace {

constexpr std::int64_t kIntMax = std::numeric_limits<int>::max();
constexpr int kMostProducts = 12;             // of a warp that adds up weights, in registers
constexpr int kMostHeight = 16;               // taps whose weights a warp holds
constexpr std::size_t kReservedBytes = 1024;  // of shared memory, for each block
constexpr int kManyTaps = 64;                 // from which on other families take longer, however rows come

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Whether the channels of a pixel are neighbours, in both tensors.
bool channels_last(const Problem& problem) { return problem.input_strides[1] == 1 && problem.output_strides[1] == 1; }

// Whether every pixel's channels begin at a multiple of 16 bytes where the first one's do.
bool pixels_keep_alignment(const Sizes& sizes, const Strides& strides, DType dtype) {
  for (const std::size_t dimension : {0, 2, 3, 4}) {
    if (sizes[dimension] > 1 && strides[dimension] * static_cast<std::int64_t>(size_of(dtype)) % 16 != 0) return false;
  }
  return true;
}

bool is_aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

std::string_view why_not(const Problem& problem, const DeviceProperties& device) {
  if (problem.direction != Direction::grad_input && problem.direction != Direction::grad_weight)
    return "computes grad_input and grad_weight";
  if (problem.groups == 1 || problem.in_channels_per_group() != kGroupChannels ||
      problem.out_channels_per_group() % 8 != 0 || problem.out_channels_per_group() > 32) {
    return "needs groups of 8 input channels and 8 to 32 output channels";
  }
  if (problem.dtype == DType::f64) return "tensor cores have no float64 here";
  if (problem.dtype == DType::f32 && problem.precision != Precision::tf32) return "multiplies in TF32";
  if (device.arch < 80) return "needs sm_80 or later";
  if (!channels_last(problem) && (problem.input_strides[4] != 1 || problem.output_strides[4] != 1))
    return "neither rows nor the channels of a pixel lie densely";
  double taps = 1;
  for (const Axis& axis : problem.axes) {
    taps *= static_cast<double>(axis.kernel);
    if (axis.stride > 64 || axis.dilation > 64 || axis.pad_begin > kIntMax / 4 || axis.input > kIntMax / 128 ||
        axis.output() > kIntMax / 4) {
      return "sizes along an axis beyond 32 bits";
    }
  }
  if (taps > 256 || problem.axes[1].kernel > kMostHeight) return "too many taps";
  if (element_count(problem.input_sizes()) == 0 || element_count(problem.output_sizes()) == 0)
    return "nothing to compute";
  return {};
}

// Instructions of a warp that bring its channels of a box.
double load_instructions(const GroupShape& shape) {
  const double channels = shape.out_channels / 8.0;
  if (shape.last)
    return channels * static_cast<double>(ceil_div(std::int64_t{shape.box_rows()} * shape.box(2), kGroupThreads)) * 40;
  if (!shape.copies) return channels * shape.box_rows() * static_cast<double>(ceil_div(shape.box(2), 32)) * 10;
  const int pieces = shape.row_pitch() / 4;
  const int rest = pieces % 32;
  const int whole_warps = pieces / 32;
  const double whole = 25.0 * whole_warps * shape.box_rows();
  if (rest == 0) return channels * whole;
  const double several = rest * shape.box(1) >= 32
                             ? static_cast<double>(shape.box(0) * ceil_div(shape.box(1), 32 / rest)) * 25
                             : static_cast<double>(ceil_div(std::int64_t{shape.box_rows()} * rest, 32)) * 50;
  return channels * (whole + several);
}

// Cycles of a box: instructions of eight warps, their reads of shared memory, and what comes from memory meanwhile,
// which other blocks of the multiprocessor hide.
double box_cycles(const GroupShape& shape) {
  // Where rows have leads of their own, pixels two elements apart may meet on a bank.
  const bool free = shape.stride[2] % 2 == 1 || !shape.copies || (shape.weight && shape.same_lead);
  const double single = shape.pairs_taps() ? 1.0 * (shape.kernel[2] % 2) / shape.kernel[2] : 1;  // taps without another
  const double conflicts = free ? 1 : 1 + single;
  double instructions = load_instructions(shape) + 150;
  double reads = 0;
  if (shape.weight) {
    const double steps = shape.pixels() / 8.0;
    instructions += steps * (3 + 10.0 * shape.warp_products()) + shape.pixels() / 32.0 * 12;
    reads += steps * (2 + 4.0 * conflicts * shape.warp_products());
  } else {
    int rows = 0;
    for (int row = 0; row < shape.strip_reach(); ++row) rows += shape.strip_reads(row) ? 1 : 0;
    const double turns = static_cast<double>(ceil_div(shape.kernel[0] * shape.width_steps(), shape.tap_warps())) *
                         (static_cast<double>(shape.kernel[2]) / shape.width_steps()) * shape.out_channels / 8;
    const double places = shape.tap_warps() == 1 ? 40.0 / shape.kernel[2] : shape.same_lead ? 15 : 45;
    instructions += turns * (8.0 * rows + (1.0 + shape.strip) * shape.kernel[1] + places) + 40.0 * shape.strip;
    if (shape.tap_warps() > 1) instructions += 20 + 10.0 * shape.strip;
    reads += turns * (4.0 * conflicts * rows + 2 * shape.kernel[1]);
  }
  constexpr int kWarps = kGroupThreads / 32;
  const double busy = std::max(instructions * kWarps / 4, reads * kWarps);
  constexpr double kBytesPerCycle = 40;
  constexpr double kRowBytes = 160;  // that a row of memory costs beside its own: lines that it has in part
  // Channels that are neighbours come in whole sectors of 32 bytes.
  const double row_bytes = shape.last ? 4.0 * shape.box(2) : shape.row_pitch() * 4 + kRowBytes;
  const double arrives = 1000 + shape.out_channels * shape.box_rows() * row_bytes / kBytesPerCycle;
  return std::max(busy, arrives) + std::min(busy, arrives) / shape.resident;
}

// Boxes of pixels, those that cost least for each of them first.
std::vector<GroupShape> shapes_of(const Problem& problem, const DeviceProperties& device) {
  GroupShape shape{};
  shape.weight = problem.direction == Direction::grad_weight;
  shape.out_channels = static_cast<int>(problem.out_channels_per_group());
  shape.last = channels_last(problem);
  shape.copies = problem.dtype == DType::f32 && !shape.last;
  shape.same_lead = shape.copies;
  for (const int d : {1, 2, 3}) shape.same_lead = shape.same_lead && problem.output_strides[d] % 4 == 0;
  shape.strip = 1;
  for (int a = 0; a < kSpatialAxes; ++a) {
    const Axis& axis = problem.axes[a];
    shape.kernel[a] = static_cast<int>(axis.kernel);
    shape.stride[a] = static_cast<int>(axis.stride);
    shape.dilation[a] = axis.kernel == 1 ? 1 : static_cast<int>(axis.dilation);
  }
  if (shape.weight && shape.warp_products() > kMostProducts) return {};
  // Halves of channels that are neighbours hold registers on their way; three blocks leave enough for sm_90's
  // assembler.
  const bool tight = shape.last && problem.dtype != DType::f32 && device.arch != 90;
  const int most_resident = shape.weight && (shape.warp_products() > 4 || tight) ? 2 : 3;
  std::vector<std::pair<double, GroupShape>> found;
  for (const int d : {1, 2, 4}) {
    for (const int h : {1, 2, 4, 8, 16}) {
      for (const int w : {16, 32, 64, 128}) {
        GroupShape candidate = shape;
        candidate.tile[0] = d;
        candidate.tile[1] = h;
        candidate.tile[2] = w;
        const auto bytes = static_cast<std::size_t>(candidate.shared_bytes());
        // Sums of weights stay in registers, so that boxes of twice the pixels would spare grad_weight little.
        const bool fits = candidate.pixels() == 128 || (candidate.pixels() == 256 && !shape.weight);
        if (!fits || bytes > device.shared_bytes_per_block) continue;
        const auto fitting = static_cast<int>(device.shared_bytes_per_multiprocessor / (bytes + kReservedBytes));
        candidate.resident = std::clamp(fitting, 1, most_resident);
        double covered = 1;  // pixels of the tiles of a sample
        for (int a = 0; a < kSpatialAxes; ++a)
          covered *= static_cast<double>(ceil_div(problem.axes[a].input, candidate.tile[a]) * candidate.tile[a]);
        for (const int strip : {1, 2, 4}) {
          candidate.strip = strip;
          if (shape.weight ? strip > 1 : h % strip != 0 || candidate.strips() > kGroupThreads / 32) continue;
          if (candidate.sums_words() > candidate.box_words()) continue;
          found.emplace_back(covered * box_cycles(candidate) / candidate.pixels(), candidate);
        }
      }
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<GroupShape> shapes;
  for (const auto& [cost, candidate] : found) shapes.push_back(candidate);
  return shapes;
}

KernelSource source_of(const Problem& problem, const GroupShape& s, const char* file, const char* entry) {
  const auto list = [](const int (&values)[3]) {
    return "{" + std::to_string(values[0]) + ", " + std::to_string(values[1]) + ", " + std::to_string(values[2]) + "}";
  };
  const std::string config =
      "struct F64; struct F32; struct F16; struct BF16;\nusing Element = " + std::string(element_name(problem.dtype)) +
      ";\n#include \"group_params.cuh\"\nconstexpr GroupShape kShape = {" + (s.weight ? "true" : "false") + ", " +
      std::to_string(s.out_channels) + ", " + list(s.kernel) + ", " + list(s.stride) + ", " + list(s.dilation) + ", " +
      list(s.tile) + ", " + (s.copies ? "true" : "false") + ", " + (s.same_lead ? "true" : "false") + ", " +
      (s.last ? "true" : "false") + ", " + std::to_string(s.strip) + ", " + std::to_string(s.resident) + "};\n";
  return {.file = file, .config = config, .entry = entry};
}

class GroupKernel final : public Kernel {
 public:
  GroupKernel(const Problem& problem, const DeviceProperties& device, const GroupShape& shape)
      : shape_(shape),
        device_(device.device.index),
        main_(shape.weight ? source_of(problem, shape, "group_weight.cuh", "tconv_group_weight")
                           : source_of(problem, shape, "group_input.cuh", "tconv_group_input"),
              static_cast<std::size_t>(shape.shared_bytes()), device.arch) {
    std::copy(problem.input_strides.begin(), problem.input_strides.end(), params_.input_strides);
    std::copy(problem.weight_strides.begin(), problem.weight_strides.end(), params_.weight_strides);
    std::copy(problem.output_strides.begin(), problem.output_strides.end(), params_.output_strides);
    params_.aligned = pixels_keep_alignment(problem.input_sizes(), problem.input_strides, problem.dtype) &&
                              pixels_keep_alignment(problem.output_sizes(), problem.output_strides, problem.dtype)
                          ? 1
                          : 0;
    params_.groups = static_cast<int>(problem.groups);
    params_.tiles[0] = static_cast<int>(problem.batch);
    tiles_ = problem.batch;
    for (int a = 0; a < kSpatialAxes; ++a) {
      const Axis& axis = problem.axes[a];
      params_.input_size[a] = static_cast<int>(axis.input);
      params_.output_size[a] = static_cast<int>(axis.output());
      params_.pad[a] = static_cast<int>(axis.pad_begin);
      params_.tiles[1 + a] = static_cast<int>(ceil_div(axis.input, shape.tile[a]));
      tiles_ *= params_.tiles[1 + a];
    }
    const std::int64_t resident = shape.resident * static_cast<std::int64_t>(device.multiprocessors);
    params_.parts = static_cast<int>(std::clamp<std::int64_t>(resident / problem.groups, 1, tiles_));
    if (shape.weight)
      finish_.emplace(source_of(problem, shape, "group_weight.cuh", "tconv_group_weight_finish"), 0, device.arch);
  }

  std::int64_t tiles() const { return tiles_; }

  void prepare() const override {
    main_.prepare(device_);
    if (finish_) finish_->prepare(device_);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    GroupParams params = params_;
    params.output = buffers.output;
    params.input = buffers.input;
    params.weight = buffers.weight;
    params.sums = static_cast<float*>(buffers.workspace);
    if (!is_aligned(buffers.input) || !is_aligned(buffers.output)) params.aligned = 0;
    void* arguments[] = {&params};
    main_.launch(device_,
                 {.grid_x = static_cast<unsigned>(blocks()),
                  .block = kGroupThreads,
                  .overlaps_previous = execution.beside_previous},
                 arguments, execution.stream);
    if (!finish_) return;
    finish_->launch(device_,
                    {.grid_x = static_cast<unsigned>(ceil_div(sums_of_part(), 32)),
                     .block = kGroupThreads,
                     .overlaps_previous = true},
                    arguments, execution.stream);
  }

  // Gradients whose threads load octets take longer beside each other than one after the other (kb73 in fp32 2.35 ms
  // instead of 1.82).
  bool overlaps() const override { return !shape_.last && main_.overlaps(); }

  std::size_t workspace_bytes() const {
    return finish_ ? sizeof(float) * static_cast<std::size_t>(params_.parts * sums_of_part()) : 0;
  }

  std::string describe() const override {
    std::string text = "groups of " + std::to_string(kGroupChannels) + " and " + std::to_string(shape_.out_channels) +
                       " channels, boxes of " + std::to_string(shape_.tile[0]) + "x" + std::to_string(shape_.tile[1]) +
                       "x" + std::to_string(shape_.tile[2]) + " pixels, ";
    if (finish_) text += std::to_string(params_.parts) + " parts, ";
    if (!shape_.weight) text += "strips of " + std::to_string(shape_.strip) + " rows, ";
    return text + std::to_string(blocks()) + " blocks, " + std::to_string(shape_.shared_bytes() / 1024) + " KiB shared";
  }

 private:
  std::int64_t blocks() const { return std::int64_t{params_.groups} * params_.parts; }
  std::int64_t sums_of_part() const {
    return static_cast<std::int64_t>(params_.groups) * shape_.rows() * kGroupChannels;
  }

  GroupShape shape_;
  int device_;
  std::int64_t tiles_ = 1;
  JitKernel main_;
  std::optional<JitKernel> finish_;
  GroupParams params_{};
};

}  // namespace

namespace {

// Where channels are neighbours, tiles and reductions read whole vectors of them as well, and lose less by filling up
// groups with zeros the more output channels a group has (docs/notes/grad_input.md, "Small groups").
std::string_view why_rather_no_octets(const Problem& problem) {
  const bool eight = problem.out_channels_per_group() == 8;
  const bool halves = problem.dtype != DType::f32;
  int strided = 0;
  bool overlaps = false;  // taps of neighbouring pixels
  bool uneven = false;    // residues of the stride that have more taps than others
  for (const Axis& axis : problem.axes) {
    strided += axis.stride > 1 ? 1 : 0;
    overlaps = overlaps || axis.kernel > axis.stride;
    uneven = uneven || axis.kernel % axis.stride != 0;
  }
  if (problem.direction == Direction::grad_input) {
    if (!eight) return "channels-last: made for groups of 8 output channels";
    if (!halves && !uneven) return "channels-last fp32: made for kernels that are no multiple of the stride";
    return {};
  }
  if (strided < 2) return "channels-last: made for strides along two axes";
  if (halves && !(eight && overlaps))
    return "channels-last halves: made for groups of 8 output channels and kernels longer than the stride";
  return {};
}

}  // namespace

std::string why_rather_no_group(const Problem& problem, const DeviceProperties& device) {
  if (!why_not(problem, device).empty()) return {};  // the better reason
  if (channels_last(problem)) return std::string(why_rather_no_octets(problem));
  double taps = 1;
  for (const Axis& axis : problem.axes) taps *= static_cast<double>(axis.kernel);
  if (problem.axes[2].output() % 2 == 0 && taps < kManyTaps)
    return "made for rows of odd length or at least " + std::to_string(kManyTaps) + " taps, got " +
           std::to_string(static_cast<int>(taps));
  return {};
}

Proposal propose_group(const Problem& problem, const DeviceProperties& device) {
  return propose_group_cut(problem, device, 0);
}

Proposal propose_group_cut(const Problem& problem, const DeviceProperties& device, int index) {
  if (const std::string_view reason = why_not(problem, device); !reason.empty())
    return Proposal::decline(std::string(reason));
  const std::vector<GroupShape> shapes = shapes_of(problem, device);
  if (shapes.empty()) return Proposal::decline("no box of pixels fits registers and shared memory");
  const auto count = static_cast<int>(shapes.size());
  if (index >= count) return Proposal::decline("has " + std::to_string(count) + " cuts for this problem");
  const GroupShape& shape = shapes[static_cast<std::size_t>(index)];
  const auto kernel = std::make_shared<const GroupKernel>(problem, device, shape);
  if (static_cast<double>(kernel->tiles()) * static_cast<double>(problem.groups) > static_cast<double>(kIntMax) / 2)
    return Proposal::decline("more boxes than a grid has blocks");
  Proposal proposal;
  proposal.workspace_bytes = kernel->workspace_bytes();
  const double boxes = static_cast<double>(kernel->tiles() * problem.groups) / device.multiprocessors;
  const double bytes =
      static_cast<double>(element_count(problem.input_sizes()) + element_count(problem.output_sizes())) *
      static_cast<double>(size_of(problem.dtype));
  proposal.expected_seconds = 6e-6 + std::max(boxes * box_cycles(shape) / 1.7e9, 1.5 * bytes / device.bandwidth);
  proposal.kernel = kernel;
  return proposal;
}

}  // namespace tconv::cuda
