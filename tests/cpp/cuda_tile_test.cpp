// The tile family's planner: pure, so that all of it is tested without a GPU. What the kernels compute is tested on
// one, in tests/python/test_cuda.py.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "cuda/tile.h"
#include "cuda/tile_cost.h"
#include "tconv/phases.h"

namespace tconv::cuda {
namespace {

DeviceProperties h200() {
  DeviceProperties device;
  device.device = {Backend::cuda, 0};
  device.arch = 90;
  device.multiprocessors = 132;
  device.shared_bytes_per_block = 227 * 1024;
  device.shared_bytes_per_multiprocessor = 228 * 1024;
  device.bandwidth = 4.27e12;
  device.fp32_rate = 49e12;
  device.tf32_rate = 419e12;
  return device;
}

DeviceProperties rtx4090() {
  DeviceProperties device = h200();
  device.arch = 89;
  device.multiprocessors = 128;
  device.shared_bytes_per_block = 99 * 1024;
  device.shared_bytes_per_multiprocessor = 100 * 1024;
  return device;
}

Problem random_problem(std::mt19937& rng) {
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); };
  Problem problem;
  problem.precision = draw(0, 1) == 0 ? Precision::tf32 : Precision::strict;
  problem.dtype = draw(0, 2) == 0 ? DType::bf16 : DType::f32;
  problem.rank = draw(1, 3);
  problem.batch = draw(1, 9);
  problem.groups = draw(1, 2);
  problem.in_channels = problem.groups * draw(16, 80);
  problem.out_channels = problem.groups * draw(5, 150);
  for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a) {
    Axis& axis = problem.axes[a];
    do {
      axis = {.input = draw(1, 40), .kernel = draw(1, 6), .stride = draw(1, 6), .dilation = draw(1, 3)};
      axis.pad_begin = draw(0, 3);
      axis.pad_end = draw(0, 3);
    } while (axis.output() < 1);
  }
  set_contiguous(problem);
  return problem;
}

TEST(TilePlanner, CutsFitTheDeviceAndCoverTheProblem) {
  std::mt19937 rng(7);
  for (const DeviceProperties& device : {h200(), rtx4090()}) {
    int covered = 0;
    for (int i = 0; i < 200; ++i) {
      Problem problem = random_problem(rng);
      if (i % 2 == 0) problem.direction = Direction::grad_input;
      if (!why_no_tile(problem, device).empty()) continue;
      const std::vector<TileCandidate> candidates = tile_candidates(problem, device);
      // A patch may be too large for shared memory (many axes, large dilations); then the family declines.
      ASSERT_EQ(propose_tile(problem, device).kernel == nullptr, candidates.empty()) << to_string(problem);
      covered += candidates.empty() ? 0 : 1;
      double last = 0;
      for (std::size_t j = 0; j < candidates.size(); ++j) {
        const TileCandidate& candidate = candidates[j];
        const TileShape& shape = candidate.shape;
        // Best first, of the kind of block that comes first and then of the other.
        if (j > 0 && shape.streams != candidates[j - 1].shape.streams) last = 0;
        ASSERT_GE(candidate.expected_seconds, last);
        last = candidate.expected_seconds;
        ASSERT_LE(static_cast<std::size_t>(shape.shared_bytes()), device.shared_bytes_per_block);
        if (shape.streams) {
          const std::size_t shared = static_cast<std::size_t>(shape.shared_bytes()) + 1024;
          ASSERT_LE(shape.blocks_per_multiprocessor * shared, device.shared_bytes_per_multiprocessor);
          ASSERT_LE(64 * shape.threads() * shape.blocks_per_multiprocessor, 65536);
          ASSERT_EQ(shape.row_unit % 8, 0);
          ASSERT_TRUE(shape.stays || candidate.blocks <= shape.most_blocks);
          ASSERT_LE(shape.row_unit, 256);
        } else {
          ASSERT_LE(shape.threads() * tile_registers(shape), 65536);
        }
        ASSERT_LE(shape.needed_columns(), shape.columns());
        ASSERT_LE(shape.all_slots() * shape.block_channels, shape.rows());
        ASSERT_EQ(shape.block_channels % shape.turn_channels(), 0);
        ASSERT_EQ(shape.chunks() % shape.depth_blocks, 0);
        ASSERT_EQ(candidate.blocks, tile_blocks(shape, problem));
        ASSERT_EQ(candidate.blocks % shape.depth_blocks, 0);
        if (shape.warpgroup) {
          ASSERT_EQ(device.arch, 90);
          ASSERT_TRUE(shape.streams || 8 * shape.column_tiles <= 256);
        }
      }
    }
    EXPECT_GT(covered, 150);
  }
}

