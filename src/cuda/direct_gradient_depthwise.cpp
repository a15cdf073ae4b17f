#include "cuda/direct_gradient_depthwise.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "cuda/jit_kernel.h"
#include "cuda/kernels/direct_gradient_depthwise_params.cuh"

namespace tconv::cuda {
namespace {

constexpr std::int64_t kInt = std::numeric_limits<std::int32_t>::max();
constexpr int kMostTaps = 64;    // held in registers
constexpr int kMostBody = 1024;  // unrolled multiply-adds
constexpr int kMostWindow = 48;  // inputs of a row that a thread holds
constexpr int kMostStride = 8;   // beyond it, lanes share no sectors

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

DepthwiseGradientAxis axis_of(const Axis& axis) {
  return {static_cast<int>(axis.kernel), static_cast<int>(axis.stride),
          axis.kernel == 1 ? 1 : static_cast<int>(axis.dilation)};
}

// Neighbours of a row that can be moved together, as far as the layout goes. The batch's stride counts whatever the
// batch, so that the batch changes no kernel.
int together(const Sizes& sizes, const Strides& strides, int most) {
  const auto divides = [&](std::size_t i) { return (i > 0 && sizes[i] == 1) || strides[i] % most == 0; };
  while (most > 1 && !(divides(0) && divides(1) && divides(3))) most /= 2;
  return most;
}

DepthwiseGradientConfig config_for(const Problem& problem, bool aligned) {
  DepthwiseGradientConfig c{};
  c.type = static_cast<DirectFloat>(problem.dtype);
  c.height = axis_of(problem.axes[1]);
  c.width = axis_of(problem.axes[2]);
  const int vector = 16 / static_cast<int>(size_of(problem.dtype));
  c.strip = std::max(4, vector);
  c.store = together(problem.input_sizes(), problem.input_strides, vector);
  c.load = aligned ? together(problem.output_sizes(), problem.output_strides, vector) : 1;
  while (c.strip * c.width.stride % c.load != 0) c.load /= 2;
  const auto past = static_cast<int>(problem.axes[2].pad_begin % c.load);
  c.lead = (c.load - past) % c.load;
  // More rows share what they read; fewer leave more threads.
  const double threads = 16.0 * static_cast<double>(problem.in_channels * problem.axes[1].input) *
                         static_cast<double>(ceil_div(problem.axes[2].input, c.strip));
  c.rows = 1;
  for (const int rows : {2, 4}) {
    if (c.height.kernel > c.height.stride && rows <= problem.axes[1].input && threads / rows > 132 * 512 &&
        rows * c.strip * c.height.kernel * c.width.kernel <= kMostBody) {
      c.rows = rows;
    }
  }
  return c;
}

std::string axis_text(const DepthwiseGradientAxis& axis) {
  return "{" + std::to_string(axis.kernel) + ", " + std::to_string(axis.stride) + ", " + std::to_string(axis.dilation) +
         "}";
}

KernelSource source_of(const DepthwiseGradientConfig& c) {
  std::string config =
      "#include \"direct_gradient_depthwise_params.cuh\"\nconstexpr DepthwiseGradientConfig kConfig = {"
      "static_cast<DirectFloat>(" +
      std::to_string(static_cast<int>(c.type)) + "), " + axis_text(c.height) + ", " + axis_text(c.width);
  for (const int value : {c.load, c.lead, c.store, c.strip, c.rows}) config += ", " + std::to_string(value);
  return {
      .file = "direct_gradient_depthwise.cuh", .config = config + "};\n", .entry = "tconv_direct_gradient_depthwise"};
}

DepthwiseGradientArguments arguments_for(const Problem& problem, const DepthwiseGradientConfig& c) {
  DepthwiseGradientArguments a{};
  a.input_batch = problem.output_strides[0];
  a.input_channel = problem.output_strides[1];
  a.input_row = problem.output_strides[3];
  a.weight_channel = problem.weight_strides[0];
  a.weight_height = problem.weight_strides[3];
  a.weight_width = problem.weight_strides[4];
  a.output_batch = problem.input_strides[0];
  a.output_channel = problem.input_strides[1];
  a.output_row = problem.input_strides[3];
  a.channels = static_cast<int>(problem.in_channels);
  a.strips = static_cast<int>(ceil_div(problem.axes[2].input, c.strip));
  a.row_groups = static_cast<int>(ceil_div(problem.axes[1].input, c.rows));
  a.threads = problem.batch * problem.in_channels * a.strips * a.row_groups;
  a.input_rows = static_cast<int>(problem.axes[1].output());
  a.input_width = static_cast<int>(problem.axes[2].output());
  a.output_rows = static_cast<int>(problem.axes[1].input);
  a.output_width = static_cast<int>(problem.axes[2].input);
  a.pad_height = static_cast<int>(problem.axes[1].pad_begin);
  a.pad_width = static_cast<int>(problem.axes[2].pad_begin);
  return a;
}

class DepthwiseGradientKernel final : public Kernel {
 public:
  DepthwiseGradientKernel(const Problem& problem, const DeviceProperties& device)
      : config_(config_for(problem, true)),
        arguments_(arguments_for(problem, config_)),
        device_(device.device.index),
        element_bytes_(size_of(problem.dtype)),
        jit_(source_of(config_), 0, device.arch) {
    if (config_.load > 1) unaligned_.emplace(source_of(config_for(problem, false)), 0, device.arch);
  }

