#include "cuda/tuned_plans.h"

#include "core/env.h"
#include "core/race.h"
#include "cuda/jit_kernel.h"
#include "cuda/sha256.h"
#include "cuda/source.h"
#include "tconv/error.h"

namespace tconv::cuda {
namespace {

// Everything that the times depend on besides the kernels themselves; the first line is the version of this format.
Digest key_of(const Problem& problem, const DeviceProperties& device) {
  std::string text = "plan 1\n" + device.name + "\nsm_" + std::to_string(device.arch) + "\n" +
                     std::to_string(device.multiprocessors) + "\n" + to_string(problem) + "\n";
  const auto put = [&text](std::int64_t value) { text += std::to_string(value) + " "; };
  put(problem.rank);
  put(static_cast<int>(problem.direction));
  put(static_cast<int>(problem.dtype));
  put(static_cast<int>(problem.precision));
  put(static_cast<int>(problem.bias));
  put(problem.batch);
  put(problem.in_channels);
  put(problem.out_channels);
  put(problem.groups);
  for (const Axis& axis : problem.axes) {
    for (const std::int64_t value :
         {axis.input, axis.kernel, axis.stride, axis.dilation, axis.pad_begin, axis.pad_end, axis.output_padding}) {
      put(value);
    }
  }
  for (const Strides* strides : {&problem.input_strides, &problem.weight_strides, &problem.output_strides}) {
    for (const std::int64_t stride : *strides) put(stride);
  }
  return sha256(text);
}

struct Made {
  Plan plan;
  std::string signature;  // of the kernels' sources and of how they are launched
};

Made make(const Problem& problem, const DeviceProperties& device, std::span<const Family> families,
          const std::string& name) {
  const JitKernelWatch watch;
  Made made;
  made.plan = make_plan(problem, device, families, name);
  made.plan.tuned = true;
  for (Declined& declined : made.plan.declined) declined.reason = name + " was measured to be the fastest here";
  std::string text = made.plan.kernel->describe() + "\n";
  for (const JitKernelWatch::Made& kernel : watch.made()) {
    text += std::to_string(kernel.arch) + " " + std::to_string(kernel.dynamic_shared_bytes) + " " +
            kernel.source.entry + "\n" + render(kernel.source) + "\n";
  }
  made.signature = to_hex(sha256(text));
  return made;
}

}  // namespace

std::string TunedPlans::path_of(const Problem& problem, const DeviceProperties& device) const {
  return disk_.path_of(key_of(problem, device));
}

std::optional<Plan> TunedPlans::find(const Problem& problem, const DeviceProperties& device,
                                     std::span<const Family> families) const {
  const std::optional<std::string> entry = disk_.read(key_of(problem, device));
  if (!entry) return std::nullopt;
  const std::size_t line = entry->find('\n');
  const std::string name = entry->substr(0, line);
  try {
    // Whatever else the entry says, an empty name would mean the planner's choice.
    if (line == std::string::npos || name.empty()) throw Error("it can't be read");
    Made made = make(problem, device, families, name);
    if (entry->substr(line + 1) != made.signature) throw Error("it speaks of a kernel that is made in another way now");
    return std::move(made.plan);
  } catch (const Error& error) {
    log(1, "tuned plan " + path_of(problem, device) + " is ignored: " + error.what());
    return std::nullopt;
  }
}

bool TunedPlans::keep(const Problem& problem, const DeviceProperties& device, std::span<const Family> families,
                      const std::string& name) const {
  return disk_.write(key_of(problem, device), name + "\n" + make(problem, device, families, name).signature);
}

std::optional<Plan> tuned_plan(const Problem& problem, const DeviceProperties& device) {
  return TunedPlans(env().cache_directory).find(problem, device, families());
}

Plan keep_tuned_plan(const Problem& problem, const DeviceProperties& device, const std::string& name) {
  TunedPlans(env().cache_directory).keep(problem, device, families(), name);
  return make(problem, device, families(), name).plan;
}

}  // namespace tconv::cuda
