// The products, and the choice of the instruction set.
#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/family.h"
#include "cpu/families.h"
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 14 x 2, 9 x 3 or 6 x 4 accumulators where there are 32 registers, 6 x 2 or 4 x 3 where there are 16.
constexpr bool kManyRegisters = HWY_ARCH_X86 ? HWY_TARGET <= HWY_AVX3 : HWY_TARGET == HWY_NEON;
constexpr int kTallRows = kManyRegisters ? 14 : 6;
constexpr int widest(int rows) {
  // Sums, the vectors of one step, and what is broadcast.
  const int registers = kManyRegisters ? 32 : 16;
  return std::clamp((registers - 1) / (rows + 1), 1, 4);
}
static_assert(kTallRows <= kMostRows);
constexpr std::int64_t kAhead = 8;  // steps that a panel is asked for ahead

// Sums of a register tile as they are in c, and the lines of the tile below, which nothing else foretells.
template <typename T, int kTileRows, int kVectors, class D>
HWY_INLINE void load_sums(D tag, const T* c, std::int64_t c_step, hn::Vec<D> (&sums)[kTileRows][kVectors]) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
#pragma GCC unroll 16
  for (int m = 0; m < kTileRows; ++m) {
    for (int v = 0; v < kVectors; ++v) sums[m][v] = hn::LoadU(tag, c + m * c_step + v * lanes);
  }
  for (int m = 0; m < kTileRows; ++m) {
    for (int v = 0; v < kVectors; ++v) hwy::Prefetch(c + (m + kTileRows) * c_step + v * lanes);
  }
}

// Sums that begin with the same row each, or with zeros.
template <typename T, int kTileRows, int kVectors, class D>
HWY_INLINE void begin_sums(D tag, const T* initial, hn::Vec<D> (&sums)[kTileRows][kVectors]) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {  // unrolled, so that sums stay in registers
    const auto first = initial == nullptr ? hn::Zero(tag) : hn::LoadU(tag, initial + v * lanes);
#pragma GCC unroll 16
    for (int m = 0; m < kTileRows; ++m) sums[m][v] = first;
  }
}

// What columns of kGroups interleaved groups are multiplied by, where a vector has all of them.
template <int kGroups, class D, typename T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> broadcast_groups(D tag, const T* from) {
  if constexpr (kGroups == 1) {
    return hn::Set(tag, *from);
  } else if constexpr (kGroups * sizeof(T) == 16) {
    return hn::LoadDup128(tag, from);
  } else {
    static_assert(kGroups * sizeof(T) == 8);
    std::uint64_t pair = 0;
    std::memcpy(&pair, from, sizeof pair);
    return hn::BitCast(tag, hn::Set(hn::Repartition<std::uint64_t, D>(), pair));
  }
}

// sums[v] += what `from` holds for the groups of the columns, of which the first is column `first` of them all.
template <int kGroups, int kVectors, class D, typename T = hn::TFromD<D>>
HWY_INLINE void add_row(D tag, const T* from, std::int64_t first, const hn::Vec<D> (&columns)[kVectors],
                        hn::Vec<D> (&sums)[kVectors]) {
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  if constexpr (kLanes >= kGroups) {
    const auto row = broadcast_groups<kGroups>(tag, from);
    for (int v = 0; v < kVectors; ++v) sums[v] = hn::MulAdd(row, columns[v], sums[v]);
  } else {
    for (int v = 0; v < kVectors; ++v) {
      const auto row = hn::LoadU(tag, from + (first + v * kLanes) % kGroups);
      sums[v] = hn::MulAdd(row, columns[v], sums[v]);
    }
  }
}

