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

inline Pairs broadcast_first(const float* from) {  // beside zero
  std::uint16_t number;
  __builtin_memcpy(&number, from, sizeof number);
  return (Pairs)_mm512_set1_epi32(number);
}

inline __mmask16 first_words(std::int64_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}

// The first `columns` numbers.
template <int kVectors>
inline void store_some_rounded(const __m512 (&sums)[kVectors], BFloat16* to, std::int64_t columns) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const auto pairs = (__m256i)_mm512_cvtneps_pbh(sums[v]);
    _mm256_mask_storeu_epi16(to + v * kLanes, first_words(columns - v * kLanes), pairs);
  }
}

template <int kVectors>
inline void store_rounded(const __m512 (&sums)[kVectors], BFloat16* to, bool past_caches) {
#pragma GCC unroll 4
  for (int v = 0; v + 1 < kVectors; v += 2) {
    const auto pairs = (__m512i)_mm512_cvtne2ps_pbh(sums[v + 1], sums[v]);
    if (past_caches) {
      _mm512_stream_si512((__m512i*)(to + v * kLanes), pairs);
    } else {
      _mm512_storeu_si512(to + v * kLanes, pairs);
    }
  }
  if constexpr (kVectors % 2 == 1) {
    const auto pairs = (__m256i)_mm512_cvtneps_pbh(sums[kVectors - 1]);
    _mm256_storeu_si256((__m256i*)(to + (kVectors - 1) * kLanes), pairs);
  }
}

// Products of some neighbouring k, or of the first number of one.
template <int kSteps, bool kTorn = false, int kRows, int kVectors, typename Cell>
__attribute__((always_inline)) inline void add_products(__m512 (&sums)[kRows][kVectors], const Cell& cell_at,
                                                        const float* b, std::int64_t b_step) {
  Pairs columns[kSteps][kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) columns[i][v] = load_pairs(b + i * b_step + v * kLanes);
  }
  if constexpr (kVectors > 2) {  // wide panels come from the L2 cache
    for (int v = 0; v < kVectors; ++v) __builtin_prefetch(b + kAhead * b_step + v * kLanes);
  }
#pragma GCC unroll 32
  for (int m = 0; m < kRows; ++m) {
    const float* const cell = cell_at(m);
#pragma GCC unroll 4
    for (int i = 0; i < kSteps; ++i) {
      const Pairs row = kTorn ? broadcast_first(cell + i) : broadcast_pair(cell + i);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[m][v] = _mm512_dpbf16_ps(sums[m][v], row, columns[i][v]);
    }
  }
}

