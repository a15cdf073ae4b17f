// The loops that touch tensors: loads, stores, packing, for every element type.
#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elements.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <type_traits>

#include "cpu/cells-inl.h"
#include "cpu/elements-inl.h"
#include "cpu/lattices-inl.h"
#include "cpu/simd.h"
#include "cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A step that the compiler knows becomes loads and shuffles.
template <std::int64_t kStep, typename E, typename T>
HWY_INLINE void load_every(const E* from, T* HWY_RESTRICT to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = widen<E, T>(from[i * kStep]);
}

// Every second number is the lower half of a word.
HWY_INLINE void load_halves(const BFloat16* from, float* HWY_RESTRICT to, std::int64_t count) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (std::endian::native == std::endian::little) {
    const hn::ScalableTag<float> tag;
    const hn::RebindToUnsigned<decltype(tag)> words;
    const hn::Repartition<std::uint8_t, decltype(tag)> bytes;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
    // The last word may end behind the last number.
    for (; i + lanes < count; i += lanes) {
      const auto pairs = hn::BitCast(words, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(from + 2 * i)));
      hn::StoreU(hn::BitCast(tag, hn::ShiftLeft<16>(pairs)), tag, to + i);
    }
  }
#endif
  for (; i < count; ++i) to[i] = to_float(from[2 * i]);
}

// As the only lattice of a row. False: nothing is done.
template <typename E, typename T>
bool load_apart_from(const E* from, std::int64_t from_step, T* to, std::int64_t count) {
  const std::int64_t zero = 0;
  TakeApart<E, T> job;
  job.from = from;
  job.from_places = job.to_places = job.residues = &zero;
  job.rows = job.lattices = 1;
  job.period = from_step;
  job.counts = &count;
  job.lines = &to;
  return take_apart(job);
}

template <typename E, typename T>
void load(const E* from, std::int64_t from_step, T* HWY_RESTRICT to, std::int64_t to_step, std::int64_t count) {
  if (from_step == 1 && to_step == 1) {
    if constexpr (std::is_same_v<E, BFloat16>) {
      const hn::ScalableTag<T> tag;
      const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
      std::int64_t i = 0;
      for (; i + lanes <= count; i += lanes) hn::StoreU(load_widened(tag, from + i), tag, to + i);
      if (i < count)
        store_elements<false>(tag, load_elements<false>(tag, from + i, count - i), to + i, count - i, false);
    } else {
      load_every<1>(from, to, count);
    }
  } else if (from_step == 2 && to_step == 1) {
    if constexpr (std::is_same_v<E, BFloat16>) return load_halves(from, to, count);
    load_every<2>(from, to, count);
  } else if (from_step == 4 && to_step == 1) {
    load_every<4>(from, to, count);
  } else if (to_step == 1) {
    std::int64_t i = 0;
    if constexpr (std::is_same_v<E, T>) {
      const hn::ScalableTag<T> tag;
      const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
      if (count >= lanes && Strided<T>::fits(from_step)) {
        const Strided<T> strided(from_step);
        for (; i + lanes <= count; i += lanes) hn::StoreU(strided(from + i * from_step), tag, to + i);
      }
    }
    constexpr std::int64_t kFewest = 64;  // that pay for looking them up
    if (!std::is_same_v<E, T> && count >= kFewest && load_apart_from(from, from_step, to, count)) return;
    for (; i < count; ++i) to[i] = widen<E, T>(from[i * from_step]);
  } else if (from_step == 1) {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_step] = widen<E, T>(from[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_step] = widen<E, T>(from[i * from_step]);
  }
}

