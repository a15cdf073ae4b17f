// Transposition in registers, and rows of results: what several files share, built once per instruction set. The guard
// is Highway's: it lets the file in again for each of them.
#if defined(TCONV_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TCONV_CPU_TRANSPOSE_INL_H_
#undef TCONV_CPU_TRANSPOSE_INL_H_
#else
#define TCONV_CPU_TRANSPOSE_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/halves-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
#undef TCONV_CPU_LOOKS_UP_PAIRS

constexpr bool kMaskedStores = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2;

// The compiler would rather read memory again for each use of a vector.
template <class V>
HWY_INLINE void keep_in_register([[maybe_unused]] V& vector) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_SSE4 && defined(__GNUC__)
  asm("" : "+v"(vector.raw));
#endif
}

// Elements of a block of 16 bytes, within which vectors are shuffled.
template <typename T>
constexpr std::int64_t kBlock = 16 / sizeof(T);

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
#define TCONV_CPU_LOOKS_UP_PAIRS 1
// Lane l is lane places[l] of two vectors, of which the second goes on where the first ends.
template <class D>
HWY_INLINE hn::Vec<D> look_up_pair(D tag, hn::Vec<D> first, hn::Vec<D> second, hn::Vec<hn::RebindToSigned<D>> places) {
#if HWY_TARGET <= HWY_AVX3
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return hn::Vec<D>{_mm512_permutex2var_ps(first.raw, places.raw, second.raw)};
  } else {
    return hn::Vec<D>{_mm512_permutex2var_pd(first.raw, places.raw, second.raw)};
  }
#else
  const hn::RebindToSigned<D> itag;
  const auto last = hn::Set(itag, static_cast<hn::TFromD<decltype(itag)>>(hn::MaxLanes(D()) - 1));
  const auto lanes = hn::IndicesFromVec(tag, hn::And(places, last));
  return hn::IfThenElse(hn::RebindMask(tag, hn::Gt(places, last)), hn::TableLookupLanes(second, lanes),
                        hn::TableLookupLanes(first, lanes));
#endif
}
#else
#define TCONV_CPU_LOOKS_UP_PAIRS 0
#endif

#if HWY_TARGET != HWY_SCALAR  // which has no blocks
// One block of 16 bytes from row(0), row(1) ... each, side by side.
template <class D, typename Row>
HWY_INLINE hn::Vec<D> load_blocks(D tag, const Row& row) {
  if constexpr (hn::MaxLanes(D()) <= kBlock<hn::TFromD<D>>) {
    return hn::LoadU(tag, row(0));
  } else {
    const hn::Half<D> half;
    constexpr std::int64_t kBlocks = hn::MaxLanes(hn::Half<D>()) / kBlock<hn::TFromD<D>>;
    return hn::Combine(tag, load_blocks(half, [&row](std::int64_t i) { return row(i + kBlocks); }),
                       load_blocks(half, row));
  }
}

// Calls use(c, vector) for the columns 0 <= c < kBlock of as many rows as a vector has lanes: vector[r] = row(r)[c].
template <class D, typename Row, typename Use>
HWY_INLINE void transpose_block(D tag, const Row& row, const Use& use) {
  constexpr std::int64_t kSide = kBlock<hn::TFromD<D>>;
  const auto line = [&](std::int64_t j) {
    return load_blocks(tag, [&row, j](std::int64_t i) { return row(i * kSide + j); });
  };
  if constexpr (kSide == 4) {
    const auto lower02 = hn::InterleaveLower(tag, line(0), line(2));
    const auto upper02 = hn::InterleaveUpper(tag, line(0), line(2));
    const auto lower13 = hn::InterleaveLower(tag, line(1), line(3));
    const auto upper13 = hn::InterleaveUpper(tag, line(1), line(3));
    use(0, hn::InterleaveLower(tag, lower02, lower13));
    use(1, hn::InterleaveUpper(tag, lower02, lower13));
    use(2, hn::InterleaveLower(tag, upper02, upper13));
    use(3, hn::InterleaveUpper(tag, upper02, upper13));
  } else {
    use(0, hn::InterleaveLower(tag, line(0), line(1)));
    use(1, hn::InterleaveUpper(tag, line(0), line(1)));
  }
}
#endif

// Lines that begin at line(0), line(1) ... become columns: store(i, c, valid, values) gets line(c + l)[i] in the lanes
// l < valid of a vector. Returns how many lines were done, in whole vectors.
template <typename T, typename Line, typename Store>
HWY_INLINE std::int64_t transpose_lines(const Line& line, std::int64_t lines, std::int64_t count, const Store& store) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr std::int64_t kSide = kBlock<T>;
  std::int64_t c = 0;
  if constexpr (kLanes >= kSide) {
    if (count < kSide) return 0;
    for (; c < lines; c += kLanes) {
      const std::int64_t valid = std::min(kLanes, lines - c);
      if (valid < kLanes && !kMaskedStores) return c;
      const T* rows[kLanes];
      for (std::int64_t r = 0; r < kLanes; ++r) rows[r] = line(c + std::min(r, valid - 1));
      const auto transpose = [&](std::int64_t first, const auto& row) HWY_ATTR {
        transpose_block(tag, row, [&](std::int64_t q, auto values) HWY_ATTR { store(first + q, c, valid, values); });
      };
      std::int64_t i = 0;
      // Whole vectors of each line first: lines far apart fall into the same cache set, where none stays for long.
      HWY_ALIGN T square[kLanes * kLanes];
      for (; i + kLanes <= count; i += kLanes) {
        for (std::int64_t r = 0; r < kLanes; ++r) {
          hn::Store(hn::LoadU(tag, rows[r] + i), tag, square + r * kLanes);
          hwy::Prefetch(rows[r] + i + kLanes);
        }
        for (std::int64_t j = 0; j < kLanes; j += kSide) {
          transpose(i + j, [&](std::int64_t r) { return square + r * kLanes + j; });
        }
      }
      for (; i < count; i += kSide) {
        // The last block may repeat some of the one before.
        const std::int64_t first = std::min(i, count - kSide);
        transpose(first, [&](std::int64_t r) { return rows[r] + first; });
      }
    }
  }
  return c;
}

