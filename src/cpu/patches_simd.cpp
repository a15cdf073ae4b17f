#include "cpu/patches_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/patches_simd.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kRegisters = (HWY_ARCH_X86 ? HWY_TARGET <= HWY_AVX3 : HWY_TARGET == HWY_NEON) ? 32 : 16;

// Lines of a tile and its vectors: sums, the vectors of one step, and what is broadcast stay in registers.
constexpr int tile_lines(int taps) { return std::max(kMostPatchLines / taps, 1); }
constexpr int tile_vectors(int taps) {
  return std::clamp((kRegisters - 1) / (tile_lines(taps) * taps + 1), 1, kMostPatchVectors);
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
template <typename T>
using Place = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

// What the two vectors of interleaved ones are taken from: numbers of lanes, those of the second go on.
template <typename T>
alignas(64) constexpr auto kWholePlaces = [] {
  constexpr std::size_t kLanes = 64 / sizeof(T);
  std::array<Place<T>, 2 * kLanes> places{};
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<Place<T>>(i / 2 + i % 2 * kLanes);
  return places;
}();
#endif

// a[0], b[0], a[1], b[1] ... of two vectors.
#if HWY_TARGET == HWY_SCALAR
template <class V>
HWY_INLINE void interleave_whole(V& /*a*/, V& /*b*/) {}
template <class V>
HWY_INLINE void part_whole(V& /*a*/, V& /*b*/) {}
#else
template <class V>
HWY_INLINE void interleave_whole(V& a, V& b) {
  const hn::DFromV<V> tag;
  using T = hn::TFromV<V>;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::DFromV<V>());
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (kLanes * sizeof(T) == 64) {
    const hn::RebindToUnsigned<decltype(tag)> places;
    const auto lower = hn::Load(places, kWholePlaces<T>.data());
    const auto upper = hn::Load(places, kWholePlaces<T>.data() + kLanes);
    if constexpr (sizeof(T) == 4) {
      const V first{_mm512_permutex2var_ps(a.raw, lower.raw, b.raw)};
      b = V{_mm512_permutex2var_ps(a.raw, upper.raw, b.raw)};
      a = first;
    } else {
      const V first{_mm512_permutex2var_pd(a.raw, lower.raw, b.raw)};
      b = V{_mm512_permutex2var_pd(a.raw, upper.raw, b.raw)};
      a = first;
    }
    return;
  }
#endif
  const V lower = hn::InterleaveLower(tag, a, b);
  const V upper = hn::InterleaveUpper(tag, a, b);
  if constexpr (kLanes * sizeof(T) == 32) {
    a = hn::ConcatLowerLower(tag, upper, lower);
    b = hn::ConcatUpperUpper(tag, upper, lower);
  } else {
    static_assert(kLanes * sizeof(T) == 16 || kLanes * sizeof(T) == 64);
    a = lower;
    b = upper;
  }
}

// The other way.
template <class V>
HWY_INLINE void part_whole(V& a, V& b) {
  const hn::DFromV<V> tag;
  const V even = hn::ConcatEven(tag, b, a);
  b = hn::ConcatOdd(tag, b, a);
  a = even;
}
#endif

// The vectors of kTaps taps become those of their cells, in order, one tap beside the other.
template <int kTaps, class V>
HWY_INLINE void interleave_taps(V (&taps)[kTaps]) {
  if constexpr (kTaps > 1) {
    V even[kTaps / 2];
    V odd[kTaps / 2];
#pragma GCC unroll 4
    for (int i = 0; i < kTaps / 2; ++i) {
      even[i] = taps[2 * i];
      odd[i] = taps[2 * i + 1];
    }
    interleave_taps<kTaps / 2>(even);
    interleave_taps<kTaps / 2>(odd);
#pragma GCC unroll 4
    for (int i = 0; i < kTaps / 2; ++i) {
      interleave_whole(even[i], odd[i]);
      taps[2 * i] = even[i];
      taps[2 * i + 1] = odd[i];
    }
  }
}

// The other way.
template <int kTaps, class V>
HWY_INLINE void part_taps(V (&taps)[kTaps]) {
  if constexpr (kTaps > 1) {
    V even[kTaps / 2];
    V odd[kTaps / 2];
#pragma GCC unroll 4
    for (int i = 0; i < kTaps / 2; ++i) {
      even[i] = taps[2 * i];
      odd[i] = taps[2 * i + 1];
      part_whole(even[i], odd[i]);
    }
    part_taps<kTaps / 2>(even);
    part_taps<kTaps / 2>(odd);
#pragma GCC unroll 4
    for (int i = 0; i < kTaps / 2; ++i) {
      taps[2 * i] = even[i];
      taps[2 * i + 1] = odd[i];
    }
  }
}

