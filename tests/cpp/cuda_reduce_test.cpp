// The reduce kernels (grad_weight on tensor cores), compiled by the host compiler and run on the CPU against the
// reference; and their planner.
#include "cuda/reduce.h"

#include <gtest/gtest.h>

#include <set>

#include "cases.h"
#include "cuda/reduce_cost.h"
#include "emulated_case.h"
#include "kernel_emulator.h"

namespace tconv::cuda {
namespace {

using test::axis;
using test::make;
using test::Random;

Problem gradient(Problem problem, DType dtype = DType::f32, Precision precision = Precision::tf32) {
  problem.direction = Direction::grad_weight;
  problem.bias = false;
  problem.dtype = dtype;
  problem.precision = precision;
  set_contiguous(problem);
  return problem;
}

struct EmulatedReduce : testing::Test {
  test::KernelEmulator emulator;
  Random random{7};
  int checked = 0;

  void check(const Problem& problem, int arch) {
    SCOPED_TRACE(to_string(problem) + " sm_" + std::to_string(arch));
    const test::EmulatedCase data(problem, random);
    EXPECT_EQ(data.fails(propose_reduce(problem, test::gpu(arch))), "");
    ++checked;
  }
};

// Layers of models in small, and what is odd about others: tails of channels and pixels, kernels smaller than the
// stride, dilations that share a factor with the stride, groups, one channel, all layouts.
std::vector<Problem> shapes() {
  std::vector<Problem> problems = {
      make(2, 20, 12, 1, {axis(9, 4, 2, 1), axis(11, 4, 2, 1)}),             // GAN
      make(3, 40, 24, 1, {axis(9, 3, 1, 1), axis(11, 3, 1, 1)}),             // stride 1
      make(1, 33, 70, 1, {axis(7, 2, 2, 0), axis(9, 2, 2, 0)}),                    // kernel == stride
      make(2, 48, 17, 1, {axis(61, 16, 8, 4)}),                              // vocoder
      make(2, 24, 3, 1, {axis(5, 4, 2, 1), axis(17, 4, 2, 1)}),              // few output channels
      make(1, 56, 1, 1, {axis(6, 9, 3, 4), axis(6, 9, 3, 4)}),               // one output channel
      make(2, 32, 16, 1, {axis(5, 3, 1, 0), axis(6, 3, 1, 0), axis(7, 5, 1, 0)}),     // 3-D
      make(3, 18, 10, 1, {axis(21, 3, 5, 1, 0, 2)}),                            // gaps between the taps
      make(2, 26, 9, 1, {axis(40, 5, 1, 0, 0, 3)}),                             // dilation
      make(2, 30, 20, 1, {axis(6, 3, 2, 1, 0, 2), axis(7, 3, 2, 1, 0, 2)}),        // half of the outputs unused
      make(2, 32, 64, 4, {axis(7, 3, 2, 1, 0, 2), axis(9, 5, 3, 2)}),           // groups
      make(9, 70, 40, 1, {axis(2, 4, 2, 1), axis(2, 4, 2, 1)}),              // tiny images
      make(1, 80, 130, 1, {axis(1, 4, 2, 1), axis(1, 4, 2, 1)}),             // one pixel
      make(3, 40, 24, 1, {axis(9, 20, 6, 0)}),                               // long kernel
      make(2, 1, 20, 1, {axis(9, 3, 2, 1), axis(8, 3, 2, 1)}),               // one input channel
      make(2, 90, 20, 1, {axis(6, 1, 1, 0), axis(8, 1, 1, 0)}),                    // a matrix product
      make(2, 24, 24, 1, {axis(16, 3, 1, 5), axis(18, 3, 1, 4)}),              // padding beyond the kernel
  };
  for (Problem& problem : problems) problem = gradient(problem);
  return problems;
}

TEST_F(EmulatedReduce, Warps) {
  for (const Problem& problem : shapes()) check(problem, 80);
}
TEST_F(EmulatedReduce, Warpgroups) {
  for (const Problem& problem : shapes()) check(problem, 90);
}
TEST_F(EmulatedReduce, StrictPrecision) {
  for (const std::size_t i : {0U, 1U, 10U}) check(gradient(shapes()[i], DType::f32, Precision::strict), 90);
}
TEST_F(EmulatedReduce, TwoByteElements) {
  for (const std::size_t i : {0U, 1U, 3U, 5U, 7U, 11U}) {
    check(gradient(shapes()[i], DType::bf16), 80);
    check(gradient(shapes()[i], DType::f16), 90);
  }
}

}  // namespace
}  // namespace tconv::cuda
