// Channels of several groups put into turns and back, cell by cell: a part of elements.cpp, built once per instruction
// set. The guard is Highway's: it lets the file in again for each of them.
#if defined(TCONV_CPU_GROUPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TCONV_CPU_GROUPS_INL_H_
#undef TCONV_CPU_GROUPS_INL_H_
#else
#define TCONV_CPU_GROUPS_INL_H_
#endif

#include <hwy/cache_control.h>
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

#if TCONV_CPU_LOOKS_UP_PAIRS
// The elements of a row of `rows` x `columns`, one, two or four vectors in all, transposed: look-ups in registers.
template <typename T>
class ShortTranspose {
 public:
  static constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  static constexpr int kMost = 4;  // vectors
  static bool fits(std::int64_t elements) {
    return kLanes >= 8 && (elements == kLanes || elements == 2 * kLanes || elements == 4 * kLanes);
  }

  ShortTranspose(std::int64_t rows, std::int64_t columns) : vectors_(rows * columns / kLanes) {
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const std::int64_t from = i % rows * columns + i / rows;
      lanes_[i] = static_cast<Index>(from % (2 * kLanes));
      of_second_pair_[i] = from >= 2 * kLanes ? 1 : 0;
    }
  }

  // use(transpose_cell) where transpose_cell(from, store) transposes; store(first, values) gets the vector of the
  // elements from `first` on. Look-ups stay in registers for all cells.
  template <typename Use>
  HWY_INLINE void operator()(const Use& use) const {
    if (vectors_ == 1) return with<1>(use);
    if (vectors_ == 2) return with<2>(use);
    with<4>(use);
  }

 private:
  using Index = hn::TFromD<hn::RebindToSigned<hn::ScalableTag<T>>>;

  template <int kVectors, typename Use>
  HWY_INLINE void with(const Use& use) const {
    const hn::ScalableTag<T> tag;
    use([&](const auto* from, const auto& store) HWY_ATTR {
      hn::Vec<decltype(tag)> row[kVectors];
      for (int v = 0; v < kVectors; ++v) row[v] = load_widened(tag, from + v * kLanes);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const auto indices = hn::Load(hn::RebindToSigned<decltype(tag)>(), lanes_ + v * kLanes);
        if constexpr (kVectors == 1) {
          store(0, look_up_pair(tag, row[0], row[0], indices));
        } else if constexpr (kVectors == 2) {
          store(v * kLanes, look_up_pair(tag, row[0], row[1], indices));
        } else {
          const auto second = hn::Gt(hn::Load(tag, of_second_pair_ + v * kLanes), hn::Zero(tag));
          store(v * kLanes, hn::IfThenElse(second, look_up_pair(tag, row[2], row[3], indices),
                                           look_up_pair(tag, row[0], row[1], indices)));
        }
      }
    });
  }

  std::int64_t vectors_;
  alignas(64) Index lanes_[kMost * kLanes] = {};
  alignas(64) T of_second_pair_[kMost * kLanes] = {};
};
#endif

