// What the planner chooses for the problem file is compiled for every architecture, in several precisions and layouts:
// no kernel may use local memory (spilled registers, arrays that are not kept in registers), nor more shared memory
// than the GPU has.
//
// There are thousands of kernels. By default a core set and a sample of a few problems are compiled;
// TCONV_TEST_ALL_KERNELS=1 (`make test-kernels`) compiles all, TCONV_TEST_SEED=n takes another sample.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "core/family.h"
#include "cuda/device.h"
#include "cuda/jit_kernel.h"
#include "cuda/nvrtc.h"
#include "problem_file.h"

namespace tconv::cuda {
namespace {

// Beside the core set, of an architecture and mode: kernels, out of those of so many problems.
constexpr std::size_t kSampled = 3;
constexpr std::size_t kSampledProblems = 8;

// A GPU of each architecture, as its driver describes it.
DeviceProperties gpu(int arch) {
  constexpr std::size_t kKiB = 1024;
  static const std::vector<DeviceFacts> kGpus = {
      {0, "A100", 8, 0, 108, 163 * kKiB, 164 * kKiB, 40960 * kKiB, 1.41e9, 1.593e9, 5120},
      {0, "RTX 3090", 8, 6, 82, 99 * kKiB, 100 * kKiB, 6144 * kKiB, 1.695e9, 9.751e9, 384},
      {0, "RTX 4090", 8, 9, 128, 99 * kKiB, 100 * kKiB, 73728 * kKiB, 2.52e9, 10.501e9, 384},
      {0, "H200", 9, 0, 132, 227 * kKiB, 228 * kKiB, 61440 * kKiB, 1.98e9, 3.201e9, 6144},
      {0, "B200", 10, 0, 148, 227 * kKiB, 228 * kKiB, 129024 * kKiB, 1.965e9, 3.996e9, 8192},
      {0, "RTX 5090", 12, 0, 170, 99 * kKiB, 100 * kKiB, 98304 * kKiB, 2.407e9, 14.001e9, 512},
  };
  for (const DeviceFacts& facts : kGpus) {
    if (10 * facts.major + facts.minor == arch) return describe(facts);
  }
  throw std::invalid_argument("no GPU of sm_" + std::to_string(arch));
}

constexpr const char* kCore = "kb75";

// What a problem is computed in, and how its tensors lie.
struct Mode {
  const char* name;
  DType dtype;
  Precision precision;
  bool channels_last;
  bool core;  // whether the kernels of kCore are always compiled
};
constexpr std::array<Mode, 8> kModes{{{"tf32", DType::f32, Precision::tf32, false, true},
                                      {"strict", DType::f32, Precision::strict, false, false},
                                      {"bf16", DType::bf16, Precision::strict, false, true},
                                      {"f16", DType::f16, Precision::strict, false, false},
                                      {"tf32_channels_last", DType::f32, Precision::tf32, true, false},
                                      {"strict_channels_last", DType::f32, Precision::strict, true, false},
                                      {"bf16_channels_last", DType::bf16, Precision::strict, true, false},
                                      {"f16_channels_last", DType::f16, Precision::strict, true, false}}};

constexpr std::array kDirections = {Direction::forward, Direction::grad_input, Direction::grad_weight,
                                    Direction::grad_bias};

struct Work {
  std::string label;
  std::string plan;
  JitKernelWatch::Made kernel;
};

// The kernels of the problems' plans, each source once.
std::vector<Work> planned_kernels(const DeviceProperties& device, const Mode& mode,
                                  const std::vector<test::NamedProblem>& problems) {
  std::vector<Work> kernels;
  std::set<std::string> seen;
  for (const auto& [name, base] : problems) {
    for (const Direction direction : kDirections) {
      Problem problem = base;
      problem.direction = direction;
      problem.dtype = mode.dtype;
      problem.precision = mode.precision;
      if (mode.channels_last) {
        problem.input_strides = channels_last_strides(problem.input_sizes());
        if (problem.weight_strides == contiguous_strides(problem.weight_sizes()))
          problem.weight_strides = channels_last_strides(problem.weight_sizes());
        problem.output_strides = channels_last_strides(problem.output_sizes());
      }
      const Plan plan = make_plan(problem, device, families(), {});
      // Asked again, since planning also makes the kernels of the families that lose.
      const JitKernelWatch watch;
      const auto& family = *std::find_if(families().begin(), families().end(),
                                         [&](const Family& candidate) { return candidate.name == plan.family; });
      const Proposal proposal = family.propose(problem, device);
      EXPECT_NE(proposal.kernel, nullptr) << name;
      EXPECT_FALSE(watch.made().empty()) << name << ": the plan makes no kernel";
      for (const JitKernelWatch::Made& made : watch.made()) {
        EXPECT_EQ(made.arch, device.arch);
        if (!seen.insert(made.source.file + made.source.config + made.source.entry).second) continue;
        kernels.push_back({name + " " + name_of(problem.direction) + " " + mode.name + " sm_" +
                               std::to_string(device.arch) + " " + plan.family + " " + made.source.entry,
                           plan.kernel->describe(), made});
      }
    }
  }
  return kernels;
}

// Text of an environment variable, or empty.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class PlannedKernels : public testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(PlannedKernels, UseNoLocalMemory) {
  const auto& [arch, mode] = GetParam();
  const DeviceProperties device = gpu(arch);
  const bool everything = variable("TCONV_TEST_ALL_KERNELS") == "1";
  const std::string given = variable("TCONV_TEST_SEED");
  const unsigned seed = given.empty() ? 1U : static_cast<unsigned>(std::stoul(given));
  std::vector<test::NamedProblem> problems = test::problem_file();
  std::vector<Work> work;
  if (everything) {
    work = planned_kernels(device, mode, problems);
    EXPECT_GE(work.size(), 300U);
  } else {
    // Architectures and modes draw from different problems.
    const std::string drawn = std::to_string(arch) + mode.name + std::to_string(seed);
    std::seed_seq digits(drawn.begin(), drawn.end());
    std::mt19937 random(digits);
    std::shuffle(problems.begin(), problems.end(), random);
    const auto core = std::find_if(problems.begin(), problems.end(), [](const auto& it) { return it.name == kCore; });
    ASSERT_NE(core, problems.end());
    if (mode.core) work = planned_kernels(device, mode, {*core});
    problems.erase(core);
    problems.resize(std::min(problems.size(), kSampledProblems));
    std::vector<Work> others = planned_kernels(device, mode, problems);
    ASSERT_GE(others.size(), kSampled);
    std::shuffle(others.begin(), others.end(), random);
    std::move(others.begin(), others.begin() + kSampled, std::back_inserter(work));
  }
  std::printf("compiling %zu kernels for sm_%d, %s%s\n", work.size(), device.arch, mode.name,
              everything ? "" : (" (TCONV_TEST_SEED=" + std::to_string(seed) + ")").c_str());

