// Gradients of small groups: the kernels compiled by the host compiler and run on the CPU against the reference.
#include "cuda/group.h"

#include <gtest/gtest.h>

#include "cases.h"
#include "emulated_case.h"
#include "kernel_emulator.h"

namespace tconv::cuda {
namespace {

using test::axis;
using test::make;
using test::Random;

Problem in(Problem problem, Direction direction, DType dtype) {
  problem.direction = direction;
  problem.bias = false;
  problem.dtype = dtype;
  problem.precision = dtype == DType::f32 ? Precision::tf32 : Precision::strict;
  return problem;
}

Problem channels_last(Problem problem) {
  problem.input_strides = channels_last_strides(problem.input_sizes());
  problem.output_strides = channels_last_strides(problem.output_sizes());
  return problem;
}

struct EmulatedGroup : testing::Test {
  test::KernelEmulator emulator;
  Random random{17};
  DeviceProperties device = test::gpu(90);

  void check(const Problem& problem, DType dtype = DType::f32) {
    for (const Direction direction : {Direction::grad_input, Direction::grad_weight}) {
      const Problem gradient = in(problem, direction, dtype);
      SCOPED_TRACE(to_string(gradient));
      const test::EmulatedCase data(gradient, random);
      const int cuts = test::takes_all() ? 12 : 1;
      for (int cut = 0; cut < cuts; ++cut) {
        const Proposal proposal = propose_group_cut(gradient, device, cut);
        if (cut > 0 && proposal.kernel == nullptr) break;
        EXPECT_EQ(data.fails(proposal), "");
      }
    }
  }
};

// One to three axes, strides and dilations, rows of odd length, kernels smaller than the stride, halves; blocks that
// take box after box.
TEST_F(EmulatedGroup, Layers) {
  device.multiprocessors = 1;
  check(make(2, 16, 16, 2, {axis(3, 3, 2, 1), axis(5, 3, 2, 1), axis(19, 3, 2, 1)}));
  check(make(1, 24, 48, 3, {axis(9, 3, 2, 1), axis(17, 5, 3, 2)}));
  check(make(2, 16, 16, 2, {axis(151, 4, 1, 0, 0, 2)}), DType::bf16);
  if (!test::takes_all()) return;
  check(make(1, 16, 48, 2, {axis(7, 2, 3, 0, 1), axis(41, 3, 1, 1, 0, 3)}));
  check(make(3, 16, 16, 2, {axis(2, 3, 2, 1), axis(5, 5, 2, 2), axis(6, 7, 2, 3)}), DType::bf16);
  check(make(2, 32, 32, 4, {axis(1, 1, 1, 0), axis(33, 1, 1, 0)}));
}

// Eight neighbouring channels at a time, also where they begin at no multiple of 16 bytes.
TEST_F(EmulatedGroup, ChannelsLast) {
  device.multiprocessors = 1;
  check(channels_last(make(2, 16, 16, 2, {axis(3, 3, 2, 1), axis(5, 3, 2, 1), axis(19, 3, 2, 1)})), DType::bf16);
  check(channels_last(make(1, 24, 48, 3, {axis(9, 3, 2, 1), axis(17, 5, 3, 2)})));
  for (const Direction direction : {Direction::grad_input, Direction::grad_weight}) {
    const Problem odd =
        in(channels_last(make(1, 16, 32, 2, {axis(5, 3, 1, 1), axis(18, 2, 3, 0)})), direction, DType::bf16);
    EXPECT_EQ(test::EmulatedCase(odd, random).fails(propose_group(odd, device), 1), "");
  }
  if (!test::takes_all()) return;
  check(channels_last(make(3, 16, 16, 2, {axis(2, 3, 2, 1), axis(5, 5, 2, 2), axis(6, 7, 2, 3)})));
  check(channels_last(make(2, 32, 32, 4, {axis(1, 1, 1, 0), axis(33, 1, 1, 0)})), DType::bf16);
}

// Rows of a box that 32 lanes copy without a rest.
TEST_F(EmulatedGroup, RowsOfWholeWarps) { check(make(1, 16, 16, 2, {axis(61, 3, 2, 0)}), DType::bf16); }

// Rows that all begin at a multiple of 16 bytes, so that grad_input takes taps in pairs: with one left over and
// without; tensors at odd addresses.
TEST_F(EmulatedGroup, ManyTaps) {
  device.multiprocessors = 1;
  for (const Direction direction : {Direction::grad_input, Direction::grad_weight}) {
    const Problem odd =
        in(make(1, 16, 16, 2, {axis(2, 3, 2, 1), axis(3, 5, 2, 2), axis(6, 7, 2, 3, 1)}), direction, DType::f32);
    EXPECT_EQ(odd.axes[2].output() % 4, 0);
    EXPECT_EQ(test::EmulatedCase(odd, random).fails(propose_group(odd, device), 1), "");
  }
  const Problem even =
      in(make(1, 16, 32, 2, {axis(4, 3, 2, 0), axis(20, 4, 2, 0, 0, 3)}), Direction::grad_input, DType::f32);
  EXPECT_EQ(even.axes[2].output() % 4, 0);
  EXPECT_EQ(test::EmulatedCase(even, random).fails(propose_group(even, device)), "");
}

// Blocks that take several boxes: sums that warps exchange where a small box was leave the weights behind it alone.
TEST_F(EmulatedGroup, SmallBoxes) {
  device.multiprocessors = 1;
  const Problem wide = in(make(5, 16, 16, 2, {axis(7, 7, 1, 3), axis(7, 7, 1, 3)}), Direction::grad_input, DType::bf16);
  EXPECT_EQ(test::EmulatedCase(wide, random).fails(propose_group(wide, device)), "");
  const Problem narrow =
      in(make(5, 16, 16, 2, {axis(7, 3, 1, 1), axis(7, 3, 1, 1)}), Direction::grad_input, DType::f32);
  EXPECT_EQ(test::EmulatedCase(narrow, random).fails(propose_group_cut(narrow, device, 2)), "");
}

TEST_F(EmulatedGroup, Declines) {
  const auto reason = [](const Problem& problem, Direction direction, DType dtype) {
    return propose_group(in(problem, direction, dtype), test::gpu(90)).declined;
  };
  const Problem problem = make(1, 16, 16, 2, {axis(9, 3, 1, 1)});
  EXPECT_NE(reason(problem, Direction::forward, DType::f32), "");
  EXPECT_NE(reason(problem, Direction::grad_input, DType::f64), "");
  EXPECT_NE(reason(make(1, 16, 16, 1, {axis(9, 3, 1, 1)}), Direction::grad_input, DType::f32), "");
  EXPECT_NE(reason(make(1, 16, 12, 2, {axis(9, 3, 1, 1)}), Direction::grad_weight, DType::f32), "");
  const Problem even = in(make(1, 16, 16, 2, {axis(9, 2, 2, 0)}), Direction::grad_weight, DType::f32);
  EXPECT_NE(why_rather_no_group(even, test::gpu(90)), "");
  EXPECT_EQ(why_rather_no_group(in(problem, Direction::grad_weight, DType::f32), test::gpu(90)), "");
  EXPECT_NE(propose_group_cut(even, test::gpu(90), 1000).declined, "");
  Problem strict = in(problem, Direction::grad_weight, DType::f32);
  strict.precision = Precision::strict;
  EXPECT_NE(propose_group(strict, test::gpu(90)).declined, "");
}

}  // namespace
}  // namespace tconv::cuda
