#include "cuda/jit_kernel.h"

#include <array>
#include <atomic>
#include <utility>

#include "cuda/driver.h"
#include "cuda/kernel_cache.h"
#include "tconv/error.h"

namespace tconv::cuda {
namespace {

constexpr int kMostDevices = 64;

thread_local JitKernelWatch* t_watch = nullptr;

}  // namespace

struct JitKernel::State {
  KernelSource source;
  std::size_t dynamic_shared_bytes = 0;
  int arch = 0;
  std::array<std::atomic<const LoadedKernel*>, kMostDevices> loaded{};
};

JitKernel::JitKernel(KernelSource source, std::size_t dynamic_shared_bytes, int arch)
    : state_(std::make_unique<State>()) {
  state_->source = std::move(source);
  state_->dynamic_shared_bytes = dynamic_shared_bytes;
  state_->arch = arch;
  if (t_watch != nullptr) t_watch->made_.push_back({state_->source, dynamic_shared_bytes, arch});
}

JitKernel::JitKernel(JitKernel&&) noexcept = default;
JitKernel& JitKernel::operator=(JitKernel&&) noexcept = default;
JitKernel::~JitKernel() = default;

const KernelSource& JitKernel::source() const { return state_->source; }
std::size_t JitKernel::dynamic_shared_bytes() const { return state_->dynamic_shared_bytes; }
int JitKernel::arch() const { return state_->arch; }

void JitKernel::prepare(int device) const {
  if (device < 0 || device >= kMostDevices) {
    throw Error("GPU index must be between 0 and " + std::to_string(kMostDevices - 1) + ", got " +
                std::to_string(device));
  }
  auto& slot = state_->loaded[static_cast<std::size_t>(device)];
  if (slot.load(std::memory_order_acquire) != nullptr) return;
  // Threads that come here together get the same answer from the cache.
  slot.store(&load(state_->source, state_->arch, device, state_->dynamic_shared_bytes), std::memory_order_release);
}

void JitKernel::launch(int device, const LaunchShape& shape, void** arguments, void* stream) const {
  if (shape.grid_x == 0 || shape.grid_y == 0 || shape.grid_z == 0) return;
  if (t_watch != nullptr && t_watch->launch(*this, shape, arguments)) return;
  const auto slot = static_cast<std::size_t>(device);
  const LoadedKernel* kernel =
      slot < state_->loaded.size() ? state_->loaded[slot].load(std::memory_order_acquire) : nullptr;
  if (kernel == nullptr) {
    prepare(device);
    kernel = state_->loaded[slot].load(std::memory_order_acquire);
  }
  const ContextScope context(kernel->context);
  const auto shared_bytes = static_cast<unsigned>(state_->dynamic_shared_bytes);
  DriverResult result = 0;

  if (shape.overlaps_previous && kernel->driver->launch_kernel_ex != nullptr && overlaps()) {
    LaunchAttribute overlaps{.id = kOverlapsPrevious, .value = 1};
    const LaunchConfig config{.grid = {shape.grid_x, shape.grid_y, shape.grid_z},
                              .block = {shape.block, 1, 1},
                              .shared_bytes = shared_bytes,
                              .stream = static_cast<DriverStream>(stream),
                              .attributes = &overlaps,
                              .attribute_count = 1};
    result = kernel->driver->launch_kernel_ex(&config, kernel->function, arguments, nullptr);
  } else {
    result = kernel->driver->launch_kernel(kernel->function, shape.grid_x, shape.grid_y, shape.grid_z, shape.block, 1,
                                           1, shared_bytes, static_cast<DriverStream>(stream), arguments, nullptr);
  }
  if (result != 0) check(result, "launch " + state_->source.entry + " on GPU " + std::to_string(device));
}

bool JitKernel::overlaps() const { return state_->arch >= 90; }

bool JitKernelWatch::watches() { return t_watch != nullptr; }
JitKernelWatch::JitKernelWatch() : outer_(std::exchange(t_watch, this)) {}
JitKernelWatch::~JitKernelWatch() { t_watch = outer_; }

}  // namespace tconv::cuda
