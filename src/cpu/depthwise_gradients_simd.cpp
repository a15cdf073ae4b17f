#include "cpu/depthwise_gradients_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/depthwise_gradients_simd.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "cpu/panels.h"
#include "cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Taps whose weights and sums stay in registers.
constexpr int kTogether = HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64 ? 8 : 4;

// The next lines, into the L2 cache.
HWY_INLINE void ask(Ahead& ahead) {
  for (std::int64_t i = 0; i < ahead.each_time; ++i) {
    if (ahead.count == 0) return;
    Strip& strip = *ahead.strips;
    __builtin_prefetch(strip.at, 0, 2);
    strip.at += strip.step;
    if (strip.at < strip.end) continue;
    ++ahead.strips;
    --ahead.count;
  }
}

// `count` elements; zeros beyond them, where nothing is read.
template <bool kPartial, typename E, class D>
HWY_INLINE hn::Vec<D> load_some(D tag, const E* from, std::int64_t count) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<E, T> && !kPartial) {
    return hn::LoadU(tag, from);
  } else if constexpr (std::is_same_v<E, T> && kMaskedStores) {
    return hn::MaskedLoad(hn::FirstN(tag, static_cast<std::size_t>(count)), tag, from);
  } else {
    constexpr std::int64_t kLanes = hn::MaxLanes(D());
    T values[kLanes] = {};
    for (std::int64_t i = 0; i < (kPartial ? count : kLanes); ++i) values[i] = widen<E, T>(from[i]);
    return hn::LoadU(tag, values);
  }
}

template <bool kPartial, class D>
HWY_INLINE void store_some(D tag, hn::Vec<D> vector, hn::TFromD<D>* to, std::int64_t count) {
  if constexpr (!kPartial) {
    hn::StoreU(vector, tag, to);
  } else if constexpr (kMaskedStores) {
    hn::BlendedStore(vector, hn::FirstN(tag, static_cast<std::size_t>(count)), tag, to);
  } else {
    hn::TFromD<D> values[hn::MaxLanes(D())];
    hn::StoreU(vector, tag, values);
    std::copy_n(values, count, to);
  }
}

// What a call computes.
template <bool kOfInput, bool kOfWeight>
struct Wanted {
  static constexpr bool kInput = kOfInput;
  static constexpr bool kWeight = kOfWeight;
};

// visit(std::integral_constant<int, kTaps>, first) for groups of taps.
template <typename Visit>
HWY_INLINE void for_each_group(std::int64_t taps, const Visit& visit) {
  std::int64_t t = 0;
  for (; t + kTogether <= taps; t += kTogether) visit(std::integral_constant<int, kTogether>(), t);
  if constexpr (kTogether > 4) {
    for (; t + 4 <= taps; t += 4) visit(std::integral_constant<int, 4>(), t);
  }
  for (; t + 2 <= taps; t += 2) visit(std::integral_constant<int, 2>(), t);
  if (t < taps) visit(std::integral_constant<int, 1>(), t);
}

// kTaps taps of one vector of channels, of which `count` are there.
template <int kTaps, class W, bool kPartial, typename E, typename T>
HWY_INLINE void gradient_of_cells(const GradientCells<E, T>& job, std::int64_t t, std::int64_t c, std::int64_t count) {
  const hn::ScalableTag<T> tag;
  hn::Vec<decltype(tag)> weights[kTaps];
  hn::Vec<decltype(tag)> sums[kTaps];
  const E* grad[kTaps];
  for (int i = 0; i < kTaps; ++i) {
    grad[i] = job.grad + job.offsets[t + i] + c;
    if constexpr (W::kInput) weights[i] = hn::LoadU(tag, job.weights + job.places[t + i] + c);
    sums[i] = hn::Zero(tag);
  }
  const E* input = job.input + c;
  T* results = job.results + c;
  std::int64_t at = 0;
  for (std::int64_t j = 0; j < job.cells; ++j, at += job.grad_step) {
    ask(*job.ahead);
    auto x = hn::Zero(tag);
    auto result = hn::Zero(tag);
    if constexpr (W::kWeight) x = load_some<kPartial>(tag, input, count);
    if constexpr (W::kInput) {
      if (t > 0) result = load_some<kPartial>(tag, results, count);
    }
    for (int i = 0; i < kTaps; ++i) {
      const auto g = load_some<kPartial>(tag, grad[i] + at, count);
      if constexpr (W::kInput) result = hn::MulAdd(g, weights[i], result);
      if constexpr (W::kWeight) sums[i] = hn::MulAdd(g, x, sums[i]);
    }
    if constexpr (W::kInput) store_some<kPartial>(tag, result, results, count);
    input += job.input_step;
    results += job.result_step;
  }
  if constexpr (W::kWeight) {
    for (int i = 0; i < kTaps; ++i) {
      T* const place = job.sums + job.places[t + i] + c;
      hn::StoreU(hn::Add(hn::LoadU(tag, place), sums[i]), tag, place);
    }
  }
}

