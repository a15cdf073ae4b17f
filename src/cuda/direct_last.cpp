#include "cuda/direct_last.h"

#include <optional>
#include <utility>

#include "cuda/element_name.h"
#include "cuda/jit_kernel.h"

namespace tconv::cuda {
namespace {

std::string axis_text(const DirectAxis& axis) {
  return "{" + std::to_string(axis.kernel) + ", " + std::to_string(axis.stride) + ", " + std::to_string(axis.dilation) +
         ", " + std::to_string(axis.pad_residue) + "}";
}

class LastKernel final : public Kernel {
 public:
  LastKernel(const LastPlan& plan, const Problem& problem, const DeviceProperties& device)
      : device_(device.device.index),
        gradient_(problem.direction == Direction::grad_input),
        aligned_(plan, problem.dtype, device.arch) {
    if (plan.config.load > 1 || plan.config.store > 1)
      unaligned_.emplace(unaligned(plan, problem, device), problem.dtype, device.arch);
  }

  void prepare() const override {
    aligned_.jit.prepare(device_);
    if (unaligned_) unaligned_->jit.prepare(device_);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const void* const input = gradient_ ? buffers.output : buffers.input;
    void* const output = gradient_ ? buffers.input : buffers.output;
    const LastConfig& c = aligned_.plan.config;
    const Version& version = begins_at(input, c.load) && begins_at(output, c.store) ? aligned_ : *unaligned_;
    LastArguments arguments = version.plan.arguments;
    arguments.input = input;
    arguments.weight = buffers.weight;
    arguments.bias = buffers.bias;
    arguments.output = output;
    void* pointers[] = {&arguments};
    const LaunchShape shape{.grid_x = static_cast<unsigned>(version.plan.blocks),
                            .block = static_cast<unsigned>(last_geometry(version.plan.config).threads)};
    version.jit.launch(device_, shape, pointers, execution.stream);
  }

  bool overlaps() const override { return aligned_.jit.overlaps(); }

  std::string describe() const override { return cuda::describe(aligned_.plan); }

 private:
  struct Version {
    Version(LastPlan its_plan, DType dtype, int arch)
        : plan(std::move(its_plan)),
          jit(last_source(plan.config, dtype), static_cast<std::size_t>(last_geometry(plan.config).shared_bytes),
              arch) {}

    LastPlan plan;
    JitKernel jit;
  };

  bool begins_at(const void* tensor, int elements) const {
    const auto bytes =
        static_cast<std::uintptr_t>(elements) * static_cast<std::uintptr_t>(aligned_.plan.config.element_bytes);
    return reinterpret_cast<std::uintptr_t>(tensor) % bytes == 0;
  }

  int device_;
  bool gradient_;
  Version aligned_;
  std::optional<Version> unaligned_;  // where an address does not allow the vectors
};

}  // namespace

KernelSource last_source(const LastConfig& c, DType dtype) {
  std::string config =
      "struct F64; struct F32; struct F16; struct BF16;\nusing DirectType = " + std::string(element_name(dtype)) +
      ";\n#define TCONV_LAST_CONFIG {" + axis_text(c.depth) + ", " + axis_text(c.height) + ", " + axis_text(c.width);
  for (const int value :
       {c.gradient, c.element_bytes, c.accumulator_bytes, c.bias, c.in_channels, c.out_channels, c.channels, c.load,
        c.store, c.chunk, c.cells, c.lanes_channels, c.lanes_height, c.lanes_width, c.unrolled, c.min_blocks}) {
    config += ", " + std::to_string(value);
  }
  return {.file = "direct_last.cuh", .config = config + "}\n", .entry = "tconv_direct_last"};
}

std::string describe(const LastPlan& plan) {
  const LastConfig& c = plan.config;
  const LastGeometry g = last_geometry(c);
  return std::string(g.depthwise != 0 ? "channels-last depthwise" : "channels-last") +
         "; a thread: " + std::to_string(c.cells) + (c.cells == 1 ? " cell of " : " cells of ") +
         std::to_string(c.channels) + (c.channels == 1 ? " channel, " : " channels, ") +
         (g.depthwise != 0 ? "" : std::to_string(c.chunk) + " in channels at a time, ") + "loads of " +
         std::to_string(c.load * c.element_bytes) + " and stores of " + std::to_string(c.store * c.element_bytes) +
         " bytes" + (c.unrolled != 0 ? ", unrolled" : "") + "; threads " + std::to_string(c.lanes_height) + "x" +
         std::to_string(c.lanes_width) + " of " + std::to_string(c.lanes_channels) +
         (c.lanes_channels == 1 ? " vector, " : " vectors, ") + std::to_string(g.shared_bytes) +
         " bytes shared, grid " + std::to_string(plan.blocks) + " for " +
         std::to_string(static_cast<std::int64_t>(plan.arguments.tiles) * plan.arguments.channel_blocks) + " tiles";
}

Proposal propose_last(const LastPlan& plan, const Problem& problem, const DeviceProperties& device) {
  Proposal proposal;
  proposal.expected_seconds = plan.expected_seconds;
  proposal.kernel = std::make_shared<LastKernel>(plan, problem, device);
  return proposal;
}

}  // namespace tconv::cuda
