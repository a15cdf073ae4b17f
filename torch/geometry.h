// The numbers of one call, checked. Written once for plain integers (the kernels) and for symbolic ones (meta tensors),
// so that what is refused, and the shape that comes out, can't differ between the two.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "tconv/problem.h"

namespace tconv::front {

inline constexpr std::int64_t kLeadingDims = 2;  // batch and channels, or the two channel counts of a weight

// Rules are demanded rather than asked: a symbolic size that is not known yet becomes a run-time assertion.
inline bool at_least(std::int64_t value, std::int64_t least) { return value >= least; }
inline bool at_least(const c10::SymInt& value, const c10::SymInt& least) {
  return value.sym_ge(least).expect_true(__FILE__, __LINE__);
}
inline std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
inline c10::SymInt larger(const c10::SymInt& a, const c10::SymInt& b) { return a.max(b); }
inline bool equal(std::int64_t a, std::int64_t b) { return a == b; }
inline bool equal(const c10::SymInt& a, const c10::SymInt& b) { return a.sym_eq(b).expect_true(__FILE__, __LINE__); }

template <typename Int>
struct Geometry {
  int rank = 0;
  Int batch = 0;
  Int in_channels = 0;
  Int out_channels = 0;
  Int groups = 1;
  // One entry per spatial axis that the caller has, outermost first.
  std::array<Int, kSpatialAxes> input{}, kernel{}, stride{}, padding{}, output_padding{}, dilation{}, output{};

