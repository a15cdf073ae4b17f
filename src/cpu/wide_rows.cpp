#include "cpu/wide_rows.h"

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

namespace tconv::cpu {
namespace {

constexpr std::size_t kWidth = kSpatialAxes - 1;  // the axis

class WideRows final : public Kernel {
 public:
  WideRows(const Problem& problem, std::shared_ptr<const Kernel> kernel)
      : kernel_(std::move(kernel)),
        times_(static_cast<std::size_t>(problem.axes[kWidth].stride)),
        bias_bytes_(problem.bias ? problem.out_channels * size_of(problem.dtype) : 0) {}

  void run(const Buffers& buffers, const Execution& execution) const override {
    if (bias_bytes_ == 0) return kernel_->run(buffers, execution);
    std::vector<std::byte> bias(times_ * bias_bytes_);
    for (std::size_t i = 0; i < times_; ++i) std::memcpy(bias.data() + i * bias_bytes_, buffers.bias, bias_bytes_);
    Buffers repeated = buffers;
    repeated.bias = bias.data();
    kernel_->run(repeated, execution);
  }

  std::string describe() const override { return "rows as channels, " + kernel_->describe(); }

 private:
  std::shared_ptr<const Kernel> kernel_;
  std::size_t times_;
  std::size_t bias_bytes_;
};

}  // namespace

std::optional<Problem> with_wide_rows(const Problem& problem) {
  const Axis& axis = problem.axes[kWidth];
  const bool kernel_is_stride = axis.stride > 1 && axis.kernel == axis.stride && axis.dilation == 1 &&
                                axis.pad_begin == 0 && axis.pad_end == 0 && axis.output_padding == 0;
  if (!kernel_is_stride || problem.groups != 1 || problem.direction == Direction::grad_bias) return {};
  const auto in_a_row = [&](const Strides& strides) {
    return strides[2 + kWidth] == problem.out_channels * strides[1];
  };
  const bool side_by_side = problem.input_strides[1] == 1 && problem.output_strides[1] == 1;
  if (!side_by_side || !in_a_row(problem.output_strides) || !in_a_row(problem.weight_strides)) return {};
  Problem wide = problem;
  wide.out_channels *= axis.stride;
  wide.axes[kWidth] = Axis{.input = axis.input};
  wide.output_strides[2 + kWidth] *= axis.stride;
  return wide;
}

std::shared_ptr<const Kernel> run_with_wide_rows(const Problem& problem, std::shared_ptr<const Kernel> kernel) {
  return std::make_shared<WideRows>(problem, std::move(kernel));
}

}  // namespace tconv::cpu
