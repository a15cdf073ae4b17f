// fp32 out of TF32: x = big + small, each with eleven bits. Of a product of two such sums, that of the small parts is
// below fp32's last bit.
#pragma once

#include "ptx.cuh"

// The small part keeps its low bits: the tensor cores cut them, half a bit of fp32, down as often as up.
struct SplitWord {
  unsigned big;
  unsigned small;

  __device__ __forceinline__ explicit SplitWord(unsigned bits) {
    big = ptx::round_to_tf32(__uint_as_float(bits));
    small = __float_as_uint(__uint_as_float(bits) - __uint_as_float(big));
    if ((big & 0x7f800000u) == 0x7f800000u) {  // infinite, NaN, or rounded up to infinity
      big = bits;
      small = 0;
    }
  }
};

struct SplitCell {
  Cell big;
  Cell small;

  __device__ __forceinline__ explicit SplitCell(const Cell& cell) {
    float rests = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = __uint_as_float(cell.word[i]);
      big.word[i] = ptx::round_to_tf32(value);
      const float rest = value - __uint_as_float(big.word[i]);
      small.word[i] = ptx::round_to_tf32(rest);
      rests += rest;
    }
    if (rests - rests == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((big.word[i] & 0x7f800000u) != 0x7f800000u) continue;  // infinite, NaN, or rounded up to infinity
      big.word[i] = cell.word[i];
      small.word[i] = 0;
    }
  }
};
