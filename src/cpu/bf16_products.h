// Products of bfloat16 numbers, two at a time, for processors that have them (AVX512_BF16). Factors are pairs: a word
// of 32 bits, moved about as if it were a float, holds what two neighbouring channels have.
#pragma once

#include <cstdint>

#include "cpu/simd.h"

namespace tconv::cpu {

// Whether this processor has them, and the chosen instruction set may use them.
bool has_bf16_products();

// multiply_cells of pairs: a and b hold words, k counts words, c is float. Subnormal factors count as zero.
const MathOps<float>::CellsTable& bf16_cells();

// Turns `count` floats that are bfloat16 numbers into pairs of neighbours, where they are: to[i] = (from[2 i], from[2 i
// + 1]), an odd one beside zero.
void pair_neighbours(float* line, std::int64_t count);

// Rows of `width` floats, whole vectors, into rows of pairs, where they are: row k = rows 2 k and 2 k + 1.
void pair_rows(float* rows, std::int64_t width, std::int64_t count);

}  // namespace tconv::cpu
