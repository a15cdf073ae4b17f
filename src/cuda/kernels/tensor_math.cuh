// Products of fragments as the shape asks for them: mma.sync with 16 rows, and 8 columns out of a pair of 8.
#pragma once

#include "ptx.cuh"
#include "tile_params.cuh"

// Four 8x8 matrices of 16-bit pairs or of TF32 values.
template <TileMath kMath>
struct Fragment {
  unsigned word[4];

  Fragment() = default;
  __device__ __forceinline__ explicit Fragment(const unsigned (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = words[i];
  }
};

// fp32 out of TF32: x = big + small, and the product of the two small parts is below fp32's last bit.
template <>
struct Fragment<TileMath::fp32x3> {
  unsigned big[4];
  unsigned small[4];

  Fragment() = default;
  __device__ __forceinline__ explicit Fragment(const unsigned (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      big[i] = ptx::round_to_tf32(__uint_as_float(words[i]));
      small[i] = ptx::round_to_tf32(__uint_as_float(words[i]) - __uint_as_float(big[i]));
      if ((big[i] & 0x7f800000u) == 0x7f800000u) {  // infinite, NaN, or rounded up to infinity
        big[i] = words[i];
        small[i] = 0;
      }
    }
  }
};

// Adds a times the columns of b whose words are 2 side and 2 side + 1.
template <TileMath kMath>
__device__ __forceinline__ void multiply_operands(float (&d)[4], const Fragment<kMath>& a, const Fragment<kMath>& b,
                                                  int side) {
  const int first = 2 * side;
  if constexpr (kMath == TileMath::f16) {
    ptx::multiply_f16(d, a.word, b.word[first], b.word[first + 1]);
  } else if constexpr (kMath == TileMath::bf16) {
    ptx::multiply_bf16(d, a.word, b.word[first], b.word[first + 1]);
  } else if constexpr (kMath == TileMath::tf32) {
    ptx::multiply_tf32(d, a.word, b.word[first], b.word[first + 1]);
  } else {
    // The tensor cores cut the bits that they shift out; sums of one depth are therefore kept short and added in fp32.
    float part[4] = {};
    ptx::multiply_tf32(part, a.small, b.big[first], b.big[first + 1]);
    ptx::multiply_tf32(part, a.big, b.small[first], b.small[first + 1]);
    ptx::multiply_tf32(part, a.big, b.big[first], b.big[first + 1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] += part[i];
  }
}
