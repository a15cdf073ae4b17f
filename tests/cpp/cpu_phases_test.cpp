// The "phases" family, forced, against the reference: random problems, every instruction set of the machine, threads.
#include <gtest/gtest.h>

#include "cases.h"
#include "cpu/bf16_products.h"
#include "cpu/families.h"
#include "cpu_family_checks.h"
#include "cpu_support.h"

namespace tconv::test {
namespace {

DType arithmetic_of(const Problem& problem) {
  if (problem.dtype == DType::f64 || problem.direction == Direction::grad_bias) return DType::f64;
  return DType::f32;
}

void check(const Problem& problem, Tensors& tensors) {
  tensors.result(problem).poison();
  run_with_workspace(*plan(problem, {}, "phases"), tensors.buffers());
  // In double the reference's own sum is no more exact than the one under test.
  const DType arithmetic = arithmetic_of(problem);
  expect_close(problem, tensors, arithmetic, (terms_of(problem) + 2) * (arithmetic == DType::f64 ? 2 : 1));
}

void check_new(const Problem& problem, Random& random) {
  Tensors tensors(problem, random);
  compute_exact(problem, tensors);
  check(problem, tensors);
}

Problem layer(Direction direction, DType dtype, std::int64_t batch, std::array<std::int64_t, 3> channels_and_groups,
              const std::array<Axis, 3>& axes) {
  Problem problem;
  problem.rank = 3;
  problem.direction = direction;
  problem.dtype = dtype;
  problem.batch = batch;
  problem.in_channels = channels_and_groups[0];
  problem.out_channels = channels_and_groups[1];
  problem.groups = channels_and_groups[2];
  problem.axes = axes;
  problem.bias = direction == Direction::forward;
  set_contiguous(problem);
  return problem;
}

// Problems large enough to need several tiles, blocks of channels and steps of the sum; tails everywhere.
std::vector<Problem> large_problems(Direction direction, DType dtype) {
  const Axis one{};
  return {
      layer(direction, dtype, 1, {43, 37, 1}, {one, {19, 3, 1, 1, 0, 0, 0}, {67, 5, 1, 1, 1, 1, 0}}),
      layer(direction, dtype, 5, {131, 35, 1}, {one, {5, 4, 2, 1, 1, 1, 0}, {5, 4, 2, 1, 1, 1, 0}}),
      layer(direction, dtype, 2, {33, 17, 1},
            {Axis{9, 3, 2, 2, 1, 1, 1}, {7, 2, 3, 1, 0, 1, 0}, {11, 3, 2, 1, 1, 1, 1}}),
      layer(direction, dtype, 1, {9, 7, 1}, {one, one, {9, 256, 64, 1, 0, 192, 0}}),
      layer(direction, dtype, 2, {24, 24, 24}, {one, one, {3001, 12, 2, 1, 5, 5, 0}}),
      layer(direction, dtype, 3, {40, 24, 4}, {one, {13, 3, 2, 2, 1, 2, 0}, {65, 5, 3, 1, 2, 2, 0}}),
      layer(direction, dtype, 19, {100, 49, 1}, {one, {1, 4, 1, 1, 0, 0, 0}, {1, 4, 1, 1, 0, 0, 0}}),
      layer(direction, dtype, 1, {200, 150, 1}, {one, {2, 4, 2, 1, 1, 1, 0}, {2, 4, 2, 1, 1, 1, 0}}),
      layer(direction, dtype, 1, {3, 2, 1}, {one, {4, 3, 5, 2, 1, 1, 0}, {2100, 3, 5, 2, 1, 1, 4}}),
      layer(direction, dtype, 1, {600, 6, 1}, {one, one, {6, 3, 1, 1, 0, 0, 0}}),
      layer(direction, dtype, 2, {40, 3, 1}, {one, {41, 9, 2, 1, 4, 4, 1}, {57, 9, 2, 1, 4, 4, 1}}),
      layer(direction, dtype, 2, {30, 40, 1}, {one, {17, 3, 5, 2, 1, 1, 0}, {37, 3, 5, 2, 1, 1, 3}}),
      layer(direction, dtype, 1, {120, 70, 1}, {one, {23, 2, 2, 1, 0, 0, 0}, {29, 2, 2, 1, 0, 0, 0}}),
      // kernel == stride with many channels: patches.
      layer(direction, dtype, 2, {200, 20, 1}, {one, {9, 2, 2, 1, 0, 0, 1}, {13, 2, 2, 1, 0, 0, 0}}),
      layer(direction, dtype, 1, {240, 38, 2},
            {Axis{3, 2, 2, 1, 0, 0, 0}, {5, 1, 1, 1, 0, 0, 0}, {46, 3, 3, 1, 0, 0, 2}}),
      // Few output channels, read from windows.
      layer(direction, dtype, 7, {56, 1, 1}, {one, {10, 9, 2, 1, 4, 4, 1}, {10, 9, 2, 1, 4, 4, 1}}),
      layer(direction, dtype, 2, {84, 10, 2},
            {Axis{3, 2, 1, 3, 0, 1, 0}, {6, 5, 3, 1, 2, 3, 0}, {3, 4, 3, 1, 1, 1, 0}}),
      layer(direction, dtype, 1, {48, 2, 1}, {one, {70, 4, 3, 2, 5, 5, 0}, {130, 5, 1, 1, 6, 2, 0}}),
      // Bands of rows, segments of a row, outputs that no tap reaches.
      layer(direction, dtype, 1, {27, 1, 1}, {one, {130, 3, 2, 1, 1, 0, 1}, {9, 6, 4, 1, 0, 3, 0}}),
      layer(direction, dtype, 1, {64, 4, 2}, {one, {2, 1, 1, 1, 0, 0, 0}, {2100, 7, 3, 3, 8, 1, 0}}),
  };
}

constexpr std::array kDirections = {Direction::forward, Direction::grad_input, Direction::grad_weight,
                                    Direction::grad_bias};

TEST(Phases, RandomSmallProblems) {
  Random random(20240607);
  for (int i = 0; i < test::cases(2500) && !::testing::Test::HasFailure(); ++i)
    check_new(random_problem(random), random);
}

TEST(Phases, LargeProblems) {
  Random random(7);
  for (const Direction direction : kDirections) {
    for (const Problem& problem : test::shortened(large_problems(direction, DType::f32), 2)) check_new(problem, random);
  }
}

TEST(Phases, LargeProblemsOfOtherTypesAndLayouts) {
  Random random(8);
  for (const Direction direction : kDirections) {
    for (const DType dtype : {DType::f64, DType::f16, DType::bf16}) {
      const std::vector<Problem> problems = large_problems(direction, dtype);
      Problem problem = problems[uniform(random, 0, static_cast<std::int64_t>(problems.size()) - 1)];
      problem.input_strides = channels_last_strides(problem.input_sizes());
      problem.output_strides = channels_last_strides(problem.output_sizes());
      check_new(problem, random);
    }
  }
}

// Channels side by side: cells are read in place, and written in place too where channels fill whole vectors.
std::vector<Problem> channels_last_problems(Direction direction) {
  const Axis one{};
  std::vector<Problem> problems = large_problems(direction, DType::f32);
  problems.push_back(
      layer(direction, DType::f32, 2, {48, 64, 1}, {one, {9, 3, 1, 1, 0, 0, 0}, {23, 5, 1, 1, 2, 2, 0}}));
  problems.push_back(
      layer(direction, DType::f32, 3, {144, 32, 1}, {one, {3, 4, 2, 1, 1, 1, 0}, {2, 4, 2, 1, 1, 1, 0}}));
  problems.push_back(layer(direction, DType::f32, 2, {16, 16, 1},
                           {Axis{3, 3, 2, 2, 1, 1, 1}, {5, 2, 3, 1, 0, 1, 0}, {7, 3, 2, 1, 1, 1, 1}}));
  problems.push_back(layer(direction, DType::f32, 1, {64, 96, 2}, {one, {6, 3, 5, 2, 1, 1, 0}, {7, 2, 2, 1, 0, 0, 0}}));
  problems.push_back(
      layer(direction, DType::f32, 2, {32, 32, 4}, {one, {9, 3, 2, 1, 1, 1, 1}, {13, 5, 2, 1, 2, 2, 0}}));
  // kernel == stride: tiles that are alike, and some that are not; gradients of weights in place.
  problems.push_back(
      layer(direction, DType::f32, 3, {64, 48, 1}, {one, {21, 2, 2, 1, 0, 0, 1}, {37, 2, 2, 1, 0, 0, 0}}));
  problems.push_back(layer(direction, DType::f64, 1, {32, 16, 1},
                           {Axis{5, 2, 2, 1, 0, 0, 0}, {9, 1, 1, 1, 0, 0, 0}, {29, 3, 3, 1, 1, 0, 2}}));
  // Weights that outweigh the tensors, for several tiles.
  problems.push_back(
      layer(direction, DType::f32, 1, {128, 32, 1}, {one, {40, 4, 2, 1, 1, 1, 0}, {24, 4, 2, 1, 1, 1, 0}}));
  // Target channels that are rows, cells columns: one vector of them, or two of which much would be idle.
  problems.push_back(
      layer(direction, DType::f32, 2, {16, 16, 1}, {one, {5, 3, 2, 1, 1, 1, 1}, {41, 3, 2, 1, 1, 1, 1}}));
  problems.push_back(
      layer(direction, DType::f64, 1, {20, 21, 1}, {one, {7, 3, 1, 1, 1, 1, 0}, {35, 4, 3, 2, 2, 1, 0}}));
  problems.push_back(
      layer(direction, DType::f32, 1, {70, 18, 1}, {one, {3, 4, 2, 1, 1, 1, 0}, {67, 4, 2, 1, 1, 1, 0}}));
  // Small groups, interleaved by two and by four.
  problems.push_back(layer(direction, DType::f64, 3, {96, 12, 6}, {one, {4, 3, 2, 2, 1, 1, 1}, {3, 4, 1, 1, 1, 1, 0}}));
  problems.push_back(layer(direction, DType::f32, 2, {12, 30, 6}, {one, {5, 3, 2, 1, 1, 1, 1}, {9, 4, 3, 2, 1, 1, 0}}));
  problems.push_back(layer(direction, DType::bf16, 1, {8, 20, 4}, {one, {7, 2, 3, 1, 0, 0, 0}, {9, 3, 1, 1, 1, 1, 0}}));
  problems.push_back(layer(direction, DType::f32, 2, {64, 72, 8}, {one, {5, 3, 1, 1, 1, 1, 0}, {9, 2, 2, 1, 0, 0, 0}}));
  for (Problem& problem : problems) {
    problem.input_strides = channels_last_strides(problem.input_sizes());
    problem.output_strides = channels_last_strides(problem.output_sizes());
    problem.weight_strides = channels_last_strides(problem.weight_sizes());
  }
  return problems;
}

TEST(Phases, ChannelsLast) {
  Random random(12);
  const std::size_t step = test::kSanitized ? 4 : 2;
  for (const Direction direction : kDirections) {
    for (const Problem& problem : test::shortened(channels_last_problems(direction), step)) {
      check_new(problem, random);
      expect_threads_change_nothing(problem, "phases", random);
    }
  }
}

// Gradients of kernel == stride and of few output channels in double and where tensors have gaps; the latter also with
// channels side by side, stored in place.
// Stride, kernel and padding along the width have a common divisor: outputs of a row are seen as one.
TEST(Phases, RowsAsChannels) {
  Random random(31);
  int seen = 0;
  constexpr std::array kDirections = {Direction::forward, Direction::grad_input, Direction::grad_weight};
  for (int i = 0; i < test::cases(150) && !HasFailure(); ++i) {
    const std::int64_t times = uniform(random, 2, 5);
    Axis width{uniform(random, 1, 20), times * uniform(random, 1, 4), times * uniform(random, 1, 3)};
    width.pad_begin = times * uniform(random, 0, 2);
    width.pad_end = times * uniform(random, 0, 2);
    if (chance(random, 0.3)) width.output_padding = uniform(random, 0, width.stride - 1);
    Axis height{uniform(random, 1, 9), uniform(random, 1, 5), uniform(random, 1, 3)};
    height.pad_begin = uniform(random, 0, 2);
    if (width.output() <= 0 || height.output() <= 0) continue;
    Problem problem =
        layer(kDirections[uniform(random, 0, 2)], static_cast<DType>(uniform(random, 0, 3)), uniform(random, 1, 3),
              {uniform(random, 1, 40), uniform(random, 1, 24), 1}, {Axis{}, height, width});
    problem.input_strides = channels_last_strides(problem.input_sizes());
    problem.output_strides = channels_last_strides(problem.output_sizes());
    problem.weight_strides = channels_last_strides(problem.weight_sizes());
    seen += plan(problem, {}, "phases")->kernel->describe().starts_with("rows as channels") ? 1 : 0;
    check_new(problem, random);
  }
  EXPECT_GE(seen, test::cases(150) / 4);
}

TEST(Phases, PatchesAndWindowsInEveryLayout) {
  Random random(13);
  const auto with_gaps = [](Problem problem) {
    const auto strides_of = [](Sizes sizes) {
      for (std::size_t d = 1; d < sizes.size(); ++d) sizes[d] += 3;
      return contiguous_strides(sizes);
    };
    problem.input_strides = strides_of(problem.input_sizes());
    problem.output_strides = strides_of(problem.output_sizes());
    Sizes weights = problem.weight_sizes();
    weights[1] += 1;
    problem.weight_strides = contiguous_strides(weights);
    return problem;
  };
  for (const Direction direction : {Direction::grad_input, Direction::grad_weight}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      const std::vector<Problem> large = large_problems(direction, dtype);
      for (auto problem = large.end() - 5; problem != large.end(); ++problem) {
        if (dtype == DType::f64) check_new(*problem, random);
        check_new(with_gaps(*problem), random);
      }
      Problem last = large.back();
      last.input_strides = channels_last_strides(last.input_sizes());
      last.output_strides = channels_last_strides(last.output_sizes());
      check_new(last, random);
    }
  }
}

// Rows and cells that begin with a cache line, or anywhere; phases that are interleaved while they are transposed, or
// where cells are columns.
// Dense layers of bfloat16, whose channels are multiplied in pairs where the processor can: odd and even channels, in
// every layout.
Problem dense_bf16(Direction direction, Random& random) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = static_cast<int>(uniform(random, 1, 3));
    problem.direction = direction;
    problem.dtype = DType::bf16;
    problem.bias = problem.direction == Direction::forward && chance(random, 0.5);
    problem.batch = uniform(random, 1, 3);
    problem.groups = chance(random, 0.8) ? 1 : 2;
    const auto channels = [&](std::int64_t fewest) {
      return chance(random, 0.4) ? 16 * uniform(random, fewest / 16, 10) : uniform(random, fewest, 150);
    };
    problem.in_channels = problem.groups * channels(48);
    problem.out_channels = problem.groups * channels(48);
    for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a) {
      Axis& axis = problem.axes[a];
      axis.input = uniform(random, 1, problem.rank == 1 ? 300 : (problem.rank == 2 ? 11 : 5));
      axis.stride = uniform(random, 1, 3);
      axis.kernel = chance(random, 0.4) ? axis.stride : uniform(random, 1, 5);
      axis.dilation = chance(random, 0.8) ? 1 : 2;
      axis.pad_begin = chance(random, 0.4) ? 0 : uniform(random, 0, axis.kernel);
      axis.pad_end = chance(random, 0.5) ? axis.pad_begin : uniform(random, 0, axis.kernel);
      axis.output_padding = uniform(random, 0, std::max(axis.stride, axis.dilation) - 1);
    }
  } while (std::any_of(problem.axes.begin(), problem.axes.end(), [](const Axis& axis) { return axis.output() <= 0; }));
  const auto layout = [&](const Sizes& sizes) {
    if (chance(random, 0.5)) return channels_last_strides(sizes);
    return chance(random, 0.5) ? contiguous_strides(sizes) : random_strides(random, sizes, false);
  };
  problem.input_strides = layout(problem.input_sizes());
  problem.weight_strides = layout(problem.weight_sizes());
  problem.output_strides = layout(problem.output_sizes());
  return problem;
}

