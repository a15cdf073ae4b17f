#include "cpu/mirror.h"

#include <utility>

#include "cpu/bf16_products.h"
#include "cpu/blocking.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kFewestChannels = 12;  // that vectors run along

class Mirror final : public Kernel {
 public:
  Mirror(const Problem& problem, std::shared_ptr<const Kernel> kernel) : kernel_(std::move(kernel)) {
    std::int64_t last = 0;  // where the last tap lies
    for (int a = 0; a < kSpatialAxes; ++a) last += (problem.axes[a].kernel - 1) * problem.weight_strides[2 + a];
    last_tap_ = last * static_cast<std::int64_t>(size_of(problem.dtype));
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    Buffers other = buffers;
    std::swap(other.input, other.output);
    other.weight = static_cast<char*>(buffers.weight) + last_tap_;
    kernel_->run(other, execution);
  }

  std::string describe() const override { return "mirrored, " + kernel_->describe(); }

 private:
  std::shared_ptr<const Kernel> kernel_;
  std::int64_t last_tap_ = 0;
};

}  // namespace

std::optional<Problem> mirrored(const Problem& problem) {
  if (problem.groups != 1 || std::min(problem.in_channels, problem.out_channels) < kFewestChannels) return {};
  Problem other = problem;
  std::swap(other.in_channels, other.out_channels);
  std::swap(other.input_strides, other.output_strides);
  std::swap(other.weight_strides[0], other.weight_strides[1]);
  const bool leaves_rows_out = problem.dtype == DType::bf16 && has_bf16_products();
  double inputs = 1;
  double outputs = 1;
  for (int a = 0; a < kSpatialAxes; ++a) {
    const Axis& axis = problem.axes[a];
    Axis& mirror = other.axes[a];
    const std::int64_t reach = axis.dilation * (axis.kernel - 1);
    mirror.input = axis.output();
    mirror.pad_begin = reach - axis.pad_begin;
    mirror.pad_end = reach - axis.pad_end + axis.output_padding;
    mirror.output_padding = 0;
    other.weight_strides[2 + a] = -problem.weight_strides[2 + a];
    if (axis.stride != 1 || mirror.pad_begin < 0 || mirror.pad_end < 0 || mirror.output() != axis.input) return {};
    if (leaves_rows_out && a < kSpatialAxes - 1) continue;
    inputs *= static_cast<double>(axis.input);
    outputs *= static_cast<double>(axis.output());
  }
  const auto waste = [](std::int64_t columns) { return column_cost(columns) / static_cast<double>(columns); };
  if (inputs * waste(problem.out_channels) >= outputs * waste(problem.in_channels)) return {};
  return other;
}

std::shared_ptr<const Kernel> run_mirrored(const Problem& problem, std::shared_ptr<const Kernel> kernel) {
  return std::make_shared<Mirror>(problem, std::move(kernel));
}

}  // namespace tconv::cpu