// A row plus a bias. Rows are often shorter than a vector, or little longer: what is left beyond whole vectors is one
// masked vector where there are such.
template <typename E, typename T>
HWY_INLINE void store_row(const T* from, E* to, std::int64_t count, T bias) {
  const hn::ScalableTag<T> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  const auto every = hn::Set(tag, bias);
  std::int64_t i = 0;
  if constexpr (kMovesVectors<E, T>) {
    for (; i + lanes <= count; i += lanes) store_narrowed(tag, hn::Add(hn::LoadU(tag, from + i), every), to + i);
    if constexpr (kMaskedStores) {
      if (i == count) return;
      const auto values = hn::Add(load_elements<false>(tag, from + i, count - i), every);
      return store_elements<false>(tag, values, to + i, count - i, false);
    }
  }
  for (; i < count; ++i) to[i] = narrow<E, T>(from[i] + bias);
}

template <typename E, typename T>
void store(const T* HWY_RESTRICT from, std::int64_t from_step, E* to, std::int64_t to_step, std::int64_t count,
           T bias) {
  if (from_step == 1 && to_step == 1) {
    store_row(from, to, count, bias);
  } else if (from_step == 1) {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_step] = narrow<E, T>(from[i] + bias);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_step] = narrow<E, T>(from[i * from_step] + bias);
  }
}

template <typename T>
constexpr bool kVectorIsLine = hn::MaxLanes(hn::ScalableTag<T>()) * sizeof(T) == 64;

// Elements up to the next cache line.
template <typename T>
HWY_INLINE std::int64_t until_line(const T* place) {
  return static_cast<std::int64_t>((64 - reinterpret_cast<std::uintptr_t>(place) % 64) % 64 / sizeof(T));
}

// Two, three or four phases side by side. Reads whole vectors: up to one past the end of the row.
template <typename T, std::int64_t kPhases>
void interleave_few(const Interleave<T, T>& job) {
  const hn::ScalableTag<T> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  const auto bias = hn::Set(tag, job.bias);
  const auto store = [&](std::int64_t i, T* to) {
    const auto line = [&](std::int64_t p) { return hn::Add(hn::LoadU(tag, job.from + job.places[p] + i), bias); };
    if constexpr (kPhases == 2) hn::StoreInterleaved2(line(0), line(1), tag, to);
    if constexpr (kPhases == 3) hn::StoreInterleaved3(line(0), line(1), line(2), tag, to);
    if constexpr (kPhases == 4) hn::StoreInterleaved4(line(0), line(1), line(2), line(3), tag, to);
  };
  HWY_ALIGN T some[kPhases * HWY_MAX_BYTES / sizeof(T)];
  std::int64_t i = 0;
  if (job.past_caches && kVectorIsLine<T>) {
    // Cells up to a whole line, then lines.
    std::int64_t lead = until_line(job.to);
    for (std::int64_t line = 1; line < kPhases && lead % kPhases != 0; ++line) lead += lanes;
    const std::int64_t first = lead / kPhases;
    constexpr std::int64_t kFewestLines = 16;  // of a row that begins anywhere
    const bool worth = lead == 0 || job.count * kPhases >= kFewestLines * lanes;
    if (worth && lead % kPhases == 0 && first + lanes <= job.count) {
      for (; i < first; i += lanes) {
        store(i, some);
        std::copy_n(some, std::min(lanes, first - i) * kPhases, job.to + i * kPhases);
      }
      for (i = first; i + lanes <= job.count; i += lanes) {
        store(i, some);
        for (std::int64_t p = 0; p < kPhases; ++p) {
          hn::Stream(hn::Load(tag, some + p * lanes), tag, job.to + i * kPhases + p * lanes);
        }
      }
    }
  }
  for (; i + lanes <= job.count; i += lanes) store(i, job.to + i * kPhases);
  if (i == job.count) return;
  store(i, some);
  std::copy_n(some, (job.count - i) * kPhases, job.to + i * kPhases);
}

