// The "winograd" family, forced, against the reference: two or three taps along an axis, every layout and instruction
// set.
#include <gtest/gtest.h>

#include "cases.h"
#include "cpu/families.h"
#include "cpu_family_checks.h"
#include "cpu_support.h"

namespace tconv::test {
namespace {

constexpr std::array kDirections = {Direction::forward, Direction::grad_input, Direction::grad_weight};

// Layers of which most have an axis of two or three taps in every phase.
Problem random_layer(Random& random) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = static_cast<int>(uniform(random, 1, 3));
    problem.direction = kDirections[uniform(random, 0, 2)];
    problem.dtype = chance(random, 0.6) ? DType::f32 : (chance(random, 0.5) ? DType::f16 : DType::bf16);
    problem.bias = problem.direction == Direction::forward && chance(random, 0.5);
    problem.batch = uniform(random, 1, 3);
    problem.groups = chance(random, 0.8) ? 1 : 2;
    const auto channels = [&] { return chance(random, 0.5) ? 16 * uniform(random, 1, 5) : uniform(random, 16, 50); };
    problem.in_channels = problem.groups * (chance(random, 0.1) ? 150 : channels());
    problem.out_channels = problem.groups * (chance(random, 0.1) ? 150 : channels());
    for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a) {
      Axis& axis = problem.axes[a];
      axis.input = uniform(random, 1, problem.rank == 1 ? 300 : (problem.rank == 2 ? 17 : 7));
      axis.stride = chance(random, 0.5) ? 1 : uniform(random, 2, 4);
      const std::int64_t taps = uniform(random, 2, 3);
      axis.kernel = chance(random, 0.8) ? axis.stride * taps : uniform(random, 1, 5);
      // Phases of which some have a tap less.
      if (chance(random, 0.4)) axis.kernel = axis.stride * taps - uniform(random, 0, axis.stride - 1);
      // Outputs that no tap reaches.
      if (chance(random, 0.2)) {
        axis.dilation = axis.stride;
        axis.kernel = taps;
      }
      axis.pad_begin = chance(random, 0.4) ? 0 : uniform(random, 0, axis.kernel + 1);
      axis.pad_end = chance(random, 0.5) ? axis.pad_begin : uniform(random, 0, axis.kernel + 1);
      axis.output_padding = chance(random, 0.7) ? 0 : uniform(random, 0, axis.stride - 1);
    }
  } while (std::any_of(problem.axes.begin(), problem.axes.end(), [](const Axis& axis) { return axis.output() <= 0; }));
  // Nothing is expanded: errors are those of a whole tile, and a tile of one repeated value each may hold a tiny one
  // beside a large one.
  const auto layout = [&](const Sizes& sizes) {
    return chance(random, 0.4) ? channels_last_strides(sizes) : random_strides(random, sizes, false);
  };
  problem.input_strides = layout(problem.input_sizes());
  problem.weight_strides = layout(problem.weight_sizes());
  problem.output_strides = layout(problem.output_sizes());
  return problem;
}

// False when the family declines.
bool check(const Problem& problem, Tensors& tensors) {
  std::shared_ptr<const Plan> chosen;
  try {
    chosen = plan(problem, {}, "winograd");
  } catch (const Error&) {
    return false;
  }
  tensors.result(problem).poison();
  run_with_workspace(*chosen, tensors.buffers());
  expect_close(problem, tensors, DType::f32, terms_of(problem) + 8);
  return true;
}

TEST(Winograd, RandomProblems) {
  Random random(61);
  test::check_random_problems(random, test::cases(120), 10, random_layer, check);
}

TEST(Winograd, EveryInstructionSet) {
  Random random(62);
  test::check_every_target(random, test::cases(36), 12, random_layer, check);
}