template <int kRows, int kVectors>
void multiply_pairs(const MultiplyCells<float>& job) {
  const std::int64_t b_step = job.b_step;
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 32
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const float* const initial = job.accumulate ? job.c + job.c_places[m] : job.initial;
      sums[m][v] = initial == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(initial + v * kLanes);
    }
  }
  // What will be stored next, or loaded by the tile below.
  for (int m = 0; m < kRows && job.rounded == nullptr; ++m) {
    const std::int64_t place = job.c_places[job.accumulate ? m + kRows : m];
    for (int v = 0; v < kVectors; ++v) __builtin_prefetch(job.c + place + v * kLanes);
  }
  for (int m = 0; m < kRows && job.rounded != nullptr && !job.past_caches; ++m) {
    for (int v = 0; v < kVectors; v += 2) {
      __builtin_prefetch(job.rounded + job.c_places[m] + job.first_column + v * kLanes, 1);
    }
  }
  constexpr std::int64_t kLine = 16;  // k
  // Tall tiles have more addresses than the processor has registers: they are loaded for several k.
  constexpr bool kTall = kRows > kMostCells;
  constexpr int kSteps = kTall ? 4 : 1;
  // Beside one vector, rows of cells that a tap further on are one cell further on are asked for once. Wider panels
  // drive them out of the L1 cache.
  const std::int64_t depth = job.torn ? job.depth - 1 : job.depth;
  const std::int64_t step = kRows > 1 ? job.a_places[1] - job.a_places[0] : 0;
  for (std::int64_t p = 0; p < job.parts; ++p) {
    const std::int64_t moved = p == 0 ? 0 : job.offsets[p] - job.offsets[p - 1];
    const int first_asked = kTall && moved != 0 && moved == step ? kRows - 1 : 0;
    const int last_asked = kTall && moved != 0 && moved == -step ? 1 : kRows;
    const float* const part = job.a + job.offsets[p];
    const float* cells[kTall ? 1 : kRows];
    if constexpr (!kTall) {
#pragma GCC unroll 32
      for (int m = 0; m < kRows; ++m) cells[m] = part + job.a_places[m];
    }
    const float* b = job.b + job.places[p] * b_step;
    std::int64_t k = 0;
    const auto cell_at = [&](int m) __attribute__((always_inline)) {
      return kTall ? part + k + job.a_places[m] : cells[kTall ? 0 : m] + k;
    };
    while (k < depth) {
      for (int m = first_asked; m < last_asked; ++m) __builtin_prefetch(part + job.a_places[m + kRows] + k);
      const std::int64_t end = k + kLine < depth ? k + kLine : depth;
      if constexpr (kSteps > 1) {
        for (; k + kSteps <= end; k += kSteps, b += kSteps * b_step) add_products<kSteps>(sums, cell_at, b, b_step);
      }
      for (; k < end; ++k, b += b_step) add_products<1>(sums, cell_at, b, b_step);
    }
    if (job.torn) add_products<1, true>(sums, cell_at, b, b_step);
  }
  if (const std::int64_t columns = job.columns - job.first_column;
      job.rounded != nullptr && columns < kVectors * kLanes) {
#pragma GCC unroll 32
    for (int m = 0; m < kRows; ++m) {
      store_some_rounded<kVectors>(sums[m], job.rounded + job.c_places[m] + job.first_column, columns);
    }
    return;
  }
  if (job.rounded != nullptr) {
#pragma GCC unroll 32
    for (int m = 0; m < kRows; ++m) {
      store_rounded<kVectors>(sums[m], job.rounded + job.c_places[m] + job.first_column, job.past_caches);
    }
    return;
  }
#pragma GCC unroll 32
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(job.c + job.c_places[m] + v * kLanes, sums[m][v]);
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

inline __mmask32 first_numbers(std::int64_t count) {
  return static_cast<__mmask32>(count >= 2 * kLanes ? ~0U : count <= 0 ? 0U : (1U << count) - 1U);
}
inline __m512i count_from_zero() {
  alignas(64) static constexpr std::uint16_t kCount[2 * kLanes] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                                                   11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                                                   22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
  return _mm512_load_si512(kCount);
}

template <int kRows, int kVectors, bool kLines>
void multiply_words(const MultiplyWords& job) {
  float* const c = job.c;
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[m][v] = _mm512_loadu_ps(c + m * job.c_step + v * kLanes);
  }
  for (int m = 0; m < kRows; ++m) {  // what the tile below begins with
    for (int v = 0; v < kVectors; ++v) __builtin_prefetch(c + (m + kRows) * job.c_step + v * kLanes);
  }
  const float* rows[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) rows[m] = job.a + (kLines ? m * job.a_step : m);
  const std::int64_t depth = job.depth;
  std::int64_t k = 0;
  if constexpr (kLines && kRows > kMostCells) {  // more addresses than registers: they are loaded for several k
    constexpr int kSteps = 4;
    for (; k + kSteps <= depth; k += kSteps) {
      Pairs columns[kSteps];
#pragma GCC unroll 4
      for (int i = 0; i < kSteps; ++i) columns[i] = load_pairs(job.b + job.offsets[k + i]);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        const float* const row = rows[m] + k;
#pragma GCC unroll 4
        for (int i = 0; i < kSteps; ++i) {
          sums[m][0] = _mm512_dpbf16_ps(sums[m][0], broadcast_pair(row + i), columns[i]);
        }
      }
    }
  }
  for (; k < depth; ++k) {
    const float* const b = job.b + job.offsets[k];
    Pairs columns[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) columns[v] = load_pairs(b + v * kLanes);
    const std::int64_t place = kLines ? k : k * job.a_step;
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const Pairs row = broadcast_pair((kLines ? rows[m] : job.a + m) + place);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[m][v] = _mm512_dpbf16_ps(sums[m][v], row, columns[v]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(c + m * job.c_step + v * kLanes, sums[m][v]);
  }
}

