#include "cpu/depthwise_gradients_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/depthwise_gradients_simd.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "cpu/gradients-inl.h"
#include "cpu/panels.h"
#include "cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The first elements of a vector, as a mask where memory may be read by one.
template <class D>
struct First {
  std::int64_t count;
  hn::Mask<D> mask;

  HWY_INLINE First(D tag, std::int64_t elements)
      : count(elements), mask(hn::FirstN(tag, static_cast<std::size_t>(elements))) {}
};

// These elements; zeros beyond them, where nothing is read.
template <bool kPartial, typename E, class D>
HWY_INLINE hn::Vec<D> load_some(D tag, const E* from, const First<D>& first) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<E, T> && !kPartial) {
    return hn::LoadU(tag, from);
  } else if constexpr (std::is_same_v<E, T> && kMaskedStores) {
    return hn::MaskedLoad(first.mask, tag, from);
  } else if constexpr (!kPartial) {
    return load_widened(tag, from);
  } else {
    constexpr std::int64_t kLanes = hn::MaxLanes(D());
    T values[kLanes] = {};
    for (std::int64_t i = 0; i < first.count; ++i) values[i] = widen<E, T>(from[i]);
    return hn::LoadU(tag, values);
  }
}

// The same elements, rounded.
template <bool kPartial, bool kPastCaches, typename E, class D>
HWY_INLINE void store_some(D tag, hn::Vec<D> vector, E* to, const First<D>& first) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<E, T> && !kPartial) {
    kPastCaches ? hn::Stream(vector, tag, to) : hn::StoreU(vector, tag, to);
  } else if constexpr (std::is_same_v<E, T> && kMaskedStores) {
    hn::BlendedStore(vector, first.mask, tag, to);
  } else if constexpr (!kPartial) {
    store_narrowed(tag, vector, to);
  } else {
    T values[hn::MaxLanes(D())];
    hn::StoreU(vector, tag, values);
    for (std::int64_t i = 0; i < first.count; ++i) to[i] = narrow<E, T>(values[i]);
  }
}

// Asks for what later cells read where the cells [j, j + kCells) read, into the L2 cache.
template <int kCells, typename E>
HWY_INLINE void ask_for_cells(const CellsAhead<E>& ahead, std::int64_t j, std::int64_t c) {
  const E* from = ahead.from + j * ahead.cell_step + c;
  for (int i = 0; i < kCells; ++i, from += ahead.cell_step) {
    for (std::int64_t p = 0; p < ahead.positions; ++p) __builtin_prefetch(from + p * ahead.step, 0, 2);
  }
}

// One vector of channels, of which `count` are there, of the cells [j, j + kCells). Weights and sums come from the L1
// cache, once for all of these cells.
template <int kCells, class W, bool kPartial, bool kPastCaches, typename E, typename T>
HWY_INLINE void vector_of_cells(const GradientCells<E, T>& job, std::int64_t j, std::int64_t c, std::int64_t count) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<decltype(tag)>;
  const First<hn::ScalableTag<T>> first(tag, count);
  const std::int64_t place = c / kMostLanes * job.block_size + c % kMostLanes;
  const std::int64_t cell_step = job.cell_step;
  const std::int64_t taps = job.taps;
  V inputs[kCells];
  V results[kCells];
#pragma GCC unroll 4
  for (int i = 0; i < kCells; ++i) {
    if constexpr (W::kWeight) inputs[i] = load_some<kPartial>(tag, job.input + (j + i) * job.input_step + c, first);
    results[i] = hn::Zero(tag);
  }
  std::int64_t asked = 0;
  for (std::int64_t r = 0; r < job.row_count; ++r) {
    const E* grad = job.grad + job.rows[r].offset + j * cell_step + c;
    const T* weights = W::kInput ? job.weights + job.rows[r].place + place : nullptr;
    T* sums = W::kWeight ? job.sums + job.rows[r].place + place : nullptr;
    for (std::int64_t t = 0; t < taps; ++t, grad += job.tap_step) {
      V weight;
      V sum;
      if constexpr (W::kInput) weight = hn::LoadU(tag, weights + t * kMostLanes);
      if constexpr (W::kWeight) sum = hn::LoadU(tag, sums + t * kMostLanes);
#pragma GCC unroll 4
      for (int i = 0; i < kCells; ++i) {
        auto g = load_some<kPartial>(tag, grad + i * cell_step, first);
        hold(g);
        if constexpr (W::kInput) results[i] = hn::MulAdd(g, weight, results[i]);
        if constexpr (W::kWeight) sum = hn::MulAdd(g, inputs[i], sum);
      }
      if constexpr (W::kWeight) hn::StoreU(sum, tag, sums + t * kMostLanes);
    }
    // A part of them after each row: more at once wait for each other.
    for (const std::int64_t end = job.ahead_count * (r + 1) / job.row_count; asked < end; ++asked) {
      ask_for_cells<kCells>(job.ahead[asked], j, c);
    }
  }
  if constexpr (W::kInput) {
    E* const to = job.results + j * job.result_step + c;
#pragma GCC unroll 4
    for (int i = 0; i < kCells; ++i) {
      store_some<kPartial, kPastCaches>(tag, results[i], to + i * job.result_step, first);
    }
  }
}