  void prepare() const override {
    jit_.prepare(device_);
    if (unaligned_) unaligned_->prepare(device_);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    DepthwiseGradientArguments arguments = arguments_;
    arguments.input = buffers.output;
    arguments.weight = buffers.weight;
    arguments.output = buffers.input;
    void* pointers[] = {&arguments};
    const auto vector = static_cast<std::uintptr_t>(config_.load) * element_bytes_;
    const bool aligned = reinterpret_cast<std::uintptr_t>(buffers.output) % vector == 0;
    const LaunchShape shape{.grid_x = static_cast<unsigned>(ceil_div(arguments.threads, kDepthwiseThreads)),
                            .block = kDepthwiseThreads};
    (aligned ? jit_ : *unaligned_).launch(device_, shape, pointers, execution.stream);
  }

  bool overlaps() const override { return jit_.overlaps(); }

  std::string describe() const override {
    return "depthwise; a thread: " + std::to_string(config_.rows) + " rows of " + std::to_string(config_.strip) +
           " cells, loads of " + std::to_string(config_.load) + " and stores of " + std::to_string(config_.store) +
           " elements, grid " + std::to_string(ceil_div(arguments_.threads, kDepthwiseThreads));
  }

 private:
  DepthwiseGradientConfig config_;
  DepthwiseGradientArguments arguments_;
  int device_;
  std::size_t element_bytes_;
  JitKernel jit_;
  std::optional<JitKernel> unaligned_;
};

}  // namespace

std::string_view why_no_depthwise_gradient(const Problem& problem) {
  if (element_count(problem.input_sizes()) == 0 || element_count(problem.output_sizes()) == 0)
    return "there is nothing to compute";
  if (problem.in_channels_per_group() != 1 || problem.out_channels_per_group() != 1)
    return "groups have more than one channel";
  if (problem.axes[0] != Axis{}) return "it has a third axis";
  if (problem.input_strides[4] != 1 || problem.output_strides[4] != 1) return "rows do not lie densely";
  const Axis& height = problem.axes[1];
  const Axis& width = problem.axes[2];
  if (height.kernel * width.kernel > kMostTaps) return "too many taps for registers";
  for (const Axis* axis : {&height, &width}) {
    if (std::max({axis->input, axis->output(), axis->pad_begin}) > kInt / 64 || axis->stride > 64 ||
        axis->dilation > 64) {
      return "sizes along an axis are too large";
    }
  }
  if (width.stride > kMostStride) return "strips are too far apart";
  const DepthwiseGradientConfig c = config_for(problem, true);
  if (c.window() > kMostWindow || c.strip * c.height.kernel * c.width.kernel > kMostBody) return "a window is too wide";
  if (static_cast<double>(problem.batch) * static_cast<double>(problem.in_channels) > static_cast<double>(kInt) ||
      static_cast<double>(arguments_for(problem, c).threads) / kDepthwiseThreads > static_cast<double>(kInt)) {
    return "there are too many planes for a grid";
  }
  return {};
}

Proposal propose_depthwise_gradient(const Problem& problem, const DeviceProperties& device) {
  Proposal proposal;
  proposal.kernel = std::make_shared<DepthwiseGradientKernel>(problem, device);
  const auto bytes = static_cast<double>(element_count(problem.input_sizes()) + element_count(problem.output_sizes())) *
                     static_cast<double>(size_of(problem.dtype));
  proposal.expected_seconds = 3e-6 + 1.5 * bytes / device.bandwidth;
  return proposal;
}

}  // namespace tconv::cuda