  c10::SmallVector<Int, 5> output_shape() const {
    c10::SmallVector<Int, 5> shape = {batch, out_channels};
    for (int a = 0; a < rank; ++a) shape.push_back(output[a]);
    return shape;
  }
};

inline Axis axis_of(const Geometry<std::int64_t>& g, int a) {
  return {.input = g.input[a],
          .kernel = g.kernel[a],
          .stride = g.stride[a],
          .dilation = g.dilation[a],
          .pad_begin = g.padding[a],
          .pad_end = g.padding[a],
          .output_padding = g.output_padding[a]};
}

inline std::int64_t output_length(const Geometry<std::int64_t>& g, int a) { return axis_of(g, a).output(); }
inline c10::SymInt output_length(const Geometry<c10::SymInt>& g, int a) {
  return (g.input[a] - 1) * g.stride[a] - g.padding[a] * 2 + g.dilation[a] * (g.kernel[a] - 1) + g.output_padding[a] +
         1;
}

// Reads one parameter: a value for every axis, or a single one for all of them.
template <typename Int>
std::array<Int, kSpatialAxes> spread(const char* name, c10::ArrayRef<Int> values, int rank, std::int64_t least) {
  const auto count = static_cast<int>(values.size());
  TORCH_CHECK(count == 1 || count == rank, "expected ", name, " to be a single integer value or a list of ", rank,
              " values to match the convolution dimensions, but got ", name, "=", values);
  std::array<Int, kSpatialAxes> result{};
  for (int a = 0; a < rank; ++a) {
    result[a] = values[count == 1 ? 0 : a];
    TORCH_CHECK(at_least(result[a], least), "expected ", name, " to be at least ", least, ", but got ", name, "=",
                values);
  }
  return result;
}

// `input` and `weight` are sizes; the rank is the weight's.
template <typename Int>
Geometry<Int> geometry_of(c10::ArrayRef<Int> input, c10::ArrayRef<Int> weight, c10::ArrayRef<Int> stride,
                          c10::ArrayRef<Int> padding, c10::ArrayRef<Int> output_padding, const Int& groups,
                          c10::ArrayRef<Int> dilation) {
  Geometry<Int> g;
  const auto weight_dims = static_cast<std::int64_t>(weight.size());
  TORCH_CHECK(weight_dims > kLeadingDims && weight_dims <= kLeadingDims + kSpatialAxes,
              "expected a weight of 3, 4 or 5 dimensions [in_channels, out_channels / groups, kernel...], but got ",
              weight_dims, " dimensions of sizes ", weight);
  g.rank = static_cast<int>(weight_dims - kLeadingDims);
  TORCH_CHECK(input.size() == weight.size(), "Expected ", weight_dims, "-dimensional input for ", weight_dims,
              "-dimensional weight ", weight, ", but got ", input.size(), "-dimensional input of size ", input,
              " instead");
  TORCH_CHECK(at_least(groups, 1), "expected groups to be at least 1, but got groups=", groups);
  g.stride = spread("stride", stride, g.rank, 1);
  g.padding = spread("padding", padding, g.rank, 0);
  g.output_padding = spread("output_padding", output_padding, g.rank, 0);
  g.dilation = spread("dilation", dilation, g.rank, 1);
  g.groups = groups;
  g.batch = input[0];
  g.in_channels = input[1];
  TORCH_CHECK(at_least(weight[0], groups), "Given groups=", groups, ", expected weight to be at least ", groups,
              " at dimension 0, but got weight of size ", weight, " instead");
  TORCH_CHECK(equal(weight[0] % groups, 0), "Given groups=", groups, ", expected weight to be divisible by ", groups,
              " at dimension 0, but got weight of size ", weight, " instead");
  TORCH_CHECK(equal(input[1], weight[0]), "Given transposed=1, weight of size ", weight, ", expected input", input,
              " to have ", weight[0], " channels, but got ", input[1], " channels instead");
  TORCH_CHECK(at_least(weight[1], 1), "expected at least one output channel per group, but got weight of size ",
              weight);
  g.out_channels = weight[1] * groups;
  for (int a = 0; a < g.rank; ++a) {
    g.input[a] = input[kLeadingDims + a];
    g.kernel[a] = weight[kLeadingDims + a];
    TORCH_CHECK(at_least(g.kernel[a], 1), "expected a kernel of at least 1 along every axis, but got weight of size ",
                weight);
    if constexpr (std::is_same_v<Int, std::int64_t>) {
      // Only an empty batch may come with an empty space, as in PyTorch.
      TORCH_CHECK(g.input[a] > 0 || g.batch == 0, "Only zero batch inputs may have a zero size along a spatial axis, ",
                  "but got input shape: ", input);
    }
    TORCH_CHECK(at_least(larger(g.stride[a], g.dilation[a]) - 1, g.output_padding[a]),
                "output padding must be smaller than either stride or dilation, but got output_padding=",
                output_padding, " stride=", stride, " dilation=", dilation);
    g.output[a] = output_length(g, a);
    TORCH_CHECK(at_least(g.output[a], 1), "Given input size per channel: ", input.slice(kLeadingDims),
                " and kernel size: ", weight.slice(kLeadingDims), ", the calculated output size along spatial axis ", a,
                " is ", g.output[a], ", but it must be at least 1");
  }
  return g;
}

// Dense memory, in the order that PyTorch gives the results of a convolution: channels last as soon as the input or the
// weight is laid out so. PyTorch departs from its own rule in corners that depend on the machine (three dimensions
// without oneDNN, an empty batch); the shape functions can't see those, so that the rule is kept without exception.
inline at::MemoryFormat memory_format_of(const at::Tensor& input, const at::Tensor& weight) {
  if (weight.dim() < 4) return at::MemoryFormat::Contiguous;
  const at::MemoryFormat channels_last =
      weight.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  const bool last = input.suggest_memory_format() == channels_last || weight.suggest_memory_format() == channels_last;
  return last ? channels_last : at::MemoryFormat::Contiguous;
}

// What the tensors of a call must share, whatever their sizes.
inline void check_types(const at::Tensor& input, const at::Tensor& weight) {
  const at::ScalarType dtype = input.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(
      (at::isFloatingType(dtype) && c10::elementSize(dtype) >= 2) || at::isComplexType(dtype) ||
          (dtype == at::kLong && !input.is_cuda()),
      "conv_transpose is implemented for float64, float32, float16, bfloat16 and complex tensors and, on a CPU, for "
      "int64, but got an input of ",
      dtype);
  TORCH_CHECK(weight.scalar_type() == dtype, "Input type (", dtype, ") and weight type (", weight.scalar_type(),
              ") should be the same");
}

template <typename Int>
void check_bias(const at::Tensor& input, const at::Tensor& bias, c10::ArrayRef<Int> bias_sizes,
                c10::ArrayRef<Int> weight_sizes, const Geometry<Int>& g) {
  TORCH_CHECK(bias.scalar_type() == input.scalar_type(), "Input type (", input.scalar_type(), ") and bias type (",
              bias.scalar_type(), ") should be the same");
  TORCH_CHECK(bias_sizes.size() == 1 && equal(bias_sizes[0], g.out_channels), "Given transposed=1, weight of size ",
              weight_sizes, ", expected bias to be 1-dimensional with ", g.out_channels,
              " elements, but got bias of size ", bias_sizes, " instead");
}

template <typename Int>
void check_grad_output(const at::Tensor& input, const at::Tensor& grad_output, c10::ArrayRef<Int> sizes,
                       const Geometry<Int>& g) {
  TORCH_CHECK(grad_output.scalar_type() == input.scalar_type(), "Input type (", input.scalar_type(),
              ") and grad_output type (", grad_output.scalar_type(), ") should be the same");
  const auto shape = g.output_shape();
  bool same = sizes.size() == shape.size();
  for (std::size_t i = 0; same && i < shape.size(); ++i) same = equal(sizes[i], shape[i]);
  TORCH_CHECK(same, "expected grad_output of the output's size ", c10::ArrayRef<Int>(shape), ", but got ", sizes);
}

}  // namespace tconv::front
