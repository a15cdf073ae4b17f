// What the planners of the direct family say in the same words.
#pragma once

#include <cstdint>

#include "cuda/kernels/direct_params.cuh"
#include "tconv/problem.h"

namespace tconv::cuda {

inline DirectAxis direct_axis(const Axis& axis) {
  DirectAxis out{};
  out.kernel = static_cast<int>(axis.kernel);
  out.stride = static_cast<int>(axis.stride);
  out.dilation = axis.kernel == 1 ? 1 : static_cast<int>(axis.dilation);
  out.pad_residue = static_cast<int>(axis.pad_begin % axis.stride);
  return out;
}

inline DirectDivisor direct_divisor(std::int64_t by) {
  int bits = 0;
  while ((std::int64_t{1} << bits) < by) ++bits;
  DirectDivisor out{};
  out.shift = 31 + bits;
  out.multiplier = static_cast<unsigned>(((std::uint64_t{1} << out.shift) + static_cast<std::uint64_t>(by) - 1) /
                                         static_cast<std::uint64_t>(by));
  return out;
}

}  // namespace tconv::cuda
