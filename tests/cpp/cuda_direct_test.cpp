// The direct family without a GPU: its kernel run on the CPU against the reference, its planner, its compilation.
#include "cuda/direct.h"

#include <gtest/gtest.h>

#include <random>

#include "cases.h"
#include "cuda/direct_cost.h"
#include "cuda/nvrtc.h"
#include "direct_case.h"
#include "direct_emulation.h"
#include "tconv/tconv.h"

namespace tconv {
namespace {

using cuda::DirectPlan;
using test::axis;
using test::Case;
using test::gpu;
using test::make;
using test::Named;
using test::Random;
using test::random_problem;

std::string fails(const Case& data, const DirectPlan& plan, int lead) {
  return data.fails(
      [&](const void* input, const void* weight, const void* bias, void* output) {
        DirectArguments arguments = plan.arguments;
        arguments.input = input;
        arguments.weight = weight;
        arguments.bias = bias;
        arguments.output = output;
        test::emulate_direct(plan.config, arguments, plan.blocks, data.problem.dtype);
      },
      static_cast<std::size_t>(lead));
}

// Any tile that the kernel must be able to run, however slow.
DirectConfig random_tile(Random& random, const DirectConfig& planned) {
  for (;;) {
    DirectConfig c = planned;
    c.input_channels_last = random.below(2);
    c.output_channels_last = random.below(2);
    c.strip = random.pick({1, 2, 3, 4});
    c.strips = random.pick({1, 2, 3});
    c.cells_width = c.strip * (random.below(3) == 0 ? 32 : random.between(1, 6));
    c.cells_height = random.between(1, 4);
    c.cells_depth = random.between(1, 2);
    c.planes = random.pick({1, 1, 2, 3, 5});
    c.thread_channels = random.between(1, std::min(c.out_channels, 8));
    c.channel_parts = random.between(1, 3);
    if (c.channel_parts * c.thread_channels < c.out_channels) c.planes = 1;
    c.chunk = random.below(2) == 0 ? c.in_channels : random.between(1, c.in_channels);
    c.chunk_parts = random.pick({1, 1, 2, 3});
    if (c.chunk_parts > 1) c.chunk = std::max(1, c.chunk / c.chunk_parts) * c.chunk_parts;
    const int phases = c.depth.stride * c.height.stride;
    const bool together = c.chunk < c.in_channels || c.chunk_parts > 1;
    c.phase_parts = together ? phases : random.between(1, phases);
    const DirectGeometry g = direct_geometry(c);
    if (g.threads <= 512 && g.shared_bytes < 400000 && g.sums < 300) return c;
  }
}

TEST(DirectKernel, MatchesReferenceOnRandomProblems) {
  Random random(std::random_device{}());
  int taken = 0;
  for (int i = 0; i < test::cases(120); ++i) {
    const Problem problem = random_problem(random);
    const DirectPlan planned = cuda::plan_direct(problem, gpu(random.pick({80, 86, 90})));
    ASSERT_EQ(planned.declined, "") << to_string(problem);
    const Case data(problem, random);
    ASSERT_EQ(fails(data, planned, random.pick({0, 0, 1, 2})), "")
        << to_string(problem) << "\n"
        << cuda::describe(planned) << "\n"
        << cuda::direct_source(planned.config, problem.dtype).config;
    ++taken;
  }
  EXPECT_EQ(taken, test::cases(120));
}

TEST(DirectKernel, MatchesReferenceWithRandomTiles) {
  Random random(std::random_device{}());
  for (int i = 0; i < test::cases(120); ++i) {
    const Problem problem = random_problem(random);
    DirectPlan plan = cuda::plan_direct(problem, gpu(90));
    ASSERT_EQ(plan.declined, "") << to_string(problem);
    plan.config = random_tile(random, plan.config);
    cuda::complete(plan, problem);
    const Case data(problem, random);
    ASSERT_EQ(fails(data, plan, random.pick({0, 0, 1, 2})), "")
        << to_string(problem) << "\n"
        << cuda::describe(plan) << "\n"
        << cuda::direct_source(plan.config, problem.dtype).config;
  }
}

// Layers of models and benchmarks that the family is made for.
std::vector<Named> layers() {
  return {
      {"kb72", make(8, 32, 32, 4, {axis(12, 3, 2, 1, 1), axis(24, 5, 2, 2, 1), axis(48, 7, 2, 3, 1)})},
      {"kb73", make(4, 32, 32, 4, {axis(32, 3, 2, 1), axis(64, 3, 2, 1), axis(128, 3, 2, 1)})},
      {"kb75", make(16, 32, 64, 4, {axis(128, 3, 2, 1, 0, 2), axis(256, 5, 3, 2)})},
      {"CenterNet.dla0", make(16, 256, 256, 256, {axis(16, 4, 2, 1), axis(16, 4, 2, 1)})},
      {"CenterNet.dla1", make(16, 128, 128, 128, {axis(32, 4, 2, 1), axis(32, 4, 2, 1)})},
      {"CenterNet.dla2", make(16, 64, 64, 64, {axis(64, 4, 2, 1), axis(64, 4, 2, 1)})},
      {"CenterNet.ida2", make(16, 64, 64, 64, {axis(32, 8, 4, 2), axis(32, 8, 4, 2)})},
      {"BigVGAN.C768", make(4, 768, 768, 768, {axis(1034, 12, 2, 0)})},
      {"BigVGAN.C384", make(4, 384, 384, 384, {axis(4106, 12, 2, 0)})},
      {"BigVGAN.C24", make(4, 24, 24, 24, {axis(65546, 12, 2, 0)})},
      {"DCGAN.g5", make(64, 64, 3, 1, {axis(32, 4, 2, 1), axis(32, 4, 2, 1)})},
      {"pix2pix.up7", make(1, 128, 3, 1, {axis(128, 4, 2, 1), axis(128, 4, 2, 1)})},
      {"FSRCNN.x2_train", make(16, 56, 1, 1, {axis(10, 9, 2, 4, 1), axis(10, 9, 2, 4, 1)})},
      {"FSRCNN.x2_1080p", make(1, 56, 1, 1, {axis(540, 9, 2, 4, 1), axis(960, 9, 2, 4, 1)})},
      {"FSRCNN.x3_1080p", make(1, 56, 1, 1, {axis(360, 9, 3, 4, 2), axis(640, 9, 3, 4, 2)})},
      {"FSRCNN.x4_2160p", make(1, 56, 1, 1, {axis(540, 9, 4, 4, 3), axis(960, 9, 4, 4, 3)})},
      {"dense 64 -> 64", make(8, 64, 64, 1, {axis(56, 3, 1, 1), axis(56, 3, 1, 1)})},
      {"dense 64 -> 32", make(1, 64, 32, 1, {axis(4096, 4, 2, 1)})},
  };
}

TEST(DirectPlanner, TilesFitTheDevice) {
  for (const int arch : {80, 86, 89, 90, 100, 120}) {
    const DeviceProperties device = gpu(arch);
    for (const Named& layer : layers()) {
      const DirectPlan plan = cuda::plan_direct(layer.problem, device);
      ASSERT_EQ(plan.declined, "") << layer.name;
      const DirectGeometry g = direct_geometry(plan.config);
      EXPECT_LE(static_cast<std::size_t>(g.shared_bytes), device.shared_bytes_per_block) << layer.name;
      EXPECT_EQ(g.threads % 32, 0) << layer.name;
      EXPECT_LE(g.threads, 1024) << layer.name;
      EXPECT_GT(plan.expected_seconds, 0) << layer.name;
      if (arch == 90) {
        std::printf("%-16s %7.1f us  %s\n", layer.name, plan.expected_seconds * 1e6, cuda::describe(plan).c_str());
      }
    }
  }
}

TEST(DirectPlanner, BatchChangesNoKernel) {
  for (const Named& layer : layers()) {
    const std::string config = cuda::direct_source(cuda::plan_direct(layer.problem, gpu(90)).config, DType::f32).config;
    for (const int batch : {1, 2, 7, 64}) {
      Problem problem = layer.problem;
      problem.batch = batch;
      set_contiguous(problem);
      EXPECT_EQ(cuda::direct_source(cuda::plan_direct(problem, gpu(90)).config, DType::f32).config, config)
          << layer.name;
    }
  }
}

TEST(DirectPlanner, SaysWhyItDeclines) {
  Problem problem = make(1, 512, 512, 1, {axis(16, 4, 2, 1), axis(16, 4, 2, 1)});
  EXPECT_NE(cuda::plan_direct(problem, gpu(90)).declined.find("512 -> 512"), std::string::npos);
  problem.precision = Precision::strict;
  EXPECT_EQ(cuda::plan_direct(problem, gpu(90)).declined, "");
  EXPECT_NE(cuda::plan_direct(problem, gpu(75)).declined.find("sm_75"), std::string::npos);
  problem = make(1, 1, 1, 1, {axis(64, 1024, 256, 0)});
  EXPECT_NE(cuda::plan_direct(problem, gpu(90)).declined.find("1024"), std::string::npos);
  problem = make(0, 1, 1, 1, {axis(64, 4, 2, 1)});
  EXPECT_NE(cuda::plan_direct(problem, gpu(90)).declined.find("empty"), std::string::npos);
  problem = make(1, 1, 1, 1, {axis(64, 4, 2, 1)});
  problem.direction = Direction::grad_input;
  EXPECT_NE(cuda::plan_direct(problem, gpu(90)).declined, "");
}

class DirectCompilation : public testing::TestWithParam<int> {};

TEST_P(DirectCompilation, SpillsNothing) {
  const int arch = GetParam();
  try {
    if (!cuda::nvrtc_supports(arch)) GTEST_SKIP() << "NVRTC here has no sm_" << arch;
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const DeviceProperties device = gpu(arch);
  for (const Named& layer : layers()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::f64}) {
      for (const bool channels_last : {false, true}) {
        // One architecture sees all types and both layouts, the others the main case.
        if ((dtype != DType::f32 || channels_last) && arch != 90) continue;
        if ((dtype == DType::f16 && channels_last) || (dtype == DType::f64 && !channels_last)) continue;
        Problem problem = layer.problem;
        problem.dtype = dtype;
        problem.bias = true;
        if (channels_last) {
          problem.input_strides = channels_last_strides(problem.input_sizes());
          problem.output_strides = channels_last_strides(problem.output_sizes());
        }
        const DirectPlan plan = cuda::plan_direct(problem, device);
        ASSERT_EQ(plan.declined, "") << layer.name;
        const cuda::Compiled compiled = cuda::compile(cuda::direct_source(plan.config, dtype), arch);
        EXPECT_EQ(compiled.spill_bytes, 0U)
            << layer.name << " " << name_of(dtype) << (channels_last ? " channels last" : "") << " sm_" << arch << ": "
            << cuda::describe(plan) << "\n"
            << compiled.log;
        if (arch == 90) {
          std::printf("%-16s %-8s %s %3d registers (guess %d)\n", layer.name, name_of(dtype),
                      channels_last ? "NHWC" : "NCHW", compiled.registers,
                      cuda::direct_registers(plan.config, direct_geometry(plan.config)));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, DirectCompilation, testing::Values(80, 86, 89, 90, 100, 120));

}  // namespace
}  // namespace tconv