// Any number of phases: cell by cell, or several cells at once where they fill a vector.
template <typename T>
void interleave_many(const Interleave<T, T>& job) {
  const hn::ScalableTag<T> tag;
  const hn::RebindToSigned<decltype(tag)> itag;
  using Index = hn::TFromD<decltype(itag)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  const auto bias = hn::Set(tag, job.bias);
  // The outputs of `together` cells begin at the same places of the vectors as those of the next ones.
  const std::int64_t together = lanes / std::gcd(lanes, job.phases);
  const std::int64_t vectors = together * job.phases / lanes;
  constexpr std::int64_t kMostVectorsTogether = 16;
  std::int64_t i = 0;
  const std::int64_t farthest = *std::max_element(job.places, job.places + job.phases);
  if (vectors <= kMostVectorsTogether && job.count >= together && Strided<T>::fits(farthest)) {
    Index places[kMostVectorsTogether * HWY_MAX_BYTES / sizeof(T)];
    for (std::int64_t o = 0; o < vectors * lanes; ++o) {
      places[o] = static_cast<Index>(job.places[o % job.phases] + o / job.phases);
    }
    for (; i + together <= job.count; i += together) {
      for (std::int64_t v = 0; v < vectors; ++v) {
        const auto values = hn::GatherIndex(tag, job.from + i, hn::LoadU(itag, places + v * lanes));
        hn::StoreU(hn::Add(values, bias), tag, job.to + i * job.phases + v * lanes);
      }
    }
  }
  for (; i < job.count; ++i) {
    for (std::int64_t p = 0; p < job.phases; ++p) {
      job.to[i * job.phases + p] = job.from[job.places[p] + i] + job.bias;
    }
  }
}

template <typename E, typename T>
void interleave(const Interleave<E, T>& job);

constexpr std::int64_t kMostRounded = 1024;  // elements that are put together before they are rounded

// Some cells at a time, as those of the arithmetic type are.
template <typename E, typename T>
void interleave_rounded(const Interleave<E, T>& job) {
  HWY_ALIGN T row[kMostRounded];
  Interleave<T, T> part;
  part.places = job.places;
  part.phases = part.period = job.phases;
  part.cell_step = part.to_step = 1;
  part.to = row;
  part.bias = job.bias;
  const std::int64_t most = kMostRounded / job.phases;
  for (std::int64_t i = 0; i < job.count; i += most) {
    part.from = job.from + i;
    part.count = std::min(most, job.count - i);
    interleave<T, T>(part);
    put_row<E, T>(row, job.to + i * job.phases, part.count * job.phases, false);
  }
}

template <typename E, typename T>
void interleave(const Interleave<E, T>& job) {
  if constexpr (std::is_same_v<E, T>) {
    if (job.to_step == 1 && job.cell_step == 1 && job.period == job.phases) {
      switch (job.phases) {
        case 2: return interleave_few<T, 2>(job);
        case 3: return interleave_few<T, 3>(job);
        case 4: return interleave_few<T, 4>(job);
        default: return interleave_many(job);
      }
    }
  } else if (job.to_step == 1 && job.cell_step == 1 && job.period == job.phases && job.phases <= kMostRounded) {
    return interleave_rounded(job);
  }
  for (std::int64_t i = 0; i < job.count; ++i) {
    const T* const from = job.from + i * job.cell_step;
    E* const to = job.to + i * job.period;
    for (std::int64_t p = 0; p < job.phases; ++p) {
      to[p * job.to_step] = narrow<E, T>(from[job.places[p]] + job.bias);
    }
  }
}

template <typename E, typename T>
void load_channels(const E* from, std::int64_t from_step, T* to, std::int64_t to_step, std::int64_t channels,
                   std::int64_t count) {
  load_transposed<E>([&](std::int64_t c) { return from + c * from_step; }, to, to_step, channels, count);
}

template <typename E, typename T>
void load_lines(const E* from, const std::int64_t* offsets, T* to, std::int64_t to_step, std::int64_t lines,
                std::int64_t count) {
  load_transposed<E>([&](std::int64_t c) { return from + offsets[c]; }, to, to_step, lines, count);
}