// Channels [channel][group] as one vector a group; store(group, values) gets them.
template <int kGroups, class D, typename T = hn::TFromD<D>, typename Store>
HWY_INLINE void take_apart_groups(D tag, const T* from, const Store& store) {
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
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
#if TCONV_CPU_LOOKS_UP_PAIRS
  if constexpr (kMovesVectors<E, T>) {
    if (job.group_step == job.channels && ShortTranspose<T>::fits(kGroups * job.channels)) {
      const hn::ScalableTag<T> whole;
      const ShortTranspose<T> transpose(job.channels, kGroups);
      transpose([&](const auto& transpose_cell) HWY_ATTR {
        for (std::int64_t i = 0; i < job.cells; ++i) {
          for (std::int64_t p = 0; p < job.phases; ++p) {
            E* const to = job.to + i * job.to_step + p * job.phase_step;
            transpose_cell(job.from + job.places[p] + i * job.cell_step, [&](std::int64_t first, auto values) HWY_ATTR {
              if (job.bias != nullptr) values = hn::Add(values, load_widened(whole, job.bias + first));
              if constexpr (std::is_same_v<E, T>) {
                if (job.past_caches) return hn::Stream(values, whole, to + first);
              }
              store_narrowed(whole, values, to + first);
            });
          }
        }
      });
      return;
    }
  }
#endif
  for (std::int64_t i = 0; i < job.cells; ++i) {
    for (std::int64_t p = 0; p < job.phases; ++p) {
      const T* const from = job.from + job.places[p] + i * job.cell_step;
      E* const to = job.to + i * job.to_step + p * job.phase_step;
      std::int64_t c = 0;
      if constexpr (kMovesVectors<E, T>) {
        for (; c + lanes <= job.channels; c += lanes) {
          take_apart_groups<kGroups>(tag, from + c * kGroups, [&](std::int64_t g, auto values) HWY_ATTR {
            const std::int64_t channel = g * job.group_step + c;
            if (job.bias != nullptr) values = hn::Add(values, load_widened(tag, job.bias + channel));
            store_narrowed(tag, values, to + channel);
          });
        }
      }
      for (; c < job.channels; ++c) {
        for (std::int64_t g = 0; g < kGroups; ++g) {
          const std::int64_t channel = g * job.group_step + c;
          const T bias = job.bias == nullptr ? T{0} : widen<E, T>(job.bias[channel]);
          to[channel] = narrow<E, T>(from[c * kGroups + g] + bias);
        }
      }
    }
  }
}

template <typename E, typename T, int kGroups>
void load_few_groups(const LoadGroups<E, T>& job) {
  const GroupTag<T> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
#if TCONV_CPU_LOOKS_UP_PAIRS
  if constexpr (kMovesVectors<E, T>) {
    if (job.group_step == job.channels && ShortTranspose<T>::fits(kGroups * job.channels)) {
      const hn::ScalableTag<T> whole;
      const ShortTranspose<T> transpose(kGroups, job.channels);
      // Cells of a lattice are far apart, and rows short: nothing foretells what is read next.
      const std::int64_t cells_ahead = std::max<std::int64_t>(12 / job.lattices, 2);
      constexpr std::int64_t kLine = 64 / sizeof(E);
      transpose([&](const auto& transpose_cell) HWY_ATTR {
        for (std::int64_t i = 0; i < job.cells; ++i) {
          const std::int64_t ahead = i + cells_ahead;
          const E* const asked =
              ahead < job.cells ? job.from + ahead * job.cell_step : job.next + (ahead - job.cells) * job.cell_step;
          for (std::int64_t l = 0; l < job.lattices; ++l) {
            const E* const later = asked + job.from_places[l];
            for (std::int64_t c = 0; c < kGroups * job.channels; c += kLine) hwy::Prefetch(later + c);
            T* const to = job.to + job.to_places[l] + i * job.to_step;
            transpose_cell(job.from + job.from_places[l] + i * job.cell_step,
                           [&](std::int64_t first, auto values) HWY_ATTR { hn::StoreU(values, whole, to + first); });
          }
        }
      });
      return;
    }
  }
#endif
  for (std::int64_t l = 0; l < job.lattices; ++l) {
    for (std::int64_t i = 0; i < job.cells; ++i) {
      const E* const from = job.from + job.from_places[l] + i * job.cell_step;
      T* const to = job.to + job.to_places[l] + i * job.to_step;
      std::int64_t c = 0;
      if constexpr (kMovesVectors<E, T>) {
        for (; c + lanes <= job.channels; c += lanes) {
          const auto group = [&](std::int64_t g) { return load_widened(tag, from + g * job.group_step + c); };
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
}

template <typename E, typename T>
void load_groups(const LoadGroups<E, T>& job) {
  return job.groups == 2 ? load_few_groups<E, T, 2>(job) : load_few_groups<E, T, 4>(job);
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#endif