template <int kCells, class W, bool kPastCaches, typename E, typename T>
HWY_INLINE void some_cells(const GradientCells<E, T>& job, std::int64_t j) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  std::int64_t c = 0;
  for (; c + kLanes <= job.channels; c += kLanes) vector_of_cells<kCells, W, false, kPastCaches>(job, j, c, kLanes);
  if (c < job.channels) vector_of_cells<kCells, W, true, false>(job, j, c, job.channels - c);
}

template <class W, bool kPastCaches, typename E, typename T>
void gradients_of_cells(const GradientCells<E, T>& job) {
  std::int64_t j = 0;
  for (; j + 4 <= job.cells; j += 4) some_cells<4, W, kPastCaches>(job, j);
  if (j + 2 <= job.cells) {
    some_cells<2, W, kPastCaches>(job, j);
    j += 2;
  }
  if (j < job.cells) some_cells<1, W, kPastCaches>(job, j);
}

template <typename E, typename T>
void cells(const GradientCells<E, T>& job) {
  if (job.results == nullptr) return gradients_of_cells<Wanted<false, true>, false>(job);
  if (job.sums == nullptr) {
    return job.past_caches ? gradients_of_cells<Wanted<true, false>, true>(job)
                           : gradients_of_cells<Wanted<true, false>, false>(job);
  }
  job.past_caches ? gradients_of_cells<Wanted<true, true>, true>(job)
                  : gradients_of_cells<Wanted<true, true>, false>(job);
}

// kTaps taps of all rows. The results of other taps are there already unless these are the first.
template <int kTaps, class W, typename T>
HWY_INLINE void taps_of_rows(GradientRows<T>& job, std::int64_t t) {
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
  {
    Asking asking(job.ahead, job.lines_ahead);
    const T* const input = job.input;
    T* const results = job.results;
    const bool more = t > 0;
    // One vector from `at` on.
    const auto step = [&](std::int64_t at, const auto& load) HWY_ATTR {
      asking.ask();
      auto x = hn::Zero(tag);
      auto result = hn::Zero(tag);
      auto other = hn::Zero(tag);
      if constexpr (W::kWeight) x = hn::LoadU(tag, input + at);
      if constexpr (W::kInput) {
        if (more) result = hn::LoadU(tag, results + at);
      }
      for (int i = 0; i < kTaps; ++i) {
        auto g = load(grad[i] + at);
        hold(g);
        if constexpr (W::kInput) {
          auto& sum = i < (kTaps + 1) / 2 ? result : other;
          sum = hn::MulAdd(g, weights[i], sum);
        }
        if constexpr (W::kWeight) sums[i] = hn::MulAdd(g, x, sums[i]);
      }
      if constexpr (W::kInput) hn::StoreU(hn::Add(result, other), tag, results + at);
    };
    const std::int64_t whole = job.cells / kLanes * kLanes;
    // What lies beyond a row is read by other rows, not by this one.
    const auto rest = hn::FirstN(tag, static_cast<std::size_t>(job.cells - whole));
    for (std::int64_t r = 0; r < job.rows; ++r) {
      std::int64_t at = r * job.row_step;
      const std::int64_t end = at + whole;
      for (; at < end; at += kLanes) step(at, [tag](const T* from) HWY_ATTR { return hn::LoadU(tag, from); });
      if (whole == job.cells) continue;
      step(at, [tag, rest](const T* from) HWY_ATTR { return hn::IfThenElseZero(rest, hn::LoadU(tag, from)); });
    }
  }
  if constexpr (W::kWeight) {
    for (int i = 0; i < kTaps; ++i) {
      T* const place = job.sums + (t + i) * kMostLanes;
      hn::StoreU(hn::Add(hn::LoadU(tag, place), sums[i]), tag, place);
    }
  }
}

template <class W, typename T>
void gradients_of_rows(GradientRows<T>& job) {
  std::int64_t t = 0;
  for (; t + kTogether <= job.taps; t += kTogether) taps_of_rows<kTogether, W>(job, t);
  if constexpr (kTogether > 4) {
    if (t + 4 <= job.taps) {
      taps_of_rows<4, W>(job, t);
      t += 4;
    }
  }
  if (t + 3 == job.taps) return taps_of_rows<3, W>(job, t);
  if (t + 2 == job.taps) return taps_of_rows<2, W>(job, t);
  if (t + 1 == job.taps) return taps_of_rows<1, W>(job, t);
}

template <typename T>
void rows(GradientRows<T>& job) {
  if (job.sums == nullptr) return gradients_of_rows<Wanted<true, false>>(job);
  if (job.results == nullptr) return gradients_of_rows<Wanted<false, true>>(job);
  gradients_of_rows<Wanted<true, true>>(job);
}

