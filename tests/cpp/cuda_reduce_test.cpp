// The reduce kernels (grad_weight on tensor cores), compiled by the host compiler and run on the CPU against the
// reference; and their planner.
#include "cuda/reduce.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <utility>

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
      make(2, 20, 12, 1, {axis(9, 4, 2, 1), axis(11, 4, 2, 1)}),                   // GAN
      make(3, 40, 24, 1, {axis(9, 3, 1, 1), axis(11, 3, 1, 1)}),                   // stride 1
      make(1, 33, 70, 1, {axis(7, 2, 2, 0), axis(9, 2, 2, 0)}),                    // kernel == stride
      make(2, 48, 17, 1, {axis(61, 16, 8, 4)}),                                    // vocoder
      make(2, 24, 3, 1, {axis(5, 4, 2, 1), axis(17, 4, 2, 1)}),                    // few output channels
      make(1, 56, 1, 1, {axis(6, 9, 3, 4), axis(6, 9, 3, 4)}),                     // one output channel
      make(2, 32, 16, 1, {axis(5, 3, 1, 0), axis(6, 3, 1, 0), axis(7, 5, 1, 0)}),  // 3-D
      make(3, 18, 10, 1, {axis(21, 3, 5, 1, 0, 2)}),                               // gaps between the taps
      make(2, 26, 9, 1, {axis(40, 5, 1, 0, 0, 3)}),                                // dilation
      make(2, 30, 20, 1, {axis(6, 3, 2, 1, 0, 2), axis(7, 3, 2, 1, 0, 2)}),        // half of the outputs unused
      make(2, 32, 64, 4, {axis(7, 3, 2, 1, 0, 2), axis(9, 5, 3, 2)}),              // groups
      make(9, 70, 40, 1, {axis(2, 4, 2, 1), axis(2, 4, 2, 1)}),                    // tiny images
      make(1, 80, 130, 1, {axis(1, 4, 2, 1), axis(1, 4, 2, 1)}),                   // one pixel
      make(3, 40, 24, 1, {axis(9, 20, 6, 0)}),                                     // long kernel
      make(2, 1, 20, 1, {axis(9, 3, 2, 1), axis(8, 3, 2, 1)}),                     // one input channel
      make(2, 90, 20, 1, {axis(6, 1, 1, 0), axis(8, 1, 1, 0)}),                    // a matrix product
      make(2, 24, 24, 1, {axis(16, 3, 1, 5), axis(18, 3, 1, 4)}),                  // padding beyond the kernel
  };
  for (Problem& problem : problems) problem = gradient(problem);
  return problems;
}

TEST_F(EmulatedReduce, Warps) {
  for (const std::size_t i : {0U, 3U, 6U, 7U, 12U, 15U}) check(shapes()[i], 80);
}
TEST_F(EmulatedReduce, Warpgroups) {
  const std::vector<std::size_t> some = {0, 1, 2, 3, 4, 5, 6, 8, 9, 11, 13, 14, 16};
  for (const std::size_t i : test::shortened(some, 2)) check(shapes()[i], 90);
}
// Cuts with warps that only load, the best one or one from anywhere, whatever the planner prefers.
TEST_F(EmulatedReduce, WarpsThatOnlyLoad) {
  const std::vector<Problem> all = shapes();
  std::vector<Problem> problems;
  for (const std::size_t i : {0U, 2U, 3U, 5U, 6U, 7U, 9U, 12U, 13U, 16U}) problems.push_back(all[i]);
  problems.push_back(gradient(all[4], DType::bf16));
  problems.push_back(gradient(make(2, 40, 24, 1, {axis(6, 3, 1, 1), axis(16, 3, 1, 1)}), DType::f16));
  problems.push_back(gradient(all[1], DType::f32, Precision::strict));
  for (const std::size_t i : {0U, 6U, 10U}) {
    Problem problem = problems[i];
    problem.input_strides = channels_last_strides(problem.input_sizes());
    problem.output_strides = channels_last_strides(problem.output_sizes());
    problems.push_back(problem);
  }
  const DeviceProperties device = test::gpu(90);
  for (const Problem& problem : test::shortened(problems, 2)) {
    SCOPED_TRACE(to_string(problem));
    std::vector<ReduceCandidate> divided;
    for (const ReduceCandidate& candidate : reduce_candidates(problem, device)) {
      if (candidate.shape.loader_warps > 0) divided.push_back(candidate);
    }
    if (divided.empty()) continue;
    const auto any = static_cast<std::size_t>(random.between(0, static_cast<int>(divided.size()) - 1));
    const test::EmulatedCase data(problem, random);
    EXPECT_EQ(data.fails(propose_reduce(problem, device, divided[checked % 2 == 0 ? 0 : any])), "");
    ++checked;
  }
  EXPECT_GE(checked, test::takes_all() ? 14 : 6);
}
// Cuts that pack both tensors before they are multiplied.
TEST_F(EmulatedReduce, PackedAhead) {
  const std::vector<Problem> all = shapes();
  std::vector<Problem> problems;
  for (const std::size_t i : {0U, 2U, 3U, 6U, 9U, 12U, 16U}) problems.push_back(all[i]);
  problems.push_back(gradient(all[3], DType::bf16));  // rows of odd length
  problems.push_back(gradient(make(2, 80, 96, 2, {axis(6, 3, 2, 1), axis(8, 4, 2, 1)}), DType::f16));
  for (const std::size_t i : {0U, 8U}) {
    Problem problem = problems[i];
    problem.input_strides = channels_last_strides(problem.input_sizes());
    problem.output_strides = channels_last_strides(problem.output_sizes());
    problems.push_back(problem);
  }
  const DeviceProperties device = test::gpu(90);
  for (const Problem& problem : test::shortened(problems, 2)) {
    SCOPED_TRACE(to_string(problem));
    std::vector<ReduceCandidate> packed;
    for (const ReduceCandidate& candidate : reduce_candidates(problem, device, {.least_packed = 0})) {
      if (candidate.shape.packed) packed.push_back(candidate);
    }
    if (packed.empty()) continue;
    const auto any = static_cast<std::size_t>(random.between(0, static_cast<int>(packed.size()) - 1));
    const test::EmulatedCase data(problem, random);
    EXPECT_EQ(data.fails(propose_reduce(problem, device, packed[checked % 2 == 0 ? 0 : any])), "");
    ++checked;
  }
  EXPECT_GE(checked, test::takes_all() ? 9 : 4);
}

