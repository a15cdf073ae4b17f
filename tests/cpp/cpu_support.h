// Random problems and tensors in random layouts, for the tests of the CPU kernels.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cpu/scalar.h"
#include "tconv/tconv.h"

namespace tconv::test {

using Random = std::mt19937_64;

inline std::int64_t uniform(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

inline bool chance(Random& random, double probability) { return std::bernoulli_distribution(probability)(random); }

// Where element 0 and the extremes of a strided tensor lie.
struct Extent {
  std::int64_t lowest = 0;
  std::int64_t highest = 0;

  Extent(const Sizes& sizes, const Strides& strides) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::int64_t reach = std::max<std::int64_t>(sizes[i] - 1, 0) * strides[i];
      (reach < 0 ? lowest : highest) += reach;
    }
  }
};

template <typename Visit>
void for_each_offset(const Sizes& sizes, const Strides& strides, const Visit& visit) {
  if (element_count(sizes) == 0) return;
  std::array<std::int64_t, 5> at{};
  for (;;) {
    visit(std::inner_product(at.begin(), at.end(), strides.begin(), std::int64_t{0}));
    std::size_t i = at.size();
    while (i > 0 && ++at[i - 1] == sizes[i - 1]) at[--i] = 0;
    if (i == 0) return;
  }
}

// Dense or not, any order of the dimensions, some of them backwards; with `expand`, some of them repeated (stride 0).
inline Strides random_strides(Random& random, const Sizes& sizes, bool expand) {
  const std::int64_t kind = uniform(random, 0, 4);
  if (kind == 0) return contiguous_strides(sizes);
  if (kind == 1) return channels_last_strides(sizes);
  std::array<int, 5> order = {4, 3, 2, 1, 0};
  if (kind == 2) {
    std::swap(order[3], order[4]);  // the two outer dimensions exchanged, as in a transposed weight
  } else {
    std::shuffle(order.begin(), order.end(), random);
  }
  Strides strides{};
  std::int64_t step = chance(random, 0.3) ? 2 : 1;
  for (const int dimension : order) {
    if (expand && chance(random, 0.15)) continue;
    strides[dimension] = chance(random, 0.2) ? -step : step;
    step *= std::max<std::int64_t>(sizes[dimension], 1);
    if (chance(random, 0.2)) step += uniform(random, 1, 3);
  }
  return strides;
}

// A tensor held as exact doubles and as bytes of its dtype, both in the same strides, with a margin around it.
struct Tensor {
  static constexpr std::int64_t kMargin = 9;

  DType dtype;
  Sizes sizes;
  Strides strides;
  std::int64_t first = 0;  // element 0
  std::vector<double> exact;
  std::vector<double> magnitude;
  std::vector<std::byte> bytes;

  Tensor(DType type, const Sizes& tensor_sizes, const Strides& tensor_strides)
      : dtype(type), sizes(tensor_sizes), strides(tensor_strides) {
    const Extent extent(sizes, strides);
    first = kMargin - extent.lowest;
    const std::size_t count = extent.highest - extent.lowest + 1 + 2 * kMargin;
    exact.assign(count, std::nan(""));
    magnitude.assign(count, std::nan(""));
    bytes.assign(count * size_of(dtype), std::byte{0xff});  // NaN in every dtype
  }

  void* data() { return bytes.data() + first * static_cast<std::int64_t>(size_of(dtype)); }
  double* exact_data() { return exact.data() + first; }
  double* magnitude_data() { return magnitude.data() + first; }

  double get(std::int64_t offset) const {
    const std::byte* from = bytes.data() + (first + offset) * static_cast<std::int64_t>(size_of(dtype));
    switch (dtype) {
      case DType::f64: return read<double>(from);
      case DType::f32: return read<float>(from);
      case DType::f16: return cpu::to_float(read<cpu::Float16>(from));
      case DType::bf16: return cpu::to_float(read<cpu::BFloat16>(from));
    }
    return std::nan("");
  }

  void set(std::int64_t offset, double value) {
    std::byte* to = bytes.data() + (first + offset) * static_cast<std::int64_t>(size_of(dtype));
    switch (dtype) {
      case DType::f64: write(to, value); break;
      case DType::f32: write(to, static_cast<float>(value)); break;
      case DType::f16: write(to, cpu::Element<cpu::Float16>::store(value)); break;
      case DType::bf16: write(to, cpu::Element<cpu::BFloat16>::store(value)); break;
    }
    exact[first + offset] = get(offset);
    magnitude[first + offset] = std::fabs(get(offset));
  }

