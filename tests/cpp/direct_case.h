// Problems, data and what a right result is, for the tests that run kernels on the CPU.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/family.h"
#include "cpu/scalar.h"
#include "tconv/tconv.h"

namespace tconv::test {

inline DeviceProperties gpu(int arch) {
  DeviceProperties device;
  device.device = {Backend::cuda, 0};
  device.arch = arch;
  const bool server = arch == 80 || arch == 90 || arch == 100;
  device.multiprocessors = arch == 90 ? 132 : 108;
  device.shared_bytes_per_block = server ? (arch == 80 ? 163U : 227U) * 1024 : 99U * 1024;
  device.shared_bytes_per_multiprocessor = device.shared_bytes_per_block + 1024;
  device.bandwidth = server ? (arch == 80 ? 1.7e12 : 4.27e12) : 0.9e12;
  device.fp32_rate = arch == 80 ? 15e12 : 49e12;
  device.tf32_rate = arch == 90 ? 419e12 : 100e12;
  return device;
}

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int below(int count) { return static_cast<int>(engine_() % static_cast<unsigned>(count)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int>(values.size()))];
  }
  double value() { return std::uniform_real_distribution<double>(-1, 1)(engine_); }

 private:
  std::mt19937 engine_;
};

// Densely packed in a random order of the dimensions, now and then with a gap.
inline Strides random_strides(Random& random, const Sizes& sizes) {
  std::array<int, 5> order = {4, 3, 2, 1, 0};
  const int kind = random.below(4);
  if (kind == 0) return contiguous_strides(sizes);
  if (kind == 1) return channels_last_strides(sizes);
  if (kind == 3) {
    for (int i = 4; i > 0; --i)
      std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(random.below(i + 1))]);
  }
  Strides strides{};
  std::int64_t step = random.between(1, 2);
  for (const int dimension : order) {
    strides[static_cast<std::size_t>(dimension)] = step;
    step = step * std::max<std::int64_t>(1, sizes[static_cast<std::size_t>(dimension)]) + random.below(3);
  }
  return strides;
}

inline Problem random_problem(Random& random) {
  for (;;) {
    Problem p;
    p.rank = random.between(1, 3);
    p.dtype = random.pick({DType::f32, DType::f32, DType::f64, DType::f16, DType::bf16});
    p.bias = random.below(2) == 0;
    p.batch = random.between(1, 3);
    p.groups = random.pick({1, 1, 2, 3, 5, 9});
    p.in_channels = p.groups * random.pick({1, 1, 2, 3, 8, 17});
    p.out_channels = p.groups * random.pick({1, 1, 2, 3, 5, 8, 12});
    for (int a = kSpatialAxes - p.rank; a < kSpatialAxes; ++a) {
      Axis& axis = p.axes[static_cast<std::size_t>(a)];
      axis.input = random.between(1, p.rank == 1 ? 70 : p.rank == 2 ? 14 : 6);
      axis.kernel = random.between(1, p.rank == 1 ? 12 : 5);
      axis.stride = random.pick({1, 2, 2, 3, 4, 5});
      axis.dilation = random.pick({1, 1, 1, 2, 3, 4});
      axis.pad_begin = random.below(6);
      axis.pad_end = random.below(4) == 0 ? random.below(6) : axis.pad_begin;
      axis.output_padding = random.below(static_cast<int>(std::max(axis.stride, axis.dilation)));
    }
    bool good = true;
    for (const Axis& axis : p.axes) good = good && axis.output() >= 1;
    if (!good || multiply_adds(p) > 2e6 || element_count(p.output_sizes()) > 60000) continue;
    p.input_strides = random_strides(random, p.input_sizes());
    p.weight_strides = random_strides(random, p.weight_sizes());
    p.output_strides = random_strides(random, p.output_sizes());
    if (random.below(6) == 0) p.weight_strides[0] = 0;  // one filter expanded over the channels
    validate(p);
    return p;
  }
}

inline std::int64_t reach(const Sizes& sizes, const Strides& strides) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  return last + 1;
}

inline double rounded(double value, DType dtype) {
  switch (dtype) {
    case DType::f64: return value;
    case DType::f32: return static_cast<float>(value);
    case DType::f16: return cpu::Element<cpu::Float16>::load(cpu::Element<cpu::Float16>::store(value));
    case DType::bf16: return cpu::Element<cpu::BFloat16>::load(cpu::Element<cpu::BFloat16>::store(value));
  }
  return 0;
}

// Values of a tensor in a memory of its type, with `kMargin` poisoned elements on both sides.
constexpr std::size_t kMargin = 64;

class Encoded {
 public:
  Encoded(const std::vector<double>& values, DType dtype, std::size_t lead)
      : dtype_(dtype), bytes_((values.size() + 2 * kMargin) * size_of(dtype)), memory_(bytes_ + 128, 0xff) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    first_ = (64 - address % 64) % 64 + lead % 8 * size_of(dtype);
    for (std::size_t i = 0; i < values.size(); ++i) {
      unsigned char* const to = data() + i * size_of(dtype);
      const auto put = [to](auto value) { std::memcpy(to, &value, sizeof(value)); };
      if (std::isnan(values[i])) continue;
      switch (dtype) {
        case DType::f64: put(values[i]); break;
        case DType::f32: put(static_cast<float>(values[i])); break;
        case DType::f16: put(cpu::Element<cpu::Float16>::store(values[i])); break;
        case DType::bf16: put(cpu::Element<cpu::BFloat16>::store(values[i])); break;
      }
    }
  }

  unsigned char* data() const { return memory_.data() + first_ + kMargin * size_of(dtype_); }

  double value(std::size_t at) const {
    const unsigned char* const from = data() + at * size_of(dtype_);
    const auto get = [from](auto value) {
      std::memcpy(&value, from, sizeof(value));
      return value;
    };
    switch (dtype_) {
      case DType::f64: return get(0.0);
      case DType::f32: return get(0.0F);
      case DType::f16: return cpu::Element<cpu::Float16>::load(get(cpu::Float16{}));
      case DType::bf16: return cpu::Element<cpu::BFloat16>::load(get(cpu::BFloat16{}));
    }
    return 0;
  }

  bool margins_untouched() const {
    const std::size_t skip = kMargin * size_of(dtype_);
    for (std::size_t i = 0; i < skip; ++i) {
      if (memory_[first_ + i] != 0xff || memory_[first_ + bytes_ - 1 - i] != 0xff) return false;
    }
    return true;
  }

 private:
  DType dtype_;
  std::size_t bytes_;
  mutable std::vector<unsigned char> memory_;
  std::size_t first_ = 0;
};

