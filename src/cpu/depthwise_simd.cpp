#include "cpu/depthwise_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/depthwise_simd.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "cpu/elements-inl.h"
#include "cpu/panels.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr bool kManyRegisters = HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64;
constexpr int kCells = kManyRegisters ? 8 : 4;     // whose sums are in registers
constexpr int kMostTaps = kManyRegisters ? 8 : 4;  // whose weights are
constexpr int kMostVectors = 8;                    // whose sums wait in memory for the next taps

// What a few taps of every row add to the sums of cells `first` to `last`, of the channels from `begin` to `end`. Sums
// begin with the bias, or go on where other taps have left them, and end in the tensor, or wait for other taps.
template <typename E, typename T>
struct Part {
  WeighRow<E, T> job;
  RowPiece piece;
  std::int64_t first;
  std::int64_t last;
  std::int64_t begin;
  std::int64_t end;
  std::int64_t tap;  // the first
  bool is_first;
  bool is_last;
  T* sums;  // of kCells cells: [vector][cell]
};

// A vector of channels of kCells cells, of which `cells` are written. `position` is what the first tap brings to the
// first of them. A position is read once, for all taps and cells that it brings together.
template <int kTaps, bool kInside, bool kAll, typename E, typename T>
HWY_INLINE void weigh_vector(const Part<E, T>& part, std::int64_t position, const E* from, const T* block, E* to,
                             std::int64_t cells, std::int64_t c, T* waiting) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<hn::ScalableTag<T>>;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const std::int64_t channels = part.end - c;
  V sums[kCells];
  if (part.is_first) {
    const V first = part.job.bias == nullptr ? hn::Zero(tag) : load_elements<kAll>(tag, part.job.bias + c, channels);
#pragma GCC unroll 8
    for (V& sum : sums) sum = first;
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < kCells; ++i) sums[i] = hn::LoadU(tag, waiting + i * kLanes);
  }
  // Positions that exist, and that the cells read, counted from that of the first cell and tap.
  const std::int64_t low = -position;
  const std::int64_t high = std::min(part.piece.positions + low, cells);
  const std::int64_t from_step = part.piece.from_step;
  const std::int64_t rows = kTaps == 0 ? 0 : part.job.rows;
  for (std::int64_t r = 0; r < rows; ++r) {
    const E* place = from + part.job.offsets[r];
    const T* const weights = block + part.job.places[r];
    V taps[std::max(kTaps, 1)];
#pragma GCC unroll 8
    for (int t = 0; t < kTaps; ++t) taps[t] = hn::LoadU(tag, weights + t * kMostLanes);
    // In the order of memory, which is asked for ahead then.
#pragma GCC unroll 16
    for (int i = 1 - kTaps; i < kCells; ++i, place += from_step) {
      if (!kInside && (i < low || i >= high)) continue;
      V x = load_elements<kAll>(tag, place, channels);
      keep_in_register(x);
#pragma GCC unroll 8
      for (int t = 0; t < kTaps; ++t) {
        if (i + t >= 0 && i + t < kCells) sums[i + t] = hn::MulAdd(x, taps[t], sums[i + t]);
      }
    }
  }
  if (!part.is_last) {
#pragma GCC unroll 8
    for (int i = 0; i < kCells; ++i) hn::StoreU(sums[i], tag, waiting + i * kLanes);
    return;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kCells; ++i, to += part.piece.to_step) {
    if (i < cells) store_elements<kAll>(tag, sums[i], to, channels, false);
  }
}