// Residues, slots and distances, read back from the shape, are the taps of the phase decomposition and no others.
TEST(TilePlanner, RowsAndDistancesAreThePhases) {
  std::mt19937 rng(11);
  for (int i = 0; i < 200; ++i) {
    const Problem problem = random_problem(rng);
    if (!why_no_tile(problem, h200()).empty()) continue;
    for (const TileCandidate& candidate : tile_candidates(problem, h200())) {
      const TileShape& shape = candidate.shape;
      for (int a = 0; a < kSpatialAxes; ++a) {
        const Axis& axis = problem.axes[a];
        std::set<std::int64_t> taps;
        for (std::int64_t first = 0; first < axis.stride; first += shape.span[a]) {
          for (int slot = 0; slot < shape.slots[a]; ++slot) {
            const int residue = static_cast<int>(first) + shape.residue_of(a, slot);
            EXPECT_EQ(shape.slot_of(a, shape.residue_of(a, slot)), slot);
            for (int back = 0; back < shape.backs[a]; ++back) {
              if (!shape.has_tap(a, residue, back)) continue;
              const std::int64_t reach = residue + axis.stride * back * shape.back_step[a];
              const std::int64_t tap = reach / axis.dilation;
              EXPECT_EQ(site_of(axis, tap), (TapSite{residue, -std::int64_t{back} * shape.back_step[a]}));
              EXPECT_TRUE(taps.insert(tap).second);
            }
          }
        }
        // Of a window, its first tap stands for all.
        const std::int64_t together = a == 2 ? shape.window : 1;
        EXPECT_EQ(static_cast<std::int64_t>(taps.size()) * together, axis.kernel) << to_string(problem);
      }
    }
  }
}

// The planes of a gradient's patch and the taps that read them are the phase decomposition, too: each tap once.
TEST(TilePlanner, PlanesAndTapsAreThePhases) {
  std::mt19937 rng(12);
  int looked = 0;
  for (int i = 0; i < 200; ++i) {
    Problem problem = random_problem(rng);
    problem.direction = Direction::grad_input;
    if (!why_no_tile(problem, h200()).empty()) continue;
    for (const TileCandidate& candidate : tile_candidates(problem, h200())) {
      const TileShape& shape = candidate.shape;
      ++looked;
      for (int a = 0; a < kSpatialAxes; ++a) {
        const Axis& axis = problem.axes[a];
        std::set<std::int64_t> taps;
        for (int group = 0; group < shape.plane_groups(a); ++group) {
          for (int plane = 0; plane < shape.planes[a]; ++plane) {
            const int residue = shape.group_residue(a, group) + shape.plane_residue(a, plane);
            for (int back = 0; back < shape.backs[a]; ++back) {
              if (!shape.has_tap(a, residue, back)) continue;
              const std::int64_t tap = (residue + axis.stride * back * shape.back_step[a]) / axis.dilation;
              EXPECT_EQ(site_of(axis, tap), (TapSite{residue, -std::int64_t{back} * shape.back_step[a]}));
              EXPECT_TRUE(taps.insert(tap).second);
            }
          }
        }
        // Of a window, its first tap stands for all.
        const std::int64_t together = a == 2 ? shape.window : 1;
        EXPECT_EQ(static_cast<std::int64_t>(taps.size()) * together, axis.kernel) << to_string(problem);
      }
    }
  }
  EXPECT_GT(looked, 1000);
}

