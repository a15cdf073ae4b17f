// Rows and cells of 16-bit elements that the "phases" family moves by vectors: phases put together, lattices and
// channels taken apart, groups read as pairs; against the reference, by every instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cases.h"
#include "cpu/bf16_products.h"
#include "cpu_family_checks.h"
#include "cpu_support.h"

namespace tconv::test {
namespace {

constexpr std::array kDirections = {Direction::forward, Direction::grad_input, Direction::grad_weight};

bool check(const Problem& problem, Tensors& tensors) {
  tensors.result(problem).poison();
  run_with_workspace(*plan(problem, {}, "phases"), tensors.buffers());
  expect_close(problem, tensors, DType::f32, terms_of(problem) + 2);
  return true;
}

void lay_out(Problem& problem, bool channels_last) {
  set_contiguous(problem);
  if (!channels_last) return;
  problem.input_strides = channels_last_strides(problem.input_sizes());
  problem.weight_strides = channels_last_strides(problem.weight_sizes());
  problem.output_strides = channels_last_strides(problem.output_sizes());
}

// A few channels of images of any width; strides of up to nine, also beyond the kernel.
Problem layer_of_few_channels(Random& random) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = 2;
    problem.direction = kDirections[uniform(random, 0, 2)];
    problem.dtype = chance(random, 0.7) ? DType::bf16 : DType::f16;
    problem.bias = problem.direction == Direction::forward && chance(random, 0.5);
    problem.batch = uniform(random, 1, 2);
    problem.groups = chance(random, 0.7) ? 1 : uniform(random, 2, 5);
    problem.in_channels = problem.groups * uniform(random, 1, chance(random, 0.3) ? 20 : 9);
    problem.out_channels = problem.groups * uniform(random, 1, chance(random, 0.3) ? 20 : 9);
    for (int a = 1; a < kSpatialAxes; ++a) {
      Axis& axis = problem.axes[a];
      axis.input = a == 1 ? uniform(random, 1, 4) : uniform(random, 1, chance(random, 0.5) ? 20 : 150);
      axis.stride = uniform(random, 1, chance(random, 0.8) ? 4 : 9);
      axis.kernel = uniform(random, 1, 6);
      axis.pad_begin = uniform(random, 0, axis.kernel - 1);
      axis.pad_end = uniform(random, 0, axis.kernel - 1);
      axis.output_padding = uniform(random, 0, axis.stride - 1);
    }
  } while (problem.axes[1].output() <= 0 || problem.axes[2].output() <= 0);
  lay_out(problem, chance(random, 0.5));
  return problem;
}

TEST(HalfRows, FewChannels) {
  Random random(41);
  test::check_every_target(random, test::cases(300), 1, layer_of_few_channels, check);
}

TEST(HalfRows, PastTheCaches) {
  Random random(42);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const std::int64_t stride : {2, 3, 8}) {
      for (const std::int64_t channels : {1, 2, 3, 8}) {
        Problem problem;
        problem.rank = 2;
        problem.dtype = dtype;
        problem.batch = 2;
        problem.in_channels = 5;
        problem.out_channels = channels;
        problem.bias = true;
        problem.axes[1] = {3, 2, 2, 1, 0, 0, 1};
        problem.axes[2] = {90, stride + 1, stride, 1, 1, 0, 0};
        for (const bool channels_last : {false, true}) {
          lay_out(problem, channels_last);
          for (const std::int64_t offset : {0, 6}) expect_past_caches_is_the_same(problem, "phases", offset, random);
        }
      }
    }
  }
}

// Groups of 16 channels and more, side by side, are read where they lie.
Problem layer_of_groups(Random& random) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = 2;
    problem.direction = kDirections[uniform(random, 0, 2)];
    problem.dtype = DType::bf16;
    problem.bias = problem.direction == Direction::forward && chance(random, 0.5);
    problem.batch = uniform(random, 1, 3);
    problem.groups = uniform(random, 2, 5);
    const auto channels = [&] { return chance(random, 0.7) ? 16 : uniform(random, 14, 18); };
    problem.in_channels = problem.groups * channels();
    problem.out_channels = problem.groups * channels();
    for (int a = 1; a < kSpatialAxes; ++a) {
      Axis& axis = problem.axes[a];
      axis.input = uniform(random, 1, chance(random, 0.2) ? 60 : 14);
      axis.stride = uniform(random, 1, 3);
      axis.kernel = uniform(random, 1, 5);
      axis.dilation = chance(random, 0.8) ? 1 : 2;
      axis.pad_begin = uniform(random, 0, axis.kernel - 1);
      axis.pad_end = uniform(random, 0, axis.kernel - 1);
      axis.output_padding = uniform(random, 0, axis.stride - 1);
    }
  } while (problem.axes[1].output() <= 0 || problem.axes[2].output() <= 0);
  lay_out(problem, true);
  return problem;
}

