// The direct kernel for channels-last tensors without a GPU: run on the CPU against the reference, its planner, its
// compilation.
#include <gtest/gtest.h>

#include <random>

#include "cases.h"
#include "cuda/direct.h"
#include "cuda/direct_last.h"
#include "cuda/nvrtc.h"
#include "direct_case.h"
#include "direct_last_emulation.h"
#include "emulated_case.h"

namespace tconv {
namespace {

using cuda::LastPlan;
using test::axis;
using test::gpu;
using test::make;
using test::Named;
using test::Random;

// Channels side by side, with gaps between cells, rows, slices and images, which vectors may or may not fit.
Strides last_strides(Random& random, const Sizes& sizes) {
  if (random.below(2) == 0) return channels_last_strides(sizes);
  const std::int64_t gap = random.pick({1, 2, 4, 8});
  Strides strides{};
  std::int64_t step = 1;
  for (const std::size_t i : {1U, 4U, 3U, 2U, 0U}) {
    strides[i] = step;
    step = (step * sizes[i] + gap - 1) / gap * gap + random.below(3) * gap;
  }
  return strides;
}

Problem last_problem(Random& random) {
  for (;;) {
    Problem p;
    p.rank = random.between(1, 3);
    p.direction = random.pick({Direction::forward, Direction::grad_input});
    p.dtype = random.pick({DType::f32, DType::f32, DType::f64, DType::f16, DType::bf16});
    p.bias = p.direction == Direction::forward && random.below(2) == 0;
    p.batch = random.between(1, 3);
    p.groups = random.pick({1, 2, 3, 4, 5, 8, 16, 24, 33, 64});
    const bool depthwise = random.below(2) == 0;
    p.in_channels = p.groups * (depthwise ? 1 : random.pick({1, 2, 3, 4, 8, 12, 16}));
    p.out_channels = p.groups * (depthwise ? 1 : random.pick({1, 2, 3, 4, 8, 12, 16}));
    for (int a = kSpatialAxes - p.rank; a < kSpatialAxes; ++a) {
      Axis& axis = p.axes[static_cast<std::size_t>(a)];
      axis.input = p.rank == 1 ? random.between(1, 90) : random.between(1, p.rank == 2 ? 14 : 6);
      axis.kernel = random.between(1, p.rank == 1 ? 14 : p.rank == 2 ? 5 : 4);
      axis.stride = random.pick({1, 2, 2, 3, 4, 5});
      axis.dilation = random.pick({1, 1, 1, 2, 3, 4});
      axis.pad_begin = random.below(6);
      axis.pad_end = random.below(4) == 0 ? random.below(6) : axis.pad_begin;
      axis.output_padding = random.below(static_cast<int>(std::max(axis.stride, axis.dilation)));
    }
    bool good = true;
    for (const Axis& axis : p.axes) good = good && axis.output() >= 1;
    if (!good || multiply_adds(p) > 2e6 || element_count(p.output_sizes()) > 60000) continue;
    p.input_strides = last_strides(random, p.input_sizes());
    p.weight_strides =
        random.below(2) == 0 ? contiguous_strides(p.weight_sizes()) : channels_last_strides(p.weight_sizes());
    p.output_strides = last_strides(random, p.output_sizes());
    if (random.below(4) == 0) p.weight_strides[0] = 0;  // one filter expanded over the channels
    validate(p);
    return p;
  }
}

std::string fails(const Problem& problem, const LastPlan& plan, Random& random) {
  const test::EmulatedCase data(problem, random);
  const auto lead = static_cast<std::size_t>(random.pick({0, 0, 1, 2, 4, 7}));
  return data.fails(cuda::propose_last(plan, problem, gpu(90)), lead);
}

TEST(LastKernel, MatchesReferenceOnRandomProblems) {
  Random random(std::random_device{}());
  test::LastEmulator emulator;
  int taken = 0;
  for (int drawn = 0; taken < test::cases(300); ++drawn) {
    ASSERT_LT(drawn, 2 * test::cases(300)) << "most problems are declined";
    const Problem problem = last_problem(random);
    LastPlan plan = cuda::plan_last(problem, gpu(90));
    if (!plan.declined.empty()) continue;
    plan = cuda::plan_last(problem, gpu(90), random.below(cuda::last_cuts(problem)));
    ASSERT_EQ(fails(problem, plan, random), "") << to_string(problem) << "\n"
                                                << cuda::describe(plan) << "\n"
                                                << cuda::last_source(plan.config, problem.dtype).config;
    ++taken;
  }
  EXPECT_GT(emulator.unaligned(), 0);
}

TEST(LastKernel, MatchesReferenceWithRandomTiles) {
  Random random(std::random_device{}());
  const test::LastEmulator emulator;
  for (int i = 0; i < test::cases(300); ++i) {
    const Problem problem = last_problem(random);
    LastPlan plan = cuda::plan_last(problem, gpu(90));
    if (!plan.declined.empty()) continue;
    LastConfig& c = plan.config;
    c.cells = random.between(1, 5);
    c.lanes_channels = random.between(1, 9);
    c.lanes_height = random.between(1, 3);
    c.lanes_width = random.between(1, 5);
    DeviceProperties device = gpu(90);
    device.multiprocessors = random.between(1, 9);  // blocks with several tiles
    cuda::complete(plan, problem, device);
    ASSERT_EQ(fails(problem, plan, random), "") << to_string(problem) << "\n"
                                                << cuda::describe(plan) << "\n"
                                                << cuda::last_source(plan.config, problem.dtype).config;
  }
}

Problem channels_last(Problem problem) {
  problem.input_strides = channels_last_strides(problem.input_sizes());
  problem.output_strides = channels_last_strides(problem.output_sizes());
  return problem;
}

std::vector<Named> layers() {
  std::vector<Named> found = {
      {"CenterNet.dla0", make(16, 256, 256, 256, {axis(16, 4, 2, 1), axis(16, 4, 2, 1)})},
      {"CenterNet.dla1", make(16, 128, 128, 128, {axis(32, 4, 2, 1), axis(32, 4, 2, 1)})},
      {"CenterNet.dla2", make(16, 64, 64, 64, {axis(64, 4, 2, 1), axis(64, 4, 2, 1)})},
      {"CenterNet.ida2", make(16, 64, 64, 64, {axis(32, 8, 4, 2), axis(32, 8, 4, 2)})},
      {"BigVGAN.C768", make(4, 768, 768, 768, {axis(1034, 12, 2, 0)})},
      {"stride 1", make(4, 64, 64, 64, {axis(56, 3, 1, 1), axis(56, 3, 1, 1)})},
      {"odd channels", make(4, 33, 33, 33, {axis(33, 3, 2, 1), axis(33, 3, 2, 1)})},
      {"three axes", make(2, 32, 32, 32, {axis(16, 4, 2, 1), axis(16, 4, 2, 1), axis(16, 4, 2, 1)})},
      {"multiplier", make(4, 64, 128, 64, {axis(32, 4, 2, 1), axis(32, 4, 2, 1)})},
      {"kb73", make(4, 32, 32, 4, {axis(32, 3, 2, 1), axis(64, 3, 2, 1), axis(128, 3, 2, 1)})},
      {"kb75", make(16, 32, 64, 4, {axis(128, 3, 2, 1, 0, 2), axis(256, 5, 3, 2)})},
  };
  for (Named& layer : found) layer.problem = channels_last(layer.problem);
  return found;
}

TEST(LastPlanner, BatchChangesNoKernel) {
  for (const Named& layer : layers()) {
    for (const Direction direction : {Direction::forward, Direction::grad_input}) {
      Problem problem = layer.problem;
      problem.direction = direction;
      const LastPlan plan = cuda::plan_last(problem, gpu(90));
      ASSERT_EQ(plan.declined, "") << layer.name;
      std::printf("%-16s %7.1f us  %s\n", layer.name, plan.expected_seconds * 1e6, cuda::describe(plan).c_str());
      for (const int batch : {1, 2, 7, 64}) {
        problem.batch = batch;
        problem = channels_last(problem);
        EXPECT_EQ(cuda::last_source(cuda::plan_last(problem, gpu(90)).config, DType::f32).config,
                  cuda::last_source(plan.config, DType::f32).config)
            << layer.name;
      }
    }
  }
}

TEST(LastPlanner, SaysWhyItDeclines) {
  Problem problem = channels_last(make(1, 8, 8, 8, {axis(16, 4, 2, 1), axis(16, 4, 2, 1)}));
  EXPECT_EQ(cuda::plan_last(problem, gpu(90)).declined, "");
  problem.direction = Direction::grad_weight;
  EXPECT_NE(cuda::plan_last(problem, gpu(90)).declined.find("alone"), std::string::npos);
  problem.direction = Direction::forward;
  problem.output_strides = contiguous_strides(problem.output_sizes());
  EXPECT_NE(cuda::plan_last(problem, gpu(90)).declined.find("side by side"), std::string::npos);
  problem = channels_last(make(1, 80, 8, 1, {axis(16, 4, 2, 1), axis(16, 4, 2, 1)}));
  EXPECT_NE(cuda::plan_last(problem, gpu(90)).declined.find("to sum up"), std::string::npos);
  problem = channels_last(make(8, 32, 32, 4, {axis(12, 3, 2, 1, 1), axis(24, 5, 2, 2, 1), axis(48, 7, 2, 3, 1)}));
  EXPECT_NE(cuda::plan_last(problem, gpu(90)).declined.find("shared memory"), std::string::npos);
  problem = channels_last(make(0, 8, 8, 8, {axis(16, 4, 2, 1)}));
  EXPECT_NE(cuda::plan_last(problem, gpu(90)).declined.find("empty"), std::string::npos);
  problem = channels_last(make(1, 1, 1, 1, {axis(16, 4, 2, 1)}));
  EXPECT_NE(cuda::plan_last(problem, gpu(90)).declined.find("one channel"), std::string::npos);
}

class LastCompilation : public testing::TestWithParam<int> {};

TEST_P(LastCompilation, SpillsNothing) {
  const int arch = GetParam();
  try {
    if (!cuda::nvrtc_supports(arch)) GTEST_SKIP() << "NVRTC here has no sm_" << arch;
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  for (const Named& layer : layers()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      for (const Direction direction : {Direction::forward, Direction::grad_input}) {
        if (dtype != DType::f32 && arch != 90) continue;
        Problem problem = layer.problem;
        problem.dtype = dtype;
        problem.direction = direction;
        problem.bias = direction == Direction::forward;
        const LastPlan plan = cuda::plan_last(problem, gpu(arch));
        if (dtype == DType::f64 && !plan.declined.empty()) continue;  // it needs more registers
        ASSERT_EQ(plan.declined, "") << layer.name;
        const cuda::Compiled compiled = cuda::compile(cuda::last_source(plan.config, dtype), arch);
        EXPECT_EQ(compiled.spill_bytes, 0U)
            << layer.name << " " << name_of(dtype) << " sm_" << arch << ": " << cuda::describe(plan) << "\n"
            << compiled.log;
        if (arch == 90) std::printf("%-16s %-8s %3d registers\n", layer.name, name_of(dtype), compiled.registers);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, LastCompilation, testing::Values(80, 86, 89, 90, 100, 120));

}  // namespace
}  // namespace tconv
