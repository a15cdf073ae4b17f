// Products of fragments as the shape asks for them.
#pragma once

#include "ptx.cuh"
#include "tile_params.cuh"

template <TileMath kMath>
__device__ __forceinline__ void multiply_fragments(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (kMath == TileMath::f16) {
    ptx::multiply_f16(d, a, b0, b1);
  } else if constexpr (kMath == TileMath::bf16) {
    ptx::multiply_bf16(d, a, b0, b1);
  } else {
    ptx::multiply_tf32(d, a, b0, b1);
  }
}

// fp32 out of TF32: x = big + small, and the product of the two small parts is below fp32's last bit.
struct SplitFragment {
  unsigned big[4];
  unsigned small[4];

  __device__ __forceinline__ explicit SplitFragment(const unsigned (&bits)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      big[i] = ptx::round_to_tf32(__uint_as_float(bits[i]));
      small[i] = ptx::round_to_tf32(__uint_as_float(bits[i]) - __uint_as_float(big[i]));
      if ((big[i] & 0x7f800000u) == 0x7f800000u) {  // infinite, NaN, or rounded up to infinity
        big[i] = bits[i];
        small[i] = 0;
      }
    }
  }
};

// Adds a times two columns' fragments of b (words 2 side and 2 side + 1). The tensor cores cut the bits that they shift
// out; sums of one depth are therefore kept short and added in fp32.
__device__ __forceinline__ void multiply_split(float (&d)[4], const SplitFragment& a, const SplitFragment& b,
                                               int side) {
  float part[4] = {};
  ptx::multiply_tf32(part, a.small, b.big[2 * side], b.big[2 * side + 1]);
  ptx::multiply_tf32(part, a.big, b.small[2 * side], b.small[2 * side + 1]);
  ptx::multiply_tf32(part, a.big, b.big[2 * side], b.big[2 * side + 1]);
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] += part[i];
}
