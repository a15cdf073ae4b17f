#include "cpu/depthwise_line_gradients_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/depthwise_line_gradients_simd.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "cpu/gradients-inl.h"
#include "cpu/panels.h"
#include "cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Vectors that a function captures stay in registers only where it is inlined.
#undef TCONV_LAMBDA
#define TCONV_LAMBDA HWY_ATTR __attribute__((always_inline))

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

// Lanes [first, last) of a vector, either of which may lie outside.
using Lanes = std::uint16_t;
constexpr Lanes kAllLanes = 0xffff;

HWY_INLINE Lanes lanes_between(std::int64_t first, std::int64_t last) {
  const auto up_to = [](std::int64_t lane) {
    return (std::uint32_t{1} << std::clamp<std::int64_t>(lane, 0, kMostLanes)) - 1;
  };
  return static_cast<Lanes>(up_to(last) & ~up_to(first));
}

template <class D>
HWY_INLINE hn::Mask<D> mask_of(D /*tag*/, Lanes lanes) {
  return hn::Mask<D>{lanes};
}

// sum + a b in the lanes of the mask, sum in the others: a product with zero would be NaN where b is infinite.
template <class M, class V>
HWY_INLINE V add_product(M mask, V a, V b, V sum) {
  return V{_mm512_mask3_fmadd_ps(a.raw, b.raw, sum.raw, mask.raw)};
}

// Lanes [kShift, kShift + lanes) of two vectors side by side.
template <int kShift, class V>
HWY_INLINE V shifted(V now, V next) {
  constexpr int kLanes = hn::MaxLanes(hn::DFromV<V>());
  if constexpr (kShift == 0) return now;
  if constexpr (kShift == kLanes) return next;
  return V{_mm512_castsi512_ps(
      _mm512_alignr_epi32(_mm512_castps_si512(next.raw), _mm512_castps_si512(now.raw), kShift % kLanes))};
}

// Calls body(0), body(1), ... with constants: arrays of vectors that are indexed by them stay in registers.
template <int kCount, class Body>
HWY_INLINE void unrolled(const Body& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>)
      TCONV_LAMBDA { (body(std::integral_constant<int, kIndex>()), ...); }(std::make_integer_sequence<int, kCount>());
}

// The sums of every kStride lanes, of as many vectors.
template <int kStride, class D>
HWY_INLINE hn::Vec<D> add_taps(D tag, const hn::Vec<D>* vectors) {
  if constexpr (kStride == 1) {
    return vectors[0];
  } else {
    const auto a = add_taps<kStride / 2>(tag, vectors);
    const auto b = add_taps<kStride / 2>(tag, vectors + kStride / 2);
    return hn::Add(hn::ConcatEven(tag, b, a), hn::ConcatOdd(tag, b, a));
  }
}

// What is there of a vector of cells at the end of a row.
template <int kStride, int kBlocks>
struct Edge {
  bool is_known = false;
  std::int64_t first = 0;         // cell
  Lanes cells = 0;                // of the row
  Lanes pairs[kStride][kBlocks];  // (cell, tap) pairs of the row that read something
  Lanes places[kStride + 1];      // of the gradient of the output, from what the first block reads on
};