template <typename T, int kTileRows, int kVectors, bool kInPlace, int kGroups = 1>
void multiply(const Multiply<T>& job) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<decltype(tag)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  T* const c = job.c;
  const std::int64_t c_step = job.c_step;
  V sums[kTileRows][kVectors];
  if (job.accumulate) {
    load_sums<T, kTileRows, kVectors>(tag, c, c_step, sums);
  } else {
    begin_sums<T, kTileRows, kVectors>(tag, static_cast<const T*>(nullptr), sums);
  }
  const T* a = job.a;
  const T* b = job.b;
  const auto step = [&](std::int64_t k) HWY_ATTR {
    const T* const b_row = kInPlace ? job.b + job.offsets[k] : b;
    V columns[kVectors];
    for (int v = 0; v < kVectors; ++v) columns[v] = hn::LoadU(tag, b_row + v * lanes);
#pragma GCC unroll 16
    for (int m = 0; m < kTileRows; ++m) add_row<kGroups>(tag, a + m * kGroups, 0, columns, sums[m]);
    a += job.a_step;
    b += job.b_step;
  };
  std::int64_t k = 0;
  if constexpr (kTileRows > 9) {  // two steps at a time are faster for tall tiles, and slower for wide ones
    for (; k + 2 <= job.depth; k += 2) {
      step(k);
      step(k + 1);
    }
  }
  for (; k < job.depth; ++k) step(k);
#pragma GCC unroll 16
  for (int m = 0; m < kTileRows; ++m) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[m][v], tag, c + m * c_step + v * lanes);
  }
}

template <typename T, int kTileRows, int kVectors, int kGroups>
void multiply_cells(const MultiplyCells<T>& job) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<decltype(tag)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  const std::int64_t b_step = job.b_step;
  V sums[kTileRows][kVectors];
  if (job.accumulate) {
#pragma GCC unroll 16
    for (int m = 0; m < kTileRows; ++m) {
      for (int v = 0; v < kVectors; ++v) sums[m][v] = hn::LoadU(tag, job.c + job.c_places[m] + v * lanes);
    }
  } else {
    begin_sums<T, kTileRows, kVectors>(tag, job.initial, sums);
  }
  // What will be stored next, or loaded by the tile below: nothing else foretells it.
  for (int m = 0; m < kTileRows && !job.past_caches; ++m) {
    const std::int64_t place = job.c_places[job.accumulate ? m + kTileRows : m];
    for (int v = 0; v < kVectors; ++v) hwy::Prefetch(job.c + place + v * lanes);
  }
  constexpr std::int64_t kLine = 64 / sizeof(T) / kGroups;  // k
  const T* cells[kTileRows];
  for (std::int64_t p = 0; p < job.parts; ++p) {
#pragma GCC unroll 16
    for (int m = 0; m < kTileRows; ++m) cells[m] = job.a + job.a_places[m] + job.offsets[p];
    const T* b = job.b + job.places[p] * b_step;
    for (std::int64_t k = 0; k < job.depth;) {
      for (int m = 0; m < kTileRows; ++m) {  // the same of the tile below
        hwy::Prefetch(job.a + job.a_places[m + kTileRows] + job.offsets[p] + k * kGroups);
      }
      for (const std::int64_t end = std::min(k + kLine, job.depth); k < end; ++k) {
        V columns[kVectors];
        for (int v = 0; v < kVectors; ++v) columns[v] = hn::LoadU(tag, b + v * lanes);
        if constexpr (kVectors > 2) {  // wide panels come from the L2 cache
          for (int v = 0; v < kVectors; ++v) hwy::Prefetch(b + kAhead * b_step + v * lanes);
        }
#pragma GCC unroll 16
        for (int m = 0; m < kTileRows; ++m) {
          add_row<kGroups>(tag, cells[m] + k * kGroups, job.first_column, columns, sums[m]);
        }
        b += b_step;
      }
    }
  }
  if (job.past_caches) {
#pragma GCC unroll 16
    for (int m = 0; m < kTileRows; ++m) {
      for (int v = 0; v < kVectors; ++v) hn::Stream(sums[m][v], tag, job.c + job.c_places[m] + v * lanes);
    }
    return;
  }
#pragma GCC unroll 16
  for (int m = 0; m < kTileRows; ++m) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[m][v], tag, job.c + job.c_places[m] + v * lanes);
  }
}

