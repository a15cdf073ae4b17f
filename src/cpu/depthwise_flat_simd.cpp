#include "cpu/depthwise_flat_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/depthwise_flat_simd.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The bits of a vector are whole bytes.
template <typename T>
constexpr bool kPicksLanes = kMaskedStores && hn::MaxLanes(hn::ScalableTag<T>()) % 8 == 0;

constexpr int kMostVectors = HWY_MAX_BYTES >= 64 ? 16 : 8;  // of sums in registers

// Of one line, some vectors from vector `first` on. Returns where the next cell goes.
template <int kVectors, typename T>
HWY_INLINE T* weigh_vectors(const WeighFlat<T>& job, std::int64_t first, T bias, T* to, const T* end) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<hn::ScalableTag<T>>;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  V sums[kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) sums[v] = hn::Set(tag, bias);
  for (const FlatTap* tap = job.taps; tap != job.taps + job.tap_count; ++tap) {
    const T* const from = job.from + tap->offset + first * kLanes;
    const V weight = hn::Set(tag, job.weights[tap->place]);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sums[v] = hn::MulAdd(hn::LoadU(tag, from + v * kLanes), weight, sums[v]);
  }
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    const std::uint8_t* const bytes = job.wanted + (first + v) * kLanes / 8;
    std::int64_t count = 0;
    for (int i = 0; i < kLanes / 8; ++i) count += std::popcount(bytes[i]);
    const V together = hn::Compress(sums[v], hn::LoadMaskBits(tag, bytes));
    if (to + kLanes <= end) {  // what lies beyond these cells is written next
      hn::StoreU(together, tag, to);
    } else {
      hn::BlendedStore(together, hn::FirstN(tag, static_cast<std::size_t>(count)), tag, to);
    }
    to += count;
  }
  return to;
}

template <int kVectors = 1, typename T>
HWY_INLINE T* weigh_group(const WeighFlat<T>& job, std::int64_t first, std::int64_t vectors, T bias, T* to,
                          const T* end) {
  if constexpr (kVectors < kMostVectors) {
    if (vectors > kVectors) return weigh_group<kVectors + 1>(job, first, vectors, bias, to, end);
  }
  return weigh_vectors<kVectors>(job, first, bias, to, end);
}

template <typename T>
void weigh_flat(const WeighFlat<T>& lines) {
  WeighFlat<T> job = lines;  // which no store can change
  // As even as may be.
  const std::int64_t groups = (job.vectors + kMostVectors - 1) / kMostVectors;
  const std::int64_t in_group = groups == 1 ? job.vectors : (job.vectors + groups - 1) / groups;
  for (std::int64_t i = 0; i < job.lines; ++i) {
    const T bias = job.bias == nullptr ? T{0} : job.bias[i];
    T* to = job.to;
    for (std::int64_t first = 0; first < job.vectors; first += in_group) {
      to = weigh_group(job, first, std::min(in_group, job.vectors - first), bias, to, job.to + job.count);
    }
    job.from += job.from_step;
    job.weights += job.weights_step;
    job.to += job.to_step;
  }
}

template <typename T>
DepthwiseFlatOps<T> make_flat_ops() {
  DepthwiseFlatOps<T> ops;
  ops.lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  if constexpr (kPicksLanes<T>) ops.weigh_flat = weigh_flat<T>;
  return ops;
}

const DepthwiseFlatOps<float>& float_flat() {
  static const auto ops = make_flat_ops<float>();
  return ops;
}
const DepthwiseFlatOps<double>& double_flat() {
  static const auto ops = make_flat_ops<double>();
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(float_flat);
HWY_EXPORT(double_flat);

template <>
const DepthwiseFlatOps<float>& depthwise_flat_ops<float>() {
  return HWY_DYNAMIC_DISPATCH(float_flat)();
}
template <>
const DepthwiseFlatOps<double>& depthwise_flat_ops<double>() {
  return HWY_DYNAMIC_DISPATCH(double_flat)();
}

}  // namespace tconv::cpu
#endif
