#include <iterator>
#include <string_view>
#include <utility>

#include "core/family.h"
#include "cuda/device.h"
#include "cuda/jit_kernel.h"
#include "cuda/kernels/direct_depthwise_params.cuh"
#include "cuda/kernels/direct_gradient_depthwise_params.cuh"
#include "cuda/kernels/general_params.cuh"
#include "cuda/kernels/general_weight_params.cuh"
#include "cuda/kernels/grad_bias_params.cuh"
#include "cuda/kernels/group_params.cuh"
#include "cuda/kernels/reduce_params.cuh"
#include "cuda/source.h"
#include "tconv/error.h"
#include "tconv/launches.h"

// Two kernels give the same name to a constant of theirs.
namespace tconv::cuda::depthwise_weight {
#include "cuda/kernels/depthwise_weight_params.cuh"
}

namespace tconv {
namespace {

// The sizes of a kernel's parameters.
std::vector<std::size_t> parameter_sizes(std::string_view entry) {
  static const std::pair<std::string_view, std::vector<std::size_t>> kSizes[] = {
      {"tconv_tile", {sizeof(TileParams)}},
      {"tconv_tile_pack", {sizeof(TileParams), sizeof(void*)}},
      {"tconv_direct", {sizeof(DirectArguments)}},
      {"tconv_depthwise", {sizeof(DepthwiseArguments)}},
      {"tconv_direct_gradient", {sizeof(DirectGradientArguments)}},
      {"tconv_direct_gradient_depthwise", {sizeof(DepthwiseGradientArguments)}},
      {"tconv_reduce", {sizeof(ReduceParams)}},
      {"tconv_reduce_finish", {sizeof(ReduceParams)}},
      {"tconv_depthwise_weight", {sizeof(cuda::depthwise_weight::DepthwiseWeightParams)}},
      {"tconv_depthwise_weight_finish", {sizeof(cuda::depthwise_weight::DepthwiseWeightParams)}},
      {"tconv_group_input", {sizeof(GroupParams)}},
      {"tconv_group_weight", {sizeof(GroupParams)}},
      {"tconv_group_weight_finish", {sizeof(GroupParams)}},
      {"tconv_general", {sizeof(GeneralParams)}},
      {"tconv_general_weight", {sizeof(GeneralWeightParams)}},
      {"tconv_general_weight_finish", {sizeof(GeneralWeightParams)}},
      {"tconv_grad_bias", {sizeof(GradBiasParams)}},
  };
  for (const auto& [name, sizes] : kSizes) {
    if (name == entry) return sizes;
  }
  throw Error("the parameters of " + std::string(entry) + " must be known here to be recorded");
}

class Recorder final : public cuda::JitKernelWatch {
 public:
  std::vector<Launch> launches;

 private:
  bool launch(const cuda::JitKernel& kernel, const cuda::LaunchShape& shape, void** arguments) override {
    Launch launch{.file = kernel.source().file,
                  .config = kernel.source().config,
                  .entry = kernel.source().entry,
                  .dynamic_shared_bytes = kernel.dynamic_shared_bytes(),
                  .grid = {shape.grid_x, shape.grid_y, shape.grid_z},
                  .block = shape.block,
                  .overlaps_previous = shape.overlaps_previous,
                  .arguments = {}};
    for (const std::size_t size : parameter_sizes(launch.entry))
      launch.arguments.emplace_back(static_cast<const char*>(*arguments++), size);
    launches.push_back(std::move(launch));
    return true;
  }
};

DeviceProperties properties_of(GpuModel gpu) {
  cuda::DeviceFacts facts;
  if (gpu == GpuModel::hopper) {
    facts = {.index = 0,
             .name = "H200",
             .major = 9,
             .minor = 0,
             .multiprocessors = 132,
             .shared_bytes_per_block = std::size_t{227} * 1024,
             .shared_bytes_per_multiprocessor = std::size_t{228} * 1024,
             .l2_bytes = std::size_t{60} << 20U,
             .clock_hz = 1.98e9,
             .memory_clock_hz = 3.201e9,
             .memory_bus_bits = 6016};
  } else {
    facts = {.index = 0,
             .name = "compute capability 8.0",
             .major = 8,
             .minor = 0,
             .multiprocessors = 108,
             .shared_bytes_per_block = std::size_t{99} * 1024,
             .shared_bytes_per_multiprocessor = std::size_t{100} * 1024,
             .l2_bytes = std::size_t{40} << 20U,
             .clock_hz = 1.41e9,
             .memory_clock_hz = 1.215e9,
             .memory_bus_bits = 5120};
  }
  DeviceProperties properties = cuda::describe(facts);
  properties.any_batch = true;
  return properties;
}

void* marker(std::uintptr_t index) {
  return reinterpret_cast<void*>((index + 1) * kMarkerDistance);  // NOLINT(performance-no-int-to-ptr): never followed
}

}  // namespace

std::vector<KernelFile> kernel_files() {
  std::vector<KernelFile> files;
  for (const cuda::EmbeddedFile& file : cuda::embedded_files())
    files.push_back({std::string(file.name), std::string(file.text)});
  return files;
}

LaunchRecord record_launches(const Problem& problem, GpuModel gpu, std::string_view force) {
  validate(problem);
  const Plan plan = make_plan(problem, properties_of(gpu), cuda::families(), force);
  Recorder recorder;
  plan.kernel->run(
      {.input = marker(0), .weight = marker(1), .bias = marker(2), .output = marker(3), .workspace = marker(4)}, {});
  return {plan.family, plan.kernel->describe(), plan.workspace_bytes, std::move(recorder.launches)};
}

}  // namespace tconv
