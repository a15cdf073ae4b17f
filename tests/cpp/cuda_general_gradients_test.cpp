// The kernels that take every grad_weight and grad_bias problem, compiled by the host compiler and run on the CPU
// against the reference.
#include <gtest/gtest.h>

#include "cases.h"
#include "cuda/general.h"
#include "emulated_case.h"
#include "kernel_emulator.h"

namespace tconv::cuda {
namespace {

using test::axis;
using test::make;
using test::Random;

struct EmulatedGeneral : testing::Test {
  test::KernelEmulator emulator;
  Random random{11};

  void check(const Problem& problem) {
    SCOPED_TRACE(to_string(problem));
    const test::EmulatedCase data(problem, random);
    EXPECT_EQ(data.fails(propose_general(problem, test::gpu(80))), "");
  }

  // float16 is converted by instructions that only a GPU has.
  Problem draw(Direction direction) {
    for (;;) {
      Problem problem = test::random_problem(random);
      problem.direction = direction;
      problem.bias = false;
      if (problem.dtype == DType::f16 || multiply_adds(problem) > 3e5) continue;
      if (direction == Direction::grad_weight && problem.weight_strides[0] == 0) continue;
      return problem;
    }
  }
};

TEST_F(EmulatedGeneral, GradWeight) {
  for (int i = 0; i < test::cases(16) && !HasFailure(); ++i) check(draw(Direction::grad_weight));
}

TEST_F(EmulatedGeneral, GradBias) {
  for (int i = 0; i < test::cases(16) && !HasFailure(); ++i) check(draw(Direction::grad_bias));
}

// Few weights and many pixels are cut into parts; empty batches are sums of nothing.
TEST_F(EmulatedGeneral, PartsAndNothing) {
  for (const Direction direction : {Direction::grad_weight, Direction::grad_bias}) {
    for (const bool channels_last : {false, true}) {
      Problem problem = make(2, 3, 5, 1, {axis(90, 2, 2, 0), axis(80, 3, 1, 1)});
      problem.direction = direction;
      set_contiguous(problem);
      if (channels_last) problem.output_strides = channels_last_strides(problem.output_sizes());
      EXPECT_GT(propose_general(problem, test::gpu(80)).workspace_bytes, 0U);
      check(problem);
      problem.batch = 0;
      set_contiguous(problem);
      check(problem);
    }
  }
}

// Strides and dilations beyond 32 bits, with a padding that leaves a few outputs.
TEST_F(EmulatedGeneral, DistancesBeyond32Bits) {
  for (const std::int64_t stride : {1LL, 3'000'000'000LL}) {
    Problem problem = make(1, 2, 3, 1, {axis(2, 4, 1, 0)});
    problem.direction = Direction::grad_weight;
    Axis& along = problem.axes[2];
    along = {.input = 2, .kernel = 4, .stride = stride, .dilation = 3'000'000'000};
    along.pad_begin = along.dilation - 5;
    along.pad_end = along.output() - 12;
    set_contiguous(problem);
    check(problem);
  }
}

}  // namespace
}  // namespace tconv::cuda