TEST(Phases, PairsOfBfloat16) {
  Random random(15);
  int taken = 0;
  int rounded = 0;
  const int count = test::cases(60);
  for (int i = 0; i < count && !HasFailure(); ++i) {
    Problem problem = dense_bf16(chance(random, 0.5) ? Direction::forward : Direction::grad_input, random);
    if (chance(random, 0.4)) {  // one vector of targets, or little more
      const bool forward = problem.direction == Direction::forward;
      (forward ? problem.out_channels : problem.in_channels) = problem.groups * uniform(random, 16, 24);
      set_contiguous(problem);
      if (chance(random, 0.5)) {
        problem.input_strides = channels_last_strides(problem.input_sizes());
        problem.output_strides = channels_last_strides(problem.output_sizes());
      }
    }
    check_new(problem, random);
    const std::string described = plan(problem, {}, "phases")->kernel->describe();
    taken += described.find("pairs of bfloat16") != std::string::npos ? 1 : 0;
    rounded += described.find("rounded at once") != std::string::npos ? 1 : 0;
    if (i % 10 == 0) expect_threads_change_nothing(problem, "phases", random);
    if (i % 10 == 5 && problem.batch > 1) {
      expect_sample_alone_is_the_same(problem, "phases", problem.batch - 1, random);
    }
  }
  EXPECT_GE(taken, cpu::has_bf16_products() ? count / 4 : 0) << "of " << count;
  EXPECT_GE(rounded, cpu::has_bf16_products() ? count / 30 : 0) << "of " << count;
}