// A problem with data, its exact result and, per output, the sum of the magnitudes of its terms.
struct Case {
  Case(const Problem& from, Random& random) : problem(from) {
    const auto fill = [&](std::int64_t count) {
      std::vector<double> values(static_cast<std::size_t>(count));
      for (double& v : values) v = rounded(random.value(), problem.dtype);
      return values;
    };
    input = fill(reach(problem.input_sizes(), problem.input_strides));
    weight = fill(reach(problem.weight_sizes(), problem.weight_strides));
    bias = fill(problem.out_channels);
    exact = reference(input, weight, bias);
    const auto magnitude = [](std::vector<double> values) {
      for (double& v : values) v = std::fabs(v);
      return values;
    };
    magnitudes = reference(magnitude(input), magnitude(weight), magnitude(bias));
  }

  std::vector<double> reference(std::vector<double> x, std::vector<double> w, std::vector<double> b) const {
    Problem p = problem;
    p.dtype = DType::f64;
    std::vector<double> y(static_cast<std::size_t>(reach(p.output_sizes(), p.output_strides)),
                          std::numeric_limits<double>::quiet_NaN());
    run(*plan(p, {}, "reference"), {.input = x.data(), .weight = w.data(), .bias = b.data(), .output = y.data()});
    return y;
  }

  // Runs the kernel (of the pointers input, weight, bias, output) and returns what is wrong with the result, or an
  // empty text. `lead` elements lie between a boundary of 64 bytes and each tensor.
  template <typename Run>
  std::string fails(const Run& run, std::size_t lead = 0) const {
    const DType dtype = problem.dtype;
    const Encoded x(input, dtype, lead);
    const Encoded w(weight, dtype, lead);
    const Encoded b(bias, dtype, lead);
    const Encoded y(std::vector<double>(exact.size(), std::numeric_limits<double>::quiet_NaN()), dtype, lead);
    run(x.data(), w.data(), b.data(), y.data());

    const double accumulated = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
    const double stored = dtype == DType::f16 ? 0x1p-11 : dtype == DType::bf16 ? 0x1p-8 : 0;
    double terms = 2 + static_cast<double>(problem.in_channels_per_group());
    for (const Axis& axis : problem.axes) terms *= static_cast<double>(axis.kernel);
    const std::vector<char> written = written_places();
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double got = y.value(i);
      if (written[i] == 0) {
        if (!std::isnan(got)) return "wrote between the output's elements, at " + std::to_string(i);
        continue;
      }
      const double allowed = 2 * terms * accumulated * magnitudes[i] + stored * std::fabs(exact[i]) +
                             (dtype == DType::f16 ? 0x1p-25 : 0);  // half the spacing of subnormals
      if (!(std::fabs(got - exact[i]) <= allowed)) {
        return "at " + std::to_string(i) + " expected " + std::to_string(exact[i]) + ", got " + std::to_string(got);
      }
    }
    if (!y.margins_untouched()) return "wrote outside the output";
    return {};
  }

  std::vector<char> written_places() const {
    std::vector<char> written(exact.size(), 0);
    const Sizes sizes = problem.output_sizes();
    const Strides& s = problem.output_strides;
    for (std::int64_t n = 0; n < sizes[0]; ++n)
      for (std::int64_t c = 0; c < sizes[1]; ++c)
        for (std::int64_t d = 0; d < sizes[2]; ++d)
          for (std::int64_t h = 0; h < sizes[3]; ++h)
            for (std::int64_t i = 0; i < sizes[4]; ++i) {
              written[static_cast<std::size_t>(n * s[0] + c * s[1] + d * s[2] + h * s[3] + i * s[4])] = 1;
            }
    return written;
  }

  Problem problem;
  std::vector<double> input;
  std::vector<double> weight;
  std::vector<double> bias;
  std::vector<double> exact;
  std::vector<double> magnitudes;
};

struct Named {
  const char* name;
  Problem problem;
};

inline Problem make(std::int64_t batch, std::int64_t in, std::int64_t out, std::int64_t groups,
                    std::vector<Axis> axes) {
  Problem p;
  p.rank = static_cast<int>(axes.size());
  p.precision = Precision::tf32;
  p.batch = batch;
  p.in_channels = in;
  p.out_channels = out;
  p.groups = groups;
  for (std::size_t i = 0; i < axes.size(); ++i) p.axes[kSpatialAxes - axes.size() + i] = axes[i];
  set_contiguous(p);
  return p;
}

inline Axis axis(std::int64_t input, std::int64_t kernel, std::int64_t stride, std::int64_t pad,
                 std::int64_t output_padding = 0, std::int64_t dilation = 1) {
  return {input, kernel, stride, dilation, pad, pad, output_padding};
}

}  // namespace tconv::test