template <typename E, typename T>
HWY_INLINE T bias_of(const StoreRows<E, T>& job, std::int64_t channel) {
  return job.bias == nullptr ? T{0} : widen<E, T>(job.bias[channel]);
}

// As many rows as a vector has lanes, of some channels, into to[channel to_step]; `lines`: each is a whole cache line.
template <typename E, typename T>
void store_vector_of_rows(const StoreRows<E, T>& job, const T* const* rows, std::int64_t valid, std::int64_t first,
                          std::int64_t last, E* to, bool lines) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  if constexpr (kLanes >= kBlock<T>) {
    for (std::int64_t c = first; c < last; c += kBlock<T>) {
      transpose_block(
          tag, [&](std::int64_t r) { return rows[r] + c; },
          [&](std::int64_t q, auto sums) {
            if (c + q >= last) return;
            const auto values = hn::Add(sums, hn::Set(tag, bias_of(job, c + q)));
            E* const place = to + (c + q) * job.to_step;
            if constexpr (std::is_same_v<E, T>) {
              if (lines) return hn::Stream(values, tag, place);
              if (valid == kLanes) return hn::StoreU(values, tag, place);
            }
            if constexpr (std::is_same_v<E, BFloat16>) {
              if (valid == kLanes) return store_rounded(tag, values, place);
            }
            store_elements<false>(tag, values, place, valid, false);
          });
    }
  } else {
    for (std::int64_t c = first; c < last; ++c) {
      for (std::int64_t r = 0; r < valid; ++r) {
        to[c * job.to_step + r] = narrow<E, T>(rows[r][c] + bias_of(job, c));
      }
    }
  }
}

template <typename E, typename T>
void store_rows(const StoreRows<E, T>& job) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr std::int64_t kTogether = 16;  // channels: each is a stream of its own to the memory
  const std::int64_t total = job.count * job.phases;
  // Whole lines, and what lies before the first of them.
  const bool lines = job.past_caches && std::is_same_v<E, T> && kVectorIsLine<T> && job.to_step % kLanes == 0;
  const std::int64_t lead = lines ? until_line(job.to) : 0;
  for (std::int64_t first = 0; first < job.channels; first += kTogether) {
    const std::int64_t last = std::min(first + kTogether, job.channels);
    const T* cell = job.from;
    std::int64_t phase = 0;
    for (std::int64_t r = 0, valid = 0; r < total; r += valid) {
      valid = std::min(r == 0 && lead > 0 ? lead : kLanes, total - r);
      const T* rows[kLanes];
      for (std::int64_t j = 0; j < valid; ++j) {
        rows[j] = cell + job.places[phase];
        if (++phase < job.phases) continue;
        phase = 0;
        cell += job.cell_step;
      }
      for (std::int64_t j = valid; j < kLanes; ++j) rows[j] = rows[0];
      store_vector_of_rows(job, rows, valid, first, last, job.to + r, lines && valid == kLanes);
    }
  }
}

// to[i + channel to_step] = row(i)[channel], rounded.
template <typename E, typename Row>
void scatter_rounded(const Row& row, E* to, std::int64_t to_step, std::int64_t count, std::int64_t channels) {
  using T = std::remove_cvref_t<decltype(*row(0))>;
  constexpr std::int64_t kRows = 64;
  constexpr std::int64_t kChannels = 16;
  T lines[kChannels * kRows];
  for (std::int64_t i = 0; i < count; i += kRows) {
    const std::int64_t rows = std::min(kRows, count - i);
    for (std::int64_t first = 0; first < channels; first += kChannels) {
      const std::int64_t some = std::min(kChannels, channels - first);
      load_transposed<T, T>([&](std::int64_t r) { return row(i + r) + first; }, lines, kRows, rows, some);
      for (std::int64_t c = 0; c < some; ++c)
        put_row<E, T>(lines + c * kRows, to + i + (first + c) * to_step, rows, false);
    }
  }
}

