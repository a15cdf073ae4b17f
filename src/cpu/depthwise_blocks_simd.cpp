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

// Vectors of cells and rows of a block of so many phases.
constexpr int most_vectors(int phases) { return std::max((kManyRegisters ? 4 : 2) / phases, 1); }
constexpr int most_rows(int phases, int vectors) { return std::clamp(kSums / (phases * vectors), 1, 8); }

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
      } else if constexpr (kPhases == 1 && kMaskedStores) {
        hn::BlendedStore(sums[r][v][0], hn::FirstN(tag, static_cast<std::size_t>(job.count - first)), tag, to + first);
      } else {
        HWY_ALIGN T some[kPhases * kLanes];
        store_phases<kPhases>(tag, sums[r][v], some);
        std::int64_t i = 0;
        for (; first + i + kLanes <= job.count; i += kLanes) hn::StoreU(hn::Load(tag, some + i), tag, to + first + i);
        if (first + i < job.count) copy_few(tag, some + i, to + first + i, job.count - first - i);
      }
    }
  }
}

// kRows rows from `row` on, kVectors vectors of cells from cell j on.
template <int kPhases, int kVectors, int kRows, typename T>
HWY_INLINE void weigh_rows(const WeighBlock<T>& job, std::int64_t row, std::int64_t j) {
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<hn::ScalableTag<T>>;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  V sums[kRows][kVectors][kPhases];
  const V bias = hn::Set(tag, job.bias);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
      for (int p = 0; p < kPhases; ++p) sums[r][v][p] = bias;
    }
  }
  const std::int64_t rows = std::min<std::int64_t>(job.last_row - row, kRows);
  const std::int64_t begin = std::max(job.first_source, row + job.lowest);
  const std::int64_t end = std::min(job.last_source, row + rows + job.highest);
  const BlockStep* const last_step = job.steps + job.step_count;
  for (std::int64_t s = 0; s < job.slice_count; ++s) {
    const BlockSlice& slice = job.slices[s];
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
      std::int64_t place = 0;
      for (const BlockStep* step = job.steps; step != last_step; ++step, place += kPhases) {
        V cells[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          cells[v] = hn::LoadU(tag, from + step->offset + v * kLanes);
          keep_in_register(cells[v]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          if (weights[r] == nullptr) continue;
#pragma GCC unroll 4
          for (int p = 0; p < kPhases; ++p) {
            if (kPhases > 1 && (step->phases >> p & 1U) == 0) continue;
            V weight = hn::Set(tag, weights[r][place + p]);
            if constexpr (kVectors > 1) keep_in_register(weight);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; ++v) sums[r][v][p] = hn::MulAdd(cells[v], weight, sums[r][v][p]);
          }
        }
      }
    }
  }
  put_rows(job, row, j, rows, sums);
}

// The same of all rows from `row` to `last_row` where rows of the source at kTapRows distances have weights and the
// steps are known, kRows at a time: all weights of a slice are in registers.
template <BlockPattern kPattern, int kTapRows, int kVectors, int kRows, typename T>
void weigh_few(const WeighBlock<T>& shared, std::int64_t row, std::int64_t last_row, std::int64_t j) {
  const WeighBlock<T> job = shared;  // which no store can change
  const hn::ScalableTag<T> tag;
  using V = hn::Vec<hn::ScalableTag<T>>;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr int kPhases = kPattern.phases;
  const V bias = hn::Set(tag, job.bias);
  std::int64_t offsets[kPattern.steps];
#pragma GCC unroll 4
  for (int step = 0; step < kPattern.steps; ++step) offsets[step] = job.steps[step].offset + j;
  V weights[kTapRows][kPattern.steps][kPhases];
  for (bool loaded = false; row < last_row; row += kRows) {
    V sums[kRows][kVectors][kPhases];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
        for (int p = 0; p < kPhases; ++p) sums[r][v][p] = bias;
      }
    }
    const std::int64_t rows = std::min<std::int64_t>(last_row - row, kRows);
    const std::int64_t first = row + job.lowest;
    const std::int64_t begin = job.first_source - first;
    const std::int64_t end = std::min(job.last_source - first, rows + kTapRows - 1);
    for (std::int64_t s = 0; s < job.slice_count; ++s) {
      const BlockSlice& slice = job.slices[s];
      if (!loaded || job.slice_count > 1) {
#pragma GCC unroll 4
        for (int d = 0; d < kTapRows; ++d) {
          const T* const of_row = job.weights + slice.place + job.tap_rows[d];
#pragma GCC unroll 4
          for (int step = 0; step < kPattern.steps; ++step) {
#pragma GCC unroll 4
            for (int p = 0; p < kPhases; ++p) {
              if (!kPattern.has(step, p)) continue;
              weights[d][step][p] = hn::Set(tag, of_row[step * kPhases + p]);
              keep_in_register(weights[d][step][p]);
            }
          }
        }
        loaded = true;
      }
      const T* from = job.from + slice.from + first * job.from_step;
#pragma GCC unroll 16
      for (int y = 0; y < kRows + kTapRows - 1; ++y, from += job.from_step) {
        if (y < begin || y >= end) continue;
#pragma GCC unroll 4
        for (int step = 0; step < kPattern.steps; ++step) {
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) {
            V cells = hn::LoadU(tag, from + offsets[step] + v * kLanes);
            keep_in_register(cells);
#pragma GCC unroll 4
            for (int d = 0; d < kTapRows; ++d) {
              if (y - d < 0 || y - d >= kRows) continue;
#pragma GCC unroll 4
              for (int p = 0; p < kPhases; ++p) {
                if (!kPattern.has(step, p)) continue;
                sums[y - d][v][p] = hn::MulAdd(cells, weights[d][step][p], sums[y - d][v][p]);
              }
            }
          }
        }
      }
    }
    put_rows(job, row, j, rows, sums);
  }
}