// The same into memory: to[i to_step + c] = line(c)[i].
template <typename T, typename Line>
std::int64_t transpose_lines(const Line& line, T* to, std::int64_t to_step, std::int64_t lines, std::int64_t count) {
  const hn::ScalableTag<T> tag;
  return transpose_lines<T>(line, lines, count,
                            [&](std::int64_t i, std::int64_t c, std::int64_t valid, auto values) HWY_ATTR {
                              T* const place = to + i * to_step + c;
                              if (valid == hn::MaxLanes(tag)) {
                                hn::StoreU(values, tag, place);
                              } else {
                                hn::BlendedStore(values, hn::FirstN(tag, valid), tag, place);
                              }
                            });
}

template <typename E, typename T, typename Line>
void load_transposed(const Line& line, T* to, std::int64_t to_step, std::int64_t lines, std::int64_t count) {
  const auto one_by_one = [&](std::int64_t first_line, std::int64_t last_line, std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = first_line; c < last_line; ++c) {
      const E* const from = line(c);
      for (std::int64_t i = begin; i < end; ++i) to[i * to_step + c] = widen<E, T>(from[i]);
    }
  };
  if constexpr (std::is_same_v<E, T>) {
    return one_by_one(transpose_lines<T>(line, to, to_step, lines, count), lines, 0, count);
  }
  // As many lines as a vector has lanes, widened piece by piece.
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr std::int64_t kPiece = 64;
  T wide[kLanes * kPiece];
  for (std::int64_t c = 0; c < lines; c += kLanes) {
    const std::int64_t valid = std::min(kLanes, lines - c);
    for (std::int64_t i = 0; i < count; i += kPiece) {
      const std::int64_t length = std::min(kPiece, count - i);
      for (std::int64_t r = 0; r < valid; ++r) {
        const E* const from = line(c + r) + i;
        [[maybe_unused]] std::int64_t j = 0;
#if TCONV_CPU_MASKS_HALVES
        if constexpr (std::is_same_v<E, BFloat16>) {
          const hn::ScalableTag<T> tag;
          T* const to_line = wide + r * kPiece;
          for (; j + kLanes <= length; j += kLanes) hn::StoreU(load_widened(tag, from + j), tag, to_line + j);
          if (j < length) hn::StoreU(load_some_widened(tag, from + j, length - j), tag, to_line + j);
          continue;
        }
#endif
        for (; j < length; ++j) wide[r * kPiece + j] = widen<E, T>(from[j]);
      }
      const auto row = [&wide](std::int64_t r) { return wide + r * kPiece; };
      const std::int64_t done = transpose_lines<T>(row, to + i * to_step + c, to_step, valid, length);
      one_by_one(c + done, c + valid, i, i + length);
    }
  }
}

// The first `count` elements, fewer than a vector has.
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE void copy_few(D tag, const T* from, T* to, std::int64_t count) {
  if constexpr (kMaskedStores) {
    const auto some = hn::FirstN(tag, count);
    hn::BlendedStore(hn::MaskedLoad(some, tag, from), some, tag, to);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
  }
}

// A row of results, rounded; past the caches in whole lines.
template <typename E, typename T>
void put_row(const T* from, E* to, std::int64_t count, bool past_caches) {
  std::int64_t i = 0;
  if constexpr (std::is_same_v<E, T>) {
    const hn::ScalableTag<T> tag;
    constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
    constexpr std::int64_t kLine = 64 / sizeof(T);
    if (past_caches) {
      const auto address = reinterpret_cast<std::uintptr_t>(to);
      const std::int64_t end = std::min(count, static_cast<std::int64_t>((64 - address % 64) % 64 / sizeof(T)));
      for (; i + kLanes <= end; i += kLanes) hn::StoreU(hn::LoadU(tag, from + i), tag, to + i);
      if (i < end) copy_few(tag, from + i, to + i, end - i);
      for (i = end; i + kLine <= count; i += kLine) {
        for (std::int64_t v = 0; v < kLine; v += kLanes) hn::Stream(hn::LoadU(tag, from + i + v), tag, to + i + v);
      }
    }
    for (; i + kLanes <= count; i += kLanes) hn::StoreU(hn::LoadU(tag, from + i), tag, to + i);
    if (i < count) copy_few(tag, from + i, to + i, count - i);
  } else {
    if constexpr (kMovesVectors<E, T>) {
      const hn::ScalableTag<T> tag;
      const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
      for (; i + lanes <= count; i += lanes) store_narrowed(tag, hn::LoadU(tag, from + i), to + i);
    }
    for (; i < count; ++i) to[i] = narrow<E, T>(from[i]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#endif
