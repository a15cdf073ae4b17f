// The directions of the "phases" family. Each is a kernel that is ready to run: blocking is chosen when it is made.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "core/family.h"
#include "core/parallel.h"
#include "cpu/families.h"
#include "cpu/scalar.h"
#include "tconv/error.h"

namespace tconv::cpu {

// The longest packed line of one channel that is worth holding; problems beyond it (an enormous dilation on a tiny
// image) are left to the reference.
inline constexpr std::int64_t kLongestLine = std::int64_t{1} << 22;

// forward and grad_input
Proposal propose_correlate(const Problem& problem, const DeviceProperties& device);
Proposal propose_grad_weight(const Problem& problem);
Proposal propose_grad_bias(const Problem& problem);

// make<E, T>() with the element type of the problem and the type that it is computed in.
template <typename Make>
Proposal with_types(DType dtype, const Make& make) {
  switch (dtype) {
    case DType::f64: return make.template operator()<double, double>();
    case DType::f32: return make.template operator()<float, float>();
    case DType::f16: return make.template operator()<Float16, float>();
    case DType::bf16: return make.template operator()<BFloat16, float>();
  }
  throw Error("unknown dtype " + std::to_string(static_cast<int>(dtype)));
}

// Runs body(task) for all tasks. Threads take the next one when they are done with the last, so that none waits for
// another that was held up.
template <typename Body>
void for_each_task(const Execution& execution, std::int64_t tasks, const Body& body) {
  if (tasks == 1) return body(std::int64_t{0});
  std::atomic<std::int64_t> next{0};
  parallel_for(execution, tasks, 1, [&](std::int64_t /*begin*/, std::int64_t /*end*/) {
    for (std::int64_t task = next.fetch_add(1); task < tasks; task = next.fetch_add(1)) body(task);
  });
}

}  // namespace tconv::cpu