// `taps` of each phase along height and width.
Problem image_layer(Direction direction, std::int64_t batch, std::int64_t stride, std::int64_t taps) {
  Problem problem;
  problem.rank = 2;
  problem.direction = direction;
  problem.batch = batch;
  problem.in_channels = 80;
  problem.out_channels = 64;
  problem.axes[1] = {21, stride * taps, stride, 1, 1, 1, 0};
  problem.axes[2] = {23, stride * taps, stride, 1, 1, 1, 0};
  set_contiguous(problem);
  if (stride > 1 && direction == Direction::grad_input) {  // several source lattices: channels side by side alone
    problem.output_strides = channels_last_strides(problem.output_sizes());
  }
  return problem;
}

TEST(Winograd, ThreadsChangeNothing) {
  Random random(63);
  for (const Direction direction : kDirections) {
    expect_threads_change_nothing(image_layer(direction, 3, 1, 3), "winograd", random);
    expect_threads_change_nothing(image_layer(direction, 3, 2, 2), "winograd", random);
  }
}

TEST(Winograd, PastTheCaches) {
  Random random(66);
  for (const Direction direction : {Direction::forward, Direction::grad_input}) {
    for (const std::int64_t stride : {1, 2}) {
      Problem problem = image_layer(direction, 2, stride, stride == 1 ? 3 : 2);
      expect_past_caches_is_the_same(problem, "winograd", 0, random);
      problem.input_strides = channels_last_strides(problem.input_sizes());
      problem.output_strides = channels_last_strides(problem.output_sizes());
      expect_past_caches_is_the_same(problem, "winograd", 0, random);
      expect_past_caches_is_the_same(problem, "winograd", 1, random);
    }
  }
}

TEST(Winograd, ASampleAloneIsTheSame) {
  Random random(64);
  expect_sample_alone_is_the_same(image_layer(Direction::forward, 11, 1, 3), "winograd", 7, random);
  expect_sample_alone_is_the_same(image_layer(Direction::grad_input, 11, 1, 3), "winograd", 7, random);
  expect_sample_alone_is_the_same(image_layer(Direction::forward, 11, 2, 2), "winograd", 10, random);
}

// More combined weights than a call holds: block by block and, where results are written in place, phase by phase; or,
// of a block that is too large by itself (grad_input, contiguous), by each task.
TEST(Winograd, WeightsInStages) {
  Random random(65);
  for (const Direction direction : {Direction::forward, Direction::grad_input}) {
    for (const bool channels_last : {false, true}) {
      Problem problem = image_layer(direction, 1, 2, 2);
      const bool forward = direction == Direction::forward;
      problem.in_channels = !forward ? 96 : (channels_last ? 144 : 64);
      problem.out_channels = forward ? 96 : 80;
      for (int a : {1, 2}) problem.axes[a].input = 12 + a;
      problem.bias = forward;
      set_contiguous(problem);
      if (channels_last) {
        problem.input_strides = channels_last_strides(problem.input_sizes());
        problem.weight_strides = channels_last_strides(problem.weight_sizes());
        problem.output_strides = channels_last_strides(problem.output_sizes());
      }
      Tensors tensors(problem, random);
      compute_exact(problem, tensors);
      EXPECT_TRUE(check(problem, tensors)) << to_string(problem);
      expect_threads_change_nothing(problem, "winograd", random);
    }
  }
}

// A dilation that shares a factor with the stride. Many channels are summed in several steps, and need two phases at a
// time along the height.
TEST(Winograd, OutputsThatNoTapReaches) {
  Random random(69);
  for (const std::int64_t channels : {32, 150}) {
    for (const std::int64_t stride : {2, 3}) {
      Problem problem = image_layer(Direction::forward, 2, 1, 3);
      problem.in_channels = channels;
      problem.out_channels = 40;
      problem.bias = true;
      problem.axes[1] = {19, 4, 2, 1, 1, 1, 0};
      problem.axes[2] = {23, 3, stride, stride, 1, 2, 0};
      set_contiguous(problem);
      Tensors tensors(problem, random);
      compute_exact(problem, tensors);
      EXPECT_TRUE(check(problem, tensors)) << to_string(problem);
      expect_threads_change_nothing(problem, "winograd", random);
      expect_sample_alone_is_the_same(problem, "winograd", 1, random);
    }
  }
}

