#include "cpu/depthwise_blocks_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/depthwise_blocks_simd.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "cpu/row_phases-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr bool kManyRegisters = HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64;
constexpr int kSums = kManyRegisters ? 16 : 8;  // in registers

constexpr int kMostVectors = kManyRegisters ? 4 : 2;
constexpr int most_rows(int vectors) { return std::clamp(kSums / vectors, 1, 8); }

// The sums of some rows, each from cell j on.
template <int kPhases, int kVectors, int kRows, typename T, class V>
HWY_INLINE void put_rows(const WeighBlock<T>& job, std::int64_t row, std::int64_t j, std::int64_t rows,
                         const V (&sums)[kRows][kVectors][kPhases]) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
    T* const to = job.to + (row + r) * job.to_step;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t first = (j + v * kLanes) * kPhases;
      if (first + kLanes * kPhases <= job.count) {
        job.past_caches ? put_phases<kPhases, true>(tag, sums[r][v], to + first)
                        : put_phases<kPhases, false>(tag, sums[r][v], to + first);
      } else if (first < job.count) {
        put_some<kPhases>(tag, sums[r][v], to + first, job.count - first);
      }
    }
  }
}

// Adds what a row of the source, of which `from` is cell j, brings to rows kFirst to kLast of the output, whose weights
// are `apart` from each other; `weights` are those of row 0.
template <int kFirst, int kLast, int kVectors, int kRows, typename T, class V>
HWY_INLINE void add_source_row(const WeighBlock<T>& job, const T* from, const T* weights, std::int64_t apart,
                               V (&sums)[kRows][kVectors][1]) {
  const hn::ScalableTag<T> tag;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  for (std::int64_t step = 0; step < job.steps; ++step) {
    V cells[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      cells[v] = hn::LoadU(tag, from + job.step_offsets[step] + v * kLanes);
      keep_in_register(cells[v]);
    }
#pragma GCC unroll 8
    for (int r = kFirst; r <= kLast; ++r) {
      V weight = hn::Set(tag, weights[r * apart + step]);
      if constexpr (kVectors > 1) keep_in_register(weight);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v][0] = hn::MulAdd(cells[v], weight, sums[r][v][0]);
    }
  }
}

// The same for the rows from kFirst to `last`, kLast at least; and for those from `first`, kFirst at least, to `last`.
template <int kFirst, int kLast, int kVectors, int kRows, typename T, class V>
HWY_INLINE void add_up_to(std::int64_t last, const WeighBlock<T>& job, const T* from, const T* weights,
                          std::int64_t apart, V (&sums)[kRows][kVectors][1]) {
  if constexpr (kLast + 1 < kRows) {
    if (last > kLast) return add_up_to<kFirst, kLast + 1>(last, job, from, weights, apart, sums);
  }
  add_source_row<kFirst, kLast>(job, from, weights, apart, sums);
}
template <int kFirst, int kVectors, int kRows, typename T, class V>
HWY_INLINE void add_from(std::int64_t first, std::int64_t last, const WeighBlock<T>& job, const T* from,
                         const T* weights, std::int64_t apart, V (&sums)[kRows][kVectors][1]) {
  if constexpr (kFirst + 1 < kRows) {
    if (first > kFirst) return add_from<kFirst + 1>(first, last, job, from, weights, apart, sums);
  }
  add_up_to<kFirst, kFirst>(last, job, from, weights, apart, sums);
}

// kRows rows of one phase from `row` on, kVectors vectors of cells from cell j on.
template <int kVectors, int kRows, typename T>
HWY_INLINE void weigh_rows(const WeighBlock<T>& job, std::int64_t row, std::int64_t j) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<hn::ScalableTag<T>>;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  V sums[kRows][kVectors][1];
  const V bias = hn::Set(tag, job.bias);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v][0] = bias;
  }
  const std::int64_t rows = std::min<std::int64_t>(job.last_row - row, kRows);
  const std::int64_t begin = std::max(job.first_source, row + job.lowest);
  const std::int64_t end = std::min(job.last_source, row + rows + job.highest);
  for (std::int64_t s = 0; s < job.slice_count; ++s) {
    const BlockSlice& slice = job.slices[s];
    if (job.tap_rows_apart != 0) {
      const std::int64_t apart = -job.tap_rows_apart;  // from a row of the output to the next
      for (std::int64_t y = begin; y < end; ++y) {
        const std::int64_t first = std::max<std::int64_t>(y - row - job.highest, 0);
        const std::int64_t last = std::min(y - row - job.lowest, rows - 1);
        const T* const weights = job.weights + slice.place + job.tap_rows[0] + (y - row - job.lowest) * -apart;
        add_from<0>(first, last, job, job.from + slice.from + y * job.from_step + j, weights, apart, sums);
      }
      continue;
    }
    for (std::int64_t y = begin; y < end; ++y) {
      const T* weights[kRows];  // nullptr: none
      bool any = false;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const std::int64_t distance = y - row - r;
        const bool inside = r < rows && distance >= job.lowest && distance <= job.highest;
        const std::int64_t place = inside ? job.tap_rows[distance - job.lowest] : -1;
        weights[r] = place < 0 ? nullptr : job.weights + slice.place + place;
        any = any || place >= 0;
      }
      if (!any) continue;
      const T* const from = job.from + slice.from + y * job.from_step + j;
      for (std::int64_t step = 0; step < job.steps; ++step) {
        V cells[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          cells[v] = hn::LoadU(tag, from + job.step_offsets[step] + v * kLanes);
          keep_in_register(cells[v]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          if (weights[r] == nullptr) continue;
          V weight = hn::Set(tag, weights[r][step]);
          if constexpr (kVectors > 1) keep_in_register(weight);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sums[r][v][0] = hn::MulAdd(cells[v], weight, sums[r][v][0]);
        }
      }
    }
  }
  put_rows(job, row, j, rows, sums);
}

