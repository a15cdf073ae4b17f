// The direct kernel of grad_input, compiled by the host compiler and run on the CPU against the reference.
#include <gtest/gtest.h>

#include "cuda/direct.h"
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
  }
};

TEST_F(EmulatedDirectGradient, Layers) {
  check(make(2, 6, 6, 6, {axis(70, 12, 2, 0)}));
  check(make(2, 5, 5, 5, {axis(9, 4, 2, 1), axis(18, 4, 2, 1)}));
  check(make(1, 16, 16, 2, {axis(4, 3, 2, 1), axis(5, 5, 2, 2), axis(6, 7, 2, 3)}));
  check(make(1, 16, 32, 2, {axis(8, 3, 2, 1, 0, 2), axis(13, 5, 3, 2)}));
  check(make(1, 56, 1, 1, {axis(10, 9, 3, 4), axis(7, 9, 2, 4)}));
  check(make(1, 20, 3, 1, {axis(10, 4, 2, 1), axis(7, 4, 2, 1)}));
  check(make(1, 3, 40, 1, {axis(30, 16, 8, 4)}));
}

TEST_F(EmulatedDirectGradient, RandomProblems) {
  int accepted = 0;
  for (int i = 0; i < 24; ++i) {
    Problem problem = test::random_problem(random);
    problem.direction = Direction::grad_input;
    if (multiply_adds(problem) > 3e5) continue;
    problem.input_strides = test::random_strides(random, problem.input_sizes());
    if (propose_direct(problem, test::gpu(80)).kernel == nullptr) continue;
    ++accepted;
    check(problem);
  }
  EXPECT_GT(accepted, 10);
}

}  // namespace
}  // namespace tconv::cuda
