// A transposed convolution as a value: what is computed, on which sizes, types and memory layouts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tconv {

enum class DType : std::uint8_t { f64, f32, f16, bf16 };

// Which of the four tensors is computed; the others are read.
enum class Direction : std::uint8_t { forward, grad_input, grad_weight, grad_bias };

// How fp32 tensors may be multiplied: in full fp32, or with operands rounded to TF32. Other dtypes ignore it.
enum class Precision : std::uint8_t { strict, tf32 };

std::size_t size_of(DType dtype);
const char* name_of(DType dtype);
const char* name_of(Direction direction);

// One spatial axis. The padding removed at the two ends is kept apart, so that a trimmed output is the same problem
// with a larger pad_end. The default is the identity axis, to which problems of rank 1 and 2 are lifted.
struct Axis {
  std::int64_t input = 1;
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
  std::int64_t pad_begin = 0;
  std::int64_t pad_end = 0;
  std::int64_t output_padding = 0;

  // (input - 1) stride - pad_begin - pad_end + dilation (kernel - 1) + output_padding + 1; may be zero or negative.
  // Throws Error if the value does not fit 64 bits.
  std::int64_t output() const;

  bool operator==(const Axis&) const = default;
};

inline constexpr int kSpatialAxes = 3;  // depth, height, width; lower ranks use the last ones

// Steps in elements between neighbours along [outer, inner, depth, height, width] of a tensor: [batch, channel, ...]
// for input and output, [in channel, out channel of a group, ...] for the weight. Any value is allowed for tensors that
// are read (0 for an expanded one); a tensor that is written must not overlap itself.
using Strides = std::array<std::int64_t, 2 + kSpatialAxes>;
using Sizes = std::array<std::int64_t, 2 + kSpatialAxes>;

// Strides of densely packed elements: width varies fastest, or (channels_last) the channel.
Strides contiguous_strides(const Sizes& sizes);
Strides channels_last_strides(const Sizes& sizes);
// The same strides, but along axes of size 1, where they mean nothing, those of a dense tensor: equal layouts are equal
// problems, and share a plan.
Strides settled_strides(const Sizes& sizes, const Strides& strides);

struct Problem {
  int rank = 2;  // spatial axes that the caller has; for messages only, the axes below are always three
  Direction direction = Direction::forward;
  DType dtype = DType::f32;
  Precision precision = Precision::strict;
  bool bias = false;  // forward: add a bias of out_channels elements (densely packed)
  // grad_input: the gradient of the weight is computed at the same time, on the same GPU. The result has the same bits.
  bool beside = false;

  std::int64_t batch = 1;
  std::int64_t in_channels = 1;
  std::int64_t out_channels = 1;
  std::int64_t groups = 1;
  std::array<Axis, kSpatialAxes> axes{};

  Strides input_strides{};
  Strides weight_strides{};
  Strides output_strides{};

  std::int64_t in_channels_per_group() const { return in_channels / groups; }
  std::int64_t out_channels_per_group() const { return out_channels / groups; }
  Sizes input_sizes() const;
  Sizes weight_sizes() const;
  Sizes output_sizes() const;

  bool operator==(const Problem&) const = default;
};

// Fills in the strides of densely packed NC... tensors.
void set_contiguous(Problem& problem);

// The same problem with the fewest axes: neighbouring ones along which nothing happens (a kernel of one, stride 1, no
// padding) and whose elements follow each other in memory count as one.
Problem with_joined_axes(Problem problem);

// Throws Error if the problem breaks a rule; its message names the rule and the value. Sizes of zero (an empty batch,
// no channels, an empty output) are legal and mean that there is nothing to compute or to sum.
void validate(const Problem& problem);

// The output_padding that makes the axis produce `wanted` outputs, given the rest of the axis (its output_padding is
// ignored). Throws Error when `wanted` is outside [minimum, minimum + stride - 1], PyTorch's rule for `output_size`.
std::int64_t output_padding_for(const Axis& axis, std::int64_t wanted);

std::int64_t element_count(const Sizes& sizes);

// Multiply-adds that the problem needs, taps that fall outside the input or onto cropped outputs included.
double multiply_adds(const Problem& problem);

std::string to_string(const Problem& problem);
std::size_t hash_of(const Problem& problem);

}  // namespace tconv
