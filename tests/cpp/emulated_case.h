// A problem of any direction with data: what a kernel under the emulator writes, against the reference.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/family.h"
#include "direct_case.h"
#include "tconv/tconv.h"

namespace tconv::test {

// Values are few and coarse: exact in every type, as are their products and sums, so that an output is right or wrong.
class EmulatedCase {
 public:
  // Values of the tensor `fine` (0 to 3: input, weight, bias, output) have more bits than TF32, still few enough.
  EmulatedCase(const Problem& problem, Random& random, int fine = -1) : problem_(problem) {
    const auto fill = [&](int tensor, std::int64_t count) {
      std::vector<double> values(static_cast<std::size_t>(count));
      for (double& value : values) {
        value = random.between(-8, 8) / 8.0;
        if (tensor == fine) value += random.between(-8, 8) * 0x1p-15;
      }
      return values;
    };
    tensors_ = {fill(0, reach(problem.input_sizes(), problem.input_strides)),
                fill(1, reach(problem.weight_sizes(), problem.weight_strides)), fill(2, problem.out_channels),
                fill(3, reach(problem.output_sizes(), problem.output_strides))};
    std::vector<double>& written = tensors_[written_index()];
    std::fill(written.begin(), written.end(), std::numeric_limits<double>::quiet_NaN());
    Problem exact = problem;
    exact.dtype = DType::f64;
    std::vector<std::vector<double>> copies = tensors_;
    run(*plan(exact, {}, "reference"),
        {.input = copies[0].data(), .weight = copies[1].data(), .bias = copies[2].data(), .output = copies[3].data()});
    expected_ = copies[written_index()];
  }

  // What is wrong with the kernel's result, or an empty text. The caller holds a KernelEmulator.
  std::string fails(const Proposal& proposal, std::size_t lead = 0) const {
    if (proposal.kernel == nullptr) return "declined: " + proposal.declined;
    const Encoded x(tensors_[0], problem_.dtype, lead);
    const Encoded w(tensors_[1], problem_.dtype, lead);
    const Encoded b(tensors_[2], problem_.dtype, lead);
    const Encoded y(tensors_[3], problem_.dtype, lead);
    std::vector<Aligned> workspace(proposal.workspace_bytes / sizeof(Aligned) + 1);
    for (Aligned& piece : workspace) std::fill(std::begin(piece.bytes), std::end(piece.bytes), 0xff);
    proposal.kernel->run(
        {.input = x.data(), .weight = w.data(), .bias = b.data(), .output = y.data(), .workspace = workspace.data()},
        {});
    const Encoded* const encoded[] = {&x, &w, &b, &y};
    const Encoded& written = *encoded[written_index()];
    const double stored = problem_.dtype == DType::f16 ? 0x1p-11 : problem_.dtype == DType::bf16 ? 0x1p-8 : 0;
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      const double got = written.value(i);
      const double want = expected_[i];
      if (std::isnan(want) != std::isnan(got) || std::fabs(got - want) > stored * std::fabs(want)) {
        return "at " + std::to_string(i) + " expected " + std::to_string(want) + ", got " + std::to_string(got) +
               " by " + proposal.kernel->describe();
      }
    }
    if (!written.margins_untouched()) return "wrote outside the tensor";
    return {};
  }

 private:
  struct alignas(256) Aligned {
    unsigned char bytes[256];
  };

  std::size_t written_index() const {
    switch (problem_.direction) {
      case Direction::forward: return 3;
      case Direction::grad_input: return 0;
      case Direction::grad_weight: return 1;
      case Direction::grad_bias: return 2;
    }
    return 0;
  }

  Problem problem_;
  std::vector<std::vector<double>> tensors_;  // input, weight, bias, output
  std::vector<double> expected_;
};

}  // namespace tconv::test
