// The reference itself, against an independent definition (each input scattered through the kernel) and values worked
// out by hand.
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "cases.h"
#include "cpu_support.h"

namespace tconv::test {
namespace {

std::int64_t offset_at(const Strides& strides, std::int64_t a, std::int64_t b, const std::array<std::int64_t, 3>& at) {
  return a * strides[0] + b * strides[1] + at[0] * strides[2] + at[1] * strides[3] + at[2] * strides[4];
}

// Calls visit(n, ci, co, i, k, o) for every product that a transposed convolution consists of; co counts in the group.
template <typename Visit>
void for_each_product(const Problem& problem, const Visit& visit) {
  const auto& [depth, height, width] = problem.axes;
  const auto land = [](const Axis& axis, std::int64_t i, std::int64_t k) {
    return i * axis.stride + k * axis.dilation - axis.pad_begin;
  };
  const auto inside = [](const Axis& axis, std::int64_t o) { return o >= 0 && o < axis.output(); };
  for (std::int64_t n = 0; n < problem.batch; ++n) {
    for (std::int64_t ci = 0; ci < problem.in_channels; ++ci) {
      for (std::int64_t co = 0; co < problem.out_channels_per_group(); ++co) {
        for_each_offset({depth.input, height.input, width.input, 1, 1}, {1 << 20, 1 << 10, 1, 0, 0},
                        [&](std::int64_t i) {
                          for_each_offset({depth.kernel, height.kernel, width.kernel, 1, 1},
                                          {1 << 20, 1 << 10, 1, 0, 0}, [&](std::int64_t k) {
                                            const auto split = [](std::int64_t all) {
                                              return std::array{all >> 20, (all >> 10) & 1023, all & 1023};
                                            };
                                            const auto x = split(i);
                                            const auto tap = split(k);
                                            std::array<std::int64_t, 3> y{};
                                            for (int a = 0; a < 3; ++a) {
                                              y[a] = land(problem.axes[a], x[a], tap[a]);
                                              if (!inside(problem.axes[a], y[a])) return;
                                            }
                                            visit(n, ci, co, x, tap, y);
                                          });
                        });
      }
    }
  }
}

// The result of the problem by scattering, as a map from offsets to values; NaN where the tensor has no element.
std::vector<double> scattered(const Problem& problem, Tensors& tensors) {
  Tensor& result = tensors.result(problem);
  std::vector<double> sums(result.exact.size(), std::nan(""));
  const auto at = [&](std::int64_t offset) -> double& { return sums[result.first + offset]; };
  for_each_offset(result.sizes, result.strides, [&](std::int64_t offset) { at(offset) = 0; });
  if (problem.direction == Direction::grad_bias) {
    for (std::int64_t n = 0; n < problem.batch; ++n) {
      for (std::int64_t c = 0; c < problem.out_channels; ++c) {
        for_each_offset({1, 1, problem.axes[0].output(), problem.axes[1].output(), problem.axes[2].output()},
                        problem.output_strides, [&](std::int64_t o) {
                          at(c) +=
                              tensors.output.get(o + n * problem.output_strides[0] + c * problem.output_strides[1]);
                        });
      }
    }
    return sums;
  }
  for_each_product(problem, [&](auto n, auto ci, auto co, const auto& i, const auto& k, const auto& o) {
    const std::int64_t out_channel = ci / problem.in_channels_per_group() * problem.out_channels_per_group() + co;
    const std::int64_t x = offset_at(problem.input_strides, n, ci, i);
    const std::int64_t w = offset_at(problem.weight_strides, ci, co, k);
    const std::int64_t y = offset_at(problem.output_strides, n, out_channel, o);
    if (problem.direction == Direction::forward) at(y) += tensors.input.get(x) * tensors.weight.get(w);
    if (problem.direction == Direction::grad_input) at(x) += tensors.output.get(y) * tensors.weight.get(w);
    if (problem.direction == Direction::grad_weight) at(w) += tensors.output.get(y) * tensors.input.get(x);
  });
  if (problem.bias) {
    for (std::int64_t n = 0; n < problem.batch; ++n) {
      for (std::int64_t c = 0; c < problem.out_channels; ++c) {
        for_each_offset({1, 1, problem.axes[0].output(), problem.axes[1].output(), problem.axes[2].output()},
                        problem.output_strides, [&](std::int64_t o) {
                          at(o + n * problem.output_strides[0] + c * problem.output_strides[1]) += tensors.bias.get(c);
                        });
      }
    }
  }
  return sums;
}

TEST(Reference, AgreesWithScattering) {
  Random random(1);
  for (int round = 0; round < test::cases(1500) && !::testing::Test::HasFailure(); ++round) {
    const Problem problem = random_problem(random);
    if (multiply_adds(problem) > 2e5) continue;
    Tensors tensors(problem, random);
    compute_exact(problem, tensors);  // fills in the magnitudes
    tensors.result(problem).exact = scattered(problem, tensors);
    run(*plan(problem, {}, "reference"), tensors.buffers());
    // Both sums are in double and in different orders; the dtype rounds once.
    expect_close(problem, tensors, DType::f64, 2 * terms_of(problem) + 2);
  }
}

Problem one_axis(const Axis& axis) {
  Problem problem;
  problem.rank = 1;
  problem.dtype = DType::f64;
  problem.axes[2] = axis;
  set_contiguous(problem);
  return problem;
}

std::vector<double> forward(Problem problem, std::vector<double> input, std::vector<double> weight,
                            std::vector<double> bias = {}) {
  problem.bias = !bias.empty();
  std::vector<double> output(element_count(problem.output_sizes()), std::nan(""));
  run(*plan(problem, {}, "reference"), {input.data(), weight.data(), bias.data(), output.data(), nullptr});
  return output;
}

using Values = std::vector<double>;

TEST(Reference, KnownValues) {
  // input 3, kernel 3, stride 2: inputs land two apart and neighbours overlap in one output.
  EXPECT_EQ(forward(one_axis({3, 3, 2, 1, 0, 0, 0}), {1, 10, 100}, {1, 2, 3}), (Values{1, 2, 13, 20, 130, 200, 300}));
  // Padding removes outputs at both ends, output_padding adds one at the end alone.
  EXPECT_EQ(forward(one_axis({3, 3, 2, 1, 1, 1, 0}), {1, 10, 100}, {1, 2, 3}), (Values{2, 13, 20, 130, 200}));
  EXPECT_EQ(forward(one_axis({3, 3, 2, 1, 1, 1, 1}), {1, 10, 100}, {1, 2, 3}), (Values{2, 13, 20, 130, 200, 300}));
  EXPECT_EQ(forward(one_axis({3, 3, 2, 1, 1, 3, 0}), {1, 10, 100}, {1, 2, 3}), (Values{2, 13, 20}));
  // Dilation spreads the taps; a kernel shorter than the stride leaves outputs that hold the bias alone.
  EXPECT_EQ(forward(one_axis({2, 2, 1, 3, 0, 0, 0}), {1, 10}, {1, 2}), (Values{1, 10, 0, 2, 20}));
  EXPECT_EQ(forward(one_axis({2, 1, 3, 1, 0, 0, 2}), {1, 10}, {2}, {0.5}), (Values{2.5, 0.5, 0.5, 20.5, 0.5, 0.5}));
}

TEST(Reference, WeightIsInputChannelFirstAndGroupsAreSeparate) {
  Problem problem = one_axis({1, 1, 1, 1, 0, 0, 0});
  problem.in_channels = 2;
  problem.out_channels = 3;
  set_contiguous(problem);
  EXPECT_EQ(forward(problem, {1, 10}, {1, 2, 3, 4, 5, 6}), (Values{41, 52, 63}));
  problem.in_channels = 4;
  problem.out_channels = 2;
  problem.groups = 2;
  set_contiguous(problem);
  EXPECT_EQ(forward(problem, {1, 10, 100, 1000}, {1, 2, 3, 4}), (Values{21, 4300}));
}

TEST(Reference, NothingToSumIsTheBias) {
  Problem problem = one_axis({2, 2, 2, 1, 0, 0, 0});
  problem.in_channels = 0;
  problem.out_channels = 2;
  set_contiguous(problem);
  EXPECT_EQ(forward(problem, {}, {}, {3, 4}), (Values{3, 3, 3, 3, 4, 4, 4, 4}));
  EXPECT_EQ(forward(problem, {}, {}), Values(8, 0));
  problem.in_channels = 1;
  problem.batch = 0;
  set_contiguous(problem);
  EXPECT_TRUE(forward(problem, {}, {1, 2, 3, 4}).empty());
}

TEST(Scalar, Float16RoundTripsAndRoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const cpu::Float16 half{static_cast<std::uint16_t>(bits)};
    const float value = cpu::to_float(half);
    if (std::isnan(value)) {
      EXPECT_GT(bits & 0x7fffU, 0x7c00U);
      EXPECT_TRUE(std::isnan(cpu::to_float(cpu::to_float16(value))));
      EXPECT_TRUE(std::isnan(cpu::to_float(cpu::Element<cpu::Float16>::store(value))));
      continue;
    }
    ASSERT_EQ(cpu::to_float16(value).bits, bits);
    ASSERT_EQ(cpu::Element<cpu::Float16>::store(value).bits, bits);
    if ((bits & 0x7fffU) >= 0x7c00U) continue;
    // Just below, at and just above the midpoint to the next value away from zero; after the largest comes infinity.
    const bool largest = (bits & 0x7fffU) == 0x7bffU;
    const float next =
        largest ? std::copysign(65536.0F, value) : cpu::to_float(cpu::Float16{static_cast<std::uint16_t>(bits + 1)});
    const float middle = (value + next) / 2;
    const auto even = static_cast<std::uint16_t>(bits + (bits & 1U));
    ASSERT_EQ(cpu::to_float16(middle).bits, even);
    ASSERT_EQ(cpu::to_float16(std::nextafter(middle, value)).bits, bits);
    ASSERT_EQ(cpu::to_float16(std::nextafter(middle, next)).bits, bits + 1);
    ASSERT_EQ(cpu::Element<cpu::Float16>::store(middle).bits, even);
    ASSERT_EQ(cpu::Element<cpu::Float16>::store(std::nextafter(double{middle}, double{next})).bits, bits + 1);
  }
}

TEST(Scalar, BFloat16RoundTripsAndRoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = cpu::to_float(cpu::BFloat16{static_cast<std::uint16_t>(bits)});
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(cpu::to_float(cpu::to_bfloat16(value))));
      EXPECT_TRUE(std::isnan(cpu::to_float(cpu::Element<cpu::BFloat16>::store(value))));
      continue;
    }
    ASSERT_EQ(cpu::to_bfloat16(value).bits, bits);
    ASSERT_EQ(cpu::Element<cpu::BFloat16>::store(value).bits, bits);
    if ((bits & 0x7fffU) >= 0x7f7fU) continue;
    const float middle = std::bit_cast<float>((bits << 16U) | 0x8000U);
    const auto even = static_cast<std::uint16_t>(bits + (bits & 1U));
    ASSERT_EQ(cpu::to_bfloat16(middle).bits, even);
    ASSERT_EQ(cpu::to_bfloat16(std::bit_cast<float>((bits << 16U) | 0x7fffU)).bits, bits);
    ASSERT_EQ(cpu::to_bfloat16(std::bit_cast<float>((bits << 16U) | 0x8001U)).bits, bits + 1);
    ASSERT_EQ(cpu::Element<cpu::BFloat16>::store(middle).bits, even);
  }
  EXPECT_EQ(cpu::to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(cpu::Element<cpu::BFloat16>::store(1e300).bits, 0x7f80);
}

}  // namespace
}  // namespace tconv::test
