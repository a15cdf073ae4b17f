// The "depthwise" family, forced, against the reference: one channel a group, channels or rows side by side, every
// direction and instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cases.h"
#include "cpu/families.h"
#include "cpu_family_checks.h"
#include "cpu_support.h"

namespace tconv::test {
namespace {

constexpr std::array kDirections = {Direction::forward, Direction::grad_input, Direction::grad_weight};

Problem random_depthwise(Random& random) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = static_cast<int>(uniform(random, 1, 3));
    problem.direction = kDirections[uniform(random, 0, 2)];
    problem.dtype = static_cast<DType>(uniform(random, 0, 3));
    problem.bias = problem.direction == Direction::forward && chance(random, 0.5);
    problem.batch = uniform(random, 1, 3);
    problem.groups = problem.in_channels = problem.out_channels = uniform(random, 8, 90);
    for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a) {
      Axis& axis = problem.axes[a];
      axis.input = uniform(random, 1, problem.rank == 1 ? 60 : (problem.rank == 2 ? 11 : 5));
      axis.kernel = uniform(random, 1, problem.rank == 1 ? 12 : 5);
      axis.stride = uniform(random, 1, 4);
      axis.dilation = chance(random, 0.7) ? 1 : uniform(random, 2, 3);
      axis.pad_begin = chance(random, 0.4) ? 0 : uniform(random, 0, axis.kernel * axis.dilation + 2);
      axis.pad_end = chance(random, 0.5) ? axis.pad_begin : uniform(random, 0, axis.kernel * axis.dilation + 2);
      axis.output_padding = chance(random, 0.7) ? 0 : uniform(random, 0, std::max(axis.stride, axis.dilation) - 1);
    }
  } while (std::any_of(problem.axes.begin(), problem.axes.end(), [](const Axis& axis) { return axis.output() <= 0; }));
  problem.input_strides = channels_last_strides(problem.input_sizes());
  problem.output_strides = channels_last_strides(problem.output_sizes());
  problem.weight_strides = random_strides(random, problem.weight_sizes(), problem.direction != Direction::grad_weight);
  return problem;
}

// Channels-last, several channels a group.
Problem random_small_groups(Random& random) {
  constexpr std::array<std::array<int, 2>, 14> kGroups = {{{1, 2},
                                                           {1, 3},
                                                           {1, 4},
                                                           {1, 5},
                                                           {1, 7},
                                                           {1, 16},
                                                           {2, 1},
                                                           {2, 2},
                                                           {2, 3},
                                                           {2, 8},
                                                           {3, 1},
                                                           {3, 3},
                                                           {4, 2},
                                                           {1, 1}}};
  Problem problem = random_depthwise(random);
  const auto [inputs, outputs] = kGroups[uniform(random, 0, kGroups.size() - 1)];
  problem.dtype = chance(random, 0.3) ? DType::f64 : DType::f32;
  problem.groups = chance(random, 0.8) ? uniform(random, 4, 40) : uniform(random, 60, 200);
  problem.in_channels = problem.groups * inputs;
  problem.out_channels = problem.groups * outputs;
  if (problem.rank == 1 && chance(random, 0.3)) problem.axes[2].input = uniform(random, 600, 1200);
  const auto with_gaps = [&](Sizes sizes) {
    if (chance(random, 0.3)) sizes[uniform(random, 1, 4)] += 3;
    return channels_last_strides(sizes);
  };
  problem.input_strides = with_gaps(problem.input_sizes());
  problem.output_strides = with_gaps(problem.output_sizes());
  problem.weight_strides = random_strides(random, problem.weight_sizes(), problem.direction != Direction::grad_weight);
  return problem;
}