// Kernels 3 and 5 with stride 2: phases that differ by a tap.
TEST(Winograd, WeightsOfPhasesThatDifferByATap) {
  Random random(67);
  for (const std::int64_t taps : {2, 3}) {
    for (const bool channels_last : {false, true}) {
      Problem problem = image_layer(Direction::grad_weight, 2, 2, taps);
      for (int a : {1, 2}) problem.axes[a] = {16 + a, 2 * taps - 1, 2, 1, 1, 1, 0};
      set_contiguous(problem);
      if (channels_last) {
        problem.input_strides = channels_last_strides(problem.input_sizes());
        problem.output_strides = channels_last_strides(problem.output_sizes());
      }
      Tensors tensors(problem, random);
      compute_exact(problem, tensors);
      EXPECT_TRUE(check(problem, tensors)) << to_string(problem);
      expect_threads_change_nothing(problem, "winograd", random);
    }
  }
}

// Images of which tiles of two or four cells leave nothing over; grad_weight combines the input for each phase.
TEST(Winograd, SmallImagesOfManyChannels) {
  Random random(66);
  for (const Direction direction : kDirections) {
    for (const std::int64_t cells : {4, 12}) {
      Problem problem = image_layer(direction, direction == Direction::grad_weight ? 5 : 2, 2, 2);
      problem.in_channels = 130;
      problem.out_channels = 128;
      for (int a : {1, 2}) problem.axes[a].input = cells;
      set_contiguous(problem);
      Tensors tensors(problem, random);
      compute_exact(problem, tensors);
      EXPECT_EQ(check(problem, tensors), cells == 12 || direction == Direction::grad_weight) << to_string(problem);
    }
  }
}

// One block of 64 x 64 channels whose partial sums take too much room: two of 64 x 32, so that two threads have work.
TEST(Winograd, BlocksOfAWeightForEveryThread) {
  Random random(68);
  for (const bool channels_last : {false, true}) {
    Problem problem = image_layer(Direction::grad_weight, 2, 2, 2);
    problem.in_channels = problem.out_channels = 64;
    for (int a : {1, 2}) problem.axes[a] = {13 + a, 4, 2, 1, 1, 1, 0};
    set_contiguous(problem);
    if (channels_last) {
      problem.input_strides = channels_last_strides(problem.input_sizes());
      problem.output_strides = channels_last_strides(problem.output_sizes());
    }
    const auto chosen = plan(problem, {}, "winograd");
    EXPECT_NE(chosen->kernel->describe().find("blocks of 64 x 32 channels"), std::string::npos)
        << chosen->kernel->describe();
    Tensors tensors(problem, random);
    compute_exact(problem, tensors);
    EXPECT_TRUE(check(problem, tensors)) << to_string(problem);
    expect_threads_change_nothing(problem, "winograd", random);
  }
}

TEST(Winograd, IsChosenForSeveralTapsAlone) {
  EXPECT_EQ(plan(image_layer(Direction::forward, 1, 1, 3))->family, "winograd");
  EXPECT_EQ(plan(image_layer(Direction::grad_input, 1, 2, 2))->family, "winograd");
  EXPECT_EQ(plan(image_layer(Direction::forward, 1, 2, 1))->family, "phases");
  EXPECT_EQ(plan(image_layer(Direction::grad_weight, 1, 1, 3))->family, "winograd");
  Problem doubles = image_layer(Direction::forward, 1, 1, 3);
  doubles.dtype = DType::f64;
  EXPECT_EQ(plan(doubles)->family, "phases");
}

}  // namespace
}  // namespace tconv::test
