#include "cuda/grad_bias.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "cuda/element_name.h"
#include "cuda/jit_kernel.h"
#include "cuda/kernels/grad_bias_params.cuh"

namespace tconv::cuda {
namespace {

constexpr std::int64_t kIntMax = std::numeric_limits<int>::max();

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Run {
  std::int64_t size;
  std::int64_t stride;
};

// Batch and axes as few runs: neighbours that continue each other are one.
std::vector<Run> runs_of(const Problem& problem) {
  const Sizes sizes = problem.output_sizes();
  std::vector<Run> runs;
  for (const int dimension : {0, 2, 3, 4}) {
    if (sizes[dimension] == 1) continue;
    const Run run = {sizes[dimension], problem.output_strides[dimension]};
    if (!runs.empty() && runs.back().stride == run.size * run.stride) {
      runs.back() = {runs.back().size * run.size, run.stride};
    } else {
      runs.push_back(run);
    }
  }
  return runs;
}

// One pass: a tensor of channels and elements to sums of parts.
class Pass {
 public:
  Pass(const GradBiasParams& params, DType in, DType out, bool across, int rows, int arch)
      : params_(params), across_(across), jit_(source(params, in, out, across, rows), 0, arch) {}

  void prepare(int device) const { jit_.prepare(device); }

  void launch(int device, const void* input, void* output, void* stream) const {
    GradBiasParams params = params_;
    params.input = input;
    params.output = output;
    void* arguments[] = {&params};
    jit_.launch(device, {.grid_x = static_cast<unsigned>(blocks()), .block = kBiasThreads}, arguments, stream);
  }

  std::int64_t blocks() const {
    return params_.parts * (across_ ? ceil_div(params_.channels, kBiasLanes) : params_.channels);
  }

 private:
  static KernelSource source(const GradBiasParams& params, DType in, DType out, bool across, int rows) {
    const std::string config =
        "struct F64; struct F32; struct F16; struct BF16;\nusing In = " + std::string(element_name(in)) +
        ";\nusing Out = " + element_name(out) +
        ";\nusing Index = " + (params.elements > kIntMax / 2 ? "long long" : "int") +
        ";\nconstexpr bool kAcross = " + (across ? "true" : "false") +
        ";\nconstexpr int kRows = " + std::to_string(rows) + ";\n";
    return {.file = "grad_bias.cuh", .config = config, .entry = "tconv_grad_bias"};
  }

  GradBiasParams params_;
  bool across_;
  JitKernel jit_;
};

class GradBiasKernel final : public Kernel {
 public:
  GradBiasKernel(const Problem& problem, const DeviceProperties& device) : device_(device.device.index) {
    const std::vector<Run> runs = runs_of(problem);
    GradBiasParams params{};
    params.channels = problem.out_channels;
    params.channel_stride = problem.output_strides[1];
    params.elements = 1;
    for (int i = 0; i < 4; ++i) {
      // The runs at the end, and with two of them the outer one first, where the kernel looks for it.
      const int at = i - (4 - static_cast<int>(runs.size()));
      const Run run = at >= 0 ? runs[static_cast<std::size_t>(at)] : Run{1, 0};
      params.sizes[i] = run.size;
      params.strides[i] = run.stride;
      params.elements *= run.size;
    }
    const int rows = runs.size() <= 1 ? 1 : runs.size() == 2 ? 2 : 4;
    if (rows == 2) {
      params.sizes[0] = params.sizes[2];
      params.strides[0] = params.strides[2];
    }
    const bool across = params.channels > 1 && params.channel_stride == 1;
    const std::int64_t own = across ? ceil_div(params.channels, kBiasLanes) : params.channels;
    // As many parts as fill the chip, but none shorter than is worth a block.
    const std::int64_t least = across ? 256 : 4096;
    const std::int64_t wanted = ceil_div(std::int64_t{8} * device.multiprocessors, std::max<std::int64_t>(own, 1));
    params.parts = std::clamp<std::int64_t>(std::min<std::int64_t>(wanted, params.elements / least), 1, 4096);
    const DType sums = problem.dtype == DType::f64 ? DType::f64 : DType::f32;
    const bool once = params.parts == 1;
    first_.emplace(params, problem.dtype, once ? problem.dtype : sums, across, rows, device.arch);
    if (once) return;
    workspace_bytes_ = static_cast<std::size_t>(params.channels * params.parts) * size_of(sums);
    GradBiasParams parts{};
    parts.channels = params.channels;
    parts.channel_stride = params.parts;
    parts.elements = params.parts;
    parts.strides[3] = 1;
    parts.sizes[3] = params.parts;
    parts.parts = 1;
    second_.emplace(parts, sums, problem.dtype, false, 1, device.arch);
  }

  void prepare() const override {
    first_->prepare(device_);
    if (second_) second_->prepare(device_);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    first_->launch(device_, buffers.output, second_ ? buffers.workspace : buffers.bias, execution.stream);
    if (second_) second_->launch(device_, buffers.workspace, buffers.bias, execution.stream);
  }

  std::string describe() const override { return "sums of channels, " + std::to_string(first_->blocks()) + " blocks"; }

  std::size_t workspace_bytes() const { return workspace_bytes_; }

 private:
  int device_;
  std::optional<Pass> first_;
  std::optional<Pass> second_;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace

Proposal propose_grad_bias(const Problem& problem, const DeviceProperties& device) {
  if (problem.out_channels > kIntMax / 4096) return Proposal::decline("more channels than a grid has blocks");
  const auto kernel = std::make_shared<const GradBiasKernel>(problem, device);
  Proposal proposal;
  proposal.workspace_bytes = kernel->workspace_bytes();
  proposal.expected_seconds = 5e-6 + static_cast<double>(element_count(problem.output_sizes())) *
                                         static_cast<double>(size_of(problem.dtype)) / (0.8 * device.bandwidth);
  proposal.kernel = kernel;
  return proposal;
}

}  // namespace tconv::cuda
