// SSSE3 adds nothing to SSE4 here, and the scalable instruction sets allow no arrays of vectors.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <utility>

#include "cpu/families.h"
#include "cpu/scalar.h"
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 6 x 4 accumulators where there are 32 registers, 6 x 2 where there are 16.
constexpr int kMostVectors = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON ? 4 : 2;

template <typename T, int kTileRows, int kVectors, bool kBInPlace>
void multiply(const Multiply<T>& job) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<decltype(tag)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  T* const c = job.c;
  const std::int64_t c_step = job.c_step;
  V sums[kTileRows][kVectors];
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
    for (int m = 0; m < kTileRows; ++m) {
      const V row = hn::Set(tag, a_row[m * a_step]);
      for (int v = 0; v < kVectors; ++v) sums[m][v] = hn::MulAdd(row, columns[v], sums[m][v]);
    }
    a += kTileRows;
    b += job.b_step;
  }
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

template <typename T>
MathOps<T> make_math_ops() {
  MathOps<T> ops;
  ops.lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  ops.most_vectors = kMostVectors;
  const auto fill_row = [&ops]<int kRow>(std::integral_constant<int, kRow>) {
    ops.multiply_b_in_place[kRow] = {multiply<T, kRow + 1, 1, true>, multiply<T, kRow + 1, 2, true>,
                                     multiply<T, kRow + 1, kMostVectors, true>};
    ops.multiply_a_in_place[kRow] = {multiply<T, kRow + 1, 1, false>, multiply<T, kRow + 1, 2, false>,
                                     multiply<T, kRow + 1, kMostVectors, false>};
  };
  const auto fill_dot_row = [&ops]<int kRow>(std::integral_constant<int, kRow>) {
    ops.dot[kRow] = {dot<T, kRow + 1, 1>, dot<T, kRow + 1, 2>, dot<T, kRow + 1, 3>, dot<T, kRow + 1, 4>};
  };
  [&]<int... kRow>(std::integer_sequence<int, kRow...>) {
    (fill_row(std::integral_constant<int, kRow>()), ...);
  }(std::make_integer_sequence<int, kRows>());
  [&]<int... kRow>(std::integer_sequence<int, kRow...>) {
    (fill_dot_row(std::integral_constant<int, kRow>()), ...);
  }(std::make_integer_sequence<int, kDotRows>());
  return ops;
}

template <typename E, typename T>
HWY_INLINE T widen(E value) {
  if constexpr (std::is_same_v<E, T>) {
    return value;
  } else {
    return to_float(value);
  }
}

template <typename E, typename T>
HWY_INLINE E narrow(T value) {
  if constexpr (std::is_same_v<E, T>) {
    return value;
  } else if constexpr (std::is_same_v<E, Float16>) {
    return to_float16(value);
  } else {
    return to_bfloat16(value);
  }
}

// A step that the compiler knows becomes loads and shuffles.
template <std::int64_t kStep, typename E, typename T>
HWY_INLINE void load_every(const E* from, T* HWY_RESTRICT to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = widen<E, T>(from[i * kStep]);
}

template <typename E, typename T>
void load(const E* from, std::int64_t from_step, T* HWY_RESTRICT to, std::int64_t to_step, std::int64_t count) {
  if (from_step == 1 && to_step == 1) {
    load_every<1>(from, to, count);
  } else if (from_step == 2 && to_step == 1) {
    load_every<2>(from, to, count);
  } else if (from_step == 4 && to_step == 1) {
    load_every<4>(from, to, count);
  } else if (to_step == 1) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = widen<E, T>(from[i * from_step]);
  } else if (from_step == 1) {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_step] = widen<E, T>(from[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_step] = widen<E, T>(from[i * from_step]);
  }
}

template <typename E, typename T>
void store(const T* HWY_RESTRICT from, std::int64_t from_step, E* to, std::int64_t to_step, std::int64_t count,
           T bias) {
  if (from_step == 1 && to_step == 1) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = narrow<E, T>(from[i] + bias);
  } else if (from_step == 1) {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_step] = narrow<E, T>(from[i] + bias);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_step] = narrow<E, T>(from[i * from_step] + bias);
  }
}

