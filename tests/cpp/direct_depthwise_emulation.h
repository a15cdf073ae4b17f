// The depthwise kernel compiled for the CPU, once per element type.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "cpu/scalar.h"
#include "cuda/kernels/direct_depthwise_params.cuh"
#include "tconv/problem.h"

// In the kernel the sizes of arrays are constants; here they are variables, and #pragma unroll means nothing: neither
// deserves a warning.
#pragma GCC system_header
#define __device__
#define __forceinline__ inline

namespace tconv::test {
inline void require_aligned(const void* pointer, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % bytes != 0) throw std::runtime_error("an access is not aligned");
}
}  // namespace tconv::test

#define TCONV_EMULATE_DEPTHWISE(element, accumulator, to_accumulator, to_element)                \
  using Element = element;                                                                       \
  using Accumulator = accumulator;                                                               \
  inline DepthwiseConfig kConfig;                                                                \
  inline DepthwiseGeometry kGeometry;                                                            \
  inline Accumulator widen(Element value) { return to_accumulator; }                             \
  inline Element narrow(Accumulator value) { return to_element; }                                \
  namespace depthwise {                                                                          \
  inline void store_run(Element* to, const Element* values) {                                    \
    tconv::test::require_aligned(to, sizeof(Element) * static_cast<std::size_t>(kConfig.store)); \
    std::memcpy(to, values, sizeof(Element) * static_cast<std::size_t>(kConfig.store));          \
  }                                                                                              \
  inline void load_pack(const Element* from, Element* values) {                                  \
    tconv::test::require_aligned(from, 16);                                                      \
    std::memcpy(values, from, 16);                                                               \
  }                                                                                              \
  }

namespace depthwise_f64 {
TCONV_EMULATE_DEPTHWISE(double, double, value, value)
#include "cuda/kernels/direct_depthwise.cuh"
}  // namespace depthwise_f64
namespace depthwise_f32 {
TCONV_EMULATE_DEPTHWISE(float, float, value, value)
#include "cuda/kernels/direct_depthwise.cuh"
}  // namespace depthwise_f32
namespace depthwise_f16 {
TCONV_EMULATE_DEPTHWISE(tconv::cpu::Float16, float, tconv::cpu::to_float(value), tconv::cpu::to_float16(value))
#include "cuda/kernels/direct_depthwise.cuh"
}  // namespace depthwise_f16
namespace depthwise_bf16 {
TCONV_EMULATE_DEPTHWISE(tconv::cpu::BFloat16, float, tconv::cpu::to_float(value), tconv::cpu::to_bfloat16(value))
#include "cuda/kernels/direct_depthwise.cuh"
}  // namespace depthwise_bf16

#undef TCONV_EMULATE_DEPTHWISE
#undef __forceinline__
#undef __device__

namespace tconv::test {

// The threads share nothing, so they run one after the other.
inline void emulate_depthwise(const DepthwiseConfig& config, const DepthwiseArguments& arguments, std::int64_t blocks,
                              DType dtype) {
  const DepthwiseGeometry geometry = depthwise_geometry(config);
  const auto run = [&](auto& its_config, auto& its_geometry, const auto& compute) {
    its_config = config;
    its_geometry = geometry;
    for (std::int64_t block = 0; block < blocks; ++block) {
      for (int thread = 0; thread < geometry.threads; ++thread) compute(arguments, static_cast<int>(block), thread);
    }
  };
  switch (dtype) {
    case DType::f64:
      run(depthwise_f64::kConfig, depthwise_f64::kGeometry, depthwise_f64::depthwise::compute_thread);
      break;
    case DType::f32:
      run(depthwise_f32::kConfig, depthwise_f32::kGeometry, depthwise_f32::depthwise::compute_thread);
      break;
    case DType::f16:
      run(depthwise_f16::kConfig, depthwise_f16::kGeometry, depthwise_f16::depthwise::compute_thread);
      break;
    case DType::bf16:
      run(depthwise_bf16::kConfig, depthwise_bf16::kGeometry, depthwise_bf16::depthwise::compute_thread);
      break;
  }
}

}  // namespace tconv::test