// What sets the order of a sum must not depend on the batch. Teams that split a sum take a chunk's products in turn,
// counted from the chunk's first, so that stages do not matter.
TEST(TilePlanner, TheOrderOfSumsIsTheSameInEveryBatch) {
  std::mt19937 rng(13);
  for (int i = 0; i < 300; ++i) {
    Problem problem = random_problem(rng);
    if (i % 3 == 0) problem.direction = Direction::grad_input;
    if (!why_no_tile(problem, h200()).empty()) continue;
    std::set<std::array<int, 7>> orders;
    std::set<bool> accepted;
    for (const int batch : {1, 2, 7, 64, 500}) {
      problem.batch = batch;
      set_contiguous(problem);
      const std::vector<TileCandidate> candidates = tile_candidates(problem, h200());
      accepted.insert(!candidates.empty());
      for (const TileCandidate& candidate : candidates) {
        const TileShape& shape = candidate.shape;
        if (shape.streams != candidates.front().shape.streams) continue;  // never chosen unless asked for
        orders.insert({shape.streams ? 1 : 0, shape.slabs, shape.depth_teams, shape.depth_blocks,
                       shape.warpgroup ? 1 : 0, shape.all_planes(), shape.all_plane_groups()});
      }
    }
    EXPECT_EQ(accepted.size(), 1U) << to_string(problem);
    EXPECT_LE(orders.size(), 1U) << to_string(problem);
  }
}

// Families sum in different orders, so that the choice between them must not depend on the batch either.
TEST(CudaPlanner, TheFamilyIsTheSameInEveryBatch) {
  std::mt19937 rng(17);
  for (int i = 0; i < 60; ++i) {
    Problem problem = random_problem(rng);
    if (i % 2 == 0) {  // few channels
      problem.in_channels = problem.groups * (1 + i % 9);
      problem.out_channels = problem.groups * (1 + i % 7);
    }
    std::set<std::string> chosen;
    for (const int batch : {1, 2, 16, 70}) {
      problem.batch = batch;
      set_contiguous(problem);
      chosen.insert(make_plan(problem, h200(), families(), {}).family);
    }
    EXPECT_EQ(chosen.size(), 1U) << to_string(problem);
  }
}

TEST(TilePlanner, PackedCopiesStayInBounds) {
  Problem problem;
  problem.precision = Precision::tf32;
  problem.in_channels = problem.out_channels = 512;
  problem.axes[2] = {.input = 2, .kernel = 1, .stride = 60000};
  set_contiguous(problem);
  for (const TileCandidate& candidate : tile_candidates(problem, h200())) {
    if (!candidate.shape.packed) continue;
    EXPECT_LT(candidate.shape.packed_bytes() * tile_block_rows(candidate.shape, problem), 80LL << 20);
  }
  DeviceProperties old_compiler = h200();
  old_compiler.has_wgmma = false;
  problem.axes[2] = {.input = 64, .kernel = 4, .stride = 2, .pad_begin = 1, .pad_end = 1};
  set_contiguous(problem);
  EXPECT_TRUE(tile_candidates(problem, h200()).front().shape.warpgroup);
  EXPECT_FALSE(tile_candidates(problem, old_compiler).front().shape.warpgroup);
}

// The copy engine brings channels-last boxes where it can find them: not for launches that are to be written to a file,
// not at odd distances, and a group's chunks end where the group does.
TEST(TilePlanner, CopiesChannelsLastBoxes) {
  const auto copies = [](const Problem& problem, const DeviceProperties& device) {
    for (const TileCandidate& candidate : tile_candidates(problem, device)) {
      if (candidate.shape.tensor_copies) return true;
    }
    return false;
  };
  for (const Direction direction : {Direction::forward, Direction::grad_input}) {
    Problem problem;
    problem.direction = direction;
    problem.precision = Precision::tf32;
    problem.batch = 2;
    problem.in_channels = problem.out_channels = 64;
    for (const int a : {1, 2}) problem.axes[a] = {.input = 24, .kernel = 2, .stride = 2};
    set_contiguous(problem);
    EXPECT_FALSE(copies(problem, h200()));
    problem.input_strides = channels_last_strides(problem.input_sizes());
    problem.output_strides = channels_last_strides(problem.output_sizes());
    EXPECT_TRUE(copies(problem, h200()));
    DeviceProperties written = h200();
    written.any_batch = true;
    EXPECT_FALSE(copies(problem, written));
    Problem odd = problem;
    for (Strides* strides : {&odd.input_strides, &odd.output_strides}) ++(*strides)[3];
    EXPECT_FALSE(copies(odd, h200()));
    problem.groups = 2;
    EXPECT_TRUE(copies(problem, h200()));
    problem.in_channels = problem.out_channels = 72;
    problem.input_strides = channels_last_strides(problem.input_sizes());
    problem.output_strides = channels_last_strides(problem.output_sizes());
    EXPECT_FALSE(copies(problem, h200()));
  }
}

