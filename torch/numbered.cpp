// Parameters by number. Reading four lists of integers from Python takes longer than the rest of a small call, and a
// program uses few different ones: each set is read once and called by its number afterwards.
#include <torch/library.h>

#include <array>
#include <atomic>
#include <mutex>

#include "ops.h"

namespace tconv::front {
namespace {

// Sets stay for good, so that a thread that uses one needs no lock. Beyond this many there are no numbers.
constexpr std::int64_t kMostSets = 4096;

struct Sets {
  std::mutex mutex;
  std::atomic<std::int64_t> count{0};
  std::array<const Parameters*, kMostSets> all{};
};

Sets& sets() {
  static Sets instance;
  return instance;
}

c10::SymIntArrayRef symbolic(at::IntArrayRef values) { return c10::fromIntArrayRefSlow(values); }

// The number of a new set, -1 when there are no more.
std::int64_t number(at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef output_padding,
                    std::int64_t groups, at::IntArrayRef dilation) {
  Sets& known = sets();
  const std::lock_guard lock(known.mutex);
  const std::int64_t next = known.count.load(std::memory_order_relaxed);
  if (next == kMostSets) return -1;
  known.all[static_cast<std::size_t>(next)] =
      new Parameters(symbolic(stride), symbolic(padding), symbolic(output_padding), groups, symbolic(dilation));
  known.count.store(next + 1, std::memory_order_release);
  return next;
}

// Made of the operator itself, so that autograd, vmap, autocast and tracing see that one alone.
Tensor conv_transpose_numbered(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                               std::int64_t parameters) {
  const Sets& known = sets();
  TORCH_CHECK(parameters >= 0 && parameters < known.count.load(std::memory_order_acquire),
              "expected the number of a set of parameters, but got ", parameters);
  return known.all[static_cast<std::size_t>(parameters)]->forward(input, weight, bias);
}

TORCH_LIBRARY_IMPL(tconv, CompositeExplicitAutograd, m) { m.impl("_number", TORCH_FN(number)); }
TORCH_LIBRARY_IMPL(tconv, CompositeImplicitAutograd, m) {
  m.impl("_conv_transpose_numbered", TORCH_FN(conv_transpose_numbered));
}

}  // namespace
}  // namespace tconv::front