template <class W, typename E, typename T>
void gradients_of_cells(const GradientCells<E, T>& job) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  if (W::kInput && job.taps == 0) {
    for (std::int64_t j = 0; j < job.cells; ++j) std::fill_n(job.results + j * job.result_step, job.channels, T{0});
  }
  std::int64_t c = 0;
  for (; c + kLanes <= job.channels; c += kLanes) {
    for_each_group(job.taps, [&](auto taps, std::int64_t t) HWY_ATTR {
      gradient_of_cells<decltype(taps)::value, W, false>(job, t, c, kLanes);
    });
  }
  if (c == job.channels) return;
  for_each_group(job.taps, [&](auto taps, std::int64_t t) HWY_ATTR {
    gradient_of_cells<decltype(taps)::value, W, true>(job, t, c, job.channels - c);
  });
}

template <typename E, typename T>
void cells(const GradientCells<E, T>& job) {
  if (job.sums == nullptr) return gradients_of_cells<Wanted<true, false>>(job);
  if (job.results == nullptr) return gradients_of_cells<Wanted<false, true>>(job);
  gradients_of_cells<Wanted<true, true>>(job);
}

// kTaps taps of all rows.
template <int kTaps, class W, typename T>
HWY_INLINE void gradient_of_rows(const GradientRows<T>& job, std::int64_t t) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  hn::Vec<decltype(tag)> weights[kTaps];
  hn::Vec<decltype(tag)> sums[kTaps];
  const T* grad[kTaps];
  for (int i = 0; i < kTaps; ++i) {
    grad[i] = job.grad + job.offsets[t + i];
    if constexpr (W::kInput) weights[i] = hn::Set(tag, job.weights[t + i]);
    sums[i] = hn::Zero(tag);
  }
  // One vector from `at` on; gradients beyond the row, which other cells read, are not this row's.
  const auto step = [&](std::int64_t at, const auto& load) HWY_ATTR {
    ask(*job.ahead);
    auto x = hn::Zero(tag);
    auto result = hn::Zero(tag);
    if constexpr (W::kWeight) x = hn::LoadU(tag, job.input + at);
    if constexpr (W::kInput) {
      if (t > 0) result = hn::LoadU(tag, job.results + at);
    }
    for (int i = 0; i < kTaps; ++i) {
      const auto g = load(grad[i] + at);
      if constexpr (W::kInput) result = hn::MulAdd(g, weights[i], result);
      if constexpr (W::kWeight) sums[i] = hn::MulAdd(g, x, sums[i]);
    }
    if constexpr (W::kInput) hn::StoreU(result, tag, job.results + at);
  };
  const std::int64_t whole = job.cells / kLanes * kLanes;
  const auto rest = hn::FirstN(tag, static_cast<std::size_t>(job.cells - whole));
  for (std::int64_t r = 0; r < job.rows; ++r) {
    std::int64_t at = r * job.row_step;
    const std::int64_t end = at + whole;
    for (; at < end; at += kLanes) step(at, [tag](const T* from) HWY_ATTR { return hn::LoadU(tag, from); });
    if (whole == job.cells) continue;
    step(at, [tag, rest](const T* from) HWY_ATTR { return hn::IfThenElseZero(rest, hn::LoadU(tag, from)); });
  }
  if constexpr (W::kWeight) {
    for (int i = 0; i < kTaps; ++i) {
      T* const place = job.sums + (t + i) * kMostLanes;
      hn::StoreU(hn::Add(hn::LoadU(tag, place), sums[i]), tag, place);
    }
  }
}

template <class W, typename T>
void gradients_of_rows(const GradientRows<T>& job) {
  for_each_group(job.taps, [&](auto taps, std::int64_t t) HWY_ATTR {
    gradient_of_rows<decltype(taps)::value, W>(job, t);
  });
}

template <typename T>
void rows(const GradientRows<T>& job) {
  if (job.sums == nullptr) return gradients_of_rows<Wanted<true, false>>(job);
  if (job.results == nullptr) return gradients_of_rows<Wanted<false, true>>(job);
  gradients_of_rows<Wanted<true, true>>(job);
}

