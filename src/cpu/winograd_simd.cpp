#include "cpu/winograd_simd.h"

#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/winograd_simd.cpp"
#include <hwy/foreach_target.h>  // includes this file once per instruction set
#include <hwy/highway.h>

#include <algorithm>

#ifndef TCONV_CPU_WINOGRAD_MATRICES
#define TCONV_CPU_WINOGRAD_MATRICES
namespace tconv::cpu {

// Products are polynomials at points: 0, 1, -1, 1/2, -2 and infinity for three taps, which cost the fewest digits of
// all (1.6 times the error of plain sums; with 2 and -2: 2.0), 0, 1, -1 and infinity for two (no more than plain sums).
struct SourceOfThree {
  static constexpr int kTo = 6;
  static constexpr int kFrom = 6;
  static constexpr double kAt[kTo][kFrom] = {
      {2, -3, -4, 3, 2, 0}, {0, 2, -1, -5, -2, 0}, {0, 2, -5, 1, 2, 0},
      {0, 2, 1, -2, -1, 0}, {0, 1, -2, -1, 2, 0},  {0, 2, -3, -4, 3, 2},
  };
};
struct WeightsOfThree {
  static constexpr int kTo = 6;
  static constexpr int kFrom = 3;
  static constexpr double kAt[kTo][kFrom] = {
      {1.0 / 2, 0, 0},
      {-1.0 / 6, -1.0 / 6, -1.0 / 6},
      {-1.0 / 6, 1.0 / 6, -1.0 / 6},
      {16.0 / 15, 8.0 / 15, 4.0 / 15},
      {1.0 / 30, -1.0 / 15, 2.0 / 15},
      {0, 0, 1.0 / 2},
  };
};
struct ResultsOfThree {
  static constexpr int kTo = 4;
  static constexpr int kFrom = 6;
  static constexpr double kAt[kTo][kFrom] = {
      {1, 1, 1, 1, 1, 0},
      {0, 1, -1, 1.0 / 2, -2, 0},
      {0, 1, 1, 1.0 / 4, 4, 0},
      {0, 1, -1, 1.0 / 8, -8, 1},
  };
};

struct SourceOfTwo {
  static constexpr int kTo = 4;
  static constexpr int kFrom = 4;
  static constexpr double kAt[kTo][kFrom] = {{1, 0, -1, 0}, {0, 1, 1, 0}, {0, 1, -1, 0}, {0, 1, 0, -1}};
};
struct WeightsOfTwo {
  static constexpr int kTo = 4;
  static constexpr int kFrom = 2;
  static constexpr double kAt[kTo][kFrom] = {{1, 0}, {1.0 / 2, 1.0 / 2}, {-1.0 / 2, 1.0 / 2}, {0, -1}};
};
struct ResultsOfTwo {
  static constexpr int kTo = 3;
  static constexpr int kFrom = 4;
  static constexpr double kAt[kTo][kFrom] = {{1, 1, 1, 0}, {0, 1, -1, 0}, {0, 1, 1, 1}};
};

// Three taps at the points of two: fewer outputs, and no more error than plain sums.
struct WeightsOfThreeAtFour {
  static constexpr int kTo = 4;
  static constexpr int kFrom = 3;
  static constexpr double kAt[kTo][kFrom] = {
      {1, 0, 0}, {1.0 / 2, 1.0 / 2, 1.0 / 2}, {-1.0 / 2, 1.0 / 2, -1.0 / 2}, {0, 0, -1}};
};
struct ResultsOfThreeAtFour {
  static constexpr int kTo = 2;
  static constexpr int kFrom = 4;
  static constexpr double kAt[kTo][kFrom] = {{1, 1, 1, 0}, {0, 1, -1, 1}};
};

// Two taps at 0, 1, -2, -1/2 and infinity (1.2 times the error of plain sums; with 2 or 1/2: 1.6 and more).
struct SourceOfTwoAtFive {
  static constexpr int kTo = 5;
  static constexpr int kFrom = 5;
  static constexpr double kAt[kTo][kFrom] = {
      {2, 3, -3, -2, 0}, {0, 2, 5, 2, 0}, {0, -1, -1, 2, 0}, {0, -2, 1, 1, 0}, {0, -2, -3, 3, 2}};
};
struct WeightsOfTwoAtFive {
  static constexpr int kTo = 5;
  static constexpr int kFrom = 2;
  static constexpr double kAt[kTo][kFrom] = {
      {1.0 / 2, 0}, {1.0 / 9, 1.0 / 9}, {-1.0 / 18, 1.0 / 9}, {8.0 / 9, -4.0 / 9}, {0, 1.0 / 2}};
};
struct ResultsOfTwoAtFive {
  static constexpr int kTo = 4;
  static constexpr int kFrom = 5;
  static constexpr double kAt[kTo][kFrom] = {
      {1, 1, 1, 1, 0}, {0, 1, -2, -1.0 / 2, 0}, {0, 1, 4, 1.0 / 4, 0}, {0, 1, -8, -1.0 / 8, 1}};
};

// Two taps at 0, 1 and infinity.
struct SourceOfTwoAtThree {
  static constexpr int kTo = 3;
  static constexpr int kFrom = 3;
  static constexpr double kAt[kTo][kFrom] = {{1, -1, 0}, {0, 1, 0}, {0, -1, 1}};
};
struct WeightsOfTwoAtThree {
  static constexpr int kTo = 3;
  static constexpr int kFrom = 2;
  static constexpr double kAt[kTo][kFrom] = {{1, 0}, {1, 1}, {0, 1}};
};
struct ResultsOfTwoAtThree {
  static constexpr int kTo = 2;
  static constexpr int kFrom = 3;
  static constexpr double kAt[kTo][kFrom] = {{1, 1, 0}, {0, 1, 1}};
};

template <class Matrix>
struct Transposed {
  static constexpr int kTo = Matrix::kFrom;
  static constexpr int kFrom = Matrix::kTo;
  static constexpr auto kAt = [] {
    std::array<std::array<double, kFrom>, kTo> at{};
    for (int i = 0; i < kTo; ++i) {
      for (int j = 0; j < kFrom; ++j) at[i][j] = Matrix::kAt[j][i];
    }
    return at;
  }();
};

}  // namespace tconv::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class Matrix>
void combine(const Combine<float>& shared) {
  Combine<float> job = shared;  // no store changes it
  const hn::ScalableTag<float> tag;
  using V = hn::Vec<decltype(tag)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  for (std::int64_t cell = 0; cell < job.cells; ++cell) {
    const std::int64_t to = cell * job.to_step;
    for (std::int64_t c = 0; c < job.count; c += lanes) {
      V values[Matrix::kFrom];
#pragma GCC unroll 6
      for (int i = 0; i < Matrix::kFrom; ++i) values[i] = hn::LoadU(tag, job.from[i] + c);
      const V first = job.bias == nullptr ? hn::Zero(tag) : hn::LoadU(tag, job.bias + c);
#pragma GCC unroll 6
      for (int o = 0; o < Matrix::kTo; ++o) {
        if (job.to[o] == nullptr) continue;
        V sum = first;
#pragma GCC unroll 6
        for (int i = 0; i < Matrix::kFrom; ++i) {
          const auto weight = static_cast<float>(Matrix::kAt[o][i]);
          if (weight == 1) {
            sum = hn::Add(sum, values[i]);
          } else if (weight == -1) {
            sum = hn::Sub(sum, values[i]);
          } else if (weight != 0) {
            sum = hn::MulAdd(hn::Set(tag, weight), values[i], sum);
          }
        }
        job.past_caches ? hn::Stream(sum, tag, job.to[o] + to + c) : hn::StoreU(sum, tag, job.to[o] + to + c);
      }
    }
    for (int i = 0; i < Matrix::kFrom; ++i) job.from[i] += job.from_steps[i];
  }
}

