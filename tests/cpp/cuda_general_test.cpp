// The general CUDA kernel run by the host compiler, thread by thread, against the reference.
#include "cuda/general.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cpu/scalar.h"
#include "tconv/tconv.h"
// Device code comes after the words that it needs.
// clang-format off
#include "cuda_host_shim.h"
#include "cuda/kernels/general_params.cuh"
#include "cuda/kernels/types.cuh"
// clang-format on

// Each namespace is one compilation of the kernel; the entry's name must differ, since extern "C" knows no namespaces.
namespace f32_narrow {
using Element = F32;
using Index = int;
constexpr int kBundle = 4;
constexpr bool kGradient = false;
#define tconv_general tconv_general_f32_narrow  // NOLINT
#include "cuda/kernels/general.cuh"
#undef tconv_general
}  // namespace f32_narrow

namespace f32_wide {
using Element = F32;
using Index = long long;
constexpr int kBundle = 1;
constexpr bool kGradient = false;
#define tconv_general tconv_general_f32_wide  // NOLINT
#include "cuda/kernels/general.cuh"
#undef tconv_general
}  // namespace f32_wide

namespace f64_narrow {
using Element = F64;
using Index = int;
constexpr int kBundle = 4;
constexpr bool kGradient = false;
#define tconv_general tconv_general_f64_narrow  // NOLINT
#include "cuda/kernels/general.cuh"
#undef tconv_general
}  // namespace f64_narrow

namespace bf16_narrow {
using Element = BF16;
using Index = int;
constexpr int kBundle = 1;
constexpr bool kGradient = false;
#define tconv_general tconv_general_bf16_narrow  // NOLINT
#include "cuda/kernels/general.cuh"
#undef tconv_general
}  // namespace bf16_narrow

namespace f32_narrow_gradient {
using Element = F32;
using Index = int;
constexpr int kBundle = 4;
constexpr bool kGradient = true;
#define tconv_general tconv_general_f32_narrow_gradient  // NOLINT
#include "cuda/kernels/general.cuh"
#undef tconv_general
}  // namespace f32_narrow_gradient

namespace f32_wide_gradient {
using Element = F32;
using Index = long long;
constexpr int kBundle = 1;
constexpr bool kGradient = true;
#define tconv_general tconv_general_f32_wide_gradient  // NOLINT
#include "cuda/kernels/general.cuh"
#undef tconv_general
}  // namespace f32_wide_gradient

namespace bf16_narrow_gradient {
using Element = BF16;
using Index = int;
constexpr int kBundle = 1;
constexpr bool kGradient = true;
#define tconv_general tconv_general_bf16_narrow_gradient  // NOLINT
#include "cuda/kernels/general.cuh"
#undef tconv_general
}  // namespace bf16_narrow_gradient

namespace tconv::cuda {
namespace {

struct Variant {
  GeneralShape shape;
  void (*entry)(GeneralParams);
};

const Variant kVariants[] = {
    {{.dtype = DType::f32, .wide = false, .bundle = 4}, f32_narrow::tconv_general_f32_narrow},
    {{.dtype = DType::f32, .wide = true, .bundle = 1}, f32_wide::tconv_general_f32_wide},
    {{.dtype = DType::f64, .wide = false, .bundle = 4}, f64_narrow::tconv_general_f64_narrow},
    {{.dtype = DType::bf16, .wide = false, .bundle = 1}, bf16_narrow::tconv_general_bf16_narrow},
    {{.dtype = DType::f32, .wide = false, .bundle = 4, .gradient = true},
     f32_narrow_gradient::tconv_general_f32_narrow_gradient},
    {{.dtype = DType::f32, .wide = true, .bundle = 1, .gradient = true},
     f32_wide_gradient::tconv_general_f32_wide_gradient},
    {{.dtype = DType::bf16, .wide = false, .bundle = 1, .gradient = true},
     bf16_narrow_gradient::tconv_general_bf16_narrow_gradient},
};

void run_on_host(const Variant& variant, const Problem& problem, const Buffers& buffers) {
  GeneralParams params = general_params(problem, variant.shape);
  params.input = variant.shape.gradient ? buffers.output : buffers.input;
  params.weight = buffers.weight;
  params.bias = variant.shape.gradient ? nullptr : buffers.bias;
  params.output = variant.shape.gradient ? buffers.input : buffers.output;
  blockDim.x = 32;
  gridDim.x = static_cast<unsigned>((params.work + 31) / 32);
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) variant.entry(params);
  }
}

