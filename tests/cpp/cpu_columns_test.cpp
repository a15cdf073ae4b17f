// The "columns" family, forced, against the reference: few cells, long kernels, every direction and instruction set.
#include <gtest/gtest.h>

#include "cases.h"
#include "cpu/families.h"
#include "cpu_family_checks.h"
#include "cpu_support.h"

namespace tconv::test {
namespace {

constexpr std::array kDirections = {Direction::forward, Direction::grad_input, Direction::grad_weight};

// Few cells and many weights, or a long kernel; tails everywhere.
Problem random_columns(Random& random) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = static_cast<int>(uniform(random, 1, 3));
    problem.direction = kDirections[uniform(random, 0, 2)];
    problem.dtype = static_cast<DType>(uniform(random, 0, 3));
    problem.bias = problem.direction == Direction::forward && chance(random, 0.5);
    problem.batch = uniform(random, 1, 3);
    problem.groups = chance(random, 0.8) ? 1 : 2;
    problem.in_channels = problem.groups * (chance(random, 0.3) ? uniform(random, 32, 60) : uniform(random, 512, 540));
    problem.out_channels = problem.groups * uniform(random, 2, 9);
    const bool long_kernel = problem.rank == 1 && chance(random, 0.3);
    for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a) {
      Axis& axis = problem.axes[a];
      axis.input = uniform(random, 1, problem.rank == 1 ? 30 : (problem.rank == 2 ? 6 : 3));
      axis.kernel = uniform(random, 1, problem.rank == 1 ? 17 : (problem.rank == 2 ? 4 : 3));
      axis.stride = uniform(random, 1, 4);
      if (long_kernel) {
        problem.out_channels = problem.groups * 4;
        axis.input = uniform(random, 1, chance(random, 0.2) ? 300 : 20);
        axis.kernel = uniform(random, 64, 70);
        axis.stride = uniform(random, 8, 40);
      }
      axis.dilation = chance(random, 0.7) ? 1 : uniform(random, 2, 3);
      axis.pad_begin = chance(random, 0.4) ? 0 : uniform(random, 0, axis.kernel);
      axis.pad_end = chance(random, 0.5) ? axis.pad_begin : uniform(random, 0, axis.kernel);
      axis.output_padding = chance(random, 0.7) ? 0 : uniform(random, 0, std::max(axis.stride, axis.dilation) - 1);
    }
  } while (std::any_of(problem.axes.begin(), problem.axes.end(), [](const Axis& axis) { return axis.output() <= 0; }));
  const auto layout = [&](const Sizes& sizes, Direction written) {
    return random_strides(random, sizes, problem.direction != written);
  };
  problem.input_strides = layout(problem.input_sizes(), Direction::grad_input);
  problem.output_strides = layout(problem.output_sizes(), Direction::forward);
  problem.weight_strides = contiguous_strides(problem.weight_sizes());
  return problem;
}

void set_channels_last(Problem& problem) {
  problem.input_strides = channels_last_strides(problem.input_sizes());
  problem.weight_strides = channels_last_strides(problem.weight_sizes());
  problem.output_strides = channels_last_strides(problem.output_sizes());
}

// Forward of few cells whose channels lie side by side in all tensors: runs of channels that fill vectors, panels and
// blocks, or do not.
Problem random_channels_last(Random& random) {
  Problem problem;
  do {
    problem = random_columns(random);
  } while (problem.direction != Direction::forward || problem.in_channels < 512 * problem.groups);
  problem.dtype = chance(random, 0.7) ? DType::f32 : DType::f64;
  problem.out_channels = problem.groups * (chance(random, 0.3) ? 64 * uniform(random, 1, 3) : uniform(random, 2, 300));
  set_channels_last(problem);
  return problem;
}

// False when the family declines.
bool check(const Problem& problem, Tensors& tensors) {
  std::shared_ptr<const Plan> chosen;
  try {
    chosen = plan(problem, {}, "columns");
  } catch (const Error&) {
    return false;
  }
  tensors.result(problem).poison();
  run_with_workspace(*chosen, tensors.buffers());
  const DType arithmetic = problem.dtype == DType::f64 ? DType::f64 : DType::f32;
  expect_close(problem, tensors, arithmetic, (terms_of(problem) + 8) * (arithmetic == DType::f64 ? 2 : 1));
  return true;
}

TEST(Columns, RandomProblems) {
  Random random(31);
  int taken = 0;
  const int count = test::cases(120);
  for (int i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
    const Problem problem = random_columns(random);
    Tensors tensors(problem, random);
    compute_exact(problem, tensors);
    taken += check(problem, tensors) ? 1 : 0;
  }
  EXPECT_GE(taken, count / 12) << "of " << count;
}