const WinogradOps& float_winograd() {
  static const WinogradOps ops = {
      {combine<SourceOfThree>, combine<SourceOfTwoAtFive>, combine<SourceOfTwo>, combine<SourceOfTwo>,
       combine<SourceOfTwoAtThree>},
      {combine<WeightsOfThree>, combine<WeightsOfTwoAtFive>, combine<WeightsOfTwo>, combine<WeightsOfThreeAtFour>,
       combine<WeightsOfTwoAtThree>},
      {combine<ResultsOfThree>, combine<ResultsOfTwoAtFive>, combine<ResultsOfTwo>, combine<ResultsOfThreeAtFour>,
       combine<ResultsOfTwoAtThree>},
      {combine<Transposed<ResultsOfThree>>, combine<Transposed<ResultsOfTwoAtFive>>, combine<Transposed<ResultsOfTwo>>,
       combine<Transposed<ResultsOfThreeAtFour>>, combine<Transposed<ResultsOfTwoAtThree>>},
      {combine<Transposed<WeightsOfThree>>, combine<Transposed<WeightsOfTwoAtFive>>, combine<Transposed<WeightsOfTwo>>,
       combine<Transposed<WeightsOfThreeAtFour>>, combine<Transposed<WeightsOfTwoAtThree>>}};
  return ops;
}

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tconv::cpu {

HWY_EXPORT(float_winograd);

const WinogradOps& winograd_ops() { return HWY_DYNAMIC_DISPATCH(float_winograd)(); }

}  // namespace tconv::cpu
#endif