// The cells from j on.
template <int kTaps, bool kInside, typename E, typename T>
HWY_INLINE void weigh_vectors(const Part<E, T>& part, std::int64_t position, std::int64_t j) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const E* const from = part.job.from + part.piece.from + (position + 1 - kTaps) * part.piece.from_step;
  const T* const weights = part.job.weights + part.piece.place + part.tap * kMostLanes;
  E* const to = part.job.to + part.piece.to + j * part.piece.to_step;
  const auto block = [&](std::int64_t c) { return weights + c / kMostLanes * part.job.weight_step + c % kMostLanes; };
  const std::int64_t cells = part.last - j;
  std::int64_t c = part.begin;
  T* waiting = part.sums;
  for (; c + kLanes <= part.end && cells >= kCells; c += kLanes, waiting += kCells * kLanes) {
    weigh_vector<kTaps, kInside, true>(part, position, from + c, block(c), to + c, kCells, c, waiting);
  }
  for (; c + kLanes <= part.end; c += kLanes, waiting += kCells * kLanes) {
    weigh_vector<kTaps, kInside, true>(part, position, from + c, block(c), to + c, cells, c, waiting);
  }
  if (c < part.end) {
    weigh_vector<kTaps, kInside, false>(part, position, from + c, block(c), to + c, cells, c, waiting);
  }
}

template <int kTaps, typename E, typename T>
void weigh_taps(const Part<E, T>& shared) {
  const Part<E, T> part = shared;  // which no store can change
  for (std::int64_t cell = part.first; cell < part.last; cell += kCells) {
    const std::int64_t j = std::max(std::min(cell, part.last - kCells), part.first);  // some once more
    const std::int64_t position = j + part.piece.first - part.tap;
    const bool inside =
        position - (kTaps - 1) >= 0 && position + kCells <= part.piece.positions && j + kCells <= part.last;
    inside ? weigh_vectors<kTaps, true>(part, position, j) : weigh_vectors<kTaps, false>(part, position, j);
  }
}

template <typename E, typename T>
void weigh_part(const Part<E, T>& part, std::int64_t taps) {
  switch (taps) {
    case 0: return weigh_taps<0>(part);
    case 1: return weigh_taps<1>(part);
    case 2: return weigh_taps<2>(part);
    case 3: return weigh_taps<3>(part);
    case 4: return weigh_taps<4>(part);
#if HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64
    case 5: return weigh_taps<5>(part);
    case 6: return weigh_taps<6>(part);
    case 7: return weigh_taps<7>(part);
    case 8: return weigh_taps<8>(part);
#endif
    default: break;
  }
}

// Sums that wait are stored past the caches, in the order of memory.
template <typename T>
HWY_INLINE void stream_cells(const T* sums, std::int64_t vectors, T* to, std::int64_t to_step, std::int64_t cells) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  for (std::int64_t i = 0; i < cells; ++i, to += to_step) {
    for (std::int64_t v = 0; v < vectors; ++v) {
      hn::Stream(hn::Load(tag, sums + (v * kCells + i) * kLanes), tag, to + v * kLanes);
    }
  }
}

// Channels from `begin` to `end` of all cells.
template <typename E, typename T>
HWY_INLINE void weigh_channels(const WeighRow<E, T>& job, const RowPiece& piece, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  HWY_ALIGN T sums[kMostVectors * kCells * kLanes];
  const bool past_caches = std::is_same_v<E, T> && job.past_caches;
  if (piece.taps <= kMostTaps && !past_caches) {
    return weigh_part<E, T>({job, piece, 0, piece.cells, begin, end, 0, true, true, sums}, piece.taps);
  }
  // Rows of many taps in parts, as even as may be.
  const std::int64_t parts = std::max<std::int64_t>((piece.taps + kMostTaps - 1) / kMostTaps, 1);
  const std::int64_t most = (piece.taps + parts - 1) / parts;
  for (std::int64_t cell = 0; cell < piece.cells; cell += kCells) {
    const std::int64_t first = std::max<std::int64_t>(std::min(cell, piece.cells - kCells), 0);  // some once more
    const std::int64_t last = std::min(first + kCells, piece.cells);
    for (std::int64_t c = begin; c < end; c += kMostVectors * kLanes) {
      const std::int64_t past = std::min(c + kMostVectors * kLanes, end);
      for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t tap = part * most;
        const bool is_last = part == parts - 1 && !past_caches;
        const Part<E, T> one{job, piece, first, last, c, past, tap, part == 0, is_last, sums};
        weigh_part(one, std::clamp<std::int64_t>(piece.taps - tap, 0, most));
      }
      if constexpr (std::is_same_v<E, T>) {
        if (past_caches) {
          T* const to = job.to + piece.to + first * piece.to_step + c;
          stream_cells(sums, (past - c) / kLanes, to, piece.to_step, last - first);
        }
      }
    }
  }
}

