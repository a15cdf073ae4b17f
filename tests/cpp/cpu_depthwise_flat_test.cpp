// Small depthwise images that are computed as one line each, against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cases.h"
#include "cpu/families.h"
#include "cpu_family_checks.h"
#include "cpu_support.h"

namespace tconv::test {
namespace {

// nullptr where the family declines.
std::shared_ptr<const Plan> plan_of(const Problem& problem) {
  try {
    return plan(problem, {}, "depthwise");
  } catch (const Error&) {
    return nullptr;
  }
}

Problem random_small_images(Random& random, Direction direction) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = chance(random, 0.7) ? 2 : 3;
    problem.direction = direction;
    const bool forward = direction == Direction::forward;
    problem.dtype = !forward || chance(random, 0.6) ? DType::f32 : static_cast<DType>(uniform(random, 0, 3));
    problem.bias = forward && chance(random, 0.5);
    problem.batch = uniform(random, 1, chance(random, 0.9) ? 4 : 40);
    problem.groups = problem.in_channels = problem.out_channels = uniform(random, forward ? 1 : 32, 70);
    for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a) {
      Axis& axis = problem.axes[a];
      axis.input = uniform(random, 1, problem.rank == 3 ? 6 : 10);
      axis.kernel = uniform(random, 1, 5);
      axis.dilation = chance(random, 0.8) ? 1 : 2;
      axis.pad_begin = chance(random, 0.6) ? axis.dilation * (axis.kernel - 1) / 2
                                           : uniform(random, 0, axis.kernel * axis.dilation + 1);
      axis.pad_end = chance(random, 0.6) ? axis.pad_begin : uniform(random, 0, axis.kernel * axis.dilation + 1);
      axis.output_padding = chance(random, 0.8) ? 0 : uniform(random, 0, axis.dilation - 1);
    }
    if (problem.rank == 2) problem.axes[2].input += chance(random, 0.7) ? 0 : uniform(random, 8, 24);
  } while (std::any_of(problem.axes.begin(), problem.axes.end(), [](const Axis& axis) { return axis.output() <= 0; }));
  const auto with_gaps = [&](Sizes sizes, int last) {
    if (chance(random, 0.3)) sizes[uniform(random, 1, last)] += 3;
    return contiguous_strides(sizes);
  };
  // Results are side by side.
  const bool forward = direction == Direction::forward;
  const int channels = 1;
  problem.input_strides = with_gaps(problem.input_sizes(), forward ? 4 : channels);
  problem.output_strides = with_gaps(problem.output_sizes(), forward ? channels : 4);
  problem.weight_strides = chance(random, 0.5)
                               ? contiguous_strides(problem.weight_sizes())
                               : random_strides(random, problem.weight_sizes(), direction != Direction::grad_weight);
  return problem;
}

// False where images are computed otherwise, although the instruction set can pick lanes of a vector.
bool check(const Problem& problem, Tensors& tensors) {
  const auto chosen = plan_of(problem);
  if (chosen == nullptr) return false;
  tensors.result(problem).poison();
  run_with_workspace(*chosen, tensors.buffers());
  const DType arithmetic = problem.dtype == DType::f64 ? DType::f64 : DType::f32;
  expect_close(problem, tensors, arithmetic, (terms_of(problem) + 8) * (arithmetic == DType::f64 ? 2 : 1));
  return chosen->kernel->describe().find("one after the other") != std::string::npos ||
         cpu::target_name().find("AVX3") == std::string::npos;
}

Problem random_forward(Random& random) { return random_small_images(random, Direction::forward); }
Problem random_gradient(Random& random) {
  return random_small_images(random, chance(random, 0.5) ? Direction::grad_input : Direction::grad_weight);
}

TEST(DepthwiseFlat, RandomProblems) {
  Random random(95);
  test::check_random_problems(random, test::cases(400), 4, random_forward, check);
  test::check_random_problems(random, test::cases(400), 3, random_gradient, check);
}

TEST(DepthwiseFlat, EveryInstructionSet) {
  Random random(96);
  test::check_every_target(random, test::cases(60), 5, random_forward, check);
  test::check_every_target(random, test::cases(60), 4, random_gradient, check);
}

TEST(DepthwiseFlat, PastTheCaches) {
  Random random(97);
  for (int i = 0; i < test::cases(40); ++i) {
    const Problem problem = random_forward(random);
    if (plan_of(problem) == nullptr) continue;
    expect_past_caches_is_the_same(problem, "depthwise", uniform(random, 0, 17), random);
  }
}

