// The depthwise kernel without a GPU: run on the CPU against the reference, its planner, its compilation.
#include <gtest/gtest.h>

#include <random>

#include "cases.h"
#include "cuda/direct.h"
#include "cuda/nvrtc.h"
#include "direct_case.h"
#include "direct_depthwise_emulation.h"

namespace tconv {
namespace {

using cuda::DepthwisePlan;
using test::axis;
using test::Case;
using test::gpu;
using test::make;
using test::Named;
using test::Random;

std::string fails(const Case& data, const DepthwisePlan& plan, std::size_t lead) {
  return data.fails(
      [&](const void* input, const void* weight, const void* bias, void* output) {
        DepthwiseArguments arguments = plan.arguments;
        arguments.input = input;
        arguments.weight = weight;
        arguments.bias = bias;
        arguments.output = output;
        test::emulate_depthwise(plan.config, arguments, plan.blocks, data.problem.dtype);
      },
      lead);
}

// Rows without gaps between their elements, but with gaps between rows, channels and images.
Strides row_strides(Random& random, const Sizes& sizes) {
  if (random.below(2) == 0) return contiguous_strides(sizes);
  Strides strides{};
  std::int64_t step = 1;
  for (int i = 4; i >= 0; --i) {
    strides[static_cast<std::size_t>(i)] = step;
    step = step * sizes[static_cast<std::size_t>(i)] + random.below(5);
  }
  return strides;
}

Problem depthwise_problem(Random& random) {
  for (;;) {
    Problem p;
    p.rank = random.between(1, 2);
    p.dtype = random.pick({DType::f32, DType::f32, DType::f64, DType::f16, DType::bf16});
    p.bias = random.below(2) == 0;
    p.batch = random.between(1, 3);
    p.groups = random.pick({1, 2, 3, 5, 9});
    p.in_channels = p.groups;
    p.out_channels = p.groups * random.pick({1, 1, 2, 3});
    for (int a = kSpatialAxes - p.rank; a < kSpatialAxes; ++a) {
      Axis& axis = p.axes[static_cast<std::size_t>(a)];
      axis.input = p.rank == 1 ? random.between(1, 900) : random.between(1, 40);
      axis.kernel = random.between(1, p.rank == 1 ? 14 : 5);
      axis.stride = a == 2 ? random.pick({1, 2, 2, 4, 8}) : random.pick({1, 2, 2, 3, 4, 5});
      axis.dilation = random.pick({1, 1, 1, 2, 3});
      axis.pad_begin = random.below(6);
      axis.pad_end = random.below(4) == 0 ? random.below(6) : axis.pad_begin;
      axis.output_padding = random.below(static_cast<int>(std::max(axis.stride, axis.dilation)));
    }
    bool good = true;
    for (const Axis& axis : p.axes) good = good && axis.output() >= 1;
    if (!good || multiply_adds(p) > 2e6 || element_count(p.output_sizes()) > 60000) continue;
    p.input_strides = row_strides(random, p.input_sizes());
    p.weight_strides =
        random.below(2) == 0 ? contiguous_strides(p.weight_sizes()) : channels_last_strides(p.weight_sizes());
    p.output_strides = row_strides(random, p.output_sizes());
    if (random.below(4) == 0) p.weight_strides[0] = 0;  // one filter expanded over the channels
    validate(p);
    return p;
  }
}

TEST(DepthwiseKernel, MatchesReferenceOnRandomProblems) {
  Random random(std::random_device{}());
  int taken = 0;
  for (int i = 0; i < test::cases(300); ++i) {
    const Problem problem = depthwise_problem(random);
    const DepthwisePlan plan = cuda::plan_depthwise(problem, gpu(90));
    if (!plan.declined.empty()) continue;
    const Case data(problem, random);
    const auto lead = static_cast<std::size_t>(random.pick({0, 0, 1, 2, 4, 7}));
    ASSERT_EQ(fails(data, plan, lead), "") << to_string(problem) << "\n"
                                           << cuda::describe(plan) << "\n"
                                           << cuda::depthwise_source(plan.config, problem.dtype).config;
    ++taken;
  }
  EXPECT_GT(taken, test::cases(200));
}

TEST(DepthwiseKernel, MatchesReferenceWithRandomTiles) {
  Random random(std::random_device{}());
  for (int i = 0; i < test::cases(300); ++i) {
    const Problem problem = depthwise_problem(random);
    DepthwisePlan plan = cuda::plan_depthwise(problem, gpu(90));
    if (!plan.declined.empty()) continue;
    DepthwiseConfig& c = plan.config;
    c.strips = random.between(1, 3);
    c.cells_height = random.between(1, 3);
    c.lanes_width = random.between(1, 9);
    c.lanes_height = random.between(1, 3);
    c.planes = random.between(1, 4);
    cuda::complete(plan, problem);
    const Case data(problem, random);
    ASSERT_EQ(fails(data, plan, static_cast<std::size_t>(random.below(8))), "")
        << to_string(problem) << "\n"
        << cuda::describe(plan) << "\n"
        << cuda::depthwise_source(plan.config, problem.dtype).config;
  }
}

std::vector<Named> layers() {
  return {
      {"CenterNet.dla0", make(16, 256, 256, 256, {axis(16, 4, 2, 1), axis(16, 4, 2, 1)})},
      {"CenterNet.dla1", make(16, 128, 128, 128, {axis(32, 4, 2, 1), axis(32, 4, 2, 1)})},
      {"CenterNet.dla2", make(16, 64, 64, 64, {axis(64, 4, 2, 1), axis(64, 4, 2, 1)})},
      {"CenterNet.ida2", make(16, 64, 64, 64, {axis(32, 8, 4, 2), axis(32, 8, 4, 2)})},
      {"BigVGAN.C768", make(4, 768, 768, 768, {axis(1034, 12, 2, 0)})},
      {"BigVGAN.C384", make(4, 384, 384, 384, {axis(4106, 12, 2, 0)})},
      {"BigVGAN.C24", make(4, 24, 24, 24, {axis(65546, 12, 2, 0)})},
      {"stride 1", make(4, 64, 64, 64, {axis(56, 3, 1, 1), axis(56, 3, 1, 1)})},
      {"odd rows", make(4, 64, 64, 64, {axis(33, 3, 2, 1), axis(33, 3, 2, 1)})},
      {"stride 4", make(4, 64, 64, 64, {axis(1000, 16, 4, 6)})},
      {"multiplier", make(4, 64, 128, 64, {axis(32, 4, 2, 1), axis(32, 4, 2, 1)})},
  };
}

TEST(DepthwisePlanner, BatchChangesNoKernel) {
  for (const Named& layer : layers()) {
    const DepthwisePlan plan = cuda::plan_depthwise(layer.problem, gpu(90));
    ASSERT_EQ(plan.declined, "") << layer.name;
    std::printf("%-16s %7.1f us  %s\n", layer.name, plan.expected_seconds * 1e6, cuda::describe(plan).c_str());
    for (const int batch : {1, 2, 7, 64}) {
      Problem problem = layer.problem;
      problem.batch = batch;
      set_contiguous(problem);
      EXPECT_EQ(cuda::depthwise_source(cuda::plan_depthwise(problem, gpu(90)).config, DType::f32).config,
                cuda::depthwise_source(plan.config, DType::f32).config)
          << layer.name;
    }
  }
}

TEST(DepthwisePlanner, DividesExactly) {
  const Problem problem = make(1, 1, 1, 1, {axis(64, 4, 2, 1)});
  for (const int channels : {1, 2, 3, 5, 7, 31, 96, 641, 65535, 1000003}) {
    Problem wide = problem;
    wide.in_channels = wide.out_channels = wide.groups = channels;
    set_contiguous(wide);
    const DepthwisePlan plan = cuda::plan_depthwise(wide, gpu(90));
    ASSERT_EQ(plan.declined, "");
    for (const std::int64_t near : {0LL, 1LL, 1000LL, 2147483647LL / channels}) {
      for (const std::int64_t step : {-1LL, 0LL, 1LL}) {
        const std::int64_t value = near * channels + step;
        if (value < 0 || value > 2147483647) continue;
        EXPECT_EQ(depthwise_f32::depthwise::divide(static_cast<int>(value), plan.arguments.by_channels),
                  value / channels);
      }
    }
  }
}

TEST(DepthwisePlanner, SaysWhyItDeclines) {
  Problem problem = make(1, 8, 8, 4, {axis(64, 4, 2, 1)});
  EXPECT_NE(cuda::plan_depthwise(problem, gpu(90)).declined.find("several"), std::string::npos);
  problem = make(1, 8, 8, 8, {axis(64, 4, 3, 1)});
  EXPECT_NE(cuda::plan_depthwise(problem, gpu(90)).declined.find("stride"), std::string::npos);
  problem = make(1, 8, 8, 8, {axis(64, 12, 2, 1), axis(64, 12, 2, 1)});
  EXPECT_NE(cuda::plan_depthwise(problem, gpu(90)).declined.find("taps"), std::string::npos);
  problem = make(1, 8, 8, 8, {axis(8, 3, 1, 1), axis(8, 3, 1, 1), axis(8, 3, 1, 1)});
  EXPECT_NE(cuda::plan_depthwise(problem, gpu(90)).declined.find("depth"), std::string::npos);
  problem = make(1, 8, 8, 8, {axis(64, 4, 2, 1), axis(64, 4, 2, 1)});
  problem.output_strides = channels_last_strides(problem.output_sizes());
  EXPECT_NE(cuda::plan_depthwise(problem, gpu(90)).declined.find("apart"), std::string::npos);
  // One slice in, one slice out, and yet no tap between them: the padding has cut it off.
  problem = make(1, 8, 8, 8, {axis(1, 1, 1, 1), axis(8, 3, 1, 1), axis(8, 3, 1, 1)});
  problem.axes[0].dilation = 3;
  problem.axes[0].output_padding = 2;
  set_contiguous(problem);
  ASSERT_EQ(problem.axes[0].output(), 1);
  EXPECT_NE(cuda::plan_depthwise(problem, gpu(90)).declined.find("depth"), std::string::npos);
  problem = make(1, 8, 8, 8, {axis(1, 1, 2000000, 0), axis(64, 4, 2, 1)});
  EXPECT_NE(cuda::plan_depthwise(problem, gpu(90)).declined.find("height"), std::string::npos);
}

class DepthwiseCompilation : public testing::TestWithParam<int> {};

TEST_P(DepthwiseCompilation, SpillsNothing) {
  const int arch = GetParam();
  try {
    if (!cuda::nvrtc_supports(arch)) GTEST_SKIP() << "NVRTC here has no sm_" << arch;
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  for (const Named& layer : layers()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::f64}) {
      if (dtype != DType::f32 && arch != 90) continue;
      Problem problem = layer.problem;
      problem.dtype = dtype;
      problem.bias = true;
      const DepthwisePlan plan = cuda::plan_depthwise(problem, gpu(arch));
      if (dtype != DType::f32 && !plan.declined.empty()) continue;  // other types need more registers
      ASSERT_EQ(plan.declined, "") << layer.name;
      const cuda::Compiled compiled = cuda::compile(cuda::depthwise_source(plan.config, dtype), arch);
      EXPECT_EQ(compiled.spill_bytes, 0U)
          << layer.name << " " << name_of(dtype) << " sm_" << arch << ": " << cuda::describe(plan) << "\n"
          << compiled.log;
      if (arch == 90) std::printf("%-16s %-8s %3d registers\n", layer.name, name_of(dtype), compiled.registers);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, DepthwiseCompilation, testing::Values(80, 86, 89, 90, 100, 120));

}  // namespace
}  // namespace tconv
