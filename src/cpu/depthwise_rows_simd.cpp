#include "cpu/depthwise_rows_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/depthwise_rows_simd.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <type_traits>

#include "cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Vectors of kPhases phases side by side.
template <int kPhases, class D>
HWY_INLINE void store_phases(D tag, const hn::Vec<D> (&phases)[kPhases], hn::TFromD<D>* to) {
  if constexpr (kPhases == 1) hn::StoreU(phases[0], tag, to);
  if constexpr (kPhases == 2) hn::StoreInterleaved2(phases[0], phases[1], tag, to);
  if constexpr (kPhases == 3) hn::StoreInterleaved3(phases[0], phases[1], phases[2], tag, to);
  if constexpr (kPhases == 4) hn::StoreInterleaved4(phases[0], phases[1], phases[2], phases[3], tag, to);
}

// kVectors vectors of cells from cell j on. What several phases read is loaded once: most loads cross a cache line.
template <int kPhases, int kVectors, bool kPastCaches, typename T>
HWY_INLINE void weigh_piece(const WeighLine<T>& job, std::int64_t j) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  using V = hn::Vec<decltype(tag)>;
  V sums[kVectors][kPhases];
  const V bias = hn::Set(tag, job.bias);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
    for (int p = 0; p < kPhases; ++p) sums[v][p] = bias;
  }
  const T* const from = job.from + j;
  for (const RowStep* step = job.steps; step != job.last; ++step) {
    V cells[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) cells[v] = hn::LoadU(tag, from + step->offset + v * kLanes);
#pragma GCC unroll 4
    for (int p = 0; p < kPhases; ++p) {
      if (step->places[p] < 0) continue;
      const V weight = hn::Set(tag, job.weights[step->places[p]]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[v][p] = hn::MulAdd(cells[v], weight, sums[v][p]);
    }
  }
  T* const to = job.to + j * kPhases;
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    if constexpr (kPastCaches && kPhases == 1) {
      hn::Stream(sums[v][0], tag, to + v * kLanes);
    } else if constexpr (kPastCaches) {
      HWY_ALIGN T together[kPhases * kLanes];
      store_phases<kPhases>(tag, sums[v], together);
#pragma GCC unroll 4
      for (int p = 0; p < kPhases; ++p) {
        hn::Stream(hn::Load(tag, together + p * kLanes), tag, to + (v * kPhases + p) * kLanes);
      }
    } else {
      store_phases<kPhases>(tag, sums[v], to + v * kPhases * kLanes);
    }
  }
}

template <int kPhases, bool kPastCaches, typename T>
HWY_INLINE void weigh_cells(const WeighLine<T>& job) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr int kTogether = kPhases > 2 ? 2 : 4;
  std::int64_t j = 0;
  for (; j + kTogether * kLanes <= job.cells; j += kTogether * kLanes) {
    weigh_piece<kPhases, kTogether, kPastCaches>(job, j);
  }
  for (; j < job.cells; j += kLanes) weigh_piece<kPhases, 1, kPastCaches>(job, j);
}

template <int kPhases, typename T>
HWY_INLINE void weigh_phases(const WeighLine<T>& job) {
  job.past_caches ? weigh_cells<kPhases, true>(job) : weigh_cells<kPhases, false>(job);
}

template <typename T>
void weigh_line(const WeighLine<T>& job) {
  switch (job.phases) {
    case 1: return weigh_phases<1>(job);
    case 2: return weigh_phases<2>(job);
    case 3: return weigh_phases<3>(job);
    default: return weigh_phases<4>(job);
  }
}

template <typename E, typename T>
void put_row(const T* from, E* to, std::int64_t count, bool past_caches) {
  std::int64_t i = 0;
  if constexpr (std::is_same_v<E, T>) {
    const hn::ScalableTag<T> tag;
    constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
    if (past_caches) {
      for (; i < count && reinterpret_cast<std::uintptr_t>(to + i) % 64 != 0; ++i) to[i] = from[i];
      for (; i + 64 / static_cast<std::int64_t>(sizeof(T)) <= count; i += 64 / sizeof(T)) {
        for (std::int64_t v = 0; v < 64 / static_cast<std::int64_t>(sizeof(T)); v += kLanes) {
          hn::Stream(hn::LoadU(tag, from + i + v), tag, to + i + v);
        }
      }
    }
  }
  for (; i < count; ++i) to[i] = narrow<E, T>(from[i]);
}

template <typename E, typename T>
DepthwiseRowOps<E, T> make_row_ops() {
  return {static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>())), weigh_line<T>, put_row<E, T>};
}

const DepthwiseRowOps<float, float>& float_rows() {
  static const auto ops = make_row_ops<float, float>();
  return ops;
}
const DepthwiseRowOps<double, double>& double_rows() {
  static const auto ops = make_row_ops<double, double>();
  return ops;
}
const DepthwiseRowOps<Float16, float>& float16_rows() {
  static const auto ops = make_row_ops<Float16, float>();
  return ops;
}
const DepthwiseRowOps<BFloat16, float>& bfloat16_rows() {
  static const auto ops = make_row_ops<BFloat16, float>();
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(float_rows);
HWY_EXPORT(double_rows);
HWY_EXPORT(float16_rows);
HWY_EXPORT(bfloat16_rows);

template <>
const DepthwiseRowOps<float, float>& depthwise_row_ops<float, float>() {
  return HWY_DYNAMIC_DISPATCH(float_rows)();
}
template <>
const DepthwiseRowOps<double, double>& depthwise_row_ops<double, double>() {
  return HWY_DYNAMIC_DISPATCH(double_rows)();
}
template <>
const DepthwiseRowOps<Float16, float>& depthwise_row_ops<Float16, float>() {
  return HWY_DYNAMIC_DISPATCH(float16_rows)();
}
template <>
const DepthwiseRowOps<BFloat16, float>& depthwise_row_ops<BFloat16, float>() {
  return HWY_DYNAMIC_DISPATCH(bfloat16_rows)();
}

}  // namespace tconv::cpu
#endif
