#include "cuda/direct.h"

#include <algorithm>
#include <initializer_list>

#include "cuda/direct_gradient_depthwise.h"
#include "cuda/direct_gradient_plan.h"
#include "cuda/direct_last.h"
#include "cuda/element_name.h"
#include "cuda/jit_kernel.h"

namespace tconv::cuda {
namespace {

std::string join(std::initializer_list<int> values, const char* between) {
  std::string text;
  for (const int value : values) {
    if (!text.empty()) text += between;
    text += std::to_string(value);
  }
  return text;
}

std::string axis_text(const DirectAxis& axis) {
  return "{" + join({axis.kernel, axis.stride, axis.dilation, axis.pad_residue}, ", ") + "}";
}

class DirectKernel final : public Kernel {
 public:
  DirectKernel(DirectPlan plan, DType dtype, const DeviceProperties& device)
      : plan_(std::move(plan)),
        geometry_(direct_geometry(plan_.config)),
        device_(device.device.index),
        jit_(direct_source(plan_.config, dtype), static_cast<std::size_t>(geometry_.shared_bytes), device.arch) {}

  void prepare() const override { jit_.prepare(device_); }

  void run(const Buffers& buffers, const Execution& execution) const override {
    DirectArguments arguments = plan_.arguments;
    arguments.input = buffers.input;
    arguments.weight = buffers.weight;
    arguments.bias = buffers.bias;
    arguments.output = buffers.output;
    void* pointers[] = {&arguments};
    jit_.launch(device_,
                {.grid_x = static_cast<unsigned>(plan_.blocks), .block = static_cast<unsigned>(geometry_.threads)},
                pointers, execution.stream);
  }

  std::string describe() const override { return cuda::describe(plan_); }

 private:
  DirectPlan plan_;
  DirectGeometry geometry_;
  int device_;
  JitKernel jit_;
};

class DepthwiseKernel final : public Kernel {
 public:
  DepthwiseKernel(DepthwisePlan plan, DType dtype, const DeviceProperties& device)
      : plan_(std::move(plan)),
        device_(device.device.index),
        jit_(depthwise_source(plan_.config, dtype), 0, device.arch) {}

  void prepare() const override { jit_.prepare(device_); }

  void run(const Buffers& buffers, const Execution& execution) const override {
    DepthwiseArguments arguments = plan_.arguments;
    arguments.input = buffers.input;
    arguments.weight = buffers.weight;
    arguments.bias = buffers.bias;
    arguments.output = buffers.output;
    void* pointers[] = {&arguments};
    const auto threads = static_cast<unsigned>(depthwise_geometry(plan_.config).threads);
    jit_.launch(device_, {.grid_x = static_cast<unsigned>(plan_.blocks), .block = threads}, pointers, execution.stream);
  }

  std::string describe() const override { return cuda::describe(plan_); }