// Channels-last, so many channels or so long rows that gradients take them in parts.
Problem random_parts(Random& random) {
  Problem problem;
  do {
    problem = random_depthwise(random);
    problem.direction = kDirections[uniform(random, 1, 2)];
    problem.bias = false;
    problem.batch = 1;
    if (problem.rank == 1) {
      problem.axes[2].input = uniform(random, 600, 900);
    } else {
      problem.groups = problem.in_channels = problem.out_channels = uniform(random, 120, 400);
      problem.axes[1].input = uniform(random, 2, 4);
      problem.axes[2].input = uniform(random, 20, 40);
      problem.axes[0].input = std::min<std::int64_t>(problem.axes[0].input, 2);
    }
  } while (std::any_of(problem.axes.begin(), problem.axes.end(), [](const Axis& axis) { return axis.output() <= 0; }));
  problem.input_strides = channels_last_strides(problem.input_sizes());
  problem.output_strides = channels_last_strides(problem.output_sizes());
  problem.weight_strides = random_strides(random, problem.weight_sizes(), problem.direction != Direction::grad_weight);
  return problem;
}

// The same with rows that lie side by side.
Problem random_rows(Random& random) {
  Problem problem = random_depthwise(random);
  if (problem.rank == 1 && chance(random, 0.3)) {  // rows that are stored piece by piece
    problem.axes[2].input = uniform(random, 2000, 4000);
    problem.groups = problem.in_channels = problem.out_channels = uniform(random, 1, 3);
  } else if (problem.rank > 1 && chance(random, 0.4)) {  // rows that are whole vectors, of which some do the same
    const std::int64_t stride = std::int64_t{1} << uniform(random, 0, 2);
    const std::int64_t padding = uniform(random, 0, 2);
    problem.axes[2] = {16 * uniform(random, 1, 3), stride + 2 * padding, stride, 1, padding, padding, 0};
    problem.axes[1] = {uniform(random, 3, 12), uniform(random, 1, 4), uniform(random, 1, 2), 1, 0, 0, 0};
    problem.axes[1].output_padding = uniform(random, 0, problem.axes[1].stride - 1);
    problem.axes[1].pad_begin = problem.axes[1].pad_end = problem.axes[1].kernel / 2;
    problem.groups = problem.in_channels = problem.out_channels = uniform(random, 1, 20);
  } else if (chance(random, 0.1)) {  // several boxes of an image
    for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a)
      problem.axes[a].input += problem.rank == 3 ? 9 : 40;
    problem.groups = problem.in_channels = problem.out_channels = uniform(random, 1, 2);
  }
  const auto with_gaps = [&](Sizes sizes) {
    if (chance(random, 0.3)) sizes[uniform(random, 1, 4)] += 3;
    return contiguous_strides(sizes);
  };
  problem.input_strides = with_gaps(problem.input_sizes());
  problem.output_strides = with_gaps(problem.output_sizes());
  problem.weight_strides = random_strides(random, problem.weight_sizes(), problem.direction != Direction::grad_weight);
  return problem;
}

// Forward of images in either layout whose kernels are longer than what registers hold, or whole multiples of their
// strides, or dilated.
Problem random_images(Random& random) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = chance(random, 0.8) ? 2 : 3;
    problem.dtype = chance(random, 0.7) ? DType::f32 : static_cast<DType>(uniform(random, 0, 3));
    problem.bias = chance(random, 0.5);
    problem.batch = uniform(random, 1, 3);
    problem.groups = problem.in_channels = problem.out_channels = uniform(random, 1, 70);
    for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a) {
      Axis& axis = problem.axes[a];
      axis.input = uniform(random, 1, problem.rank == 3 ? 7 : 12);
      axis.stride = uniform(random, 1, 4);
      axis.kernel = problem.rank == 2 && chance(random, 0.4)
                        ? uniform(random, 5, 20)
                        : axis.stride * uniform(random, 1, 3) + uniform(random, 0, 1);
      axis.dilation = chance(random, 0.8) ? 1 : uniform(random, 2, 3);
      const std::int64_t extent = axis.dilation * (axis.kernel - 1) + 1;
      axis.pad_begin =
          chance(random, 0.6) ? std::max<std::int64_t>(extent - axis.stride, 0) / 2 : uniform(random, 0, extent + 1);
      axis.pad_end = chance(random, 0.6) ? axis.pad_begin : uniform(random, 0, extent + 1);
      axis.output_padding = chance(random, 0.7) ? 0 : uniform(random, 0, std::max(axis.stride, axis.dilation) - 1);
    }
    if (problem.rank == 2) problem.axes[2].input += chance(random, 0.5) ? 0 : uniform(random, 10, 90);
  } while (std::any_of(problem.axes.begin(), problem.axes.end(), [](const Axis& axis) { return axis.output() <= 0; }));
  const bool last = chance(random, 0.5);
  const auto strides_of = [&](Sizes sizes) {
    if (chance(random, 0.3)) sizes[uniform(random, 1, 4)] += 3;
    return last ? channels_last_strides(sizes) : contiguous_strides(sizes);
  };
  problem.input_strides = strides_of(problem.input_sizes());
  problem.output_strides = strides_of(problem.output_sizes());
  problem.weight_strides = random_strides(random, problem.weight_sizes(), true);
  return problem;
}