// Slices of the output channels, each of them packed; in either layout.
TEST_F(EmulatedReduce, Slices) {
  Problem problem = gradient(make(3, 24, 48, 1, {axis(9, 4, 2, 1), axis(10, 3, 1, 1)}));
  for (const int slices : {2, 3}) {
    std::vector<ReduceCandidate> packed =
        reduce_candidates(slice_of(problem, slices), test::gpu(90), {.least_packed = 0});
    std::erase_if(packed, [](const ReduceCandidate& candidate) { return !candidate.shape.packed; });
    ASSERT_FALSE(packed.empty());
    EXPECT_EQ(test::EmulatedCase(problem, random)
                  .fails(propose_sliced_reduce(problem, test::gpu(90), slices, packed.front())),
              "");
    problem.output_strides = channels_last_strides(problem.output_sizes());
    problem.weight_strides = channels_last_strides(problem.weight_sizes());
  }
}

// Tensors too large to be packed at once, with many channels.
TEST(ReducePlanner, SlicesWhatIsTooLargeToBePacked) {
  const Problem problem = gradient(make(72, 1536, 768, 1, {axis(33, 16, 8, 4)}));
  const Proposal proposal = propose_reduce(problem, test::gpu(90));
  EXPECT_NE(proposal.kernel->describe().find("2 slices"), std::string::npos) << proposal.kernel->describe();
  EXPECT_LE(proposal.workspace_bytes, 64U << 20);
  const Proposal whole = propose_reduce_cut(problem, test::gpu(90), 1);
  EXPECT_EQ(whole.kernel->describe().find("slices"), std::string::npos) << whole.kernel->describe();
  EXPECT_GT(whole.expected_seconds, proposal.expected_seconds);
}

