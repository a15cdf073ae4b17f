#include "cpu/depthwise_rows_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/depthwise_rows_simd.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/elements-inl.h"
#include "cpu/row_phases-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr RowPattern kAnyPattern;

// kVectors vectors of cells from cell j on. What several phases read is loaded once: most loads cross a cache line.
template <int kPhases, int kVectors, RowPattern kPattern, bool kPastCaches, typename T>
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
  constexpr int kSteps = std::max(kPattern.steps, 1);
  for (const RowStep* step = job.steps; step != job.last;) {
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s, ++step) {
      V cells[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) cells[v] = hn::LoadU(tag, from + step->offset + v * kLanes);
#pragma GCC unroll 4
      for (int p = 0; p < kPhases; ++p) {
        if (kPattern.steps > 0 ? !kPattern.reads(s, p) : step->places[p] < 0) continue;
        const V weight = hn::Set(tag, job.weights[step->places[p]]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[v][p] = hn::MulAdd(cells[v], weight, sums[v][p]);
      }
    }
  }
  T* const to = job.to + j * kPhases;
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) put_phases<kPhases, kPastCaches>(tag, sums[v], to + v * (kPhases * kLanes));
}

// The same for a vector of cells of several rows, whose weights stay in registers: kSteps of them.
template <int kPhases, int kSteps, RowPattern kPattern, bool kPastCaches, typename T>
HWY_INLINE void weigh_column(const WeighLine<T>& job, std::int64_t j) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<decltype(tag)>;
  V weights[kSteps][kPhases];
  std::int64_t offsets[kSteps];
  bool reads[kSteps][kPhases];
#pragma GCC unroll 8
  for (int s = 0; s < kSteps; ++s) {
    offsets[s] = job.steps[s].offset;
#pragma GCC unroll 4
    for (int p = 0; p < kPhases; ++p) {
      const std::int32_t place = job.steps[s].places[p];
      reads[s][p] = place >= 0;
      weights[s][p] = hn::Set(tag, place >= 0 ? job.weights[place] : T{0});
    }
  }
  const V bias = hn::Set(tag, job.bias);
  const T* from = job.from + j;
  T* to = job.to + j * kPhases;
  const std::int64_t from_step = job.from_step;
  const std::int64_t to_step = job.to_step;
  for (std::int64_t row = job.rows; row > 0; --row, from += from_step, to += to_step) {
    V sums[kPhases];
#pragma GCC unroll 4
    for (int p = 0; p < kPhases; ++p) sums[p] = bias;
#pragma GCC unroll 8
    for (int s = 0; s < kSteps; ++s) {
      const V cells = hn::LoadU(tag, from + offsets[s]);
#pragma GCC unroll 4
      for (int p = 0; p < kPhases; ++p) {
        if (kPattern.steps > 0 ? kPattern.reads(s, p) : reads[s][p])
          sums[p] = hn::MulAdd(cells, weights[s][p], sums[p]);
      }
    }
    put_phases<kPhases, kPastCaches>(tag, sums, to);
  }
}

template <int kPhases, RowPattern kPattern, bool kPastCaches, typename T>
void weigh_cells(WeighLine<T> job) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr int kTogether = kPhases > 2 ? 2 : 4;
  for (std::int64_t row = 0; row < job.rows; ++row, job.from += job.from_step, job.to += job.to_step) {
    std::int64_t j = 0;
    for (; j + kTogether * kLanes <= job.cells; j += kTogether * kLanes) {
      weigh_piece<kPhases, kTogether, kPattern, kPastCaches>(job, j);
    }
    // The last vector goes beyond the cells in any case.
    if (kTogether > 2 && j + 3 * kLanes < job.cells) {
      weigh_piece<kPhases, kTogether, kPattern, kPastCaches>(job, j);
      continue;
    }
    for (; kTogether > 1 && j + kLanes < job.cells; j += 2 * kLanes) {
      weigh_piece<kPhases, 2, kPattern, kPastCaches>(job, j);
    }
    if (j < job.cells) weigh_piece<kPhases, 1, kPattern, kPastCaches>(job, j);
  }
}

template <int kPhases, int kSteps, RowPattern kPattern, bool kPastCaches, typename T>
void weigh_columns(const WeighLine<T>& job) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  for (std::int64_t j = 0; j < job.cells; j += kLanes) weigh_column<kPhases, kSteps, kPattern, kPastCaches>(job, j);
}

template <int kPhases, RowPattern kPattern, bool kPastCaches, typename T>
void weigh_rows(const WeighLine<T>& job) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr std::int64_t kFewestRows = 4;   // for which weights are worth loading ahead
  constexpr std::int64_t kMostColumns = 2;  // of vectors: results of many come in an order that memory dislikes
  if (job.rows >= kFewestRows && kPhases != 3 && job.cells <= kMostColumns * kLanes) {
    switch (job.last - job.steps) {
      case 1: return weigh_columns<kPhases, 1, kPattern, kPastCaches>(job);
      case 2: return weigh_columns<kPhases, 2, kPattern, kPastCaches>(job);
      case 3: return weigh_columns<kPhases, 3, kPattern, kPastCaches>(job);
      case 4: return weigh_columns<kPhases, 4, kPattern, kPastCaches>(job);
      case 6: return weigh_columns<kPhases, 6, kPattern, kPastCaches>(job);
      default: break;
    }
  }
  weigh_cells<kPhases, kPattern, kPastCaches>(job);
}

template <int kPhases, bool kPastCaches, typename T>
void weigh_rows(const WeighLine<T>& job) {
  if constexpr (kPhases == 2) {
    switch (job.pattern) {
      case 0: return weigh_rows<2, kRowPatterns[0], kPastCaches>(job);
      case 1: return weigh_rows<2, kRowPatterns[1], kPastCaches>(job);
      case 2: return weigh_rows<2, kRowPatterns[2], kPastCaches>(job);
      case 3: return weigh_rows<2, kRowPatterns[3], kPastCaches>(job);
      case 4: return weigh_rows<2, kRowPatterns[4], kPastCaches>(job);
      default: break;
    }
  }
  weigh_rows<kPhases, kAnyPattern, kPastCaches>(job);
}

template <int kPhases, typename T>
HWY_INLINE void weigh_phases(const WeighLine<T>& job) {
  job.past_caches ? weigh_rows<kPhases, true>(job) : weigh_rows<kPhases, false>(job);
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
void copy_rows(const E* from, std::int64_t from_step, T* to, std::int64_t to_step, std::int64_t rows,
               std::int64_t count) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  for (std::int64_t row = 0; row < rows; ++row, from += from_step, to += to_step) {
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) hn::StoreU(load_widened(tag, from + i), tag, to + i);
    if (i < count) store_elements<false>(tag, load_elements<false>(tag, from + i, count - i), to + i, count - i, false);
  }
}

template <typename E, typename T>
void put_elements(const T* from, E* to, std::int64_t count, bool past_caches) {
  if constexpr (std::is_same_v<E, T>) {
    put_row<E, T>(from, to, count, past_caches);
  } else {
    const hn::ScalableTag<T> tag;
    constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store_narrowed(tag, hn::LoadU(tag, from + i), to + i);
    for (; i < count; ++i) to[i] = narrow<E, T>(from[i]);
  }
}

template <typename E, typename T>
DepthwiseRowOps<E, T> make_row_ops() {
  return {static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>())), weigh_line<T>, put_elements<E, T>,
          copy_rows<E, T>};
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
