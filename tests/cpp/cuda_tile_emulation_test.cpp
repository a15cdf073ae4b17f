// The tile kernels, compiled by the host compiler and run on the CPU against the reference.
#include <gtest/gtest.h>

#include "cuda/tile.h"
#include "emulated_case.h"
#include "kernel_emulator.h"

namespace tconv::cuda {
namespace {

using test::axis;
using test::make;
using test::Random;

struct EmulatedTile : testing::Test {
  test::KernelEmulator emulator;
  Random random{5};

  void check(Problem problem, int arch) {
    SCOPED_TRACE(to_string(problem) + " sm_" + std::to_string(arch));
    const test::EmulatedCase data(problem, random);
    EXPECT_EQ(data.fails(propose_tile(problem, test::gpu(arch))), "");
  }
};

TEST_F(EmulatedTile, Forward) {
  check(make(2, 24, 20, 1, {axis(9, 4, 2, 1), axis(11, 4, 2, 1)}), 80);
  check(make(2, 24, 40, 1, {axis(9, 3, 2, 1, 1), axis(11, 3, 2, 1)}), 90);
  EXPECT_GT(emulator.launches(), 1);
}

}  // namespace
}  // namespace tconv::cuda
