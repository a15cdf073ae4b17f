// The columns family: its planner, and its kernels compiled by the host compiler and run on the CPU against the
// reference. Each kernel takes a second or two to compile: by default every list is cut short,
// TCONV_TEST_ALL_KERNELS=1 (`make test-kernels`) takes it whole.
#include "cuda/columns.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "cases.h"
#include "emulated_case.h"
#include "kernel_emulator.h"

namespace tconv::cuda {
namespace {

using test::axis;
using test::make;
using test::Random;

enum class Layout { contiguous, channels_last, weight_channels_last };

Problem in(Problem problem, DType dtype = DType::f32, Layout layout = Layout::contiguous) {
  problem.dtype = dtype;
  problem.precision = dtype == DType::f32 ? Precision::tf32 : Precision::strict;
  if (layout == Layout::contiguous) return problem;
  problem.weight_strides = channels_last_strides(problem.weight_sizes());
  if (layout == Layout::weight_channels_last) return problem;
  problem.input_strides = channels_last_strides(problem.input_sizes());
  problem.output_strides = channels_last_strides(problem.output_sizes());
  return problem;
}

struct EmulatedColumns : testing::Test {
  test::KernelEmulator emulator;
  Random random{11};
  int boxes = 0;
  int phases = 0;
  int copied = 0;