// Images of one cell, whose rows of the product are the output as it is.
Problem one_cell(Direction direction, std::int64_t batch) {
  Problem problem;
  problem.direction = direction;
  problem.batch = batch;
  problem.in_channels = 66;
  problem.out_channels = 36;
  problem.axes[1] = {.input = 1, .kernel = 3, .stride = 2};
  problem.axes[2] = {.input = 1, .kernel = 5, .stride = 1};
  set_contiguous(problem);
  return problem;
}

TEST(Columns, ImagesOfOneCell) {
  Random random(36);
  for (const Direction direction : kDirections) {
    for (const std::int64_t batch : {1, 3, 260}) {
      for (const int variant : {0, 1, 2}) {  // contiguous, in groups, channels-last
        for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
          if (batch > 3 && dtype != DType::f32) continue;
          Problem problem = one_cell(direction, batch);
          problem.dtype = dtype;
          problem.groups = variant == 1 ? 2 : 1;
          problem.bias = direction == Direction::forward && batch != 3 && variant != 2;
          set_contiguous(problem);
          if (variant == 2) {
            problem.weight_strides = channels_last_strides(problem.weight_sizes());
            problem.output_strides = channels_last_strides(problem.output_sizes());
          }
          Tensors tensors(problem, random);
          compute_exact(problem, tensors);
          EXPECT_TRUE(check(problem, tensors)) << to_string(problem);
        }
      }
    }
  }
}

TEST(Columns, ChannelsLast) {
  Random random(38);
  int taken = 0;
  const int count = test::cases(60);
  for (int i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
    const Problem problem = random_channels_last(random);
    Tensors tensors(problem, random);
    compute_exact(problem, tensors);
    taken += check(problem, tensors) ? 1 : 0;
  }
  EXPECT_GE(taken, count / 12) << "of " << count;
}

TEST(Columns, EveryInstructionSet) {
  Random random(32);
  for (const std::string& name : cpu::target_names()) {
    SCOPED_TRACE(name);
    const Target target(name);
    int taken = 0;
    for (int i = 0; i < 30; ++i) {
      const Problem problem = i % 3 == 2 ? random_channels_last(random) : random_columns(random);
      Tensors tensors(problem, random);
      compute_exact(problem, tensors);
      taken += check(problem, tensors) ? 1 : 0;
    }
    EXPECT_GE(taken, 1);
  }
}

Problem layer(Direction direction, std::int64_t batch) {
  Problem problem;
  problem.direction = direction;
  problem.batch = batch;
  problem.in_channels = 530;
  problem.out_channels = 37;
  for (int a : {1, 2}) problem.axes[a] = {.input = 2 * a, .kernel = 4, .stride = 2, .pad_begin = 1, .pad_end = 1};
  set_contiguous(problem);
  return problem;
}

// A kernel so long that it is taken whatever the number of cells.
Problem long_kernel(Direction direction, std::int64_t batch) {
  Problem problem;
  problem.rank = 1;
  problem.direction = direction;
  problem.batch = batch;
  problem.in_channels = 530;
  problem.out_channels = 4;
  problem.axes[2] = {.input = 9, .kernel = 80, .stride = 20, .pad_begin = 3, .pad_end = 5};
  set_contiguous(problem);
  return problem;
}

TEST(Columns, ThreadsChangeNothing) {
  Random random(33);
  for (const Direction direction : kDirections) {
    expect_threads_change_nothing(layer(direction, direction == Direction::grad_input ? 2 : 7), "columns", random);
    expect_threads_change_nothing(long_kernel(direction, 7), "columns", random);
  }
  Problem last = layer(Direction::forward, 7);
  last.out_channels = 200;
  last.bias = true;
  set_channels_last(last);
  expect_threads_change_nothing(last, "columns", random);
}

TEST(Columns, ASampleDoesNotDependOnItsBatch) {
  Random random(34);
  const Problem problem = layer(Direction::forward, 40);
  EXPECT_EQ(plan(problem)->family, plan(layer(Direction::forward, 1))->family);
  expect_sample_alone_is_the_same(problem, "columns", 23, random);
  Problem odd = problem;  // of whose kernel a list of rows may hold a part
  odd.axes[1].kernel = odd.axes[2].kernel = 3;
  set_contiguous(odd);
  expect_sample_alone_is_the_same(odd, "columns", 23, random);
  set_channels_last(odd);
  expect_sample_alone_is_the_same(odd, "columns", 23, random);
  // Images with something between them: the family may not depend on that either.
  odd.input_strides[0] *= 2;
  odd.output_strides[0] += 5;
  EXPECT_EQ(plan(odd)->family, "columns");
  expect_sample_alone_is_the_same(odd, "columns", 23, random);
  for (const Direction direction : {Direction::forward, Direction::grad_input}) {
    expect_sample_alone_is_the_same(long_kernel(direction, 40), "columns", 31, random);
    expect_sample_alone_is_the_same(one_cell(direction, 60), "columns", 57, random);
  }
}