// A pass over all rows: blocks [b, b + kBlocks) of the kernel rows [r, r + kRows). The results of other blocks are in
// partial_results unless these are the first, and stay there unless these are the last.
template <int kStride, int kRows, int kBlocks, class W, typename T>
void pass(GradientLines<T>& job, std::int64_t r, std::int64_t b) {
  const hn::ScalableTag<T> tag;
  const hn::RebindToSigned<decltype(tag)> index_tag;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  using Index = hn::TFromD<decltype(index_tag)>;
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  const std::int64_t blocks = (job.taps + kStride - 1) / kStride;
  const bool is_first = r == 0 && b == 0;
  const bool is_last = r + kRows == job.kernel_row_count && b + kBlocks == blocks;
  V weights[kRows][kBlocks];
  V sums[kRows][kBlocks];
  unrolled<kRows>([&](auto k) TCONV_LAMBDA {
    unrolled<kBlocks>([&](auto i) TCONV_LAMBDA {
      const std::int64_t place = job.kernel_rows[r + k].place + (b + i) * kLanes;
      if constexpr (W::kInput) weights[k][i] = hn::LoadU(tag, job.weights + place);
      sums[k][i] = hn::Zero(tag);
    });
  });
  // The cell that a lane of a vector of (cell, tap) pairs belongs to.
  static constexpr auto kCellOfLane = [] {
    std::array<Index, kStride * kLanes> cells{};
    for (std::int64_t i = 0; i < kStride * kLanes; ++i) cells[i] = static_cast<Index>(i / kStride);
    return cells;
  }();
  // Of the last block's lanes, those of taps.
  constexpr Lanes kEveryStride = 0xffff / ((1U << kStride) - 1);
  const auto last_taps = static_cast<Lanes>(((1U << (job.taps - (blocks - 1) * kStride)) - 1) * kEveryStride);
  // Whose lanes are all taps unless it is the last one of all.
  const auto of_last_block = mask_of(tag, b + kBlocks == blocks ? last_taps : kAllLanes);
  // Of the two vectors at either end of a row, which may begin at one of a few places.
  Edge<kStride, kBlocks> edges[16];
  const auto places_from = [&](std::int64_t j) TCONV_LAMBDA {
    const std::int64_t place = (j + b) * kStride - job.pad;
    return lanes_between(-place, job.outputs - place);
  };
  const auto fill_edge = [&](auto& edge, std::int64_t j) {
    edge.is_known = true;
    edge.first = j;
    edge.cells = lanes_between(job.begin - j, job.end - j);
    for (int h = 0; h <= kStride; ++h) {
      const std::int64_t place = (j + b) * kStride + h * kLanes - job.pad;
      edge.places[h] = lanes_between(-place, job.outputs - place);
    }
    for (int h = 0; h < kStride; ++h) {
      for (int i = 0; i < kBlocks; ++i) {
        // Where the first lane is, in cells times the stride, and what the block's first tap reads there.
        const std::int64_t first = j * kStride + h * kLanes;
        const std::int64_t place = first - job.pad + (b + i) * kStride;
        const Lanes lanes = lanes_between(std::max(job.begin * kStride - first, -place),
                                          std::min(job.end * kStride - first, job.outputs - place));
        edge.pairs[h][i] = b + i + 1 == blocks ? static_cast<Lanes>(lanes & last_taps) : lanes;
      }
    }
  };
  const auto find_edge = [&](std::int64_t j) TCONV_LAMBDA -> const auto& {
    auto& edge = edges[(2 * j > job.begin + job.end ? 8 : 0) + ((j + kLanes) / 4 & 7)];
    if (!edge.is_known || edge.first != j) fill_edge(edge, j);
    return edge;
  };
  {
    Asking asking(job.ahead, job.lines_ahead);
    const T* grad[kRows];  // of the vector of cells that comes next
    T* partial = job.partial_results;
    V now[kRows];        // what the first block reads
    unsigned there = 0;  // kernel rows of which the row has something, as bits
    std::int64_t kernel_taps[kRows];
    kernel_taps[0] = r % job.kernel_height;
    for (int k = 1; k < kRows; ++k) {
      kernel_taps[k] = kernel_taps[k - 1] + 1 < job.kernel_height ? kernel_taps[k - 1] + 1 : 0;
    }
    // A vector of cells, by load(h, address) and add(h, i, a, b, sum).
    const auto multiply = [&](V x, const auto& load, const auto& add) TCONV_LAMBDA {
      V results[kStride];
      unrolled<kStride>([&](auto h) TCONV_LAMBDA {
        asking.ask();
        auto spread = x;
        if constexpr (W::kWeight && kStride > 1) {
          const auto lanes = hn::LoadU(index_tag, kCellOfLane.data() + h * kLanes);
          spread = hn::TableLookupLanes(x, hn::IndicesFromVec(tag, lanes));
        }
        auto result = hn::Zero(tag);
        auto other = hn::Zero(tag);
        unrolled<kRows>([&](auto k) TCONV_LAMBDA {
          if ((there >> k & 1) == 0) return;
          auto next = load(h, grad[k] + (h + 1) * kLanes);
          hold(next);
          unrolled<kBlocks>([&](auto i) TCONV_LAMBDA {
            const auto g = shifted<i * kStride>(now[k], next);
            if constexpr (W::kInput) {
              auto& sum = (k * kBlocks + i) % 2 == 0 ? result : other;
              sum = add(h, i, g, weights[k][i], sum);
            }
            if constexpr (W::kWeight) sums[k][i] = add(h, i, g, spread, sums[k][i]);
          });
          now[k] = next;
        });
        results[h] = hn::Add(result, other);
      });
      unrolled<kRows>([&](auto k) TCONV_LAMBDA { grad[k] += kStride * kLanes; });
      return add_taps<kStride>(tag, results);
    };
    std::pair<std::int64_t, std::int64_t> taps{0, 0};
    const auto enter_row = [&](std::int64_t row) TCONV_LAMBDA {
      if (job.row_taps[row] == taps) return;
      taps = job.row_taps[row];
      there = 0;
      for (int k = 0; k < kRows; ++k) {
        there |= static_cast<unsigned>(kernel_taps[k] >= taps.first && kernel_taps[k] < taps.second) << k;
      }
    };
    const auto load_first = [&](Lanes places) TCONV_LAMBDA {
      unrolled<kRows>([&](auto k) TCONV_LAMBDA {
        now[k] = (there >> k & 1) != 0 ? hn::MaskedLoad(mask_of(tag, places), tag, grad[k]) : hn::Zero(tag);
      });
    };
    const auto put = [&](V result, const auto& store) TCONV_LAMBDA {
      if constexpr (W::kInput) {
        if (!is_first) result = hn::Add(hn::Load(tag, partial), result);
        is_last ? store(result) : hn::Store(result, tag, partial);
      }
      partial += kLanes;
    };
    const auto multiply_edge = [&](const auto& edge, V x) TCONV_LAMBDA {
      return multiply(
          x,
          [&](auto h, const T* from)
              TCONV_LAMBDA { return hn::MaskedLoad(mask_of(tag, edge.places[h + 1]), tag, from); },
          [&](auto h, auto i, V v, V w, V sum)
              TCONV_LAMBDA { return add_product(mask_of(tag, edge.pairs[h][i]), v, w, sum); });
    };
    if (job.place < 0) {
      // Short rows: the same few vectors in each of them.
      const T* first_grad[kRows];
      unrolled<kRows>([&](auto k) TCONV_LAMBDA {
        first_grad[k] = job.grad + (job.kernel_rows[r + k].offset + (b + job.begin) * kStride - job.pad);
      });
      const std::int64_t vectors = (job.end - job.begin + kLanes - 1) / kLanes;
      for (std::int64_t v = 0; v < vectors; ++v) fill_edge(edges[v], job.begin + v * kLanes);
      const Lanes before = places_from(job.begin);
      const T* input = W::kWeight ? job.input + job.begin : nullptr;
      T* to = W::kInput ? job.results + job.begin : nullptr;
      for (std::int64_t row = 0; row < job.rows; ++row) {
        enter_row(row);
        unrolled<kRows>([&](auto k) TCONV_LAMBDA {
          grad[k] = first_grad[k];
          first_grad[k] += job.grad_step;
        });
        load_first(before);
        for (std::int64_t v = 0; v < vectors; ++v) {
          const auto& edge = edges[v];
          auto x = hn::Zero(tag);
          if constexpr (W::kWeight) x = hn::MaskedLoad(mask_of(tag, edge.cells), tag, input + v * kLanes);
          put(multiply_edge(edge, x), [&](V result) TCONV_LAMBDA {
            T* const place = to + v * kLanes;
            if (edge.cells != kAllLanes) {
              hn::BlendedStore(result, mask_of(tag, edge.cells), tag, place);
            } else if (job.past_caches && reinterpret_cast<std::uintptr_t>(place) % (kLanes * sizeof(T)) == 0) {
              hn::Stream(result, tag, place);
            } else {
              hn::StoreU(result, tag, place);
            }
          });
        }
        if constexpr (W::kWeight) input += job.input_step;
        if constexpr (W::kInput) to += job.result_step;
      }
    }
    // Cells from which a whole vector reads nothing that is not there: [low, high).
    const std::int64_t low = std::max(job.begin, (std::max<std::int64_t>(job.pad, 0) + kStride - 1) / kStride);
    std::int64_t high = std::min(job.end - kLanes, (job.outputs + job.pad - (kStride + 1) * kLanes) / kStride - b) + 1;
    if (job.outputs < (kStride + 1) * kLanes) high = low;
    for (std::int64_t row = 0; row < job.rows && job.place >= 0; ++row) {
      const std::int64_t from = job.place + row * job.input_step + job.begin;
      std::int64_t j = job.begin - from % kLanes;
      enter_row(row);
      unrolled<kRows>([&](auto k) TCONV_LAMBDA {
        grad[k] = job.grad + (job.kernel_rows[r + k].offset + row * job.grad_step + (b + j) * kStride - job.pad);
      });
      load_first(places_from(j));
      const T* const input = W::kWeight ? job.input + row * job.input_step : nullptr;
      T* const to = W::kInput ? job.results + row * job.result_step : nullptr;
      const bool streams =
          W::kInput && job.past_caches && reinterpret_cast<std::uintptr_t>(to + j) % (kLanes * sizeof(T)) == 0;
      const auto store_all = [&](V result) TCONV_LAMBDA {
        streams ? hn::Stream(result, tag, to + j) : hn::StoreU(result, tag, to + j);
      };
      while (j < job.end) {
        for (; j >= low && j < high; j += kLanes) {
          auto x = hn::Zero(tag);
          if constexpr (W::kWeight) x = hn::LoadU(tag, input + j);
          put(multiply(
                  x, [&](auto /*h*/, const T* from) TCONV_LAMBDA { return hn::LoadU(tag, from); },
                  [&](auto /*h*/, auto i, V v, V w, V sum) TCONV_LAMBDA {
                    if constexpr (i < kBlocks - 1) return hn::MulAdd(v, w, sum);
                    return add_product(of_last_block, v, w, sum);
                  }),
              store_all);
        }
        if (j >= job.end) break;
        const auto& edge = find_edge(j);
        auto x = hn::Zero(tag);
        if constexpr (W::kWeight) x = hn::MaskedLoad(mask_of(tag, edge.cells), tag, input + j);
        put(multiply_edge(edge, x), [&](V result) TCONV_LAMBDA {
          if (j < job.begin || j + kLanes > job.end) {
            hn::BlendedStore(result, mask_of(tag, edge.cells), tag, to + j);
          } else {
            store_all(result);
          }
        });
        j += kLanes;
      }
    }
  }
  if constexpr (W::kWeight) {
    unrolled<kRows>([&](auto k) TCONV_LAMBDA {
      unrolled<kBlocks>([&](auto i) TCONV_LAMBDA {
        T* const place = job.sums + job.kernel_rows[r + k].place + (b + i) * kLanes;
        hn::StoreU(hn::Add(hn::LoadU(tag, place), sums[k][i]), tag, place);
      });
    });
  }
}