template <typename E, typename T>
void scatter(const Scatter<E, T>& job) {
  std::int64_t c = 0;
  // Rows that go side by side are transposed.
  std::int64_t side_by_side = 1;
  while (side_by_side < job.count && job.to_places[side_by_side] == job.to_places[0] + side_by_side) ++side_by_side;
  if (side_by_side == job.count && job.count > 1) {
    E* const to = job.to + job.to_places[0];
    const auto row = [&](std::int64_t i) { return job.from + job.from_places[i]; };
    if constexpr (std::is_same_v<E, T>) return load_transposed<T>(row, to, job.to_step, job.count, job.channels);
    return scatter_rounded(row, to, job.to_step, job.count, job.channels);
  }
  if constexpr (std::is_same_v<E, T>) {
    const hn::ScalableTag<T> tag;
    const hn::RebindToSigned<decltype(tag)> itag;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
    if (Strided<T>::fits(job.to_step)) {
      const auto step = hn::Set(itag, static_cast<hn::TFromD<decltype(itag)>>(job.to_step));
      const auto indices = hn::Mul(hn::Iota(itag, 0), step);
      for (; c + lanes <= job.channels; c += lanes) {
        for (std::int64_t i = 0; i < job.count; ++i) {
          const auto values = hn::LoadU(tag, job.from + job.from_places[i] + c);
          hn::ScatterIndex(values, tag, job.to + job.to_places[i] + c * job.to_step, indices);
        }
      }
    }
  }
  for (; c < job.channels; ++c) {
    for (std::int64_t i = 0; i < job.count; ++i) {
      job.to[job.to_places[i] + c * job.to_step] = narrow<E, T>(job.from[job.from_places[i] + c]);
    }
  }
}

// Where all taps of a target lie side by side: transposed, as many channels at a time as lie side by side too.
template <typename E, typename T>
bool pack_whole_taps(const PackWeights<E, T>& job) {
  constexpr std::int64_t kMost = 64;  // elements of a target at a time
  constexpr std::int64_t kMostTaps = 1024;
  const hn::ScalableTag<T> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  if (!kMaskedStores || !job.whole_taps || job.tap_count == 0 || job.tap_count > kMostTaps || lanes < 4) return false;
  const PackTap* in_order[kMostTaps];
  std::fill_n(in_order, job.tap_count, nullptr);
  for (std::int64_t t = 0; t < job.tap_count; ++t) in_order[job.taps[t].from] = job.taps + t;
  // Expanded weights: several taps are one element.
  if (std::find(in_order, in_order + job.tap_count, nullptr) != in_order + job.tap_count) return false;
  const std::int64_t together =
      job.channel_step == job.tap_count ? std::max<std::int64_t>(kMost / job.tap_count, 1) : 1;
  if (job.tap_count > kMost && 2 * job.valid < lanes) return false;
  if (!std::is_same_v<E, T> && together * job.tap_count < lanes) return false;  // widened vector by vector
  T packed[kMost * HWY_MAX_BYTES / sizeof(T)];
  const std::int64_t end = job.first_channel + job.channels;
  for (std::int64_t c = job.first_channel; c < end; c += together) {
    const std::int64_t count = std::min(together, end - c) * job.tap_count;
    for (std::int64_t first = 0; first < job.width; first += lanes) {
      const std::int64_t valid = std::min(lanes, job.valid - first);
      const E* const targets = job.source + c * job.channel_step + first * job.target_step;
      if (valid < lanes) std::fill(std::begin(packed), std::end(packed), T{0});
      const auto whole = hn::FirstN(tag, job.width - first);
      std::int64_t channel = c;
      std::int64_t t = 0;
      for (std::int64_t piece = 0; piece < count; piece += kMost) {
        const std::int64_t here = std::min(kMost, count - piece);
        load_channels<E, T>(targets + piece, job.target_step, packed, lanes, valid, here);
        for (const T* row = packed; row < packed + here * lanes; row += lanes) {
          const PackTap& tap = *in_order[t];
          T* const to = job.packed + tap.to + channel * tap.to_step + first;
          if (first + lanes <= job.width) {
            hn::StoreU(hn::LoadU(tag, row), tag, to);
          } else {
            hn::BlendedStore(hn::LoadU(tag, row), whole, tag, to);
          }
          if (++t == job.tap_count) {
            t = 0;
            ++channel;
          }
        }
      }
    }
  }
  return true;
}