// As many channels at a time as have weights that stay in the L1 cache, beside what else is read.
template <typename E, typename T>
HWY_INLINE void weigh_piece(const WeighRow<E, T>& job, const RowPiece& piece) {
  constexpr std::int64_t kBytes = 12 << 10;
  const std::int64_t block = std::max<std::int64_t>(job.rows * piece.taps, 1) * kMostLanes * sizeof(T);
  const std::int64_t together = std::max<std::int64_t>(kBytes / block, 1) * kMostLanes;
  for (std::int64_t begin = 0; begin < job.channels; begin += together) {
    weigh_channels(job, piece, begin, std::min(begin + together, job.channels));
  }
}

// Cells from `begin` to `end`, which all taps reach, of kVectors vectors of channels or some of one: the weights of all
// kTerms taps stay in registers.
template <int kTerms, int kVectors, bool kAll, typename E, typename T>
HWY_INLINE void weigh_terms(const WeighRow<E, T>& shared, const RowPiece& shared_piece, std::int64_t begin,
                            std::int64_t end, std::int64_t c) {
  const WeighRow<E, T> job = shared;  // which no store can change
  const RowPiece piece = shared_piece;
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<hn::ScalableTag<T>>;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const std::int64_t channels = job.channels - c;
  V weights[kTerms][kVectors];
  const E* from[kTerms];
  for (int i = 0; i < kTerms; ++i) {
    const std::int64_t row = i / piece.taps;
    const std::int64_t tap = i % piece.taps;
    from[i] = job.from + job.offsets[row] + piece.from + (begin + piece.first - tap) * piece.from_step + c;
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t at = c + v * kLanes;
      weights[i][v] = hn::LoadU(tag, job.weights + at / kMostLanes * job.weight_step + job.places[row] + piece.place +
                                         tap * kMostLanes + at % kMostLanes);
    }
  }
  V first[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    first[v] = job.bias == nullptr ? hn::Zero(tag) : load_elements<kAll>(tag, job.bias + c + v * kLanes, channels);
  }
  E* to = job.to + piece.to + begin * piece.to_step + c;
  std::int64_t step = 0;
  for (std::int64_t j = begin; j < end; ++j, to += piece.to_step, step += piece.from_step) {
    for (int v = 0; v < kVectors; ++v) {
      V sum = first[v];
      for (int i = 0; i < kTerms; ++i) {
        sum = hn::MulAdd(load_elements<kAll>(tag, from[i] + step + v * kLanes, channels), weights[i][v], sum);
      }
      store_elements<kAll>(tag, sum, to + v * kLanes, channels, job.past_caches);
    }
  }
}

template <int kTerms, typename E, typename T>
void weigh_terms(const WeighRow<E, T>& job, const RowPiece& piece, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  // Weights take half of the registers, or what one vector of channels needs.
  constexpr int kVectors = kTerms * 4 <= (kManyRegisters ? 16 : 8) ? 4 : 2;
  std::int64_t c = 0;
  for (; c + kVectors * kLanes <= job.channels; c += kVectors * kLanes) {
    weigh_terms<kTerms, kVectors, true>(job, piece, begin, end, c);
  }
  for (; c + kLanes <= job.channels; c += kLanes) weigh_terms<kTerms, 1, true>(job, piece, begin, end, c);
  if (c < job.channels) weigh_terms<kTerms, 1, false>(job, piece, begin, end, c);
}