template <typename T, int kTileRows, int kVectors>
void multiply_lines(const MultiplyLines<T>& job) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<decltype(tag)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  V sums[kTileRows][kVectors];
  load_sums<T, kTileRows, kVectors>(tag, job.c, job.c_step, sums);
  for (std::int64_t p = 0; p < job.parts; ++p) {
    const T* a = job.a + job.places[p] * job.a_step;
    const T* b = job.b + job.places[p] * job.b_step;
    for (std::int64_t k = 0; k < job.depth; ++k) {
      V columns[kVectors];
      for (int v = 0; v < kVectors; ++v) columns[v] = hn::LoadU(tag, b + v * lanes);
#pragma GCC unroll 16
      for (int m = 0; m < kTileRows; ++m) {
        const V row = hn::Set(tag, a[m]);
        for (int v = 0; v < kVectors; ++v) sums[m][v] = hn::MulAdd(row, columns[v], sums[m][v]);
      }
      a += job.a_step;
      b += job.b_step;
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kTileRows; ++m) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[m][v], tag, job.c + m * job.c_step + v * lanes);
  }
}

template <typename T, int kTileRows, int kVectors>
void multiply_taps(const MultiplyTaps<T>& job) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<decltype(tag)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  const std::int64_t a_step = job.a_step;
  const std::int64_t b_step = job.b_step;
  V sums[kTileRows][kVectors];
  load_sums<T, kTileRows, kVectors>(tag, job.c, job.c_step, sums);
  for (std::int64_t p = 0; p < job.parts; ++p) {
    const T* rows[kTileRows];
#pragma GCC unroll 16
    for (int m = 0; m < kTileRows; ++m) rows[m] = job.a + job.a_rows[m] + job.a_places[p];
    const T* b = job.b + job.b_places[p];
    std::int64_t k = 0;  // along the depth, of which an expanded tensor repeats one element
    for (std::int64_t i = 0; i < job.depth; ++i, k += a_step) {
      V columns[kVectors];
      for (int v = 0; v < kVectors; ++v) columns[v] = hn::LoadU(tag, b + v * lanes);
#pragma GCC unroll 16
      for (int m = 0; m < kTileRows; ++m) {
        const V row = hn::Set(tag, rows[m][k]);
        for (int v = 0; v < kVectors; ++v) sums[m][v] = hn::MulAdd(row, columns[v], sums[m][v]);
      }
      b += b_step;
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kTileRows; ++m) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[m][v], tag, job.c + m * job.c_step + v * lanes);
  }
}

template <typename T>
void gather_rows(const T* from, const std::int64_t* offsets, std::int64_t depth, std::int64_t step, T* packed) {
  const hn::ScalableTag<T> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t m = 0; m < step; m += lanes) {
      hn::StoreU(hn::LoadU(tag, from + offsets[k] + m), tag, packed + k * step + m);
    }
  }
}

template <typename T, int kTileRows, int kColumns>
void dot(const Dot<T>& job) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<decltype(tag)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  V sums[kTileRows][kColumns];
  const T* b[kColumns];
  for (int n = 0; n < kColumns; ++n) {
    b[n] = job.b + job.offsets[n];
    for (int m = 0; m < kTileRows; ++m) sums[m][n] = hn::Zero(tag);
  }
  for (std::int64_t p = 0; p < job.length; p += lanes) {
    V columns[kColumns];
    for (int n = 0; n < kColumns; ++n) columns[n] = hn::LoadU(tag, b[n] + p);
    for (int m = 0; m < kTileRows; ++m) {
      const V row = hn::LoadU(tag, job.a + m * job.a_step + p);
      for (int n = 0; n < kColumns; ++n) sums[m][n] = hn::MulAdd(row, columns[n], sums[m][n]);
    }
  }
  for (int m = 0; m < kTileRows; ++m) {
    for (int n = 0; n < kColumns; ++n) {
      job.c[m * job.c_step + n] += hn::GetLane(hn::SumOfLanes(tag, sums[m][n]));
    }
  }
}