TEST(HalfRows, GroupsThatFillAVector) {
  Random random(43);
  int pairs = 0;
  const int count = test::cases(120);
  test::check_random_problems(random, count, 1, layer_of_groups, [&](const Problem& problem, Tensors& tensors) {
    pairs += plan(problem, {}, "phases")->kernel->describe().find("pairs of bfloat16") != std::string::npos;
    return check(problem, tensors);
  });
  EXPECT_GE(pairs, cpu::has_bf16_products() ? count / 4 : 0);
}

// A few output channels, whose gradients are read from windows as pairs; images and rows of one cell among them.
Problem layer_of_few_outputs(Random& random) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = static_cast<int>(uniform(random, 1, 3));
    problem.direction = chance(random, 0.5) ? Direction::grad_input : Direction::grad_weight;
    problem.dtype = DType::bf16;
    problem.batch = uniform(random, 1, 5);
    problem.groups = chance(random, 0.8) ? 1 : 2;
    problem.in_channels = problem.groups * uniform(random, 12, 70);
    problem.out_channels = problem.groups * uniform(random, 1, 5);
    for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a) {
      Axis& axis = problem.axes[a];
      axis.input = uniform(random, 1, a == 0 ? 2 : a == 2 && chance(random, 0.3) ? 50 : 7);
      axis.stride = uniform(random, 1, 3);
      axis.kernel = uniform(random, a == 2 ? 2 : 1, a == 0 ? 2 : 7);
      axis.dilation = chance(random, 0.8) ? 1 : 2;
      axis.pad_begin = uniform(random, 0, axis.kernel - 1);
      axis.pad_end = uniform(random, 0, axis.kernel - 1);
      axis.output_padding = uniform(random, 0, axis.stride - 1);
    }
  } while (std::any_of(problem.axes.begin(), problem.axes.end(), [](const Axis& axis) { return axis.output() <= 0; }));
  lay_out(problem, chance(random, 0.5));
  return problem;
}

TEST(HalfRows, FewOutputs) {
  Random random(45);
  int pairs = 0;
  const int count = test::cases(150);
  test::check_random_problems(random, count, 1, layer_of_few_outputs, [&](const Problem& problem, Tensors& tensors) {
    pairs += plan(problem, {}, "phases")->kernel->describe().find("pairs of bfloat16") != std::string::npos;
    return check(problem, tensors);
  });
  EXPECT_GE(pairs, cpu::has_bf16_products() ? count / 2 : 0);
}

// An infinite number reaches the sums that read it, and no others: what is beside the last number of a row, or behind
// the last cell of one, does not count.
TEST(HalfRows, InfinityReachesWhatReadsIt) {
  Random random(46);
  for (int i = 0; i < test::cases(60); ++i) {
    const Problem problem = layer_of_few_outputs(random);
    const std::string text = plan(problem, {}, "phases")->kernel->describe();
    if (text.find("windows") == std::string::npos && text.find("rows of taps") == std::string::npos) continue;
    Tensors tensors(problem, random);
    const Sizes& sizes = tensors.output.sizes;
    std::int64_t place = 0;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      place += uniform(random, 0, sizes[d] - 1) * tensors.output.strides[d];
    }
    tensors.output.set(place, INFINITY);
    const auto finite = [&](const char* family) {
      run_with_workspace(*plan(problem, {}, family), tensors.buffers());
      std::vector<bool> all;
      const Tensor& result = tensors.result(problem);
      for_each_offset(result.sizes, result.strides,
                      [&](std::int64_t offset) { all.push_back(std::isfinite(result.get(offset))); });
      return all;
    };
    EXPECT_EQ(finite("reference"), finite("phases")) << to_string(problem) << ": " << text;
  }
}

TEST(HalfRows, ThreadsChangeNothing) {
  Random random(44);
  for (int i = 0; i < test::cases(20); ++i) {
    expect_threads_change_nothing(layer_of_few_channels(random), "phases", random);
    expect_threads_change_nothing(layer_of_groups(random), "phases", random);
    expect_threads_change_nothing(layer_of_few_outputs(random), "phases", random);
  }
}

}  // namespace
}  // namespace tconv::test
