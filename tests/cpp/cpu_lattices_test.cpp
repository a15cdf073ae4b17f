// Layers of large strides and kernels against the reference: gradients that are read through many lattices, weights of
// many taps, channels that are summed in steps.
#include <gtest/gtest.h>

#include "cases.h"
#include "cpu/families.h"
#include "cpu_family_checks.h"
#include "cpu_support.h"

namespace tconv::test {
namespace {

constexpr std::array kDirections = {Direction::forward, Direction::grad_input, Direction::grad_weight};

// False when the family declines.
bool check_family(const std::string& family, const Problem& problem, Tensors& tensors) {
  std::shared_ptr<const Plan> chosen;
  try {
    chosen = plan(problem, {}, family);
  } catch (const Error&) {
    return false;
  }
  tensors.result(problem).poison();
  run_with_workspace(*chosen, tensors.buffers());
  const bool doubles = problem.dtype == DType::f64;
  expect_close(problem, tensors, doubles ? DType::f64 : DType::f32, (terms_of(problem) + 8) * (doubles ? 2 : 1));
  return true;
}

// Rows of which some lattices are longer than others, or nobody reads; kernels smaller and larger than the stride.
Problem random_layer(Random& random) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = static_cast<int>(uniform(random, 1, 3));
    problem.direction = kDirections[uniform(random, 0, 2)];
    problem.dtype = chance(random, 0.8) ? DType::f32 : DType::f64;
    problem.bias = problem.direction == Direction::forward && chance(random, 0.5);
    problem.batch = uniform(random, 1, 3);
    const auto channels = [&] { return chance(random, 0.5) ? 16 * uniform(random, 1, 4) : uniform(random, 12, 45); };
    problem.in_channels = channels();
    problem.out_channels = channels();
    for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a) {
      Axis& axis = problem.axes[a];
      axis.input = uniform(random, 1, problem.rank == 1 ? 150 : (problem.rank == 2 ? 9 : 4));
      axis.stride = uniform(random, 1, problem.rank == 3 ? 3 : 7);
      axis.kernel = chance(random, 0.5) ? 2 * axis.stride : uniform(random, 1, 2 * axis.stride + 1);
      axis.dilation = chance(random, 0.8) ? 1 : uniform(random, 2, 3);
      axis.pad_begin = uniform(random, 0, axis.kernel);
      axis.pad_end = uniform(random, 0, axis.kernel);
      axis.output_padding = chance(random, 0.6) ? 0 : uniform(random, 0, axis.stride - 1);
    }
  } while (std::any_of(problem.axes.begin(), problem.axes.end(), [](const Axis& axis) { return axis.output() <= 0; }));
  set_contiguous(problem);
  if (chance(random, 0.3)) problem.output_strides = random_strides(random, problem.output_sizes(), false);
  if (chance(random, 0.2)) problem.weight_strides = channels_last_strides(problem.weight_sizes());
  return problem;
}

TEST(Lattices, EveryInstructionSet) {
  Random random(71);
  test::check_every_target(random, test::cases(80), 1, random_layer, [](const Problem& problem, Tensors& tensors) {
    check_family("winograd", problem, tensors);
    return check_family("phases", problem, tensors);
  });
}

Problem image_layer(Direction direction, std::int64_t batch, std::array<std::int64_t, 2> channels, const Axis& axis) {
  Problem problem;
  problem.rank = 2;
  problem.direction = direction;
  problem.batch = batch;
  problem.in_channels = channels[0];
  problem.out_channels = channels[1];
  problem.axes[1] = problem.axes[2] = axis;
  problem.axes[2].input += 2;
  problem.bias = direction == Direction::forward;
  set_contiguous(problem);
  return problem;
}

// 36 and 49 lattices: few channels of all of them are combined, or packed, at a time.
TEST(Lattices, ChannelsInSteps) {
  Random random(72);
  for (const std::string family : {"winograd", "phases"}) {
    for (const std::int64_t stride : {6, 7}) {
      for (const std::int64_t outputs : {64, 40}) {
        if (kSanitized && (stride == 7 || outputs == 64)) continue;  // the reference takes long there
        const Problem problem =
            image_layer(Direction::grad_input, 3, {48, outputs}, {9, 2 * stride, stride, 1, 3, 2, 0});
        const std::string text = plan(problem, {}, family)->kernel->describe();
        EXPECT_NE(text.find(" 16 source channels a step"), std::string::npos) << text;
        Tensors tensors(problem, random);
        compute_exact(problem, tensors);
        EXPECT_TRUE(check_family(family, problem, tensors)) << to_string(problem);
        expect_threads_change_nothing(problem, family, random);
      }
    }
  }
}

// More than 64 taps side by side, several channels and targets that fill no vector.
TEST(Lattices, WeightsOfManyTaps) {
  Random random(73);
  for (const Direction direction : {Direction::forward, Direction::grad_input}) {
    for (const Axis& axis : {Axis{5, 9, 1, 1, 4, 4, 0}, Axis{4, 12, 5, 1, 1, 2, 0}, Axis{2, 33, 16, 1, 0, 0, 0}}) {
      for (const DType dtype : {DType::f32, DType::f64}) {
        if (kSanitized && dtype == DType::f64) continue;
        Problem problem = image_layer(direction, 2, {37, 43}, axis);
        problem.dtype = dtype;
        Tensors tensors(problem, random);
        compute_exact(problem, tensors);
        for (const std::string& name : cpu::target_names()) {
          const Target target(name);
          SCOPED_TRACE(name);
          check_family("phases", problem, tensors);
        }
      }
    }
  }
}

// Gradients of weights: phases that begin at the same cells share what is combined of the input, and tiles are as few
// as the cache allows where there is no room for partial sums.
TEST(Lattices, WeightsOfPhases) {
  Random random(74);
  for (const std::int64_t batch : {1, 5}) {
    if (kSanitized && batch > 1) continue;
    for (const Axis& axis : {Axis{9, 6, 4, 1, 1, 1, 0}, Axis{7, 8, 4, 1, 2, 2, 0}, Axis{7, 5, 3, 1, 1, 1, 0}}) {
      const Problem problem = image_layer(Direction::grad_weight, batch, {64, 64}, axis);
      Tensors tensors(problem, random);
      compute_exact(problem, tensors);
      EXPECT_TRUE(check_family("phases", problem, tensors)) << to_string(problem);
      if (check_family("winograd", problem, tensors)) expect_threads_change_nothing(problem, "winograd", random);
    }
  }
}

}  // namespace
}  // namespace tconv::test
