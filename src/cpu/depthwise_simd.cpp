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

// A result: past the caches if wanted.
template <bool kPastCaches, typename E, class D>
HWY_INLINE void put_vector(D tag, hn::Vec<D> vector, E* to) {
  if constexpr (kPastCaches && std::is_same_v<E, hn::TFromD<D>>) {
    hn::Stream(vector, tag, to);
  } else {
    store_vector(tag, vector, to);
  }
}

// kVectors vectors of channels of one cell.
template <int kVectors, bool kPastCaches, typename E, typename T>
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
  for (int v = 0; v < kVectors; ++v) put_vector<kPastCaches>(tag, sums[v], to + c + v * kLanes);
}

// The same of kCells cells, for which weights are loaded once.
template <int kCells, int kVectors, bool kPastCaches, typename E, typename T>
HWY_INLINE void weigh_cell_vectors(const WeighCells<E, T>& job, const E* from, E* to, std::int64_t c) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  hn::Vec<decltype(tag)> sums[kCells][kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kCells; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = job.bias == nullptr ? hn::Zero(tag) : load_vector(tag, job.bias + c + v * kLanes);
    }
  }
  for (std::int64_t t = 0; t < job.taps; ++t) {
    const E* const x = from + job.offsets[t] + c;
    const T* const w = job.weights + job.places[t] + c;
    hn::Vec<decltype(tag)> weights[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) weights[v] = hn::LoadU(tag, w + v * kLanes);
#pragma GCC unroll 4
    for (int i = 0; i < kCells; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums[i][v] = hn::MulAdd(load_vector(tag, x + i * job.from_step + v * kLanes), weights[v], sums[i][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kCells; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      put_vector<kPastCaches>(tag, sums[i][v], to + i * job.to_step + c + v * kLanes);
    }
  }
}

// The channels from c on, fewer than a vector has, of one cell.
template <typename T>
HWY_INLINE void weigh_rest(const WeighCells<T, T>& job, const T* from, T* to, std::int64_t c) {
  const hn::ScalableTag<T> tag;
  const auto there = hn::FirstN(tag, static_cast<std::size_t>(job.channels - c));
  auto sum = job.bias == nullptr ? hn::Zero(tag) : hn::MaskedLoad(there, tag, job.bias + c);
  for (std::int64_t t = 0; t < job.taps; ++t) {
    const auto x = hn::MaskedLoad(there, tag, from + job.offsets[t] + c);
    sum = hn::MulAdd(x, hn::MaskedLoad(there, tag, job.weights + job.places[t] + c), sum);
  }
  hn::BlendedStore(sum, there, tag, to + c);
}

// kVectors vectors of channels of all cells, whose kTaps weights stay in registers; of the last channels, fewer than a
// vector has (kPartial), one.
template <int kTaps, int kVectors, bool kPastCaches, bool kPartial, typename E, typename T>
HWY_INLINE void weigh_block(const WeighCells<E, T>& job, std::int64_t c) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const auto there = hn::FirstN(tag, static_cast<std::size_t>(kPartial ? job.channels - c : kLanes));
  const auto load = [&](const auto* at) HWY_ATTR {
    if constexpr (kPartial) {
      return hn::MaskedLoad(there, tag, at);
    } else {
      return load_vector(tag, at);
    }
  };
  hn::Vec<decltype(tag)> weights[kTaps][kVectors];
  const E* from[kTaps];
  for (int t = 0; t < kTaps; ++t) {
    from[t] = job.from + job.offsets[t] + c;
    for (int v = 0; v < kVectors; ++v) weights[t][v] = load(job.weights + job.places[t] + c + v * kLanes);
  }
  hn::Vec<decltype(tag)> first[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    first[v] = job.bias == nullptr ? hn::Zero(tag) : load(job.bias + c + v * kLanes);
  }
  E* to = job.to + c;
  for (std::int64_t j = 0; j < job.cells; ++j, to += job.to_step) {
    for (int v = 0; v < kVectors; ++v) {
      auto sum = first[v];
      for (int t = 0; t < kTaps; ++t) {
        sum = hn::MulAdd(load(from[t] + j * job.from_step + v * kLanes), weights[t][v], sum);
      }
      if constexpr (kPartial) {
        hn::BlendedStore(sum, there, tag, to);
      } else {
        put_vector<kPastCaches>(tag, sum, to + v * kLanes);
      }
    }
  }
}