template <std::int64_t kPhases, typename E, typename T>
HWY_INLINE void interleave_dense(const Interleave<E, T>& job) {
  const T* HWY_RESTRICT from = job.from;
  E* HWY_RESTRICT to = job.to;
  const T bias = job.bias;
  for (std::int64_t i = 0; i < job.count; ++i) {
    for (std::int64_t p = 0; p < kPhases; ++p) to[i * kPhases + p] = narrow<E, T>(from[p * job.phase_size + i] + bias);
  }
}

template <typename E, typename T>
void interleave(const Interleave<E, T>& job) {
  const bool dense = job.to_step == 1 && job.cell_step == 1 && job.period == job.phases;
  if (dense && job.phases == 2) return interleave_dense<2>(job);
  if (dense && job.phases == 4) return interleave_dense<4>(job);
  for (std::int64_t i = 0; i < job.count; ++i) {
    const T* const from = job.from + i * job.cell_step;
    E* const to = job.to + i * job.period;
    for (std::int64_t p = 0; p < job.phases; ++p) {
      to[p * job.to_step] = narrow<E, T>(from[p * job.phase_size] + job.bias);
    }
  }
}

template <typename E, typename T>
void scatter(const T* from, const std::int64_t* from_places, E* to, const std::int64_t* to_places, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[to_places[i]] = narrow<E, T>(from[from_places[i]]);
}

template <typename E, typename T>
void pack_weights(const PackWeights<E, T>& job) {
  T* HWY_RESTRICT packed = job.packed;
  for (std::int64_t c = 0; c < job.channels; ++c) {
    const E* channel = job.source + c * job.channel_step;
    for (std::int64_t t = 0; t < job.tap_count; ++t) {
      const E* tap = channel + job.taps[t];
      for (std::int64_t m = 0; m < job.valid; ++m) packed[m] = widen<E, T>(tap[m * job.target_step]);
      for (std::int64_t m = job.valid; m < job.width; ++m) packed[m] = 0;
      packed += job.width;
    }
  }
}

template <typename E, typename T>
void add(const E* from, std::int64_t step, double* HWY_RESTRICT sums, std::int64_t count) {
  if (step == 1) {
    for (std::int64_t i = 0; i < count; ++i) sums[i] += widen<E, T>(from[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) sums[i] += widen<E, T>(from[i * step]);
  }
}

// Sixteen partial sums in double, the same for every instruction set.
template <typename E, typename T>
double sum(const E* from, std::int64_t step, std::int64_t count) {
  constexpr std::int64_t kParts = 16;
  double parts[kParts] = {};
  std::int64_t i = 0;
  if (step == 1) {
    for (; i + kParts <= count; i += kParts) {
      for (std::int64_t j = 0; j < kParts; ++j) parts[j] += widen<E, T>(from[i + j]);
    }
  }
  for (; i < count; ++i) parts[i % kParts] += widen<E, T>(from[i * step]);
  double total = 0;
  for (const double part : parts) total += part;
  return total;
}

template <typename E, typename T>
ElementOps<E, T> make_element_ops() {
  return {load<E, T>, store<E, T>, interleave<E, T>, scatter<E, T>, pack_weights<E, T>, add<E, T>, sum<E, T>};
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
const ElementOps<float, float>& float_elements() {
  static const auto ops = make_element_ops<float, float>();
  return ops;
}
const ElementOps<double, double>& double_elements() {
  static const auto ops = make_element_ops<double, double>();
  return ops;
}
const ElementOps<Float16, float>& float16_elements() {
  static const auto ops = make_element_ops<Float16, float>();
  return ops;
}
const ElementOps<BFloat16, float>& bfloat16_elements() {
  static const auto ops = make_element_ops<BFloat16, float>();
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
HWY_EXPORT(float_elements);
HWY_EXPORT(double_elements);
HWY_EXPORT(float16_elements);
HWY_EXPORT(bfloat16_elements);

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
template <>
const ElementOps<float, float>& element_ops<float, float>() {
  return HWY_DYNAMIC_DISPATCH(float_elements)();
}
template <>
const ElementOps<double, double>& element_ops<double, double>() {
  return HWY_DYNAMIC_DISPATCH(double_elements)();
}
template <>
const ElementOps<Float16, float>& element_ops<Float16, float>() {
  return HWY_DYNAMIC_DISPATCH(float16_elements)();
}
template <>
const ElementOps<BFloat16, float>& element_ops<BFloat16, float>() {
  return HWY_DYNAMIC_DISPATCH(bfloat16_elements)();
}

}  // namespace tconv::cpu
#endif
