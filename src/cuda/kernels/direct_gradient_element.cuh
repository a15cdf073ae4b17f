// Element types of the direct kernels of grad_input. The config before this file states kConfig.
#pragma once

#include "direct_gradient_params.cuh"
#include "ptx.cuh"

namespace direct_gradient {

template <DirectFloat kType>
struct Types {
  using Element = unsigned short;
  using Sum = float;
};
template <>
struct Types<DirectFloat::f64> {
  using Element = double;
  using Sum = double;
};
template <>
struct Types<DirectFloat::f32> {
  using Element = float;
  using Sum = float;
};
using Element = Types<kConfig.type>::Element;
using Sum = Types<kConfig.type>::Sum;

__device__ __forceinline__ double widen(double value) { return value; }
__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(unsigned short bits) {
  return kConfig.type == DirectFloat::f16 ? ptx::widen_f16(bits) : __uint_as_float(static_cast<unsigned>(bits) << 16);
}
__device__ __forceinline__ double narrow(double sum, double) { return sum; }
__device__ __forceinline__ float narrow(float sum, float) { return sum; }
__device__ __forceinline__ unsigned short narrow(float sum, unsigned short) {
  return kConfig.type == DirectFloat::f16 ? ptx::round_to_f16(sum) : ptx::round_to_bf16(sum);
}

}  // namespace direct_gradient