// kMost vectors at a time, or as even as may be.
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

// Column after column of a few rows: results of many come in an order that memory dislikes.
template <BlockPattern kPattern, int kTapRows, typename T>
void weigh_few_taps(const WeighBlock<T>& job) {
  constexpr int kPhases = kPattern.phases;
  constexpr int kMost = kManyRegisters && kPhases == 1 ? 2 : 1;
  constexpr int kRows = std::max(kSums / 2 / (kPhases * kMost), 1);
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const std::int64_t most = job.cells <= 4 * kLanes ? job.last_row - job.first_row : 4 * kRows;
  for (std::int64_t row = job.first_row; row < job.last_row; row += most) {
    const std::int64_t last = std::min(row + most, job.last_row);
    for_each_group<kMost>(job, [&](std::int64_t j, std::int64_t vectors) {
      vectors == 1 ? weigh_few<kPattern, kTapRows, 1, kRows>(job, row, last, j)
                   : weigh_few<kPattern, kTapRows, kMost, kRows>(job, row, last, j);
    });
  }
}

template <int kPattern, typename T>
bool weigh_pattern(const WeighBlock<T>& job, std::int64_t tap_rows) {
  constexpr BlockPattern kThis = kBlockPatterns[kPattern];
  switch (tap_rows) {
    case 1: return weigh_few_taps<kThis, 1>(job), true;
    case 2: return weigh_few_taps<kThis, 2>(job), true;
    case 3:
      if constexpr (kThis.phases <= 2) return weigh_few_taps<kThis, 3>(job), true;
      return false;
    default: return false;
  }
}

template <int kPattern = 0, typename T>
bool weigh_few_taps(const WeighBlock<T>& job) {
  if constexpr (kPattern < kBlockPatterns.size()) {
    if (job.pattern != kPattern) return weigh_few_taps<kPattern + 1>(job);
    const std::int64_t tap_rows = job.highest - job.lowest + 1;
    for (std::int64_t d = 0; d < tap_rows; ++d) {
      if (job.tap_rows[d] < 0) return false;
    }
    return weigh_pattern<kPattern>(job, tap_rows);
  }
  return false;
}

template <int kPhases, int kVectors, typename T>
void weigh_columns(const WeighBlock<T>& shared, std::int64_t j) {
  const WeighBlock<T> job = shared;  // which no store can change
  constexpr int kRows = most_rows(kPhases, kVectors);
  for (std::int64_t row = job.first_row; row < job.last_row; row += kRows) {
    weigh_rows<kPhases, kVectors, kRows>(job, row, j);
  }
}

template <int kPhases, typename T>
void weigh_phases(const WeighBlock<T>& job) {
  constexpr int kMost = most_vectors(kPhases);
  for_each_group<kMost>(job, [&](std::int64_t j, std::int64_t vectors) HWY_ATTR {
    switch (vectors) {
      case 1: return weigh_columns<kPhases, 1>(job, j);
      case 2: return weigh_columns<kPhases, std::min(2, kMost)>(job, j);
      case 3: return weigh_columns<kPhases, std::min(3, kMost)>(job, j);
      default: return weigh_columns<kPhases, std::min(4, kMost)>(job, j);
    }
  });
}

template <typename T>
void weigh_block(const WeighBlock<T>& job) {
  if (weigh_few_taps(job)) return;
  switch (job.phases) {
    case 1: return weigh_phases<1>(job);
    case 2: return weigh_phases<2>(job);
    case 3: return weigh_phases<3>(job);
    default: return weigh_phases<4>(job);
  }
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