  void fill(Random& random) {
    std::normal_distribution<double> normal;
    for_each_offset(sizes, strides, [&](std::int64_t offset) { set(offset, normal(random)); });
  }

  void poison() { std::fill(bytes.begin(), bytes.end(), std::byte{0xff}); }

  // The first element outside of the tensor that is no longer poisoned, or -1.
  std::int64_t damaged() const {
    std::vector<bool> mine(exact.size(), false);
    for_each_offset(sizes, strides, [&](std::int64_t offset) { mine[first + offset] = true; });
    const std::size_t size = size_of(dtype);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (!mine[i / size] && bytes[i] != std::byte{0xff}) return static_cast<std::int64_t>(i / size);
    }
    return -1;
  }

 private:
  template <typename T>
  static T read(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  template <typename T>
  static void write(std::byte* to, T value) {
    std::memcpy(to, &value, sizeof(T));
  }
};

// The four tensors of a problem; the one that is computed is poisoned.
struct Tensors {
  Tensor input;
  Tensor weight;
  Tensor bias;
  Tensor output;

  Tensors(const Problem& problem, Random& random)
      : input(problem.dtype, problem.input_sizes(), problem.input_strides),
        weight(problem.dtype, problem.weight_sizes(), problem.weight_strides),
        bias(problem.dtype, {problem.out_channels, 1, 1, 1, 1}, {1, 0, 0, 0, 0}),
        output(problem.dtype, problem.output_sizes(), problem.output_strides) {
    for (Tensor* tensor : {&input, &weight, &bias, &output}) {
      if (tensor != &result(problem)) tensor->fill(random);
    }
  }

  Tensor& result(const Problem& problem) {
    switch (problem.direction) {
      case Direction::forward: return output;
      case Direction::grad_input: return input;
      case Direction::grad_weight: return weight;
      case Direction::grad_bias: return bias;
    }
    throw Error("unknown direction");
  }

  Buffers buffers() { return {input.data(), weight.data(), bias.data(), output.data(), nullptr}; }
  Buffers exact_buffers() {
    return {input.exact_data(), weight.exact_data(), bias.exact_data(), output.exact_data(), nullptr};
  }
  Buffers magnitude_buffers() {
    return {input.magnitude_data(), weight.magnitude_data(), bias.magnitude_data(), output.magnitude_data(), nullptr};
  }
};

// Terms of the longest sum of the problem, the bias included.
inline double terms_of(const Problem& problem) {
  double taps = 1;
  double inputs = 1;
  double outputs = 1;
  for (const Axis& axis : problem.axes) {
    taps *= static_cast<double>(axis.kernel);
    inputs *= static_cast<double>(axis.input);
    outputs *= static_cast<double>(axis.output());
  }
  const auto batch = static_cast<double>(problem.batch);
  switch (problem.direction) {
    case Direction::forward: return 1 + taps * static_cast<double>(problem.in_channels_per_group());
    case Direction::grad_input: return taps * static_cast<double>(problem.out_channels_per_group());
    case Direction::grad_weight: return batch * inputs;
    case Direction::grad_bias: return batch * outputs;
  }
  return 0;
}

inline double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-53;
    case DType::f32: return 0x1p-24;
    case DType::f16: return 0x1p-11;
    case DType::bf16: return 0x1p-8;
  }
  return 1;
}

inline double smallest_step(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-1074;
    case DType::f32: return 0x1p-149;
    case DType::f16: return 0x1p-24;
    case DType::bf16: return 0x1p-133;
  }
  return 0;
}

inline bool expanded(const Tensor& tensor) {
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.strides[i] == 0 && tensor.sizes[i] > 1) return true;
  }
  return false;
}

