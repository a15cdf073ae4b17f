// Small depthwise images that are computed as one line each, against the reference.
#include <gtest/gtest.h>

#include <memory>
#include <string>

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

Problem random_small_images(Random& random) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = chance(random, 0.7) ? 2 : 3;
    problem.dtype = chance(random, 0.6) ? DType::f32 : static_cast<DType>(uniform(random, 0, 3));
    problem.bias = chance(random, 0.5);
    problem.batch = uniform(random, 1, 4);
    problem.groups = problem.in_channels = problem.out_channels = uniform(random, 1, 70);
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
  problem.input_strides = with_gaps(problem.input_sizes(), 4);
  problem.output_strides = with_gaps(problem.output_sizes(), problem.rank == 3 ? 2 : 1);
  problem.weight_strides = chance(random, 0.5) ? contiguous_strides(problem.weight_sizes())
                                               : random_strides(random, problem.weight_sizes(), true);
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

TEST(DepthwiseFlat, RandomProblems) {
  Random random(95);
  test::check_random_problems(random, test::cases(400), 4, random_small_images, check);
}

TEST(DepthwiseFlat, EveryInstructionSet) {
  Random random(96);
  test::check_every_target(random, test::cases(60), 5, random_small_images, check);
}

TEST(DepthwiseFlat, PastTheCaches) {
  Random random(97);
  for (int i = 0; i < test::cases(40); ++i) {
    const Problem problem = random_small_images(random);
    if (plan_of(problem) == nullptr) continue;
    expect_past_caches_is_the_same(problem, "depthwise", uniform(random, 0, 17), random);
  }
}

TEST(DepthwiseFlat, ThreadsAndTheBatchChangeNothing) {
  Random random(98);
  for (int i = 0; i < test::cases(20); ++i) {
    Problem problem = random_small_images(random);
    problem.batch = 3;
    problem.input_strides = contiguous_strides(problem.input_sizes());
    problem.output_strides = contiguous_strides(problem.output_sizes());
    if (plan_of(problem) == nullptr) continue;
    expect_threads_change_nothing(problem, "depthwise", random);
    expect_sample_alone_is_the_same(problem, "depthwise", 1, random);
  }
}

}  // namespace
}  // namespace tconv::test