// Leaves NaN wherever the kernel of this problem keeps something between two calls.
void leave_nan(const Problem& problem, Random& random) {
  Tensors tensors(problem, random);
  tensors.input.poison();
  tensors.weight.poison();
  tensors.output.poison();
  run_with_workspace(*plan(problem, {}, "phases"), tensors.buffers());
}

// Padding as wide as the kernel: the first cells read nothing at all, also in tiles that are a cell shorter than
// others.
TEST(Phases, CellsThatReadNothing) {
  Random random(33);
  const Axis one{};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t width : {40, 97, 120, 121}) {
      for (const std::int64_t kernel : {1, 2}) {
        const Axis row{width, kernel, kernel, 1, kernel, kernel, 0};
        const Problem problem = layer(Direction::grad_input, dtype, 1, {16, 128, 1}, {one, one, row});
        leave_nan(problem, random);
        check_new(problem, random);
      }
    }
  }
}

// Gradients of weights that are summed over pairs of cells: rows of odd and even numbers of cells, at odd and even
// distances, few or many channels.
TEST(Phases, PairsOfCells) {
  Random random(31);
  int taken = 0;
  const int count = test::cases(40);
  for (int i = 0; i < count && !HasFailure(); ++i) {
    Problem problem = dense_bf16(Direction::grad_weight, random);
    if (chance(random, 0.3)) {
      problem.in_channels = problem.groups * uniform(random, 12, 40);
      problem.out_channels = problem.groups * uniform(random, 6, 20);
      set_contiguous(problem);
    }
    leave_nan(problem, random);
    check_new(problem, random);
    const std::string described = plan(problem, {}, "phases")->kernel->describe();
    taken += described.find("pairs of bfloat16") != std::string::npos ? 1 : 0;
    if (i % 10 == 0) expect_threads_change_nothing(problem, "phases", random);
  }
  EXPECT_EQ(taken, cpu::has_bf16_products() ? count : 0);
}

