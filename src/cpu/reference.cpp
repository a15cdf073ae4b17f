// The oracle: every problem, by plain loops over  o + pad_begin = i stride + k dilation,  one output element at a time,
// sums in double and one rounding at the end.
#include <array>
#include <memory>
#include <optional>

#include "core/parallel.h"
#include "cpu/families.h"
#include "cpu/scalar.h"
#include "tconv/error.h"

namespace tconv::cpu {
namespace {

using Index = std::array<std::int64_t, 2 + kSpatialAxes>;

std::int64_t offset_of(const Index& index, const Strides& strides) {
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < index.size(); ++i) offset += index[i] * strides[i];
  return offset;
}

Index index_of(std::int64_t linear, const Sizes& sizes) {
  Index index{};
  for (std::size_t i = sizes.size(); i-- > 0;) {
    index[i] = linear % sizes[i];
    linear /= sizes[i];
  }
  return index;
}

std::optional<std::int64_t> input_at(const Axis& axis, std::int64_t output, std::int64_t tap) {
  const std::int64_t distance = output + axis.pad_begin - tap * axis.dilation;
  if (distance < 0 || distance % axis.stride != 0 || distance / axis.stride >= axis.input) return {};
  return distance / axis.stride;
}

std::optional<std::int64_t> output_at(const Axis& axis, std::int64_t input, std::int64_t tap) {
  const std::int64_t output = input * axis.stride + tap * axis.dilation - axis.pad_begin;
  if (output < 0 || output >= axis.output()) return {};
  return output;
}

// Calls visit(tap, partner) for every tap triple whose partner (an input or an output, as `partner_at` says) exists.
template <typename PartnerAt, typename Visit>
void for_each_tap(const Problem& problem, const std::int64_t* at, const PartnerAt& partner_at, const Visit& visit) {
  const auto& [depth, height, width] = problem.axes;
  for (std::int64_t kd = 0; kd < depth.kernel; ++kd) {
    const auto d = partner_at(depth, at[0], kd);
    if (!d) continue;
    for (std::int64_t kh = 0; kh < height.kernel; ++kh) {
      const auto h = partner_at(height, at[1], kh);
      if (!h) continue;
      for (std::int64_t kw = 0; kw < width.kernel; ++kw) {
        const auto w = partner_at(width, at[2], kw);
        if (w) visit(std::array{kd, kh, kw}, std::array{*d, *h, *w});
      }
    }
  }
}

template <typename T>
class Reference final : public Kernel {
 public:
  explicit Reference(const Problem& problem) : problem_(problem) {}

  void run(const Buffers& buffers, const Execution& execution) const override {
    const Tensors tensors{static_cast<T*>(buffers.input), static_cast<T*>(buffers.weight),
                          static_cast<T*>(buffers.bias), static_cast<T*>(buffers.output)};
    switch (problem_.direction) {
      case Direction::forward:
        return fill(problem_.output_sizes(), problem_.output_strides, tensors.output, execution,
                    [&](const Index& at) { return forward(tensors, at); });
      case Direction::grad_input:
        return fill(problem_.input_sizes(), problem_.input_strides, tensors.input, execution,
                    [&](const Index& at) { return grad_input(tensors, at); });
      case Direction::grad_weight:
        return fill(problem_.weight_sizes(), problem_.weight_strides, tensors.weight, execution,
                    [&](const Index& at) { return grad_weight(tensors, at); });
      case Direction::grad_bias:
        return fill({problem_.out_channels, 1, 1, 1, 1}, {1, 0, 0, 0, 0}, tensors.bias, execution,
                    [&](const Index& at) { return grad_bias(tensors, at); });
    }
    throw Error("unknown direction " + std::to_string(static_cast<int>(problem_.direction)));
  }

  std::string describe() const override { return "plain loops, sums in double"; }

 private:
  struct Tensors {
    T* input;
    T* weight;
    T* bias;
    T* output;
  };

  double input(const Tensors& tensors, const Index& at) const {
    return Element<T>::load(tensors.input[offset_of(at, problem_.input_strides)]);
  }
  double weight(const Tensors& tensors, const Index& at) const {
    return Element<T>::load(tensors.weight[offset_of(at, problem_.weight_strides)]);
  }
  double output(const Tensors& tensors, const Index& at) const {
    return Element<T>::load(tensors.output[offset_of(at, problem_.output_strides)]);
  }

