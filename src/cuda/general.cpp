#include "cuda/general.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

#include "cuda/element_name.h"
#include "cuda/general_weight.h"
#include "cuda/grad_bias.h"
#include "cuda/jit_kernel.h"

namespace tconv::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::int64_t kInt = std::numeric_limits<std::int32_t>::max();

// The inverse of a modulo m, for a and m without a common factor: Euclid's algorithm, keeping only a's coefficient.
std::int64_t inverse_modulo(std::int64_t a, std::int64_t m) {
  if (m == 1) return 0;
  std::int64_t previous = m;
  std::int64_t current = a % m;
  std::int64_t previous_coefficient = 0;
  std::int64_t coefficient = 1;
  while (current != 1) {
    const std::int64_t quotient = previous / current;
    previous = std::exchange(current, previous - quotient * current);
    previous_coefficient = std::exchange(coefficient, previous_coefficient - quotient * coefficient);
  }
  return coefficient < 0 ? coefficient + m : coefficient;
}

GeneralAxis general_axis(const Axis& axis, bool gradient) {
  GeneralAxis out{};
  out.input = axis.input;
  out.output = axis.output();
  out.kernel = axis.kernel;
  out.pad = axis.pad_begin;
  // A stride that leaps over the whole output does what any such stride does: only input 0 is seen. Likewise a dilation
  // that no second tap uses.
  out.stride = std::max<std::int64_t>(1, std::min<std::int64_t>(axis.stride, out.output + out.pad));
  out.dilation = axis.kernel == 1 ? 1 : axis.dilation;
  if (gradient) {
    std::swap(out.input, out.output);
    out.tap_step = 1;
    out.input_step = -out.dilation;
    return out;
  }
  out.common = std::gcd(out.stride, out.dilation);
  out.tap_step = out.stride / out.common;
  out.input_step = out.dilation / out.common;
  out.inverse = out.tap_step <= kInt ? inverse_modulo(out.input_step, out.tap_step) : -1;
  return out;
}

bool gradient_fits_int(const GeneralAxis& axis) {
  const auto reach = static_cast<double>(axis.output) * static_cast<double>(axis.stride) +
                     static_cast<double>(axis.kernel) * static_cast<double>(axis.dilation);
  return reach + static_cast<double>(axis.input) + static_cast<double>(axis.pad) <= static_cast<double>(kInt);
}

bool fits_int(const GeneralAxis& axis) {
  return axis.input <= kInt && axis.output + axis.pad <= kInt && axis.stride <= kInt && axis.dilation <= kInt &&
         axis.kernel <= kInt && axis.kernel * axis.dilation <= kInt && axis.tap_step * axis.tap_step <= kInt &&
         axis.input + axis.output + axis.pad + axis.input_step <= kInt;
}

// Distances of absurd dilations wrap around, as the pointers that they are added to do.
std::int64_t wrapping_product(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

class GeneralKernel final : public Kernel {
 public:
  GeneralKernel(const Problem& problem, const DeviceProperties& device)
      : shape_(general_shape(problem)),
        params_(general_params(problem, shape_)),
        bias_(problem.bias && problem.direction == Direction::forward),
        device_(device.device.index),
        jit_(general_source(shape_), 0, device.arch) {
    blocks_ = (params_.work + kThreads - 1) / kThreads;
  }

  void prepare() const override {
    if (params_.work > 0) jit_.prepare(device_);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    if (params_.work == 0) return;
    GeneralParams params = params_;
    params.input = shape_.gradient ? buffers.output : buffers.input;
    params.weight = buffers.weight;
    params.bias = bias_ ? buffers.bias : nullptr;
    params.output = shape_.gradient ? buffers.input : buffers.output;
    void* arguments[] = {&params};
    jit_.launch(device_, {.grid_x = static_cast<unsigned>(blocks_), .block = kThreads}, arguments, execution.stream);
  }

  std::string describe() const override {
    return "a thread per pixel and " + std::to_string(shape_.bundle) + (shape_.bundle == 1 ? " channel" : " channels") +
           (shape_.wide ? ", 64-bit positions" : "") + ", " + std::to_string(blocks_) + " blocks";
  }

 private:
  GeneralShape shape_;
  GeneralParams params_;
  bool bias_;
  int device_;
  std::int64_t blocks_ = 0;
  JitKernel jit_;
};

// Deliberately high: a family made for the problem should win.
double expected_seconds(const Problem& problem, const DeviceProperties& device) {
  constexpr double kLaunch = 5e-6;
  constexpr double kShareOfRate = 0.04;       // of the CUDA cores' peak
  constexpr double kShareOfBandwidth = 0.25;  // neighbouring threads share few cache lines
  constexpr double kStep = 6e-9;              // one thread's dependent load and multiply-add
  const bool gradient = problem.direction == Direction::grad_input;
  auto taps = static_cast<double>(gradient ? problem.out_channels_per_group() : problem.in_channels_per_group());
  for (const Axis& axis : problem.axes) {
    taps *= std::max(1.0, static_cast<double>(axis.kernel) / (gradient ? 1.0 : static_cast<double>(axis.stride)));
  }
  const auto elements =
      static_cast<double>(element_count(problem.input_sizes()) + element_count(problem.weight_sizes()) +
                          element_count(problem.output_sizes()));
  const double slower = problem.dtype == DType::f64 ? 2 : 1;
  const double arithmetic = slower * 2 * multiply_adds(problem) / (kShareOfRate * device.fp32_rate);
  const double traffic =
      elements * static_cast<double>(size_of(problem.dtype)) / (kShareOfBandwidth * device.bandwidth);
  return kLaunch + std::max(arithmetic, taps * kStep) + traffic;
}

}  // namespace

