// Highway, as distributions have it, does not know these instructions: intrinsics, in functions that are compiled for
// them and called where the processor has them. Nothing else may be compiled so: no templates of other headers in
// between.
#include "cpu/bf16_products.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TCONV_BF16_PRODUCTS 1
#include <immintrin.h>
#endif

#include <utility>

namespace tconv::cpu {

#ifdef TCONV_BF16_PRODUCTS

namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kAhead = 8;  // steps that a panel is asked for ahead

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

using Pairs = __m512bh;

inline Pairs load_pairs(const float* from) { return (Pairs)_mm512_loadu_ps(from); }
inline Pairs broadcast_pair(const float* from) {  // anywhere: halves are aligned to two bytes
  int pair;
  __builtin_memcpy(&pair, from, sizeof pair);
  return (Pairs)_mm512_set1_epi32(pair);
}

template <int kRows, int kVectors>
void multiply_pairs(const MultiplyCells<float>& job) {
  const std::int64_t b_step = job.b_step;
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const float* const initial = job.accumulate ? job.c + job.c_places[m] : job.initial;
      sums[m][v] = initial == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(initial + v * kLanes);
    }
  }
  // What will be stored next, or loaded by the tile below.
  for (int m = 0; m < kRows; ++m) {
    const std::int64_t place = job.c_places[job.accumulate ? m + kRows : m];
    for (int v = 0; v < kVectors; ++v) __builtin_prefetch(job.c + place + v * kLanes);
  }
  constexpr std::int64_t kLine = 16;  // k
  const float* cells[kRows];
  for (std::int64_t p = 0; p < job.parts; ++p) {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) cells[m] = job.a + job.a_places[m] + job.offsets[p];
    const float* b = job.b + job.places[p] * b_step;
    for (std::int64_t k = 0; k < job.depth;) {
      for (int m = 0; m < kRows; ++m) __builtin_prefetch(job.a + job.a_places[m + kRows] + job.offsets[p] + k);
      const std::int64_t end = k + kLine < job.depth ? k + kLine : job.depth;
      for (; k < end; ++k) {
        Pairs columns[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) columns[v] = load_pairs(b + v * kLanes);
        if constexpr (kVectors > 2) {  // wide panels come from the L2 cache
          for (int v = 0; v < kVectors; ++v) __builtin_prefetch(b + kAhead * b_step + v * kLanes);
        }
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) {
          const Pairs row = broadcast_pair(cells[m] + k);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sums[m][v] = _mm512_dpbf16_ps(sums[m][v], row, columns[v]);
        }
        b += b_step;
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(job.c + job.c_places[m] + v * kLanes, sums[m][v]);
  }
}

void pair_neighbours_512(float* line, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 2 * kLanes) {
    const std::int64_t left = count - i;
    const auto mask_of = [](std::int64_t valid) {
      return static_cast<__mmask16>(valid >= kLanes ? 0xffff : valid <= 0 ? 0 : (1 << valid) - 1);
    };
    const __m512 low = _mm512_maskz_loadu_ps(mask_of(left), line + i);
    const __m512 high = _mm512_maskz_loadu_ps(mask_of(left - kLanes), line + i + kLanes);
    const Pairs pairs = _mm512_cvtne2ps_pbh(high, low);  // exact: they are bfloat16 numbers
    _mm512_mask_storeu_ps(line + i / 2, mask_of((left + 1) / 2), (__m512)pairs);
  }
}

void pair_rows_512(float* rows, std::int64_t width, std::int64_t count) {
  const __m512i high_half = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
  for (std::int64_t k = 0; k < count; k += 2) {
    for (std::int64_t n = 0; n < width; n += kLanes) {
      const __m512i first = _mm512_castps_si512(_mm512_loadu_ps(rows + k * width + n));
      const __m512i second =
          k + 1 < count ? _mm512_castps_si512(_mm512_loadu_ps(rows + (k + 1) * width + n)) : _mm512_setzero_si512();
      // All lanes of a masked shift: GCC 12 warns of the plain one.
      const __m512i low = _mm512_maskz_srli_epi32(0xffff, first, 16);
      const __m512i pairs = _mm512_or_si512(low, _mm512_and_si512(second, high_half));
      _mm512_storeu_ps(rows + k / 2 * width + n, _mm512_castsi512_ps(pairs));
    }
  }
}

#pragma GCC pop_options

template <int... kRow>
MathOps<float>::CellsTable make_table(std::integer_sequence<int, kRow...> /*rows*/) {
  MathOps<float>::CellsTable table{};
  ((table[kRow] = {multiply_pairs<kRow + 1, 1>, multiply_pairs<kRow + 1, 2>,
                   kRow < 9 ? multiply_pairs<kRow + 1, 3> : nullptr, kRow < 6 ? multiply_pairs<kRow + 1, 4> : nullptr}),
   ...);
  return table;
}

}  // namespace

bool has_bf16_products() {
  static const bool supported = __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512bw") != 0;
  return supported && math_ops<float>().lanes == kLanes;
}

const MathOps<float>::CellsTable& bf16_cells() {
  static const MathOps<float>::CellsTable table = make_table(std::make_integer_sequence<int, kMostCells>());
  return table;
}

void pair_neighbours(float* line, std::int64_t count) { pair_neighbours_512(line, count); }
void pair_rows(float* rows, std::int64_t width, std::int64_t count) { pair_rows_512(rows, width, count); }

#else

bool has_bf16_products() { return false; }
const MathOps<float>::CellsTable& bf16_cells() {
  static const MathOps<float>::CellsTable none{};
  return none;
}
void pair_neighbours(float* /*line*/, std::int64_t /*count*/) {}
void pair_rows(float* /*rows*/, std::int64_t /*width*/, std::int64_t /*count*/) {}

#endif

}  // namespace tconv::cpu