template <typename T, int kShift, int kLines, int kVectors>
void multiply_patches(const MultiplyPatches<T>& job) {
  constexpr int kTaps = 1 << kShift;
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<decltype(tag)>;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  V sums[kLines * kTaps][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kLines * kTaps; ++m) {
    const V initial = hn::Set(tag, job.initial[m / kTaps]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[m][v] = initial;
  }
  const T* a = job.a;
  const T* b = job.b;
  for (std::int64_t k = 0; k < job.depth; ++k) {
    V columns[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) columns[v] = hn::LoadU(tag, b + v * kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < kLines * kTaps; ++m) {
      const V row = hn::Set(tag, a[m]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[m][v] = hn::MulAdd(row, columns[v], sums[m][v]);
    }
    a += job.a_step;
    b += job.b_step;
  }
#pragma GCC unroll 8
  for (int line = 0; line < kLines; ++line) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      V taps[kTaps];
#pragma GCC unroll 8
      for (int t = 0; t < kTaps; ++t) taps[t] = sums[line * kTaps + t][v];
      interleave_taps<kTaps>(taps);
      T* const to = job.to + job.line_places[line] + job.vector_places[v];
      if (job.past_caches) {
#pragma GCC unroll 8
        for (int t = 0; t < kTaps; ++t) hn::Stream(taps[t], tag, to + t * kLanes);
      } else {
#pragma GCC unroll 8
        for (int t = 0; t < kTaps; ++t) hn::StoreU(taps[t], tag, to + t * kLanes);
      }
    }
  }
}

template <typename T>
void copy_rows(const CopyRows<T>& job) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  for (std::int64_t row = 0; row < job.rows; ++row) {
    const T* const from = job.from + row * job.from_step;
    T* const to = job.to + row * job.to_step;
    std::int64_t i = 0;
    for (; i + kLanes <= job.count; i += kLanes) hn::StoreU(hn::LoadU(tag, from + i), tag, to + i);
    if (i < job.count) copy_few(tag, from + i, to + i, job.count - i);
  }
}

// Whole vectors of cells, and the last ones by masks.
template <typename T, int kTaps>
void split_segment(const T* from, T* to, std::int64_t to_step, std::int64_t count) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  hn::Vec<decltype(tag)> taps[kTaps];
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC unroll 8
    for (int t = 0; t < kTaps; ++t) taps[t] = hn::LoadU(tag, from + i * kTaps + t * kLanes);
    part_taps<kTaps>(taps);
#pragma GCC unroll 8
    for (int t = 0; t < kTaps; ++t) hn::StoreU(taps[t], tag, to + t * to_step + i);
  }
  if constexpr (kMaskedStores) {
    if (i == count) return;
    const std::int64_t left = (count - i) * kTaps;
#pragma GCC unroll 8
    for (int t = 0; t < kTaps; ++t) {
      const auto some = hn::FirstN(tag, std::clamp<std::int64_t>(left - t * kLanes, 0, kLanes));
      taps[t] = hn::MaskedLoad(some, tag, from + i * kTaps + t * kLanes);
    }
    part_taps<kTaps>(taps);
    const auto some = hn::FirstN(tag, count - i);
#pragma GCC unroll 8
    for (int t = 0; t < kTaps; ++t) hn::BlendedStore(taps[t], some, tag, to + t * to_step + i);
  } else {
    for (; i < count; ++i) {
      for (int t = 0; t < kTaps; ++t) to[t * to_step + i] = from[i * kTaps + t];
    }
  }
}

template <typename T>
void split_segment_of(std::int64_t taps, const T* from, T* to, std::int64_t to_step, std::int64_t count) {
  switch (taps) {
    case 1: return split_segment<T, 1>(from, to, to_step, count);
    case 2: return split_segment<T, 2>(from, to, to_step, count);
    case 4: return split_segment<T, 4>(from, to, to_step, count);
    case 8: return split_segment<T, 8>(from, to, to_step, count);
    default:
      for (std::int64_t t = 0; t < taps; ++t) {
        for (std::int64_t i = 0; i < count; ++i) to[t * to_step + i] = from[i * taps + t];
      }
  }
}

// Short segments whose cells follow each other are put side by side first.
template <typename T>
void split_line(const SplitLine<T>& job) {
  constexpr std::int64_t kRoom = 512;  // elements
  constexpr std::int64_t kShort = 32;  // cells
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const hn::ScalableTag<T> tag;
  HWY_ALIGN T together[kRoom + kLanes];
  const LineSegment* const end = job.segments + job.count;
  for (const LineSegment* segment = job.segments; segment != end;) {
    const LineSegment* next = segment + 1;
    std::int64_t count = segment->count;
    while (segment->count < kShort && next != end && next->to == segment->to + count &&
           (count + next->count) * job.taps <= kRoom) {
      count += next++->count;
    }
    if (next == segment + 1) {
      split_segment_of(job.taps, job.from + segment->from, job.to + segment->to, job.to_step, count);
    } else {
      T* to = together;
      for (const LineSegment* part = segment; part != next; ++part) {
        const T* const from = job.from + part->from;
        const std::int64_t size = part->count * job.taps;
        std::int64_t i = 0;
        for (; i + kLanes <= size; i += kLanes) hn::StoreU(hn::LoadU(tag, from + i), tag, to + i);
        if (i < size) copy_few(tag, from + i, to + i, size - i);
        to += size;
      }
      split_segment_of(job.taps, together, job.to + segment->to, job.to_step, count);
    }
    segment = next;
  }
}

