#include "tconv/problem.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "tconv/error.h"

namespace tconv {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kSmallest = std::numeric_limits<std::int64_t>::min();

// A 2-D problem with every size different, so that a mistaken index shows.
Problem sample_problem() {
  Problem problem;
  problem.batch = 2;
  problem.in_channels = 6;
  problem.out_channels = 9;
  problem.groups = 3;
  problem.axes[1] = {.input = 5, .kernel = 4, .stride = 3, .dilation = 2, .pad_begin = 1, .pad_end = 2};
  problem.axes[2] = {.input = 7, .kernel = 3, .stride = 2, .pad_begin = 1, .pad_end = 1, .output_padding = 1};
  set_contiguous(problem);
  return problem;
}

// The message of the Error that `action` must throw.
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "an Error must be thrown";
  return {};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Problem, OutputLength) {
  // Lengths that PyTorch's documentation gives by formula: (I - 1) s - 2 p + d (K - 1) + q + 1.
  EXPECT_EQ((Axis{.input = 4, .kernel = 4, .stride = 2, .pad_begin = 1, .pad_end = 1}.output()), 8);
  EXPECT_EQ((Axis{.input = 1, .kernel = 3, .stride = 7}.output()), 3);
  EXPECT_EQ((Axis{.input = 5, .kernel = 3, .stride = 2, .dilation = 3, .output_padding = 2}.output()), 17);
  EXPECT_EQ((Axis{.input = 5, .kernel = 3, .pad_begin = 3, .pad_end = 3}.output()), 1);
  EXPECT_EQ((Axis{.input = 5, .kernel = 3, .pad_begin = 3, .pad_end = 4}.output()), 0);
  EXPECT_EQ((Axis{.input = 5, .kernel = 3, .pad_begin = 4, .pad_end = 4}.output()), -1);
  EXPECT_EQ((Axis{.input = 0, .kernel = 3, .stride = 1}.output()), 2);
  EXPECT_EQ(Axis{}.output(), 1) << "the axis to which lower ranks are lifted is the identity";
  EXPECT_EQ((Axis{.input = std::int64_t{1} << 40U, .kernel = 2, .stride = std::int64_t{1} << 20U}.output()),
            (std::int64_t{1} << 60U) - (std::int64_t{1} << 20U) + 2);
}

TEST(Problem, OutputLengthThatDoesNotFitIsAnError) {
  const std::vector<Axis> axes = {
      {.input = kLargest, .stride = 2},
      {.input = 3, .stride = kLargest},
      {.input = 2, .kernel = kLargest, .dilation = 2},
      {.input = kLargest, .kernel = kLargest},
      {.input = kLargest, .output_padding = 1},
      {.input = kSmallest},
      {.kernel = kSmallest},
      {.input = 2, .pad_begin = kSmallest},
      {.input = 2, .pad_end = kSmallest},
  };
  for (const Axis& axis : axes) EXPECT_TRUE(contains(message_of([&] { axis.output(); }), "does not fit 64 bits"));
}

TEST(Problem, OutputPaddingForAWantedSize) {
  const Axis axis{.input = 6, .kernel = 3, .stride = 4, .pad_begin = 1, .pad_end = 1, .output_padding = 2};
  for (std::int64_t extra = 0; extra < 4; ++extra) {
    Axis padded = axis;
    padded.output_padding = output_padding_for(axis, 21 + extra);
    EXPECT_EQ(padded.output_padding, extra);
    EXPECT_EQ(padded.output(), 21 + extra);
  }
  for (const std::int64_t wanted : {std::int64_t{20}, std::int64_t{25}, std::int64_t{-1}, kLargest, kSmallest}) {
    const std::string message = message_of([&] { output_padding_for(axis, wanted); });
    EXPECT_TRUE(contains(message, "between 21 and 24")) << message;
    EXPECT_TRUE(contains(message, "got " + std::to_string(wanted))) << message;
  }
  EXPECT_TRUE(
      contains(message_of([] { output_padding_for({.stride = kLargest, .output_padding = 1}, 0); }), "between 1"));
  EXPECT_THROW(output_padding_for({.input = 2, .stride = kLargest}, 0), Error);
  EXPECT_THROW(output_padding_for({.stride = kSmallest}, 0), Error);
}