// The other gradient of a layer, in its own layout.
Problem other_gradient(Problem problem, Random& random) {
  const bool of_input = problem.direction == Direction::grad_weight;
  problem.direction = of_input ? Direction::grad_input : Direction::grad_weight;
  problem.weight_strides = random_strides(random, problem.weight_sizes(), of_input);
  return problem;
}

// Both gradients in one pass have the same bits as one by one.
void check_both(const Problem& problem, Random& random) {
  const bool input_first = problem.direction == Direction::grad_input;
  const Problem other = other_gradient(problem, random);
  const Problem& of_input = input_first ? problem : other;
  const Problem& of_weight = input_first ? other : problem;
  const auto plan_input = plan(of_input, {}, "depthwise");
  const auto plan_weight = plan(of_weight, {}, "depthwise");
  Tensors for_input(of_input, random);
  Tensors for_weight(of_weight, random);
  for_weight.output.bytes = for_input.output.bytes;
  Buffers input_buffers = for_input.buffers();
  Buffers weight_buffers = for_weight.buffers();
  weight_buffers.output = input_buffers.output;
  run_with_workspace(*plan_input, input_buffers);
  run_with_workspace(*plan_weight, weight_buffers);
  const std::vector<std::byte> input_bytes = for_input.input.bytes;
  const std::vector<std::byte> weight_bytes = for_weight.weight.bytes;
  for (const int threads : {1, 3}) {
    for_input.input.poison();
    for_weight.weight.poison();
    constexpr std::size_t kAlignment = 256;
    const std::size_t size = std::max(plan_input->workspace_bytes, plan_weight->workspace_bytes);
    std::vector<std::byte> memory(size + kAlignment, std::byte{0xff});
    void* aligned = memory.data();
    std::size_t space = memory.size();
    input_buffers.workspace = weight_buffers.workspace = std::align(kAlignment, size, aligned, space);
    run_both(*plan_input, input_buffers, *plan_weight, weight_buffers, on_threads(threads));
    EXPECT_EQ(input_bytes, for_input.input.bytes) << to_string(of_input);
    EXPECT_EQ(weight_bytes, for_weight.weight.bytes) << to_string(of_weight);
  }
}

// False when the family declines.
bool check(const Problem& problem, Tensors& tensors) {
  std::shared_ptr<const Plan> chosen;
  try {
    chosen = plan(problem, {}, "depthwise");
  } catch (const Error&) {
    return false;
  }
  tensors.result(problem).poison();
  run_with_workspace(*chosen, tensors.buffers());
  const DType arithmetic = problem.dtype == DType::f64 ? DType::f64 : DType::f32;
  expect_close(problem, tensors, arithmetic, (terms_of(problem) + 8) * (arithmetic == DType::f64 ? 2 : 1));
  return true;
}

TEST(Depthwise, RandomProblems) {
  Random random(41);
  test::check_random_problems(random, test::cases(600), 3, random_depthwise, check);
}

