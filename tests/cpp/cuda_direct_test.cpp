// The direct family without a GPU: its kernel run on the CPU against the reference, its planner, its compilation.
#include "cuda/direct.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "cuda/nvrtc.h"
#include "direct_emulation.h"
#include "tconv/tconv.h"

namespace tconv {
namespace {

using cuda::DirectPlan;

DeviceProperties gpu(int arch) {
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
Strides random_strides(Random& random, const Sizes& sizes) {
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

Problem random_problem(Random& random) {
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

std::int64_t reach(const Sizes& sizes, const Strides& strides) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  return last + 1;
}

double rounded(double value, DType dtype) {
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

std::vector<unsigned char> encode(const std::vector<double>& values, DType dtype) {
  const std::size_t bytes = size_of(dtype);
  std::vector<unsigned char> memory((values.size() + 2 * kMargin) * bytes, 0xff);
  for (std::size_t i = 0; i < values.size(); ++i) {
    unsigned char* const to = memory.data() + (i + kMargin) * bytes;
    const auto put = [to](auto value) { std::memcpy(to, &value, sizeof(value)); };
    switch (dtype) {
      case DType::f64: put(values[i]); break;
      case DType::f32: put(static_cast<float>(values[i])); break;
      case DType::f16: put(cpu::Element<cpu::Float16>::store(values[i])); break;
      case DType::bf16: put(cpu::Element<cpu::BFloat16>::store(values[i])); break;
    }
  }
  return memory;
}

double decode(const std::vector<unsigned char>& memory, std::int64_t at, DType dtype) {
  const unsigned char* const from = memory.data() + (static_cast<std::size_t>(at) + kMargin) * size_of(dtype);
  const auto get = [from](auto value) {
    std::memcpy(&value, from, sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::f64: return get(0.0);
    case DType::f32: return get(0.0F);
    case DType::f16: return cpu::Element<cpu::Float16>::load(get(cpu::Float16{}));
    case DType::bf16: return cpu::Element<cpu::BFloat16>::load(get(cpu::BFloat16{}));
  }
  return 0;
}

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

  // Runs the kernel and returns what is wrong with the result, or an empty text.
  std::string fails(const DirectConfig& config, DirectArguments arguments, std::int64_t blocks) const {
    const DType dtype = problem.dtype;
    const std::size_t skip = kMargin * size_of(dtype);
    std::vector<unsigned char> x = encode(input, dtype);
    std::vector<unsigned char> w = encode(weight, dtype);
    std::vector<unsigned char> b = encode(bias, dtype);
    std::vector<unsigned char> y((exact.size() + 2 * kMargin) * size_of(dtype), 0xff);
    arguments.input = x.data() + skip;
    arguments.weight = w.data() + skip;
    arguments.bias = b.data() + skip;
    arguments.output = y.data() + skip;
    test::emulate_direct(config, arguments, blocks, dtype);

    const double accumulated = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
    const double stored = dtype == DType::f16 ? 0x1p-11 : dtype == DType::bf16 ? 0x1p-8 : 0;
    double terms = 2 + static_cast<double>(problem.in_channels_per_group());
    for (const Axis& axis : problem.axes) terms *= static_cast<double>(axis.kernel);
    const std::vector<char> written = written_places();
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double got = decode(y, static_cast<std::int64_t>(i), dtype);
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
    for (std::size_t i = 0; i < skip; ++i) {
      if (y[i] != 0xff || y[y.size() - 1 - i] != 0xff) return "wrote outside the output";
    }
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

// Any tile that the kernel must be able to run, however slow.
DirectConfig random_tile(Random& random, const DirectConfig& planned) {
  for (;;) {
    DirectConfig c = planned;
    c.input_channels_last = random.below(2);
    c.output_channels_last = random.below(2);
    c.strip = random.pick({1, 2, 3, 4});
    c.strips = random.pick({1, 2, 3});
    c.cells_width = c.strip * random.between(1, 6);
    c.cells_height = random.between(1, 4);
    c.cells_depth = random.between(1, 2);
    c.planes = random.pick({1, 1, 2, 3, 5});
    c.thread_channels = random.between(1, std::min(c.out_channels, 8));
    c.channel_parts = random.between(1, 3);
    if (c.channel_parts * c.thread_channels < c.out_channels) c.planes = 1;
    c.chunk = random.below(2) == 0 ? c.in_channels : random.between(1, c.in_channels);
    c.chunk_parts = random.pick({1, 1, 2, 3});
    if (c.chunk_parts > 1) c.chunk = std::max(1, c.chunk / c.chunk_parts) * c.chunk_parts;
    const int phases = c.depth.stride * c.height.stride;
    const bool together = c.chunk < c.in_channels || c.chunk_parts > 1;
    c.phase_parts = together ? phases : random.between(1, phases);
    const DirectGeometry g = direct_geometry(c);
    if (g.threads <= 512 && g.shared_bytes < 400000 && g.sums < 300) return c;
  }
}

TEST(DirectKernel, MatchesReferenceOnRandomProblems) {
  Random random(std::random_device{}());
  int taken = 0;
  for (int i = 0; i < 120; ++i) {
    const Problem problem = random_problem(random);
    const DirectPlan planned = cuda::plan_direct(problem, gpu(random.pick({80, 86, 90})));
    ASSERT_EQ(planned.declined, "") << to_string(problem);
    const Case data(problem, random);
    ASSERT_EQ(data.fails(planned.config, planned.arguments, planned.blocks), "")
        << to_string(problem) << "\n"
        << cuda::describe(planned) << "\n"
        << cuda::direct_source(planned.config, problem.dtype).config;
    ++taken;
  }
  EXPECT_EQ(taken, 120);
}

TEST(DirectKernel, MatchesReferenceWithRandomTiles) {
  Random random(std::random_device{}());
  for (int i = 0; i < 120; ++i) {
    const Problem problem = random_problem(random);
    DirectPlan plan = cuda::plan_direct(problem, gpu(90));
    ASSERT_EQ(plan.declined, "") << to_string(problem);
    plan.config = random_tile(random, plan.config);
    cuda::complete(plan, problem);
    const Case data(problem, random);
    ASSERT_EQ(data.fails(plan.config, plan.arguments, plan.blocks), "")
        << to_string(problem) << "\n"
        << cuda::describe(plan) << "\n"
        << cuda::direct_source(plan.config, problem.dtype).config;
  }
}

struct Named {
  const char* name;
  Problem problem;
};

Problem make(std::int64_t batch, std::int64_t in, std::int64_t out, std::int64_t groups, std::vector<Axis> axes) {
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

Axis axis(std::int64_t input, std::int64_t kernel, std::int64_t stride, std::int64_t pad,
          std::int64_t output_padding = 0, std::int64_t dilation = 1) {
  return {input, kernel, stride, dilation, pad, pad, output_padding};
}

// Layers of models and benchmarks that the family is made for.
std::vector<Named> layers() {
  return {
      {"kb72", make(8, 32, 32, 4, {axis(12, 3, 2, 1, 1), axis(24, 5, 2, 2, 1), axis(48, 7, 2, 3, 1)})},
      {"kb73", make(4, 32, 32, 4, {axis(32, 3, 2, 1), axis(64, 3, 2, 1), axis(128, 3, 2, 1)})},
      {"kb75", make(16, 32, 64, 4, {axis(128, 3, 2, 1, 0, 2), axis(256, 5, 3, 2)})},
      {"CenterNet.dla0", make(16, 256, 256, 256, {axis(16, 4, 2, 1), axis(16, 4, 2, 1)})},
      {"CenterNet.dla1", make(16, 128, 128, 128, {axis(32, 4, 2, 1), axis(32, 4, 2, 1)})},
      {"CenterNet.dla2", make(16, 64, 64, 64, {axis(64, 4, 2, 1), axis(64, 4, 2, 1)})},
      {"CenterNet.ida2", make(16, 64, 64, 64, {axis(32, 8, 4, 2), axis(32, 8, 4, 2)})},
      {"BigVGAN.C768", make(4, 768, 768, 768, {axis(1034, 12, 2, 0)})},
      {"BigVGAN.C384", make(4, 384, 384, 384, {axis(4106, 12, 2, 0)})},
      {"BigVGAN.C24", make(4, 24, 24, 24, {axis(65546, 12, 2, 0)})},
      {"DCGAN.g5", make(64, 64, 3, 1, {axis(32, 4, 2, 1), axis(32, 4, 2, 1)})},
      {"pix2pix.up7", make(1, 128, 3, 1, {axis(128, 4, 2, 1), axis(128, 4, 2, 1)})},
      {"FSRCNN.x2_train", make(16, 56, 1, 1, {axis(10, 9, 2, 4, 1), axis(10, 9, 2, 4, 1)})},
      {"FSRCNN.x2_1080p", make(1, 56, 1, 1, {axis(540, 9, 2, 4, 1), axis(960, 9, 2, 4, 1)})},
      {"FSRCNN.x3_1080p", make(1, 56, 1, 1, {axis(360, 9, 3, 4, 2), axis(640, 9, 3, 4, 2)})},
      {"FSRCNN.x4_2160p", make(1, 56, 1, 1, {axis(540, 9, 4, 4, 3), axis(960, 9, 4, 4, 3)})},
      {"dense 64 -> 64", make(8, 64, 64, 1, {axis(56, 3, 1, 1), axis(56, 3, 1, 1)})},
      {"dense 64 -> 32", make(1, 64, 32, 1, {axis(4096, 4, 2, 1)})},
  };
}

TEST(DirectPlanner, TilesFitTheDevice) {
  for (const int arch : {80, 86, 89, 90, 100, 120}) {
    const DeviceProperties device = gpu(arch);
    for (const Named& layer : layers()) {
      const DirectPlan plan = cuda::plan_direct(layer.problem, device);
      ASSERT_EQ(plan.declined, "") << layer.name;
      const DirectGeometry g = direct_geometry(plan.config);
      EXPECT_LE(static_cast<std::size_t>(g.shared_bytes), device.shared_bytes_per_block) << layer.name;
      EXPECT_EQ(g.threads % 32, 0) << layer.name;
      EXPECT_LE(g.threads, 1024) << layer.name;
      EXPECT_GT(plan.expected_seconds, 0) << layer.name;
      if (arch == 90) {
        std::printf("%-16s %7.1f us  %s\n", layer.name, plan.expected_seconds * 1e6, cuda::describe(plan).c_str());
      }
    }
  }
}

TEST(DirectPlanner, BatchChangesNoKernel) {
  for (const Named& layer : layers()) {
    const std::string config = cuda::direct_source(cuda::plan_direct(layer.problem, gpu(90)).config, DType::f32).config;
    for (const int batch : {1, 2, 7, 64}) {
      Problem problem = layer.problem;
      problem.batch = batch;
      set_contiguous(problem);
      EXPECT_EQ(cuda::direct_source(cuda::plan_direct(problem, gpu(90)).config, DType::f32).config, config)
          << layer.name;
    }
  }
}

TEST(DirectPlanner, SaysWhyItDeclines) {
  Problem problem = make(1, 512, 512, 1, {axis(16, 4, 2, 1), axis(16, 4, 2, 1)});
  EXPECT_NE(cuda::plan_direct(problem, gpu(90)).declined.find("512 -> 512"), std::string::npos);
  problem.precision = Precision::strict;
  EXPECT_EQ(cuda::plan_direct(problem, gpu(90)).declined, "");
  EXPECT_NE(cuda::plan_direct(problem, gpu(75)).declined.find("sm_75"), std::string::npos);
  problem = make(1, 1, 1, 1, {axis(64, 1024, 256, 0)});
  EXPECT_NE(cuda::plan_direct(problem, gpu(90)).declined.find("1024"), std::string::npos);
  problem = make(0, 1, 1, 1, {axis(64, 4, 2, 1)});
  EXPECT_NE(cuda::plan_direct(problem, gpu(90)).declined.find("empty"), std::string::npos);
  problem = make(1, 1, 1, 1, {axis(64, 4, 2, 1)});
  problem.direction = Direction::grad_input;
  EXPECT_NE(cuda::plan_direct(problem, gpu(90)).declined, "");
}

class DirectCompilation : public testing::TestWithParam<int> {};

TEST_P(DirectCompilation, SpillsNothing) {
  const int arch = GetParam();
  try {
    if (!cuda::nvrtc_supports(arch)) GTEST_SKIP() << "NVRTC here has no sm_" << arch;
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const DeviceProperties device = gpu(arch);
  for (const Named& layer : layers()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::f64}) {
      for (const bool channels_last : {false, true}) {
        // One architecture sees all types and both layouts, the others the main case.
        if ((dtype != DType::f32 || channels_last) && arch != 90) continue;
        if ((dtype == DType::f16 && channels_last) || (dtype == DType::f64 && !channels_last)) continue;
        Problem problem = layer.problem;
        problem.dtype = dtype;
        problem.bias = true;
        if (channels_last) {
          problem.input_strides = channels_last_strides(problem.input_sizes());
          problem.output_strides = channels_last_strides(problem.output_sizes());
        }
        const DirectPlan plan = cuda::plan_direct(problem, device);
        ASSERT_EQ(plan.declined, "") << layer.name;
        const cuda::Compiled compiled = cuda::compile(cuda::direct_source(plan.config, dtype), arch);
        EXPECT_EQ(compiled.spill_bytes, 0U)
            << layer.name << " " << name_of(dtype) << (channels_last ? " channels last" : "") << " sm_" << arch << ": "
            << cuda::describe(plan) << "\n"
            << compiled.log;
        if (arch == 90) {
          std::printf("%-16s %-8s %s %3d registers (guess %d)\n", layer.name, name_of(dtype),
                      channels_last ? "NHWC" : "NCHW", compiled.registers,
                      cuda::direct_registers(plan.config, direct_geometry(plan.config)));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, DirectCompilation, testing::Values(80, 86, 89, 90, 100, 120));

}  // namespace
}  // namespace tconv