// Calls weigh(j, vectors) for groups of up to kMost vectors of cells, as even as may be.
template <int kMost, typename T, typename Weigh>
HWY_INLINE void for_each_group(const WeighBlock<T>& job, const Weigh& weigh) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const std::int64_t vectors = (job.cells + kLanes - 1) / kLanes;
  const std::int64_t groups = (vectors + kMost - 1) / kMost;
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::int64_t first = vectors * g / groups;
    weigh(first * kLanes, vectors * (g + 1) / groups - first);
  }
}

template <int kVectors, int kRows, typename T>
void weigh_block_of_rows(const WeighBlock<T>& shared, std::int64_t row, std::int64_t j) {
  const WeighBlock<T> job = shared;  // which no store can change
  weigh_rows<kVectors, kRows>(job, row, j);
}

// Rows of one group of vectors.
template <int kVectors, typename T>
void weigh_column(const WeighBlock<T>& shared) {
  const WeighBlock<T> job = shared;
  constexpr int kRows = most_rows(kVectors);
  for (std::int64_t row = job.first_row; row < job.last_row; row += kRows) weigh_rows<kVectors, kRows>(job, row, 0);
}

template <typename T>
void weigh_any(const WeighBlock<T>& job) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr int kThree = std::min(3, kMostVectors);
  switch ((job.cells + kLanes - 1) / kLanes) {
    case 1: return weigh_column<1>(job);
    case 2: return weigh_column<2>(job);
    case 3:
      if constexpr (kMostVectors > 2) return weigh_column<kThree>(job);
      break;
    case 4:
      if constexpr (kMostVectors > 2) return weigh_column<kMostVectors>(job);
      break;
    default: break;
  }
  constexpr int kRows = most_rows(kMostVectors);
  for (std::int64_t row = job.first_row; row < job.last_row; row += kRows) {
    for_each_group<kMostVectors>(job, [&](std::int64_t j, std::int64_t vectors) {
      switch (vectors) {
        case 1: return weigh_block_of_rows<1, kRows>(job, row, j);
        case 2: return weigh_block_of_rows<2, kRows>(job, row, j);
        case 3: return weigh_block_of_rows<kThree, kRows>(job, row, j);
        default: return weigh_block_of_rows<kMostVectors, kRows>(job, row, j);
      }
    });
  }
}

// The weights of kTapRows rows of a slice.
template <BlockPattern kPattern, int kTapRows, typename T>
struct FewWeights {
  hn::Vec<hn::ScalableTag<T>> of[kTapRows][kPattern.steps][kPattern.phases];

  HWY_INLINE FewWeights() {  // zeros, for compilers that can't see that they are loaded before they are used
    for (auto& steps : of) {
      for (auto& phases : steps) {
        for (auto& weight : phases) weight = hn::Zero(hn::ScalableTag<T>());
      }
    }
  }
  HWY_INLINE void load(const WeighBlock<T>& job, const BlockSlice& slice) {
    const hn::ScalableTag<T> tag;
#pragma GCC unroll 8
    for (int d = 0; d < kTapRows; ++d) {
      const T* const of_row = job.weights + slice.place + job.tap_rows[d];
#pragma GCC unroll 8
      for (int step = 0; step < kPattern.steps; ++step) {
#pragma GCC unroll 4
        for (int p = 0; p < kPattern.phases; ++p) {
          if (!kPattern.has(step, p)) continue;
          of[d][step][p] = hn::Set(tag, of_row[step * kPattern.phases + p]);
          keep_in_register(of[d][step][p]);
        }
      }
    }
  }
};