TEST(Problem, SizesAndStrides) {
  const Problem problem = sample_problem();
  EXPECT_EQ(problem.input_sizes(), (Sizes{2, 6, 1, 5, 7}));
  EXPECT_EQ(problem.weight_sizes(), (Sizes{6, 3, 1, 4, 3}));
  EXPECT_EQ(problem.output_sizes(), (Sizes{2, 9, 1, 16, 14}));
  EXPECT_EQ(problem.input_strides, (Strides{210, 35, 35, 7, 1}));
  EXPECT_EQ(problem.weight_strides, (Strides{36, 12, 12, 3, 1}));
  EXPECT_EQ(problem.output_strides, (Strides{2016, 224, 224, 14, 1}));
  EXPECT_EQ(channels_last_strides({2, 6, 3, 5, 7}), (Strides{630, 1, 210, 42, 6}));
  EXPECT_EQ(contiguous_strides({2, 0, 3, 5, 7}), (Strides{105, 105, 35, 7, 1})) << "an empty size counts as one";
  EXPECT_EQ(element_count({2, 6, 3, 5, 7}), 1260);
  EXPECT_EQ(element_count({2, kLargest, kLargest, 0, 7}), 0);
  EXPECT_THROW(element_count({2, kLargest, 1, 1, 1}), Error);
  EXPECT_NO_THROW(validate(problem));
}

// Each rule: what breaks it, and the words and the value that the message must hold.
struct Rule {
  std::string name;
  std::function<void(Problem&)> break_it;
  std::vector<std::string> words;
};

TEST(Problem, EveryRuleIsCheckedAndNamed) {
  const std::vector<Rule> rules = {
      {"rank 0", [](Problem& p) { p.rank = 0; }, {"rank must be 1, 2 or 3", "got 0"}},
      {"rank 4", [](Problem& p) { p.rank = 4; }, {"rank must be 1, 2 or 3", "got 4"}},
      {"batch", [](Problem& p) { p.batch = -2; }, {"batch must not be negative", "got -2"}},
      {"in_channels", [](Problem& p) { p.in_channels = -3; }, {"in_channels must not be negative", "got -3"}},
      {"out_channels", [](Problem& p) { p.out_channels = -3; }, {"out_channels must not be negative", "got -3"}},
      {"groups 0", [](Problem& p) { p.groups = 0; }, {"groups must be at least 1", "got 0"}},
      {"groups -1", [](Problem& p) { p.groups = -1; }, {"groups must be at least 1", "got -1"}},
      {"in by groups", [](Problem& p) { p.in_channels = 7; }, {"in_channels must be divisible by groups (3)", "got 7"}},
      {"out by groups",
       [](Problem& p) { p.out_channels = 10; },
       {"out_channels must be divisible by groups (3)", "got 10"}},
      {"input", [](Problem& p) { p.axes[1].input = -1; }, {"input size of the height axis", "negative", "got -1"}},
      {"kernel", [](Problem& p) { p.axes[2].kernel = 0; }, {"kernel size of the width axis", "at least 1", "got 0"}},
      {"stride", [](Problem& p) { p.axes[2].stride = 0; }, {"stride of the width axis", "at least 1", "got 0"}},
      {"negative stride", [](Problem& p) { p.axes[0].stride = -4; }, {"stride of the depth axis", "got -4"}},
      {"dilation", [](Problem& p) { p.axes[1].dilation = 0; }, {"dilation of the height axis", "at least 1", "got 0"}},
      {"pad_begin", [](Problem& p) { p.axes[1].pad_begin = -1; }, {"padding of the height axis", "negative", "got -1"}},
      {"pad_end", [](Problem& p) { p.axes[1].pad_end = -5; }, {"padding of the height axis", "negative", "got -5"}},
      {"output_padding",
       [](Problem& p) { p.axes[1].output_padding = -1; },
       {"output_padding of the height axis", "negative", "got -1"}},
      {"output_padding too large",
       [](Problem& p) { p.axes[1].output_padding = 3; },
       {"output_padding of the height axis must be smaller than stride (3) or dilation (2)", "got 3"}},
      {"negative output",
       [](Problem& p) { p.axes[1].pad_end = 19; },
       {"output size of the height axis must not be negative", "input 5", "kernel 4", "padding 1 and 19", "got -1"}},
      {"output that does not fit", [](Problem& p) { p.axes[1].stride = kLargest; }, {"does not fit 64 bits"}},
      {"too many elements", [](Problem& p) { p.in_channels = 3 * (std::int64_t{1} << 60U); }, {"does not fit 64 bits"}},
      {"input reach", [](Problem& p) { p.input_strides[1] = kLargest / 4; }, {"does not fit 64 bits"}},
      {"input reach backwards", [](Problem& p) { p.input_strides[1] = -(kLargest / 4); }, {"does not fit 64 bits"}},
      {"bytes", [](Problem& p) { p.output_strides[0] = kLargest / 2; }, {"does not fit 64 bits", "* 4"}},
      {"smallest stride",
       [](Problem& p) { p.weight_strides[0] = kSmallest; },
       {"stride in memory", "got -9223372036854775808"}},
      {"unknown dtype", [](Problem& p) { p.dtype = static_cast<DType>(77); }, {"unknown dtype 77"}},
  };
  for (const Rule& rule : rules) {
    Problem problem = sample_problem();
    rule.break_it(problem);
    const std::string message = message_of([&] { validate(problem); });
    for (const std::string& words : rule.words) {
      EXPECT_TRUE(contains(message, words)) << rule.name << ": \"" << message << "\" must say \"" << words << "\"";
    }
  }
}