class Random {
 public:
  std::int64_t in(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  double value() { return std::normal_distribution<double>()(engine_); }

 private:
  std::mt19937_64 engine_{std::random_device{}()};
};

// Dense, channels last, or with a gap after each row.
Strides random_strides(Random& random, const Sizes& sizes) {
  switch (random.in(0, 2)) {
    case 0: return contiguous_strides(sizes);
    case 1: return channels_last_strides(sizes);
    default: {
      Sizes larger = sizes;
      for (std::int64_t& size : larger) size += random.in(0, 2);
      return contiguous_strides(larger);
    }
  }
}

Problem random_problem(Random& random, DType dtype) {
  while (true) {
    Problem problem;
    problem.rank = 3;
    problem.dtype = dtype;
    problem.bias = random.in(0, 1) == 1;
    problem.batch = random.in(1, 2);
    problem.groups = random.in(1, 3);
    problem.in_channels = problem.groups * random.in(1, 4);
    problem.out_channels = problem.groups * random.in(1, 6);
    for (Axis& axis : problem.axes) {
      axis.input = random.in(1, 5);
      axis.kernel = random.in(1, 5);
      axis.stride = random.in(1, 6);
      axis.dilation = random.in(1, 6);
      axis.pad_begin = random.in(0, 4);
      axis.pad_end = random.in(0, 4);
      axis.output_padding = random.in(0, std::max(axis.stride, axis.dilation) - 1);
      if (random.in(0, 9) == 0) axis.stride = 1000;
    }
    const bool empty =
        std::any_of(problem.axes.begin(), problem.axes.end(), [](const Axis& a) { return a.output() < 1; });
    if (empty || element_count(problem.output_sizes()) > 20'000) continue;
    problem.input_strides = random_strides(random, problem.input_sizes());
    problem.weight_strides = random_strides(random, problem.weight_sizes());
    if (random.in(0, 4) == 0) problem.weight_strides[1] = 0;
    problem.output_strides = random_strides(random, problem.output_sizes());
    return problem;
  }
}

std::size_t extent(const Sizes& sizes, const Strides& strides) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  return static_cast<std::size_t>(last + 1);
}

template <typename T>
struct Unit;  // half of the spacing of numbers at 1: of sums, and of what is stored
template <>
struct Unit<double> {
  static constexpr double kSum = 0x1p-53;
  static constexpr double kStored = 0x1p-53;
};
template <>
struct Unit<float> {
  static constexpr double kSum = 0x1p-24;
  static constexpr double kStored = 0x1p-24;
};
template <>
struct Unit<cpu::BFloat16> {
  static constexpr double kSum = 0x1p-24;
  static constexpr double kStored = 0x1p-8;
};

template <typename T>
void compare(const Variant& variant, const Problem& problem, Random& random) {
  using Scalar = cpu::Element<T>;
  SCOPED_TRACE(to_string(problem));
  const auto fill = [&](std::size_t size) {
    std::vector<T> values(size);
    for (T& value : values) value = Scalar::store(random.value());
    return values;
  };
  const auto magnitudes = [](std::vector<T> values) {
    for (T& value : values) value = Scalar::store(std::fabs(Scalar::load(value)));
    return values;
  };
  std::vector<T> input = fill(extent(problem.input_sizes(), problem.input_strides));
  std::vector<T> weight = fill(extent(problem.weight_sizes(), problem.weight_strides));
  std::vector<T> bias = fill(static_cast<std::size_t>(problem.out_channels));
  const bool gradient = problem.direction == Direction::grad_input;
  if (gradient) input = fill(extent(problem.output_sizes(), problem.output_strides));  // of the layer's output
  const T poison = Scalar::store(std::numeric_limits<double>::quiet_NaN());
  std::vector<T> expected(gradient ? extent(problem.input_sizes(), problem.input_strides)
                                   : extent(problem.output_sizes(), problem.output_strides),
                          poison);
  std::vector<T> output = expected;
  std::vector<T> magnitude = expected;
  const auto reference = plan(problem, {}, "reference");
  const auto buffers = [&](std::vector<T>& x, std::vector<T>& w, std::vector<T>& b, std::vector<T>& y) -> Buffers {
    void* const bias_pointer = problem.bias ? b.data() : nullptr;
    return gradient ? Buffers{.input = y.data(), .weight = w.data(), .output = x.data()}
                    : Buffers{.input = x.data(), .weight = w.data(), .bias = bias_pointer, .output = y.data()};
  };
  run(*reference, buffers(input, weight, bias, expected));
  run_on_host(variant, problem, buffers(input, weight, bias, output));
  // The same sums over magnitudes bound the rounding errors.
  std::vector<T> abs_input = magnitudes(input);
  std::vector<T> abs_weight = magnitudes(weight);
  std::vector<T> abs_bias = magnitudes(bias);
  run(*reference, buffers(abs_input, abs_weight, abs_bias, magnitude));

  auto terms = static_cast<double>(gradient ? problem.out_channels_per_group() : problem.in_channels_per_group());
  for (const Axis& axis : problem.axes) terms *= static_cast<double>(axis.kernel);
  for (std::size_t i = 0; i < output.size(); ++i) {
    const double want = Scalar::load(expected[i]);
    const double got = Scalar::load(output[i]);
    // NaN must stay where the strides leave gaps, and nowhere else.
    ASSERT_EQ(std::isnan(want), std::isnan(got)) << "element " << i;
    if (std::isnan(want)) continue;
    const double sums = (terms + 2) * Unit<T>::kSum * 1.01 * Scalar::load(magnitude[i]);
    const double stored = 2.01 * Unit<T>::kStored * std::max(std::fabs(want), std::fabs(got));
    ASSERT_LE(std::fabs(want - got), sums + stored) << "element " << i;
  }
}

template <typename T>
void compare_random(const Variant& variant, int count) {
  Random random;
  for (int at = 0; at < count && !testing::Test::HasFatalFailure(); ++at) {
    Problem problem = random_problem(random, variant.shape.dtype);
    if (variant.shape.gradient) {
      problem.direction = Direction::grad_input;
      problem.bias = false;
      problem.input_strides = random_strides(random, problem.input_sizes());
    }
    compare<T>(variant, problem, random);
  }
}

TEST(GeneralOnHost, Float32) { compare_random<float>(kVariants[0], 300); }
TEST(GeneralOnHost, Float32Wide) { compare_random<float>(kVariants[1], 300); }
TEST(GeneralOnHost, Float64) { compare_random<double>(kVariants[2], 200); }
TEST(GeneralOnHost, BFloat16) { compare_random<cpu::BFloat16>(kVariants[3], 200); }
TEST(GeneralOnHost, GradientFloat32) { compare_random<float>(kVariants[4], 300); }
TEST(GeneralOnHost, GradientFloat32Wide) { compare_random<float>(kVariants[5], 300); }
TEST(GeneralOnHost, GradientBFloat16) { compare_random<cpu::BFloat16>(kVariants[6], 200); }

// Strides and dilations beyond 32 bits, with a padding that leaves a few outputs.
TEST(GeneralOnHost, DistancesBeyond32Bits) {
  Random random;
  for (int tap = 1; tap <= 2; ++tap) {
    for (const std::int64_t stride : {1LL, 2LL, 3'000'000'000LL, 5'000'000'000LL}) {
      Problem problem;
      problem.rank = 1;
      problem.in_channels = 2;
      problem.bias = true;
      Axis& axis = problem.axes[2];
      axis = {.input = 2, .kernel = 4, .stride = stride, .dilation = 3'000'000'000};
      axis.pad_begin = tap * axis.dilation - 5;
      axis.pad_end = axis.output() - 12;
      ASSERT_EQ(axis.output(), 12);
      set_contiguous(problem);
      ASSERT_TRUE(general_shape(problem).wide);
      compare<float>(kVariants[1], problem, random);
      problem.bias = false;
      problem.direction = Direction::grad_input;
      ASSERT_TRUE(general_shape(problem).wide);
      compare<float>(kVariants[5], problem, random);
    }
  }
}

DeviceProperties gpu(int arch) {
  DeviceProperties properties;
  properties.device = {Backend::cuda, 0};
  properties.arch = arch;
  properties.multiprocessors = 100;
  properties.bandwidth = 1e12;
  properties.fp32_rate = 20e12;
  properties.tf32_rate = 100e12;
  return properties;
}

Problem small_problem() {
  Problem problem;
  problem.in_channels = 8;
  problem.out_channels = 8;
  problem.axes[1] = problem.axes[2] = {.input = 16, .kernel = 4, .stride = 2, .pad_begin = 1, .pad_end = 1};
  set_contiguous(problem);
  return problem;
}

TEST(General, TakesEveryProblemOfItsDirections) {
  Random random;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const Direction direction : {Direction::forward, Direction::grad_input}) {
      Problem problem = random_problem(random, dtype);
      problem.direction = direction;
      const Proposal proposal = propose_general(problem, gpu(80));
      ASSERT_NE(proposal.kernel, nullptr);
      EXPECT_GT(proposal.expected_seconds, 0);
      EXPECT_EQ(proposal.workspace_bytes, 0U);
    }
  }
  Problem problem = small_problem();
  for (const Direction direction : {Direction::grad_weight, Direction::grad_bias}) {
    problem.direction = direction;
    EXPECT_NE(propose_general(problem, gpu(80)).kernel, nullptr);
  }
}

