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
#include <vector>

#include "fresh.h"
#include "tconv/plan.h"
#include "tconv/tune.h"

namespace tconv::front {
namespace {

std::atomic<const std::string*> g_forced{nullptr};
std::atomic<std::int64_t> g_forced_changes{0};
std::atomic<int> g_autotuning{0};

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble: return DType::f64;
    case at::kFloat: return DType::f32;
    case at::kHalf: return DType::f16;
    case at::kBFloat16: return DType::bf16;
    default: TORCH_CHECK_NOT_IMPLEMENTED(false, "conv_transpose is not implemented for ", tensor.scalar_type());
  }
}

// The tensor's strides, lifted to three spatial axes.
Strides strides_of(const at::Tensor& tensor, int rank, const Sizes& sizes) {
  Strides own = contiguous_strides(sizes);
  for (int d = 0; d < kLeadingDims; ++d) own[d] = tensor.stride(d);
  for (int a = 0; a < rank; ++a) own[kLeadingDims + kSpatialAxes - rank + a] = tensor.stride(kLeadingDims + a);
  return settled_strides(sizes, own);
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

// The plan of a problem. A layer that is called again and again finds its plan among the last few of its thread,
// without the lock of the plan cache.
const std::shared_ptr<const Plan>& plan_of(const Problem& problem, const Device& device) {
  struct Recent {
    std::string_view forced;
    std::uint64_t generation = 0;
    std::shared_ptr<const Plan> plan;
  };
  constexpr std::size_t kRecent = 64;
  thread_local std::array<Recent, kRecent> recent;
  Recent& slot = recent[hash_of(problem) % kRecent];
  const std::string_view forced = forced_family();
  const std::uint64_t generation = plan_generation();
  const bool known = slot.plan != nullptr && slot.forced.data() == forced.data() && slot.generation == generation &&
                     slot.plan->device == device && slot.plan->problem == problem;
  if (!known) slot = {forced, generation, plan(problem, device, forced)};
  return slot.plan;
}

// Kernels want memory at multiples of this; PyTorch aligns memory of a CPU to 64 bytes only.
constexpr std::size_t kAlignment = 256;

at::Tensor memory_for(const at::Tensor& like, std::size_t bytes) {
  return fresh({static_cast<std::int64_t>(bytes + kAlignment)}, like.options().dtype(at::kByte),
               at::MemoryFormat::Contiguous);
}

void* aligned(const at::Tensor& memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.mutable_data_ptr());
  return reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
}

// Everything about a run but the plan and its workspace.
struct Call {
  Problem problem;
  Device device;
  Buffers buffers;
  Execution execution;
};

Call call_of(const Geometry<std::int64_t>& geometry, Direction direction, const Operands& operands) {
  const at::Tensor& any = operands.output;
  Call call{problem_of(geometry, direction, operands),
            device_for(any),
            {data_of(operands.input), data_of(operands.weight), data_of(operands.bias), data_of(operands.output)},
            {}};
  if (call.device.backend == Backend::cuda) {
    const c10::impl::VirtualGuardImpl streams(c10::DeviceType::CUDA);
    call.execution.stream = streams.getStream(any.device()).native_handle();
  } else if (uses_pytorch_threads()) {
    call.execution.parallel_for = on_pytorch_threads;
  }
  return call;
}

// Memory of PyTorch's for the length of a race; its allocator frees in stream order.
class Scratch {
 public:
  explicit Scratch(const at::Tensor& like) : like_(like) {}

  Allocate allocate() {
    return [this](std::size_t bytes) { return aligned(kept_.emplace_back(memory_for(like_, bytes))); };
  }

 private:
  const at::Tensor& like_;
  std::vector<at::Tensor> kept_;
};

}  // namespace

Run::Run(const Geometry<std::int64_t>& geometry, Direction direction, const Operands& operands, Kept* kept,
         Company company)
    : place_(operands.output.device()) {
  const at::Tensor& any = operands.output;
  const c10::OptionalDeviceGuard guard(place_);
  Call call = call_of(geometry, direction, operands);
  call.problem.beside = company == Company::other_stream;
  call.execution.beside_previous = company == Company::previous;
  plan_ = plan_of(call.problem, call.device);
  if (autotuning() && !plan_->tuned && call.device.backend == Backend::cuda && forced_family().empty()) {
    Scratch scratch(any);
    tune(call.problem, call.device, call.buffers, call.execution, scratch.allocate());
    plan_ = plan_of(call.problem, call.device);
  }

  at::Tensor& workspace = kept != nullptr ? kept->workspace : workspace_;
  // After the plan is in hand: see plan_generation.
  if (workspace.defined() && kept->planning != planning()) workspace = at::Tensor();
  call.buffers.weights_kept = workspace.defined();
  if (plan_->workspace_bytes > 0) {
    if (!workspace.defined()) workspace = memory_for(any, plan_->workspace_bytes);
    TORCH_CHECK(static_cast<std::size_t>(workspace.numel()) == plan_->workspace_bytes + kAlignment,
                "expected a kept workspace of ", plan_->workspace_bytes + kAlignment, " bytes, but got ",
                workspace.numel());
    call.buffers.workspace = aligned(workspace);
  }
  buffers_ = call.buffers;
  execution_ = std::move(call.execution);
}

void Run::start() const {
  const c10::OptionalDeviceGuard guard(place_);
  run(*plan_, buffers_, execution_);
}

void Run::start_with(Run& grad_weight) {
  if (workspace_.defined() && grad_weight.workspace_.defined()) {
    const bool mine = workspace_.numel() >= grad_weight.workspace_.numel();
    const Run& larger = mine ? *this : grad_weight;
    Run& smaller = mine ? grad_weight : *this;
    smaller.workspace_ = larger.workspace_;
    smaller.buffers_.workspace = larger.buffers_.workspace;
  }
  run_both(*plan_, buffers_, *grad_weight.plan_, grad_weight.buffers_, execution_);
}

Outlook outlook(const Geometry<std::int64_t>& geometry, Direction direction, const Operands& operands) {
  const Plan& chosen = *plan_of(problem_of(geometry, direction, operands), device_for(operands.output));
  return {chosen.expected_seconds, chosen.kernel->overlaps(), chosen.kernel->queues(), chosen.tuned};
}

Race race_of(const Geometry<std::int64_t>& geometry, Direction direction, const Operands& operands, int most_cuts) {
  const c10::OptionalDeviceGuard guard(operands.output.device());
  const Call call = call_of(geometry, direction, operands);
  Scratch scratch(operands.output);
  return race(call.problem, call.device, call.buffers, call.execution, scratch.allocate(), most_cuts);
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
  ++g_forced_changes;
}

std::string_view forced_family() {
  const std::string* forced = g_forced;
  return forced == nullptr ? std::string_view() : std::string_view(*forced);
}

// Both parts only grow, so that the sum differs whenever one of them does.
std::int64_t planning() { return static_cast<std::int64_t>(plan_generation()) + g_forced_changes; }

bool autotuning() {
  static const bool requested = autotune_requested();
  return requested || g_autotuning.load(std::memory_order_relaxed) > 0;
}

void autotune(bool begin) { g_autotuning += begin ? 1 : -1; }

}  // namespace tconv::front