template <typename T>
MathOps<T> make_math_ops() {
  MathOps<T> ops;
  ops.lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  ops.rows = kTallRows;
  ops.gather_rows = gather_rows<T>;
  const auto fill_row = [&ops]<int kRow>(std::integral_constant<int, kRow>) {
    constexpr int kWidest = widest(kRow + 1);
    ops.vectors[kRow] = kWidest;
    [&]<int... kVector>(std::integer_sequence<int, kVector...>) {
      ((ops.multiply_packed[kRow][kVector] = multiply<T, kRow + 1, kVector + 1, false>), ...);
      ((ops.multiply_in_place[kRow][kVector] = multiply<T, kRow + 1, kVector + 1, true>), ...);
      if constexpr (kRow < kMostCells) {
        ((ops.multiply_cells[0][kRow][kVector] = multiply_cells<T, kRow + 1, kVector + 1, 1>), ...);
        ((ops.multiply_taps[kRow][kVector] = multiply_taps<T, kRow + 1, kVector + 1>), ...);
        ((ops.multiply_cells[1][kRow][kVector] = multiply_cells<T, kRow + 1, kVector + 1, 2>), ...);
        if constexpr (kMostInterleaved<T> == 4) {
          ((ops.multiply_cells[2][kRow][kVector] = multiply_cells<T, kRow + 1, kVector + 1, 4>), ...);
        }
      }
      ((ops.multiply_pairs[kRow][kVector] = multiply<T, kRow + 1, kVector + 1, false, 2>), ...);
      if constexpr (kMostInterleaved<T> == 4) {
        ((ops.multiply_fours[kRow][kVector] = multiply<T, kRow + 1, kVector + 1, false, 4>), ...);
      }
      ((ops.multiply_lines[kRow][kVector] = multiply_lines<T, kRow + 1, kVector + 1>), ...);
    }(std::make_integer_sequence<int, kWidest>());
  };
  const auto fill_dot_row = [&ops]<int kRow>(std::integral_constant<int, kRow>) {
    ops.dot[kRow] = {dot<T, kRow + 1, 1>, dot<T, kRow + 1, 2>, dot<T, kRow + 1, 3>, dot<T, kRow + 1, 4>};
  };
  [&]<int... kRow>(std::integer_sequence<int, kRow...>) {
    (fill_row(std::integral_constant<int, kRow>()), ...);
  }(std::make_integer_sequence<int, kTallRows>());
  [&]<int... kRow>(std::integer_sequence<int, kRow...>) {
    (fill_dot_row(std::integral_constant<int, kRow>()), ...);
  }(std::make_integer_sequence<int, kDotRows>());
  return ops;
}

const char* target() { return hwy::TargetName(HWY_TARGET); }

const MathOps<float>& float_math() {
  static const MathOps<float> ops = make_math_ops<float>();
  return ops;
}
const MathOps<double>& double_math() {
  static const MathOps<double> ops = make_math_ops<double>();
  return ops;
}
}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(target);
HWY_EXPORT(float_math);
HWY_EXPORT(double_math);

std::string target_name() { return HWY_DYNAMIC_DISPATCH(target)(); }

std::vector<std::string> target_names() {
  std::vector<std::string> names;
  for (const std::int64_t each : hwy::SupportedAndGeneratedTargets()) names.emplace_back(hwy::TargetName(each));
  return names;
}

void use_target(const std::string& name) {
  hwy::SetSupportedTargetsForTest(0);
  for (const std::int64_t each : hwy::SupportedAndGeneratedTargets()) {
    if (hwy::TargetName(each) == name) hwy::SetSupportedTargetsForTest(each);
  }
  hwy::GetChosenTarget().DeInit();
  forget_plans();  // which suit an instruction set
}

template <>
const MathOps<float>& math_ops<float>() {
  return HWY_DYNAMIC_DISPATCH(float_math)();
}
template <>
const MathOps<double>& math_ops<double>() {
  return HWY_DYNAMIC_DISPATCH(double_math)();
}
}  // namespace tconv::cpu
#endif