// One cell, of the taps that reach it.
template <typename E, typename T>
void weigh_cell(const WeighRow<E, T>& job, const RowPiece& piece, std::int64_t j) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const std::int64_t position = j + piece.first;
  const std::int64_t begin = std::max<std::int64_t>(position - piece.positions + 1, 0);
  const std::int64_t end = std::min(position + 1, piece.taps);
  const E* const from = job.from + piece.from + position * piece.from_step;
  E* const to = job.to + piece.to + j * piece.to_step;
  const auto weigh = [&]<bool kAll>(std::int64_t c) HWY_ATTR {
    const std::int64_t channels = job.channels - c;
    const T* const block = job.weights + c / kMostLanes * job.weight_step + piece.place + c % kMostLanes;
    auto sum = job.bias == nullptr ? hn::Zero(tag) : load_elements<kAll>(tag, job.bias + c, channels);
    for (std::int64_t r = 0; r < job.rows; ++r) {
      for (std::int64_t t = begin; t < end; ++t) {
        const auto x = load_elements<kAll>(tag, from + job.offsets[r] - t * piece.from_step + c, channels);
        sum = hn::MulAdd(x, hn::LoadU(tag, block + job.places[r] + t * kMostLanes), sum);
      }
    }
    store_elements<kAll>(tag, sum, to + c, channels, job.past_caches);
  };
  std::int64_t c = 0;
  for (; c + kLanes <= job.channels; c += kLanes) weigh.template operator()<true>(c);
  if (c < job.channels) weigh.template operator()<false>(c);
}

// Pieces of so few taps that there is little to share: cell after cell, as memory likes it.
template <typename E, typename T>
bool weigh_few(const WeighRow<E, T>& job, const RowPiece& piece) {
  constexpr std::int64_t kFewestCells = 4;  // for which weights are worth loading ahead
  // Those that all taps reach.
  const std::int64_t begin = std::clamp<std::int64_t>(piece.taps - 1 - piece.first, 0, piece.cells);
  const std::int64_t end = std::clamp<std::int64_t>(piece.positions - piece.first, begin, piece.cells);
  if (end - begin < kFewestCells) return false;
  switch (piece.taps * job.rows) {
    case 1: weigh_terms<1>(job, piece, begin, end); break;
    case 2: weigh_terms<2>(job, piece, begin, end); break;
    case 3: weigh_terms<3>(job, piece, begin, end); break;
    case 4: weigh_terms<4>(job, piece, begin, end); break;
    default: return false;
  }
  for (std::int64_t j = 0; j < begin; ++j) weigh_cell(job, piece, j);
  for (std::int64_t j = end; j < piece.cells; ++j) weigh_cell(job, piece, j);
  return true;
}

template <typename E, typename T>
void weigh_row(const WeighRow<E, T>& job) {
  for (std::int64_t p = 0; p < job.piece_count; ++p) {
    if (!weigh_few(job, job.pieces[p])) weigh_piece(job, job.pieces[p]);
  }
}

template <typename E, typename T>
DepthwiseOps<E, T> make_depthwise_ops() {
  return {weigh_row<E, T>};
}

const DepthwiseOps<float, float>& float_depthwise() {
  static const auto ops = make_depthwise_ops<float, float>();
  return ops;
}
const DepthwiseOps<double, double>& double_depthwise() {
  static const auto ops = make_depthwise_ops<double, double>();
  return ops;
}
const DepthwiseOps<Float16, float>& float16_depthwise() {
  static const auto ops = make_depthwise_ops<Float16, float>();
  return ops;
}
const DepthwiseOps<BFloat16, float>& bfloat16_depthwise() {
  static const auto ops = make_depthwise_ops<BFloat16, float>();
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(float_depthwise);
HWY_EXPORT(double_depthwise);
HWY_EXPORT(float16_depthwise);
HWY_EXPORT(bfloat16_depthwise);

template <>
const DepthwiseOps<float, float>& depthwise_ops<float, float>() {
  return HWY_DYNAMIC_DISPATCH(float_depthwise)();
}
template <>
const DepthwiseOps<double, double>& depthwise_ops<double, double>() {
  return HWY_DYNAMIC_DISPATCH(double_depthwise)();
}
template <>
const DepthwiseOps<Float16, float>& depthwise_ops<Float16, float>() {
  return HWY_DYNAMIC_DISPATCH(float16_depthwise)();
}
template <>
const DepthwiseOps<BFloat16, float>& depthwise_ops<BFloat16, float>() {
  return HWY_DYNAMIC_DISPATCH(bfloat16_depthwise)();
}

}  // namespace tconv::cpu
#endif
