// forward and grad_input of few source channels that lie side by side: runs of rows, against the reference.
#include <gtest/gtest.h>

#include <string>

#include "cases.h"
#include "cpu/families.h"
#include "cpu_family_checks.h"
#include "cpu_support.h"

namespace tconv::test {
namespace {

bool reads_runs(const Problem& problem) {
  return plan(problem, {}, "phases")->kernel->describe().find("runs of rows") != std::string::npos;
}

Problem random_few_sources(Random& random) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = static_cast<int>(uniform(random, 1, 3));
    problem.direction = chance(random, 0.5) ? Direction::forward : Direction::grad_input;
    const bool forward = problem.direction == Direction::forward;
    problem.dtype = chance(random, 0.7) ? DType::f32 : DType::f64;
    problem.bias = forward && chance(random, 0.5);
    problem.batch = uniform(random, 1, 3);
    const std::int64_t few = uniform(random, 1, 7);
    const std::int64_t many = 16 * uniform(random, 2, 9);
    problem.in_channels = forward ? few : many;
    problem.out_channels = forward ? many : few;
    for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a) {
      Axis& axis = problem.axes[a];
      axis.input = uniform(random, 1, problem.rank == 1 ? 400 : (problem.rank == 2 ? 40 : 9));
      axis.kernel = uniform(random, 1, problem.rank == 3 ? 3 : 6);
      axis.stride = uniform(random, 1, 4);
      axis.dilation = a == kSpatialAxes - 1 || chance(random, 0.7) ? 1 : uniform(random, 2, 3);
      axis.pad_begin = chance(random, 0.4) ? 0 : uniform(random, 0, axis.kernel * axis.dilation + 2);
      axis.pad_end = chance(random, 0.5) ? axis.pad_begin : uniform(random, 0, axis.kernel * axis.dilation + 2);
      axis.output_padding = chance(random, 0.7) ? 0 : uniform(random, 0, std::max(axis.stride, axis.dilation) - 1);
    }
  } while (std::any_of(problem.axes.begin(), problem.axes.end(), [](const Axis& axis) { return axis.output() <= 0; }));
  const auto with_gaps = [&](Sizes sizes) {
    if (chance(random, 0.3)) sizes[uniform(random, 2, 4)] += 3;
    return channels_last_strides(sizes);
  };
  problem.input_strides = with_gaps(problem.input_sizes());
  problem.output_strides = with_gaps(problem.output_sizes());
  problem.weight_strides = random_strides(random, problem.weight_sizes(), true);
  return problem;
}

bool check(const Problem& problem, Tensors& tensors) {
  if (!reads_runs(problem)) return false;
  tensors.result(problem).poison();
  run_with_workspace(*plan(problem, {}, "phases"), tensors.buffers());
  expect_close(problem, tensors, problem.dtype, (terms_of(problem) + 2) * (problem.dtype == DType::f64 ? 2 : 1));
  return true;
}

TEST(RowRuns, RandomProblems) {
  Random random(91);
  test::check_random_problems(random, test::cases(400), 4, random_few_sources, check);
}

TEST(RowRuns, EveryInstructionSet) {
  Random random(92);
  test::check_every_target(random, test::cases(60), 5, random_few_sources, check);
}

Problem image_layer(Direction direction, std::int64_t few, std::int64_t many) {
  Problem problem;
  problem.rank = 2;
  problem.direction = direction;
  problem.batch = 3;
  problem.in_channels = direction == Direction::forward ? few : many;
  problem.out_channels = direction == Direction::forward ? many : few;
  problem.axes[1] = {29, 4, 2, 1, 1, 1, 0};
  problem.axes[2] = {37, 5, 2, 1, 2, 2, 1};
  set_contiguous(problem);
  problem.input_strides = channels_last_strides(problem.input_sizes());
  problem.output_strides = channels_last_strides(problem.output_sizes());
  return problem;
}

TEST(RowRuns, ThreadsAndTheBatchChangeNothing) {
  Random random(93);
  for (const Direction direction : {Direction::forward, Direction::grad_input}) {
    for (const std::int64_t few : {1, 3}) {
      const Problem problem = image_layer(direction, few, 48);
      ASSERT_TRUE(reads_runs(problem));
      expect_threads_change_nothing(problem, "phases", random);
      expect_sample_alone_is_the_same(problem, "phases", 2, random);
    }
  }
  // Whose weights have room in a batch, but not beside one sample.
  Problem small = image_layer(Direction::forward, 3, 64);
  small.axes[1] = small.axes[2] = {7, 3, 1, 1, 1, 1, 0};
  small.batch = 16;
  small.input_strides = channels_last_strides(small.input_sizes());
  small.output_strides = channels_last_strides(small.output_sizes());
  expect_sample_alone_is_the_same(small, "phases", 5, random);
}

// However many images there are, no task copies more of one than stays in the cache.
TEST(RowRuns, BandsOfLargeImages) {
  Random random(95);
  Problem problem;
  problem.batch = 33;
  problem.in_channels = 7;
  problem.out_channels = 32;
  problem.axes[1] = {.input = 24, .kernel = 3, .pad_begin = 1, .pad_end = 1};
  problem.axes[2] = {.input = 700, .kernel = 3, .pad_begin = 1, .pad_end = 1};
  problem.input_strides = channels_last_strides(problem.input_sizes());
  problem.weight_strides = channels_last_strides(problem.weight_sizes());
  problem.output_strides = channels_last_strides(problem.output_sizes());
  const std::string described = plan(problem, {}, "phases")->kernel->describe();
  EXPECT_NE(described.find("3 bands of up to 8 rows"), std::string::npos) << described;
  expect_sample_alone_is_the_same(problem, "phases", 31, random);
}

TEST(RowRuns, PastTheCaches) {
  Random random(94);
  for (const Direction direction : {Direction::forward, Direction::grad_input}) {
    for (const std::int64_t offset : {0, 3}) {
      expect_past_caches_is_the_same(image_layer(direction, 2, 64), "phases", offset, random);
    }
  }
}

// Taps that are apart, channels that are, and groups are left to others.
TEST(RowRuns, AreLeftAloneWhereNothingLiesSideBySide) {
  Problem problem = image_layer(Direction::forward, 3, 48);
  EXPECT_TRUE(reads_runs(problem));
  Problem dilated = problem;
  dilated.axes[2].dilation = 3;
  dilated.output_strides = channels_last_strides(dilated.output_sizes());
  EXPECT_FALSE(reads_runs(dilated));
  Problem contiguous = problem;
  set_contiguous(contiguous);
  EXPECT_FALSE(reads_runs(contiguous));
  problem.dtype = DType::bf16;
  EXPECT_FALSE(reads_runs(problem));
}

}  // namespace
}  // namespace tconv::test
