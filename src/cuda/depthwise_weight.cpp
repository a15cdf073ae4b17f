#include "cuda/depthwise_weight.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "cuda/element_name.h"
#include "cuda/jit_kernel.h"
#include "cuda/kernels/depthwise_weight_params.cuh"

namespace tconv::cuda {
namespace {

constexpr std::int64_t kIntMax = std::numeric_limits<int>::max();
constexpr std::int64_t kLeastPixels = 2048;  // of a part: less is not worth a block's sums

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t taps_of(const Problem& problem) {
  return problem.axes[0].kernel * problem.axes[1].kernel * problem.axes[2].kernel;
}

std::int64_t pixels_of(const Problem& problem) {
  return problem.batch * problem.axes[0].input * problem.axes[1].input * problem.axes[2].input;
}

std::string_view why_not(const Problem& problem) {
  if (problem.direction != Direction::grad_weight) return "computes grad_weight only";
  if (problem.in_channels_per_group() != 1 || problem.out_channels_per_group() != 1) {
    return "needs one channel in a group";
  }
  if (problem.dtype == DType::f64) return "keeps its sums in float32";
  double taps = 1;
  double pixels = static_cast<double>(problem.batch);
  for (const Axis& axis : problem.axes) {
    taps *= static_cast<double>(axis.kernel);
    pixels *= static_cast<double>(axis.input);
    if (axis.stride > 65536 || axis.dilation > 65536 || axis.pad_begin > kIntMax / 4 || axis.input > kIntMax / 4 ||
        axis.output() > kIntMax / 4 || axis.input * axis.stride > kIntMax / 2) {
      return "sizes along an axis beyond 32 bits";
    }
  }
  if (taps > kMostDepthwiseTaps) return "more taps than a thread keeps sums for";
  if (pixels == 0) return "nothing to add up";
  if (pixels > static_cast<double>(kIntMax) / 2 || problem.groups > kIntMax / 4096) return "sizes beyond 32 bits";
  return {};
}

// Strips need rows that lie densely, and windows that fit registers.
DepthwiseStrip strip_of(const Problem& problem, bool along_pixels, bool aligned) {
  constexpr DepthwiseStrip kNone = {.cells = 0, .input_load = 1, .output_load = 1, .lead = 0, .needed = 1};
  constexpr std::int64_t kMostWindow = 48;
  constexpr std::int64_t kMostBody = 1024;  // unrolled multiply-adds
  const Axis& width = problem.axes[2];
  if (!along_pixels || problem.input_strides[4] != 1 || problem.output_strides[4] != 1 || width.stride > 8)
    return kNone;
  const int vector = 16 / static_cast<int>(size_of(problem.dtype));
  const auto together = [&](const Sizes& sizes, const Strides& strides) {
    int most = aligned ? vector : 1;
    const auto divides = [&](std::size_t i) { return (i > 0 && sizes[i] == 1) || strides[i] % most == 0; };
    while (most > 1 && !(divides(0) && divides(1) && divides(2) && divides(3))) most /= 2;
    return most;
  };
  constexpr std::int64_t kMostHeld = 100;  // values in registers
  for (int cells = vector; cells >= 4; cells /= 2) {
    DepthwiseStrip strip = kNone;
    strip.cells = cells;
    strip.input_load = std::min(together(problem.input_sizes(), problem.input_strides), cells);
    strip.output_load = together(problem.output_sizes(), problem.output_strides);
    while (cells * width.stride % strip.output_load != 0) strip.output_load /= 2;
    strip.lead = static_cast<int>((strip.output_load - width.pad_begin % strip.output_load) % strip.output_load);
    const std::int64_t needed = (cells - 1) * width.stride + (width.kernel - 1) * width.dilation + 1;
    if (needed > kMostWindow || cells * taps_of(problem) > kMostBody) continue;
    strip.needed = static_cast<int>(needed);
    if (strip.window() <= kMostWindow && strip.window() + cells + taps_of(problem) <= kMostHeld) return strip;
  }
  return kNone;
}

// Threads along the channels, where these are neighbours in both tensors: as many channels of a thread as move together
// and leave room for their sums.
DepthwiseAcross across_of(const Problem& problem) {
  DepthwiseAcross across{};
  if (problem.groups == 1 || problem.input_strides[1] != 1 || problem.output_strides[1] != 1) return across;
  constexpr std::int64_t kMostSums = 64;
  constexpr std::int64_t kMostLanes = 32;
  constexpr std::int64_t kMostBody = 128;  // unrolled multiply-adds
  const Sizes input = problem.input_sizes();
  const Sizes output = problem.output_sizes();
  const auto fits = [&](std::int64_t channels) {
    if (channels == 1) return true;
    if (problem.groups % channels != 0 || channels * taps_of(problem) > kMostSums) return false;
    for (const std::size_t i : {0U, 2U, 3U, 4U}) {
      if ((i == 0 || input[i] > 1) && problem.input_strides[i] % channels != 0) return false;
      if ((i == 0 || output[i] > 1) && problem.output_strides[i] % channels != 0) return false;
    }
    return true;
  };
  across.channels = 16 / static_cast<int>(size_of(problem.dtype));
  while (!fits(across.channels)) across.channels /= 2;
  across.load = across.channels;
  across.lanes = static_cast<int>(std::min(ceil_div(problem.groups, across.channels), kMostLanes));
  const Axis& width = problem.axes[2];
  across.cells = 1;
  for (const int cells : {2, 4}) {
    const std::int64_t window = (cells - 1) * width.stride + (width.kernel - 1) * width.dilation + 1;
    const std::int64_t body = cells * taps_of(problem) * across.channels;
    if (cells <= width.input && (cells + window) * across.channels <= 48 && body <= kMostBody) across.cells = cells;
  }
  return across;
}

class DepthwiseWeightKernel final : public Kernel {
 public:
  DepthwiseWeightKernel(const Problem& problem, const DeviceProperties& device)
      : across_(across_of(problem)),
        taps_(taps_of(problem)),
        device_(device.device.index),
        strip_(strip_of(problem, across_.lanes == 0, true)),
        main_(source(problem, "tconv_depthwise_weight", strip_, across_), 0, device.arch),
        finish_(source(problem, "tconv_depthwise_weight_finish", strip_, across_), 0, device.arch) {
    const std::uintptr_t bytes = size_of(problem.dtype);
    input_alignment_ = bytes * static_cast<std::uintptr_t>(std::max(across_.load, strip_.input_load));
    output_alignment_ = bytes * static_cast<std::uintptr_t>(std::max(across_.load, strip_.output_load));
    if (input_alignment_ > bytes || output_alignment_ > bytes) {
      DepthwiseAcross singly = across_;
      singly.load = std::min(across_.load, 1);
      unaligned_.emplace(
          source(problem, "tconv_depthwise_weight", strip_of(problem, across_.lanes == 0, false), singly), 0,
          device.arch);
    }
    std::copy(problem.input_strides.begin(), problem.input_strides.end(), params_.input_strides);
    std::copy(problem.weight_strides.begin(), problem.weight_strides.end(), params_.weight_strides);
    std::copy(problem.output_strides.begin(), problem.output_strides.end(), params_.output_strides);
    params_.channels = static_cast<int>(problem.groups);
    for (int a = 0; a < kSpatialAxes; ++a) {
      params_.input_size[a] = static_cast<int>(problem.axes[a].input);
      params_.output_size[a] = static_cast<int>(problem.axes[a].output());
      params_.pad[a] = static_cast<int>(problem.axes[a].pad_begin);
    }
    std::copy(std::begin(params_.input_size), std::end(params_.input_size), params_.steps);
    std::int64_t least = kLeastPixels;
    if (across_.lanes > 0) {
      params_.steps[2] = static_cast<int>(ceil_div(params_.input_size[2], across_.cells));
      least = kLeastPixels / (across_.lanes * across_.cells);
    }
    if (strip_.cells > 0) {
      params_.steps[2] = static_cast<int>(ceil_div(params_.input_size[2], strip_.cells));
      least = 2 * kLeastPixels / strip_.cells;
    }
    std::int64_t pixels = problem.batch;
    for (const int steps : params_.steps) pixels *= steps;
    params_.pixels = static_cast<int>(pixels);
    const std::int64_t wanted = ceil_div(std::int64_t{8} * device.multiprocessors, channel_blocks());
    params_.parts = static_cast<int>(std::clamp<std::int64_t>(std::min(wanted, pixels / least), 1, 4096));
  }

