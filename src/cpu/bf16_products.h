// Products of bfloat16 numbers, two at a time, for processors that have them (AVX512_BF16). Factors are pairs: a word
// of 32 bits, moved about as if it were a float, holds what two neighbouring channels have.
#pragma once

#include <array>
#include <cstdint>

#include "cpu/scalar.h"
#include "cpu/simd.h"

namespace tconv::cpu {

// Whether this processor has them, and the chosen instruction set may use them.
bool has_bf16_products();

// multiply_cells of pairs: a and b hold words, k counts words, c is float. Subnormal factors, and sums that are
// rounded, count as zero.
// Tiles of one vector are taller than others: only then do they have as many sums as two products a cycle want.
using PairsTable = std::array<std::array<void (*)(const MultiplyCells<float>&), kMostVectors>, kMostCellsAlone>;
const PairsTable& bf16_cells();

// Rows of `width` floats, whole vectors, into rows of pairs, where they are: row k = rows 2 k and 2 k + 1.
void pair_rows(float* rows, std::int64_t width, std::int64_t count);

// A register tile of c[m][n] += sum over k of a(m, k) b(k, n), where all factors are words.
struct MultiplyWords {
  const float* a = nullptr;
  std::int64_t a_step = 0;
  const float* b = nullptr;
  const std::int64_t* offsets = nullptr;  // b(k, n) = b[offsets[k] + n]
  std::int64_t depth = 0;                 // k
  float* c = nullptr;
  std::int64_t c_step = 0;  // from m to m + 1
};

inline constexpr std::int64_t kMostWordRows = 16;  // beside one vector; kMostCells beside more
using WordsTable = std::array<std::array<void (*)(const MultiplyWords&), kMostVectors>, kMostWordRows>;
const WordsTable& bf16_lines();    // a(m, k) = a[m a_step + k]
const WordsTable& bf16_columns();  // a(m, k) = a[k a_step + m]

// multiply_taps of words: a, b and their places count words, c is float.
using WordTapsTable = std::array<std::array<void (*)(const MultiplyTaps<float>&), kMostVectors>, kMostWordRows>;
const WordTapsTable& bf16_taps();

// The first numbers of words become second ones, beside zero.
void put_numbers_second(float* words, std::int64_t count);

// Words of numbers in memory: to[i] = (first[i], second[i]), zeros for what is not there (nullptr).
void pair_cells(const BFloat16* first, const BFloat16* second, std::int64_t count, float* to);

// Runs of `count` numbers, every `step` elements one, that begin at the places: the words of each follow those of the
// one before, to[i] = (number 2 i, number 2 i + 1), an odd one beside zero.
void pair_runs(const BFloat16* from, const std::int64_t* places, std::int64_t runs, std::int64_t step,
               std::int64_t count, float* to);

// Lines of `count` numbers of up to 16 channels become rows of 16 words, row i with the numbers i and i + 1 of each
// channel, and zeros beyond: the rows 0, 2, 4 ... at `even`, the rows -1, 1, 3 ... at `odd`. Row -1 is put beside what
// is there: a line may end there.
inline constexpr std::int64_t kPairedChannels = 16;
void pair_lines(const BFloat16* from, std::int64_t line_step, std::int64_t channels, std::int64_t count, float* even,
                float* odd, std::int64_t to_step);

// Lines of `count` numbers of up to 32 channels become rows of words: word i of row p has the numbers p of the channels
// 2 i and 2 i + 1, an odd one beside zero.
inline constexpr std::int64_t kTransposedChannels = 32;
void pair_channels(const BFloat16* from, std::int64_t line_step, std::int64_t channels, std::int64_t count, float* to,
                   std::int64_t to_step);

}  // namespace tconv::cpu