// Cuts whose channels-last tensors come in boxes, the best one and one from anywhere: stride 1 either way around,
// kernels of one to three axes, strides that leave outputs out, channels that fill no box, groups.
TEST_F(EmulatedReduce, Boxes) {
  const std::vector<std::pair<Problem, DType>> cases = {
      {make(2, 40, 72, 1, {axis(5, 3, 2, 1, 1), axis(7, 3, 2, 1, 1)}), DType::f32},
      {make(3, 72, 24, 1, {axis(9, 3, 1, 1), axis(11, 3, 1, 1)}), DType::f16},
      {make(3, 72, 24, 1, {axis(5, 3, 1, 1), axis(6, 3, 1, 1)}), DType::f32},
      {make(1, 136, 40, 1, {axis(7, 2, 2, 0), axis(9, 2, 2, 0)}), DType::bf16},
      {make(1, 264, 72, 1, {axis(3, 2, 2, 0), axis(9, 2, 2, 0)}), DType::f32},
      {make(2, 32, 16, 1, {axis(3, 2, 2, 0), axis(4, 3, 2, 1), axis(5, 2, 2, 0)}), DType::f16},
      {make(2, 48, 32, 1, {axis(3, 2, 2, 0), axis(4, 3, 2, 1), axis(5, 2, 2, 0)}), DType::f32},
      {make(2, 48, 16, 1, {axis(6, 3, 2, 1, 0, 2), axis(7, 3, 2, 1, 0, 2)}), DType::bf16},
      {make(2, 64, 96, 2, {axis(7, 2, 3, 0), axis(9, 5, 4, 2)}), DType::f16},
      {make(2, 64, 96, 2, {axis(7, 2, 3, 0), axis(9, 5, 4, 2)}), DType::f32},
      {make(5, 64, 8, 1, {axis(1, 4, 2, 1), axis(1, 4, 2, 1)}), DType::bf16},
      {make(5, 64, 32, 1, {axis(1, 4, 2, 1), axis(1, 4, 2, 1)}), DType::f32},
  };
  const DeviceProperties device = test::gpu(90);
  for (const auto& [shape, type] : test::shortened(cases, 2)) {
    Problem problem = gradient(shape, type);
    problem.input_strides = channels_last_strides(problem.input_sizes());
    problem.output_strides = channels_last_strides(problem.output_sizes());
    if (checked % 3 == 0) problem.weight_strides = channels_last_strides(problem.weight_sizes());
    SCOPED_TRACE(to_string(problem));
    std::vector<ReduceCandidate> boxes;
    for (const ReduceCandidate& candidate : reduce_candidates(problem, device)) {
      if (candidate.shape.boxes()) boxes.push_back(candidate);
    }
    ASSERT_FALSE(boxes.empty());
    const test::EmulatedCase data(problem, random);
    EXPECT_EQ(data.fails(propose_reduce(problem, device, boxes.front())), "");
    const auto any = static_cast<std::size_t>(random.between(0, static_cast<int>(boxes.size()) - 1));
    EXPECT_EQ(data.fails(propose_reduce(problem, device, boxes[any])), "");
    ++checked;
  }
}
TEST_F(EmulatedReduce, StrictPrecision) {
  for (const std::size_t i : {1U, 10U}) check(gradient(shapes()[i], DType::f32, Precision::strict), 90);
}
TEST_F(EmulatedReduce, TwoByteElements) {
  check(gradient(shapes()[0], DType::bf16), 80);
  for (const std::size_t i : {1U, 3U, 7U}) check(gradient(shapes()[i], DType::f16), 90);
}
TEST_F(EmulatedReduce, LayoutsInMemory) {
  Problem problem = shapes()[1];
  problem.input_strides = channels_last_strides(problem.input_sizes());
  problem.output_strides = channels_last_strides(problem.output_sizes());
  problem.weight_strides = channels_last_strides(problem.weight_sizes());
  check(problem, 90);
  problem.dtype = DType::bf16;
  check(problem, 90);
  problem = shapes()[2];
  problem.output_strides = {0, 0, 0, 0, 0};  // one value, expanded
  check(problem, 80);
}
// Tensors at odd addresses are read element by element.
TEST_F(EmulatedReduce, UnalignedTensors) {
  const Problem problem = gradient(make(2, 24, 16, 1, {axis(8, 3, 1, 1), axis(16, 3, 1, 1)}));
  const Proposal proposal = propose_reduce(problem, test::gpu(90));
  EXPECT_GT(reduce_candidates(problem, test::gpu(90)).front().shape.row_vector, 1);
  EXPECT_EQ(test::EmulatedCase(problem, random).fails(proposal, 1), "");
}

// Few pixels along some axis, many along another, all kinds of taps: the planner's cuts fit the device.
TEST(ReducePlanner, CutsFitTheDevice) {
  Random random{17};
  int covered = 0;
  for (int i = 0; i < 150; ++i) {
    Problem problem = test::random_problem(random);
    problem.direction = Direction::grad_weight;
    problem.weight_strides = contiguous_strides(problem.weight_sizes());
    problem.in_channels *= 8;
    set_contiguous(problem);
    for (const int arch : {80, 86, 90, 120}) {
      const DeviceProperties device = test::gpu(arch);
      if (!why_no_reduce(problem, device).empty()) continue;
      const std::vector<ReduceCandidate> candidates = reduce_candidates(problem, device);
      EXPECT_FALSE(candidates.empty()) << to_string(problem);
      ++covered;
      double last = 0;
      for (const ReduceCandidate& candidate : candidates) {
        const ReduceShape& shape = candidate.shape;
        ASSERT_GE(candidate.expected_seconds, last);
        last = candidate.expected_seconds;
        ASSERT_LE(static_cast<std::size_t>(shape.shared_bytes()), device.shared_bytes_per_block);
        ASSERT_LE(shape.run_columns(), 256);
        ASSERT_EQ(shape.tile[3] % 2, 0);
        ASSERT_EQ(shape.split[0] * shape.split[1] * shape.split[2] * shape.split[3], shape.vector());
        ASSERT_GE(shape.all_runs(), shape.runs());
        ASSERT_LE(shape.threads(), 1024);
        ASSERT_TRUE(!shape.warpgroup || arch == 90);
        if (shape.loader_warps > 0) {
          const int width = shape.tile[3] * shape.split[3];
          ASSERT_EQ(width % shape.row_copy, 0);
          ASSERT_EQ(width * shape.step[2] % shape.column_copy, 0);
          ASSERT_LE(32 * (shape.team_warps() * shape.team_registers + shape.loader_warps * shape.loader_registers),
                    65536 / shape.blocks_per_multiprocessor);
        }
      }
      ASSERT_LE(propose_reduce(problem, device).workspace_bytes, 64U << 20);
    }
  }
  EXPECT_GT(covered, 100);
}