// All blocks of kRows kernel rows, most of them as many at a time as registers allow; two where sanitizers make long
// functions take minutes to compile.
#ifdef __SANITIZE_ADDRESS__
constexpr int kMostBlocks = 2;
#else
constexpr int kMostBlocks = kTogether + kTogether / 8;
#endif

template <int kStride, int kRows, class W, int kBlocks, typename T>
HWY_INLINE void blocks_of_lines(GradientLines<T>& job, std::int64_t r, std::int64_t b) {
  const std::int64_t blocks = (job.taps + kStride - 1) / kStride;
  constexpr int kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  if constexpr (kBlocks * kRows <= kMostBlocks && (kBlocks - 1) * kStride <= kLanes) {
    for (; b + kBlocks <= blocks; b += kBlocks) pass<kStride, kRows, kBlocks, W>(job, r, b);
  }
  if constexpr (kBlocks > 1) blocks_of_lines<kStride, kRows, W, kBlocks == 6 ? 4 : kBlocks - 1>(job, r, b);
}

template <int kStride, class W, typename T>
void gradients_of_lines(GradientLines<T>& job) {
  const std::int64_t blocks = (job.taps + kStride - 1) / kStride;
  const auto fits = [&](std::int64_t rows) { return blocks * rows <= kMostBlocks; };
  std::int64_t r = 0;
  for (; fits(4) && r + 4 <= job.kernel_row_count; r += 4) blocks_of_lines<kStride, 4, W, 2>(job, r, 0);
  for (; fits(3) && r + 3 <= job.kernel_row_count; r += 3) blocks_of_lines<kStride, 3, W, 3>(job, r, 0);
  for (; fits(2) && r + 2 <= job.kernel_row_count; r += 2) blocks_of_lines<kStride, 2, W, 4>(job, r, 0);
  for (; r < job.kernel_row_count; ++r) blocks_of_lines<kStride, 1, W, 6>(job, r, 0);
}

template <class W, typename T>
void strided_lines(GradientLines<T>& job) {
  switch (job.stride) {
    case 1: return gradients_of_lines<1, W>(job);
    case 2: return gradients_of_lines<2, W>(job);
    default: return gradients_of_lines<4, W>(job);
  }
}

template <typename T>
void lines(GradientLines<T>& job) {
  if (job.sums == nullptr) return strided_lines<Wanted<true, false>>(job);
  if (job.results == nullptr) return strided_lines<Wanted<false, true>>(job);
  strided_lines<Wanted<true, true>>(job);
}

template <typename T>
LineGradientOps<T> make_ops() {
  return {hn::MaxLanes(hn::ScalableTag<T>()), std::min(kTogether, kMostBlocks), lines<T>, put_row<T, T>};
}

#else

template <typename T>
LineGradientOps<T> make_ops() {
  return {};
}

#endif

const LineGradientOps<float>& float_lines() {
  static const auto ops = make_ops<float>();
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(float_lines);

template <>
const LineGradientOps<float>& line_gradient_ops<float>() {
  return HWY_DYNAMIC_DISPATCH(float_lines)();
}

}  // namespace tconv::cpu
#endif