 private:
  DepthwisePlan plan_;
  int device_;
  JitKernel jit_;
};

}  // namespace

KernelSource direct_source(const DirectConfig& c, DType dtype) {
  const std::string tile = join({c.in_channels,
                                 c.out_channels,
                                 c.element_bytes,
                                 c.accumulator_bytes,
                                 c.bias,
                                 c.input_channels_last,
                                 c.output_channels_last,
                                 c.weight_packed,
                                 c.input_dense,
                                 c.store,
                                 c.cells_depth,
                                 c.cells_height,
                                 c.cells_width,
                                 c.planes,
                                 c.chunk,
                                 c.strip,
                                 c.strips,
                                 c.thread_channels,
                                 c.channel_parts,
                                 c.phase_parts,
                                 c.chunk_parts,
                                 c.min_blocks},
                                ", ");
  const std::string config =
      "struct F64; struct F32; struct F16; struct BF16;\nusing DirectType = " + std::string(element_name(dtype)) +
      ";\n#define TCONV_DIRECT_CONFIG {" + axis_text(c.depth) + ", " + axis_text(c.height) + ", " + axis_text(c.width) +
      ", " + tile + "}\n";
  return {.file = "direct.cuh", .config = config, .entry = "tconv_direct"};
}

KernelSource depthwise_source(const DepthwiseConfig& c, DType dtype) {
  const std::string tile = join({c.element_bytes, c.accumulator_bytes, c.bias, c.weight_packed, c.store, c.strip,
                                 c.strips, c.cells_height, c.lanes_width, c.lanes_height, c.planes, c.min_blocks},
                                ", ");
  const std::string config =
      "struct F64; struct F32; struct F16; struct BF16;\nusing DirectType = " + std::string(element_name(dtype)) +
      ";\n#define TCONV_DEPTHWISE_CONFIG {" + axis_text(c.height) + ", " + axis_text(c.width) + ", " + tile + "}\n";
  return {.file = "direct_depthwise.cuh", .config = config, .entry = "tconv_depthwise"};
}

std::string describe(const DirectPlan& plan) {
  const DirectConfig& c = plan.config;
  const DirectGeometry g = direct_geometry(c);
  return "cells " + join({c.cells_depth, c.cells_height, c.cells_width}, "x") + " of " + std::to_string(c.planes) +
         (c.planes == 1 ? " plane" : " planes") + " and " + std::to_string(c.channel_parts * c.thread_channels) +
         " out channels, " + std::to_string(c.chunk) + " in channels at a time; a thread: " + std::to_string(c.strips) +
         " x " + std::to_string(c.strip) + " cells, " + std::to_string(c.thread_channels) + " channels; " +
         std::to_string(g.threads) + " threads (channels " + std::to_string(c.channel_parts) + ", phases " +
         std::to_string(c.phase_parts) + ", sums " + std::to_string(c.chunk_parts) + "), " +
         std::to_string(g.shared_bytes) + " bytes shared, " + std::to_string(c.min_blocks) +
         " blocks per multiprocessor, grid " + std::to_string(plan.blocks);
}

std::string describe(const DepthwisePlan& plan) {
  const DepthwiseConfig& c = plan.config;
  return "depthwise; a thread: " + std::to_string(c.cells_height) + " rows of " + std::to_string(c.strips) + " x " +
         std::to_string(c.strip) + " cells, stores of " + std::to_string(c.store * c.element_bytes) +
         " bytes; threads " + join({c.lanes_height, c.lanes_width}, "x") + " of " + std::to_string(c.planes) +
         (c.planes == 1 ? " plane" : " planes") + ", grid " + std::to_string(plan.blocks);
}

Proposal propose_direct(const Problem& problem, const DeviceProperties& device) {
  return propose_direct_cut(problem, device, 0);
}

Proposal propose_direct_cut(const Problem& problem, const DeviceProperties& device, int index) {
  const bool gradient = problem.direction == Direction::grad_input;
  DepthwisePlan depthwise = plan_depthwise(problem, device);
  // A kernel of its own comes before the tiles for any group.
  if (gradient ? why_no_depthwise_gradient(problem).empty() : depthwise.declined.empty()) {
    if (index-- == 0) {
      if (gradient) return propose_depthwise_gradient(problem, device);
      Proposal proposal;
      proposal.expected_seconds = depthwise.expected_seconds;
      proposal.kernel = std::make_shared<DepthwiseKernel>(std::move(depthwise), problem.dtype, device);
      return proposal;
    }
  } else if (plan_last(problem, device).declined.empty()) {
    const int cuts = last_cuts(problem);
    if (index < cuts) return propose_last(plan_last(problem, device, index), problem, device);
    index -= cuts;
  }
  if (gradient) {
    const DirectGradientPlan plan = plan_direct_gradient(problem, device, index);
    return plan.declined.empty() ? propose_direct_gradient(plan, device) : Proposal::decline(plan.declined);
  }
  DirectPlan plan = plan_direct(problem, device, index);
  if (!plan.declined.empty()) return Proposal::decline(plan.declined);
  Proposal proposal;
  proposal.expected_seconds = plan.expected_seconds;
  proposal.kernel = std::make_shared<DirectKernel>(std::move(plan), problem.dtype, device);
  return proposal;
}

}  // namespace tconv::cuda
