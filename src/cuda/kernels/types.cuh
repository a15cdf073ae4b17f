// Element types: how they lie in memory and what sums are kept in. The device code includes no header, so conversions
// are instructions and bit operations.
#pragma once

struct F64 {
  using Storage = double;
  using Sum = double;
  static __device__ __forceinline__ double load(double value) { return value; }
  static __device__ __forceinline__ double store(double value) { return value; }
};

struct F32 {
  using Storage = float;
  using Sum = float;
  static __device__ __forceinline__ float load(float value) { return value; }
  static __device__ __forceinline__ float store(float value) { return value; }
};

struct F16 {
  using Storage = unsigned short;
  using Sum = float;
  static __device__ __forceinline__ float load(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  static __device__ __forceinline__ unsigned short store(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
};

struct BF16 {
  using Storage = unsigned short;
  using Sum = float;
  static __device__ __forceinline__ float load(unsigned short bits) {
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
  }
  // To nearest, ties to even, in integers: the same on every architecture (cvt.rn.bf16 exists from sm_80 on).
  static __device__ __forceinline__ unsigned short store(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<unsigned short>((bits >> 16) | 0x40u);
    return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
};
