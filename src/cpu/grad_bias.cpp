// grad_bias: the sum of grad_output over batch and space, in double. Rows are cut into splits by the problem alone and
// the splits are added in order.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "core/parallel.h"
#include "cpu/phases_kernels.h"
#include "cpu/simd.h"
#include "cpu/tile.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kBlock = 16;  // channels summed together
constexpr std::int64_t kTasksWanted = 16;

template <typename E, typename T>
class GradBias final : public Kernel {
 public:
  explicit GradBias(const Problem& problem) : problem_(problem), sizes_(problem.output_sizes()) {
    blocks_ = ceil_div(sizes_[1], kBlock);
    rows_ = element_count(sizes_) == 0 ? 0 : sizes_[0] * sizes_[2] * sizes_[3];
    const std::int64_t wanted = ceil_div(kTasksWanted, std::max<std::int64_t>(blocks_, 1));
    splits_ = std::clamp<std::int64_t>(rows_, 1, wanted);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const auto* grad = static_cast<const E*>(buffers.output);
    auto* bias = static_cast<E*>(buffers.bias);
    const std::int64_t channels = sizes_[1];
    std::vector<double> sums(splits_ * channels, 0.0);
    parallel_for(execution, splits_ * blocks_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t split = task % splits_;
        sum_rows(grad, task / splits_ * kBlock, split, sums.data() + split * channels);
      }
    });
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      double total = 0;
      for (std::int64_t split = 0; split < splits_; ++split) total += sums[split * channels + channel];
      bias[channel] = Element<E>::store(total);
    }
  }

  std::string describe() const override { return std::to_string(splits_) + " splits, " + target_name(); }

 private:
  void sum_rows(const E* grad, std::int64_t first, std::int64_t split, double* sums) const {
    const Strides& strides = problem_.output_strides;
    const ElementOps<E, T>& ops = element_ops<E, T>();
    const std::int64_t last = std::min(first + kBlock, sizes_[1]);
    const bool along_channels = std::abs(strides[1]) < std::abs(strides[4]);
    for (std::int64_t row = rows_ * split / splits_; row < rows_ * (split + 1) / splits_; ++row) {
      const std::int64_t h = row % sizes_[3];
      const std::int64_t d = row / sizes_[3] % sizes_[2];
      const std::int64_t image = row / (sizes_[3] * sizes_[2]);
      const E* const line = grad + image * strides[0] + d * strides[2] + h * strides[3];
      if (along_channels) {
        for (std::int64_t w = 0; w < sizes_[4]; ++w) {
          ops.add(line + first * strides[1] + w * strides[4], strides[1], sums + first, last - first);
        }
      } else {
        for (std::int64_t channel = first; channel < last; ++channel) {
          sums[channel] += ops.sum(line + channel * strides[1], strides[4], sizes_[4]);
        }
      }
    }
  }

  Problem problem_;
  Sizes sizes_;
  std::int64_t blocks_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t splits_ = 1;
};

}  // namespace

Proposal propose_grad_bias(const Problem& problem) {
  return with_types(problem.dtype, [&]<typename E, typename T> {
    Proposal proposal;
    proposal.kernel = std::make_shared<GradBias<E, T>>(problem);
    return proposal;
  });
}

}  // namespace tconv::cpu
