#include "tconv/problem.h"

#include <functional>
#include <limits>

#include "tconv/error.h"

namespace tconv {
namespace {

constexpr std::array<const char*, kSpatialAxes> kAxisNames = {"depth", "height", "width"};

std::int64_t add(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) {
    throw Error("a size of the problem does not fit 64 bits: " + std::to_string(a) + " + " + std::to_string(b));
  }
  return result;
}

std::int64_t subtract(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_sub_overflow(a, b, &result)) {
    throw Error("a size of the problem does not fit 64 bits: " + std::to_string(a) + " - " + std::to_string(b));
  }
  return result;
}

std::int64_t multiply(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) {
    throw Error("a size of the problem does not fit 64 bits: " + std::to_string(a) + " * " + std::to_string(b));
  }
  return result;
}

void require(bool holds, const std::string& rule, std::int64_t value) {
  if (!holds) throw Error(rule + ", got " + std::to_string(value));
}

Strides packed_strides(const Sizes& sizes, const std::array<int, 5>& fastest_first) {
  Strides strides{};
  std::int64_t step = 1;
  for (const int dimension : fastest_first) {
    strides[dimension] = step;
    step = multiply(step, sizes[dimension] > 0 ? sizes[dimension] : 1);
  }
  return strides;
}

// The largest distance between two elements must be addressable, whatever the signs and order of the strides.
void require_addressable(const Sizes& sizes, const Strides& strides, std::size_t element_bytes) {
  if (element_count(sizes) == 0) return;
  std::int64_t reach = 1;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    require(strides[i] != std::numeric_limits<std::int64_t>::min(), "a stride in memory must fit 64 bits", strides[i]);
    reach = add(reach, multiply(sizes[i] - 1, strides[i] < 0 ? -strides[i] : strides[i]));
  }
  multiply(reach, static_cast<std::int64_t>(element_bytes));
}

std::string join(const std::array<Axis, kSpatialAxes>& axes, int rank, std::int64_t Axis::* member) {
  std::string text;
  for (int a = kSpatialAxes - rank; a < kSpatialAxes; ++a) {
    if (!text.empty()) text += "x";
    text += std::to_string(axes[a].*member);
  }
  return text;
}

bool all_equal(const std::array<Axis, kSpatialAxes>& axes, std::int64_t Axis::* member, std::int64_t value) {
  for (const Axis& axis : axes) {
    if (axis.*member != value) return false;
  }
  return true;
}

}  // namespace

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return 8;
    case DType::f32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
  }
  throw Error("unknown dtype " + std::to_string(static_cast<int>(dtype)));
}

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return "float64";
    case DType::f32: return "float32";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
  }
  return "unknown dtype";
}

const char* name_of(Direction direction) {
  switch (direction) {
    case Direction::forward: return "forward";
    case Direction::grad_input: return "grad_input";
    case Direction::grad_weight: return "grad_weight";
    case Direction::grad_bias: return "grad_bias";
  }
  return "unknown direction";
}

std::int64_t Axis::output() const {
  std::int64_t length = multiply(subtract(input, 1), stride);
  length = add(length, multiply(dilation, subtract(kernel, 1)));
  length = add(length, output_padding);
  length = add(length, 1);
  length = subtract(length, pad_begin);
  return subtract(length, pad_end);
}

Strides contiguous_strides(const Sizes& sizes) { return packed_strides(sizes, {4, 3, 2, 1, 0}); }
Strides channels_last_strides(const Sizes& sizes) { return packed_strides(sizes, {1, 4, 3, 2, 0}); }

Strides settled_strides(const Sizes& sizes, const Strides& strides) {
  const auto agrees = [&](const Strides& dense) {
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] > 1 && strides[d] != dense[d]) return false;
    }
    return true;
  };
  Strides settled = contiguous_strides(sizes);
  if (agrees(settled)) return settled;
  const Strides channels_last = channels_last_strides(sizes);
  if (agrees(channels_last)) return channels_last;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1) settled[d] = strides[d];
  }
  return settled;
}