  // The planner's choice, the best cut of every other kind, and the kernel for odd addresses.
  void check(const Problem& problem, int arch = 90, int lead = 0) {
    SCOPED_TRACE(to_string(problem));
    const test::EmulatedCase data(problem, random);
    const std::vector<ColumnsCandidate> candidates = columns_candidates(problem, test::gpu(arch));
    ASSERT_FALSE(candidates.empty());
    std::set<std::array<bool, 5>> kinds;
    for (const ColumnsCandidate& candidate : candidates) {
      const ColumnsShape& shape = candidate.shape;
      if (!kinds
               .insert({shape.one_phase, shape.boxes > 1, shape.samples > 1, shape.row_warps > 1, shape.cell_warps > 1})
               .second)
        continue;
      EXPECT_EQ(data.fails(propose_columns(problem, test::gpu(arch), candidate)), "");
      boxes += shape.boxes > 1 ? 1 : 0;
      phases += shape.one_phase ? 1 : 0;
      copied += shape.copies_cells ? 1 : 0;
      if (!test::takes_all() && kinds.size() == 2) break;
    }
    if (lead > 0) {
      EXPECT_EQ(data.fails(propose_columns(problem, test::gpu(arch)), static_cast<std::size_t>(lead)), "");
    }
  }
};

// Kernels larger and smaller than their stride, padding, dilation with and without a factor in common with the stride,
// one to three axes, channels that fill nothing, groups.
TEST_F(EmulatedColumns, Layers) {
  const std::vector<Problem> problems = {
      in(make(3, 40, 20, 1, {axis(4, 4, 2, 1), axis(4, 4, 2, 1)})),
      in(make(2, 36, 12, 1, {axis(8, 3, 2, 1, 1), axis(5, 3, 2, 0)})),
      in(make(5, 20, 9, 1, {axis(1, 4, 1, 0), axis(1, 4, 1, 0)})),
      in(make(1, 70, 10, 1, {axis(40, 16, 8, 4)})),
      in(make(2, 17, 7, 1, {axis(6, 3, 5, 1, 0, 2), axis(7, 2, 3, 0)})),
      in(make(1, 24, 5, 1, {axis(9, 4, 4, 1, 2, 2), axis(7, 3, 6, 2, 0, 4)})),
      in(make(2, 33, 6, 1, {axis(3, 2, 2, 0), axis(4, 3, 2, 1), axis(5, 2, 2, 0)})),
      in(make(2, 40, 12, 2, {axis(4, 3, 1, 1), axis(5, 3, 1, 2)})),
      in(make(1, 20, 3, 1, {axis(300, 7, 3, 9)})),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 4;
  for (std::size_t i = 0; i < count; ++i) check(problems[i], i % 2 == 0 ? 90 : 80);
  EXPECT_GT(boxes, 0);
}

TEST_F(EmulatedColumns, ChannelsLast) {
  const auto last = [](const Problem& problem, DType dtype = DType::f32) {
    return in(problem, dtype, Layout::channels_last);
  };
  const std::vector<Problem> problems = {
      last(make(2, 72, 40, 1, {axis(4, 4, 2, 1), axis(5, 4, 2, 1)}), DType::bf16),
      last(make(2, 40, 24, 1, {axis(4, 4, 2, 1), axis(5, 4, 2, 1)})),
      last(make(3, 64, 33, 1, {axis(4, 3, 2, 1, 1), axis(4, 3, 2, 1)}), DType::f16),
      last(make(2, 37, 21, 1, {axis(4, 3, 1, 1), axis(6, 3, 1, 1)}), DType::bf16),
      last(make(2, 48, 32, 2, {axis(3, 2, 2, 0), axis(4, 2, 2, 0), axis(3, 2, 2, 0)})),
      in(make(2, 40, 24, 1, {axis(4, 4, 2, 1), axis(5, 4, 2, 1)}), DType::f32, Layout::weight_channels_last),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 3;
  for (std::size_t i = 0; i < count; ++i) check(problems[i], 90, static_cast<int>(i) % 2);
  EXPECT_GT(phases, 0);
  EXPECT_GT(copied, 0);
}

TEST_F(EmulatedColumns, Halves) {
  const std::vector<Problem> problems = {
      in(make(3, 48, 20, 1, {axis(4, 4, 2, 1), axis(4, 4, 2, 1)}), DType::bf16),
      in(make(2, 70, 9, 1, {axis(5, 3, 2, 1), axis(5, 3, 2, 1)}), DType::f16),
      in(make(1, 33, 5, 1, {axis(75, 5, 3, 4)}), DType::bf16),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 2;
  for (std::size_t i = 0; i < count; ++i) check(problems[i], 90, 1);
}

// Random problems with random strides; most of them lie as no kernel of the family takes them.
TEST_F(EmulatedColumns, RandomProblems) {
  const int wanted = test::takes_all() ? 40 : 5;
  int taken = 0;
  for (int drawn = 0; drawn < 2000 && taken < wanted; ++drawn) {
    Problem problem = test::random_problem(random);
    problem.precision = Precision::tf32;
    if (drawn % 2 == 0) problem.weight_strides = contiguous_strides(problem.weight_sizes());
    if (!why_no_columns(problem, test::gpu(90)).empty()) continue;
    SCOPED_TRACE(to_string(problem));
    const test::EmulatedCase data(problem, random);
    const std::vector<ColumnsCandidate> candidates = columns_candidates(problem, test::gpu(90));
    ASSERT_FALSE(candidates.empty());
    const auto pick = static_cast<std::size_t>(random.below(static_cast<int>(candidates.size())));
    EXPECT_EQ(data.fails(propose_columns(problem, test::gpu(90), candidates[pick])), "");
    ++taken;
  }
  EXPECT_EQ(taken, wanted);
}

TEST(Columns, Declines) {
  const Problem problem = in(make(1, 512, 256, 1, {axis(4, 4, 2, 1), axis(4, 4, 2, 1)}));
  const DeviceProperties gpu = test::gpu(90);
  EXPECT_EQ(why_no_columns(problem, gpu), "");
  EXPECT_EQ(why_rather_no_columns(problem, gpu), "");
  const auto changed = [&](auto change) {
    Problem other = problem;
    change(other);
    return why_no_columns(other, gpu);
  };
  EXPECT_NE(changed([](Problem& p) { p.direction = Direction::grad_input; }), "");
  EXPECT_NE(changed([](Problem& p) { p.dtype = DType::f64; }), "");
  EXPECT_NE(changed([](Problem& p) { p.precision = Precision::strict; }), "");
  EXPECT_NE(changed([](Problem& p) { p.input_strides[3] *= 2; }), "");
  EXPECT_NE(changed([](Problem& p) { std::swap(p.weight_strides[3], p.weight_strides[4]); }), "");
  EXPECT_NE(changed([](Problem& p) { p.batch = 0; }), "");
  DeviceProperties old = gpu;
  old.arch = 75;
  EXPECT_NE(why_no_columns(problem, old), "");
  Problem large = make(1, 512, 256, 1, {axis(64, 4, 2, 1), axis(64, 4, 2, 1)});
  EXPECT_NE(why_rather_no_columns(in(large), gpu), "");
  EXPECT_NE(why_rather_no_columns(in(make(1, 32, 32, 1, {axis(4, 4, 2, 1)})), gpu), "");
}

// Neither the family nor anything that sets the order of a sum may depend on the batch.
TEST(Columns, ChoiceDoesNotDependOnTheBatch) {
  for (const std::int64_t batch : {1, 2, 7, 64, 1000}) {
    const Problem problem = in(make(batch, 512, 256, 1, {axis(4, 4, 2, 1), axis(4, 4, 2, 1)}));
    EXPECT_EQ(make_plan(problem, test::gpu(90), families(), {}).family, "columns");
  }
}

// Cuts fit the device, and the kernels' bounds hold.
TEST(Columns, CutsFit) {
  for (const int arch : {80, 86, 90}) {
    for (const Problem& problem :
         {in(make(64, 512, 256, 1, {axis(4, 4, 2, 1), axis(4, 4, 2, 1)})),
          in(make(1, 1024, 512, 1, {axis(8, 4, 2, 1), axis(8, 4, 2, 1)}), DType::bf16, Layout::channels_last)}) {
      const std::vector<ColumnsCandidate> candidates = columns_candidates(problem, test::gpu(arch));
      ASSERT_FALSE(candidates.empty());
      for (const ColumnsCandidate& candidate : candidates) {
        const ColumnsShape& shape = candidate.shape;
        EXPECT_LE(static_cast<std::size_t>(shape.shared_bytes()), test::gpu(arch).shared_bytes_per_block);
        EXPECT_GE(shape.padded_rows(), shape.rows());
        EXPECT_GE(shape.padded_cells(), shape.cells());
        EXPECT_EQ(shape.chunk % (kColumnsDepth * shape.step_channels()), 0);
        EXPECT_EQ(shape.row_bytes() % shape.weight_bytes, 0);
      }
    }
  }
}

}  // namespace
}  // namespace tconv::cuda