TEST(Problem, WhatIsLegal) {
  const std::vector<std::function<void(Problem&)>> changes = {
      [](Problem& p) { p.batch = 0; },
      [](Problem& p) { p.in_channels = 0; },
      [](Problem& p) { p.out_channels = 0; },
      [](Problem& p) { p.axes[1].input = 0; },
      [](Problem& p) { p.axes[1].pad_end = 18; },        // an output of no rows
      [](Problem& p) { p.axes[1].output_padding = 2; },  // stride - 1
      [](Problem& p) {
        p.axes[2].dilation = 6;
        p.axes[2].output_padding = 5;
      },
      [](Problem& p) { p.output_strides = {}; },  // not stated yet
      [](Problem& p) { p.input_strides = {}; },   // expanded tensors are read
      [](Problem& p) { p.weight_strides[0] = -36; },
      [](Problem& p) {
        p.batch = 0;
        p.input_strides[1] = kLargest;
      },  // nothing there to reach
      [](Problem& p) {
        p.direction = Direction::grad_bias;
        p.output_strides = {};
      },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Problem problem = sample_problem();
    changes[i](problem);
    EXPECT_NO_THROW(validate(problem)) << "change " << i;
  }
}

TEST(Problem, AxesWithoutWorkAreJoined) {
  const auto axes_of = [](const std::array<Axis, kSpatialAxes>& axes, bool channels_last = false) {
    Problem problem;
    problem.batch = 2;
    problem.in_channels = 3;
    problem.out_channels = 4;
    problem.axes = axes;
    set_contiguous(problem);
    if (channels_last) {
      problem.input_strides = channels_last_strides(problem.input_sizes());
      problem.output_strides = channels_last_strides(problem.output_sizes());
    }
    const Problem joined = with_joined_axes(problem);
    EXPECT_EQ(element_count(joined.input_sizes()), element_count(problem.input_sizes()));
    EXPECT_EQ(element_count(joined.output_sizes()), element_count(problem.output_sizes()));
    EXPECT_EQ(joined.input_strides, problem.input_strides);
    return joined.axes;
  };
  const auto nothing = [](std::int64_t size) { return Axis{.input = size}; };
  const Axis taps{.input = 7, .kernel = 3, .stride = 2};
  using Axes = std::array<Axis, kSpatialAxes>;
  EXPECT_EQ(axes_of({nothing(5), nothing(6), nothing(7)}), (Axes{nothing(1), nothing(1), nothing(210)}));
  EXPECT_EQ(axes_of({nothing(5), nothing(6), nothing(7)}, true), (Axes{nothing(1), nothing(1), nothing(210)}));
  EXPECT_EQ(axes_of({nothing(1), nothing(6), nothing(7)}), (Axes{nothing(1), nothing(1), nothing(42)}));
  EXPECT_EQ(axes_of({nothing(5), nothing(6), taps}), (Axes{nothing(1), nothing(30), taps}));
  EXPECT_EQ(axes_of({nothing(5), taps, nothing(7)}), (Axes{nothing(5), taps, nothing(7)}));
  for (const Axis& works : {Axis{.input = 7, .kernel = 2}, Axis{.input = 7, .stride = 2},
                            Axis{.input = 7, .pad_begin = 1}, Axis{.input = 7, .pad_end = 1}}) {
    EXPECT_EQ(axes_of({nothing(5), works, nothing(6)}), (Axes{nothing(5), works, nothing(6)}));
  }

  Problem apart;  // rows with gaps between them
  apart.axes = {nothing(1), nothing(6), nothing(7)};
  set_contiguous(apart);
  apart.input_strides[3] = 8;
  EXPECT_EQ(with_joined_axes(apart), apart);
}

