// The 16-bit element types and their conversions: to nearest, ties to even; NaN stays NaN; subnormals are exact.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace tconv::cpu {

struct Float16 {
  std::uint16_t bits;
};

struct BFloat16 {
  std::uint16_t bits;
};

inline float to_float(Float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000U) << 16U;
  const std::uint32_t magnitude = value.bits & 0x7fffU;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24F);
  const std::uint32_t normal = (magnitude << 13U) + (112U << 23U);
  const std::uint32_t special = (magnitude << 13U) + (224U << 23U);
  const std::uint32_t finite = magnitude < 0x400U ? subnormal : normal;
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00U ? special : finite));
}

inline float to_float(BFloat16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16U); }

inline Float16 to_float16(float value) {
  const std::uint32_t all = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (all >> 16U) & 0x8000U;
  const std::uint32_t magnitude = all & 0x7fffffffU;
  // Adding 0.5 lets the float adder round at 2^-24, the spacing of float16's subnormals.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - (126U << 23U);
  const std::uint32_t normal = (magnitude + 0xfffU + ((magnitude >> 13U) & 1U) - (112U << 23U)) >> 13U;
  const std::uint32_t finite = magnitude < (113U << 23U) ? subnormal : normal;
  const std::uint32_t limited = magnitude >= 0x477ff000U ? 0x7c00U : finite;  // 65520 rounds to infinity
  return {static_cast<std::uint16_t>(sign | (magnitude > 0x7f800000U ? 0x7e00U : limited))};
}

inline BFloat16 to_bfloat16(float value) {
  const std::uint32_t all = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (all + 0x7fffU + ((all >> 16U) & 1U)) >> 16U;
  const std::uint32_t quiet = (all >> 16U) | 0x40U;
  return {static_cast<std::uint16_t>((all & 0x7fffffffU) > 0x7f800000U ? quiet : rounded)};
}

// The 16-bit float with `mantissa_bits` and smallest normal exponent `lowest` that is nearest to a double.
inline std::uint16_t round_to_16_bits(double value, int mantissa_bits, int lowest) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000U : 0U;
  const std::uint16_t infinity = static_cast<std::uint16_t>((1U << 15U) - (1U << static_cast<unsigned>(mantissa_bits)));
  if (std::isnan(value))
    return sign | infinity | static_cast<std::uint16_t>(1U << static_cast<unsigned>(mantissa_bits - 1));
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(value)) return sign | infinity;
  const int exponent = std::max(std::ilogb(magnitude), lowest);
  const double steps = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
  // A mantissa that rounds up to the next power of two carries into the exponent by itself.
  const double code = std::ldexp(exponent - lowest, mantissa_bits) + steps;
  return sign | (code >= infinity ? infinity : static_cast<std::uint16_t>(code));
}

// The element type T seen as arithmetic: load exactly, store with one rounding.
template <typename T>
struct Element {
  static double load(T value) { return value; }
  static T store(double value) { return static_cast<T>(value); }
};

template <>
struct Element<Float16> {
  static double load(Float16 value) { return to_float(value); }
  static Float16 store(double value) { return {round_to_16_bits(value, 10, -14)}; }
};

template <>
struct Element<BFloat16> {
  static double load(BFloat16 value) { return to_float(value); }
  static BFloat16 store(double value) { return {round_to_16_bits(value, 7, -126)}; }
};

}  // namespace tconv::cpu
