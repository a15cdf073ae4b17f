// Derivatives, written as PyTorch's generated code writes them (graph nodes and tangents) and not as
// torch::autograd::Function, which torch.func refuses.
//
// With T(x, w) the transposed convolution, gi(dy, w) and gw(dy, x) are its two adjoint maps without conjugation, which
// is what conv_transpose_backward computes. All three are bilinear, so every derivative is made of the same three
// again:
//
//   y  = T(x, w) + b         tangent: T(x', w) + T(x, w') + b'
//   dx = gi(dy, w)           tangent: gi(dy', w) + gi(dy, w')
//   dw = gw(dy, x)           tangent: gw(dy', x) + gw(dy, x')
//
// Gradients of complex tensors take the conjugate of the other factor (for real tensors conj() returns the tensor).
#include <ATen/core/VariableHooksInterface.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <utility>

#include "ops.h"

namespace tconv::front {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// a + b, where an undefined tensor stands for zero.
Tensor plus(const Tensor& a, const Tensor& b) {
  if (!a.defined()) return b;
  return b.defined() ? a.add(b) : a;
}

struct ConvTransposeBackwardBackward final : torch::autograd::Node {
  explicit ConvTransposeBackwardBackward(Parameters parameters) : parameters(std::move(parameters)) {}

  Parameters parameters;
  SavedVariable grad_output;
  SavedVariable input;
  SavedVariable weight;

  std::string name() const override { return "ConvTransposeBackwardBackward"; }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    grad_output.reset_data();
    input.reset_data();
    weight.reset_data();
  }

  // Receives the gradients of dx, dw and db.
  variable_list apply(variable_list&& incoming) override {
    const std::lock_guard lock(mutex_);
    const Tensor& of_grad_input = incoming[0];
    const Tensor& of_grad_weight = incoming[1];
    const Tensor& of_grad_bias = incoming[2];
    const Tensor dy = grad_output.unpack();
    const Tensor x = input.unpack();
    const Tensor w = weight.unpack();
    variable_list result(3);
    if (task_should_compute_output(0)) {
      if (of_grad_input.defined()) result[0] = parameters.forward(of_grad_input, w.conj());
      if (of_grad_weight.defined()) result[0] = plus(result[0], parameters.forward(x.conj(), of_grad_weight));
      if (of_grad_bias.defined()) {
        result[0] = plus(result[0], as_channels(of_grad_bias, dy.dim()).expand_symint(dy.sym_sizes()));
      }
    }
    if (task_should_compute_output(1) && of_grad_weight.defined()) {
      result[1] = parameters.grad_input(dy.conj(), x, of_grad_weight);
    }
    if (task_should_compute_output(2) && of_grad_input.defined()) {
      result[2] = parameters.grad_weight(dy.conj(), of_grad_input, w);
    }
    return result;
  }
};

struct ConvTransposeBackward final : torch::autograd::Node {
  explicit ConvTransposeBackward(Parameters parameters) : parameters(std::move(parameters)) {}

  Parameters parameters;
  SavedVariable input;
  SavedVariable weight;

  std::string name() const override { return "ConvTransposeBackward"; }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    input.reset_data();
    weight.reset_data();
  }

  variable_list apply(variable_list&& incoming) override {
    const std::lock_guard lock(mutex_);
    variable_list result(3);
    if (!incoming[0].defined()) return result;
    const Mask wanted = {task_should_compute_output(0), task_should_compute_output(1), task_should_compute_output(2)};
    std::tie(result[0], result[1], result[2]) =
        parameters.backward(incoming[0], input.unpack().conj(), weight.unpack().conj(), wanted);
    return result;
  }
};

Tensor tangent_of(const Tensor& tensor) { return tensor.defined() ? tensor._fw_grad(/*level=*/0) : Tensor(); }

// The tensor without its tangent, which the tangent's own formula must not see.
Tensor primal_of(const Tensor& tensor) { return tensor._fw_primal(/*level=*/0); }

Tensor forward_tangent(const Parameters& parameters, const Tensor& input, const Tensor& weight, const Tensor& bias,
                       const Tensor& output) {
  const Tensor input_tangent = tangent_of(input);
  const Tensor weight_tangent = tangent_of(weight);
  const Tensor bias_tangent = tangent_of(bias);
  Tensor result;
  if (input_tangent.defined()) result = parameters.forward(input_tangent, primal_of(weight));
  if (weight_tangent.defined()) result = plus(result, parameters.forward(primal_of(input), weight_tangent));
  if (bias_tangent.defined()) {
    const Tensor spread = as_channels(bias_tangent, output.dim());
    result = result.defined() ? result.add(spread) : spread.expand_symint(output.sym_sizes()).contiguous();
  }
  return result;
}

