// The direct kernels of grad_input, compiled by the host compiler and run on the CPU against the reference.
// TCONV_TEST_ALL_KERNELS=1 (`make test-kernels`) takes every list whole.
#include <gtest/gtest.h>

#include "cases.h"
#include "cuda/direct.h"
#include "cuda/direct_gradient_depthwise.h"
#include "cuda/direct_gradient_plan.h"
#include "emulated_case.h"
#include "kernel_emulator.h"

namespace tconv::cuda {
namespace {

using test::axis;
using test::make;
using test::Random;

struct EmulatedDirectGradient : testing::Test {
  test::KernelEmulator emulator;
  Random random{7};

  void check(Problem problem) {
    problem.direction = Direction::grad_input;
    problem.bias = false;
    SCOPED_TRACE(to_string(problem));
    const test::EmulatedCase data(problem, random);
    EXPECT_EQ(data.fails(propose_direct(problem, test::gpu(90))), "");
    if (!why_no_depthwise_gradient(problem).empty()) return;
    ++depthwise;
    EXPECT_EQ(data.fails(propose_direct(problem, test::gpu(90)), 1), "");  // at an odd address
    const DirectGradientPlan plan = plan_direct_gradient(problem, test::gpu(90));
    EXPECT_EQ(data.fails(propose_direct_gradient(plan, test::gpu(90))), "");
  }

  void check_some(const std::vector<Problem>& problems) {
    const std::size_t count = test::takes_all() ? problems.size() : 2;
    for (std::size_t i = 0; i < count; ++i) check(problems[i]);
  }

  int depthwise = 0;
};

TEST_F(EmulatedDirectGradient, Layers) {
  check_some({
      make(1, 16, 16, 2, {axis(4, 3, 2, 1), axis(5, 5, 2, 2), axis(6, 7, 2, 3)}),
      make(1, 20, 3, 1, {axis(10, 4, 2, 1), axis(7, 4, 2, 1)}),
      make(1, 16, 32, 2, {axis(8, 3, 2, 1, 0, 2), axis(13, 5, 3, 2)}),
      make(1, 56, 1, 1, {axis(10, 9, 3, 4), axis(7, 9, 2, 4)}),
      make(1, 3, 40, 1, {axis(30, 16, 8, 4)}),
  });
}

TEST_F(EmulatedDirectGradient, Depthwise) {
  std::vector<Problem> problems;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (Problem problem :
         {make(2, 3, 3, 3, {axis(34, 12, 2, 0)}), make(1, 300, 300, 300, {axis(9, 4, 2, 1), axis(18, 4, 2, 1)}),
          make(1, 2, 2, 2, {axis(9, 8, 4, 2), axis(7, 8, 4, 2)}),
          make(1, 3, 3, 3, {axis(9, 3, 5, 1, 2), axis(7, 3, 1, 1, 0, 2)})}) {
      problem.dtype = dtype;
      problems.push_back(problem);
    }
  }
  check_some(problems);
  EXPECT_GE(depthwise, 2);
}

TEST_F(EmulatedDirectGradient, ChannelsLast) {
  std::vector<Problem> problems;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (Problem problem : {make(2, 24, 24, 24, {axis(5, 4, 2, 1), axis(7, 4, 2, 1)}),
                            make(1, 8, 16, 2, {axis(3, 2, 2, 0), axis(4, 3, 1, 1), axis(5, 3, 2, 1)})}) {
      problem.dtype = dtype;
      problem.input_strides = channels_last_strides(problem.input_sizes());
      problem.output_strides = channels_last_strides(problem.output_sizes());
      problems.push_back(problem);
    }
  }
  check_some(problems);
}

TEST_F(EmulatedDirectGradient, RandomProblems) {
  int accepted = 0;
  const int wanted = test::takes_all() ? 20 : 4;
  for (int i = 0; i < 200 && accepted < wanted; ++i) {
    Problem problem = test::random_problem(random);
    problem.direction = Direction::grad_input;
    if (multiply_adds(problem) > 3e5) continue;
    problem.input_strides = test::random_strides(random, problem.input_sizes());
    if (propose_direct(problem, test::gpu(80)).kernel == nullptr) continue;
    ++accepted;
    check(problem);
  }
  EXPECT_EQ(accepted, wanted);
}

}  // namespace
}  // namespace tconv::cuda
