// The products, and the choice of the instruction set.
#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <utility>

#include "cpu/families.h"
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Tall and narrow tiles, because what is broadcast streams through the cache at a fraction of the rate of the vectors:
// 14 x 2 accumulators where there are 32 registers, 6 x 2 where there are 16. Fewer rows get wider tiles.
constexpr bool kManyRegisters = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON;
constexpr int kTallRows = kManyRegisters ? 14 : 6;
constexpr int widest(int rows) {
  // Sums, the vectors of one step, and what is broadcast.
  const int registers = kManyRegisters ? 32 : 16;
  return std::clamp((registers - 1) / (rows + 1), 1, 4);
}
static_assert(kTallRows <= kMostRows);

template <typename T, int kTileRows, int kVectors, bool kBInPlace>
void multiply(const Multiply<T>& job) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<decltype(tag)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  T* const c = job.c;
  const std::int64_t c_step = job.c_step;
  V sums[kTileRows][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kTileRows; ++m) {
    for (int v = 0; v < kVectors; ++v) {
      sums[m][v] = job.accumulate ? hn::LoadU(tag, c + m * c_step + v * lanes) : hn::Zero(tag);
    }
  }
  const T* a = job.a;
  const T* b = job.b;
  const std::int64_t a_step = kBInPlace ? 1 : job.a_step;
  for (std::int64_t k = 0; k < job.depth; ++k) {
    const T* a_row = kBInPlace ? a : job.a + job.offsets[k];
    const T* b_row = kBInPlace ? job.b + job.offsets[k] : b;
    V columns[kVectors];
    for (int v = 0; v < kVectors; ++v) columns[v] = hn::LoadU(tag, b_row + v * lanes);
#pragma GCC unroll 16
    for (int m = 0; m < kTileRows; ++m) {
      const V row = hn::Set(tag, a_row[m * a_step]);
      for (int v = 0; v < kVectors; ++v) sums[m][v] = hn::MulAdd(row, columns[v], sums[m][v]);
    }
    a += kTileRows;
    b += job.b_step;
  }
#pragma GCC unroll 16
  for (int m = 0; m < kTileRows; ++m) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[m][v], tag, c + m * c_step + v * lanes);
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

// Blocks of lanes x lanes, put together from rows of four; each leaves as whole vectors.
template <typename T>
void transpose(const T* from, std::int64_t from_step, T* to, std::int64_t to_step, std::int64_t row_count,
               std::int64_t columns, const T* bias) {
  const hn::ScalableTag<T> tag;
  const hn::CappedTag<T, 4> block;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  const auto block_lanes = static_cast<std::int64_t>(hn::Lanes(block));
  constexpr std::int64_t kMost = HWY_MAX_BYTES / sizeof(T);
  T four[4 * kMost];
  T whole[kMost * kMost];
  const auto one = [&](std::int64_t row, std::int64_t c) {
    to[c * to_step + row] = from[row * from_step + c] + (bias == nullptr ? T{0} : bias[c]);
  };
  std::int64_t r = 0;
  for (; lanes >= 4 && r + lanes <= row_count; r += lanes) {
    std::int64_t c = 0;
    for (; c + lanes <= columns; c += lanes) {
      for (std::int64_t i = 0; i < lanes; i += 4) {
        const auto line = [&](std::int64_t j) { return hn::LoadU(tag, from + (r + i + j) * from_step + c); };
        hn::StoreInterleaved4(line(0), line(1), line(2), line(3), tag, four);
        for (std::int64_t j = 0; j < lanes; ++j) {
          for (std::int64_t part = 0; part < 4; part += block_lanes) {
            hn::StoreU(hn::LoadU(block, four + 4 * j + part), block, whole + j * lanes + i + part);
          }
        }
      }
      for (std::int64_t j = 0; j < lanes; ++j) {
        const auto values = hn::LoadU(tag, whole + j * lanes);
        hn::StoreU(bias == nullptr ? values : hn::Add(values, hn::Set(tag, bias[c + j])), tag,
                   to + (c + j) * to_step + r);
      }
    }
    for (; c < columns; ++c) {
      for (std::int64_t i = r; i < r + lanes; ++i) one(i, c);
    }
  }
  for (; r < row_count; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) one(r, c);
  }
}

template <typename T>
MathOps<T> make_math_ops() {
  MathOps<T> ops;
  ops.lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  ops.rows = kTallRows;
  ops.transpose = transpose<T>;
  const auto fill_row = [&ops]<int kRow>(std::integral_constant<int, kRow>) {
    constexpr int kWidest = widest(kRow + 1);
    ops.vectors[kRow] = kWidest;
    [&]<int... kVector>(std::integer_sequence<int, kVector...>) {
      ((ops.multiply_b_in_place[kRow][kVector] = multiply<T, kRow + 1, kVector + 1, true>), ...);
      ((ops.multiply_a_in_place[kRow][kVector] = multiply<T, kRow + 1, kVector + 1, false>), ...);
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
