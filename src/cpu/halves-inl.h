// The element types as arithmetic, one by one and in vectors: what several files share, built once per instruction set.
// The guard is Highway's: it lets the file in again for each of them.
#if defined(TCONV_CPU_HALVES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TCONV_CPU_HALVES_INL_H_
#undef TCONV_CPU_HALVES_INL_H_
#else
#define TCONV_CPU_HALVES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <type_traits>

#include "cpu/scalar.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
#undef TCONV_CPU_MASKS_HALVES

template <typename E, typename T>
HWY_INLINE T widen(E value) {
  if constexpr (std::is_same_v<E, T>) {
    return value;
  } else {
    return to_float(value);
  }
}

template <typename E, typename T>
HWY_INLINE E narrow(T value) {
  if constexpr (std::is_same_v<E, T>) {
    return value;
  } else if constexpr (std::is_same_v<E, Float16>) {
    return to_float16(value);
  } else {
    return to_bfloat16(value);
  }
}

// Whether vectors of T are made of elements E by a few instructions.
template <typename E, typename T>
constexpr bool kMovesVectors = std::is_same_v<E, T> || std::is_same_v<E, BFloat16>;

constexpr bool kConvertsHalves = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2;  // float16

template <typename E, class D>
HWY_INLINE hn::Vec<D> load_widened(D tag, const E* from) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<E, T>) {
    return hn::LoadU(tag, from);
  } else if constexpr (std::is_same_v<E, BFloat16>) {
    const hn::Rebind<std::uint16_t, D> halves;
    const hn::RebindToUnsigned<D> words;
    const auto loaded = hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(from));
    return hn::BitCast(tag, hn::ShiftLeft<16>(hn::PromoteTo(words, loaded)));
  } else if constexpr (kConvertsHalves) {
    const hn::Rebind<std::uint16_t, D> halves;
    const auto loaded = hn::LoadU(halves, &from->bits);
    return hn::PromoteTo(tag, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), loaded));
  } else {
    constexpr std::int64_t kLanes = hn::MaxLanes(D());
    T values[kLanes];
    for (std::int64_t i = 0; i < kLanes; ++i) values[i] = widen<E, T>(from[i]);
    return hn::LoadU(tag, values);
  }
}

// A vector, as to_bfloat16 rounds.
template <class D>
HWY_INLINE auto rounded_halves(D /*tag*/, hn::Vec<D> values) {
  const hn::RebindToUnsigned<D> words;
  const hn::Rebind<std::uint16_t, D> halves;
  const auto bits = hn::BitCast(words, values);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(words, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fff))));
  const auto quiet = hn::Or(upper, hn::Set(words, 0x40));
  const auto is_number = hn::RebindMask(words, hn::Eq(values, values));
  const auto all = hn::IfThenElse(is_number, rounded, quiet);
  return hn::TruncateTo(halves, all);
}
template <class D>
HWY_INLINE void store_rounded(D tag, hn::Vec<D> values, BFloat16* to) {
  const hn::Rebind<std::uint16_t, D> halves;
  hn::StoreU(rounded_halves(tag, values), halves, reinterpret_cast<std::uint16_t*>(to));
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define TCONV_CPU_MASKS_HALVES 1
// The first `count` of a vector, with which memory is neither read nor written beyond them.
template <class D>
HWY_INLINE hn::Vec<D> load_some_widened(D tag, const BFloat16* from, std::int64_t count) {
  const hn::Rebind<std::uint16_t, D> halves;
  const hn::RebindToUnsigned<D> words;
  const auto loaded = hn::MaskedLoad(hn::FirstN(halves, count), halves, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(tag, hn::ShiftLeft<16>(hn::PromoteTo(words, loaded)));
}
template <class D>
HWY_INLINE void store_some_rounded(D tag, hn::Vec<D> values, BFloat16* to, std::int64_t count) {
  const hn::Rebind<std::uint16_t, D> halves;
  hn::BlendedStore(rounded_halves(tag, values), hn::FirstN(halves, count), halves,
                   reinterpret_cast<std::uint16_t*>(to));
}
#endif

template <typename E, class D>
HWY_INLINE void store_narrowed(D tag, hn::Vec<D> values, E* to) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<E, T>) {
    hn::StoreU(values, tag, to);
  } else if constexpr (std::is_same_v<E, BFloat16>) {
    store_rounded(tag, values, to);
  } else if constexpr (kConvertsHalves) {
    const hn::Rebind<std::uint16_t, D> halves;
    hn::StoreU(hn::BitCast(halves, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), values)), halves, &to->bits);
  } else {
    constexpr std::int64_t kLanes = hn::MaxLanes(D());
    T some[kLanes];
    hn::StoreU(values, tag, some);
    for (std::int64_t i = 0; i < kLanes; ++i) to[i] = narrow<E, T>(some[i]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#endif