TEST(Depthwise, EveryInstructionSet) {
  Random random(42);
  test::check_every_target(random, test::cases(60), 4, random_depthwise, check);
}

TEST(Depthwise, SmallGroups) {
  Random random(49);
  test::check_random_problems(random, test::cases(400), 3, random_small_groups, check);
  test::check_every_target(random, test::cases(60), 4, random_small_groups, check);
}

TEST(Depthwise, ChannelsLastInParts) {
  Random random(47);
  test::check_random_problems(random, test::cases(40), 3, random_parts, check);
}

TEST(Depthwise, BothGradientsAtOnce) {
  Random random(46);
  for (int i = 0; i < test::cases(120) && !HasFailure(); ++i) {
    Problem problem = chance(random, 0.4)   ? random_depthwise(random)
                      : chance(random, 0.4) ? random_small_groups(random)
                      : chance(random, 0.8) ? random_rows(random)
                                            : random_parts(random);
    if (problem.direction == Direction::forward) {
      problem.direction = Direction::grad_input;
      problem.bias = false;
    }
    try {
      plan(problem, {}, "depthwise");
    } catch (const Error&) {
      continue;
    }
    check_both(problem, random);
  }
}

TEST(Depthwise, PastTheCaches) {
  Random random(43);
  for (const Direction direction : {Direction::forward, Direction::grad_input}) {
    for (const std::int64_t channels : {16, 48, 80, 72, 128, 32}) {
      Problem problem;
      problem.rank = 2;
      problem.direction = direction;
      problem.dtype = channels == 72 ? DType::bf16 : channels == 80 ? DType::f64 : DType::f32;
      problem.batch = 2;
      problem.groups = problem.in_channels = problem.out_channels = channels;
      if (channels == 32) problem.out_channels *= 2;
      problem.axes[1] = {7, 4, 2, 1, 1, 1, 0};
      problem.axes[2] = {11, 3, 2, 1, 1, 1, 1};
      problem.bias = direction == Direction::forward;
      set_contiguous(problem);
      problem.input_strides = channels_last_strides(problem.input_sizes());
      problem.output_strides = channels_last_strides(problem.output_sizes());
      for (const std::int64_t offset : {0, 3}) {
        expect_past_caches_is_the_same(problem, "depthwise", offset, random);
      }
    }
  }
}

TEST(Depthwise, Rows) {
  Random random(44);
  test::check_random_problems(random, test::cases(400), 3, random_rows, check);
  test::check_every_target(random, test::cases(40), 4, random_rows, check);
}

TEST(Depthwise, Images) {
  Random random(50);
  test::check_random_problems(random, test::cases(500), 3, random_images, check);
  test::check_every_target(random, test::cases(60), 4, random_images, check);
}

// Dilations that no list of rows and no line of zeros has room for.
TEST(Depthwise, FarTaps) {
  Random random(77);
  constexpr std::int64_t kFar = 1'000'000'000;
  for (const int axis : {1, 2}) {
    Problem problem;
    problem.rank = 2;
    problem.batch = 2;
    problem.groups = problem.in_channels = problem.out_channels = 3;
    for (const int a : {1, 2}) problem.axes[a] = {5, 3, 1, 1, 1, 1, 0};
    problem.axes[axis] = {4, 3, 1, kFar, kFar, kFar, 0};
    set_contiguous(problem);
    Tensors tensors(problem, random);
    compute_exact(problem, tensors);
    tensors.result(problem).poison();
    run_with_workspace(*plan(problem), tensors.buffers());
    expect_close(problem, tensors, DType::f32, terms_of(problem) + 2);
  }
}

TEST(Depthwise, ImagesPastTheCaches) {
  Random random(51);
  for (int i = 0; i < test::cases(40); ++i) {
    const Problem problem = random_images(random);
    try {
      plan(problem, {}, "depthwise");
    } catch (const Error&) {
      continue;
    }
    expect_past_caches_is_the_same(problem, "depthwise", uniform(random, 0, 17), random);
  }
}

