// The tile kernels, compiled by the host compiler and run on the CPU against the reference. Each kernel takes a second
// or two to compile: by default every list is cut short, TCONV_TEST_ALL_KERNELS=1 (`make test-kernels`) takes it whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "cases.h"
#include "cuda/kernels/tile_pack_params.cuh"
#include "cuda/tile.h"
#include "cuda/tile_cost.h"
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

  // The planner's choice, and the best cut of every other kind: how weights come, whether tiles share input, how
  // outputs leave and, if asked for, whether stages are left out, blocks have cells of one residue and (taking all) how
  // teams share the work.
  void check(Problem problem, int arch, Direction direction = Direction::forward, bool every_kind = false) {
    problem.direction = direction;
    SCOPED_TRACE(to_string(problem) + " sm_" + std::to_string(arch));
    // Strict arithmetic has to take all bits of either factor.
    const bool strict = problem.dtype == DType::f32 && problem.precision == Precision::strict;
    const int read = direction == Direction::forward ? 0 : 3;
    const test::EmulatedCase data(problem, random, strict ? read : -1);
    const test::EmulatedCase other(problem, random, strict ? 1 : -1);
    const std::vector<TileCandidate> candidates = tile_candidates(problem, test::gpu(arch));
    ASSERT_FALSE(candidates.empty());
    std::set<std::array<bool, 9>> kinds;
    for (const TileCandidate& candidate : candidates) {
      const TileShape& shape = candidate.shape;
      const bool leaves_out = shape.skips_backs() && shape.stages_per_chunk() > 1;
      const bool by_teams = every_kind && test::takes_all();
      const std::array<bool, 9> kind = {shape.packed,
                                        shape.streams,
                                        shape.streams && shape.stacks_tiles(),
                                        shape.store_vector > 0,
                                        test::takes_all() && shape.row_vector > 1,
                                        every_kind && leaves_out,
                                        every_kind && shape.follows_residue(2),
                                        by_teams && shape.row_teams > 1,
                                        by_teams && shape.column_teams > 1};
      if (!kinds.insert(kind).second) continue;
      TileCandidate few = candidate;
      if (shape.stays) few.shape.most_blocks = 2;  // so that each takes several tiles
      const Proposal proposal = propose_tile(problem, test::gpu(arch), few);
      EXPECT_EQ(data.fails(proposal), "");
      if (strict) {
        EXPECT_EQ(other.fails(proposal), "");
      }
      stages_left_out += leaves_out ? 1 : 0;
      in_place += shape.packed ? 0 : 1;
      streams += shape.streams ? 1 : 0;
      stacks += shape.streams && shape.stacks_tiles() ? 1 : 0;
      vectors += shape.store_vector > 0 ? 1 : 0;
      images += shape.image_row > 0 ? 1 : 0;
      tensors += shape.tensor_copies ? 1 : 0;
      row_vectors += shape.row_vector > 1 ? 1 : 0;
    }
  }

  void check_some(const std::vector<Problem>& problems, int arch) {
    const std::size_t count = test::takes_all() ? problems.size() : 2;
    for (std::size_t i = 0; i < count; ++i)
      check(problems[i], arch, Direction::grad_input, /*every_kind=*/i == 0 || test::takes_all());
    EXPECT_GE(in_place, 1);
  }

  // One streaming cut of every kind, of those that `wanted` does not leave out.
  template <typename Wanted, typename Kind>
  void check_streams(const Problem& problem, const Wanted& wanted, const Kind& kind_of) {
    SCOPED_TRACE(to_string(problem));
    const test::EmulatedCase data(problem, random);
    std::set<decltype(kind_of(TileShape{}))> kinds;
    for (TileCandidate candidate : tile_candidates(problem, test::gpu(90))) {
      TileShape& shape = candidate.shape;
      if (!shape.streams || !wanted(shape) || !kinds.insert(kind_of(shape)).second) continue;
      if (shape.stays) shape.most_blocks = 2;
      EXPECT_EQ(data.fails(propose_tile(problem, test::gpu(90), candidate)), "");
    }
    EXPECT_FALSE(kinds.empty());
  }

  int in_place = 0;
  int streams = 0;
  int stacks = 0;
  int vectors = 0;
  int images = 0;
  int tensors = 0;
  int row_vectors = 0;
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

// Rows that no tap reaches, between others, which leave in vectors.
TEST_F(EmulatedTile, RowsWithoutTaps) {
  check(make(2, 16, 13, 1, {axis(5, 2, 3, 2, 0, 3), axis(5, 2, 1, 0, 0, 3)}), 90);
  check(make(1, 16, 13, 1, {axis(4, 1, 2, 0, 1), axis(8, 1, 1, 0)}), 80);
  EXPECT_GE(row_vectors, 2);
}

Problem in(Problem problem, DType dtype, Precision precision = Precision::tf32, bool channels_last = false) {
  problem.dtype = dtype;
  problem.precision = precision;
  if (channels_last) {
    problem.input_strides = channels_last_strides(problem.input_sizes());
    problem.output_strides = channels_last_strides(problem.output_sizes());
  }
  return problem;
}