// Channels [0, what it returns) of all cells.
template <int kTaps, bool kPastCaches, typename E, typename T>
std::int64_t weigh_blocks(const WeighCells<E, T>& job) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  // Weights take half of the registers, or what one vector of channels needs.
  constexpr int kMost = HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64 ? 16 : 8;
  constexpr int kVectors = kTaps * 4 <= kMost ? 4 : 2;
  std::int64_t c = 0;
  for (; c + kVectors * kLanes <= job.channels; c += kVectors * kLanes) {
    weigh_block<kTaps, kVectors, kPastCaches, false>(job, c);
  }
  for (; c + kLanes <= job.channels; c += kLanes) weigh_block<kTaps, 1, kPastCaches, false>(job, c);
  if constexpr (std::is_same_v<E, T> && kMaskedStores) {
    if (c < job.channels) weigh_block<kTaps, 1, false, true>(job, c);
    return job.channels;
  }
  return c;
}

// The same for the numbers of taps that phases have most often. Of more taps there would be one vector of channels at a
// time, whose lines lie apart: gradients of kernel 4 took 1.2 times as long.
template <bool kPastCaches, typename E, typename T>
std::int64_t weigh_common(const WeighCells<E, T>& job) {
  constexpr std::int64_t kFewestCells = 4;  // for which weights are worth loading ahead
  if (job.cells < kFewestCells) return 0;
  switch (job.taps) {
    case 1: return weigh_blocks<1, kPastCaches>(job);
    case 2: return weigh_blocks<2, kPastCaches>(job);
    case 4: return weigh_blocks<4, kPastCaches>(job);
    default: return 0;
  }
}

template <bool kPastCaches, typename E, typename T>
void weigh_cells(const WeighCells<E, T>& job) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr int kTogether = 4;
  const std::int64_t done = weigh_common<kPastCaches>(job);
  if (done == job.channels) return;
  constexpr int kCells = HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64 ? 4 : 2;
  std::int64_t several = 0;  // cells whose whole vectors are done
  for (; several + kCells <= job.cells; several += kCells) {
    const E* const from = job.from + several * job.from_step;
    E* const to = job.to + several * job.to_step;
    std::int64_t c = done;
    for (; c + 2 * kLanes <= job.channels; c += 2 * kLanes)
      weigh_cell_vectors<kCells, 2, kPastCaches>(job, from, to, c);
    for (; c + kLanes <= job.channels; c += kLanes) weigh_cell_vectors<kCells, 1, kPastCaches>(job, from, to, c);
  }
  for (std::int64_t j = 0; j < job.cells; ++j) {
    const E* const from = job.from + j * job.from_step;
    E* const to = job.to + j * job.to_step;
    std::int64_t c = j < several ? job.channels / kLanes * kLanes : done;
    for (; c + kTogether * kLanes <= job.channels; c += kTogether * kLanes) {
      weigh_vectors<kTogether, kPastCaches>(job, from, to, c);
    }
    for (; c + kLanes <= job.channels; c += kLanes) weigh_vectors<1, kPastCaches>(job, from, to, c);
    if constexpr (std::is_same_v<E, T> && kMaskedStores) {
      if (c < job.channels) weigh_rest(job, from, to, c);
      continue;
    }
    for (; c < job.channels; ++c) {
      T sum = job.bias == nullptr ? T{0} : widen<E, T>(job.bias[c]);
      for (std::int64_t t = 0; t < job.taps; ++t) {
        sum += widen<E, T>(from[job.offsets[t] + c]) * job.weights[job.places[t] + c];
      }
      to[c] = narrow<E, T>(sum);
    }
  }
}

template <typename E, typename T>
void weigh(const WeighCells<E, T>& job) {
  job.past_caches ? weigh_cells<true>(job) : weigh_cells<false>(job);
}

template <typename E, typename T>
DepthwiseOps<E, T> make_depthwise_ops() {
  return {weigh<E, T>};
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