// What a word holds beside a number of the last cell, and what lies between rows that follow each other on the line but
// not in memory.
TEST(Phases, PairsOfCellsInEveryLayout) {
  Random random(32);
  const Axis one{};
  std::vector<Problem> problems;
  for (const std::int64_t width : {1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 129}) {
    const Axis row{width, 3, 1 + width % 3, 1, 1, 0, 0};
    problems.push_back(layer(Direction::grad_weight, DType::bf16, 2, {17, 33, 1}, {one, {3, 2, 1, 1, 0, 0, 0}, row}));
    problems.push_back(layer(Direction::grad_weight, DType::bf16, 3, {32, 16, 1},
                             {one, {5, 1, 1, 1, 0, 0, 0}, {width, 1, 1, 1, 0, 0, 0}}));
    problems.push_back(
        layer(Direction::grad_weight, DType::bf16, 1, {16, 24, 1}, {one, one, {width, 40, 19, 1, 3, 2, 1}}));
  }
  const auto with_gaps = [](Sizes sizes) {
    sizes[4] += 3;
    sizes[3] += 1;
    return contiguous_strides(sizes);
  };
  for (const Problem& each : problems) {
    Problem problem = each;
    leave_nan(problem, random);
    check_new(problem, random);
    problem.input_strides = with_gaps(problem.input_sizes());
    check_new(problem, random);
    problem.output_strides = channels_last_strides(problem.output_sizes());
    check_new(problem, random);
    problem.input_strides = channels_last_strides(problem.input_sizes());
    check_new(problem, random);
    problem.output_strides = with_gaps(problem.output_sizes());
    leave_nan(problem, random);
    check_new(problem, random);
    // Neither channels nor rows side by side.
    Sizes sizes = problem.input_sizes();
    std::swap(sizes[0], sizes[4]);
    Strides strides = contiguous_strides(sizes);
    std::swap(strides[0], strides[4]);
    problem.input_strides = strides;
    check_new(problem, random);
  }
}

