// Cells whose channels lie side by side in the tensor: a part of elements.cpp, built once per instruction set. The
// guard is Highway's: it lets the file in again for each of them.
#if defined(TCONV_CPU_CELLS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TCONV_CPU_CELLS_INL_H_
#undef TCONV_CPU_CELLS_INL_H_
#else
#define TCONV_CPU_CELLS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "cpu/elements-inl.h"
#include "cpu/groups-inl.h"
#include "cpu/lattices-inl.h"
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Reads the elements 0, step, 2 step ... of memory as a vector. Offsets are 32 bits wide for float.
template <typename T>
class Strided {
 public:
  static bool fits(std::int64_t step) { return step < (1 << 24) && step > -(1 << 24); }
  explicit Strided(std::int64_t step)
      : indices_(hn::Mul(hn::Iota(itag_, 0), hn::Set(itag_, static_cast<hn::TFromD<decltype(itag_)>>(step)))) {}
  auto operator()(const T* from) const { return hn::GatherIndex(tag_, from, indices_); }

 private:
  hn::ScalableTag<T> tag_;
  hn::RebindToSigned<hn::ScalableTag<T>> itag_;
  hn::Vec<hn::RebindToSigned<hn::ScalableTag<T>>> indices_;
};

// One cell of one phase.
template <typename E, typename T>
HWY_INLINE void store_cell(const StoreCells<E, T>& job, const T* HWY_RESTRICT from, E* HWY_RESTRICT to) {
  std::int64_t c = 0;
  if constexpr (kMovesVectors<E, T>) {
    const hn::ScalableTag<T> tag;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
    const auto with_bias = [&](auto values) {
      return job.bias == nullptr ? values : hn::Add(values, load_widened(tag, job.bias + c));
    };
    const auto put = [&](auto values) {
      if constexpr (std::is_same_v<E, T>) {
        if (job.past_caches && job.channel_step == 1) return hn::Stream(values, tag, to + c);
      }
      store_narrowed(tag, values, to + c);
    };
    if (job.channel_step == 1) {
      for (; c + lanes <= job.channels; c += lanes) put(with_bias(hn::LoadU(tag, from + c)));
    } else if (Strided<T>::fits(job.channel_step)) {
      const Strided<T> strided(job.channel_step);
      for (; c + lanes <= job.channels; c += lanes) put(with_bias(strided(from + c * job.channel_step)));
    }
  }
#if TCONV_CPU_MASKS_HALVES
  if constexpr (std::is_same_v<E, BFloat16>) {
    if (job.channel_step == 1 && c < job.channels) {
      const hn::ScalableTag<T> tag;
      const std::int64_t count = job.channels - c;
      auto values = hn::MaskedLoad(hn::FirstN(tag, count), tag, from + c);
      if (job.bias != nullptr) values = hn::Add(values, load_some_widened(tag, job.bias + c, count));
      return store_some_rounded(tag, values, to + c, count);
    }
  }
#endif
  for (; c < job.channels; ++c) {
    to[c] = narrow<E, T>(from[c * job.channel_step] + (job.bias == nullptr ? T{0} : widen<E, T>(job.bias[c])));
  }
}

// Channels that are lines, a few cells of all phases at a time. Returns how many channels were done, in whole vectors.
template <typename E, typename T>
std::int64_t store_lines(const StoreCells<E, T>& job) {
  constexpr std::int64_t kTogether = 64;  // cells: their lines stay in the L1 cache for all phases
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  std::int64_t done = 0;
  for (std::int64_t first = 0; first < job.cells;) {
    // Nothing is left over that would be too short to transpose.
    const std::int64_t left = job.cells - first;
    const std::int64_t cells = left < 2 * kTogether ? left : kTogether;
    for (std::int64_t p = 0; p < job.phases; ++p) {
      const T* const from = job.from + job.places[p] + first;
      E* const to = job.to + first * job.to_step + p * job.phase_step;
      const auto line = [&](std::int64_t c) { return from + c * job.channel_step; };
      const auto store = [&](std::int64_t i, std::int64_t c, std::int64_t valid, auto values) HWY_ATTR {
        E* const place = to + i * job.to_step + c;
        if (valid < kLanes) {
          if (job.bias != nullptr) values = hn::Add(values, load_elements<false>(tag, job.bias + c, valid));
          store_elements<false>(tag, values, place, valid, false);
        } else {
          if (job.bias != nullptr) values = hn::Add(values, load_elements<true>(tag, job.bias + c, valid));
          store_elements<true>(tag, values, place, valid, job.past_caches);
        }
      };
      done = transpose_lines<T>(line, job.channels, cells, store);
    }
    first += cells;
  }
  return std::min(done, job.channels);
}