Sizes Problem::input_sizes() const { return {batch, in_channels, axes[0].input, axes[1].input, axes[2].input}; }

Sizes Problem::weight_sizes() const {
  require(groups >= 1, "groups must be at least 1", groups);
  return {in_channels, out_channels_per_group(), axes[0].kernel, axes[1].kernel, axes[2].kernel};
}

Sizes Problem::output_sizes() const {
  return {batch, out_channels, axes[0].output(), axes[1].output(), axes[2].output()};
}

void set_contiguous(Problem& problem) {
  problem.input_strides = contiguous_strides(problem.input_sizes());
  problem.weight_strides = contiguous_strides(problem.weight_sizes());
  problem.output_strides = contiguous_strides(problem.output_sizes());
}

Problem with_joined_axes(Problem problem) {
  const auto does_nothing = [](const Axis& axis) {
    return axis.kernel == 1 && axis.stride == 1 && axis.pad_begin == 0 && axis.pad_end == 0 && axis.output_padding == 0;
  };
  for (std::size_t outer = 0; outer + 1 < kSpatialAxes; ++outer) {
    Axis& first = problem.axes[outer];
    Axis& second = problem.axes[outer + 1];
    if (!does_nothing(first) || !does_nothing(second)) continue;
    const auto dense = [&](const Strides& strides) {
      return first.input == 1 || strides[2 + outer] == strides[3 + outer] * second.input;
    };
    if (!dense(problem.input_strides) || !dense(problem.output_strides)) continue;
    second.input *= first.input;
    first.input = 1;
  }
  return problem;
}

void validate(const Problem& problem) {
  require(problem.rank >= 1 && problem.rank <= kSpatialAxes, "rank must be 1, 2 or 3", problem.rank);
  require(problem.batch >= 0, "batch must not be negative", problem.batch);
  require(problem.in_channels >= 0, "in_channels must not be negative", problem.in_channels);
  require(problem.out_channels >= 0, "out_channels must not be negative", problem.out_channels);
  require(problem.groups >= 1, "groups must be at least 1", problem.groups);
  const std::string by_groups = " must be divisible by groups (" + std::to_string(problem.groups) + ")";
  require(problem.in_channels % problem.groups == 0, "in_channels" + by_groups, problem.in_channels);
  require(problem.out_channels % problem.groups == 0, "out_channels" + by_groups, problem.out_channels);
  for (int a = 0; a < kSpatialAxes; ++a) {
    const Axis& axis = problem.axes[a];
    const std::string of = std::string(" of the ") + kAxisNames[a] + " axis";
    require(axis.input >= 0, "input size" + of + " must not be negative", axis.input);
    require(axis.kernel >= 1, "kernel size" + of + " must be at least 1", axis.kernel);
    require(axis.stride >= 1, "stride" + of + " must be at least 1", axis.stride);
    require(axis.dilation >= 1, "dilation" + of + " must be at least 1", axis.dilation);
    require(axis.pad_begin >= 0, "padding" + of + " must not be negative", axis.pad_begin);
    require(axis.pad_end >= 0, "padding" + of + " must not be negative", axis.pad_end);
    require(axis.output_padding >= 0, "output_padding" + of + " must not be negative", axis.output_padding);
    require(axis.output_padding < axis.stride || axis.output_padding < axis.dilation,
            "output_padding" + of + " must be smaller than stride (" + std::to_string(axis.stride) + ") or dilation (" +
                std::to_string(axis.dilation) + ")",
            axis.output_padding);
    require(axis.output() >= 0,
            "output size" + of + " must not be negative (input " + std::to_string(axis.input) + ", kernel " +
                std::to_string(axis.kernel) + ", padding " + std::to_string(axis.pad_begin) + " and " +
                std::to_string(axis.pad_end) + ")",
            axis.output());
  }
  const std::size_t bytes = size_of(problem.dtype);
  require_addressable(problem.input_sizes(), problem.input_strides, bytes);
  require_addressable(problem.weight_sizes(), problem.weight_strides, bytes);
  require_addressable(problem.output_sizes(), problem.output_strides, bytes);
}