// The same where rows of the source at kTapRows distances have weights and the steps are known: all weights of a slice
// are in registers, and stay there for the next rows and cells where there is one slice.
template <BlockPattern kPattern, int kTapRows, int kVectors, int kRows, typename T>
HWY_INLINE void weigh_few(const WeighBlock<T>& job, const std::int64_t (&offsets)[kPattern.steps],
                          FewWeights<kPattern, kTapRows, T>& weights, std::int64_t row, std::int64_t j) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<hn::ScalableTag<T>>;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr int kPhases = kPattern.phases;
  const V bias = hn::Set(tag, job.bias);
  V sums[kRows][kVectors][kPhases];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
      for (int p = 0; p < kPhases; ++p) sums[r][v][p] = bias;
    }
  }
  const std::int64_t rows = std::min<std::int64_t>(job.last_row - row, kRows);
  const std::int64_t first = row + job.lowest;
  const std::int64_t begin = job.first_source - first;
  const std::int64_t end = std::min(job.last_source - first, rows + kTapRows - 1);
  for (std::int64_t s = 0; s < job.slice_count; ++s) {
    const BlockSlice& slice = job.slices[s];
    if (job.slice_count > 1) weights.load(job, slice);
    const T* from = job.from + slice.from + first * job.from_step + j;
#pragma GCC unroll 16
    for (int y = 0; y < kRows + kTapRows - 1; ++y, from += job.from_step) {
      if (y < begin || y >= end) continue;
#pragma GCC unroll 8
      for (int step = 0; step < kPattern.steps; ++step) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          V cells = hn::LoadU(tag, from + offsets[step] + v * kLanes);
          keep_in_register(cells);
#pragma GCC unroll 8
          for (int d = 0; d < kTapRows; ++d) {
            if (y - d < 0 || y - d >= kRows) continue;
#pragma GCC unroll 4
            for (int p = 0; p < kPhases; ++p) {
              if (!kPattern.has(step, p)) continue;
              sums[y - d][v][p] = hn::MulAdd(cells, weights.of[d][step][p], sums[y - d][v][p]);
            }
          }
        }
      }
    }
  }
  put_rows(job, row, j, rows, sums);
}

template <BlockPattern kPattern, int kTapRows, typename T>
void weigh_few_taps(const WeighBlock<T>& shared) {
  const WeighBlock<T> job = shared;  // which no store can change
  constexpr int kPhases = kPattern.phases;
  constexpr int kMost = kManyRegisters && kPhases == 1 ? 2 : 1;
  // Rows share nothing with one row of weights: then each is best written as a whole.
  constexpr int kRows = kTapRows == 1 ? 1 : std::max(kSums / 2 / (kPhases * kMost), 1);
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  std::int64_t offsets[kPattern.steps];
#pragma GCC unroll 8
  for (int step = 0; step < kPattern.steps; ++step) offsets[step] = job.step_offsets[step];
  FewWeights<kPattern, kTapRows, T> weights;
  if (job.slice_count == 1) weights.load(job, job.slices[0]);
  for (std::int64_t row = job.first_row; row < job.last_row; row += kRows) {
    std::int64_t j = 0;
    for (; j + (kMost - 1) * kLanes < job.cells; j += kMost * kLanes) {
      weigh_few<kPattern, kTapRows, kMost, kRows>(job, offsets, weights, row, j);
    }
    if constexpr (kMost > 1) {
      if (j < job.cells) weigh_few<kPattern, kTapRows, 1, kRows>(job, offsets, weights, row, j);
    }
  }
}

template <int kPattern = 0, typename T>
bool weigh_few_taps(const WeighBlock<T>& job) {
  if constexpr (kPattern < static_cast<int>(kBlockPatterns.size())) {
    if (job.pattern != kPattern) return weigh_few_taps<kPattern + 1>(job);
    const std::int64_t tap_rows = job.highest - job.lowest + 1;
    if (tap_rows == 0) return false;
    for (std::int64_t d = 0; d < tap_rows; ++d) {
      if (job.tap_rows[d] < 0) return false;
    }
    constexpr BlockPattern kThis = kBlockPatterns[kPattern];
    if (!takes_tap_rows(kThis, tap_rows)) return false;
    if constexpr (kThis.steps > 3) {
      return weigh_few_taps<kThis, kThis.steps>(job), true;
    } else {
      switch (tap_rows) {
        case 1: return weigh_few_taps<kThis, 1>(job), true;
        case 2: return weigh_few_taps<kThis, 2>(job), true;
        default:
          if constexpr (takes_tap_rows(kThis, 3)) weigh_few_taps<kThis, 3>(job);
          return true;
      }
    }
  }
  return false;
}

template <typename T>
void weigh_block(const WeighBlock<T>& job) {
  if (!weigh_few_taps(job)) weigh_any(job);
}

const DepthwiseBlockOps<float>& float_blocks() {
  static const DepthwiseBlockOps<float> ops{weigh_block<float>};
  return ops;
}
const DepthwiseBlockOps<double>& double_blocks() {
  static const DepthwiseBlockOps<double> ops{weigh_block<double>};
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(float_blocks);
HWY_EXPORT(double_blocks);

template <>
const DepthwiseBlockOps<float>& depthwise_block_ops<float>() {
  return HWY_DYNAMIC_DISPATCH(float_blocks)();
}
template <>
const DepthwiseBlockOps<double>& depthwise_block_ops<double>() {
  return HWY_DYNAMIC_DISPATCH(double_blocks)();
}

}  // namespace tconv::cpu
#endif