// grad_input of many channels: a task has some input channels instead of a split of the columns, whose sums would take
// several times the memory of the tensors.
TEST(Columns, TasksOfInputChannels) {
  Random random(37);
  const Problem problem = long_kernel(Direction::grad_input, 40);
  EXPECT_EQ(plan(problem, {}, "columns")->workspace_bytes, 0U);
  Tensors tensors(problem, random);
  compute_exact(problem, tensors);
  EXPECT_TRUE(check(problem, tensors));
  EXPECT_EQ(plan(long_kernel(Direction::grad_input, 1), {}, "columns")->workspace_bytes, 0U);
}

// grad_input depends on the batch in the choice of the family: many cells are multiplied faster with packed weights.
TEST(Columns, GradInputIsOfFewCells) {
  EXPECT_EQ(plan(layer(Direction::grad_input, 2))->family, "columns");
  EXPECT_EQ(plan(layer(Direction::grad_input, 3))->family, "phases");
}

// So few cells that weights are read, and written, as they lie; of images of one cell most taps fall outside of the
// output. Columns that fill vectors and cache lines, and columns that don't.
Problem few_cells(Direction direction, std::int64_t outputs, std::int64_t kernel, std::int64_t batch, Random& random) {
  Problem problem;
  problem.direction = direction;
  problem.dtype = chance(random, 0.3) ? DType::f64 : DType::f32;
  problem.batch = batch;
  problem.groups = chance(random, 0.5) ? 2 : 1;
  problem.in_channels = problem.groups * 517;
  problem.out_channels = problem.groups * outputs;
  problem.bias = direction == Direction::forward && chance(random, 0.5);
  for (int a : {1, 2}) problem.axes[a] = {.input = 1, .kernel = kernel, .stride = 2, .pad_begin = 1, .pad_end = 1};
  if (kernel == 3) problem.axes[2].input = uniform(random, 2, 3);
  set_contiguous(problem);
  return problem;
}

void check_few_cells(const Problem& problem, Random& random) {
  Tensors tensors(problem, random);
  compute_exact(problem, tensors);
  EXPECT_TRUE(check(problem, tensors)) << to_string(problem);
  if (problem.batch > 5) return;
  EXPECT_NE(plan(problem, {}, "columns")->kernel->describe().find("as they lie"), std::string::npos);
  expect_threads_change_nothing(problem, "columns", random);
}

TEST(Columns, WeightsAsTheyLie) {
  Random random(39);
  for (const Direction direction : kDirections) {
    for (const std::int64_t outputs : {48, 37}) {
      for (const std::int64_t kernel : {4, 3}) {
        for (const std::int64_t batch : {1, 5, 70}) {
          if (batch > 5 && (outputs == 48 || direction != Direction::forward)) continue;
          const Problem problem = few_cells(direction, outputs, kernel, batch, random);
          check_few_cells(problem, random);
          if (batch != 5 || direction == Direction::grad_weight) continue;
          expect_sample_alone_is_the_same(problem, "columns", 3, random);
        }
      }
    }
  }
}

// Channels side by side: columns are (tap, output channel).
TEST(Columns, GradientsOfWeightsAsTheyLieChannelsLast) {
  Random random(40);
  for (const Direction direction : {Direction::grad_input, Direction::grad_weight}) {
    for (const std::int64_t outputs : {48, 37}) {
      for (const std::int64_t batch : {1, 2}) {
        Problem problem = few_cells(direction, outputs, 3, batch, random);
        for (int a : {1, 2}) problem.axes[a].input = 1 + a;
        set_contiguous(problem);
        set_channels_last(problem);
        check_few_cells(problem, random);
      }
    }
  }
}

TEST(Columns, SaysWhyNot) {
  Problem problem = layer(Direction::forward, 1);
  problem.axes[1].input = 100;
  set_contiguous(problem);
  const auto chosen = plan(problem);
  EXPECT_NE(chosen->family, "columns");
  ASSERT_GE(chosen->declined.size(), 1U);
  EXPECT_NE(chosen->declined[0].reason.find("few input cells"), std::string::npos);
}

}  // namespace
}  // namespace tconv::test
