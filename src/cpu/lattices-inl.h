// Rows of a tensor taken apart into the lattices of their phases, and put together from them: a part of elements.cpp,
// built once per instruction set. The guard is Highway's: it lets the file in again for each of them.
#if defined(TCONV_CPU_LATTICES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TCONV_CPU_LATTICES_INL_H_
#undef TCONV_CPU_LATTICES_INL_H_
#else
#define TCONV_CPU_LATTICES_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/elements-inl.h"
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if TCONV_CPU_LOOKS_UP_PAIRS
// Vectors of which each lane comes from one of several pairs of others, or from none: look-ups in each pair.
template <typename T, int kPairs>
class PairLookups {
 public:
  static constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());

  // Lane `lane` of vector v is lane `from` of the vectors in turn.
  void set(std::int64_t v, std::int64_t lane, std::int64_t from) {
    const std::int64_t pair = from / (2 * kLanes);
    indices_[v][pair][lane] = static_cast<Index>(from % (2 * kLanes));
    masks_[v][pair][lane / 8] = static_cast<std::uint8_t>(masks_[v][pair][lane / 8] | 1U << (lane % 8));
  }

  // One of the vectors.
  struct One {
    hn::Vec<hn::RebindToSigned<hn::ScalableTag<T>>> places[kPairs];
    hn::Mask<hn::ScalableTag<T>> masks[kPairs];
  };
  HWY_INLINE One get(std::int64_t v) const {
    const hn::ScalableTag<T> tag;
    One one;
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
      one.places[pair] = hn::Load(hn::RebindToSigned<decltype(tag)>(), indices_[v][pair]);
      one.masks[pair] = hn::LoadMaskBits(tag, masks_[v][pair]);
    }
    return one;
  }

 private:
  using Index = hn::TFromD<hn::RebindToSigned<hn::ScalableTag<T>>>;

  alignas(64) Index indices_[kMostLattices][kPairs][kLanes] = {};
  std::uint8_t masks_[kMostLattices][kPairs][8] = {};
};

// Lanes that come from no pair are as in `otherwise`; without it, there are none.
template <int kPairs, class D, class One, class... Otherwise>
HWY_INLINE hn::Vec<D> look_up(D tag, const One& one, const hn::Vec<D> (&from)[2 * kPairs], Otherwise... otherwise) {
  const auto pair = [&](int p) HWY_ATTR { return look_up_pair(tag, from[2 * p], from[2 * p + 1], one.places[p]); };
  auto values = pair(0);
  if constexpr (sizeof...(Otherwise) > 0) values = hn::IfThenElse(one.masks[0], values, otherwise...);
#pragma GCC unroll 4
  for (int p = 1; p < kPairs; ++p) values = hn::IfThenElse(one.masks[p], pair(p), values);
  return values;
}

