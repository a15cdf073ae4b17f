#include "cuda/general_weight.h"

#include <algorithm>
#include <limits>

#include "cuda/element_name.h"
#include "cuda/jit_kernel.h"
#include "cuda/kernels/general_weight_params.cuh"

namespace tconv::cuda {
namespace {

constexpr std::int64_t kIntMax = std::numeric_limits<int>::max();
constexpr std::int64_t kMostWorkspace = 64 << 20;
constexpr unsigned kFinishThreads = 256;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

GeneralWeightParams params_of(const Problem& problem, const DeviceProperties& device) {
  GeneralWeightParams params{};
  std::copy(problem.input_strides.begin(), problem.input_strides.end(), params.input_strides);
  std::copy(problem.weight_strides.begin(), problem.weight_strides.end(), params.weight_strides);
  std::copy(problem.output_strides.begin(), problem.output_strides.end(), params.output_strides);
  params.groups = problem.groups;
  params.in_channels = problem.in_channels_per_group();
  params.out_channels = problem.out_channels_per_group();
  params.in_bundles = ceil_div(params.in_channels, kWeightBundle);
  params.out_bundles = ceil_div(params.out_channels, kWeightBundle);
  params.taps = 1;
  params.pixels = problem.batch;
  for (int a = 0; a < kSpatialAxes; ++a) {
    const Axis& axis = problem.axes[a];
    params.axes[a] = {axis.input, axis.output(), axis.kernel, axis.stride, axis.dilation, axis.pad_begin};
    params.taps *= axis.kernel;
    params.pixels *= axis.input;
  }
  params.weights = element_count(problem.weight_sizes());
  // As many parts as give every multiprocessor enough warps, but none too short.
  const std::int64_t warps = params.groups * params.in_bundles * params.out_bundles * params.taps;
  const std::int64_t wanted = ceil_div(std::int64_t{64} * device.multiprocessors, std::max<std::int64_t>(warps, 1));
  const std::int64_t sum_bytes = problem.dtype == DType::f64 ? 8 : 4;
  const std::int64_t room = kMostWorkspace / sum_bytes / std::max<std::int64_t>(params.weights, 1);
  params.parts = std::max<std::int64_t>(std::min({wanted, std::int64_t{params.pixels} / 256, room}), 1);
  params.work = warps * params.parts;
  return params;
}

// Positions of a pixel's outputs, padding and the last tap included.
bool fits_int(const GeneralWeightParams& params) {
  return params.pixels <= kIntMax - 32 &&
         std::all_of(std::begin(params.axes), std::end(params.axes), [](const GeneralWeightAxis& axis) {
           return axis.output <= kIntMax && axis.pad <= kIntMax && axis.dilation <= kIntMax && axis.stride <= kIntMax &&
                  axis.input * axis.stride + axis.kernel * axis.dilation + axis.pad <= kIntMax;
         });
}

class GeneralWeightKernel final : public Kernel {
 public:
  GeneralWeightKernel(const Problem& problem, const DeviceProperties& device)
      : params_(params_of(problem, device)),
        device_(device.device.index),
        main_(source(problem, "tconv_general_weight"), 0, device.arch),
        finish_(source(problem, "tconv_general_weight_finish"), 0, device.arch) {
    if (params_.parts > 1) {
      workspace_bytes_ =
          static_cast<std::size_t>(params_.parts * params_.weights) * (problem.dtype == DType::f64 ? 8 : 4);
    }
  }

  void prepare() const override {
    if (params_.work == 0) return;
    main_.prepare(device_);
    if (params_.parts > 1) finish_.prepare(device_);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    GeneralWeightParams params = params_;
    params.input = buffers.input;
    params.output = buffers.output;
    params.weight = buffers.weight;
    params.sums = buffers.workspace;
    void* arguments[] = {&params};
    main_.launch(device_, {.grid_x = static_cast<unsigned>(blocks()), .block = 32 * kWeightWarps}, arguments,
                 execution.stream);
    if (params_.parts == 1) return;
    finish_.launch(device_,
                   {.grid_x = static_cast<unsigned>(ceil_div(params.weights, kFinishThreads)), .block = kFinishThreads},
                   arguments, execution.stream);
  }

  std::string describe() const override {
    return "a warp for 4x4 channels and a tap, " + std::to_string(params_.parts) +
           (params_.parts == 1 ? " part, " : " parts, ") + std::to_string(blocks()) + " blocks";
  }

  std::int64_t blocks() const { return ceil_div(params_.work, kWeightWarps); }
  std::size_t workspace_bytes() const { return workspace_bytes_; }

 private:
  KernelSource source(const Problem& problem, const char* entry) const {
    const std::string config = "struct F64; struct F32; struct F16; struct BF16;\nusing Element = " +
                               std::string(element_name(problem.dtype)) +
                               ";\nusing Index = " + (fits_int(params_) ? "int" : "long long") + ";\n";
    return {.file = "general_weight.cuh", .config = config, .entry = entry};
  }

  GeneralWeightParams params_;
  int device_;
  JitKernel main_;
  JitKernel finish_;
  std::size_t workspace_bytes_ = 0;
};

// Deliberately high: a family made for the problem should win.
double expected_seconds(const Problem& problem, const DeviceProperties& device, std::int64_t blocks) {
  constexpr double kLaunch = 8e-6;
  constexpr double kShareOfRate = 0.03;
  const double slower = problem.dtype == DType::f64 ? 2 : 1;
  // However little a block adds up, it takes its time: 65,536 of them 240 us on an H200.
  constexpr double kBlock = 3.7e-9;
  return kLaunch + kBlock * static_cast<double>(blocks) +
         slower * 2 * multiply_adds(problem) / (kShareOfRate * device.fp32_rate);
}

}  // namespace

Proposal propose_general_weight(const Problem& problem, const DeviceProperties& device) {
  const auto kernel = std::make_shared<const GeneralWeightKernel>(problem, device);
  if (kernel->blocks() > kIntMax || element_count(problem.weight_sizes()) > kIntMax) {
    return Proposal::decline("more weights than a grid has blocks");
  }
  Proposal proposal;
  proposal.workspace_bytes = kernel->workspace_bytes();
  proposal.expected_seconds = expected_seconds(problem, device, kernel->blocks());
  proposal.kernel = kernel;
  return proposal;
}

}  // namespace tconv::cuda