// Pixels, taps and elements of the reduction are those of the problem, whichever tensor stays in place.
TEST(Reduction, MeetsWhatTheProblemMeets) {
  Random random{19};
  int swapped_ones = 0;
  for (int i = 0; i < 300; ++i) {
    Problem problem = test::random_problem(random);
    set_contiguous(problem);
    for (const bool swapped : {false, true}) {
      const auto reduction = reduction_of(problem, swapped);
      if (!reduction) continue;
      swapped_ones += swapped ? 1 : 0;
      for (int a = 0; a < kSpatialAxes; ++a) {
        const Axis& axis = problem.axes[a];
        const ReductionAxis& along = reduction->axes[a];
        std::set<std::array<std::int64_t, 3>> expected;  // places of input, tap and output in memory, along the axis
        for (std::int64_t x = 0; x < axis.input; ++x) {
          for (std::int64_t k = 0; k < axis.kernel; ++k) {
            const std::int64_t o = x * axis.stride + k * axis.dilation - axis.pad_begin;
            if (o >= 0 && o < axis.output()) expected.insert({x, k, o});
          }
        }
        // The offsets are of all axes together: take the other axes' out by looking at one axis alone.
        Problem alone = problem;
        for (int other = 0; other < kSpatialAxes; ++other) {
          if (other != a) alone.axes[other] = Axis{};
        }
        alone.input_strides = alone.output_strides = {0, 0, 0, 0, 0};
        alone.weight_strides = {0, 0, 0, 0, 0};
        alone.input_strides[2 + a] = alone.output_strides[2 + a] = alone.weight_strides[2 + a] = 1;
        const Reduction one = *reduction_of(alone, swapped);
        std::set<std::array<std::int64_t, 3>> met;
        for (std::int64_t row = 0; row < along.row_size; ++row) {
          for (std::int64_t k = 0; k < along.kernel; ++k) {
            const std::int64_t column = row * along.step + k * along.tap_step - along.pad;
            if (column < 0 || column >= along.column_size) continue;
            const std::int64_t row_at = one.row_offset + row * one.row_strides[2 + a];
            const std::int64_t column_at = one.column_offset + column * one.column_strides[2 + a];
            met.insert({swapped ? column_at : row_at, one.weight_offset + k * one.weight_strides[3 + a],
                        swapped ? row_at : column_at});
          }
        }
        EXPECT_EQ(met, expected) << to_string(problem) << " axis " << a << (swapped ? " swapped" : "");
      }
    }
  }
  EXPECT_GT(swapped_ones, 20);
}

TEST(ReducePlanner, DeclinesWithAReason) {
  const Problem problem = gradient(make(1, 32, 32, 1, {axis(20, 4, 2, 1)}));
  EXPECT_EQ(why_no_reduce(problem, test::gpu(90)), "");
  Problem changed = problem;
  changed.direction = Direction::forward;
  EXPECT_NE(why_no_reduce(changed, test::gpu(90)).find("grad_weight only"), std::string::npos);
  changed = problem;
  changed.dtype = DType::f64;
  EXPECT_NE(why_no_reduce(changed, test::gpu(90)).find("float64"), std::string::npos);
  changed = gradient(make(1, 8, 8, 8, {axis(20, 4, 2, 1)}));
  EXPECT_NE(why_no_reduce(changed, test::gpu(90)).find("one channel"), std::string::npos);
  changed = problem;
  changed.output_strides[4] = -1;
  EXPECT_NE(why_no_reduce(changed, test::gpu(90)).find("negative"), std::string::npos);
  EXPECT_NE(why_no_reduce(problem, test::gpu(75)).find("sm_80"), std::string::npos);
}

}  // namespace
}  // namespace tconv::cuda