Tensor conv_transpose_autograd(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                               const OptionalTensor& bias_, SymIntArrayRef stride, SymIntArrayRef padding,
                               SymIntArrayRef output_padding, SymInt groups, SymIntArrayRef dilation) {
  const Tensor bias = bias_.value_or(Tensor());
  const bool has_tangent = tangent_of(input).defined() || tangent_of(weight).defined() || tangent_of(bias).defined();
  std::shared_ptr<ConvTransposeBackward> node;
  if (torch::autograd::compute_requires_grad(input, weight, bias)) {
    node = std::make_shared<ConvTransposeBackward>(Parameters(stride, padding, output_padding, groups, dilation));
    node->set_next_edges(torch::autograd::collect_next_edges(input, weight, bias));
    // Each gradient needs the other factor; but the sizes of both are asked for, so both are kept.
    node->input = SavedVariable(input, /*is_output=*/false);
    node->weight = SavedVariable(weight, /*is_output=*/false);
  }
  Tensor output = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return forward_op().redispatch(keys & c10::after_autograd_keyset, input, weight, bias_, stride, padding,
                                   output_padding, groups, dilation);
  }();
  if (node) torch::autograd::set_history(output, node);
  if (has_tangent) {
    const Parameters parameters(stride, padding, output_padding, groups, dilation);
    output._set_fw_grad(forward_tangent(parameters, input, weight, bias, output), /*level=*/0, /*is_inplace_op=*/false);
  }
  return output;
}

void set_backward_tangents(const Parameters& parameters, const Tensor& grad_output, const Tensor& input,
                           const Tensor& weight, const Gradients& gradients) {
  const Tensor dy = primal_of(grad_output);
  const Tensor x = primal_of(input);
  const Tensor w = primal_of(weight);
  const Tensor dy_tangent = tangent_of(grad_output);
  const Tensor input_tangent = tangent_of(input);
  const Tensor weight_tangent = tangent_of(weight);
  const auto& [grad_input, grad_weight, grad_bias] = gradients;
  const auto set = [](const Tensor& tensor, const Tensor& tangent) {
    if (tangent.defined()) tensor._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
  };
  if (grad_input.defined()) {
    Tensor tangent;
    if (dy_tangent.defined()) tangent = parameters.grad_input(dy_tangent, x, w);
    if (weight_tangent.defined()) tangent = plus(tangent, parameters.grad_input(dy, x, weight_tangent));
    set(grad_input, tangent);
  }
  if (grad_weight.defined()) {
    Tensor tangent;
    if (dy_tangent.defined()) tangent = parameters.grad_weight(dy_tangent, x, w);
    if (input_tangent.defined()) tangent = plus(tangent, parameters.grad_weight(dy, input_tangent, w));
    set(grad_weight, tangent);
  }
  if (grad_bias.defined() && dy_tangent.defined()) set(grad_bias, dy_tangent.sum(all_but_channels(dy_tangent.dim())));
}

Gradients conv_transpose_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output, const Tensor& input,
                                           const Tensor& weight, SymIntArrayRef stride, SymIntArrayRef padding,
                                           SymIntArrayRef output_padding, SymInt groups, SymIntArrayRef dilation,
                                           Mask mask) {
  const bool has_tangent =
      tangent_of(grad_output).defined() || tangent_of(input).defined() || tangent_of(weight).defined();
  std::shared_ptr<ConvTransposeBackwardBackward> node;
  if (torch::autograd::compute_requires_grad(grad_output, input, weight)) {
    node =
        std::make_shared<ConvTransposeBackwardBackward>(Parameters(stride, padding, output_padding, groups, dilation));
    node->set_next_edges(torch::autograd::collect_next_edges(grad_output, input, weight));
    node->grad_output = SavedVariable(grad_output, /*is_output=*/false);
    node->input = SavedVariable(input, /*is_output=*/false);
    node->weight = SavedVariable(weight, /*is_output=*/false);
  }
  Gradients result = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return backward_op().redispatch(keys & c10::after_autograd_keyset, grad_output, input, weight, stride, padding,
                                    output_padding, groups, dilation, mask);
  }();
  if (node) {
    for (const Tensor* tensor : {&std::get<0>(result), &std::get<1>(result), &std::get<2>(result)}) {
      torch::autograd::set_history(*tensor, node);
    }
  }
  if (has_tangent) {
    set_backward_tangents(Parameters(stride, padding, output_padding, groups, dilation), grad_output, input, weight,
                          result);
  }
  return result;
}

TORCH_LIBRARY_IMPL(tconv, Autograd, m) {
  m.impl("conv_transpose", TORCH_FN(conv_transpose_autograd));
  m.impl("conv_transpose_backward", TORCH_FN(conv_transpose_backward_autograd));
}

}  // namespace
}  // namespace tconv::front