// Groups of few channels, side by side, whose channels become lines together (stacked): any number of groups, of which
// the last ones are fewer than the others, with channels that are no whole vectors; sums of several steps, several
// tiles, phases that no tap reaches.
Problem small_groups(Direction direction, Random& random) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = static_cast<int>(uniform(random, 1, 3));
    problem.direction = direction;
    problem.dtype = chance(random, 0.7) ? DType::f32 : chance(random, 0.5) ? DType::f64 : DType::bf16;
    problem.bias = direction == Direction::forward && chance(random, 0.5);
    problem.batch = uniform(random, 1, 3);
    problem.groups = uniform(random, 2, 23);
    const auto channels = [&] { return chance(random, 0.8) ? uniform(random, 1, 9) : uniform(random, 10, 40); };
    problem.in_channels = problem.groups * channels();
    problem.out_channels = problem.groups * channels();
    for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a) {
      Axis& axis = problem.axes[a];
      axis.input = uniform(random, 1, problem.rank == 1 ? 400 : (problem.rank == 2 ? 30 : 7));
      axis.stride = uniform(random, 1, 3);
      axis.kernel = uniform(random, 1, 5);
      axis.dilation = chance(random, 0.8) ? 1 : 2;
      axis.pad_begin = uniform(random, 0, axis.kernel);
      axis.pad_end = uniform(random, 0, axis.kernel);
      axis.output_padding = uniform(random, 0, std::max(axis.stride, axis.dilation) - 1);
    }
  } while (std::any_of(problem.axes.begin(), problem.axes.end(), [](const Axis& axis) { return axis.output() <= 0; }));
  problem.input_strides = channels_last_strides(problem.input_sizes());
  problem.output_strides = channels_last_strides(problem.output_sizes());
  problem.weight_strides =
      chance(random, 0.5) ? channels_last_strides(problem.weight_sizes()) : contiguous_strides(problem.weight_sizes());
  return problem;
}

TEST(Phases, SmallGroupsSideBySide) {
  Random random(47);
  constexpr std::array kAll = {Direction::forward, Direction::grad_input, Direction::grad_weight};
  int stacked = 0;
  const int count = test::cases(150);
  for (int i = 0; i < count && !HasFailure(); ++i) {
    const Problem problem = small_groups(kAll[i % kAll.size()], random);
    stacked += plan(problem, {}, "phases")->kernel->describe().find("groups together") != std::string::npos ? 1 : 0;
    check_new(problem, random);
    if (i % 10 == 0) expect_threads_change_nothing(problem, "phases", random);
    if (i % 10 == 5 && problem.batch > 1 && problem.direction == Direction::forward) {
      expect_sample_alone_is_the_same(problem, "phases", problem.batch - 1, random);
    }
  }
  EXPECT_GE(stacked, count / 3) << "of " << count;
  const auto draw = [&](Random& source) { return small_groups(kAll[uniform(source, 0, 2)], source); };
  test::check_every_target(random, test::cases(30), 1, draw, [](const Problem& problem, Tensors& tensors) {
    check(problem, tensors);
    return true;
  });
}