  for (const auto& [label, plan, kernel] : work) {
    Compiled compiled;
    ASSERT_NO_THROW(compiled = compile(kernel.source, device.arch)) << label << ": " << plan;
    EXPECT_GT(compiled.registers, 0) << label << ": this NVRTC makes no machine code for the architecture";
    EXPECT_EQ(compiled.spill_bytes, 0U) << "bytes of local memory: " << label << ", " << compiled.registers
                                        << " registers: " << plan;
    EXPECT_LE(compiled.shared_bytes + kernel.dynamic_shared_bytes, device.shared_bytes_per_block) << label;
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, PlannedKernels,
                         testing::Combine(testing::Values(80, 86, 89, 90, 100, 120), testing::ValuesIn(kModes)),
                         [](const auto& test) {
                           return "sm_" + std::to_string(std::get<0>(test.param)) + "_" + std::get<1>(test.param).name;
                         });

TEST(ProblemFile, IsReadWhole) {
  const std::vector<test::NamedProblem> problems = test::problem_file();
  EXPECT_GE(problems.size(), 90U);
  std::set<std::string> names;
  for (const auto& [name, problem] : problems) {
    EXPECT_TRUE(names.insert(name).second) << name << " twice";
    EXPECT_NO_THROW(validate(problem)) << name;
  }
}

}  // namespace
}  // namespace tconv::cuda