// Checks every element of the result against the sum in double: a rounding of the arithmetic for each of the `terms`
// (the standard bound, n u sum |a b|) and one rounding to the dtype. Unless an expanded tensor repeats the same
// roundings over and over, the whole must also be as much better than that as roundings in all directions make it.
inline void expect_close(const Problem& problem, Tensors& tensors, DType arithmetic, double terms) {
  Tensor& result = tensors.result(problem);
  const double sums = terms * unit_roundoff(arithmetic) * 1.01;
  const double rounding = arithmetic == problem.dtype ? 0 : unit_roundoff(problem.dtype);
  double error_square = 0;
  double scale_square = 0;
  std::int64_t wrong = 0;
  std::string first;
  for_each_offset(result.sizes, result.strides, [&](std::int64_t offset) {
    const double wanted = result.exact[result.first + offset];
    const double magnitude = result.magnitude[result.first + offset];
    const double got = result.get(offset);
    const double bound =
        (sums * magnitude) * (1 + rounding) + rounding * std::fabs(wanted) + smallest_step(problem.dtype);
    error_square += (got - wanted) * (got - wanted);
    scale_square += magnitude * magnitude;
    if (!(std::fabs(got - wanted) <= bound) && ++wrong == 1) {
      first = "offset " + std::to_string(offset) + ": got " + std::to_string(got) + ", wanted " +
              std::to_string(wanted) + " within " + std::to_string(bound);
    }
  });
  EXPECT_EQ(wrong, 0) << to_string(problem) << "\n" << first;
  if (!expanded(tensors.input) && !expanded(tensors.weight) && !expanded(tensors.output)) {
    const double norm_bound = 4 * std::sqrt(terms) * unit_roundoff(arithmetic) + rounding;
    EXPECT_LE(std::sqrt(error_square), norm_bound * std::sqrt(scale_square) + smallest_step(problem.dtype) * 100)
        << to_string(problem);
  }
  EXPECT_EQ(result.damaged(), -1) << "wrote outside of the result: " << to_string(problem);
}

// Runs a plan with the workspace that it asks for, poisoned.
inline void run_with_workspace(const Plan& plan, Buffers buffers, const Execution& execution = {}) {
  constexpr std::size_t kAlignment = 256;
  std::vector<std::byte> memory(plan.workspace_bytes + kAlignment, std::byte{0xff});
  void* aligned = memory.data();
  std::size_t space = memory.size();
  buffers.workspace = std::align(kAlignment, plan.workspace_bytes, aligned, space);
  run(plan, buffers, execution);
}

// The result in double, and the sum of the magnitudes of its terms, by the reference.
inline void compute_exact(const Problem& problem, Tensors& tensors) {
  Problem exact = problem;
  exact.dtype = DType::f64;
  const auto reference = plan(exact, {}, "reference");
  run(*reference, tensors.exact_buffers());
  run(*reference, tensors.magnitude_buffers());
}

// A small problem with every kind of trouble in it.
inline Problem random_problem(Random& random) {
  Problem problem;
  do {
    problem = Problem{};
    problem.rank = static_cast<int>(uniform(random, 1, 3));
    problem.direction = static_cast<Direction>(std::min<std::int64_t>(uniform(random, 0, 6) / 2, 3));
    problem.dtype = static_cast<DType>(uniform(random, 0, 3));
    problem.bias = problem.direction == Direction::forward && chance(random, 0.5);
    problem.batch = chance(random, 0.04) ? 0 : uniform(random, 1, 3);
    problem.groups = chance(random, 0.6) ? 1 : uniform(random, 2, 5);
    const bool depthwise = chance(random, 0.3);
    const std::int64_t most = problem.rank == 1 ? 40 : 14;
    const auto channels = [&] { return depthwise ? 1 : (chance(random, 0.03) ? 0 : uniform(random, 1, most)); };
    problem.in_channels = problem.groups * channels();
    problem.out_channels = problem.groups * channels();
    for (int a = kSpatialAxes - problem.rank; a < kSpatialAxes; ++a) {
      Axis& axis = problem.axes[a];
      const std::int64_t longest = problem.rank == 1 ? 90 : (problem.rank == 2 ? 12 : 6);
      axis.input = chance(random, 0.2) ? uniform(random, 0, 2) : uniform(random, 1, longest);
      axis.kernel = uniform(random, 1, problem.rank == 1 ? 9 : 4);
      axis.stride = uniform(random, 1, 5);
      axis.dilation = chance(random, 0.6) ? 1 : uniform(random, 2, 4);
      axis.pad_begin = chance(random, 0.4) ? 0 : uniform(random, 0, axis.kernel * axis.dilation + 2);
      axis.pad_end = chance(random, 0.5) ? axis.pad_begin : uniform(random, 0, axis.kernel * axis.dilation + 2);
      axis.output_padding = chance(random, 0.6) ? 0 : uniform(random, 0, std::max(axis.stride, axis.dilation) - 1);
    }
  } while (std::any_of(problem.axes.begin(), problem.axes.end(), [](const Axis& axis) { return axis.output() < 0; }));
  const auto layout = [&](const Sizes& sizes, Direction written) {
    return random_strides(random, sizes, problem.direction != written);
  };
  problem.input_strides = layout(problem.input_sizes(), Direction::grad_input);
  problem.weight_strides = layout(problem.weight_sizes(), Direction::grad_weight);
  problem.output_strides = layout(problem.output_sizes(), Direction::forward);
  return problem;
}

}  // namespace tconv::test