// Kernels about as large as the image, or larger: each cell has taps of its own, and is added to by one column of taps
// after the other.
TEST(Phases, KernelsLikeTheImage) {
  Random random(53);
  constexpr std::array kBoth = {Direction::forward, Direction::grad_input};
  const auto draw = [&](Random& source) {
    Problem problem;
    do {
      const auto axis = [&] {
        Axis one{uniform(source, 3, 12), uniform(source, 4, 13), chance(source, 0.8) ? 1 : 2};
        one.pad_begin = uniform(source, 0, one.kernel - 1);
        one.pad_end = uniform(source, 0, one.kernel - 1);
        one.output_padding = chance(source, 0.2) ? one.stride - 1 : 0;
        return one;
      };
      const Axis depth = chance(source, 0.2) ? Axis{3, 2, 1, 1, 1, 0, 0} : Axis{};
      const DType dtype = chance(source, 0.7) ? DType::f32 : chance(source, 0.5) ? DType::f64 : DType::bf16;
      problem = layer(kBoth[uniform(source, 0, 1)], dtype, uniform(source, 1, 3),
                      {uniform(source, 1, 3) * 16, uniform(source, 1, 3) * 16, 1}, {depth, axis(), axis()});
    } while (std::ranges::any_of(problem.axes, [](const Axis& axis) { return axis.output() <= 0; }));
    if (chance(source, 0.2)) problem.in_channels += 3;
    if (chance(source, 0.2)) problem.out_channels += 5;
    set_contiguous(problem);
    if (chance(source, 0.9)) {
      problem.input_strides = channels_last_strides(problem.input_sizes());
      problem.output_strides = channels_last_strides(problem.output_sizes());
    }
    return problem;
  };
  for (int i = 0; i < test::cases(60) && !HasFailure(); ++i) {
    const Problem problem = draw(random);
    check_new(problem, random);
    if (i % 10 == 0) expect_threads_change_nothing(problem, "phases", random);
    if (i % 5 == 1 && problem.batch > 1 && problem.direction == Direction::forward) {
      expect_sample_alone_is_the_same(problem, "phases", problem.batch - 1, random);
    }
  }
  test::check_every_target(random, test::cases(12), 1, draw, [](const Problem& problem, Tensors& tensors) {
    check(problem, tensors);
    return true;
  });
}

TEST(Phases, PastTheCaches) {
  Random random(14);
  const Axis one{};
  for (const Direction direction : {Direction::forward, Direction::grad_input}) {
    std::vector<Problem> problems = channels_last_problems(direction);
    problems.erase(problems.begin(), problems.end() - 10);
    problems.push_back(
        layer(direction, DType::f32, 2, {64, 32, 1}, {one, {9, 2, 2, 1, 0, 0, 0}, {32, 2, 2, 1, 0, 0, 0}}));
    problems.push_back(
        layer(direction, DType::f32, 1, {40, 24, 1}, {one, {8, 3, 1, 1, 1, 1, 0}, {70, 3, 3, 1, 0, 0, 2}}));
    problems.push_back(
        layer(direction, DType::f32, 1, {16, 16, 16}, {one, {9, 4, 2, 1, 1, 1, 0}, {160, 4, 2, 1, 1, 1, 0}}));
    problems.push_back(layer(direction, DType::f32, 2, {8, 8, 8}, {one, one, {300, 12, 3, 1, 5, 5, 1}}));
    problems.push_back(layer(direction, DType::f64, 1, {6, 6, 6}, {one, one, {301, 8, 4, 1, 2, 2, 0}}));
    // Sums of pairs that are rounded where they are added up, as whole lines or not.
    for (const std::int64_t channels : {32, 48, 64, 160}) {
      Problem& problem = problems.emplace_back(layer(direction, DType::bf16, 2, {channels, channels, 1},
                                                     {one, {5, 3, 2, 1, 1, 1, 0}, {9, 2, 2, 1, 0, 0, 1}}));
      problem.input_strides = channels_last_strides(problem.input_sizes());
      problem.output_strides = channels_last_strides(problem.output_sizes());
    }
    for (const Problem& problem : problems) {
      for (const std::int64_t offset : {0, 6}) expect_past_caches_is_the_same(problem, "phases", offset, random);
    }
  }
}

