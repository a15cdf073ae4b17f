// Results that no cache holds until somebody reads them go past the caches: otherwise every line is read before it is
// written, which takes as long again.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/caches.h"
#include "tconv/problem.h"

namespace tconv::cpu {

// An eighth of the last cache, of which other cores and the tensor that is read have their parts. At 4 MiB of 32, a
// layer and the activation behind it take no longer together.
inline bool exceeds_caches(const Sizes& sizes, std::size_t itemsize) {
  return element_count(sizes) * static_cast<std::int64_t>(itemsize) >= caches().last_bytes / 8;
}

// The same for kernels that do little more than read one tensor and write another: as long as both fit three quarters
// of the last cache, whoever reads the result finds it there, and so does the next call.
inline bool exceeds_caches(const Sizes& result, const Sizes& source, std::size_t itemsize) {
  const std::int64_t elements = element_count(result) + element_count(source);
  return exceeds_caches(result, itemsize) &&
         elements * static_cast<std::int64_t>(itemsize) >= caches().last_bytes / 4 * 3;
}

// Whether pieces of channels that lie side by side are whole cache lines. A line that is written in parts, at different
// times, is better put together in the cache.
template <typename E>
bool has_whole_lines(const E* data, const Sizes& sizes, const Strides& strides) {
  constexpr std::int64_t kLine = 64 / sizeof(E);
  if (reinterpret_cast<std::uintptr_t>(data) % 64 != 0 || strides[1] != 1 || sizes[1] % kLine != 0) return false;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (d != 1 && sizes[d] > 1 && strides[d] % kLine != 0) return false;
  }
  return true;
}

}  // namespace tconv::cpu
