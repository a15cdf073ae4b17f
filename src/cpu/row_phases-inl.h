// Rows put together from vectors of their phases. Built once per instruction set: the guard is Highway's, which lets
// the file in again for each of them.
#if defined(TCONV_CPU_ROW_PHASES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TCONV_CPU_ROW_PHASES_INL_H_
#undef TCONV_CPU_ROW_PHASES_INL_H_
#else
#define TCONV_CPU_ROW_PHASES_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <array>
#include <cstdint>

#include "cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
// Whether two vectors are interleaved by two shuffles that take any lane of either.
template <class D>
constexpr bool kShufflesTwo = true;

// The lanes of one half of a vector, kHalf, of a and of b in turn.
template <int kHalf, class D>
HWY_INLINE hn::Vec<D> interleaved(D tag, hn::Vec<D> a, hn::Vec<D> b) {
  const hn::RebindToSigned<D> index_tag;
  using Index = hn::TFromD<decltype(index_tag)>;
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  alignas(64) static constexpr auto kPlaces = [] {
    std::array<Index, kLanes> places{};
    for (std::int64_t i = 0; i < kLanes; ++i) {
      places[i] = static_cast<Index>(kHalf * kLanes / 2 + i / 2 + (i % 2 == 0 ? 0 : kLanes));
    }
    return places;
  }();
  const auto places = hn::Load(index_tag, kPlaces.data());
  if constexpr (sizeof(Index) == 4) {
    return hn::Vec<D>{_mm512_permutex2var_ps(a.raw, places.raw, b.raw)};
  } else {
    return hn::Vec<D>{_mm512_permutex2var_pd(a.raw, places.raw, b.raw)};
  }
}
#else
template <class D>
constexpr bool kShufflesTwo = false;
#endif

// Vectors of kPhases phases side by side.
template <int kPhases, class D>
HWY_INLINE void store_phases(D tag, const hn::Vec<D> (&phases)[kPhases], hn::TFromD<D>* to) {
  if constexpr (kPhases == 1) hn::StoreU(phases[0], tag, to);
  if constexpr (kPhases == 2) hn::StoreInterleaved2(phases[0], phases[1], tag, to);
  if constexpr (kPhases == 3) hn::StoreInterleaved3(phases[0], phases[1], phases[2], tag, to);
  if constexpr (kPhases == 4) hn::StoreInterleaved4(phases[0], phases[1], phases[2], phases[3], tag, to);
}

template <int kPhases, bool kPastCaches, class D>
HWY_INLINE void put_phases(D tag, const hn::Vec<D> (&phases)[kPhases], hn::TFromD<D>* to) {
  if constexpr (kPastCaches && kPhases == 1) {
    hn::Stream(phases[0], tag, to);
  } else if constexpr (kPhases == 2 && kShufflesTwo<D>) {
    constexpr std::int64_t kLanes = hn::MaxLanes(D());
    const auto first = interleaved<0>(tag, phases[0], phases[1]);
    const auto second = interleaved<1>(tag, phases[0], phases[1]);
    kPastCaches ? hn::Stream(first, tag, to) : hn::StoreU(first, tag, to);
    kPastCaches ? hn::Stream(second, tag, to + kLanes) : hn::StoreU(second, tag, to + kLanes);
  } else if constexpr (kPastCaches) {
    constexpr std::int64_t kLanes = hn::MaxLanes(D());
    HWY_ALIGN hn::TFromD<D> together[kPhases * kLanes];
    store_phases<kPhases>(tag, phases, together);
#pragma GCC unroll 4
    for (int p = 0; p < kPhases; ++p) hn::Stream(hn::Load(tag, together + p * kLanes), tag, to + p * kLanes);
  } else {
    store_phases<kPhases>(tag, phases, to);
  }
}

// The first `count` elements of that, fewer than kPhases vectors have.
template <int kPhases, class D>
HWY_INLINE void put_some(D tag, const hn::Vec<D> (&phases)[kPhases], hn::TFromD<D>* to, std::int64_t count) {
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  if constexpr (kPhases == 1 && kMaskedStores) {
    hn::BlendedStore(phases[0], hn::FirstN(tag, static_cast<std::size_t>(count)), tag, to);
  } else if constexpr (kPhases == 2 && kShufflesTwo<D>) {
    const auto first = interleaved<0>(tag, phases[0], phases[1]);
    if (count < kLanes) {
      hn::BlendedStore(first, hn::FirstN(tag, static_cast<std::size_t>(count)), tag, to);
      return;
    }
    hn::StoreU(first, tag, to);
    const auto second = interleaved<1>(tag, phases[0], phases[1]);
    hn::BlendedStore(second, hn::FirstN(tag, static_cast<std::size_t>(count - kLanes)), tag, to + kLanes);
  } else {
    HWY_ALIGN hn::TFromD<D> some[kPhases * kLanes];
    store_phases<kPhases>(tag, phases, some);
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) hn::StoreU(hn::Load(tag, some + i), tag, to + i);
    if (i < count) copy_few(tag, some + i, to + i, count - i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#endif