TEST(Problem, BuildersRefuseWhatTheyCanNotCompute) {
  Problem problem = sample_problem();
  problem.groups = 0;
  EXPECT_TRUE(contains(message_of([&] { set_contiguous(problem); }), "groups must be at least 1, got 0"));
  problem = sample_problem();
  problem.in_channels = kLargest;
  EXPECT_THROW(set_contiguous(problem), Error);
}

TEST(Problem, WorkIsCountedPerTap) {
  // 2 images x 6 input channels x 3 output channels of a group x 35 pixels x 12 taps
  EXPECT_EQ(multiply_adds(sample_problem()), 2.0 * 6 * 3 * 35 * 12);
}

// Every field takes part in equality and in the hash: a plan of another problem must never be returned.
TEST(Problem, EqualityAndHashSeeEveryField) {
  std::vector<std::function<void(Problem&)>> changes = {
      [](Problem& p) { p.rank = 3; },
      [](Problem& p) { p.direction = Direction::grad_weight; },
      [](Problem& p) { p.dtype = DType::bf16; },
      [](Problem& p) { p.precision = Precision::tf32; },
      [](Problem& p) { p.bias = true; },
      [](Problem& p) { p.batch += 1; },
      [](Problem& p) { p.in_channels += 1; },
      [](Problem& p) { p.out_channels += 1; },
      [](Problem& p) { p.groups += 1; },
  };
  for (std::size_t a = 0; a < kSpatialAxes; ++a) {
    for (std::int64_t Axis::* member : {&Axis::input, &Axis::kernel, &Axis::stride, &Axis::dilation, &Axis::pad_begin,
                                        &Axis::pad_end, &Axis::output_padding}) {
      changes.emplace_back([a, member](Problem& p) { p.axes[a].*member += 1; });
    }
  }
  for (std::size_t i = 0; i < Strides{}.size(); ++i) {
    changes.emplace_back([i](Problem& p) { p.input_strides[i] += 1; });
    changes.emplace_back([i](Problem& p) { p.weight_strides[i] += 1; });
    changes.emplace_back([i](Problem& p) { p.output_strides[i] += 1; });
  }
  const Problem original = sample_problem();
  EXPECT_EQ(original, sample_problem());
  EXPECT_EQ(hash_of(original), hash_of(sample_problem()));
  std::unordered_set<std::size_t> hashes = {hash_of(original)};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Problem changed = original;
    changes[i](changed);
    EXPECT_FALSE(changed == original) << "change " << i;
    EXPECT_TRUE(hashes.insert(hash_of(changed)).second) << "change " << i << " has the hash of another problem";
  }
}

TEST(Problem, HashSpreadsOverLikelyProblems) {
  std::unordered_set<std::size_t> hashes;
  std::size_t count = 0;
  for (std::int64_t batch = 1; batch <= 32; ++batch) {
    for (std::int64_t channels = 3; channels <= 48; channels += 3) {
      for (std::int64_t size = 1; size <= 32; ++size) {
        Problem problem = sample_problem();
        problem.batch = batch;
        problem.in_channels = channels;
        problem.axes[1].input = size;
        problem.axes[2].input = size;
        set_contiguous(problem);
        hashes.insert(hash_of(problem));
        ++count;
      }
    }
  }
  EXPECT_GT(hashes.size(), count - 4) << "of " << count;
}

TEST(Problem, TextNamesWhatDiffersFromTheDefault) {
  EXPECT_EQ(to_string(sample_problem()),
            "forward float32 2-D n2 c6->9 i5x7 k4x3 s3x2 pad_begin1x1 pad_end2x1 op0x1 d2x1 g3");
  Problem plain;
  plain.rank = 1;
  plain.bias = true;
  plain.precision = Precision::tf32;
  plain.axes[2] = {.input = 8, .kernel = 3, .pad_begin = 1, .pad_end = 1};
  EXPECT_EQ(to_string(plain), "forward float32 (tf32) 1-D n1 c1->1 i8 k3 p1 bias");
}

}  // namespace
}  // namespace tconv