// What follows each other in memory, gathered until there are whole lines to be stored.
template <typename T>
class Gathered {
 public:
  void add(const T* from, T* to, std::int64_t count) {
    if (to != to_ + end_) {
      flush();
      begin_ = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) % 64 / sizeof(T));
      end_ = begin_;
      to_ = to - begin_;
    }
    while (count > 0) {
      const std::int64_t here = std::min(count, kRoom - end_);
      for (std::int64_t i = 0; i < here; i += kLanes) hn::StoreU(hn::LoadU(kTag, from + i), kTag, data_ + end_ + i);
      from += here;
      count -= here;
      end_ += here;
      if (end_ == kRoom) put_lines();
    }
  }

  // What is less than a line, too.
  void flush() {
    put_lines();
    copy_few_of_line(begin_, end_);
    begin_ = end_;
  }

 private:
  void copy_few_of_line(std::int64_t first, std::int64_t last) {
    std::int64_t i = first;
    for (; i + kLanes <= last; i += kLanes) hn::StoreU(hn::LoadU(kTag, data_ + i), kTag, to_ + i);
    if (i < last) copy_few(kTag, data_ + i, to_ + i, last - i);
  }

  void put_lines() {
    std::int64_t line = 0;
    if (begin_ > 0 && end_ >= kLine) {
      copy_few_of_line(begin_, kLine);
      line = kLine;
      begin_ = 0;
    }
    for (; line + kLine <= end_; line += kLine) {
      for (std::int64_t v = 0; v < kLine; v += kLanes) {
        hn::Stream(hn::Load(kTag, data_ + line + v), kTag, to_ + line + v);
      }
    }
    for (std::int64_t v = 0; line > 0 && v < kLine; v += kLanes) {
      hn::Store(hn::Load(kTag, data_ + line + v), kTag, data_ + v);
    }
    to_ += line;
    end_ -= line;
  }

  static constexpr hn::ScalableTag<T> kTag{};
  static constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  static constexpr std::int64_t kLine = 64 / sizeof(T);
  static constexpr std::int64_t kRoom = 64 * kLine;
  alignas(64) T data_[kRoom + kLine];
  T* to_ = nullptr;         // where a line begins
  std::int64_t begin_ = 0;  // of what is to be stored
  std::int64_t end_ = 0;
};

template <typename T>
void put_lines(const PutLines<T>& job) {
  if (!job.past_caches) {
    for (const LineSegment* segment = job.segments; segment != job.segments + job.count; ++segment) {
      put_row<T, T>(job.from + segment->line * job.line_step + segment->from, job.to + segment->to, segment->count,
                    false);
    }
    return;
  }
  Gathered<T> gathered;
  for (const LineSegment* segment = job.segments; segment != job.segments + job.count; ++segment) {
    gathered.add(job.from + segment->line * job.line_step + segment->from, job.to + segment->to, segment->count);
  }
  gathered.flush();
}

template <typename T>
PatchOps<T> make_patch_ops() {
  PatchOps<T> ops;
  ops.lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  ops.copy_rows = copy_rows<T>;
  ops.split_line = split_line<T>;
  ops.put_lines = put_lines<T>;
  const auto fill_lines = [&ops]<int kShift, int kLine>(std::integral_constant<int, kShift>,
                                                        std::integral_constant<int, kLine>) {
    [&]<int... kVector>(std::integer_sequence<int, kVector...>) {
      ((ops.multiply[kShift][kLine][kVector] = multiply_patches<T, kShift, kLine + 1, kVector + 1>), ...);
    }(std::make_integer_sequence<int, tile_vectors(1 << kShift)>());
  };
  const auto fill_taps = [&]<int kShift>(std::integral_constant<int, kShift> shift) {
    ops.lines[kShift] = tile_lines(1 << kShift);
    ops.vectors[kShift] = tile_vectors(1 << kShift);
    [&]<int... kLine>(std::integer_sequence<int, kLine...>) {
      (fill_lines(shift, std::integral_constant<int, kLine>()), ...);
    }(std::make_integer_sequence<int, tile_lines(1 << kShift)>());
  };
  [&]<int... kShift>(std::integer_sequence<int, kShift...>) {
    (fill_taps(std::integral_constant<int, kShift>()), ...);
  }(std::make_integer_sequence<int, kMostTapShift + 1>());
  return ops;
}

const PatchOps<float>& float_patches() {
  static const auto ops = make_patch_ops<float>();
  return ops;
}
const PatchOps<double>& double_patches() {
  static const auto ops = make_patch_ops<double>();
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(float_patches);
HWY_EXPORT(double_patches);

template <>
const PatchOps<float>& patch_ops<float>() {
  return HWY_DYNAMIC_DISPATCH(float_patches)();
}
template <>
const PatchOps<double>& patch_ops<double>() {
  return HWY_DYNAMIC_DISPATCH(double_patches)();
}

}  // namespace tconv::cpu
#endif