// Vectors of targets, gathered, channel after channel: memory is read in order. False where the instruction set has no
// masked store.
template <typename T>
bool pack_gathered(const PackWeights<T, T>& job) {
  if constexpr (!kMaskedStores) return false;
  if (!Strided<T>::fits(job.target_step)) return false;
  const hn::ScalableTag<T> tag;
  const hn::RebindToSigned<decltype(tag)> itag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  const auto steps =
      hn::Mul(hn::Iota(itag, 0), hn::Set(itag, static_cast<hn::TFromD<decltype(itag)>>(job.target_step)));
  for (std::int64_t c = job.first_channel; c < job.first_channel + job.channels; ++c) {
    for (std::int64_t first = 0; first < job.width; first += lanes) {
      const auto valid = hn::FirstN(tag, std::clamp<std::int64_t>(job.valid - first, 0, lanes));
      const auto whole = hn::FirstN(tag, job.width - first);
      // Lanes beyond the last target read the first one once more.
      const T* const targets = job.source + c * job.channel_step + (first < job.valid ? first * job.target_step : 0);
      const auto indices = hn::IfThenElseZero(hn::RebindMask(itag, valid), steps);
      for (std::int64_t t = 0; t < job.tap_count; ++t) {
        const PackTap& tap = job.taps[t];
        const auto values = hn::IfThenElseZero(valid, hn::GatherIndex(tag, targets + tap.from, indices));
        hn::BlendedStore(values, whole, tag, job.packed + tap.to + c * tap.to_step + first);
      }
    }
  }
  return true;
}

// Where targets lie side by side: all of them at once, so that memory is read in order.
template <typename T>
void pack_copies(const PackWeights<T, T>& job) {
  constexpr std::int64_t kChannelsAhead = 8;
  const std::int64_t end = job.first_channel + job.channels;
  const hn::ScalableTag<T> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  for (std::int64_t c = job.first_channel; c < end; ++c) {
    for (std::int64_t t = 0; t < job.tap_count; ++t) {
      const T* const from = job.source + c * job.channel_step + job.taps[t].from;
      T* const to = job.packed + job.taps[t].to + c * job.taps[t].to_step;
      // Channels are far apart in memory, which nothing else foretells.
      const std::int64_t ahead = c + kChannelsAhead < end ? kChannelsAhead * job.channel_step : 0;
      std::int64_t m = 0;
      for (; m + lanes <= job.valid; m += lanes) {
        hwy::Prefetch(from + ahead + m);
        hn::StoreU(hn::LoadU(tag, from + m), tag, to + m);
      }
      for (; m < job.valid; ++m) to[m] = from[m];
      for (; m < job.width; ++m) to[m] = 0;
    }
  }
}

// Where the channels of a target lie side by side: transposed, tap by tap.
template <typename E, typename T>
void pack_side_by_side(const PackWeights<E, T>& job) {
  const E* const source = job.source + job.first_channel;
  for (std::int64_t t = 0; t < job.tap_count; ++t) {
    const PackTap& tap = job.taps[t];
    T* const to = job.packed + tap.to + job.first_channel * tap.to_step;
    for (std::int64_t c = 0; job.valid < job.width && c < job.channels; ++c) {
      std::fill(to + c * tap.to_step + job.valid, to + c * tap.to_step + job.width, T{0});
    }
    load_channels<E, T>(source + tap.from, job.target_step, to, tap.to_step, job.valid, job.channels);
  }
}

