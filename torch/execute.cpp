#include "execute.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <atomic>
#include <mutex>
#include <set>
#include <string>

#include "fresh.h"
#include "tconv/plan.h"

namespace tconv::front {
namespace {

std::atomic<const std::string*> g_forced{nullptr};

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble: return DType::f64;
    case at::kFloat: return DType::f32;
    case at::kHalf: return DType::f16;
    case at::kBFloat16: return DType::bf16;
    default: TORCH_CHECK_NOT_IMPLEMENTED(false, "conv_transpose is not implemented for ", tensor.scalar_type());
  }
}

bool agree(const Sizes& sizes, const Strides& a, const Strides& b) {
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && a[d] != b[d]) return false;
  }
  return true;
}

// The tensor's strides, lifted to three spatial axes. Along an axis of size 1 PyTorch leaves the stride arbitrary;
// there the packed value is put in, so that equal layouts are equal problems and share a plan.
Strides strides_of(const at::Tensor& tensor, int rank, const Sizes& sizes) {
  Strides strides = contiguous_strides(sizes);
  const Strides channels_last = channels_last_strides(sizes);
  Strides own = strides;
  for (int d = 0; d < kLeadingDims; ++d) own[d] = tensor.stride(d);
  for (int a = 0; a < rank; ++a) own[kLeadingDims + kSpatialAxes - rank + a] = tensor.stride(kLeadingDims + a);
  if (agree(sizes, own, strides)) return strides;
  if (agree(sizes, own, channels_last)) return channels_last;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1) strides[d] = own[d];
  }
  return strides;
}

Problem problem_of(const Geometry<std::int64_t>& g, Direction direction, const Operands& operands) {
  Problem problem;
  problem.rank = g.rank;
  problem.direction = direction;
  problem.batch = g.batch;
  problem.in_channels = g.in_channels;
  problem.out_channels = g.out_channels;
  problem.groups = g.groups;
  problem.bias = direction == Direction::forward && operands.bias.defined();
  for (int a = 0; a < g.rank; ++a) problem.axes[kSpatialAxes - g.rank + a] = axis_of(g, a);
  const at::Tensor& any = operands.output;
  problem.dtype = dtype_of(any);
  // PyTorch's switches speak of the GPU's convolutions; on a CPU fp32 is fp32.
  if (any.is_cuda() && problem.dtype == DType::f32 && at::globalContext().allowTF32CuDNN(at::Float32Op::CONV)) {
    problem.precision = Precision::tf32;
  }
  const auto strides = [&](const at::Tensor& tensor, const Sizes& sizes) {
    return tensor.defined() ? strides_of(tensor, g.rank, sizes) : contiguous_strides(sizes);
  };
  problem.input_strides = strides(operands.input, problem.input_sizes());
  problem.weight_strides = strides(operands.weight, problem.weight_sizes());
  problem.output_strides = strides(operands.output, problem.output_sizes());
  return problem;
}

Device device_for(const at::Tensor& tensor) {
  return {tensor.is_cuda() ? Backend::cuda : Backend::cpu, tensor.is_cuda() ? tensor.get_device() : 0};
}

void* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? const_cast<void*>(tensor.const_data_ptr()) : nullptr;  // NOLINT: Buffers says what is read
}

void on_pytorch_threads(std::int64_t count, std::int64_t grain, const ParallelBody& body) {
  at::parallel_for(0, count, grain, body);
}

}  // namespace

namespace {

// The plan of a problem. A layer that is called again and again finds its plan among the last few of its thread,
// without the lock of the plan cache.
const Plan& plan_of(const Problem& problem, const Device& device) {
  struct Recent {
    std::string_view forced;
    std::shared_ptr<const Plan> plan;
  };
  constexpr std::size_t kRecent = 64;
  thread_local std::array<Recent, kRecent> recent;
  Recent& slot = recent[hash_of(problem) % kRecent];
  const std::string_view forced = forced_family();
  const bool known = slot.plan != nullptr && slot.forced.data() == forced.data() && slot.plan->device == device &&
                     slot.plan->problem == problem;
  if (!known) slot = {forced, plan(problem, device, forced)};
  return *slot.plan;
}

}  // namespace

void execute(const Geometry<std::int64_t>& geometry, Direction direction, const Operands& operands, at::Tensor* kept) {
  const at::Tensor& any = operands.output;
  const c10::OptionalDeviceGuard guard(any.device());
  const Problem problem = problem_of(geometry, direction, operands);
  const Device device = device_for(any);
  const Plan& chosen = plan_of(problem, device);

  Buffers buffers{data_of(operands.input), data_of(operands.weight), data_of(operands.bias), data_of(operands.output)};
  at::Tensor own;  // freed in stream order by PyTorch's allocator
  at::Tensor& workspace = kept != nullptr ? *kept : own;
  buffers.weights_kept = workspace.defined();
  if (chosen.workspace_bytes > 0) {
    // CPU memory is aligned to 64 bytes only.
    constexpr std::size_t kAlignment = 256;
    const auto bytes = static_cast<std::int64_t>(chosen.workspace_bytes + kAlignment);
    if (!workspace.defined()) {
      workspace = fresh({bytes}, any.options().dtype(at::kByte), at::MemoryFormat::Contiguous);
    }
    TORCH_CHECK(workspace.numel() == bytes, "expected a kept workspace of ", bytes, " bytes, but got ",
                workspace.numel());
    const auto address = reinterpret_cast<std::uintptr_t>(workspace.mutable_data_ptr());
    buffers.workspace = reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }
  Execution execution;
  if (device.backend == Backend::cuda) {
    const c10::impl::VirtualGuardImpl streams(c10::DeviceType::CUDA);
    execution.stream = streams.getStream(any.device()).native_handle();
  } else if (uses_pytorch_threads()) {
    execution.parallel_for = on_pytorch_threads;
  }
  run(chosen, buffers, execution);
}

bool uses_pytorch_threads() {
#ifdef INTRA_OP_PARALLEL
  return true;
#else
  return false;
#endif
}

void force_family(std::string_view family) {
  // Names are kept for ever, so that a thread that reads one while it is replaced holds nothing that can vanish.
  static std::mutex mutex;
  static std::set<std::string, std::less<>> names;
  const std::lock_guard lock(mutex);
  g_forced = family.empty() ? nullptr : &*names.emplace(family).first;
}

std::string_view forced_family() {
  const std::string* forced = g_forced;
  return forced == nullptr ? std::string_view() : std::string_view(*forced);
}

}  // namespace tconv::front
