// Autocast: PyTorch lists its transposed convolutions among the operators that run in the lower precision.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <utility>

#include "ops.h"

namespace tconv::front {
namespace {

template <c10::DeviceType kDevice>
Tensor conv_transpose_autocast(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                               SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef output_padding,
                               SymInt groups, SymIntArrayRef dilation) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  const at::ScalarType dtype = at::autocast::get_lower_precision_fp_from_device_type(kDevice);
  return forward_op().call(
      at::autocast::cached_cast(dtype, input, kDevice), at::autocast::cached_cast(dtype, weight, kDevice),
      at::autocast::cached_cast(dtype, bias, kDevice), stride, padding, output_padding, std::move(groups), dilation);
}

TORCH_LIBRARY_IMPL(tconv, AutocastCPU, m) {
  m.impl("conv_transpose", TORCH_FN((conv_transpose_autocast<c10::DeviceType::CPU>)));
}

TORCH_LIBRARY_IMPL(tconv, AutocastCUDA, m) {
  m.impl("conv_transpose", TORCH_FN((conv_transpose_autocast<c10::DeviceType::CUDA>)));
}

}  // namespace
}  // namespace tconv::front