// A block's offsets are counted from its own sample, however far samples are apart.
TEST(TilePlanner, TakesSamplesFarApart) {
  Problem problem;
  problem.batch = 3;
  problem.in_channels = problem.out_channels = 64;
  problem.axes[2] = {.input = 100, .kernel = 4, .stride = 2, .pad_begin = 1, .pad_end = 1};
  set_contiguous(problem);
  problem.input_strides[0] = std::int64_t{1} << 40;
  const std::vector<TileCandidate> candidates = tile_candidates(problem, h200());
  ASSERT_FALSE(candidates.empty());
  for (const TileCandidate& candidate : candidates) EXPECT_EQ(candidate.shape.tile[0], 1);
}

// Beside another gradient, fewer blocks that add up in the same order; where there are many anyway, the same ones.
TEST(TilePlanner, LeavesRoomBesideAnotherGradient) {
  Problem problem;
  problem.direction = Direction::grad_input;
  problem.precision = Precision::tf32;
  problem.batch = 64;
  problem.in_channels = 512;
  problem.out_channels = 256;
  for (int a : {1, 2})
    problem.axes[a] = {.input = 4, .kernel = 4, .stride = 2, .dilation = 1, .pad_begin = 1, .pad_end = 1};
  set_contiguous(problem);
  const auto plan_of = [&](bool beside) {
    problem.beside = beside;
    const Proposal proposal = propose_tile(problem, h200());
    return std::pair(proposal.kernel->describe(), proposal.expected_seconds);
  };
  const auto [alone, seconds] = plan_of(false);
  const auto [beside, longer] = plan_of(true);
  EXPECT_NE(alone.find("128 blocks"), std::string::npos) << alone;
  EXPECT_NE(beside.find("64 blocks"), std::string::npos) << beside;
  EXPECT_LE(longer, 1.2 * seconds);
  problem.axes[1].input = problem.axes[2].input = 32;
  set_contiguous(problem);
  EXPECT_EQ(plan_of(false), plan_of(true));
}

TEST(TilePlanner, DeclinesWithAReason) {
  Problem problem;
  problem.in_channels = problem.out_channels = 64;
  problem.axes[2] = {.input = 20, .kernel = 4, .stride = 2, .pad_begin = 1, .pad_end = 1};
  set_contiguous(problem);
  EXPECT_EQ(why_no_tile(problem, h200()), "");

  Problem changed = problem;
  changed.dtype = DType::f64;
  EXPECT_NE(why_no_tile(changed, h200()).find("float64"), std::string::npos);
  changed = problem;
  changed.direction = Direction::grad_weight;
  EXPECT_NE(why_no_tile(changed, h200()).find("forward"), std::string::npos);
  changed = problem;
  changed.groups = 64;
  EXPECT_NE(why_no_tile(changed, h200()).find("few input channels in a group (1)"), std::string::npos);
  changed = problem;
  changed.out_channels = 2;
  EXPECT_NE(why_no_tile(changed, h200()).find("few rows"), std::string::npos);
  changed = problem;
  changed.axes[1] = {.input = 1, .kernel = 2, .dilation = std::int64_t{1} << 62, .pad_begin = std::int64_t{1} << 61};
  EXPECT_NE(why_no_tile(changed, h200()).find("beyond 32 bits"), std::string::npos);
  changed = problem;
  changed.input_strides[0] = -1;
  EXPECT_NE(why_no_tile(changed, h200()).find("negative"), std::string::npos);
  DeviceProperties old = h200();
  old.arch = 75;
  EXPECT_NE(why_no_tile(problem, old).find("sm_80"), std::string::npos);
}

}  // namespace
}  // namespace tconv::cuda
