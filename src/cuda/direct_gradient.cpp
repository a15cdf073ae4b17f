// Renders and launches the direct kernel of grad_input, kernels/direct_gradient.cuh.
#include <string>

#include "cuda/direct_gradient_plan.h"
#include "cuda/jit_kernel.h"

namespace tconv::cuda {
namespace {

std::string axis_text(const DirectGradientAxis& axis) {
  std::string text = "{";
  for (const int value : {axis.kernel, axis.stride, axis.dilation, axis.planes}) text += std::to_string(value) + ", ";
  return text + std::to_string(axis.residue_nibbles) + "ULL, " + std::to_string(axis.halo) + ", " +
         std::to_string(axis.cells) + "}";
}

class DirectGradientKernel final : public Kernel {
 public:
  DirectGradientKernel(const DirectGradientPlan& plan, const DeviceProperties& device)
      : plan_(plan),
        device_(device.device.index),
        jit_(direct_gradient_source(plan.config), static_cast<std::size_t>(plan.config.shared_bytes()), device.arch) {}

  void prepare() const override { jit_.prepare(device_); }

  void run(const Buffers& buffers, const Execution& execution) const override {
    DirectGradientArguments arguments = plan_.arguments;
    arguments.input = buffers.output;
    arguments.weight = buffers.weight;
    arguments.output = buffers.input;
    void* pointers[] = {&arguments};
    const LaunchShape shape{.grid_x = static_cast<unsigned>(plan_.blocks),
                            .block = static_cast<unsigned>(plan_.config.threads())};
    jit_.launch(device_, shape, pointers, execution.stream);
  }

  bool overlaps() const override { return jit_.overlaps(); }

  std::string describe() const override {
    const DirectGradientConfig& c = plan_.config;
    return "cells " + std::to_string(c.axes[0].cells) + "x" + std::to_string(c.axes[1].cells) + "x" +
           std::to_string(c.axes[2].cells) + " of " + std::to_string(c.block_channels()) + " channels, " +
           std::to_string(c.chunk) + " summed channels at a time; a thread: " + std::to_string(c.strip) + " cells, " +
           std::to_string(c.thread_channels) + " channels; " + std::to_string(c.threads()) + " threads, " +
           std::to_string(c.shared_bytes()) + " bytes shared, " + std::to_string(c.min_blocks) +
           " blocks per multiprocessor, grid " + std::to_string(plan_.blocks);
  }

 private:
  DirectGradientPlan plan_;
  int device_;
  JitKernel jit_;
};

}  // namespace

KernelSource direct_gradient_source(const DirectGradientConfig& c) {
  std::string config = "#include \"direct_gradient_params.cuh\"\nconstexpr DirectGradientConfig kConfig = {";
  config += "static_cast<DirectFloat>(" + std::to_string(static_cast<int>(c.type)) + "), {";
  for (const DirectGradientAxis& axis : c.axes) config += axis_text(axis) + ", ";
  config += "}, ";
  for (const int value : {c.channels, c.out_channels}) config += std::to_string(value) + ", ";
  config += std::string(c.input_channels_last ? "true" : "false") + ", ";
  config += std::string(c.output_channels_last ? "true" : "false") + ", ";
  for (const int value : {c.store, c.chunk, c.strip, c.thread_channels, c.channel_parts})
    config += std::to_string(value) + ", ";
  config += std::to_string(c.min_blocks) + "};\n__constant__ int kTapRows[] = {";
  for (int depth = 0; depth < c.axes[0].kernel; ++depth) {
    for (int height = 0; height < c.axes[1].kernel; ++height) {
      config += std::to_string(c.row_of(c.axes[0].plane_of(depth), c.axes[1].plane_of(height), c.axes[0].back_of(depth),
                                        c.axes[1].back_of(height))) +
                ", ";
    }
  }
  config += "};\n";
  return {.file = "direct_gradient.cuh", .config = config, .entry = "tconv_direct_gradient"};
}

Proposal propose_direct_gradient(const DirectGradientPlan& plan, const DeviceProperties& device) {
  Proposal proposal;
  proposal.expected_seconds = plan.expected_seconds;
  proposal.kernel = std::make_shared<DirectGradientKernel>(plan, device);
  return proposal;
}

}  // namespace tconv::cuda