  template <typename Value>
  static void fill(const Sizes& sizes, const Strides& strides, T* target, const Execution& execution,
                   const Value& value) {
    parallel_for(execution, element_count(sizes), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t linear = begin; linear < end; ++linear) {
        const Index at = index_of(linear, sizes);
        target[offset_of(at, strides)] = Element<T>::store(value(at));
      }
    });
  }

  // at = [batch, out channel, output position]
  double forward(const Tensors& tensors, const Index& at) const {
    const std::int64_t inputs = problem_.in_channels_per_group();
    const std::int64_t group = at[1] / problem_.out_channels_per_group();
    const std::int64_t out = at[1] % problem_.out_channels_per_group();
    double sum = problem_.bias ? Element<T>::load(tensors.bias[at[1]]) : 0.0;
    for_each_tap(problem_, &at[2], input_at, [&](const auto& k, const auto& i) {
      for (std::int64_t ci = group * inputs; ci < (group + 1) * inputs; ++ci) {
        sum += input(tensors, {at[0], ci, i[0], i[1], i[2]}) * weight(tensors, {ci, out, k[0], k[1], k[2]});
      }
    });
    return sum;
  }

  // at = [batch, in channel, input position]
  double grad_input(const Tensors& tensors, const Index& at) const {
    const std::int64_t outputs = problem_.out_channels_per_group();
    const std::int64_t group = at[1] / problem_.in_channels_per_group();
    double sum = 0;
    for_each_tap(problem_, &at[2], output_at, [&](const auto& k, const auto& o) {
      for (std::int64_t co = 0; co < outputs; ++co) {
        sum += output(tensors, {at[0], group * outputs + co, o[0], o[1], o[2]}) *
               weight(tensors, {at[1], co, k[0], k[1], k[2]});
      }
    });
    return sum;
  }

  // at = [in channel, out channel of the group, tap]
  double grad_weight(const Tensors& tensors, const Index& at) const {
    const std::int64_t co = at[0] / problem_.in_channels_per_group() * problem_.out_channels_per_group() + at[1];
    const auto& [depth, height, width] = problem_.axes;
    double sum = 0;
    for (std::int64_t n = 0; n < problem_.batch; ++n) {
      for (std::int64_t d = 0; d < depth.input; ++d) {
        const auto od = output_at(depth, d, at[2]);
        if (!od) continue;
        for (std::int64_t h = 0; h < height.input; ++h) {
          const auto oh = output_at(height, h, at[3]);
          if (!oh) continue;
          for (std::int64_t w = 0; w < width.input; ++w) {
            const auto ow = output_at(width, w, at[4]);
            if (ow) sum += input(tensors, {n, at[0], d, h, w}) * output(tensors, {n, co, *od, *oh, *ow});
          }
        }
      }
    }
    return sum;
  }

  // at = [out channel]
  double grad_bias(const Tensors& tensors, const Index& at) const {
    const Sizes sizes = problem_.output_sizes();
    double sum = 0;
    for (std::int64_t n = 0; n < sizes[0]; ++n) {
      for (std::int64_t d = 0; d < sizes[2]; ++d) {
        for (std::int64_t h = 0; h < sizes[3]; ++h) {
          for (std::int64_t w = 0; w < sizes[4]; ++w) sum += output(tensors, {n, at[0], d, h, w});
        }
      }
    }
    return sum;
  }

  Problem problem_;
};

}  // namespace

Proposal propose_reference(const Problem& problem, const DeviceProperties& /*device*/) {
  Proposal proposal;
  switch (problem.dtype) {
    case DType::f64: proposal.kernel = std::make_shared<Reference<double>>(problem); break;
    case DType::f32: proposal.kernel = std::make_shared<Reference<float>>(problem); break;
    case DType::f16: proposal.kernel = std::make_shared<Reference<Float16>>(problem); break;
    case DType::bf16: proposal.kernel = std::make_shared<Reference<BFloat16>>(problem); break;
  }
  return proposal;
}

}  // namespace tconv::cpu
