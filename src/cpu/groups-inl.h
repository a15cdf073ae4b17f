// Channels of several groups put into turns and back, cell by cell: a part of elements.cpp, built once per instruction
// set. The guard is Highway's: it lets the file in again for each of them.
#if defined(TCONV_CPU_GROUPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TCONV_CPU_GROUPS_INL_H_
#undef TCONV_CPU_GROUPS_INL_H_
#else
#define TCONV_CPU_GROUPS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/simd.h"
#include "cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The elements of a row of `rows` x `columns`, one or two vectors in all, transposed: look-ups in registers.
template <typename T>
class ShortTranspose {
 public:
  static constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  static bool fits(std::int64_t elements) { return kLanes >= 8 && (elements == kLanes || elements == 2 * kLanes); }

  ShortTranspose(std::int64_t rows, std::int64_t columns) : two_(rows * columns == 2 * kLanes) {
    Index lanes[2 * kLanes] = {};
    T from_second[2 * kLanes] = {};
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const std::int64_t from = i % rows * columns + i / rows;
      lanes[i] = static_cast<Index>(from % kLanes);
      from_second[i] = from >= kLanes ? 1 : 0;
    }
    for (int v = 0; v < 2; ++v) {
      std::copy_n(lanes + v * kLanes, kLanes, lanes_[v]);
      std::copy_n(from_second + v * kLanes, kLanes, from_second_[v]);
    }
  }

  // store(first, values) gets the vector of the elements from `first` on.
  template <typename Store>
  HWY_INLINE void operator()(const T* from, const Store& store) const {
    const hn::ScalableTag<T> tag;
    const auto a = hn::LoadU(tag, from);
    const auto first = hn::SetTableIndices(tag, lanes_[0]);
    if (!two_) return store(0, hn::TableLookupLanes(a, first));
    const auto b = hn::LoadU(tag, from + kLanes);
    const auto second = hn::SetTableIndices(tag, lanes_[1]);
    const auto chosen = [&](int v, auto indices) HWY_ATTR {
      const auto is_second = hn::Gt(hn::LoadU(tag, from_second_[v]), hn::Zero(tag));
      return hn::IfThenElse(is_second, hn::TableLookupLanes(b, indices), hn::TableLookupLanes(a, indices));
    };
    store(0, chosen(0, first));
    store(kLanes, chosen(1, second));
  }

 private:
  using Index = hn::TFromD<hn::RebindToSigned<hn::ScalableTag<T>>>;
  bool two_;
  Index lanes_[2][kLanes];
  T from_second_[2][kLanes];
};

// Channels [channel][group] as one vector a group; store(group, values) gets them.
template <int kGroups, class D, typename T = hn::TFromD<D>, typename Store>
HWY_INLINE void take_apart(D tag, const T* from, const Store& store) {
  hn::Vec<D> a;
  hn::Vec<D> b;
  if constexpr (kGroups == 2) {
    hn::LoadInterleaved2(tag, from, a, b);
  } else {
    hn::Vec<D> c;
    hn::Vec<D> d;
    hn::LoadInterleaved4(tag, from, a, b, c, d);
    store(2, c);
    store(3, d);
  }
  store(0, a);
  store(1, b);
}

// Channels of a group that are moved at a time: groups are small.
template <typename T>
using GroupTag = hn::CappedTag<T, 8>;

template <typename E, typename T, int kGroups>
void store_groups(const StoreCells<E, T>& job) {
  const GroupTag<T> tag;
  const hn::ScalableTag<T> whole;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  if constexpr (std::is_same_v<E, T>) {
    if (job.group_step == job.channels && ShortTranspose<T>::fits(kGroups * job.channels)) {
      const ShortTranspose<T> transpose(job.channels, kGroups);
      for (std::int64_t i = 0; i < job.cells; ++i) {
        T* const to = job.to + i * job.to_step;
        transpose(job.from + i * job.cell_step, [&](std::int64_t first, auto values) HWY_ATTR {
          if (job.bias != nullptr) values = hn::Add(values, hn::LoadU(whole, job.bias + first));
          job.past_caches ? hn::Stream(values, whole, to + first) : hn::StoreU(values, whole, to + first);
        });
      }
      return;
    }
  }
  for (std::int64_t i = 0; i < job.cells; ++i) {
    const T* const from = job.from + i * job.cell_step;
    E* const to = job.to + i * job.to_step;
    std::int64_t c = 0;
    if constexpr (std::is_same_v<E, T>) {
      for (; c + lanes <= job.channels; c += lanes) {
        take_apart<kGroups>(tag, from + c * kGroups, [&](std::int64_t g, auto values) HWY_ATTR {
          const std::int64_t place = g * job.group_step + c;
          if (job.bias != nullptr) values = hn::Add(values, hn::LoadU(tag, job.bias + place));
          hn::StoreU(values, tag, to + place);
        });
      }
    }
    for (; c < job.channels; ++c) {
      for (std::int64_t g = 0; g < kGroups; ++g) {
        const std::int64_t place = g * job.group_step + c;
        const T bias = job.bias == nullptr ? T{0} : widen<E, T>(job.bias[place]);
        to[place] = narrow<E, T>(from[c * kGroups + g] + bias);
      }
    }
  }
}

template <typename E, typename T, int kGroups>
void load_few_groups(const LoadGroups<E, T>& job) {
  const GroupTag<T> tag;
  const hn::ScalableTag<T> whole;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  if constexpr (std::is_same_v<E, T>) {
    if (job.group_step == job.channels && ShortTranspose<T>::fits(kGroups * job.channels)) {
      const ShortTranspose<T> transpose(kGroups, job.channels);
      for (std::int64_t i = 0; i < job.cells; ++i) {
        T* const to = job.to + i * job.to_step;
        transpose(job.from + i * job.cell_step,
                  [&](std::int64_t first, auto values) HWY_ATTR { hn::StoreU(values, whole, to + first); });
      }
      return;
    }
  }
  for (std::int64_t i = 0; i < job.cells; ++i) {
    const E* const from = job.from + i * job.cell_step;
    T* const to = job.to + i * job.to_step;
    std::int64_t c = 0;
    if constexpr (std::is_same_v<E, T>) {
      for (; c + lanes <= job.channels; c += lanes) {
        const auto group = [&](std::int64_t g) { return hn::LoadU(tag, from + g * job.group_step + c); };
        if constexpr (kGroups == 2) hn::StoreInterleaved2(group(0), group(1), tag, to + c * kGroups);
        if constexpr (kGroups == 4) {
          hn::StoreInterleaved4(group(0), group(1), group(2), group(3), tag, to + c * kGroups);
        }
      }
    }
    for (; c < job.channels; ++c) {
      for (std::int64_t g = 0; g < kGroups; ++g) to[c * kGroups + g] = widen<E, T>(from[g * job.group_step + c]);
    }
  }
}

template <typename E, typename T>
void load_groups(const LoadGroups<E, T>& job) {
  return job.groups == 2 ? load_few_groups<E, T, 2>(job) : load_few_groups<E, T, 4>(job);
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#endif
