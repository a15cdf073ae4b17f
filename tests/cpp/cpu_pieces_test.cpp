// Problems computed piece by piece: the pieces' outputs are those of the whole, and kernels of few outputs are cut so.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "cpu/families.h"
#include "cpu/pieces.h"
#include "cpu_family_checks.h"
#include "cpu_support.h"

namespace tconv::test {
namespace {

Problem random_rows(Random& random) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = static_cast<int>(uniform(random, 1, 2));
    problem.dtype = DType::f64;
    problem.bias = chance(random, 0.5);
    problem.batch = uniform(random, 1, 4);
    problem.in_channels = uniform(random, 1, 4);
    problem.out_channels = uniform(random, 1, 3);
    for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a) {
      Axis& axis = problem.axes[a];
      axis.input = uniform(random, 1, 40);
      axis.kernel = uniform(random, 1, 20);
      axis.stride = uniform(random, 1, 9);
      axis.dilation = chance(random, 0.7) ? 1 : uniform(random, 2, 3);
      axis.pad_begin = chance(random, 0.4) ? 0 : uniform(random, 0, axis.kernel);
      axis.pad_end = chance(random, 0.5) ? axis.pad_begin : uniform(random, 0, axis.kernel);
      axis.output_padding = chance(random, 0.7) ? 0 : uniform(random, 0, std::max(axis.stride, axis.dilation) - 1);
    }
  } while (std::any_of(problem.axes.begin(), problem.axes.end(), [](const Axis& axis) { return axis.output() <= 0; }));
  problem.input_strides = random_strides(random, problem.input_sizes(), true);
  problem.output_strides = random_strides(random, problem.output_sizes(), false);
  problem.weight_strides = contiguous_strides(problem.weight_sizes());
  return problem;
}

TEST(Pieces, AreTheWhole) {
  Random random(61);
  std::size_t most = 0;
  for (int i = 0; i < test::cases(200) && !::testing::Test::HasFailure(); ++i) {
    const Problem problem = random_rows(random);
    Tensors tensors(problem, random);
    compute_exact(problem, tensors);
    tensors.output.poison();
    const std::vector<cpu::PieceOfProblem> pieces =
        cpu::pieces_of(problem, uniform(random, 1, 12), uniform(random, 1, 8));
    most = std::max(most, pieces.size());
    for (const cpu::PieceOfProblem& piece : pieces) {
      Buffers buffers = tensors.buffers();
      buffers.input = static_cast<double*>(buffers.input) + piece.input;
      buffers.output = static_cast<double*>(buffers.output) + piece.output;
      run_with_workspace(*plan(piece.problem, {}, "reference"), buffers);
    }
    expect_close(problem, tensors, DType::f64, (terms_of(problem) + 8) * 2);
  }
  EXPECT_GE(most, 8U);
}

// An inverse Fourier transform: one output channel, so that tasks of whole channels would be one.
TEST(Pieces, OfLongKernelsKeepEveryThreadBusyAndEveryBit) {
  Random random(62);
  for (const auto& [batch, kernel] : {std::pair{1, 256}, {3, 256}, {1, 700}}) {  // the last is cut itself
    Problem problem;
    problem.rank = 1;
    problem.batch = batch;
    problem.in_channels = 66;
    problem.bias = batch > 1;
    problem.axes[2] = {.input = 300, .kernel = kernel, .stride = kernel / 4, .pad_begin = 128, .pad_end = 120};
    set_contiguous(problem);
    Tensors tensors(problem, random);
    compute_exact(problem, tensors);
    std::vector<std::byte> first;
    for (const int threads : {1, 2, 8}) {
      DeviceProperties device = cpu::properties();
      device.threads = threads;
      const Proposal proposal = cpu::propose_columns(problem, device);
      ASSERT_NE(proposal.kernel, nullptr) << proposal.declined;
      EXPECT_EQ(proposal.kernel->describe().find("pieces") != std::string::npos, threads > 1);
      tensors.output.poison();
      proposal.kernel->run(tensors.buffers(), on_threads(threads));
      expect_close(problem, tensors, DType::f32, terms_of(problem) + 8);
      if (first.empty()) first = tensors.output.bytes;
      EXPECT_EQ(first, tensors.output.bytes) << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace tconv::test
