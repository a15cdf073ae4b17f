#include "cpu/column_rows_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/column_rows_simd.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr bool kManyRegisters = HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64;

// Into the L2 cache: rows are read only after all of those before them have been.
HWY_INLINE void ask_for(const void* line) { __builtin_prefetch(line, 0, 2); }

// The first `count` elements, fewer than a vector has, and zeros, without reading on.
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_few(D tag, const T* from, std::int64_t count) {
  if constexpr (HWY_MAX_BYTES >= 64) {
    return hn::MaskedLoad(hn::FirstN(tag, static_cast<std::size_t>(count)), tag, from);
  } else {
    HWY_ALIGN T few[hn::MaxLanes(D())] = {};
    std::copy_n(from, count, few);
    return hn::Load(tag, few);
  }
}

// kK rows of w and the columns of kVectors vectors, of which `valid` exist, into kCells cells.
template <int kK, int kVectors, int kCells, class D, class V, typename T = hn::TFromD<D>>
HWY_INLINE void add_to_cells(D tag, const T* a, const V (&w)[kK][kVectors], T* d, std::int64_t d_step) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  V sums[kCells][kVectors];
#pragma GCC unroll 8
  for (int m = 0; m < kCells; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[m][v] = hn::LoadU(tag, d + m * d_step + v * lanes);
  }
#pragma GCC unroll 8
  for (int k = 0; k < kK; ++k) {
#pragma GCC unroll 8
    for (int m = 0; m < kCells; ++m) {
      const V factor = hn::Set(tag, a[m * kRowsTogether + k]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[m][v] = hn::MulAdd(factor, w[k][v], sums[m][v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kCells; ++m) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[m][v], tag, d + m * d_step + v * lanes);
  }
}

// The rows k to k + kK, in whole vectors or in what is left of one.
template <int kK, int kVectors, bool kWhole, typename T>
HWY_INLINE void add_some_rows(const AddRows<T>& job, std::int64_t k, std::int64_t n, bool asks) {
  constexpr int kCells = kManyRegisters ? 4 : 2;  // whose sums do not wait for each other
  const hn::ScalableTag<T> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  hn::Vec<decltype(tag)> w[kK][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kK; ++i) {
    const T* const row = job.w + (k + i) * job.w_step + n;
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      w[i][v] = kWhole ? hn::LoadU(tag, row + v * lanes) : load_few(tag, row, job.columns - n);
      if (asks) ask_for(row + kRowsTogether * job.w_step + v * lanes);
    }
  }
  const T* a = job.a + place_in_rows(k, 0, job.cells);
  T* d = job.d + n;
  std::int64_t m = 0;
  for (; m + kCells <= job.cells; m += kCells) {
    add_to_cells<kK, kVectors, kCells>(tag, a + m * kRowsTogether, w, d + m * job.d_step, job.d_step);
  }
  for (; m < job.cells; ++m)
    add_to_cells<kK, kVectors, 1>(tag, a + m * kRowsTogether, w, d + m * job.d_step, job.d_step);
}

template <int kK, typename T>
void add_rows_from(const AddRows<T>& job, std::int64_t k) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  const bool asks = k + kRowsTogether + kK <= job.depth;
  std::int64_t n = 0;
  for (; n + 2 * lanes <= job.columns; n += 2 * lanes) add_some_rows<kK, 2, true>(job, k, n, asks);
  for (; n + lanes <= job.columns; n += lanes) add_some_rows<kK, 1, true>(job, k, n, asks);
  if (n < job.columns) add_some_rows<kK, 1, false>(job, k, n, asks);
}

template <typename T>
void add_all_rows(const AddRows<T>& shared) {
  const AddRows<T> job = shared;  // which no store can change
  constexpr int kK = kManyRegisters ? 8 : 4;
  std::int64_t k = 0;
  for (; k + kK <= job.depth; k += kK) add_rows_from<kK>(job, k);
  for (; k < job.depth; ++k) add_rows_from<1>(job, k);
}

template <int kRows, int kCells, bool kAsks, typename T>
HWY_INLINE void dot_tile(const DotRows<T>& job, std::int64_t k, std::int64_t m) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<decltype(tag)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  V sums[kRows][kCells];
  T* const kept = job.sums + (k * job.cells + m) * lanes;
  const T* w[kRows];
  const T* g[kCells];
#pragma GCC unroll 4
  for (int c = 0; c < kCells; ++c) g[c] = job.g + (m + c) * job.g_step;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    w[r] = job.w + (k + r) * job.w_step;