// `each` elements of every phase in whole vectors, the last one over what the one before wrote; returns how many.
template <int kPhases, class D, typename T>
HWY_INLINE std::int64_t split_vectors(D tag, const T* from, std::int64_t each, T* const* to) {
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  if (each < kLanes) {
    if constexpr (kLanes * sizeof(T) > 16) {
      return split_vectors<kPhases>(hn::Half<D>(), from, each, to);
    } else {
      return 0;
    }
  }
  for (std::int64_t done = 0; done < each; done += kLanes) {
    const std::int64_t first = std::min(done, each - kLanes);
    const T* const place = from + first * kPhases;
    hn::Vec<D> a;
    hn::Vec<D> b;
    hn::Vec<D> c;
    hn::Vec<D> d;
    if constexpr (kPhases == 1) a = hn::LoadU(tag, place);
    if constexpr (kPhases == 2) hn::LoadInterleaved2(tag, place, a, b);
    if constexpr (kPhases == 3) hn::LoadInterleaved3(tag, place, a, b, c);
    if constexpr (kPhases == 4) hn::LoadInterleaved4(tag, place, a, b, c, d);
    hn::StoreU(a, tag, to[0] + first);
    if constexpr (kPhases > 1) hn::StoreU(b, tag, to[1] + first);
    if constexpr (kPhases > 2) hn::StoreU(c, tag, to[2] + first);
    if constexpr (kPhases > 3) hn::StoreU(d, tag, to[3] + first);
  }
  return each;
}

template <int kPhases, typename T>
void split_few(const T* from, std::int64_t count, T* const* to) {
  const std::int64_t done = split_vectors<kPhases>(hn::ScalableTag<T>(), from, count / kPhases, to);
  for (std::int64_t i = done * kPhases; i < count; ++i) to[i % kPhases][i / kPhases] = from[i];
}

// Many phases are split into a few, and those again.
template <typename T>
void split_row(const T* from, std::int64_t count, std::int64_t phases, T* const* to, T* room) {
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
  split_row<T>(from, count, first, lines, nullptr);
  for (std::int64_t p = 0; p < first; ++p) {
    T* ends[kMost];
    for (std::int64_t q = 0; q < phases / first; ++q) ends[q] = to[p + q * first];
    split_row<T>(lines[p], (count - p + first - 1) / first, phases / first, ends, room + first * each);
  }
}

template <int kPhases, typename T>
void split_few_rows(const SplitRows<T, T>& job) {
  T* to[kPhases];
  std::copy_n(job.to, kPhases, to);
  for (std::int64_t r = 0; r < job.rows; ++r) {
    split_few<kPhases>(job.from + r * job.from_step, job.count, to);
    for (int p = 0; p < kPhases; ++p) to[p] += job.to_step;
  }
}

template <typename E, typename T>
void split(const SplitRows<E, T>& job) {
  if constexpr (std::is_same_v<E, T>) {
    switch (job.phases) {
      case 1: return split_few_rows<1>(job);
      case 2: return split_few_rows<2>(job);
      case 3: return split_few_rows<3>(job);
      case 4: return split_few_rows<4>(job);
      default: break;
    }
  }
  constexpr std::int64_t kMost = 32;
  for (std::int64_t r = 0; r < job.rows; ++r) {
    const E* const row = job.from + r * job.from_step;
    if (job.phases > kMost) {
      for (std::int64_t i = 0; i < job.count; ++i) {
        job.to[i % job.phases][r * job.to_step + i / job.phases] = widen<E, T>(row[i]);
      }
      continue;
    }
    T* to[kMost];
    for (std::int64_t p = 0; p < job.phases; ++p) to[p] = job.to[p] + r * job.to_step;
    const T* from = nullptr;
    if constexpr (std::is_same_v<E, T>) {
      from = row;
    } else {
      for (std::int64_t i = 0; i < job.count; ++i) job.room[i] = widen<E, T>(row[i]);
      from = job.room;
    }
    split_row<T>(from, job.count, job.phases, to, job.room + job.count);
  }
}

// Rows that follow each other are put side by side first, so that whole lines are stored.
template <typename E, typename T>
void put_rows(const PutRows<E, T>& job) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  if (job.to_step != job.count || job.rows == 1) {
    for (std::int64_t r = 0; r < job.rows; ++r) {
      put_row(job.from + r * job.from_step, job.to + r * job.to_step, job.count, job.past_caches);
    }
    return;
  }
  for (std::int64_t r = 1; r < job.rows; ++r) {
    const T* const from = job.from + r * job.from_step;
    T* const to = job.from + r * job.count;
    for (std::int64_t i = 0; i < job.count; i += kLanes) hn::StoreU(hn::LoadU(tag, from + i), tag, to + i);
  }
  put_row(job.from, job.to, job.rows * job.count, job.past_caches);
}

template <typename T>
void sum_lanes(const T* sums, std::int64_t count, T* to) {
  const hn::ScalableTag<T> tag;
  for (std::int64_t i = 0; i < count; ++i)
    to[i] = hn::GetLane(hn::SumOfLanes(tag, hn::LoadU(tag, sums + i * kMostLanes)));
}

template <typename E, typename T>
DepthwiseGradientOps<E, T> make_ops() {
  return {cells<E, T>, rows<T>, split<E, T>, put_rows<E, T>, sum_lanes<T>};
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
