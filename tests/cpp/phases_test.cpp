// The phase decomposition against the definition: output o receives tap k from input i exactly when
// o + pad_begin = i stride + k dilation.
#include "tconv/phases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tconv {
namespace {

using Contribution = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // output, tap, input

std::string describe(const Axis& axis) {
  return "input " + std::to_string(axis.input) + " kernel " + std::to_string(axis.kernel) + " stride " +
         std::to_string(axis.stride) + " dilation " + std::to_string(axis.dilation) + " pad " +
         std::to_string(axis.pad_begin) + "," + std::to_string(axis.pad_end) + " output_padding " +
         std::to_string(axis.output_padding);
}

// By scattering: the definition, with no division in it.
std::set<Contribution> brute_force(const Axis& axis) {
  std::set<Contribution> result;
  const std::int64_t length = axis.output();
  for (std::int64_t i = 0; i < axis.input; ++i) {
    for (std::int64_t k = 0; k < axis.kernel; ++k) {
      const std::int64_t o = i * axis.stride + k * axis.dilation - axis.pad_begin;
      if (o >= 0 && o < length) result.emplace(o, k, i);
    }
  }
  return result;
}

void check_phases(const Axis& axis) {
  const std::int64_t length = axis.output();
  std::set<Contribution> found;
  std::vector<int> owners(static_cast<std::size_t>(std::max<std::int64_t>(length, 0)), 0);
  std::int64_t last_residue = -1;
  const std::vector<Phase> all = phases(axis);
  EXPECT_LE(all.size(), static_cast<std::size_t>(axis.kernel));
  for (const Phase& phase : all) {
    EXPECT_GT(phase.residue, last_residue) << "phases must come by rising residue";
    EXPECT_LT(phase.residue, axis.stride);
    last_residue = phase.residue;
    EXPECT_GT(phase.outputs, 0);
    EXPECT_GT(phase.taps, 0);
    for (std::int64_t j = 0; j < phase.outputs; ++j) {
      const std::int64_t o = phase.first_output + j * axis.stride;
      ASSERT_GE(o, 0);
      ASSERT_LT(o, length);
      EXPECT_EQ((o + axis.pad_begin) % axis.stride, phase.residue);
      ++owners[static_cast<std::size_t>(o)];
      for (std::int64_t t = 0; t < phase.taps; ++t) {
        const std::int64_t k = phase.first_tap + t * phase.tap_step;
        const std::int64_t i = phase.first_input + j - t * phase.input_step;
        ASSERT_LT(k, axis.kernel);
        // Holds for inputs outside the tensor too, so that a kernel may load them as zeros.
        EXPECT_EQ(o + axis.pad_begin, i * axis.stride + k * axis.dilation);
        if (i < 0 || i >= axis.input) continue;
        EXPECT_TRUE(found.emplace(o, k, i).second) << "counted twice";
      }
    }
  }
  EXPECT_TRUE(found == brute_force(axis)) << "the phases miss or invent contributions";

  bool empty = false;
  for (std::int64_t o = 0; o < length; ++o) {
    bool residue_has_tap = false;
    for (std::int64_t k = 0; k < axis.kernel; ++k) {
      residue_has_tap |= (o + axis.pad_begin) % axis.stride == (k * axis.dilation) % axis.stride;
    }
    EXPECT_EQ(owners[static_cast<std::size_t>(o)], residue_has_tap ? 1 : 0) << "output " << o;
    empty |= !residue_has_tap;
  }
  EXPECT_EQ(has_empty_phase(axis), empty);
}

void check_taps(const Axis& axis) {
  const std::int64_t length = axis.output();
  for (std::int64_t k = 0; k < axis.kernel; ++k) {
    const TapSite site = site_of(axis, k);
    EXPECT_GE(site.residue, 0);
    EXPECT_LT(site.residue, axis.stride);
    EXPECT_LE(site.shift, 0);
    const Range range = inputs_reaching_output(axis, k);
    EXPECT_GE(range.begin, 0);
    EXPECT_LE(range.begin, range.end);
    EXPECT_LE(range.end, axis.input);
    for (std::int64_t i = 0; i < axis.input; ++i) {
      const std::int64_t o = i * axis.stride + k * axis.dilation - axis.pad_begin;
      EXPECT_EQ(i >= range.begin && i < range.end, o >= 0 && o < length) << "tap " << k << " input " << i;
      if (o < 0 || o >= length) continue;
      EXPECT_EQ((o + axis.pad_begin) % axis.stride, site.residue);
      EXPECT_EQ((o + axis.pad_begin) / axis.stride + site.shift, i);
    }
  }
}

void check(const Axis& axis) {
  SCOPED_TRACE(describe(axis));
  check_phases(axis);
  check_taps(axis);
}

// Small parameters of every kind. The output is sometimes cut to a length of 0 or 1.
Axis random_axis(std::mt19937_64& random) {
  const auto pick = [&random](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  Axis axis;
  axis.input = pick(0, 12);
  axis.kernel = pick(1, 8);
  axis.stride = pick(1, 9);
  axis.dilation = pick(0, 2) == 0 ? axis.stride * pick(1, 2) : pick(1, 9);
  axis.output_padding = pick(0, std::max(axis.stride, axis.dilation) - 1);
  const std::int64_t full = axis.output();
  if (full <= 0) return axis;
  axis.pad_begin = pick(0, pick(0, 3) == 0 ? full : std::min<std::int64_t>(full, 5));
  const std::int64_t rest = full - axis.pad_begin;
  switch (pick(0, 4)) {
    case 0: axis.pad_end = rest; break;
    case 1: axis.pad_end = std::max<std::int64_t>(rest - 1, 0); break;
    case 2: axis.pad_end = std::min(rest, axis.pad_begin); break;
    default: axis.pad_end = pick(0, rest); break;
  }
  return axis;
}

struct Seen {
  int kernel_below_stride = 0;
  int shared_factor = 0;
  int empty_phase = 0;
  int padding_above_kernel = 0;
  int largest_output_padding = 0;
  int length_zero = 0;
  int length_one = 0;
  int uneven_padding = 0;
  int no_input = 0;

  void count(const Axis& axis) {
    kernel_below_stride += axis.kernel < axis.stride ? 1 : 0;
    shared_factor += std::gcd(axis.stride, axis.dilation) > 1 ? 1 : 0;
    empty_phase += has_empty_phase(axis) ? 1 : 0;
    padding_above_kernel += axis.pad_begin > (axis.kernel - 1) * axis.dilation + 1 ? 1 : 0;
    const std::int64_t most = std::max(axis.stride, axis.dilation) - 1;
    largest_output_padding += most > 0 && axis.output_padding == most ? 1 : 0;
    length_zero += axis.output() == 0 ? 1 : 0;
    length_one += axis.output() == 1 ? 1 : 0;
    uneven_padding += axis.pad_begin != axis.pad_end ? 1 : 0;
    no_input += axis.input == 0 ? 1 : 0;
  }
};

void check_random(std::uint64_t seed, int count) {
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  Seen seen;
  for (int n = 0; n < count && !testing::Test::HasFailure(); ++n) {
    const Axis axis = random_axis(random);
    seen.count(axis);
    check(axis);
  }
  if (testing::Test::HasFailure()) return;
  // The generator must keep reaching each of the hard cases.
  for (const int cases :
       {seen.kernel_below_stride, seen.shared_factor, seen.empty_phase, seen.padding_above_kernel,
        seen.largest_output_padding, seen.length_zero, seen.length_one, seen.uneven_padding, seen.no_input}) {
    EXPECT_GT(cases, count / 100);
  }
}

TEST(Phases, RandomAxesFixedSeed) { check_random(20240917, 20000); }

TEST(Phases, RandomAxesFreshSeed) { check_random(std::random_device{}(), 10000); }

TEST(Phases, EverySmallAxis) {
  for (std::int64_t kernel = 1; kernel <= 4; ++kernel) {
    for (std::int64_t stride = 1; stride <= 4; ++stride) {
      for (std::int64_t dilation = 1; dilation <= 4; ++dilation) {
        for (std::int64_t padding = 0; padding <= 3; ++padding) {
          Axis axis{.input = 3, .kernel = kernel, .stride = stride, .dilation = dilation};
          axis.pad_begin = padding;
          axis.pad_end = padding;
          if (axis.output() >= 0) check(axis);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// Kernel 3, stride 5 in both directions of an image: of its 25 phases 16 hold the bias alone.
TEST(Phases, StrideBeyondKernelLeavesEmptyPhases) {
  const Axis axis{.input = 4, .kernel = 3, .stride = 5};
  EXPECT_EQ(phases(axis).size(), 3U);
  EXPECT_TRUE(has_empty_phase(axis));
}

TEST(Phases, DilationSharingAFactorWithTheStride) {
  // Even offsets alone are reached; the taps of a phase are 2 apart and read inputs 3 apart.
  const Axis axis{.input = 9, .kernel = 5, .stride = 4, .dilation = 6};
  const std::vector<Phase> all = phases(axis);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0], (Phase{.residue = 0,
                           .first_output = 0,
                           .outputs = 15,
                           .first_tap = 0,
                           .tap_step = 2,
                           .taps = 3,
                           .first_input = 0,
                           .input_step = 3}));
  EXPECT_EQ(all[1], (Phase{.residue = 2,
                           .first_output = 2,
                           .outputs = 14,
                           .first_tap = 1,
                           .tap_step = 2,
                           .taps = 2,
                           .first_input = -1,
                           .input_step = 3}));
  EXPECT_TRUE(has_empty_phase(axis));
}

// A huge stride must not cost a phase, or a step of a loop, for each of its residues.
TEST(Phases, WorkIsBoundedByTheKernel) {
  const Axis axis{.input = 3, .kernel = 2, .stride = std::int64_t{1} << 60U};
  EXPECT_EQ(phases(axis).size(), 2U);
  EXPECT_TRUE(has_empty_phase(axis));
}

// Sizes near 2^63, checked at sampled outputs: each output's own sum, from the definition in 128 bits.
TEST(Phases, HugeSizesAtSampledOutputs) {
  __extension__ using Wide = __int128;
  const std::uint64_t seed = std::random_device{}();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  const auto pick = [&random](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  int contributions = 0;
  for (int n = 0; n < 2000 && !HasFailure(); ++n) {
    Axis axis;
    axis.stride = pick(1, std::int64_t{1} << pick(0, 20));
    axis.dilation = pick(1, std::int64_t{1} << pick(0, 40));
    axis.kernel = pick(1, 12);
    axis.input = pick(1, (std::int64_t{1} << 62U) / axis.stride);
    axis.pad_begin = pick(0, axis.output() / 2);
    axis.pad_end = pick(0, axis.output() / 2);
    SCOPED_TRACE(describe(axis));
    const std::int64_t length = axis.output();
    const std::vector<Phase> all = phases(axis);
    for (int sample = 0; sample < 20; ++sample) {
      // Half of the samples from inside a phase, half from anywhere: with a large stride most outputs are in none.
      std::int64_t o = pick(0, length - 1);
      if (!all.empty() && sample % 2 == 0) {
        const Phase& phase = all[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(all.size()) - 1))];
        o = phase.first_output + pick(0, phase.outputs - 1) * axis.stride;
      }
      std::set<std::pair<std::int64_t, std::int64_t>> expected;
      for (std::int64_t k = 0; k < axis.kernel; ++k) {
        const Wide distance = Wide{o} + axis.pad_begin - Wide{k} * axis.dilation;
        if (distance < 0 || distance % axis.stride != 0) continue;
        const Wide i = distance / axis.stride;
        if (i >= axis.input) continue;
        expected.emplace(k, static_cast<std::int64_t>(i));
        const Range range = inputs_reaching_output(axis, k);
        EXPECT_TRUE(i >= range.begin && i < range.end);
        const TapSite site = site_of(axis, k);
        EXPECT_TRUE((Wide{o} + axis.pad_begin) / axis.stride + site.shift == i);
      }
      std::set<std::pair<std::int64_t, std::int64_t>> found;
      for (const Phase& phase : all) {
        if (o < phase.first_output || (o - phase.first_output) % axis.stride != 0) continue;
        const std::int64_t j = (o - phase.first_output) / axis.stride;
        EXPECT_LT(j, phase.outputs);
        for (std::int64_t t = 0; t < phase.taps; ++t) {
          const Wide i = Wide{phase.first_input} + j - Wide{t} * phase.input_step;
          if (i >= 0 && i < axis.input)
            found.emplace(phase.first_tap + t * phase.tap_step, static_cast<std::int64_t>(i));
        }
      }
      EXPECT_EQ(found, expected) << "output " << o;
      contributions += static_cast<int>(expected.size());
    }
    // The ends of each tap's range: inside at the end, outside one step further.
    for (std::int64_t k = 0; k < axis.kernel; ++k) {
      const Range range = inputs_reaching_output(axis, k);
      const auto lands = [&](std::int64_t i) {
        const Wide o = Wide{i} * axis.stride + Wide{k} * axis.dilation - axis.pad_begin;
        return o >= 0 && o < length;
      };
      if (range.size() > 0) {
        EXPECT_TRUE(lands(range.begin));
        EXPECT_TRUE(lands(range.end - 1));
        EXPECT_FALSE(range.begin > 0 && lands(range.begin - 1));
        EXPECT_FALSE(range.end < axis.input && lands(range.end));
      } else {
        for (const std::int64_t i : {std::int64_t{0}, axis.input / 2, axis.input - 1}) EXPECT_FALSE(lands(i));
      }
    }
  }
  EXPECT_TRUE(HasFailure() || contributions > 1000) << "the samples must hit outputs that receive something";
}

}  // namespace
}  // namespace tconv
