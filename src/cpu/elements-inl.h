// Vectors of elements of any type, or parts of them. Built once per instruction set: the guard is Highway's, which lets
// the file in again for each of them.
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

// The first `count` elements of a vector, or all (kAll); nothing else is read, or written.
template <bool kAll, typename E, class D>
HWY_INLINE hn::Vec<D> load_elements(D tag, const E* from, std::int64_t count) {
  if constexpr (kAll) {
    return load_widened(tag, from);
  } else if constexpr (std::is_same_v<E, hn::TFromD<D>> && kMaskedStores) {
    return hn::MaskedLoad(hn::FirstN(tag, static_cast<std::size_t>(count)), tag, from);
#if TCONV_CPU_MASKS_HALVES
  } else if constexpr (std::is_same_v<E, BFloat16>) {
    return load_some_widened(tag, from, count);
#endif
  } else {
    E values[hn::MaxLanes(D())] = {};
    std::copy_n(from, count, values);
    return load_widened(tag, values);
  }
}

// The same; `past_caches`: a vector is a cache line, or a part of one that is written as a whole.
template <bool kAll, typename E, class D>
HWY_INLINE void store_elements(D tag, hn::Vec<D> vector, E* to, std::int64_t count, bool past_caches) {
  if constexpr (kAll && std::is_same_v<E, hn::TFromD<D>>) {
    past_caches ? hn::Stream(vector, tag, to) : hn::StoreU(vector, tag, to);
  } else if constexpr (kAll) {
    store_narrowed(tag, vector, to);
  } else if constexpr (std::is_same_v<E, hn::TFromD<D>> && kMaskedStores) {
    hn::BlendedStore(vector, hn::FirstN(tag, static_cast<std::size_t>(count)), tag, to);
#if TCONV_CPU_MASKS_HALVES
  } else if constexpr (std::is_same_v<E, BFloat16>) {
    store_some_rounded(tag, vector, to, count);
#endif
  } else {
    E values[hn::MaxLanes(D())];
    store_narrowed(tag, vector, values);
    std::copy_n(values, count, to);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#endif
