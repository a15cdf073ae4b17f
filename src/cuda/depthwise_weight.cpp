#include "cuda/depthwise_weight.h"

#include <algorithm>
#include <limits>
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

class DepthwiseWeightKernel final : public Kernel {
 public:
  DepthwiseWeightKernel(const Problem& problem, const DeviceProperties& device)
      : across_(problem.groups > 1 && problem.input_strides[1] == 1 && problem.output_strides[1] == 1),
        taps_(taps_of(problem)),
        device_(device.device.index),
        main_(source(problem, across_, "tconv_depthwise_weight"), 0, device.arch),
        finish_(source(problem, across_, "tconv_depthwise_weight_finish"), 0, device.arch) {
    std::copy(problem.input_strides.begin(), problem.input_strides.end(), params_.input_strides);
    std::copy(problem.weight_strides.begin(), problem.weight_strides.end(), params_.weight_strides);
    std::copy(problem.output_strides.begin(), problem.output_strides.end(), params_.output_strides);
    params_.channels = static_cast<int>(problem.groups);
    for (int a = 0; a < kSpatialAxes; ++a) {
      params_.input_size[a] = static_cast<int>(problem.axes[a].input);
      params_.output_size[a] = static_cast<int>(problem.axes[a].output());
      params_.pad[a] = static_cast<int>(problem.axes[a].pad_begin);
    }
    const std::int64_t pixels = pixels_of(problem);
    params_.pixels = static_cast<int>(pixels);
    const std::int64_t least = across_ ? kLeastPixels / kDepthwiseLanes : kLeastPixels;
    const std::int64_t wanted = ceil_div(std::int64_t{8} * device.multiprocessors, channel_blocks());
    params_.parts = static_cast<int>(std::clamp<std::int64_t>(std::min(wanted, pixels / least), 1, 4096));
  }

  void prepare() const override {
    main_.prepare(device_);
    if (params_.parts > 1) finish_.prepare(device_);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    DepthwiseWeightParams params = params_;
    params.input = buffers.input;
    params.output = buffers.output;
    params.weight = buffers.weight;
    params.sums = static_cast<float*>(buffers.workspace);
    void* arguments[] = {&params};
    main_.launch(device_, {.grid_x = static_cast<unsigned>(blocks()), .block = kDepthwiseThreads}, arguments,
                 execution.stream);
    if (params_.parts == 1) return;
    const auto finish_blocks = static_cast<unsigned>(ceil_div(params_.channels * taps_, kDepthwiseThreads));
    finish_.launch(device_, {.grid_x = finish_blocks, .block = kDepthwiseThreads}, arguments, execution.stream);
  }

  std::string describe() const override {
    return std::string("a sum per tap and thread, threads along the ") + (across_ ? "channels, " : "pixels, ") +
           std::to_string(params_.parts) + (params_.parts == 1 ? " part, " : " parts, ") + std::to_string(blocks()) +
           " blocks";
  }

  std::size_t workspace_bytes() const {
    return params_.parts == 1 ? 0 : sizeof(float) * static_cast<std::size_t>(params_.parts * taps_ * params_.channels);
  }

 private:
  static KernelSource source(const Problem& problem, bool across, const char* entry) {
    const auto list = [&](std::int64_t Axis::* member) {
      std::string text = "{";
      for (const Axis& axis : problem.axes) text += (text.size() > 1 ? ", " : "") + std::to_string(axis.*member);
      return text + "};\n";
    };
    const std::string config =
        "struct F64; struct F32; struct F16; struct BF16;\nusing Element = " +
        std::string(element_name(problem.dtype)) + ";\nconstexpr int kKernel[] = " + list(&Axis::kernel) +
        "constexpr int kStride[] = " + list(&Axis::stride) + "constexpr int kDilation[] = " + list(&Axis::dilation) +
        "constexpr bool kAcross = " + (across ? "true" : "false") + ";\n";
    return {.file = "depthwise_weight.cuh", .config = config, .entry = entry};
  }

  std::int64_t channel_blocks() const {
    return across_ ? ceil_div(params_.channels, kDepthwiseLanes) : params_.channels;
  }
  std::int64_t blocks() const { return channel_blocks() * params_.parts; }

  bool across_;
  std::int64_t taps_;
  int device_;
  JitKernel main_;
  JitKernel finish_;
  DepthwiseWeightParams params_{};
};

}  // namespace

Proposal propose_depthwise_weight(const Problem& problem, const DeviceProperties& device) {
  if (const std::string_view reason = why_not(problem); !reason.empty()) return Proposal::decline(std::string(reason));
  const auto kernel = std::make_shared<const DepthwiseWeightKernel>(problem, device);
  Proposal proposal;
  proposal.workspace_bytes = kernel->workspace_bytes();
  // Reads of neighbouring threads are as far apart as the stride; the first level cache serves them line by line.
  const double loads = static_cast<double>(pixels_of(problem) * taps_of(problem) * problem.groups) / 32 *
                       std::min(8.0, static_cast<double>(problem.axes[2].stride));
  const double bytes =
      static_cast<double>(element_count(problem.input_sizes()) + element_count(problem.output_sizes())) *
      static_cast<double>(size_of(problem.dtype));
  proposal.expected_seconds =
      5e-6 + std::max(loads / device.multiprocessors / 1.6e9, bytes / (0.85 * device.bandwidth));
  proposal.kernel = kernel;
  return proposal;
}

}  // namespace tconv::cuda
