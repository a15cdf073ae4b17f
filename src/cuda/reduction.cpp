#include "cuda/reduction.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tconv::cuda {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::optional<Reduction> reduction_of(const Problem& problem, bool swapped) {
  Reduction r;
  r.swapped = swapped;
  r.rows = problem.in_channels_per_group();
  r.columns = problem.out_channels_per_group();
  r.row_strides = problem.input_strides;
  r.column_strides = problem.output_strides;
  const Strides& weight = problem.weight_strides;
  r.weight_strides = {r.rows * weight[0], weight[0], weight[1], weight[2], weight[3], weight[4]};
  for (int a = 0; a < kSpatialAxes; ++a) {
    const Axis& axis = problem.axes[a];
    ReductionAxis& out = r.axes[a];
    // A single tap is never dilated, and a single input never strided.
    const std::int64_t dilation = axis.kernel == 1 ? axis.stride : axis.dilation;
    const std::int64_t stride = axis.input == 1 ? dilation : axis.stride;
    const std::int64_t common = std::gcd(stride, dilation);
    out.kernel = axis.kernel;
    out.step = stride / common;
    out.tap_step = dilation / common;
    out.pad = ceil_div(axis.pad_begin, common);
    out.row_size = axis.input;
    const std::int64_t first = out.pad * common - axis.pad_begin;  // the first element that a tap can read
    out.column_size = std::max<std::int64_t>(ceil_div(axis.output() - first, common), 0);
    r.column_offset += first * r.column_strides[2 + a];
    r.column_strides[2 + a] *= common;
    if (!swapped) continue;
    if (out.step != 1 || out.column_size == 0) return std::nullopt;
    // The taps in reverse order.
    out.pad = (out.kernel - 1) * out.tap_step - out.pad;
    std::swap(out.row_size, out.column_size);
    r.weight_offset += (out.kernel - 1) * r.weight_strides[3 + a];
    r.weight_strides[3 + a] *= -1;
  }
  if (swapped) {
    std::swap(r.rows, r.columns);
    std::swap(r.row_strides, r.column_strides);
    std::swap(r.row_offset, r.column_offset);
    std::swap(r.weight_strides[1], r.weight_strides[2]);
  }
  return r;
}

}  // namespace tconv::cuda