// Blocks with warps that only load: taps that some phases lack, one tap each, many distances, aligned and odd rows,
// groups, both layouts, two bytes.
TEST_F(EmulatedTile, ForwardByStreams) {
  const std::vector<Problem> problems = {
      make(2, 24, 40, 1, {axis(9, 3, 2, 1, 1), axis(12, 3, 2, 1)}),
      make(1, 20, 24, 1, {axis(6, 3, 1, 1), axis(40, 3, 1, 1)}),
      make(2, 16, 64, 1, {axis(3, 2, 2, 0), axis(12, 2, 2, 0)}),
      make(1, 40, 72, 1, {axis(4, 2, 2, 0), axis(7, 2, 2, 0)}),
      make(2, 24, 24, 1, {axis(5, 2, 1, 0), axis(6, 4, 4, 0)}),
      make(2, 20, 16, 2, {axis(40, 16, 8, 4)}),
      make(1, 16, 64, 1, {axis(4, 3, 1, 1), axis(5, 3, 1, 0), axis(8, 5, 1, 2)}),
      make(3, 20, 24, 1, {axis(4, 3, 1, 1), axis(5, 1, 1, 0), axis(8, 3, 1, 1)}),
      in(make(1, 20, 36, 1, {axis(7, 4, 2, 1), axis(40, 4, 2, 1)}), DType::bf16),
      in(make(5, 24, 12, 1, {axis(6, 3, 1, 1), axis(9, 3, 1, 1)}), DType::f32, Precision::tf32, true),
      in(make(1, 40, 36, 1, {axis(5, 4, 2, 1), axis(10, 4, 2, 1)}), DType::bf16),
      in(make(1, 40, 36, 1, {axis(5, 2, 2, 0), axis(6, 2, 2, 0)}), DType::f32, Precision::tf32, true),
      in(make(1, 48, 40, 1, {axis(5, 3, 2, 0), axis(6, 3, 2, 0)}), DType::f16, Precision::strict, true),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 2;
  for (std::size_t i = 0; i < count; ++i) check(problems[i], 90);
  EXPECT_GE(streams, static_cast<int>(count));
  EXPECT_GE(stacks, 1);
  EXPECT_GE(images, static_cast<int>(count));
  EXPECT_GE(row_vectors, 1);
}

// Channels-last boxes by the copy engine, and vectors of channels from the sums: kernels with and without lines, gaps
// between the phases, groups, tails of cells and channels, chunks of 32 to 128 bytes, samples that share a block, one
// to three axes, two bytes, and in the end blocks of a cluster that share a sum.
TEST_F(EmulatedTile, ChannelsLast) {
  const auto last = [](Problem problem, DType dtype = DType::f32) {
    return in(std::move(problem), dtype, dtype == DType::f32 ? Precision::tf32 : Precision::strict, true);
  };
  const std::vector<Problem> problems = {
      last(make(2, 48, 40, 1, {axis(5, 3, 1, 1), axis(19, 3, 1, 1)})),
      last(make(1, 64, 32, 1, {axis(3, 3, 5, 1), axis(6, 2, 3, 0)})),
      last(make(2, 72, 48, 1, {axis(5, 2, 2, 0), axis(6, 2, 2, 0)}), DType::bf16),
      last(make(5, 24, 72, 1, {axis(4, 4, 2, 1), axis(5, 4, 2, 1)})),
      last(make(3, 64, 64, 2, {axis(40, 16, 8, 4)})),
      last(make(1, 16, 36, 1, {axis(3, 3, 1, 1), axis(5, 3, 1, 0), axis(8, 5, 1, 2)}), DType::f16),
      last(make(2, 40, 32, 1, {axis(4, 2, 2, 0), axis(3, 3, 2, 1), axis(6, 2, 2, 0)})),
      last(make(1, 1024, 64, 1, {axis(6, 4, 2, 1), axis(6, 4, 2, 1)})),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 2;
  for (std::size_t i = 0; i < count; ++i) {
    check(problems[i], 90);
    if (i == 0 || test::takes_all()) check(problems[i], 90, Direction::grad_input);
  }
  EXPECT_GE(tensors, static_cast<int>(count));
  EXPECT_GE(stacks, 1);
  EXPECT_GE(vectors, static_cast<int>(count));
}

// Weights out of the tensor by the copy engine: taps that some phases lack, one phase a block, tails of channels,
// groups, one to three axes, blocks that share a sum.
TEST_F(EmulatedTile, ForwardWithWeightsInBoxes) {
  const auto boxed = [](Problem problem, DType dtype = DType::bf16) {
    problem = in(std::move(problem), dtype, Precision::strict, true);
    problem.weight_strides = channels_last_strides(problem.weight_sizes());
    return problem;
  };
  const std::vector<Problem> problems = {
      boxed(make(2, 40, 96, 1, {axis(5, 3, 2, 1, 1), axis(9, 3, 2, 0)})),
      boxed(make(2, 40, 80, 1, {axis(5, 4, 2, 1), axis(9, 3, 2, 1)}), DType::f16),
      boxed(make(3, 72, 40, 1, {axis(5, 4, 2, 1), axis(9, 4, 2, 1)})),
      boxed(make(1, 64, 128, 2, {axis(5, 2, 2, 0), axis(9, 2, 3, 0)}), DType::f16),
      boxed(make(2, 64, 256, 1, {axis(6, 3, 1, 1), axis(40, 5, 1, 0)})),
      boxed(make(1, 24, 64, 1, {axis(3, 3, 1, 1), axis(4, 3, 2, 1), axis(5, 4, 2, 1)}), DType::f16),
      boxed(make(1, 2048, 64, 1, {axis(6, 4, 2, 1), axis(6, 4, 2, 1)})),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 1;
  for (std::size_t i = 0; i < count; ++i) {
    const auto in_boxes = [](const TileShape& shape) { return shape.weight_boxes; };
    check_streams(problems[i], in_boxes, [](const TileShape& shape) {
      return std::array<int, 4>{shape.store_vector, shape.weight_row_bytes(), shape.follows_residue(2) ? 1 : 0,
                                test::takes_all() && shape.stacks_tiles() ? 1 : 0};
    });
  }
}

// Gradients whose residues come in boxes of their own: as many taps in each, fewer in some, none in others; strides
// that differ between axes, samples that share a block, groups, two bytes, blocks of a cluster that share a sum.
TEST_F(EmulatedTile, GradientByPlaneBoxes) {
  const std::vector<Problem> problems = {
      make(2, 40, 48, 1, {axis(5, 3, 2, 1, 1), axis(7, 3, 2, 1, 1)}),
      make(2, 40, 64, 1, {axis(5, 2, 2, 0), axis(6, 2, 2, 0)}),
      in(make(2, 40, 64, 1, {axis(5, 4, 2, 1), axis(9, 4, 2, 1)}), DType::bf16, Precision::strict),
      make(5, 72, 32, 1, {axis(4, 4, 2, 1), axis(4, 4, 2, 1)}),
      make(1, 64, 64, 2, {axis(5, 5, 3, 2), axis(18, 4, 4, 0)}),
      make(1, 48, 32, 1, {axis(6, 2, 3, 0), axis(5, 3, 1, 1, 0, 2)}),
      make(2, 40, 64, 1, {axis(5, 3, 5, 1, 0, 2), axis(6, 3, 5, 1, 0, 2)}),
      make(2, 40, 64, 1, {axis(5, 2, 2, 0), axis(7, 5, 4, 1, 0, 3)}),
      make(2, 40, 64, 1, {axis(5, 3, 2, 1, 0, 2), axis(7, 3, 2, 1, 0, 2)}),
      make(1, 48, 32, 1, {axis(3, 2, 2, 0), axis(4, 3, 2, 1), axis(5, 2, 2, 0)}),
      in(make(1, 64, 512, 1, {axis(6, 3, 2, 0), axis(6, 3, 2, 0)}), DType::f16, Precision::strict),
      make(1, 64, 512, 1, {axis(8, 4, 2, 1), axis(8, 4, 2, 1)}),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 2;
  for (std::size_t i = 0; i < count; ++i) {
    const Problem& dense = problems[i];
    Problem problem = in(dense, dense.dtype, dense.dtype == DType::f32 ? Precision::tf32 : Precision::strict, true);
    problem.direction = Direction::grad_input;
    const auto all = [](const TileShape& shape) {
      EXPECT_TRUE(shape.plane_boxes());
      return true;
    };
    check_streams(problem, all, [](const TileShape& shape) {
      return std::array{shape.stays, shape.tile[0] > 1, shape.column_teams > 1};
    });
  }
}

// Gradients whose weights the copy engine brings from a channels-last tensor: rows as they are and in the order in
// which vectors are stored, rounded and not, taps of one residue and of lines, short rows of channels, tails of rows,
// groups, blocks of a cluster that share a sum.
TEST_F(EmulatedTile, WeightBoxes) {
  const std::vector<Problem> problems = {
      make(2, 48, 64, 1, {axis(5, 3, 2, 1, 1), axis(7, 4, 2, 1)}),
      in(make(2, 64, 64, 1, {axis(5, 4, 2, 1), axis(9, 4, 2, 1)}), DType::bf16, Precision::strict),
      make(1, 64, 512, 1, {axis(8, 4, 2, 1), axis(8, 4, 2, 1)}),
      make(2, 48, 32, 1, {axis(6, 3, 1, 1), axis(9, 3, 1, 1)}),
      make(2, 80, 16, 1, {axis(5, 2, 2, 0), axis(6, 2, 2, 0)}),
      make(1, 128, 64, 2, {axis(5, 5, 3, 2), axis(18, 4, 4, 0)}),
      make(1, 64, 32, 1, {axis(60, 1, 1, 0)}),
      make(1, 48, 32, 1, {axis(3, 2, 2, 0), axis(4, 3, 2, 1), axis(5, 2, 2, 0)}),
      in(make(1, 96, 48, 1, {axis(5, 4, 2, 0), axis(6, 4, 2, 0)}), DType::f16, Precision::strict),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 2;
  for (std::size_t i = 0; i < count; ++i) {
    const Problem& dense = problems[i];
    Problem problem = in(dense, dense.dtype, dense.dtype == DType::f32 ? Precision::tf32 : Precision::strict, true);
    problem.weight_strides = channels_last_strides(problem.weight_sizes());
    problem.direction = Direction::grad_input;
    const auto boxes = [](const TileShape& shape) { return shape.weight_boxes; };
    check_streams(problem, boxes, [](const TileShape& shape) {
      return std::array{shape.reordered_rows() > 1, test::takes_all() && shape.stays,
                        test::takes_all() && shape.column_teams > 1, test::takes_all() && shape.rows() > 64};
    });
  }
}

// Small images: blocks of one residue of an axis have cells of their own, one cell apart from those of others, whatever
// padding and output padding do to the ends of a row.
TEST_F(EmulatedTile, CellsOfOneResidue) {
  const std::vector<Problem> problems = {
      make(3, 24, 64, 1, {axis(4, 4, 2, 1), axis(8, 4, 2, 1)}),
      in(make(5, 32, 64, 1, {axis(4, 4, 2, 1), axis(4, 4, 2, 1)}), DType::bf16, Precision::strict, true),
      make(2, 24, 72, 1, {axis(5, 6, 3, 2, 1), axis(6, 6, 3, 1, 2)}),
      make(2, 20, 64, 1, {axis(33, 8, 4, 3, 1)}),
      in(make(2, 40, 128, 2, {axis(5, 4, 2, 0, 1), axis(9, 4, 2, 3)}), DType::f32, Precision::tf32, true),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 1;
  const auto wanted = [](const TileShape& shape) { return shape.follows_residue(2); };
  const auto kind = [](const TileShape& shape) { return std::array{shape.packed, shape.stays, shape.stacks_tiles()}; };
  for (std::size_t i = 0; i < count; ++i) check_streams(problems[i], wanted, kind);
}

// Fewer rows than a product has columns, with sums that are too long for CUDA cores.
TEST_F(EmulatedTile, FewRows) {
  const std::vector<Problem> problems = {
      make(1, 32, 1, 1, {axis(7, 9, 2, 4, 1), axis(40, 9, 2, 4, 1)}),
      in(make(1, 40, 1, 1, {axis(6, 9, 3, 4, 2), axis(16, 9, 3, 4, 2)}), DType::bf16, Precision::strict, true),
      in(make(2, 48, 1, 1, {axis(5, 9, 2, 4, 1), axis(16, 9, 2, 4, 1)}), DType::f16, Precision::strict),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 1;
  const auto wanted = [](const TileShape& shape) { return shape.row_unit <= 16; };
  const auto kind = [](const TileShape& shape) { return std::array{shape.packed, shape.stacks_tiles()}; };
  for (std::size_t i = 0; i < count; ++i) check_streams(problems[i], wanted, kind);
}

// Two bytes in rows: eight neighbours of a channel at once, where a kernel is no longer than its stride; samples and
// planes that share a block, tails of cells and channels, groups, distances along another axis.
TEST_F(EmulatedTile, VectorsOfCells) {
  const std::vector<Problem> problems = {
      in(make(2, 40, 24, 1, {axis(5, 2, 2, 0), axis(24, 2, 2, 0)}), DType::bf16),
      in(make(1, 72, 64, 2, {axis(9, 3, 1, 1), axis(16, 1, 1, 0)}), DType::f16, Precision::strict),
      in(make(3, 24, 16, 1, {axis(3, 2, 2, 0), axis(3, 3, 2, 1), axis(8, 2, 4, 0)}), DType::bf16),
      in(make(2, 32, 16, 1, {axis(3, 1, 1, 0), axis(16, 4, 4, 0)}), DType::f16, Precision::strict),
      in(make(1, 32, 16, 1, {axis(16, 8, 8, 0)}), DType::bf16),
      in(make(1, 64, 128, 1, {axis(72, 1, 1, 0)}), DType::bf16),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 1;
  const auto wanted = [](const TileShape& shape) { return shape.names_vectors(); };
  const auto kind = [](const TileShape& shape) {
    return std::array{shape.stays, shape.stacks_tiles(), shape.column_teams > 1};
  };
  for (std::size_t i = 0; i < count; ++i) check_streams(problems[i], wanted, kind);
}

// Outputs through shared memory as they lie in the tensor: rows that follow each other and rows of their own, phases
// side by side, rows that begin inside a cell, vectors of every length, tails of channels, bias, groups, three axes.
TEST_F(EmulatedTile, OutputImages) {
  const auto with_bias = [](Problem problem) {
    problem.bias = true;
    return problem;
  };
  Problem apart = in(make(2, 16, 16, 1, {axis(7, 2, 2, 0), axis(14, 2, 2, 0)}), DType::bf16);
  apart.output_strides[3] += 4;
  for (int d = 2; d >= 0; --d) apart.output_strides[d] += 4 * 14 * (d == 0 ? 16 : 1);
  const std::vector<Problem> problems = {
      with_bias(in(make(3, 16, 24, 1, {axis(7, 2, 2, 0), axis(14, 2, 2, 0)}), DType::bf16)),
      in(make(2, 16, 24, 1, {axis(5, 3, 2, 0), axis(12, 3, 2, 0)}), DType::f16, Precision::strict),
      with_bias(in(make(1, 24, 20, 1, {axis(5, 3, 1, 1), axis(22, 3, 1, 1)}), DType::f16, Precision::strict)),
      in(make(2, 16, 16, 1, {axis(6, 4, 2, 1), axis(8, 4, 2, 1)}), DType::bf16),
      apart,
      in(make(1, 32, 16, 2, {axis(3, 4, 4, 0), axis(18, 4, 4, 0)}), DType::bf16),
      with_bias(make(2, 16, 24, 1, {axis(6, 4, 2, 1), axis(10, 4, 2, 1)})),
      make(2, 16, 24, 1, {axis(5, 3, 2, 0), axis(12, 3, 2, 0)}),
      make(1, 16, 40, 1, {axis(30, 3, 3, 1)}),
      in(make(2, 16, 24, 1, {axis(3, 2, 2, 0), axis(4, 3, 2, 1), axis(6, 2, 2, 0)}), DType::bf16),
      in(make(2, 24, 24, 1, {axis(4, 3, 1, 1), axis(5, 3, 1, 0), axis(8, 3, 1, 1)}), DType::bf16),
  };
  int joined = 0;
  const std::size_t count = test::takes_all() ? problems.size() : 1;
  for (std::size_t i = 0; i < count; ++i) {
    const auto wanted = [](const TileShape& shape) { return shape.image_row > 0; };
    check_streams(problems[i], wanted, [&](const TileShape& shape) {
      joined += shape.joins_rows ? 1 : 0;
      return std::array{shape.joins_rows, shape.row_vector > 1, test::takes_all() && shape.stays,
                        test::takes_all() && shape.column_teams > 1};
    });
  }
  EXPECT_GE(joined, 1);
  EXPECT_EQ(test::EmulatedCase(problems[0], random).fails(propose_tile(problems[0], test::gpu(90)), 1), "");
}

// Two-byte outputs that leave as boxes: rows that end inside one and begin before the tensor does, tails of channels,
// bias, groups, gradients, columns without a cell.
TEST_F(EmulatedTile, OutputBoxes) {
  const auto with_bias = [](Problem problem) {
    problem.bias = true;
    return problem;
  };
  const auto gradient = [](Problem problem) {
    problem.direction = Direction::grad_input;
    return problem;
  };
  const std::vector<Problem> problems = {
      with_bias(in(make(2, 16, 20, 1, {axis(136, 1, 1, 0)}), DType::bf16)),
      gradient(in(make(2, 16, 16, 1, {axis(3, 3, 1, 1), axis(72, 4, 2, 1)}), DType::bf16)),
      in(make(1, 16, 24, 1, {axis(3, 3, 1, 0), axis(70, 3, 1, 0)}), DType::bf16),
      in(make(2, 32, 32, 2, {axis(72, 3, 1, 1)}), DType::bf16),
      in(make(3, 16, 24, 1, {axis(2, 2, 1, 0), axis(3, 3, 1, 1), axis(64, 1, 1, 0)}), DType::bf16),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 2;
  for (std::size_t i = 0; i < count; ++i) {
    const auto wanted = [](const TileShape& shape) { return shape.sends_boxes; };
    check_streams(problems[i], wanted, [&](const TileShape& shape) {
      return std::array{shape.cells() < shape.columns(), test::takes_all() && shape.column_teams > 1};
    });
  }
}

// More distances than a block counts, of which each residue lacks most: weights are not read in place then.
TEST_F(EmulatedTile, ManyDistances) {
  Problem problem = in(make(1, 16, 8, 1, {axis(12, 7, 2, 2, 0, 3), axis(1, 8, 1, 0)}), DType::bf16);
  problem.input_strides = channels_last_strides(problem.input_sizes());
  problem.output_strides = channels_last_strides(problem.output_sizes());
  EXPECT_EQ(test::EmulatedCase(problem, random).fails(propose_tile(problem, test::gpu(90))), "");
}

// Lines with so many products that halves of them take turns with one set of fragments: even and odd numbers of items
// in a chunk, tails of channels, both layouts, a gradient, two bytes.
TEST_F(EmulatedTile, HalvesThatTakeTurns) {
  Problem gradient = make(1, 64, 20, 1, {axis(3, 2, 1, 0), axis(9, 7, 1, 2), axis(32, 3, 1, 0)});
  gradient.direction = Direction::grad_input;
  const std::vector<Problem> problems = {
      make(1, 20, 64, 1, {axis(3, 2, 1, 0), axis(6, 5, 1, 0), axis(32, 3, 1, 0)}),
      in(make(1, 40, 64, 1, {axis(9, 5, 1, 2), axis(32, 2, 1, 0)}), DType::f32, Precision::tf32, true),
      gradient,
      in(make(1, 24, 64, 1, {axis(3, 2, 1, 0), axis(8, 7, 1, 1), axis(32, 3, 1, 0)}), DType::bf16),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 1;
  for (std::size_t i = 0; i < count; ++i) {
    check_streams(
        problems[i], [](const TileShape& shape) { return shape.takes_turns(); },
        [](const TileShape& shape) { return std::array{shape.stays, shape.column_teams > 1}; });
  }
}

// Few output channels: pairs of neighbouring outputs along any of the axes as phases of a cell, with and without lines;
// rows and columns of cells that end inside one, paddings that begin inside one, tails of channels, groups, bias, a
// dilation beside, both layouts, two bytes, strict arithmetic, one to three axes.
TEST_F(EmulatedTile, FoldedOutputs) {
  Problem with_bias = make(2, 16, 16, 1, {axis(9, 5, 1, 1), axis(20, 3, 1, 1)});
  with_bias.bias = true;
  const std::vector<Problem> problems = {
      with_bias,
      make(1, 20, 16, 1, {axis(5, 3, 1, 0), axis(6, 5, 1, 1), axis(17, 7, 1, 3)}),
      make(1, 24, 8, 1, {axis(11, 6, 1, 3), axis(22, 6, 1, 4)}),
      make(1, 32, 24, 2, {axis(9, 5, 1, 1), axis(21, 6, 1, 1)}),
      make(2, 16, 12, 1, {axis(90, 7, 1, 3)}),
      make(1, 24, 16, 1, {axis(7, 5, 1, 1), axis(16, 3, 1, 2, 0, 2)}),
      in(make(2, 24, 16, 1, {axis(9, 5, 1, 2), axis(22, 5, 1, 1)}), DType::bf16),
      in(make(1, 40, 16, 1, {axis(90, 7, 1, 2)}), DType::f16, Precision::strict),
      in(make(1, 24, 16, 1, {axis(9, 5, 1, 1), axis(20, 5, 1, 3)}), DType::f32, Precision::strict),
      in(make(2, 24, 16, 1, {axis(9, 5, 1, 1), axis(21, 3, 1, 1)}), DType::f32, Precision::tf32, true),
      in(make(1, 32, 16, 1, {axis(6, 5, 1, 1), axis(5, 3, 1, 1), axis(20, 3, 1, 1)}), DType::bf16, Precision::strict,
         true),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 1;
  const auto wanted = [](const TileShape& shape) { return shape.folds(); };
  for (std::size_t i = 0; i < count; ++i) {
    check_streams(problems[i], wanted, [](const TileShape& shape) {
      return std::array{shape.fold[0] > 1,
                        shape.fold[1] > 1,
                        shape.stacks_tiles(),
                        shape.keeps_weights,
                        test::takes_all() && shape.image_row > 0,
                        test::takes_all() && shape.column_teams > 1};
    });
  }
}

// Weights that a block brings once for all of its tiles, in place and packed. The planner takes that for many tiles;
// here a few will do.
TEST_F(EmulatedTile, KeptWeights) {
  std::vector<Problem> problems = {
      in(make(5, 40, 16, 1, {axis(4, 2, 2, 0), axis(24, 2, 2, 0)}), DType::bf16),
      make(3, 20, 24, 1, {axis(9, 3, 1, 1), axis(40, 3, 1, 1)}),
      in(make(3, 64, 72, 1, {axis(300, 1, 1, 0)}), DType::f16, Precision::strict),
      in(make(3, 24, 24, 1, {axis(9, 3, 1, 1), axis(40, 3, 1, 1)}), DType::f32, Precision::strict),
      in(make(3, 64, 64, 1, {axis(5, 3, 1, 1), axis(40, 3, 1, 1)}), DType::bf16, Precision::strict, true),
      make(3, 24, 16, 1, {axis(9, 3, 1, 1), axis(40, 4, 2, 1)}),
  };
  problems[4].weight_strides = channels_last_strides(problems[4].weight_sizes());  // in boxes
  problems.back().direction = Direction::grad_input;
  const std::size_t count = test::takes_all() ? problems.size() : 1;
  for (std::size_t i = 0; i < count; ++i) {
    SCOPED_TRACE(to_string(problems[i]));
    const bool gradient = problems[i].direction == Direction::grad_input;
    std::set<bool> found;  // packed or not
    for (TileCandidate candidate : tile_candidates(problems[i], test::gpu(90))) {
      TileShape& shape = candidate.shape;
      if (!shape.streams || shape.depth_blocks > 1 || !shape.even_planes()) continue;
      if (tile_block_rows(shape, problems[i]) > 1 || !found.insert(shape.packed).second) continue;
      shape.keeps_weights = shape.stays = true;
      shape.weight_ring = shape.block_chunks() * shape.stages_per_chunk();
      shape.most_blocks = 2;
      EXPECT_EQ(test::EmulatedCase(problems[i], random).fails(propose_tile(problems[i], test::gpu(90), candidate)), "");
    }
    EXPECT_EQ(found.size(), gradient ? 1u : 2u);
  }
}

// The same in strict fp32: factors in halves, sums of a few products added up; lines, one distance, taps that some
// phases lack; gradients with lines, with a stride, with split rows.
TEST_F(EmulatedTile, StrictStreams) {
  const auto strict = [](const Problem& problem) { return in(problem, DType::f32, Precision::strict); };
  const std::vector<Problem> problems = {
      strict(make(1, 20, 24, 1, {axis(6, 3, 1, 1), axis(40, 3, 1, 1)})),
      strict(make(2, 40, 64, 1, {axis(3, 2, 2, 0), axis(12, 2, 2, 0)})),
      strict(make(2, 24, 40, 1, {axis(9, 3, 2, 1, 1), axis(12, 3, 2, 1)})),
      strict(make(2, 20, 16, 2, {axis(40, 16, 8, 4)})),
      strict(make(1, 24, 20, 1, {axis(7, 4, 2, 1), axis(40, 4, 2, 1)})),
      strict(make(1, 16, 64, 1, {axis(4, 3, 1, 1), axis(5, 3, 1, 0), axis(8, 5, 1, 2)})),
  };
  const std::vector<Problem> gradients = {
      strict(make(1, 40, 36, 1, {axis(9, 4, 2, 1), axis(11, 4, 2, 1)})),
      strict(make(1, 24, 20, 1, {axis(6, 3, 1, 1), axis(40, 3, 1, 1)})),
      strict(make(1, 40, 12, 1, {axis(30, 8, 4, 2)})),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 1;
  for (std::size_t i = 0; i < count; ++i) check(problems[i], 90);
  const std::size_t backward = test::takes_all() ? gradients.size() : 1;
  for (std::size_t i = 0; i < backward; ++i) check(gradients[i], 90, Direction::grad_input);
  EXPECT_GE(streams, static_cast<int>(count + backward));
}

// Kernel equal to the stride, twice the stride, smaller, in between; dilations; many planes; groups; one to three axes.
TEST_F(EmulatedTile, GradientByWarps) {
  check_some(
      {
          make(1, 24, 20, 1, {axis(9, 4, 2, 1), axis(11, 4, 2, 1)}),
          make(2, 24, 20, 1, {axis(9, 3, 1, 1), axis(11, 3, 1, 0)}),
          make(3, 33, 17, 1, {axis(65, 16, 8, 4)}),
          make(1, 48, 20, 1, {axis(30, 3, 5, 1, 0, 2)}),
          make(1, 20, 12, 1, {axis(7, 50, 20, 3)}),
          make(1, 32, 16, 2, {axis(4, 3, 2, 1), axis(5, 3, 2, 1), axis(6, 3, 2, 1)}),
          in(make(1, 24, 36, 1, {axis(9, 4, 2, 1), axis(11, 4, 2, 1)}), DType::f32, Precision::strict),
          in(make(1, 24, 36, 1, {axis(9, 2, 2, 0), axis(11, 2, 2, 0)}), DType::f16, Precision::strict, true),
      },
      80);
}

TEST_F(EmulatedTile, GradientByWarpgroups) {
  check_some(
      {
          make(1, 70, 12, 1, {axis(9, 3, 2, 1, 1), axis(11, 3, 2, 0)}),
          make(1, 64, 520, 1, {axis(3, 2, 2, 0), axis(4, 2, 2, 0)}),  // blocks of a cluster share the sum
          make(2, 40, 20, 1, {axis(9, 2, 2, 0), axis(11, 2, 2, 0)}),
          make(1, 48, 20, 1, {axis(30, 5, 1, 4, 0, 3)}),
          make(2, 80, 48, 2, {axis(4, 2, 2, 0), axis(5, 2, 2, 0), axis(6, 2, 2, 0)}),
          make(1, 40, 3, 1, {axis(9, 4, 2, 1), axis(11, 4, 2, 1)}),
          make(1, 40, 12, 1, {axis(7, 3, 7, 0, 2)}),
          in(make(1, 40, 12, 1, {axis(5, 200, 40, 8)}), DType::bf16),  // weights that are packed from where they lie
          in(make(1, 40, 36, 1, {axis(9, 4, 2, 1), axis(11, 4, 2, 1)}), DType::bf16),
          in(make(1, 40, 36, 1, {axis(9, 2, 2, 0), axis(11, 2, 2, 0)}), DType::f32, Precision::tf32, true),
      },
      90);
}

// Taps of the width as depth: windows of two, four and eight (sixteen of two bytes), several of them in a row, rows
// that begin inside the padding or at places of their own, odd ones too, kernels that no window divides, channels that
// do not fill a chunk, groups, three axes.
TEST_F(EmulatedTile, GradientByWindows) {
  const std::vector<Problem> problems = {
      make(2, 40, 24, 1, {axis(5, 2, 2, 0), axis(10, 2, 2, 0)}),
      make(3, 40, 10, 1, {axis(33, 16, 8, 4)}),
      make(2, 40, 3, 1, {axis(5, 4, 2, 1), axis(10, 4, 2, 1)}),
      in(make(2, 40, 24, 1, {axis(5, 2, 2, 0), axis(10, 2, 2, 0)}), DType::bf16),
      make(2, 40, 1, 1, {axis(5, 9, 2, 4, 1), axis(10, 9, 2, 4, 1)}),
      make(1, 40, 1, 1, {axis(5, 9, 3, 4, 2), axis(12, 9, 3, 4, 2)}),
      make(1, 40, 24, 1, {axis(5, 4, 2, 1), axis(20, 4, 2, 1)}),
      in(make(2, 40, 1, 1, {axis(5, 9, 2, 4, 1), axis(12, 9, 2, 4, 1)}), DType::f16, Precision::strict),
      make(2, 40, 18, 1, {axis(5, 4, 4, 0), axis(7, 4, 4, 0)}),
      make(1, 40, 20, 1, {axis(150, 8, 4, 2)}),
      make(9, 100, 24, 1, {axis(1, 4, 1, 0), axis(1, 4, 1, 0)}),
      make(2, 80, 48, 2, {axis(4, 2, 2, 0), axis(5, 2, 2, 0), axis(6, 2, 2, 0)}),
      make(1, 40, 20, 1, {axis(37, 4, 2, 0)}),
      in(make(3, 40, 12, 1, {axis(33, 16, 8, 4)}), DType::bf16),
      in(make(2, 40, 20, 1, {axis(5, 4, 4, 0), axis(14, 4, 4, 0)}), DType::bf16),
      in(make(2, 40, 20, 1, {axis(150, 8, 4, 2)}), DType::bf16),
      make(1, 16, 16, 2, {axis(2, 3, 2, 1), axis(3, 5, 2, 2), axis(10, 7, 2, 3, 1)}),
  };
  const std::size_t count = test::takes_all() ? problems.size() : 2;
  for (std::size_t i = 0; i < count; ++i) {
    Problem problem = problems[i];
    problem.direction = Direction::grad_input;
    const auto all = [](const TileShape& shape) {
      EXPECT_GT(shape.window, 1);
      return true;
    };
    check_streams(problem, all, [](const TileShape& shape) {
      return std::array{shape.stays, shape.lead < 0, shape.column_teams > 1};
    });
  }
}

// Weights whose output channels are neighbours: packed, and in place a cell at a time, or channels that do not fill
// one.
TEST_F(EmulatedTile, GradientWithChannelsLastWeights) {
  const std::vector<Problem> problems = {
      in(make(1, 40, 36, 1, {axis(5, 4, 2, 1), axis(6, 4, 2, 1)}), DType::f32, Precision::tf32, true),
      in(make(1, 64, 520, 1, {axis(3, 3, 2, 0), axis(4, 3, 2, 0)}), DType::f16, Precision::strict, true),
      in(make(1, 40, 18, 2, {axis(9, 2, 2, 0)}), DType::f32, Precision::tf32, true),
  };
  int wide = 0;
  for (std::size_t i = 0; i < (test::takes_all() ? problems.size() : 1); ++i) {
    Problem problem = problems[i];
    problem.weight_strides = channels_last_strides(problem.weight_sizes());
    problem.direction = Direction::grad_input;
    for (const int arch : {80, 90}) {
      for (const TileCandidate& candidate : tile_candidates(problem, test::gpu(arch)))
        wide += candidate.shape.wide_weights ? 1 : 0;
      check(problem, arch, Direction::grad_input);
    }
  }
  EXPECT_GE(in_place, 1);
  EXPECT_GE(wide, 1);
}

// How weights lie in the tensor and how the pack kernel shares them: runs of either factor's channels, whole vectors or
// not, at any address; rows, lines or both in several blocks; kernels too long for shared memory.
TEST_F(EmulatedTile, PackedWeights) {
  struct Case {
    Problem problem;
    Direction direction;
    bool transposed;
  };
  const auto tf32 = [](const Problem& problem) { return in(problem, DType::f32, Precision::tf32); };
  const std::vector<Case> cases = {
      {tf32(make(1, 40, 24, 1, {axis(4, 3, 2, 1), axis(5, 3, 2, 1)})), Direction::grad_input, true},
      {tf32(make(1, 20, 12, 1, {axis(6, 4000, 90, 0)})), Direction::grad_input, false},
      {tf32(make(1, 20, 12, 1, {axis(6, 300, 7, 0)})), Direction::grad_input, false},
      {in(make(1, 24, 44, 1, {axis(4, 3, 1, 1), axis(5, 3, 1, 1)}), DType::bf16, Precision::strict), Direction::forward,
       false},
      {tf32(make(1, 20, 12, 1, {axis(6, 300, 7, 0)})), Direction::forward, true},
      {in(make(1, 48, 48, 2, {axis(4, 3, 2, 1), axis(5, 5, 2, 1)}), DType::f16, Precision::strict),
       Direction::grad_input, true},
      {in(make(1, 24, 44, 1, {axis(4, 3, 1, 1), axis(5, 3, 1, 1)}), DType::f16, Precision::strict),
       Direction::grad_input, false},
  };
  bool shares_rows = false;
  bool shares_lines = false;
  bool in_place_only = false;
  for (std::size_t i = 0; i < (test::takes_all() ? cases.size() : 3); ++i) {
    Problem problem = cases[i].problem;
    problem.direction = cases[i].direction;
    if (cases[i].transposed) {
      Sizes sizes = problem.weight_sizes();
      std::swap(sizes[0], sizes[1]);
      problem.weight_strides = contiguous_strides(sizes);
      std::swap(problem.weight_strides[0], problem.weight_strides[1]);
    }
    SCOPED_TRACE(to_string(problem) + (cases[i].transposed ? ", transposed" : ""));
    const test::EmulatedCase data(problem, random);
    const std::vector<TileCandidate> candidates = tile_candidates(problem, test::gpu(90));
    const auto packed = std::ranges::find_if(
        candidates, [](const TileCandidate& c) { return c.shape.packed && !c.shape.wide_weights; });
    ASSERT_NE(packed, candidates.end());
    const PackCut cut = pack_cut(packed->shape);
    shares_rows = shares_rows || (cut.slabs > 0 && cut.row_parts > 1);
    shares_lines = shares_lines || (cut.slabs > 0 && cut.line_parts > 1);
    in_place_only = in_place_only || cut.slabs == 0;
    const Proposal proposal = propose_tile(problem, test::gpu(90), *packed);
    EXPECT_EQ(data.fails(proposal), "");
    EXPECT_EQ(data.fails(proposal, 1), "");
  }
  EXPECT_TRUE(shares_rows);
  EXPECT_TRUE(shares_lines);
  EXPECT_TRUE(in_place_only);
}

// Data at an odd address gets a cut of its own, and weights are packed one by one.
TEST_F(EmulatedTile, GradientAtAnOddAddress) {
  for (const bool channels_last : {true, false}) {
    Problem problem =
        in(make(1, 40, 32, 1, {axis(5, 2, 2, 0), axis(6, 2, 2, 0)}), DType::f32, Precision::tf32, channels_last);
    problem.direction = Direction::grad_input;
    const test::EmulatedCase data(problem, random);
    EXPECT_EQ(data.fails(propose_tile(problem, test::gpu(90)), 1), "");
  }
}

}  // namespace
}  // namespace tconv::cuda
