// grad_weight of depthwise layers: the kernels compiled by the host compiler and run on the CPU against the reference.
#include "cuda/depthwise_weight.h"

#include <gtest/gtest.h>

#include "cases.h"
#include "cuda/nvrtc.h"
#include "emulated_case.h"
#include "kernel_emulator.h"

namespace tconv::cuda {
namespace {

using test::axis;
using test::make;
using test::Random;

Problem gradient(Problem problem, DType dtype = DType::f32) {
  problem.direction = Direction::grad_weight;
  problem.bias = false;
  problem.dtype = dtype;
  set_contiguous(problem);
  return problem;
}

struct EmulatedDepthwiseWeight : testing::Test {
  test::KernelEmulator emulator;
  Random random{13};

  void check(const Problem& problem) {
    SCOPED_TRACE(to_string(problem));
    const test::EmulatedCase data(problem, random);
    EXPECT_EQ(data.fails(propose_depthwise_weight(problem, test::gpu(90))), "");
  }
};

TEST_F(EmulatedDepthwiseWeight, Layers) {
  check(gradient(make(2, 6, 6, 6, {axis(70, 12, 2, 0)})));
  check(gradient(make(3, 5, 5, 5, {axis(9, 4, 2, 1), axis(11, 4, 2, 1)})));
  check(gradient(make(2, 3, 3, 3, {axis(5, 3, 1, 1), axis(6, 3, 3, 2, 1), axis(7, 4, 2, 0, 0, 3)}), DType::bf16));
}

TEST_F(EmulatedDepthwiseWeight, Parts) {
  Problem problem = gradient(make(2, 3, 3, 3, {axis(96, 4, 2, 1), axis(64, 4, 2, 1)}));
  EXPECT_GT(propose_depthwise_weight(problem, test::gpu(90)).workspace_bytes, 0U);
  check(problem);
}

TEST_F(EmulatedDepthwiseWeight, ChannelsLast) {
  const auto last = [](Problem problem) {
    problem.input_strides = channels_last_strides(problem.input_sizes());
    problem.output_strides = channels_last_strides(problem.output_sizes());
    return problem;
  };
  const auto described = [](const Problem& problem) {
    return propose_depthwise_weight(problem, test::gpu(90)).kernel->describe();
  };
  Problem problem = last(gradient(make(2, 40, 40, 40, {axis(9, 4, 2, 1), axis(11, 3, 2, 1)})));
  EXPECT_NE(described(problem).find("(4 of"), std::string::npos) << described(problem);
  check(problem);
  const test::EmulatedCase data(problem, random);
  EXPECT_EQ(data.fails(propose_depthwise_weight(problem, test::gpu(90)), 1), "");  // at an odd address
  check(last(gradient(make(3, 24, 24, 24, {axis(3, 2, 1, 0), axis(5, 3, 3, 2, 1, 2)}), DType::bf16)));
  problem = last(gradient(make(1, 33, 33, 33, {axis(6, 5, 4, 2, 1)})));
  EXPECT_NE(described(problem).find("(1 of"), std::string::npos) << described(problem);
  check(problem);
}

TEST_F(EmulatedDepthwiseWeight, Strips) {
  const auto described = [](const Problem& problem) {
    return propose_depthwise_weight(problem, test::gpu(90)).kernel->describe();
  };
  // Rows that allow vectors of four, of two and of one, with windows that begin inside the padding.
  Problem problem = gradient(make(2, 3, 3, 3, {axis(32, 4, 2, 1)}));
  EXPECT_NE(described(problem).find("by vectors of 4 and 4"), std::string::npos) << described(problem);
  check(problem);
  problem = gradient(make(2, 3, 3, 3, {axis(42, 12, 2, 5)}));
  EXPECT_NE(described(problem).find("by vectors of 2 and 4"), std::string::npos) << described(problem);
  check(problem);
  check(gradient(make(2, 3, 3, 3, {axis(7, 3, 1, 1), axis(13, 3, 1, 2, 0, 2)})));
  check(gradient(make(1, 2, 2, 2, {axis(5, 8, 4, 2), axis(12, 8, 4, 2)})));
  check(gradient(make(2, 2, 2, 2, {axis(4, 3, 2, 1), axis(6, 2, 1, 0), axis(16, 4, 2, 1)}), DType::bf16));
  check(gradient(make(1, 2, 2, 2, {axis(1, 5, 3, 2), axis(3, 5, 3, 2)}), DType::bf16));
  // A stride that leaves too wide a window: pixel after pixel.
  problem = gradient(make(1, 2, 2, 2, {axis(20, 5, 9, 2)}));
  EXPECT_EQ(described(problem).find("strips"), std::string::npos);
  check(problem);
}

TEST(DepthwiseWeightCompilation, ChannelsLastSpillsNothing) {
  const std::vector<int> architectures = {80, 90, 120};
  for (const int arch : test::shortened(architectures, 2)) {
    try {
      if (!nvrtc_supports(arch)) GTEST_SKIP() << "NVRTC here has no sm_" << arch;
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    for (Problem problem : {make(16, 128, 128, 128, {axis(32, 4, 2, 1), axis(32, 4, 2, 1)}),
                            make(16, 64, 64, 64, {axis(32, 8, 4, 2), axis(32, 8, 4, 2)}),
                            make(4, 64, 64, 64, {axis(56, 3, 1, 1), axis(56, 3, 1, 1)}),
                            make(4, 33, 33, 33, {axis(16, 4, 2, 1), axis(16, 4, 2, 1), axis(16, 4, 2, 1)})}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        problem = gradient(problem, dtype);
        problem.input_strides = channels_last_strides(problem.input_sizes());
        problem.output_strides = channels_last_strides(problem.output_sizes());
        const JitKernelWatch watch;
        const Proposal proposal = propose_depthwise_weight(problem, test::gpu(arch));
        for (const JitKernelWatch::Made& made : watch.made()) {
          const Compiled compiled = compile(made.source, arch);
          EXPECT_EQ(compiled.spill_bytes, 0U) << to_string(problem) << "\n"
                                              << proposal.kernel->describe() << "\n"
                                              << compiled.log;
          if (arch == 90) std::printf("%s: %d registers\n", proposal.kernel->describe().c_str(), compiled.registers);
        }
      }
    }
  }
}

TEST_F(EmulatedDepthwiseWeight, Declines) {
  const auto reason = [](const Problem& problem) { return propose_depthwise_weight(problem, test::gpu(90)).declined; };
  EXPECT_NE(reason(gradient(make(1, 4, 8, 4, {axis(9, 3, 1, 1)}))).find("one channel"), std::string::npos);
  EXPECT_NE(reason(gradient(make(1, 4, 4, 4, {axis(9, 3, 1, 1)}), DType::f64)).find("float32"), std::string::npos);
  EXPECT_NE(reason(gradient(make(1, 4, 4, 4, {axis(90, 65, 1, 1)}))).find("more taps"), std::string::npos);
}

}  // namespace
}  // namespace tconv::cuda
