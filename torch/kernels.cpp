// The operators on CPU, CUDA and meta tensors.
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/view_as_real.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "beside.h"
#include "execute.h"
#include "fresh.h"
#include "geometry.h"
#include "ops.h"

namespace tconv::front {
namespace {

using at::IntArrayRef;
using IntGeometry = Geometry<std::int64_t>;

Tensor resolved(const Tensor& tensor) { return tensor.resolve_conj().resolve_neg(); }

Tensor empty_like_type(const Tensor& tensor, IntArrayRef sizes, at::MemoryFormat format) {
  return fresh(sizes, tensor.options(), format);
}

void check_device(const Tensor& input, const char* name, const Tensor& other) {
  TORCH_CHECK(other.device() == input.device(), "Expected all tensors to be on the same device, but got input on ",
              input.device(), " and ", name, " on ", other.device());
}

Tensor real_forward(const IntGeometry& g, const Tensor& input, const Tensor& weight, const Tensor& bias,
                    at::MemoryFormat format, Kept* kept = nullptr) {
  Tensor output = empty_like_type(input, g.output_shape(), format);
  if (output.numel() == 0) return output;
  execute(g, Direction::forward, {input, weight, bias.defined() ? bias.contiguous() : bias, output}, kept);
  return output;
}

// Short gradients leave a GPU half empty, one after the other: both are computed at the same time. Long ones fill it,
// and would only take each other's caches. A second stream costs a few microseconds, which gradients that overlap do
// without.
void execute_both(const IntGeometry& g, const Operands& for_input, const Operands& for_weight) {
  constexpr double kShort = 150e-6;
  const bool may_overlap = for_input.output.is_cuda() && !autotuning();
  const Outlook input = may_overlap ? outlook(g, Direction::grad_input, for_input) : Outlook{};
  const Outlook weight = may_overlap ? outlook(g, Direction::grad_weight, for_weight) : Outlook{};
  const bool both_short = may_overlap && input.seconds < kShort && weight.seconds < kShort;
  if (input.overlaps && weight.overlaps) {
    const Run second(g, Direction::grad_weight, for_weight, nullptr, Company::previous);
    execute(g, Direction::grad_input, for_input);
    second.start();
  } else if (both_short && input.queues) {
    // On this stream, the gradient of the weight starts first. The other one's tiles follow where its own end.
    Beside beside(for_input.output.device());
    execute(g, Direction::grad_input, for_input);
    beside.leave();
    execute(g, Direction::grad_weight, for_weight);
  } else if (both_short) {
    Beside beside(for_input.output.device());
    execute(g, Direction::grad_weight, for_weight);
    beside.leave();
    // What was chosen by measurement stays as it is.
    execute(g, Direction::grad_input, for_input, nullptr, input.tuned ? Company::none : Company::other_stream);
  } else if (for_input.output.is_cpu()) {
    Run first(g, Direction::grad_input, for_input);
    Run second(g, Direction::grad_weight, for_weight);
    first.start_with(second);
  } else {
    execute(g, Direction::grad_input, for_input);
    execute(g, Direction::grad_weight, for_weight);
  }
}

Gradients real_backward(const IntGeometry& g, const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                        at::MemoryFormat format, Mask mask) {
  Gradients result;
  auto& [grad_input, grad_weight, grad_bias] = result;
  if (mask[0]) grad_input = empty_like_type(input, input.sizes(), format);
  if (mask[1]) grad_weight = empty_like_type(weight, weight.sizes(), format);
  const Operands for_input{grad_input, weight, {}, grad_output};
  const Operands for_weight{input, grad_weight, {}, grad_output};
  if (mask[0] && mask[1] && input.numel() > 0) {
    execute_both(g, for_input, for_weight);
  } else if (mask[0] && input.numel() > 0) {
    execute(g, Direction::grad_input, for_input);
  } else if (mask[1] && input.numel() > 0) {
    execute(g, Direction::grad_weight, for_weight);
  }
  if (mask[1] && input.numel() == 0) grad_weight.zero_();
  if (mask[2]) {
    grad_bias = at::empty({g.out_channels}, grad_output.options());
    if (grad_output.numel() > 0) {
      execute(g, Direction::grad_bias, {{}, {}, grad_bias, grad_output});
    } else {
      grad_bias.zero_();
    }
  }
  return result;
}

struct Parts {
  Tensor real;
  Tensor imaginary;
};

// Views: the parts of a complex tensor are read where they lie, with a stride of two.
Parts parts_of(const Tensor& tensor) {
  const Tensor both = at::view_as_real(tensor);
  return {both.select(-1, 0), both.select(-1, 1)};
}

// A complex product of a bilinear map, from four real ones. Three would do (Gauss), but they cancel: the fourth keeps
// the error at the level of the real map's.
template <typename Bilinear>
Tensor complex_product(const Tensor& a, const Tensor& b, Tensor result, const Bilinear& real_map) {
  const Parts x = parts_of(a);
  const Parts y = parts_of(b);
  Parts parts = parts_of(result);
  at::sub_out(parts.real, real_map(x.real, y.real), real_map(x.imaginary, y.imaginary));
  at::add_out(parts.imaginary, real_map(x.real, y.imaginary), real_map(x.imaginary, y.real));
  return result;
}

Tensor complex_forward(const IntGeometry& g, const Tensor& input, const Tensor& weight, const Tensor& bias,
                       at::MemoryFormat format) {
  Tensor output = complex_product(input, weight, empty_like_type(input, g.output_shape(), format),
                                  [&](const Tensor& x, const Tensor& w) { return real_forward(g, x, w, {}, format); });
  return bias.defined() ? output.add_(as_channels(bias, output.dim())) : output;
}

// Modulo 2^64, as integers are multiplied: from parts of 16 bits, whose products fp64 adds up exactly.
Tensor integer_forward(const IntGeometry& g, const Tensor& input, const Tensor& weight, const Tensor& bias,
                       at::MemoryFormat format) {
  constexpr int kBits = 16;
  constexpr int kParts = 64 / kBits;
  constexpr std::int64_t kMostTerms = std::int64_t{1} << (53 - 2 * kBits);
  const std::int64_t terms = weight.numel() / std::max<std::int64_t>(weight.size(1), 1);
  TORCH_CHECK_NOT_IMPLEMENTED(terms <= kMostTerms, "int64 tensors: at most ", kMostTerms,
                              " products are added up to an output, but got ", terms);
  const auto part_of = [](const Tensor& tensor, int part) {
    return tensor.bitwise_right_shift(kBits * part).bitwise_and((1 << kBits) - 1).to(at::kDouble);
  };
  Tensor output = empty_like_type(input, g.output_shape(), format).zero_();
  for (int i = 0; i < kParts; ++i) {
    const Tensor x = part_of(input, i);
    for (int j = 0; i + j < kParts; ++j) {
      const Tensor sums = real_forward(g, x, part_of(weight, j), {}, format).to(at::kLong);
      output.add_(sums.bitwise_left_shift(kBits * (i + j)));
    }
  }
  return bias.defined() ? output.add_(as_channels(bias, output.dim())) : output;
}

Gradients complex_backward(const IntGeometry& g, const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                           at::MemoryFormat format, Mask mask) {
  // Each gradient is a bilinear map of two of the three tensors; the third gives its size alone.
  const Tensor real_input = parts_of(input).real;
  const Tensor real_weight = parts_of(weight).real;
  Gradients result;
  if (mask[0]) {
    const auto real_map = [&](const Tensor& dy, const Tensor& w) {
      return std::get<0>(real_backward(g, dy, real_input, w, format, {true, false, false}));
    };
    std::get<0>(result) = complex_product(grad_output, weight, empty_like_type(input, input.sizes(), format), real_map);
  }
  if (mask[1]) {
    const auto real_map = [&](const Tensor& dy, const Tensor& x) {
      return std::get<1>(real_backward(g, dy, x, real_weight, format, {false, true, false}));
    };
    std::get<1>(result) =
        complex_product(grad_output, input, empty_like_type(weight, weight.sizes(), format), real_map);
  }
  if (mask[2]) std::get<2>(result) = grad_output.sum(all_but_channels(grad_output.dim()));
  return result;
}

Tensor forward(const Tensor& input_, const Tensor& weight_, const OptionalTensor& bias_, IntArrayRef stride,
               IntArrayRef padding, IntArrayRef output_padding, std::int64_t groups, IntArrayRef dilation,
               Kept* kept = nullptr) {
  const bool has_bias = bias_.has_value() && bias_->defined();
  check_types(input_, weight_);
  check_device(input_, "weight", weight_);
  const IntGeometry g =
      geometry_of<std::int64_t>(input_.sizes(), weight_.sizes(), stride, padding, output_padding, groups, dilation);
  if (has_bias) {
    check_device(input_, "bias", *bias_);
    check_bias<std::int64_t>(input_, *bias_, bias_->sizes(), weight_.sizes(), g);
  }
  const at::MemoryFormat format = memory_format_of(input_, weight_);
  const Tensor input = resolved(input_);
  const Tensor weight = resolved(weight_);
  const Tensor bias = has_bias ? resolved(*bias_) : Tensor();
  if (input.is_complex()) return complex_forward(g, input, weight, bias, format);
  if (input.scalar_type() == at::kLong) return integer_forward(g, input, weight, bias, format);
  return real_forward(g, input, weight, bias, format, kept);
}

Tensor conv_transpose(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                      IntArrayRef padding, IntArrayRef output_padding, std::int64_t groups, IntArrayRef dilation) {
  return forward(input, weight, bias, stride, padding, output_padding, groups, dilation);
}

// The workspace, with the weights in the order in which the kernels read them, comes back; given again with the same
// arguments, it saves the work of ordering them. `planning` is what _planning() said before the workspace was made.
std::tuple<Tensor, Tensor> conv_transpose_kept(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                                               IntArrayRef stride, IntArrayRef padding, IntArrayRef output_padding,
                                               std::int64_t groups, IntArrayRef dilation,
                                               const OptionalTensor& workspace, std::int64_t planning) {
  Kept kept{workspace.value_or(Tensor()), planning};
  Tensor output = forward(input, weight, bias, stride, padding, output_padding, groups, dilation, &kept);
  return {output, kept.workspace.defined() ? kept.workspace : at::empty({0}, input.options().dtype(at::kByte))};
}

Gradients conv_transpose_backward(const Tensor& grad_output_, const Tensor& input_, const Tensor& weight_,
                                  IntArrayRef stride, IntArrayRef padding, IntArrayRef output_padding,
                                  std::int64_t groups, IntArrayRef dilation, Mask mask) {
  check_types(input_, weight_);
  check_device(input_, "weight", weight_);
  check_device(input_, "grad_output", grad_output_);
  const IntGeometry g =
      geometry_of<std::int64_t>(input_.sizes(), weight_.sizes(), stride, padding, output_padding, groups, dilation);
  check_grad_output<std::int64_t>(input_, grad_output_, grad_output_.sizes(), g);
  const at::MemoryFormat format = memory_format_of(input_, weight_);
  const Tensor grad_output = resolved(grad_output_);
  const Tensor input = resolved(input_);
  const Tensor weight = resolved(weight_);
  return input.is_complex() ? complex_backward(g, grad_output, input, weight, format, mask)
                            : real_backward(g, grad_output, input, weight, format, mask);
}

// Plain integers go the kernels' way, overflow checks included, even on meta tensors.
std::optional<IntGeometry> concrete_geometry(const Tensor& input, const Tensor& weight, SymIntArrayRef stride,
                                             SymIntArrayRef padding, SymIntArrayRef output_padding,
                                             const SymInt& groups, SymIntArrayRef dilation) {
  const auto plain = [](SymIntArrayRef values) { return c10::asIntArrayRefSlowOpt(values); };
  const auto input_sizes = plain(input.sym_sizes());
  const auto weight_sizes = plain(weight.sym_sizes());
  const auto s = plain(stride);
  const auto p = plain(padding);
  const auto o = plain(output_padding);
  const auto d = plain(dilation);
  const auto gr = groups.maybe_as_int();
  if (!input_sizes || !weight_sizes || !s || !p || !o || !d || !gr) return std::nullopt;
  return geometry_of<std::int64_t>(*input_sizes, *weight_sizes, *s, *p, *o, *gr, *d);
}

Geometry<SymInt> symbolic_geometry(const Tensor& input, const Tensor& weight, SymIntArrayRef stride,
                                   SymIntArrayRef padding, SymIntArrayRef output_padding, const SymInt& groups,
                                   SymIntArrayRef dilation) {
  const auto concrete = concrete_geometry(input, weight, stride, padding, output_padding, groups, dilation);
  if (!concrete) {
    return geometry_of<SymInt>(input.sym_sizes(), weight.sym_sizes(), stride, padding, output_padding, groups,
                               dilation);
  }
  Geometry<SymInt> g;
  g.rank = concrete->rank;
  g.batch = concrete->batch;
  g.out_channels = concrete->out_channels;
  for (int a = 0; a < g.rank; ++a) g.output[a] = concrete->output[a];
  return g;
}

Tensor conv_transpose_meta(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, SymIntArrayRef stride,
                           SymIntArrayRef padding, SymIntArrayRef output_padding, SymInt groups,
                           SymIntArrayRef dilation) {
  check_types(input, weight);
  const Geometry<SymInt> g = symbolic_geometry(input, weight, stride, padding, output_padding, groups, dilation);
  if (bias.has_value() && bias->defined()) {
    check_bias<SymInt>(input, *bias, bias->sym_sizes(), weight.sym_sizes(), g);
  }
  return at::empty_symint(g.output_shape(), input.options().memory_format(memory_format_of(input, weight)));
}

Gradients conv_transpose_backward_meta(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                                       SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef output_padding,
                                       SymInt groups, SymIntArrayRef dilation, Mask mask) {
  check_types(input, weight);
  const Geometry<SymInt> g = symbolic_geometry(input, weight, stride, padding, output_padding, groups, dilation);
  check_grad_output<SymInt>(input, grad_output, grad_output.sym_sizes(), g);
  const at::TensorOptions options = input.options().memory_format(memory_format_of(input, weight));
  Gradients result;
  if (mask[0]) std::get<0>(result) = at::empty_symint(input.sym_sizes(), options);
  if (mask[1]) std::get<1>(result) = at::empty_symint(weight.sym_sizes(), options);
  if (mask[2]) std::get<2>(result) = at::empty_symint({g.out_channels}, input.options());
  return result;
}

TORCH_LIBRARY_IMPL(tconv, CPU, m) {
  m.impl("conv_transpose", TORCH_FN(conv_transpose));
  m.impl("_conv_transpose_kept", TORCH_FN(conv_transpose_kept));
  m.impl("conv_transpose_backward", TORCH_FN(conv_transpose_backward));
}

TORCH_LIBRARY_IMPL(tconv, CUDA, m) {
  m.impl("conv_transpose", TORCH_FN(conv_transpose));
  m.impl("_conv_transpose_kept", TORCH_FN(conv_transpose_kept));
  m.impl("conv_transpose_backward", TORCH_FN(conv_transpose_backward));
}

TORCH_LIBRARY_IMPL(tconv, Meta, m) {
  m.impl("conv_transpose", TORCH_FN(conv_transpose_meta));
  m.impl("conv_transpose_backward", TORCH_FN(conv_transpose_backward_meta));
}

}  // namespace
}  // namespace tconv::front