GeneralShape general_shape(const Problem& problem) {
  GeneralShape shape;
  shape.dtype = problem.dtype;
  shape.gradient = problem.direction == Direction::grad_input;
  shape.bundle = (shape.gradient ? problem.in_channels_per_group() : problem.out_channels_per_group()) > 1 ? 4 : 1;
  const GeneralParams params = general_params(problem, shape);
  shape.wide = params.work > kInt || !std::all_of(std::begin(params.axes), std::end(params.axes),
                                                  shape.gradient ? gradient_fits_int : fits_int);
  return shape;
}

KernelSource general_source(const GeneralShape& shape) {
  const std::string config =
      "struct F64; struct F32; struct F16; struct BF16;\nusing Element = " + std::string(element_name(shape.dtype)) +
      ";\nusing Index = " + (shape.wide ? "long long" : "int") +
      ";\nconstexpr int kBundle = " + std::to_string(shape.bundle) +
      ";\nconstexpr bool kGradient = " + (shape.gradient ? "true" : "false") + ";\n";
  return {.file = "general.cuh", .config = config, .entry = "tconv_general"};
}

GeneralParams general_params(const Problem& problem, const GeneralShape& shape) {
  GeneralParams params{};
  std::copy(problem.input_strides.begin(), problem.input_strides.end(), params.input_strides);
  std::copy(problem.weight_strides.begin(), problem.weight_strides.end(), params.weight_strides);
  std::copy(problem.output_strides.begin(), problem.output_strides.end(), params.output_strides);
  params.batch = problem.batch;
  params.groups = problem.groups;
  params.in_channels = problem.in_channels_per_group();
  params.out_channels = problem.out_channels_per_group();
  params.weight_group_stride = params.in_channels * problem.weight_strides[0];
  if (shape.gradient) {
    std::swap(params.in_channels, params.out_channels);
    std::swap(params.input_strides, params.output_strides);
    std::swap(params.weight_strides[0], params.weight_strides[1]);
  }
  params.bundles = (params.out_channels + shape.bundle - 1) / shape.bundle;
  params.channels_last =
      params.groups * params.out_channels > 1 && params.output_strides[1] == 1 && params.output_strides[4] > 1 ? 1 : 0;
  params.work = params.batch * params.groups * params.bundles;
  for (std::size_t i = 0; i < problem.axes.size(); ++i) {
    params.axes[i] = general_axis(problem.axes[i], shape.gradient);
    params.axes[i].input_jump = wrapping_product(params.axes[i].input_step, params.input_strides[2 + i]);
    params.axes[i].weight_jump = wrapping_product(params.axes[i].tap_step, params.weight_strides[2 + i]);
    params.work *= params.axes[i].output;
  }
  return params;
}

Proposal propose_general(const Problem& problem, const DeviceProperties& device) {
  if (problem.direction == Direction::grad_weight) return propose_general_weight(problem, device);
  if (problem.direction == Direction::grad_bias) return propose_grad_bias(problem, device);
  const Sizes sizes = problem.direction == Direction::forward ? problem.output_sizes() : problem.input_sizes();
  if (element_count(sizes) > kInt * std::int64_t{kThreads}) {
    return Proposal::decline("what is written must have at most 2^39 elements, more than any GPU's memory");
  }
  Proposal proposal;
  proposal.kernel = std::make_shared<GeneralKernel>(problem, device);
  proposal.expected_seconds = expected_seconds(problem, device);
  return proposal;
}

}  // namespace tconv::cuda
