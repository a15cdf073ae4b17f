#include "cpu/depthwise_flat_gradients_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/depthwise_flat_gradients_simd.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "cpu/gradients-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

constexpr int kMostTaps = 10;  // whose sums are in registers

// sum + a b in the lanes of the mask, sum in the others: a product with zero would be NaN where b is infinite.
template <class V>
HWY_INLINE V add_product(std::uint16_t lanes, V a, V b, V sum) {
  return V{_mm512_mask3_fmadd_ps(a.raw, b.raw, sum.raw, lanes)};
}

// The taps from `first` on, of all lines. Their results are added to those of the taps before.
template <int kTaps, class W, typename T>
void gradients_of_taps(const FlatGradients<T>& shared, std::int64_t first) {
  const FlatGradients<T> job = shared;  // which no store can change
  const hn::ScalableTag<T> tag;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  const bool is_last = first + kTaps == job.tap_count;
  std::int64_t offsets[kTaps];
  T weights[kTaps];
  V sums[kTaps];
#pragma GCC unroll 16
  for (int t = 0; t < kTaps; ++t) {
    offsets[t] = job.taps[first + t].offset;
    if constexpr (W::kInput) weights[t] = job.weights[job.taps[first + t].place];
    sums[t] = hn::Zero(tag);
  }
  for (std::int64_t line = 0; line < job.lines; ++line) {
    const T* const grad = job.grad + line * job.grad_step;
    const T* input = W::kWeight ? job.input + line * job.input_step : nullptr;
    T* to = W::kInput ? job.results + line * job.result_step : nullptr;
    const T* const end = to + job.count;
    T* const partial = W::kInput ? job.partial_results + line * job.vectors * kLanes : nullptr;
    for (std::int64_t v = 0; v < job.vectors; ++v) {
      const std::uint16_t wanted = job.wanted[v];
      const std::int64_t count = std::popcount(wanted);
      V x = hn::Zero(tag);
      if constexpr (W::kWeight) {
        x = V{_mm512_maskz_expandloadu_ps(wanted, input)};
        input += count;
      }
      V result = hn::Zero(tag);
      if (W::kInput && first > 0) result = hn::Load(tag, partial + v * kLanes);
      const std::uint16_t* const reads = job.reads + first * job.vectors + v;
#pragma GCC unroll 16
      for (int t = 0; t < kTaps; ++t) {
        const std::uint16_t lanes = reads[t * job.vectors];
        const V g = hn::LoadU(tag, grad + offsets[t] + v * kLanes);
        if constexpr (W::kInput) result = add_product(lanes, g, hn::Set(tag, weights[t]), result);
        if constexpr (W::kWeight) sums[t] = add_product(lanes, g, x, sums[t]);
      }
      if constexpr (W::kInput) {
        if (!is_last) {
          hn::Store(result, tag, partial + v * kLanes);
          continue;
        }
        const V together = hn::Compress(result, hn::Mask<D>{wanted});
        if (to + kLanes <= end) {  // what lies beyond these cells is written next
          hn::StoreU(together, tag, to);
        } else {
          hn::BlendedStore(together, hn::FirstN(tag, static_cast<std::size_t>(count)), tag, to);
        }
        to += count;
      }
    }
  }
  if constexpr (W::kWeight) {
#pragma GCC unroll 16
    for (int t = 0; t < kTaps; ++t) job.sums[job.taps[first + t].place] += hn::GetLane(hn::SumOfLanes(tag, sums[t]));
  }
}

template <class W, int kTaps, typename T>
void some_taps(const FlatGradients<T>& job, std::int64_t first, std::int64_t taps) {
  if constexpr (kTaps > 1) {
    if (taps < kTaps) return some_taps<W, kTaps - 1>(job, first, taps);
  }
  gradients_of_taps<kTaps, W>(job, first);
}

template <class W, typename T>
void all_taps(const FlatGradients<T>& job) {
  const std::int64_t groups = (job.tap_count + kMostTaps - 1) / kMostTaps;
  for (std::int64_t g = 0; g < groups; ++g) {  // as even as may be
    const std::int64_t first = job.tap_count * g / groups;
    some_taps<W, kMostTaps>(job, first, job.tap_count * (g + 1) / groups - first);
  }
}

template <typename T>
void gradients(const FlatGradients<T>& job) {
  if (job.sums == nullptr) return all_taps<Wanted<true, false>>(job);
  if (job.results == nullptr) return all_taps<Wanted<false, true>>(job);
  all_taps<Wanted<true, true>>(job);
}

template <typename T>
FlatGradientOps<T> make_ops() {
  return {hn::MaxLanes(hn::ScalableTag<T>()), gradients<T>};
}

#else

template <typename T>
FlatGradientOps<T> make_ops() {
  return {};
}

#endif

const FlatGradientOps<float>& float_flat_gradients() {
  static const auto ops = make_ops<float>();
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(float_flat_gradients);

template <>
const FlatGradientOps<float>& flat_gradient_ops<float>() {
  return HWY_DYNAMIC_DISPATCH(float_flat_gradients)();
}

}  // namespace tconv::cpu
#endif