// Whole vectors of every phase, from element `done` of each on; returns how far it got.
template <int kPhases, class D, typename T>
HWY_INLINE std::int64_t split_vectors(D tag, const T* from, std::int64_t each, std::int64_t done, T* const* to) {
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  for (; done + kLanes <= each; done += kLanes) {
    const T* const place = from + done * kPhases;
    hn::Vec<D> a;
    hn::Vec<D> b;
    hn::Vec<D> c;
    hn::Vec<D> d;
    if constexpr (kPhases == 1) a = hn::LoadU(tag, place);
    if constexpr (kPhases == 2) hn::LoadInterleaved2(tag, place, a, b);
    if constexpr (kPhases == 3) hn::LoadInterleaved3(tag, place, a, b, c);
    if constexpr (kPhases == 4) hn::LoadInterleaved4(tag, place, a, b, c, d);
    hn::StoreU(a, tag, to[0] + done);
    if constexpr (kPhases > 1) hn::StoreU(b, tag, to[1] + done);
    if constexpr (kPhases > 2) hn::StoreU(c, tag, to[2] + done);
    if constexpr (kPhases > 3) hn::StoreU(d, tag, to[3] + done);
  }
  if constexpr (kLanes * sizeof(T) > 16) {
    return split_vectors<kPhases>(hn::Half<D>(), from, each, done, to);
  } else {
    return done;
  }
}

template <int kPhases, typename T>
void split_few(const T* from, std::int64_t count, T* const* to) {
  const std::int64_t done = split_vectors<kPhases>(hn::ScalableTag<T>(), from, count / kPhases, 0, to);
  for (std::int64_t i = done * kPhases; i < count; ++i) to[i % kPhases][i / kPhases] = from[i];
}

// Many phases are split into a few, and those again.
template <typename T>
void split(const T* from, std::int64_t count, std::int64_t phases, T* const* to, T* room) {
  constexpr std::int64_t kMost = 32;  // that are split twice
  switch (phases) {
    case 1: return split_few<1>(from, count, to);
    case 2: return split_few<2>(from, count, to);
    case 3: return split_few<3>(from, count, to);
    case 4: return split_few<4>(from, count, to);
    default: break;
  }
  const std::int64_t first = phases % 4 == 0 ? 4 : phases % 3 == 0 ? 3 : 2;
  if (phases > kMost || phases % first != 0) {
    for (std::int64_t i = 0; i < count; i += phases) {
      for (std::int64_t p = 0; p < std::min(phases, count - i); ++p) to[p][i / phases] = from[i + p];
    }
    return;
  }
  const std::int64_t each = count / first + 1;
  T* lines[4];
  for (std::int64_t p = 0; p < first; ++p) lines[p] = room + p * each;
  split<T>(from, count, first, lines, nullptr);
  for (std::int64_t p = 0; p < first; ++p) {
    T* ends[kMost];
    for (std::int64_t q = 0; q < phases / first; ++q) ends[q] = to[p + q * first];
    split<T>(lines[p], (count - p + first - 1) / first, phases / first, ends, room + first * each);
  }
}

template <typename T>
void sum_lanes(const T* sums, std::int64_t count, T* to) {
  const hn::ScalableTag<T> tag;
  for (std::int64_t i = 0; i < count; ++i) to[i] = hn::GetLane(hn::SumOfLanes(tag, hn::LoadU(tag, sums + i * kMostLanes)));
}

template <typename E, typename T>
DepthwiseGradientOps<E, T> make_ops() {
  return {cells<E, T>, rows<T>, split<T>, sum_lanes<T>, kTogether};
}

const DepthwiseGradientOps<float, float>& float_gradients() {
  static const auto ops = make_ops<float, float>();
  return ops;
}
const DepthwiseGradientOps<double, double>& double_gradients() {
  static const auto ops = make_ops<double, double>();
  return ops;
}
const DepthwiseGradientOps<Float16, float>& float16_gradients() {
  static const auto ops = make_ops<Float16, float>();
  return ops;
}
const DepthwiseGradientOps<BFloat16, float>& bfloat16_gradients() {
  static const auto ops = make_ops<BFloat16, float>();
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(float_gradients);
HWY_EXPORT(double_gradients);
HWY_EXPORT(float16_gradients);
HWY_EXPORT(bfloat16_gradients);

template <>
const DepthwiseGradientOps<float, float>& depthwise_gradient_ops<float, float>() {
  return HWY_DYNAMIC_DISPATCH(float_gradients)();
}
template <>
const DepthwiseGradientOps<double, double>& depthwise_gradient_ops<double, double>() {
  return HWY_DYNAMIC_DISPATCH(double_gradients)();
}
template <>
const DepthwiseGradientOps<Float16, float>& depthwise_gradient_ops<Float16, float>() {
  return HWY_DYNAMIC_DISPATCH(float16_gradients)();
}
template <>
const DepthwiseGradientOps<BFloat16, float>& depthwise_gradient_ops<BFloat16, float>() {
  return HWY_DYNAMIC_DISPATCH(bfloat16_gradients)();
}

}  // namespace tconv::cpu
#endif