template <int kRows, int kVectors>
void multiply_word_taps(const MultiplyTaps<float>& job) {
  const std::int64_t a_step = job.a_step;
  const std::int64_t b_step = job.b_step;
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[m][v] = _mm512_loadu_ps(job.c + m * job.c_step + v * kLanes);
  }
  for (std::int64_t p = 0; p < job.parts; ++p) {
    const float* rows[kRows];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) rows[m] = job.a + job.a_rows[m] + job.a_places[p];
    const float* b = job.b + job.b_places[p];
    std::int64_t k = 0;
    for (std::int64_t i = 0; i < job.depth; ++i, k += a_step, b += b_step) {
      Pairs columns[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) columns[v] = load_pairs(b + v * kLanes);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        const Pairs row = broadcast_pair(rows[m] + k);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[m][v] = _mm512_dpbf16_ps(sums[m][v], row, columns[v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(job.c + m * job.c_step + v * kLanes, sums[m][v]);
  }
}

void put_numbers_second_512(float* words, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first_words(count - i);
    const __m512i pairs = _mm512_maskz_loadu_epi32(mask, words + i);
    _mm512_mask_storeu_epi32(words + i, mask, _mm512_maskz_slli_epi32(0xffff, pairs, 16));
  }
}

// Numbers of two vectors in turn: those of the first halves, and of the second.
struct Alternating {
  __m512i low;
  __m512i high;
};
inline Alternating alternating() {
  // Numbers of the second vector begin at 32.
  const __m512i words = _mm512_and_si512(count_from_zero(), _mm512_set1_epi32(0xffff));  // 0 0, 2 0, 4 0 ...
  const __m512i low =
      _mm512_or_si512(_mm512_maskz_srli_epi32(0xffff, words, 1),
                      _mm512_maskz_slli_epi32(0xffff, _mm512_add_epi32(words, _mm512_set1_epi32(64)), 15));
  return {low, _mm512_add_epi16(low, _mm512_set1_epi16(kLanes))};
}

void pair_cells_512(const BFloat16* first, const BFloat16* second, std::int64_t count, float* to) {
  const auto [low, high] = alternating();
  for (std::int64_t i = 0; i < count; i += 2 * kLanes) {
    const __mmask32 mask = first_numbers(count - i);
    const __m512i one = _mm512_maskz_loadu_epi16(first == nullptr ? 0 : mask, first + i);
    const __m512i other = _mm512_maskz_loadu_epi16(second == nullptr ? 0 : mask, second + i);
    _mm512_mask_storeu_epi32(to + i, first_words(count - i), _mm512_permutex2var_epi16(one, low, other));
    if (count - i <= kLanes) return;
    _mm512_mask_storeu_epi32(to + i + kLanes, first_words(count - i - kLanes),
                             _mm512_permutex2var_epi16(one, high, other));
  }
}