#pragma GCC unroll 4
    for (int c = 0; c < kCells; ++c) sums[r][c] = hn::LoadU(tag, kept + (r * job.cells + c) * lanes);
  }
  const auto add = [&](std::int64_t n, const auto& load) HWY_ATTR {
    V cells[kCells];
#pragma GCC unroll 4
    for (int c = 0; c < kCells; ++c) cells[c] = hn::LoadU(tag, g[c] + n);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const V row = load(w[r] + n);
      if (kAsks) ask_for(w[r] + kRows * job.w_step + n);
#pragma GCC unroll 4
      for (int c = 0; c < kCells; ++c) sums[r][c] = hn::MulAdd(row, cells[c], sums[r][c]);
    }
  };
  std::int64_t n = 0;
  for (; n + lanes <= job.columns; n += lanes) add(n, [&](const T* from) HWY_ATTR { return hn::LoadU(tag, from); });
  if (n < job.columns) add(n, [&](const T* from) HWY_ATTR { return load_few(tag, from, job.columns - n); });
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kCells; ++c) hn::StoreU(sums[r][c], tag, kept + (r * job.cells + c) * lanes);
  }
}

// Some rows by all cells; the first of these ask for the next rows.
template <int kRows, typename T>
void dot_some_rows(const DotRows<T>& job, std::int64_t k) {
  constexpr std::int64_t kCells = kManyRegisters ? 4 : 2;
  const bool more = k + kRows + kRows <= job.rows;
  std::int64_t m = 0;
  for (; m + kCells <= job.cells; m += kCells) {
    if (more && m == 0) {
      dot_tile<kRows, kCells, true>(job, k, m);
    } else {
      dot_tile<kRows, kCells, false>(job, k, m);
    }
  }
  for (; m < job.cells; ++m) {
    if (more && m == 0) {
      dot_tile<kRows, 1, true>(job, k, m);
    } else {
      dot_tile<kRows, 1, false>(job, k, m);
    }
  }
}

template <typename T>
void dot_all_rows(const DotRows<T>& shared) {
  const DotRows<T> job = shared;
  constexpr int kRows = 4;
  std::int64_t k = 0;
  for (; k + kRows <= job.rows; k += kRows) dot_some_rows<kRows>(job, k);
  for (; k < job.rows; ++k) dot_some_rows<1>(job, k);
}

template <typename T>
void sum_all_lanes(const T* vectors, std::int64_t count, T* to) {
  const hn::ScalableTag<T> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  for (std::int64_t i = 0; i < count; ++i)
    to[i] = hn::GetLane(hn::SumOfLanes(tag, hn::LoadU(tag, vectors + i * lanes)));
}

void add_float_rows(const AddRows<float>& job) { add_all_rows(job); }
void add_double_rows(const AddRows<double>& job) { add_all_rows(job); }
void dot_float_rows(const DotRows<float>& job) { dot_all_rows(job); }
void dot_double_rows(const DotRows<double>& job) { dot_all_rows(job); }
void sum_float_lanes(const float* vectors, std::int64_t count, float* to) { sum_all_lanes(vectors, count, to); }
void sum_double_lanes(const double* vectors, std::int64_t count, double* to) { sum_all_lanes(vectors, count, to); }

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(add_float_rows);
HWY_EXPORT(add_double_rows);
HWY_EXPORT(dot_float_rows);
HWY_EXPORT(dot_double_rows);
HWY_EXPORT(sum_float_lanes);
HWY_EXPORT(sum_double_lanes);

template <>
void add_rows(const AddRows<float>& job) {
  HWY_DYNAMIC_DISPATCH(add_float_rows)(job);
}
template <>
void add_rows(const AddRows<double>& job) {
  HWY_DYNAMIC_DISPATCH(add_double_rows)(job);
}
template <>
void dot_rows(const DotRows<float>& job) {
  HWY_DYNAMIC_DISPATCH(dot_float_rows)(job);
}
template <>
void dot_rows(const DotRows<double>& job) {
  HWY_DYNAMIC_DISPATCH(dot_double_rows)(job);
}
template <>
void sum_lanes(const float* vectors, std::int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(sum_float_lanes)(vectors, count, to);
}
template <>
void sum_lanes(const double* vectors, std::int64_t count, double* to) {
  HWY_DYNAMIC_DISPATCH(sum_double_lanes)(vectors, count, to);
}

}  // namespace tconv::cpu
#endif
