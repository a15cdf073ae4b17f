// The tile kernels, compiled by the host compiler and run on the CPU against the reference.
#include <gtest/gtest.h>

#include <array>
#include <set>

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

  // The planner's choice, and the best cut of every other kind: how weights come and, if asked for, whether stages are
  // left out and how teams share the work.
  void check(Problem problem, int arch, Direction direction = Direction::forward, bool every_kind = false) {
    problem.direction = direction;
    SCOPED_TRACE(to_string(problem) + " sm_" + std::to_string(arch));
    const test::EmulatedCase data(problem, random);
    const std::vector<TileCandidate> candidates = tile_candidates(problem, test::gpu(arch));
    ASSERT_FALSE(candidates.empty());
    std::set<std::array<bool, 4>> kinds;
    for (const TileCandidate& candidate : candidates) {
      const TileShape& shape = candidate.shape;
      const bool leaves_out = shape.skips_backs() && shape.stages_per_chunk() > 1;
      if (every_kind ? !kinds.insert({shape.packed, leaves_out, shape.row_teams > 1, shape.column_teams > 1}).second
                     : !kinds.insert({shape.packed}).second) {
        continue;
      }
      EXPECT_EQ(data.fails(propose_tile(problem, test::gpu(arch), candidate)), "");
      stages_left_out += leaves_out ? 1 : 0;
      in_place += shape.packed ? 0 : 1;
    }
  }

  int in_place = 0;
  int stages_left_out = 0;
};

TEST_F(EmulatedTile, Forward) {
  check(make(2, 24, 20, 1, {axis(9, 4, 2, 1), axis(11, 4, 2, 1)}), 80);
  check(make(2, 24, 40, 1, {axis(9, 3, 2, 1, 1), axis(11, 3, 2, 1)}), 90);
  check(make(1, 20, 64, 1, {axis(3, 3, 2, 1), axis(4, 3, 2, 0)}), 90, Direction::forward, /*every_kind=*/true);
  EXPECT_GT(emulator.launches(), 1);
  EXPECT_GT(in_place, 0);
  EXPECT_GT(stages_left_out, 0);
}

// Kernel equal to the stride, twice the stride, smaller, in between; dilations; many planes; groups; one to three axes.
TEST_F(EmulatedTile, GradientOfTheInput) {
  const Problem problems[] = {
      make(2, 24, 20, 1, {axis(9, 3, 1, 1), axis(11, 3, 1, 0)}),
      make(2, 40, 20, 1, {axis(9, 2, 2, 0), axis(11, 2, 2, 0)}),
      make(1, 24, 36, 1, {axis(9, 4, 2, 1), axis(11, 4, 2, 1)}),
      make(1, 70, 12, 1, {axis(9, 3, 2, 1, 1), axis(11, 3, 2, 0)}),
      make(3, 33, 17, 1, {axis(65, 16, 8, 4)}),
      make(1, 48, 20, 1, {axis(30, 3, 5, 1, 0, 2)}),
      make(1, 48, 20, 1, {axis(30, 5, 1, 4, 0, 3)}),
      make(2, 64, 48, 2, {axis(4, 2, 2, 0), axis(5, 2, 2, 0), axis(6, 2, 2, 0)}),
      make(1, 20, 12, 1, {axis(4, 3, 2, 1), axis(5, 3, 2, 1), axis(6, 3, 2, 1)}),
      make(1, 20, 12, 1, {axis(7, 50, 20, 3)}),
      make(1, 20, 12, 1, {axis(7, 3, 7, 0, 2)}),
  };
  for (const Problem& problem : problems) {
    for (const int arch : {80, 90}) check(problem, arch, Direction::grad_input);
  }
}

}  // namespace
}  // namespace tconv::cuda
