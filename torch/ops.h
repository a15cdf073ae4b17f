// The two operators as the dispatcher knows them, for the layers above the kernels (autograd, vmap, autocast).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/SymInt.h>
#include <c10/core/SymIntArrayRef.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

namespace tconv::front {

using at::Tensor;
using c10::SymInt;
using c10::SymIntArrayRef;
using OptionalTensor = std::optional<Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;
using Mask = std::array<bool, 3>;  // which of the gradients of input, weight and bias are wanted

using ForwardSignature = Tensor(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                                SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef output_padding,
                                SymInt groups, SymIntArrayRef dilation);
using BackwardSignature = Gradients(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                                    SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef output_padding,
                                    SymInt groups, SymIntArrayRef dilation, Mask output_mask);

inline const c10::TypedOperatorHandle<ForwardSignature>& forward_op() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("tconv::conv_transpose", "").typed<ForwardSignature>();
  return op;
}

inline const c10::TypedOperatorHandle<BackwardSignature>& backward_op() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("tconv::conv_transpose_backward", "").typed<BackwardSignature>();
  return op;
}

// The parameters of a call, owned, and the calls that they parametrise.
struct Parameters {
  std::vector<SymInt> stride;
  std::vector<SymInt> padding;
  std::vector<SymInt> output_padding;
  SymInt groups;
  std::vector<SymInt> dilation;

  Parameters(SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef output_padding, SymInt groups,
             SymIntArrayRef dilation)
      : stride(stride.vec()),
        padding(padding.vec()),
        output_padding(output_padding.vec()),
        groups(std::move(groups)),
        dilation(dilation.vec()) {}

  Parameters with_groups(SymInt new_groups) const {
    Parameters copy = *this;
    copy.groups = std::move(new_groups);
    return copy;
  }

  Tensor forward(const Tensor& input, const Tensor& weight, const OptionalTensor& bias = std::nullopt) const {
    return forward_op().call(input, weight, bias, stride, padding, output_padding, groups, dilation);
  }
  Gradients backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight, Mask mask) const {
    return backward_op().call(grad_output, input, weight, stride, padding, output_padding, groups, dilation, mask);
  }
  // `input` gives the size of the result, and its values are not read; likewise `weight` below.
  Tensor grad_input(const Tensor& grad_output, const Tensor& input, const Tensor& weight) const {
    return std::get<0>(backward(grad_output, input, weight, {true, false, false}));
  }
  Tensor grad_weight(const Tensor& grad_output, const Tensor& input, const Tensor& weight) const {
    return std::get<1>(backward(grad_output, input, weight, {false, true, false}));
  }
};

// The axes over which a bias is broadcast: all but the channels.
inline std::vector<std::int64_t> all_but_channels(std::int64_t dims) {
  std::vector<std::int64_t> axes = {0};
  for (std::int64_t d = 2; d < dims; ++d) axes.push_back(d);
  return axes;
}

// A bias as a tensor that broadcasts over an output of `dims` dimensions.
inline Tensor as_channels(const Tensor& bias, std::int64_t dims) {
  std::vector<SymInt> shape(static_cast<std::size_t>(dims), SymInt(1));
  shape[1] = bias.sym_size(0);
  return bias.view_symint(shape);
}

}  // namespace tconv::front