// Of each channel all taps: they lie side by side, so that a cache line is read once.
template <typename E, typename T>
void pack_weights(const PackWeights<E, T>& job) {
  if (job.channel_step == 1 && job.tap_count > 0 && job.channels > 1) return pack_side_by_side(job);
  if constexpr (std::is_same_v<E, T>) {
    if (job.target_step == 1 && job.valid > 1) return pack_copies(job);
  }
  if (job.target_step != 1 && pack_whole_taps(job)) return;
  if constexpr (std::is_same_v<E, T>) {
    if (job.valid > 1 && pack_gathered(job)) return;
  }
  for (std::int64_t c = job.first_channel; c < job.first_channel + job.channels; ++c) {
    const E* const channel = job.source + c * job.channel_step;
    for (std::int64_t t = 0; t < job.tap_count; ++t) {
      const E* const from = channel + job.taps[t].from;
      T* HWY_RESTRICT to = job.packed + job.taps[t].to + c * job.taps[t].to_step;
      for (std::int64_t m = 0; m < job.valid; ++m) to[m] = widen<E, T>(from[m * job.target_step]);
      for (std::int64_t m = job.valid; m < job.width; ++m) to[m] = 0;
    }
  }
}

template <typename E, typename T>
void add(const E* from, std::int64_t step, double* HWY_RESTRICT sums, std::int64_t count) {
  if (step == 1) {
    for (std::int64_t i = 0; i < count; ++i) sums[i] += widen<E, T>(from[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) sums[i] += widen<E, T>(from[i * step]);
  }
}

// Sixteen partial sums in double, the same for every instruction set.
template <typename E, typename T>
double sum(const E* from, std::int64_t step, std::int64_t count) {
  constexpr std::int64_t kParts = 16;
  double parts[kParts] = {};
  std::int64_t i = 0;
  if (step == 1) {
    for (; i + kParts <= count; i += kParts) {
      for (std::int64_t j = 0; j < kParts; ++j) parts[j] += widen<E, T>(from[i + j]);
    }
  }
  for (; i < count; ++i) parts[i % kParts] += widen<E, T>(from[i * step]);
  double total = 0;
  for (const double part : parts) total += part;
  return total;
}

template <typename E, typename T>
ElementOps<E, T> make_element_ops() {
  return {load<E, T>,          store<E, T>,      interleave<E, T>,   store_rows<E, T>,
          store_cells<E, T>,   take_apart<E, T>, put_together<E, T>, load_groups<E, T>,
          load_channels<E, T>, load_lines<E, T>, scatter<E, T>,      pack_weights<E, T>,
          add<E, T>,           sum<E, T>};
}

const ElementOps<float, float>& float_elements() {
  static const auto ops = make_element_ops<float, float>();
  return ops;
}
const ElementOps<double, double>& double_elements() {
  static const auto ops = make_element_ops<double, double>();
  return ops;
}
const ElementOps<Float16, float>& float16_elements() {
  static const auto ops = make_element_ops<Float16, float>();
  return ops;
}
const ElementOps<BFloat16, float>& bfloat16_elements() {
  static const auto ops = make_element_ops<BFloat16, float>();
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(float_elements);
HWY_EXPORT(double_elements);
HWY_EXPORT(float16_elements);
HWY_EXPORT(bfloat16_elements);

template <>
const ElementOps<float, float>& element_ops<float, float>() {
  return HWY_DYNAMIC_DISPATCH(float_elements)();
}
template <>
const ElementOps<double, double>& element_ops<double, double>() {
  return HWY_DYNAMIC_DISPATCH(double_elements)();
}
template <>
const ElementOps<Float16, float>& element_ops<Float16, float>() {
  return HWY_DYNAMIC_DISPATCH(float16_elements)();
}
template <>
const ElementOps<BFloat16, float>& element_ops<BFloat16, float>() {
  return HWY_DYNAMIC_DISPATCH(bfloat16_elements)();
}

}  // namespace tconv::cpu
#endif