  void prepare() const override {
    main_.prepare(device_);
    if (unaligned_) unaligned_->prepare(device_);
    if (params_.parts > 1) finish_.prepare(device_);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    DepthwiseWeightParams params = params_;
    params.input = buffers.input;
    params.output = buffers.output;
    params.weight = buffers.weight;
    params.sums = static_cast<float*>(buffers.workspace);
    void* arguments[] = {&params};
    const bool misses = reinterpret_cast<std::uintptr_t>(buffers.input) % input_alignment_ != 0 ||
                        reinterpret_cast<std::uintptr_t>(buffers.output) % output_alignment_ != 0;
    const JitKernel& main = misses ? *unaligned_ : main_;
    main.launch(device_,
                {.grid_x = static_cast<unsigned>(blocks()),
                 .block = kDepthwiseThreads,
                 .overlaps_previous = execution.beside_previous},
                arguments, execution.stream);
    if (params_.parts == 1) return;
    const auto finish_blocks = static_cast<unsigned>(ceil_div(params_.channels * taps_, kDepthwiseThreads));
    finish_.launch(device_, {.grid_x = finish_blocks, .block = kDepthwiseThreads, .overlaps_previous = true}, arguments,
                   execution.stream);
  }

  bool overlaps() const override { return main_.overlaps(); }