std::int64_t output_padding_for(const Axis& axis, std::int64_t wanted) {
  Axis bare = axis;
  bare.output_padding = 0;
  const std::int64_t smallest = bare.output();
  const std::int64_t largest = add(smallest, subtract(axis.stride, 1));
  if (wanted < smallest || wanted > largest) {
    throw Error("output size must be between " + std::to_string(smallest) + " and " + std::to_string(largest) +
                " for this input, kernel, stride, padding and dilation, got " + std::to_string(wanted));
  }
  return wanted - smallest;
}

std::int64_t element_count(const Sizes& sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    if (size == 0) return 0;
  }
  for (const std::int64_t size : sizes) count = multiply(count, size);
  return count;
}

double multiply_adds(const Problem& problem) {
  double count = static_cast<double>(problem.batch) * static_cast<double>(problem.in_channels) *
                 static_cast<double>(problem.out_channels_per_group());
  for (const Axis& axis : problem.axes) count *= static_cast<double>(axis.input) * static_cast<double>(axis.kernel);
  return count;
}

std::string to_string(const Problem& problem) {
  const auto& axes = problem.axes;
  const int rank = problem.rank;
  std::string text = std::string(name_of(problem.direction)) + " " + name_of(problem.dtype);
  if (problem.dtype == DType::f32 && problem.precision == Precision::tf32) text += " (tf32)";
  text += " " + std::to_string(rank) + "-D n" + std::to_string(problem.batch) + " c" +
          std::to_string(problem.in_channels) + "->" + std::to_string(problem.out_channels) + " i" +
          join(axes, rank, &Axis::input) + " k" + join(axes, rank, &Axis::kernel);
  if (!all_equal(axes, &Axis::stride, 1)) text += " s" + join(axes, rank, &Axis::stride);
  const bool symmetric = [&] {
    for (const Axis& axis : axes) {
      if (axis.pad_begin != axis.pad_end) return false;
    }
    return true;
  }();
  if (!symmetric) {
    text += " pad_begin" + join(axes, rank, &Axis::pad_begin) + " pad_end" + join(axes, rank, &Axis::pad_end);
  } else if (!all_equal(axes, &Axis::pad_begin, 0)) {
    text += " p" + join(axes, rank, &Axis::pad_begin);
  }
  if (!all_equal(axes, &Axis::output_padding, 0)) text += " op" + join(axes, rank, &Axis::output_padding);
  if (!all_equal(axes, &Axis::dilation, 1)) text += " d" + join(axes, rank, &Axis::dilation);
  if (problem.groups != 1) text += " g" + std::to_string(problem.groups);
  if (problem.bias) text += " bias";
  if (problem.beside) text += " beside grad_weight";
  return text;
}

std::size_t hash_of(const Problem& problem) {
  std::size_t seed = 0;
  const auto mix = [&seed](std::int64_t value) {
    seed ^= std::hash<std::int64_t>{}(value) + 0x9e3779b97f4a7c15ULL + (seed << 12U) + (seed >> 4U);
  };
  mix(problem.rank);
  mix(static_cast<int>(problem.direction) * 64 + static_cast<int>(problem.dtype) * 8 +
      static_cast<int>(problem.precision) * 4 + static_cast<int>(problem.beside) * 2 + static_cast<int>(problem.bias));
  mix(problem.batch);
  mix(problem.in_channels);
  mix(problem.out_channels);
  mix(problem.groups);
  for (const Axis& axis : problem.axes) {
    for (const std::int64_t value :
         {axis.input, axis.kernel, axis.stride, axis.dilation, axis.pad_begin, axis.pad_end, axis.output_padding}) {
      mix(value);
    }
  }
  for (const Strides* strides : {&problem.input_strides, &problem.weight_strides, &problem.output_strides}) {
    for (const std::int64_t stride : *strides) mix(stride);
  }
  return seed;
}

}  // namespace tconv