// Nothing to write means that no driver is needed either.
TEST(General, EmptyOutputsLaunchNothing) {
  Problem problem = small_problem();
  problem.batch = 0;
  set_contiguous(problem);
  const Proposal proposal = propose_general(problem, gpu(80));
  ASSERT_NE(proposal.kernel, nullptr);
  EXPECT_NO_THROW(proposal.kernel->prepare());
  EXPECT_NO_THROW(proposal.kernel->run({}, {}));
}

TEST(General, ANewBatchCompilesNothing) {
  Problem problem = small_problem();
  const GeneralShape shape = general_shape(problem);
  problem.batch = 64;
  problem.axes[2].input = 700;
  set_contiguous(problem);
  EXPECT_EQ(general_shape(problem), shape);
}

TEST(General, LargePositionsAreWide) {
  Problem problem = small_problem();
  EXPECT_FALSE(general_shape(problem).wide);
  Problem many = problem;
  many.batch = 1'000'000;
  many.out_channels = 16;
  set_contiguous(many);
  EXPECT_TRUE(general_shape(many).wide);
  Problem far = problem;
  far.axes[2].dilation = 1'000'000'000;
  set_contiguous(far);
  EXPECT_TRUE(general_shape(far).wide);
}

}  // namespace
}  // namespace tconv::cuda
