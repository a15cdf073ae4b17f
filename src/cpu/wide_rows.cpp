#include "cpu/wide_rows.h"

#include <cstddef>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "cpu/windows.h"

namespace tconv::cpu {
namespace {

constexpr std::size_t kWidth = kSpatialAxes - 1;  // the axis

class WideRows final : public Kernel {
 public:
  WideRows(const Problem& problem, const Problem& wide, std::shared_ptr<const Kernel> kernel)
      : kernel_(std::move(kernel)),
        times_(static_cast<std::size_t>(wide.out_channels / problem.out_channels)),
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
  const std::int64_t pad_end = axis.pad_end - axis.output_padding;
  const std::int64_t times = std::gcd(std::gcd(axis.stride, axis.kernel), std::gcd(axis.pad_begin, pad_end));
  if (times == 1 || axis.dilation != 1 || pad_end < 0) return {};
  if (problem.groups != 1 || problem.direction == Direction::grad_bias) return {};
  const auto in_a_row = [&](const Strides& strides) {
    return strides[2 + kWidth] == problem.out_channels * strides[1];
  };
  const bool side_by_side = problem.input_strides[1] == 1 && problem.output_strides[1] == 1;
  if (!side_by_side || !in_a_row(problem.output_strides) || !in_a_row(problem.weight_strides)) return {};
  // Few output channels are better read from windows than a few more, twice as many, from packed cells.
  const bool reads_windows = problem.direction == Direction::grad_input && problem.out_channels < kFewOutputs;
  if (reads_windows && times == 2 && 2 * problem.out_channels >= kFewOutputs && axis.kernel > axis.stride) return {};
  Problem wide = problem;
  wide.out_channels *= times;
  Axis& wide_axis = wide.axes[kWidth];
  wide_axis.kernel /= times;
  wide_axis.stride /= times;
  wide_axis.pad_begin /= times;
  wide_axis.pad_end = pad_end / times;
  wide_axis.output_padding = 0;
  wide.output_strides[2 + kWidth] *= times;
  wide.weight_strides[2 + kWidth] *= times;
  return wide;
}

std::shared_ptr<const Kernel> run_with_wide_rows(const Problem& problem, const Problem& wide,
                                                 std::shared_ptr<const Kernel> kernel) {
  return std::make_shared<WideRows>(problem, wide, std::move(kernel));
}

}  // namespace tconv::cpu