TEST(DepthwiseFlat, ThreadsAndTheBatchChangeNothing) {
  Random random(98);
  for (const Direction direction : {Direction::forward, Direction::grad_input, Direction::grad_weight}) {
    for (int i = 0; i < test::cases(20); ++i) {
      Problem problem = random_small_images(random, direction);
      problem.batch = 3;
      problem.input_strides = contiguous_strides(problem.input_sizes());
      problem.output_strides = contiguous_strides(problem.output_sizes());
      if (plan_of(problem) == nullptr) continue;
      expect_threads_change_nothing(problem, "depthwise", random);
      if (direction != Direction::grad_weight) expect_sample_alone_is_the_same(problem, "depthwise", 1, random);
    }
  }
}

// Both gradients in one pass have the same bits as one by one.
TEST(DepthwiseFlat, BothGradientsAtOnce) {
  Random random(99);
  for (int i = 0; i < test::cases(60); ++i) {
    const Problem of_input = random_small_images(random, Direction::grad_input);
    Problem of_weight = of_input;
    of_weight.direction = Direction::grad_weight;
    of_weight.weight_strides = contiguous_strides(of_weight.weight_sizes());
    const auto plan_input = plan_of(of_input);
    const auto plan_weight = plan_of(of_weight);
    if (plan_input == nullptr || plan_weight == nullptr) continue;
    Tensors for_input(of_input, random);
    Tensors for_weight(of_weight, random);
    for_weight.output.bytes = for_input.output.bytes;
    run_with_workspace(*plan_input, for_input.buffers());
    run_with_workspace(*plan_weight, for_weight.buffers());
    const std::vector<std::byte> input = for_input.input.bytes;
    const std::vector<std::byte> weight = for_weight.weight.bytes;
    for (const int threads : {1, 3}) {
      for_input.input.poison();
      for_weight.weight.poison();
      Buffers input_buffers = for_input.buffers();
      Buffers weight_buffers = for_weight.buffers();
      weight_buffers.output = input_buffers.output;
      constexpr std::size_t kAlignment = 256;
      const std::size_t size = std::max(plan_input->workspace_bytes, plan_weight->workspace_bytes);
      std::vector<std::byte> memory(size + kAlignment, std::byte{0xff});
      void* aligned = memory.data();
      std::size_t space = memory.size();
      input_buffers.workspace = weight_buffers.workspace = std::align(kAlignment, size, aligned, space);
      run_both(*plan_input, input_buffers, *plan_weight, weight_buffers, on_threads(threads));
      EXPECT_EQ(input, for_input.input.bytes) << to_string(of_input);
      EXPECT_EQ(weight, for_weight.weight.bytes) << to_string(of_weight);
    }
  }
}

// Nothing that lies between rows is multiplied: a weight or an input that is infinite reaches only what reads it.
TEST(DepthwiseFlat, GradientsKeepInfinitiesToTheirReaders) {
  Random random(100);
  for (int i = 0; i < test::cases(40); ++i) {
    Problem problem = random_gradient(random);
    problem.input_strides = contiguous_strides(problem.input_sizes());
    problem.output_strides = contiguous_strides(problem.output_sizes());
    const auto chosen = plan_of(problem);
    if (chosen == nullptr || chosen->kernel->describe().find("one after the other") == std::string::npos) continue;
    Tensors tensors(problem, random);
    const double infinity = std::numeric_limits<double>::infinity();
    const bool of_input = problem.direction == Direction::grad_input;
    Tensor& infinite = of_input ? tensors.weight : tensors.input;
    const Strides& strides = infinite.strides;
    infinite.set(strides[of_input ? 0 : 1] * uniform(random, 0, 5), infinity);
    tensors.output.set(problem.output_strides[1], infinity);
    const auto finite = [&](const Plan& plan) {
      tensors.result(problem).poison();
      run_with_workspace(plan, tensors.buffers());
      const Tensor& result = tensors.result(problem);
      std::vector<bool> all;
      for_each_offset(result.sizes, result.strides,
                      [&](std::int64_t offset) { all.push_back(std::isfinite(result.get(offset))); });
      return all;
    };
    EXPECT_EQ(finite(*plan(problem, {}, "reference")), finite(*chosen)) << to_string(problem);
  }
}

}  // namespace
}  // namespace tconv::test