template <int kPeriod, typename E, typename T>
void take_apart_rows(const TakeApart<E, T>& job) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<decltype(tag)>;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr int kPairs = (kPeriod + 1) / 2;
  PairLookups<T, kPairs> lookups;
  std::int64_t common = job.counts[0];
  std::int64_t extent = 0;  // elements of a row
  for (std::int64_t l = 0; l < job.lattices; ++l) {
    for (std::int64_t i = 0; i < kLanes; ++i) lookups.set(l, i, i * kPeriod + job.residues[l]);
    common = std::min(common, job.counts[l]);
    extent = std::max(extent, (job.counts[l] - 1) * kPeriod + job.residues[l] + 1);
  }
  typename PairLookups<T, kPairs>::One ones[kPeriod];
  for (int l = 0; l < kPeriod; ++l) ones[l] = lookups.get(l);
  const auto lattices = static_cast<int>(job.lattices);
  for (std::int64_t r = 0; r < job.rows; ++r) {
    const E* const from = job.from + job.from_places[r];
    const E* const next = job.from + job.from_places[std::min(r + 1, job.rows - 1)];
    T* lines[kPeriod];
    for (int l = 0; l < kPeriod; ++l) lines[l] = job.lines[std::min(l, lattices - 1)] + job.to_places[r];
    const auto take = [&](std::int64_t i, const V(&vectors)[2 * kPairs]) HWY_ATTR {
#pragma GCC unroll 8
      for (int l = 0; l < kPeriod; ++l) {
        if (l < lattices) hn::StoreU(look_up<kPairs>(tag, ones[l], vectors), tag, lines[l] + i);
      }
    };
    // Rows of a tile are short, and not neighbours: nothing foretells the next one.
    constexpr std::int64_t kAhead = 1024 / sizeof(E);
    const bool short_rows = extent <= 4 * kAhead;
    std::int64_t i = 0;
    for (; i + kLanes <= common && (i + kLanes) * kPeriod <= extent; i += kLanes) {
      const E* const asked = short_rows ? next + i * kPeriod : from + i * kPeriod + kAhead;
      V vectors[2 * kPairs];
#pragma GCC unroll 8
      for (int v = 0; v < kPeriod; ++v) {
        vectors[v] = load_widened(tag, from + i * kPeriod + v * kLanes);
        hwy::Prefetch(asked + v * kLanes);
      }
      if constexpr (kPeriod % 2 == 1) vectors[kPeriod] = vectors[kPeriod - 1];
      take(i, vectors);
    }
    if (i < common && common >= kLanes) {  // some once more
      i = common - kLanes;
      V vectors[2 * kPairs];
      for (int v = 0; v < kPeriod; ++v) {
        const std::int64_t first = i * kPeriod + v * kLanes;
        const std::int64_t valid = std::clamp<std::int64_t>(extent - first, 0, kLanes);
        vectors[v] = load_elements<false>(tag, from + first, valid);
      }
      if constexpr (kPeriod % 2 == 1) vectors[kPeriod] = vectors[kPeriod - 1];
      take(i, vectors);
      i = common;
    }
    for (int l = 0; l < lattices; ++l) {
      for (std::int64_t j = i; j < job.counts[l]; ++j) lines[l][j] = widen<E, T>(from[j * kPeriod + job.residues[l]]);
    }
  }
}

// What is written piece by piece to places that follow each other, put together as whole cache lines.
template <typename E>
class Lines {
 public:
  static constexpr std::int64_t kMost = 1024;  // elements of a piece

  explicit Lines(bool past_caches) : past_caches_(past_caches) {}

  // Where `count` elements for `to` are put; whole vectors may be written there.
  HWY_INLINE E* room(E* to, std::int64_t count) {
    if (target_ == nullptr || target_ + end_ != to) {
      finish();
      const auto begin = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) % 64 / sizeof(E));
      target_ = to - begin;
      begin_ = end_ = begin;
    } else if (end_ + count > kSize) {
      put_lines();
    }
    E* const place = buffer_ + end_;
    end_ += count;
    return place;
  }

  void finish() {
    if (target_ == nullptr) return;
    put_lines();
    std::copy(buffer_ + begin_, buffer_ + end_, target_ + begin_);
    target_ = nullptr;
  }

 private:
  static constexpr std::int64_t kLine = 64 / sizeof(E);
  using Moved = std::conditional_t<sizeof(E) == 2, std::uint16_t, E>;  // as it is
  static constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<Moved>());
  static constexpr std::int64_t kSize = 2 * kMost;

  void put_lines() {
    const hn::ScalableTag<Moved> tag;
    const auto place = [](E* element) { return reinterpret_cast<Moved*>(element); };
    const std::int64_t whole = end_ / kLine * kLine;
    if (whole == 0) return;
    std::int64_t i = 0;
    if (begin_ > 0) {
      std::copy(buffer_ + begin_, buffer_ + kLine, target_ + begin_);
      i = kLine;
    }
    for (; i < whole; i += kLanes) {
      const auto values = hn::Load(tag, place(buffer_ + i));
      past_caches_ ? hn::Stream(values, tag, place(target_ + i)) : hn::Store(values, tag, place(target_ + i));
    }
    for (std::int64_t v = 0; v < kLine; v += kLanes) {
      hn::Store(hn::Load(tag, place(buffer_ + whole + v)), tag, place(buffer_ + v));
    }
    target_ += whole;
    begin_ = 0;
    end_ -= whole;
  }

  bool past_caches_;
  E* target_ = nullptr;  // of the buffer: a cache line
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
  alignas(64) E buffer_[kSize + kMostLattices * HWY_MAX_BYTES / sizeof(E) + kLine];
};