// 32 numbers at a time, which the lanes of `step` vectors hold.
template <int kMostSteps>
void pair_vectors(const BFloat16* from, const std::int64_t* run_places, std::int64_t runs, std::int64_t step,
                  std::int64_t count, float* to) {
  const __m512i places = _mm512_mullo_epi16(count_from_zero(), _mm512_set1_epi16(static_cast<short>(step)));
  const __m512i lanes = _mm512_and_si512(places, _mm512_set1_epi16(2 * kLanes - 1));
  const __m512i vectors = _mm512_srli_epi16(places, 5);
  __mmask32 masks[kMostSteps];
  for (std::int64_t v = 0; v < step; ++v) {
    masks[v] = _mm512_cmpeq_epi16_mask(vectors, _mm512_set1_epi16(static_cast<short>(v)));
  }
  for (std::int64_t r = 0; r < runs; ++r) {
    const BFloat16* const run = from + run_places[r];
    for (std::int64_t i = 0; i < count; i += 2 * kLanes) {
      const std::int64_t left = count - i < 2 * kLanes ? count - i : 2 * kLanes;
      const std::int64_t extent = (left - 1) * step + 1;  // elements that are there
      __m512i numbers = _mm512_setzero_si512();
      for (std::int64_t v = 0; 2 * kLanes * v < extent; ++v) {
        const __m512i some =
            _mm512_maskz_loadu_epi16(first_numbers(extent - 2 * kLanes * v), run + i * step + 2 * kLanes * v);
        numbers = _mm512_mask_permutexvar_epi16(numbers, masks[v], lanes, some);
      }
      _mm512_mask_storeu_epi32(to, first_words((left + 1) / 2), numbers);
      to += (left + 1) / 2;
    }
  }
}

void pair_runs_512(const BFloat16* from, const std::int64_t* places, std::int64_t runs, std::int64_t step,
                   std::int64_t count, float* to) {
  constexpr int kMostSteps = 16;
  constexpr std::int64_t kFewest = 4;  // numbers
  if (step >= 1 && step <= kMostSteps && count >= kFewest) {
    return pair_vectors<kMostSteps>(from, places, runs, step, count, to);
  }
  for (std::int64_t r = 0; r < runs; ++r) {
    const BFloat16* const run = from + places[r];
    for (std::int64_t i = 0; i < count; i += 2, ++to) {
      const BFloat16 numbers[2] = {run[i * step], i + 1 < count ? run[(i + 1) * step] : BFloat16{0}};
      __builtin_memcpy(to, numbers, sizeof numbers);
    }
  }
}

