// Layers with kernel == stride and contiguous rows, in the "phases" family, against the reference: every instruction
// set of the machine, threads, results past the caches.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "cases.h"
#include "cpu_family_checks.h"
#include "cpu_support.h"

namespace tconv::test {
namespace {

constexpr std::array kDirections = {Direction::forward, Direction::grad_input, Direction::grad_weight};

bool check(const Problem& problem, Tensors& tensors) {
  tensors.result(problem).poison();
  const auto chosen = plan(problem, {}, "phases");
  run_with_workspace(*chosen, tensors.buffers());
  const DType arithmetic = problem.dtype;
  expect_close(problem, tensors, arithmetic, (terms_of(problem) + 2) * (arithmetic == DType::f64 ? 2 : 1));
  return chosen->kernel->describe().find("patches") != std::string::npos;
}

// Rows of whole vectors and others, taps that are put together in registers and others, blocks of everything.
Problem random_layer(Random& random, Direction direction) {
  Problem problem;
  problem.direction = direction;
  problem.rank = static_cast<int>(uniform(random, 1, 3));
  problem.dtype = chance(random, 0.8) ? DType::f32 : DType::f64;
  problem.bias = direction == Direction::forward && chance(random, 0.5);
  problem.batch = uniform(random, 1, 4);
  problem.groups = chance(random, 0.8) ? 1 : 2;
  problem.in_channels = problem.groups * uniform(random, 16, chance(random, 0.3) ? 260 : 60);
  problem.out_channels = problem.groups * uniform(random, 4, chance(random, 0.3) ? 70 : 20);
  for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a) {
    Axis& axis = problem.axes[a];
    axis.stride = a == 2 ? uniform(random, 1, 9) : uniform(random, 1, 3);
    axis.kernel = axis.stride;
    axis.input = a == 2 ? uniform(random, 1, 3) * 16 : uniform(random, 1, 5);
    if (chance(random, 0.5)) axis.input = uniform(random, 1, a == 2 && problem.rank == 1 ? 1500 : 40 / (3 - a));
    if (direction != Direction::forward) axis.output_padding = uniform(random, 0, axis.stride - 1);
  }
  // No larger than the reference computes in a moment.
  while (multiply_adds(problem) > 4e6) {
    Axis& longest = *std::ranges::max_element(problem.axes, {}, [](const Axis& axis) { return axis.input; });
    if (longest.input > 16) {
      longest.input = (longest.input + 1) / 2;
    } else if (problem.batch > 1) {
      --problem.batch;
    } else {
      problem.in_channels = problem.groups * 17;
      problem.out_channels = problem.groups * 5;
      break;
    }
  }
  set_contiguous(problem);
  const auto strides_of = [&random](Sizes sizes, std::size_t first) {
    for (std::size_t d = first; d < sizes.size(); ++d) sizes[d] += chance(random, 0.5) ? 16 : 3;
    return contiguous_strides(sizes);
  };
  // Gaps between rows of the output, and between images and channels of the input.
  if (chance(random, 0.3)) problem.output_strides = strides_of(problem.output_sizes(), 1);
  if (chance(random, 0.3)) problem.input_strides[0] += 3;
  return problem;
}

// One layer in how many has to be taken: gradients of weights need many channels.
int share_of(Direction direction) { return direction == Direction::grad_weight ? 8 : 2; }

TEST(Patches, RandomLayers) {
  Random random(31);
  for (const Direction direction : kDirections) {
    check_random_problems(
        random, test::cases(150), share_of(direction), [direction](Random& r) { return random_layer(r, direction); },
        check);
  }
}

TEST(Patches, EveryInstructionSet) {
  Random random(32);
  for (const Direction direction : kDirections) {
    check_every_target(
        random, test::cases(40), share_of(direction), [direction](Random& r) { return random_layer(r, direction); },
        check);
  }
}

TEST(Patches, ThreadsAndBatchesChangeNothing) {
  Random random(33);
  for (const Direction direction : kDirections) {
    for (int i = 0; i < test::cases(40); ++i) {
      Problem problem = random_layer(random, direction);
      expect_threads_change_nothing(problem, "phases", random);
      problem.batch = 5;
      set_contiguous(problem);
      if (direction != Direction::grad_weight) expect_sample_alone_is_the_same(problem, "phases", 3, random);
    }
  }
}

TEST(Patches, PastTheCaches) {
  Random random(34);
  for (const Direction direction : {Direction::forward, Direction::grad_input}) {
    for (int i = 0; i < test::cases(60); ++i) {
      Problem problem = random_layer(random, direction);
      set_contiguous(problem);
      expect_past_caches_is_the_same(problem, "phases", chance(random, 0.5) ? 0 : uniform(random, 1, 7), random);
    }
  }
}

// Weights that outweigh the tensors, packed by every task, and deep sums, for which panels of cells are narrow.
TEST(Patches, ManyChannels) {
  Random random(35);
  for (const Direction direction : kDirections) {
    for (const bool deep : {false, true}) {
      Problem problem;
      problem.direction = direction;
      problem.bias = direction == Direction::forward;
      problem.batch = deep ? 1 : 3;
      problem.in_channels = deep ? 2100 : 420;
      problem.out_channels = deep ? 10 : 130;
      problem.axes[1] = Axis{3, 2, 2, 1, 0, 0, 0};
      problem.axes[2] = Axis{deep ? 5 : 16, 4, 4, 1, 0, 0, 0};
      set_contiguous(problem);
      Tensors tensors(problem, random);
      compute_exact(problem, tensors);
      EXPECT_TRUE(check(problem, tensors) || (deep && direction == Direction::grad_weight)) << to_string(problem);
    }
  }
}

// Kernel and stride of one along the width, or along everything: a cell is one tap, and sums are deep.
TEST(Patches, ManyChannelsOfOneTap) {
  Random random(37);
  for (const Direction direction : kDirections) {
    for (const std::int64_t stride : {1, 2}) {
      Problem problem;
      problem.direction = direction;
      problem.bias = direction == Direction::forward;
      problem.batch = 2;
      problem.in_channels = 1000;
      problem.out_channels = direction == Direction::grad_input ? 900 : 50;
      problem.axes[1] = Axis{9, stride, stride, 1, 0, 0, 0};
      problem.axes[2] = Axis{10, 1, 1, 1, 0, 0, 0};
      set_contiguous(problem);
      Tensors tensors(problem, random);
      compute_exact(problem, tensors);
      check(problem, tensors);
    }
  }
}

// Few weights and many cells, summed in parts.
TEST(Patches, PartialSums) {
  Random random(36);
  for (const std::int64_t stride : {2, 3}) {
    Problem problem;
    problem.direction = Direction::grad_weight;
    problem.batch = 3;
    problem.in_channels = 40;
    problem.out_channels = 8;
    problem.axes[1] = Axis{40, 2, 2, 1, 0, 0, 0};
    problem.axes[2] = Axis{57, stride, stride, 1, 0, 0, 0};
    set_contiguous(problem);
    Tensors tensors(problem, random);
    compute_exact(problem, tensors);
    check(problem, tensors);
    const auto chosen = plan(problem, {}, "phases");
    EXPECT_EQ(chosen->kernel->describe().find(" 1 splits"), std::string::npos) << chosen->kernel->describe();
    EXPECT_GT(chosen->workspace_bytes, 0U);
    expect_threads_change_nothing(problem, "phases", random);
  }
}

}  // namespace
}  // namespace tconv::test
