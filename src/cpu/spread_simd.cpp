#include "cpu/spread_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/spread_simd.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>

#include "cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The first elements of a vector, fewer than it has; nothing else is read, or written.
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_first(D tag, const T* from, std::int64_t count) {
  if constexpr (kMaskedStores) {
    return hn::MaskedLoad(hn::FirstN(tag, static_cast<std::size_t>(count)), tag, from);
  } else {
    T values[hn::MaxLanes(D())] = {};
    std::copy_n(from, count, values);
    return hn::LoadU(tag, values);
  }
}
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE void store_first(D tag, hn::Vec<D> vector, T* to, std::int64_t count) {
  if constexpr (kMaskedStores) {
    hn::BlendedStore(vector, hn::FirstN(tag, static_cast<std::size_t>(count)), tag, to);
  } else {
    T values[hn::MaxLanes(D())];
    hn::StoreU(vector, tag, values);
    std::copy_n(values, count, to);
  }
}

// kCells cells from j on, each sum in the order of its picks.
template <int kCells, typename T>
HWY_INLINE void pick_cells(const PickChannels<T>& job, std::int64_t j) {
  const hn::ScalableTag<T> tag;
  const hn::RebindToSigned<decltype(tag)> itag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const T* const from = job.from + j * job.from_step;
  T* const to = job.to + j * job.to_step;
  const Pick<T>* pick = job.picks->data();
  for (const PickedVector& vector : *job.vectors) {
    hn::Vec<decltype(tag)> sums[kCells];
    for (int i = 0; i < kCells; ++i) sums[i] = hn::Zero(tag);
    for (const Pick<T>* const end = pick + vector.picks; pick < end; ++pick) {
      const auto places = hn::SetTableIndices(tag, pick->places);
      const auto kept = hn::BitCast(tag, hn::LoadU(itag, pick->kept));
      const T* place = from + pick->from;
#pragma GCC unroll 4
      for (int i = 0; i < kCells; ++i, place += job.from_step) {
        const auto values = pick->valid == kLanes ? hn::LoadU(tag, place) : load_first(tag, place, pick->valid);
        sums[i] = hn::Add(sums[i], hn::And(hn::TableLookupLanes(values, places), kept));
      }
    }
    T* place = to + vector.to;
#pragma GCC unroll 4
    for (int i = 0; i < kCells; ++i, place += job.to_step) {
      if (vector.count < kLanes) {
        store_first(tag, sums[i], place, vector.count);
      } else if (job.past_caches) {
        hn::Stream(sums[i], tag, place);
      } else {
        hn::StoreU(sums[i], tag, place);
      }
    }
  }
}

template <typename T>
void pick_channels(const PickChannels<T>& job) {
  std::int64_t j = 0;
  for (; j + 4 <= job.cells; j += 4) pick_cells<4>(job, j);
  for (; j < job.cells; ++j) pick_cells<1>(job, j);
}

template <typename T>
SpreadOps<T> make_ops() {
  return {hn::MaxLanes(hn::ScalableTag<T>()), pick_channels<T>};
}

const SpreadOps<float>& float_spread() {
  static const auto ops = make_ops<float>();
  return ops;
}
const SpreadOps<double>& double_spread() {
  static const auto ops = make_ops<double>();
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(float_spread);
HWY_EXPORT(double_spread);

template <>
const SpreadOps<float>& spread_ops<float>() {
  return HWY_DYNAMIC_DISPATCH(float_spread)();
}
template <>
const SpreadOps<double>& spread_ops<double>() {
  return HWY_DYNAMIC_DISPATCH(double_spread)();
}

}  // namespace tconv::cpu
#endif
