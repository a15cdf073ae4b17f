#include "cpu/depthwise_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/depthwise_simd.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename E, class D>
HWY_INLINE hn::Vec<D> load_vector(D tag, const E* from) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<E, T>) {
    return hn::LoadU(tag, from);
  } else {
    constexpr std::int64_t kLanes = hn::MaxLanes(D());
    T values[kLanes];
    for (std::int64_t i = 0; i < kLanes; ++i) values[i] = widen<E, T>(from[i]);
    return hn::LoadU(tag, values);
  }
}

template <typename E, class D>
HWY_INLINE void store_vector(D tag, hn::Vec<D> vector, E* to) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<E, T>) {
    hn::StoreU(vector, tag, to);
  } else {
    constexpr std::int64_t kLanes = hn::MaxLanes(D());
    T values[kLanes];
    hn::StoreU(vector, tag, values);
    for (std::int64_t i = 0; i < kLanes; ++i) to[i] = narrow<E, T>(values[i]);
  }
}

// kVectors vectors of channels of one cell.
template <int kVectors, typename E, typename T>
HWY_INLINE void weigh_vectors(const WeighCells<E, T>& job, const E* from, E* to, std::int64_t c) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  hn::Vec<decltype(tag)> sums[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    sums[v] = job.bias == nullptr ? hn::Zero(tag) : load_vector(tag, job.bias + c + v * kLanes);
  }
  for (std::int64_t t = 0; t < job.taps; ++t) {
    const E* const x = from + job.offsets[t] + c;
    const T* const w = job.weights + job.places[t] + c;
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = hn::MulAdd(load_vector(tag, x + v * kLanes), hn::LoadU(tag, w + v * kLanes), sums[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) store_vector(tag, sums[v], to + c + v * kLanes);
}

template <typename E, typename T>
void weigh(const WeighCells<E, T>& job) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr int kTogether = 4;
  for (std::int64_t j = 0; j < job.cells; ++j) {
    const E* const from = job.from + j * job.from_step;
    E* const to = job.to + j * job.to_step;
    std::int64_t c = 0;
    for (; c + kTogether * kLanes <= job.channels; c += kTogether * kLanes) weigh_vectors<kTogether>(job, from, to, c);
    for (; c + kLanes <= job.channels; c += kLanes) weigh_vectors<1>(job, from, to, c);
    for (; c < job.channels; ++c) {
      T sum = job.bias == nullptr ? T{0} : widen<E, T>(job.bias[c]);
      for (std::int64_t t = 0; t < job.taps; ++t) {
        sum += widen<E, T>(from[job.offsets[t] + c]) * job.weights[job.places[t] + c];
      }
      to[c] = narrow<E, T>(sum);
    }
  }
}

// kTaps taps of one vector of channels.
template <int kTaps, typename E, typename T>
HWY_INLINE void correlate_taps(const CorrelateCells<E, T>& job, std::int64_t t, std::int64_t c) {
  const hn::ScalableTag<T> tag;
  hn::Vec<decltype(tag)> sums[kTaps];
  const E* b[kTaps];
  for (int i = 0; i < kTaps; ++i) {
    sums[i] = hn::Zero(tag);
    b[i] = job.b + job.offsets[t + i] + c;
  }
  for (std::int64_t j = 0; j < job.cells; ++j) {
    const auto a = load_vector(tag, job.a + j * job.a_step + c);
    for (int i = 0; i < kTaps; ++i) sums[i] = hn::MulAdd(a, load_vector(tag, b[i] + j * job.b_step), sums[i]);
  }
  for (int i = 0; i < kTaps; ++i) {
    T* const place = job.sums + job.places[t + i] + c;
    hn::StoreU(hn::Add(hn::LoadU(tag, place), sums[i]), tag, place);
  }
}

template <typename E, typename T>
void correlate(const CorrelateCells<E, T>& job) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr int kTogether = 4;
  std::int64_t c = 0;
  for (; c + kLanes <= job.channels; c += kLanes) {
    std::int64_t t = 0;
    for (; t + kTogether <= job.taps; t += kTogether) correlate_taps<kTogether>(job, t, c);
    for (; t < job.taps; ++t) correlate_taps<1>(job, t, c);
  }
  for (; c < job.channels; ++c) {
    for (std::int64_t t = 0; t < job.taps; ++t) {
      T sum = 0;
      for (std::int64_t j = 0; j < job.cells; ++j) {
        sum += widen<E, T>(job.a[j * job.a_step + c]) * widen<E, T>(job.b[j * job.b_step + job.offsets[t] + c]);
      }
      job.sums[job.places[t] + c] += sum;
    }
  }
}

template <typename E, typename T>
DepthwiseOps<E, T> make_depthwise_ops() {
  return {weigh<E, T>, correlate<E, T>};
}

const DepthwiseOps<float, float>& float_depthwise() {
  static const auto ops = make_depthwise_ops<float, float>();
  return ops;
}
const DepthwiseOps<double, double>& double_depthwise() {
  static const auto ops = make_depthwise_ops<double, double>();
  return ops;
}
const DepthwiseOps<Float16, float>& float16_depthwise() {
  static const auto ops = make_depthwise_ops<Float16, float>();
  return ops;
}
const DepthwiseOps<BFloat16, float>& bfloat16_depthwise() {
  static const auto ops = make_depthwise_ops<BFloat16, float>();
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(float_depthwise);
HWY_EXPORT(double_depthwise);
HWY_EXPORT(float16_depthwise);
HWY_EXPORT(bfloat16_depthwise);

template <>
const DepthwiseOps<float, float>& depthwise_ops<float, float>() {
  return HWY_DYNAMIC_DISPATCH(float_depthwise)();
}
template <>
const DepthwiseOps<double, double>& depthwise_ops<double, double>() {
  return HWY_DYNAMIC_DISPATCH(double_depthwise)();
}
template <>
const DepthwiseOps<Float16, float>& depthwise_ops<Float16, float>() {
  return HWY_DYNAMIC_DISPATCH(float16_depthwise)();
}
template <>
const DepthwiseOps<BFloat16, float>& depthwise_ops<BFloat16, float>() {
  return HWY_DYNAMIC_DISPATCH(bfloat16_depthwise)();
}

}  // namespace tconv::cpu
#endif