// Columns become rows. All lanes of masked shuffles: see pair_rows_512.
inline void transpose(__m512i (&rows)[kLanes]) {
  __m512i halves[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i += 2) {
    halves[i] = _mm512_maskz_unpacklo_epi32(0xffff, rows[i], rows[i + 1]);
    halves[i + 1] = _mm512_maskz_unpackhi_epi32(0xffff, rows[i], rows[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; i += 4) {
    rows[i] = _mm512_maskz_unpacklo_epi64(0xff, halves[i], halves[i + 2]);
    rows[i + 1] = _mm512_maskz_unpackhi_epi64(0xff, halves[i], halves[i + 2]);
    rows[i + 2] = _mm512_maskz_unpacklo_epi64(0xff, halves[i + 1], halves[i + 3]);
    rows[i + 3] = _mm512_maskz_unpackhi_epi64(0xff, halves[i + 1], halves[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_maskz_shuffle_i32x4(0xffff, rows[i], rows[i + 4], 0x88);
    const __m512i b = _mm512_maskz_shuffle_i32x4(0xffff, rows[i + 8], rows[i + 12], 0x88);
    const __m512i c = _mm512_maskz_shuffle_i32x4(0xffff, rows[i], rows[i + 4], 0xdd);
    const __m512i d = _mm512_maskz_shuffle_i32x4(0xffff, rows[i + 8], rows[i + 12], 0xdd);
    halves[i] = _mm512_maskz_shuffle_i32x4(0xffff, a, b, 0x88);
    halves[i + 8] = _mm512_maskz_shuffle_i32x4(0xffff, a, b, 0xdd);
    halves[i + 4] = _mm512_maskz_shuffle_i32x4(0xffff, c, d, 0x88);
    halves[i + 12] = _mm512_maskz_shuffle_i32x4(0xffff, c, d, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = halves[i];
}

// Words of the second numbers of one row and the first ones of the next.
inline __m512i between(__m512i row, __m512i next) {
  return _mm512_or_si512(_mm512_maskz_srli_epi32(0xffff, row, 16), _mm512_maskz_slli_epi32(0xffff, next, 16));
}

void pair_lines_512(const BFloat16* from, std::int64_t line_step, std::int64_t channels, std::int64_t count,
                    float* even, float* odd, std::int64_t to_step) {
  __m512i before = _mm512_setzero_si512();
  __m512i beside = _mm512_loadu_si512(odd);
  for (std::int64_t i = 0; i < count; i += 2 * kLanes) {
    const std::int64_t left = count - i;
    const __mmask32 mask = first_numbers(left);
    __m512i rows[kLanes];
#pragma GCC unroll 16
    for (int c = 0; c < kLanes; ++c) {
      const BFloat16* const line = from + (c < channels ? c * line_step : 0) + i;
      rows[c] = _mm512_maskz_loadu_epi16(c < channels ? mask : 0, line);
      __builtin_prefetch(line + 2 * kLanes);
    }
    transpose(rows);
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) {
      if (2 * r > left) break;
      const __m512i words = between(r == 0 ? before : rows[r - 1], rows[r]);
      _mm512_storeu_si512(odd + r * to_step, r == 0 ? _mm512_or_si512(words, beside) : words);
      if (2 * r < left) _mm512_storeu_si512(even + r * to_step, rows[r]);
    }
    before = rows[kLanes - 1];
    beside = _mm512_setzero_si512();
    even += kLanes * to_step;
    odd += kLanes * to_step;
  }
  if (count % (2 * kLanes) == 0) _mm512_storeu_si512(odd, between(before, _mm512_setzero_si512()));
}

void pair_channels_512(const BFloat16* from, std::int64_t line_step, std::int64_t channels, std::int64_t count,
                       float* to, std::int64_t to_step) {
  const auto [low, high] = alternating();
  const std::int64_t words = (channels + 1) / 2;
  const __mmask16 row_mask = first_words(words);
  for (std::int64_t i = 0; i < count; i += 2 * kLanes, from += 2 * kLanes) {
    const std::int64_t left = count - i;
    const __mmask32 mask = first_numbers(left);
    __m512i rows[kLanes];
    __m512i rows_behind[kLanes];
#pragma GCC unroll 16
    for (int w = 0; w < kLanes; ++w) {
      const bool is_there = w < words;
      const bool is_odd = 2 * w + 1 >= channels;
      const BFloat16* const line = from + (is_there ? 2 * w * line_step : 0);
      const BFloat16* const next = line + (is_odd ? 0 : line_step);
      const __m512i one = _mm512_maskz_loadu_epi16(is_there ? mask : 0, line);
      const __m512i other = _mm512_maskz_loadu_epi16(is_odd ? 0 : mask, next);
      __builtin_prefetch(line + 2 * kLanes);
      __builtin_prefetch(next + 2 * kLanes);
      rows[w] = _mm512_permutex2var_epi16(one, low, other);
      rows_behind[w] = _mm512_permutex2var_epi16(one, high, other);
    }
    transpose(rows);
    for (int r = 0; r < kLanes && r < left; ++r, to += to_step) _mm512_mask_storeu_epi32(to, row_mask, rows[r]);
    if (left <= kLanes) return;
    transpose(rows_behind);
    for (int r = 0; r < kLanes && r + kLanes < left; ++r, to += to_step) {
      _mm512_mask_storeu_epi32(to, row_mask, rows_behind[r]);
    }
  }
}

#pragma GCC pop_options

template <int... kRow>
PairsTable make_table(std::integer_sequence<int, kRow...> /*rows*/) {
  PairsTable table{};
  ((table[kRow] = {multiply_pairs<kRow + 1, 1>, kRow < 9 ? multiply_pairs<kRow + 1, 2> : nullptr,
                   kRow < 9 ? multiply_pairs<kRow + 1, 3> : nullptr, kRow < 6 ? multiply_pairs<kRow + 1, 4> : nullptr}),
   ...);
  return table;
}

template <bool kLines, int... kRow>
WordsTable make_words_table(std::integer_sequence<int, kRow...> /*rows*/) {
  WordsTable table{};
  ((table[kRow] = {multiply_words<kRow + 1, 1, kLines>, kRow < 9 ? multiply_words<kRow + 1, 2, kLines> : nullptr,
                   kRow < 9 ? multiply_words<kRow + 1, 3, kLines> : nullptr,
                   kRow < 6 ? multiply_words<kRow + 1, 4, kLines> : nullptr}),
   ...);
  return table;
}

template <int... kRow>
WordTapsTable make_taps_table(std::integer_sequence<int, kRow...> /*rows*/) {
  WordTapsTable table{};
  ((table[kRow] = {multiply_word_taps<kRow + 1, 1>, kRow < 9 ? multiply_word_taps<kRow + 1, 2> : nullptr,
                   kRow < 9 ? multiply_word_taps<kRow + 1, 3> : nullptr,
                   kRow < 6 ? multiply_word_taps<kRow + 1, 4> : nullptr}),
   ...);
  return table;
}

}  // namespace

bool has_bf16_products() {
  static const bool supported = __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512bw") != 0;
  return supported && math_ops<float>().lanes == kLanes;
}

const PairsTable& bf16_cells() {
  static const PairsTable table = make_table(std::make_integer_sequence<int, kMostCellsAlone>());
  return table;
}

void pair_rows(float* rows, std::int64_t width, std::int64_t count) { pair_rows_512(rows, width, count); }

const WordsTable& bf16_lines() {
  static const WordsTable table = make_words_table<true>(std::make_integer_sequence<int, kMostWordRows>());
  return table;
}
const WordsTable& bf16_columns() {
  static const WordsTable table = make_words_table<false>(std::make_integer_sequence<int, kMostWordRows>());
  return table;
}
const WordTapsTable& bf16_taps() {
  static const WordTapsTable table = make_taps_table(std::make_integer_sequence<int, kMostWordRows>());
  return table;
}
void put_numbers_second(float* words, std::int64_t count) { put_numbers_second_512(words, count); }
void pair_cells(const BFloat16* first, const BFloat16* second, std::int64_t count, float* to) {
  pair_cells_512(first, second, count, to);
}
void pair_runs(const BFloat16* from, const std::int64_t* places, std::int64_t runs, std::int64_t step,
               std::int64_t count, float* to) {
  pair_runs_512(from, places, runs, step, count, to);
}
void pair_lines(const BFloat16* from, std::int64_t line_step, std::int64_t channels, std::int64_t count, float* even,
                float* odd, std::int64_t to_step) {
  pair_lines_512(from, line_step, channels, count, even, odd, to_step);
}
void pair_channels(const BFloat16* from, std::int64_t line_step, std::int64_t channels, std::int64_t count, float* to,
                   std::int64_t to_step) {
  pair_channels_512(from, line_step, channels, count, to, to_step);
}

#else

bool has_bf16_products() { return false; }
const PairsTable& bf16_cells() {
  static const PairsTable none{};
  return none;
}
void pair_rows(float* /*rows*/, std::int64_t /*width*/, std::int64_t /*count*/) {}
const WordsTable& bf16_lines() {
  static const WordsTable none{};
  return none;
}
const WordsTable& bf16_columns() { return bf16_lines(); }
const WordTapsTable& bf16_taps() {
  static const WordTapsTable none{};
  return none;
}
void put_numbers_second(float* /*words*/, std::int64_t /*count*/) {}
void pair_cells(const BFloat16* /*first*/, const BFloat16* /*second*/, std::int64_t /*count*/, float* /*to*/) {}
void pair_runs(const BFloat16* /*from*/, const std::int64_t* /*places*/, std::int64_t /*runs*/, std::int64_t /*step*/,
               std::int64_t /*count*/, float* /*to*/) {}
void pair_lines(const BFloat16* /*from*/, std::int64_t /*line_step*/, std::int64_t /*channels*/, std::int64_t /*count*/,
                float* /*even*/, float* /*odd*/, std::int64_t /*to_step*/) {}
void pair_channels(const BFloat16* /*from*/, std::int64_t /*line_step*/, std::int64_t /*channels*/,
                   std::int64_t /*count*/, float* /*to*/, std::int64_t /*to_step*/) {}

#endif

}  // namespace tconv::cpu
