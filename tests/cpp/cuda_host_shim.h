// Enough of CUDA C++ for a plain kernel to be compiled by the host compiler, one thread at a time, so that its index
// arithmetic is tested on machines with no GPU.
#pragma once

#include <bit>
#include <cstdint>

// CUDA's own words; nothing but macros can stand in for them.
// NOLINTBEGIN
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
// NOLINTEND

struct ShimDimension {
  unsigned x = 1;
};
inline ShimDimension gridDim;
inline ShimDimension blockDim;
inline ShimDimension blockIdx{0};
inline ShimDimension threadIdx{0};

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