// Strided rows long enough for whole vectors of every lattice, some with phases that no tap reaches; small groups whose
// cells are one, two or four vectors.
std::vector<Problem> problems_of_lattices(Direction direction, Random& random) {
  std::vector<Problem> problems;
  const Axis one{};
  for (const std::int64_t stride : {2, 3, 4, 5, 6, 7, 8, 9}) {
    const std::int64_t dilation = stride == 4 ? 2 : 1;  // every other phase is empty
    const std::int64_t width = uniform(random, 16, 90);
    const std::int64_t padding = uniform(random, 0, 2);
    const Axis height{uniform(random, 2, 4), 2, uniform(random, 1, 3), 2, 1, 1, 0};
    const Axis row{width,   uniform(random, 2, stride + 2), stride, dilation, padding,
                   padding, uniform(random, 0, stride - 1)};
    const DType dtype = stride % 3 == 0 ? DType::f64 : DType::f32;
    problems.push_back(layer(direction, dtype, 2, {8, 8, 2}, {one, height, row}));
    problems.push_back(layer(direction, dtype, 1, {16, 12, 1}, {one, height, row}));
    problems.push_back(layer(direction, DType::bf16, 1, {8, 8, 2}, {one, one, row}));
    for (const std::int64_t channels : {16, 32, 64}) {
      Problem& problem =
          problems.emplace_back(layer(direction, DType::f32, 2, {channels, channels, 4}, {one, height, row}));
      problem.input_strides = channels_last_strides(problem.input_sizes());
      problem.output_strides = channels_last_strides(problem.output_sizes());
    }
  }
  return problems;
}

TEST(Phases, RowsOfLattices) {
  Random random(15);
  for (const Direction direction : {Direction::forward, Direction::grad_input, Direction::grad_weight}) {
    const std::vector<Problem> problems = problems_of_lattices(direction, random);
    std::vector<Tensors> tensors;
    for (const Problem& problem : problems) compute_exact(problem, tensors.emplace_back(problem, random));
    for (const std::string& name : cpu::target_names()) {
      const Target target(name);
      SCOPED_TRACE(name);
      for (std::size_t i = 0; i < problems.size(); ++i) check(problems[i], tensors[i]);
    }
    if (direction == Direction::grad_weight) continue;
    for (const Problem& problem : problems) {
      for (const std::int64_t offset : {0, 6}) expect_past_caches_is_the_same(problem, "phases", offset, random);
    }
  }
  // Rows of two lattices of which one is longer, and nothing is left between them on the line.
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const std::int64_t width : {70, 133}) {
      check_new(layer(Direction::grad_weight, dtype, 4, {16, 16, 1},
                      {Axis{}, {2, 3, 2, 1, 1, 1, 0}, {width, 3, 2, 1, 1, 1, 0}}),
                random);
    }
  }
  // Rows that are cut, so that less surrounds the tiles.
  Problem cut = layer(Direction::grad_input, DType::f32, 1, {32, 32, 4},
                      {Axis{9, 3, 2, 1, 1, 1, 1}, {17, 3, 2, 1, 1, 1, 0}, {131, 3, 2, 1, 1, 1, 0}});
  cut.input_strides = channels_last_strides(cut.input_sizes());
  cut.output_strides = channels_last_strides(cut.output_sizes());
  check_new(cut, random);
}

// One or two output channels of many input channels; in three dimensions with a depth of one, which padding may move
// away from its tap.
Problem layer_of_few_outputs(Random& random) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = static_cast<int>(uniform(random, 1, 3));
    problem.dtype = chance(random, 0.6) ? DType::f32 : (chance(random, 0.5) ? DType::f64 : DType::bf16);
    problem.bias = chance(random, 0.5);
    problem.batch = uniform(random, 1, 9);
    problem.groups = chance(random, 0.8) ? 1 : 2;
    problem.in_channels = problem.groups * uniform(random, 24, 40);
    problem.out_channels = problem.groups * uniform(random, 1, 2);
    for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a) {
      Axis& axis = problem.axes[a];
      axis.input = a == 0 ? 1 : uniform(random, 1, chance(random, 0.2) ? 70 : 12);
      axis.stride = uniform(random, 1, 4);
      axis.kernel = a == 2 ? uniform(random, 3, 9) : a == 1 ? uniform(random, 1, 6) : 1;
      axis.dilation = chance(random, 0.7) ? 1 : uniform(random, 2, 3);
      axis.pad_begin = uniform(random, 0, axis.kernel);
      axis.pad_end = uniform(random, 0, axis.kernel);
      axis.output_padding = uniform(random, 0, axis.stride - 1);
    }
  } while (std::any_of(problem.axes.begin(), problem.axes.end(), [](const Axis& axis) { return axis.output() <= 0; }));
  const auto layout = [&](const Sizes& sizes) {
    return chance(random, 0.5) ? channels_last_strides(sizes) : random_strides(random, sizes, false);
  };
  problem.input_strides = layout(problem.input_sizes());
  problem.weight_strides = layout(problem.weight_sizes());
  problem.output_strides = layout(problem.output_sizes());
  return problem;
}

TEST(Phases, FewOutputsByEveryInstructionSet) {
  Random random(29);
  int by_tap_rows = 0;
  test::check_every_target(
      random, test::cases(40), 1, layer_of_few_outputs, [&](const Problem& problem, Tensors& tensors) {
        check(problem, tensors);
        by_tap_rows += plan(problem)->kernel->describe().find("taps of a row") != std::string::npos;
        return true;
      });
  EXPECT_GT(by_tap_rows, 0);
}

