// The directions of the "phases" family. Each is a kernel that is ready to run: blocking is chosen when it is made.
#pragma once

#include <cstdint>
#include <memory>

#include "core/family.h"
#include "cpu/families.h"
#include "cpu/scalar.h"

namespace tconv::cpu {

// The longest packed line of one channel that is worth holding; problems beyond it (an enormous dilation on a tiny
// image) are left to the reference.
inline constexpr std::int64_t kLongestLine = std::int64_t{1} << 22;

// forward and grad_input
Proposal propose_correlate(const Problem& problem);
Proposal propose_grad_weight(const Problem& problem);
Proposal propose_grad_bias(const Problem& problem);

// A proposal of make<E, T>(), with the element type of the problem and the type that it is computed in.
template <typename Make>
Proposal with_types(DType dtype, const Make& make) {
  Proposal proposal;
  switch (dtype) {
    case DType::f64: proposal.kernel = make.template operator()<double, double>(); break;
    case DType::f32: proposal.kernel = make.template operator()<float, float>(); break;
    case DType::f16: proposal.kernel = make.template operator()<Float16, float>(); break;
    case DType::bf16: proposal.kernel = make.template operator()<BFloat16, float>(); break;
  }
  return proposal;
}

}  // namespace tconv::cpu