// What lies around the rows that are read, and taps that do not reach an output, are nothing to it.
TEST(Depthwise, ImagesKeepInfinitiesToTheirReaders) {
  Random random(52);
  for (int i = 0; i < test::cases(60); ++i) {
    Problem problem = random_images(random);
    problem.dtype = DType::f32;
    problem.batch = 1;
    problem.in_channels = problem.out_channels = problem.groups = uniform(random, 8, 40);
    problem.input_strides = channels_last_strides(problem.input_sizes());
    problem.output_strides = channels_last_strides(problem.output_sizes());
    problem.weight_strides = contiguous_strides(problem.weight_sizes());
    std::shared_ptr<const Plan> chosen;
    try {
      chosen = plan(problem, {}, "depthwise");
    } catch (const Error&) {
      continue;
    }
    Tensors tensors(problem, random);
    auto* const input = reinterpret_cast<float*>(tensors.input.bytes.data());
    auto* const weight = reinterpret_cast<float*>(tensors.weight.bytes.data());
    const auto inputs = static_cast<std::int64_t>(tensors.input.bytes.size() / sizeof(float));
    const auto weights = static_cast<std::int64_t>(tensors.weight.bytes.size() / sizeof(float));
    input[uniform(random, 0, static_cast<int>(inputs) - 1)] = std::numeric_limits<float>::infinity();
    weight[uniform(random, 0, static_cast<int>(weights) - 1)] = std::numeric_limits<float>::infinity();
    const auto is_finite = [&](const std::string& family) {
      tensors.output.poison();
      run_with_workspace(*plan(problem, {}, family), tensors.buffers());
      std::vector<bool> finite;
      const auto* const output = reinterpret_cast<const float*>(tensors.output.bytes.data());
      for (std::size_t j = 0; j < tensors.output.bytes.size() / sizeof(float); ++j) {
        finite.push_back(std::isfinite(output[j]));
      }
      return finite;
    };
    EXPECT_EQ(is_finite("reference"), is_finite("depthwise")) << to_string(problem);
  }
}

TEST(Depthwise, RowsPastTheCaches) {
  Random random(45);
  for (int i = 0; i < test::cases(40); ++i) {
    const Problem problem = random_rows(random);
    if (problem.direction == Direction::grad_weight) continue;
    try {
      plan(problem, {}, "depthwise");
    } catch (const Error&) {
      continue;
    }
    expect_past_caches_is_the_same(problem, "depthwise", uniform(random, 0, 17), random);
  }
}

Problem image_layer(Direction direction, std::int64_t batch) {
  Problem problem;
  problem.rank = 2;
  problem.direction = direction;
  problem.batch = batch;
  problem.groups = problem.in_channels = problem.out_channels = 37;
  problem.axes[1] = {21, 4, 2, 1, 1, 1, 0};
  problem.axes[2] = {33, 4, 2, 1, 1, 1, 0};
  set_contiguous(problem);
  problem.input_strides = channels_last_strides(problem.input_sizes());
  problem.output_strides = channels_last_strides(problem.output_sizes());
  return problem;
}

Problem small_groups_layer(Direction direction, std::int64_t batch) {
  Problem problem = image_layer(direction, batch);
  problem.in_channels *= 2;
  problem.out_channels *= 3;
  set_contiguous(problem);
  problem.input_strides = channels_last_strides(problem.input_sizes());
  problem.output_strides = channels_last_strides(problem.output_sizes());
  return problem;
}

TEST(Depthwise, ThreadsChangeNothing) {
  Random random(43);
  for (const Direction direction : kDirections) {
    expect_threads_change_nothing(image_layer(direction, 3), "depthwise", random);
  }
  for (const Direction direction : kDirections) {
    const Problem layer = small_groups_layer(direction, 3);
    expect_threads_change_nothing(layer, "depthwise", random);
    if (direction != Direction::grad_weight) expect_sample_alone_is_the_same(layer, "depthwise", 2, random);
  }
  for (const Direction direction : kDirections) {
    for (const std::int64_t stride : {2, 1}) {
      Problem rows = image_layer(direction, 3);
      for (Axis& axis : rows.axes) axis.stride = std::min(axis.stride, stride);
      set_contiguous(rows);
      expect_threads_change_nothing(rows, "depthwise", random);
      if (direction != Direction::grad_weight) expect_sample_alone_is_the_same(rows, "depthwise", 2, random);
    }
  }
}

