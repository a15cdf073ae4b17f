#include "cpu/tap_rows_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/tap_rows_simd.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
void add_all_taps(const AddTaps<T>& job) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<decltype(tag)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  // Where all taps have something.
  std::int64_t low = 0;
  std::int64_t high = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t t = 0; t < job.tap_count; ++t) {
    low = std::max(low, job.taps[t].begin);
    high = std::min(high, job.taps[t].end);
  }
  constexpr int kTogether = 4;  // sums that do not wait for each other
  std::int64_t j = 0;
  while (j < job.count) {
    if (j >= low && j + kTogether * lanes <= std::min(high, job.count)) {
      V sums[kTogether];
#pragma GCC unroll 4
      for (int v = 0; v < kTogether; ++v) sums[v] = hn::LoadU(tag, job.to + j + v * lanes);
      for (std::int64_t t = 0; t < job.tap_count; ++t) {
        const T* const from = job.products + (job.taps[t].from + j);
#pragma GCC unroll 4
        for (int v = 0; v < kTogether; ++v) sums[v] = hn::Add(sums[v], hn::LoadU(tag, from + v * lanes));
      }
#pragma GCC unroll 4
      for (int v = 0; v < kTogether; ++v) hn::StoreU(sums[v], tag, job.to + j + v * lanes);
      j += kTogether * lanes;
      continue;
    }
    V sum = hn::LoadU(tag, job.to + j);
    for (std::int64_t t = 0; t < job.tap_count; ++t) {
      const std::int64_t begin = job.taps[t].begin - j;
      const std::int64_t end = job.taps[t].end - j;
      if (begin >= lanes || end <= 0) continue;
      V row = hn::LoadU(tag, job.products + (job.taps[t].from + j));
      if (begin > 0) row = hn::IfThenZeroElse(hn::FirstN(tag, static_cast<std::size_t>(begin)), row);
      if (end < lanes) row = hn::IfThenElseZero(hn::FirstN(tag, static_cast<std::size_t>(end)), row);
      sum = hn::Add(sum, row);
    }
    hn::StoreU(sum, tag, job.to + j);
    j += lanes;
  }
}

void add_float_taps(const AddTaps<float>& job) { add_all_taps(job); }
void add_double_taps(const AddTaps<double>& job) { add_all_taps(job); }

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(add_float_taps);
HWY_EXPORT(add_double_taps);

template <>
void add_taps(const AddTaps<float>& job) {
  HWY_DYNAMIC_DISPATCH(add_float_taps)(job);
}
template <>
void add_taps(const AddTaps<double>& job) {
  HWY_DYNAMIC_DISPATCH(add_double_taps)(job);
}

}  // namespace tconv::cpu
#endif