  std::string describe() const override {
    return std::string("a sum per tap and thread, threads along the ") +
           (across_.lanes > 0 ? "channels (" + std::to_string(across_.channels) + " of " +
                                    std::to_string(across_.cells) + " cells a thread), "
                              : "pixels, ") +
           (strip_.cells > 0
                ? "strips of " + std::to_string(strip_.cells) + " by vectors of " + std::to_string(strip_.input_load) +
                      " and " + std::to_string(strip_.output_load) + ", "
                : "") +
           std::to_string(params_.parts) + (params_.parts == 1 ? " part, " : " parts, ") + std::to_string(blocks()) +
           " blocks";
  }

  std::size_t workspace_bytes() const {
    return params_.parts == 1 ? 0 : sizeof(float) * static_cast<std::size_t>(params_.parts * taps_ * params_.channels);
  }

 private:
  static KernelSource source(const Problem& problem, const char* entry, const DepthwiseStrip& strip,
                             const DepthwiseAcross& across) {
    const auto list = [&](std::int64_t Axis::* member) {
      std::string text = "{";
      for (const Axis& axis : problem.axes) text += (text.size() > 1 ? ", " : "") + std::to_string(axis.*member);
      return text + "};\n";
    };
    const std::string config =
        "struct F64; struct F32; struct F16; struct BF16;\nusing Element = " +
        std::string(element_name(problem.dtype)) + ";\nconstexpr int kKernel[] = " + list(&Axis::kernel) +
        "constexpr int kStride[] = " + list(&Axis::stride) + "constexpr int kDilation[] = " + list(&Axis::dilation) +
        "#include \"depthwise_weight_params.cuh\"\nconstexpr DepthwiseAcross kAcross = {" +
        std::to_string(across.channels) + ", " + std::to_string(across.load) + ", " + std::to_string(across.lanes) +
        ", " + std::to_string(across.cells) + "};\nconstexpr DepthwiseStrip kStrip = {" + std::to_string(strip.cells) +
        ", " + std::to_string(strip.input_load) + ", " + std::to_string(strip.output_load) + ", " +
        std::to_string(strip.lead) + ", " + std::to_string(strip.needed) + "};\n";
    return {.file = "depthwise_weight.cuh", .config = config, .entry = entry};
  }

  std::int64_t channel_blocks() const {
    return across_.lanes > 0 ? ceil_div(params_.channels, across_.block_channels()) : params_.channels;
  }
  std::int64_t blocks() const { return channel_blocks() * params_.parts; }

  DepthwiseAcross across_;
  std::int64_t taps_;
  int device_;
  DepthwiseStrip strip_;
  std::uintptr_t input_alignment_ = 1;
  std::uintptr_t output_alignment_ = 1;
  JitKernel main_;
  JitKernel finish_;
  std::optional<JitKernel> unaligned_;  // where an address does not allow the vectors
  DepthwiseWeightParams params_{};
};

}  // namespace

Proposal propose_depthwise_weight(const Problem& problem, const DeviceProperties& device) {
  if (const std::string_view reason = why_not(problem); !reason.empty()) return Proposal::decline(std::string(reason));
  const auto kernel = std::make_shared<const DepthwiseWeightKernel>(problem, device);
  Proposal proposal;
  proposal.workspace_bytes = kernel->workspace_bytes();
  // Reads of neighbouring threads are as far apart as the stride; the first level cache serves them line by line.
  // Strips read a quarter as often, and channels that lie together are read together.
  const DepthwiseAcross across = across_of(problem);
  const double apart = across.lanes > 0 ? 1.0 / across.channels
                                        : std::min(8.0, static_cast<double>(problem.axes[2].stride)) *
                                              (strip_of(problem, true, true).cells > 0 ? 0.25 : 1.0);
  const double loads = static_cast<double>(pixels_of(problem) * taps_of(problem) * problem.groups) / 32 * apart;
  const double bytes =
      static_cast<double>(element_count(problem.input_sizes()) + element_count(problem.output_sizes())) *
      static_cast<double>(size_of(problem.dtype));
  proposal.expected_seconds =
      5e-6 + std::max(loads / device.multiprocessors / 1.6e9, bytes / (0.85 * device.bandwidth));
  proposal.kernel = kernel;
  return proposal;
}

}  // namespace tconv::cuda