template <int kPairs, typename E, typename T>
void put_rows_together(const PutTogether<E, T>& job) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<decltype(tag)>;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const std::int64_t period = job.period;
  const std::int64_t block = period * kLanes;
  PairLookups<T, kPairs> lookups;
  for (std::int64_t f = 0; f < job.filled; ++f) {
    for (std::int64_t i = 0; i < kLanes; ++i) {
      const std::int64_t place = i * period + job.residues[f];
      lookups.set(place / kLanes, place % kLanes, f * kLanes + i);
    }
  }
  Lines<E> lines(job.past_caches);
  const std::int64_t most = Lines<E>::kMost / block * block;
  for (std::int64_t place = 0; place < job.channels * job.rows; ++place) {
    const std::int64_t channel = place / job.rows;
    const std::int64_t r = place % job.rows;
    const auto bias_at = [&](std::int64_t i) { return job.bias == nullptr ? T{0} : widen<E, T>(job.bias[i]); };
    const auto bias = hn::Set(tag, bias_at(channel));
    V biases[2 * kPairs];
    for (int f = 0; f < 2 * kPairs; ++f) {
      biases[f] = hn::Set(tag, bias_at(channel + std::min<std::int64_t>(f, job.filled - 1) * job.bias_step));
    }
    const std::int64_t* const places = job.places + r * job.filled;
    for (std::int64_t first = 0; first < job.length; first += most) {
      const std::int64_t count = std::min(most, job.length - first);
      E* const to = lines.room(job.to + channel * job.to_step + job.to_places[r] + first, count);
      if (job.filled == 0 || places[0] < 0) {
        for (std::int64_t o = 0; o < count; o += kLanes) store_narrowed(tag, bias, to + o);
        continue;
      }
      const T* const from = job.from + channel * job.channel_step + first / period;
      for (std::int64_t o = 0, i = 0; o < count; o += block, i += kLanes) {
        V sums[2 * kPairs];
#pragma GCC unroll 8
        for (int f = 0; f < 2 * kPairs; ++f) {
          sums[f] = hn::Add(hn::LoadU(tag, from + places[std::min<std::int64_t>(f, job.filled - 1)] + i), biases[f]);
        }
        for (std::int64_t v = 0; v < period; ++v) {
          store_narrowed(tag, look_up<kPairs>(tag, lookups.get(v), sums, bias), to + o + v * kLanes);
        }
      }
    }
  }
  lines.finish();
}
#endif

// False: not by this instruction set, or not for so many lattices.
template <typename E, typename T>
bool take_apart([[maybe_unused]] const TakeApart<E, T>& job) {
#if TCONV_CPU_LOOKS_UP_PAIRS
  if (job.lattices == 0) return false;
  switch (job.period) {
    case 2: return take_apart_rows<2>(job), true;
    case 3: return take_apart_rows<3>(job), true;
    case 4: return take_apart_rows<4>(job), true;
    case 5: return take_apart_rows<5>(job), true;
    case 6: return take_apart_rows<6>(job), true;
    case 8: return take_apart_rows<8>(job), true;
    default: break;
  }
#endif
  return false;
}

template <typename E, typename T>
bool put_together([[maybe_unused]] const PutTogether<E, T>& job) {
#if TCONV_CPU_LOOKS_UP_PAIRS
  if (job.period > kMostLattices) return false;
  switch ((job.filled + 1) / 2) {
    case 0:
    case 1: return put_rows_together<1>(job), true;
    case 2: return put_rows_together<2>(job), true;
    case 3: return put_rows_together<3>(job), true;
    case 4: return put_rows_together<4>(job), true;
    default: break;
  }
#endif
  return false;
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#endif