// Tensors that padding keeps small, with taps or cells that lie further apart than any window reaches.
TEST(Phases, FarTapsAndCells) {
  constexpr std::int64_t kFar = std::int64_t{1} << 31U;
  const Axis taps{1, 2, 1, 2 * kFar - 1, kFar - 1, kFar - 1, 0};
  const Axis cells{2, 2, 2 * kFar, 1, kFar, kFar, 0};
  for (const Direction direction : {Direction::grad_input, Direction::grad_weight}) {
    for (const Axis& axis : {taps, cells}) {
      const Problem problem = layer(direction, DType::f32, 1, {16, 1, 1}, {Axis{}, axis, axis});
      EXPECT_EQ(axis.output(), 2);
      EXPECT_NE(plan(problem), nullptr);
    }
  }
}

TEST(Phases, EveryInstructionSet) {
  Random random(9);
  std::vector<Problem> problems;
  for (int i = 0; i < test::cases(200); ++i) problems.push_back(random_problem(random));
  for (const Direction direction : kDirections) {
    const std::vector<Problem> large = large_problems(direction, DType::f32);
    problems.push_back(large[1]);
    problems.insert(problems.end(), large.end() - 5, large.end());  // patches and windows
    const std::vector<Problem> last = channels_last_problems(direction);
    problems.insert(problems.end(), last.end() - 4, last.end());
  }
  std::vector<Tensors> tensors;
  for (const Problem& problem : problems) compute_exact(problem, tensors.emplace_back(problem, random));
  const std::vector<std::string> names = cpu::target_names();
  EXPECT_GE(names.size(), 2U) << "expected at least the best instruction set and the fallback";
  for (const std::string& name : names) {
    const Target target(name);
    EXPECT_EQ(cpu::target_name(), name);
    SCOPED_TRACE(name);
    for (std::size_t i = 0; i < problems.size(); ++i) check(problems[i], tensors[i]);
  }
}

TEST(Phases, ThreadsChangeNothing) {
  Random random(10);
  for (const Direction direction : kDirections) {
    for (const Problem& problem : large_problems(direction, DType::f32)) {
      expect_threads_change_nothing(problem, "phases", random);
    }
  }
}

// Weights that have no room, of whose blocks of targets each has: all tiles share those of one block at a time.
TEST(Phases, ContiguousWeightsInStages) {
  Random random(32);
  const Axis one{};
  for (const Direction direction : {Direction::forward, Direction::grad_input}) {
    const Problem problem =
        layer(direction, DType::f32, 3, {32, 32, 1}, {one, {25, 12, 8, 1, 2, 2, 0}, {23, 12, 8, 1, 2, 1, 0}});
    const auto chosen = plan(problem, {}, "phases");
    EXPECT_GT(chosen->workspace_bytes, 0U) << chosen->kernel->describe();
    check_new(problem, random);
    expect_threads_change_nothing(problem, "phases", random);
  }
}

// Output channels of a gradient of weights are cut where threads would otherwise wait.
TEST(Phases, BlocksOfAWeightForEveryThread) {
  Random random(33);
  const Axis one{};
  const DeviceProperties two{.device = {Backend::cpu, 0}, .name = "cpu", .threads = 2};
  for (const std::int64_t outputs : {30, 48}) {
    const Problem problem = layer(Direction::grad_weight, DType::f32, 1, {100, outputs, 1},
                                  {one, {11, 3, 2, 1, 1, 1, 1}, {13, 3, 2, 1, 1, 1, 1}});
    const std::string text = cpu::propose_phases(problem, two).kernel->describe();
    EXPECT_NE(text.find(outputs == 30 ? " x 16 channels" : " x 24 channels"), std::string::npos) << text;
    check_new(problem, random);
    expect_threads_change_nothing(problem, "phases", random);
  }
}

TEST(Phases, ASampleDoesNotDependOnItsBatch) {
  Random random(11);
  for (const Direction direction : {Direction::forward, Direction::grad_input}) {
    for (Problem problem : large_problems(direction, DType::f32)) {
      problem.batch = 6;
      set_contiguous(problem);
      expect_sample_alone_is_the_same(problem, "phases", 4, random);
    }
  }
  // Rows that are cut, by a kernel about as large as they are.
  Problem wide = layer(Direction::forward, DType::f32, 2, {96, 16, 1},
                       {Axis{}, {3, 5, 1, 1, 2, 2, 0}, {400, 181, 1, 1, 90, 90, 0}});
  expect_sample_alone_is_the_same(wide, "phases", 1, random);
}

TEST(Phases, TakesEveryOrdinaryProblemAndSaysWhyNot) {
  EXPECT_EQ(families(Backend::cpu),
            (std::vector<std::string>{"columns", "depthwise", "winograd", "phases", "reference"}));
  Problem problem;
  problem.axes[2] = {2, 3, 1, 100'000'000, 99'999'990, 99'999'990, 0};
  set_contiguous(problem);
  const auto chosen = plan(problem);
  EXPECT_EQ(chosen->family, "reference");
  ASSERT_EQ(chosen->declined.size(), 4U);
  EXPECT_NE(chosen->declined[3].reason.find("packed line"), std::string::npos);
}

}  // namespace
}  // namespace tconv::test