// Rows that are used in place: a weight or an input that is infinite reaches only what reads it.
TEST(Depthwise, RowsKeepInfinitiesToTheirReaders) {
  Random random(48);
  for (const Direction direction : {Direction::grad_input, Direction::grad_weight}) {
    for (const std::int64_t width : {5, 16, 33, 129, 130}) {
      Problem problem = image_layer(direction, 1);
      problem.groups = problem.in_channels = problem.out_channels = 2;
      problem.axes[2].input = width;
      problem.axes[2].kernel = width % 2 == 0 ? 4 : 3;
      set_contiguous(problem);
      const auto chosen = plan(problem, {}, "depthwise");
      const std::string description = chosen->kernel->describe();
      if (description.find("in place") == std::string::npos) {  // needs masked vectors
        EXPECT_EQ(description.find("AVX3"), std::string::npos) << description;
        continue;
      }
      Tensors tensors(problem, random);
      const double infinity = std::numeric_limits<double>::infinity();
      if (direction == Direction::grad_input) {
        tensors.weight.set(0, infinity);  // reaches neither the first row nor the first column
        const std::int64_t middle = problem.axes[2].output() / 2;
        tensors.output.set(problem.output_strides[1] + 5 * problem.output_strides[3] + middle, infinity);
      } else {
        for (std::int64_t h = 0; h < problem.axes[1].input; ++h) {
          tensors.input.set(h * problem.input_strides[3], infinity);
        }
      }
      tensors.result(problem).poison();
      run_with_workspace(*chosen, tensors.buffers());
      const Tensor& result = tensors.result(problem);
      std::vector<bool> is_finite;
      for_each_offset(result.sizes, result.strides,
                      [&](std::int64_t offset) { is_finite.push_back(std::isfinite(result.get(offset))); });
      run_with_workspace(*plan(problem, {}, "reference"), tensors.buffers());
      std::size_t i = 0;
      for_each_offset(result.sizes, result.strides, [&](std::int64_t offset) {
        EXPECT_EQ(is_finite[i++], std::isfinite(result.get(offset))) << to_string(problem) << " at " << offset;
      });
    }
  }
}

TEST(Depthwise, IsChosenForChannelsLastAndForRows) {
  const Problem problem = image_layer(Direction::forward, 2);
  EXPECT_EQ(plan(problem)->family, "depthwise");
  Problem contiguous = problem;
  set_contiguous(contiguous);
  EXPECT_EQ(plan(contiguous)->family, "depthwise");
  contiguous.direction = Direction::grad_input;
  EXPECT_EQ(plan(contiguous)->family, "depthwise");
  Problem with_gaps = problem;  // a kernel smaller than its stride: outputs that no tap reaches
  with_gaps.axes[2] = {33, 2, 3, 1, 0, 0, 0};
  with_gaps.output_strides = channels_last_strides(with_gaps.output_sizes());
  EXPECT_EQ(plan(with_gaps)->family, "depthwise");
  with_gaps.axes[2] = {33, 2, 40, 1, 0, 0, 0};  // more of them than are worth a list
  with_gaps.output_strides = channels_last_strides(with_gaps.output_sizes());
  EXPECT_EQ(plan(with_gaps)->family, "phases");
  for (const Direction direction : kDirections) {
    Problem groups = small_groups_layer(direction, 2);
    EXPECT_EQ(plan(groups)->family, "depthwise");
    set_contiguous(groups);
    EXPECT_EQ(plan(groups)->family, "phases");
  }
}

}  // namespace
}  // namespace tconv::test