// A few channels that are lines, and their phases, are neighbours in the tensor: they are put together as the phases of
// a row are. False: nothing is done.
template <typename E, typename T>
bool store_lines_together(const StoreCells<E, T>& job) {
  constexpr std::int64_t kFewest = 64;  // cells that pay for looking up where they go
  const std::int64_t period = job.phases * job.channels;
  if (job.cells < kFewest || job.channels == 0 || period > kMostLattices || job.to_step != period) return false;
  if (job.phases > 1 && job.phase_step != job.channels) return false;
  std::int64_t places[kMostLattices];
  std::int64_t residues[kMostLattices];
  E biases[kMostLattices];
  for (std::int64_t f = 0; f < period; ++f) {
    places[f] = job.places[f / job.channels] + f % job.channels * job.channel_step;
    residues[f] = f;
    if (job.bias != nullptr) biases[f] = job.bias[f % job.channels];
  }
  const std::int64_t to_place = 0;
  PutTogether<E, T> row;
  row.from = job.from;
  row.places = places;
  row.to = job.to;
  row.channels = 1;
  row.to_places = &to_place;
  row.rows = 1;
  row.length = job.cells * period;
  row.period = row.filled = period;
  row.residues = residues;
  row.bias = job.bias == nullptr ? nullptr : biases;
  row.bias_step = 1;
  row.past_caches = job.past_caches;
  return put_together(row);
}

// Cells whose channels are lines, a vector of them at a time: they are rounded together. Returns how many.
template <int kChannels, typename T>
std::int64_t store_lines_of(const StoreCells<BFloat16, T>& job) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  BFloat16 rounded[kChannels * kLanes];
  std::int64_t done = 0;
  for (; done + kLanes <= job.cells; done += kLanes) {
    for (std::int64_t p = 0; p < job.phases; ++p) {
      const T* const from = job.from + job.places[p] + done;
      for (int c = 0; c < kChannels; ++c) {
        const auto bias = hn::Set(tag, job.bias == nullptr ? T{0} : widen<BFloat16, T>(job.bias[c]));
        store_rounded(tag, hn::Add(hn::LoadU(tag, from + c * job.channel_step), bias), rounded + c * kLanes);
      }
      BFloat16* to = job.to + done * job.to_step + p * job.phase_step;
      for (std::int64_t i = 0; i < kLanes; ++i, to += job.to_step) {
        for (int c = 0; c < kChannels; ++c) to[c] = rounded[c * kLanes + i];
      }
    }
  }
  return done;
}

template <typename E, typename T>
void store_cells(const StoreCells<E, T>& job) {
  if (job.interleaved == 2) return store_groups<E, T, 2>(job);
  if (job.interleaved == 4) return store_groups<E, T, 4>(job);
  StoreCells<E, T> rest = job;
  std::int64_t done = 0;
  if (job.channel_step != 1 && job.cell_step == 1) {
    std::int64_t few = 0;
    if constexpr (!std::is_same_v<E, T>) {
      if (store_lines_together(job)) return;
    }
    if constexpr (std::is_same_v<E, BFloat16>) {
      constexpr std::array kFew = {store_lines_of<1, T>, store_lines_of<2, T>, store_lines_of<3, T>,
                                   store_lines_of<4, T>};
      few = job.channels >= 1 && job.channels <= std::ssize(kFew) ? job.channels : 0;
      if (few > 0) done = kFew[few - 1](job);
    }
    if (few == 0) {
      const std::int64_t lines = store_lines(job);
      rest.channels -= lines;
      rest.from += lines * job.channel_step;
      rest.to += lines;
      rest.bias += job.bias == nullptr ? 0 : lines;
      if (rest.channels == 0) return;
    }
  }
  for (std::int64_t i = done; i < job.cells; ++i) {
    for (std::int64_t p = 0; p < job.phases; ++p) {
      store_cell(rest, rest.from + job.places[p] + i * job.cell_step, rest.to + i * job.to_step + p * job.phase_step);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#endif
