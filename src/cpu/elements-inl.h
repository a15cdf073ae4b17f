// Vectors of elements of any type, as arithmetic has them: loaded exactly, stored with one rounding. Built once per
// instruction set: the guard is Highway's, which lets the file in again for each of them.
#if defined(TCONV_CPU_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TCONV_CPU_ELEMENTS_INL_H_
#undef TCONV_CPU_ELEMENTS_INL_H_
#else
#define TCONV_CPU_ELEMENTS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr bool kConvertsHalves = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2;  // float16

template <typename E, class D>
HWY_INLINE hn::Vec<D> load_vector(D tag, const E* from) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<E, T>) {
    return hn::LoadU(tag, from);
  } else {
    const hn::Rebind<std::uint16_t, D> bits_tag;
    const auto bits = hn::LoadU(bits_tag, &from->bits);
    if constexpr (std::is_same_v<E, BFloat16>) {
      const hn::RebindToUnsigned<D> word_tag;
      return hn::BitCast(tag, hn::ShiftLeft<16>(hn::PromoteTo(word_tag, bits)));
    } else if constexpr (kConvertsHalves) {
      return hn::PromoteTo(tag, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
    } else {
      T values[hn::MaxLanes(D())];
      for (std::size_t i = 0; i < hn::MaxLanes(D()); ++i) values[i] = widen<E, T>(from[i]);
      return hn::LoadU(tag, values);
    }
  }
}

template <typename E, class D>
HWY_INLINE void store_vector(D tag, hn::Vec<D> vector, E* to) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<E, T>) {
    hn::StoreU(vector, tag, to);
  } else if constexpr (std::is_same_v<E, BFloat16>) {
    // As narrow does.
    const hn::RebindToUnsigned<D> word_tag;
    const hn::Rebind<std::uint16_t, D> bits_tag;
    const auto all = hn::BitCast(word_tag, vector);
    const auto high = hn::ShiftRight<16>(all);
    const auto odd = hn::And(high, hn::Set(word_tag, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(all, hn::Add(odd, hn::Set(word_tag, 0x7fff))));
    const auto quiet = hn::Or(high, hn::Set(word_tag, 0x40));
    const auto words = hn::IfThenElse(hn::RebindMask(word_tag, hn::IsNaN(vector)), quiet, rounded);
    hn::StoreU(hn::TruncateTo(bits_tag, words), bits_tag, &to->bits);
  } else if constexpr (kConvertsHalves) {
    const hn::Rebind<hwy::float16_t, D> half_tag;
    const hn::Rebind<std::uint16_t, D> bits_tag;
    hn::StoreU(hn::BitCast(bits_tag, hn::DemoteTo(half_tag, vector)), bits_tag, &to->bits);
  } else {
    T values[hn::MaxLanes(D())];
    hn::StoreU(vector, tag, values);
    for (std::size_t i = 0; i < hn::MaxLanes(D()); ++i) to[i] = narrow<E, T>(values[i]);
  }
}

// The first `count` elements of a vector, or all (kAll); nothing else is read, or written.
template <bool kAll, typename E, class D>
HWY_INLINE hn::Vec<D> load_elements(D tag, const E* from, std::int64_t count) {
  if constexpr (kAll) {
    return load_vector(tag, from);
  } else if constexpr (std::is_same_v<E, hn::TFromD<D>> && kMaskedStores) {
    return hn::MaskedLoad(hn::FirstN(tag, static_cast<std::size_t>(count)), tag, from);
  } else {
    E values[hn::MaxLanes(D())] = {};
    std::copy_n(from, count, values);
    return load_vector(tag, values);
  }
}

// The same; `past_caches`: a vector is a cache line, or a part of one that is written as a whole.
template <bool kAll, typename E, class D>
HWY_INLINE void store_elements(D tag, hn::Vec<D> vector, E* to, std::int64_t count, bool past_caches) {
  if constexpr (kAll && std::is_same_v<E, hn::TFromD<D>>) {
    past_caches ? hn::Stream(vector, tag, to) : hn::StoreU(vector, tag, to);
  } else if constexpr (kAll) {
    store_vector(tag, vector, to);
  } else if constexpr (std::is_same_v<E, hn::TFromD<D>> && kMaskedStores) {
    hn::BlendedStore(vector, hn::FirstN(tag, static_cast<std::size_t>(count)), tag, to);
  } else {
    E values[hn::MaxLanes(D())];
    store_vector(tag, vector, values);
    std::copy_n(values, count, to);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#endif
