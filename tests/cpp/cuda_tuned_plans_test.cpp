// What was measured, kept in a folder and believed only where it still holds. Needs no GPU.
#include "cuda/tuned_plans.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include "core/race.h"
#include "tconv/error.h"

namespace tconv::cuda {
namespace {

namespace fs = std::filesystem;

DeviceProperties h200() {
  DeviceProperties device;
  device.device = {Backend::cuda, 0};
  device.name = "NVIDIA H200";
  device.arch = 90;
  device.multiprocessors = 132;
  device.shared_bytes_per_block = 227 * 1024;
  device.shared_bytes_per_multiprocessor = 228 * 1024;
  device.bandwidth = 4.27e12;
  device.fp32_rate = 49e12;
  device.tf32_rate = 419e12;
  return device;
}

Problem dense_problem() {
  Problem problem;
  problem.rank = 2;
  problem.precision = Precision::tf32;
  problem.batch = 8;
  problem.in_channels = 64;
  problem.out_channels = 32;
  for (const int axis : {1, 2}) {
    problem.axes[axis] = {.input = 32, .kernel = 4, .stride = 2, .pad_begin = 1, .pad_end = 1};
  }
  set_contiguous(problem);
  return problem;
}

// The families that a GPU's problems are mostly made of have several cuts to choose from.
TEST(RealCandidates, EveryDirectionHasAChoice) {
  for (const Direction direction : {Direction::forward, Direction::grad_input, Direction::grad_weight}) {
    Problem problem = dense_problem();
    problem.direction = direction;
    const std::vector<Candidate> found = candidates(problem, h200(), families(), 4);
    std::set<std::string> descriptions;
    for (const Candidate& candidate : found) descriptions.insert(candidate.plan.kernel->describe());
    EXPECT_GE(found.size(), 4U) << name_of(direction);
    EXPECT_GE(descriptions.size(), 3U) << name_of(direction);
    EXPECT_EQ(found.front().plan.family, make_plan(problem, h200(), families(), "").family);
  }
}

// A depthwise problem has a kernel of its own, and tiles for any group behind it.
TEST(RealCandidates, DirectHasACutForEveryTaste) {
  for (const Direction direction : {Direction::forward, Direction::grad_input}) {
    for (const std::int64_t group_channels : {1, 2}) {
      Problem problem = dense_problem();
      problem.in_channels = problem.out_channels = 64;
      problem.groups = 64 / group_channels;
      set_contiguous(problem);
      problem.direction = direction;
      const std::vector<Candidate> found = candidates(problem, h200(), families(), 5);
      ASSERT_EQ(found.front().name, "direct");
      std::set<std::string> descriptions;
      for (const Candidate& candidate : found) descriptions.insert(candidate.plan.kernel->describe());
      EXPECT_EQ(descriptions.size(), found.size());
      EXPECT_GE(found.size(), 3U) << name_of(direction) << " " << group_channels;
      EXPECT_THROW(make_plan(problem, h200(), families(), "direct#4000"), Error);
    }
  }
}

class TunedPlansTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tconv-tuned-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path() const { return TunedPlans(folder_).path_of(dense_problem(), h200()); }

  std::string contents() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  void overwrite(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  std::optional<Plan> find() const { return TunedPlans(folder_).find(dense_problem(), h200(), families()); }
  bool keep(const std::string& name) const {
    return TunedPlans(folder_).keep(dense_problem(), h200(), families(), name);
  }

  std::string folder_;
};

TEST_F(TunedPlansTest, WhatWasKeptIsThePlanFromThenOn) {
  EXPECT_FALSE(find().has_value());
  const Plan planned = make_plan(dense_problem(), h200(), families(), "");
  const Plan third = make_plan(dense_problem(), h200(), families(), "tile#2");
  ASSERT_NE(third.kernel->describe(), planned.kernel->describe());
  ASSERT_TRUE(keep("tile#2"));
  const std::optional<Plan> found = find();
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->tuned);
  EXPECT_EQ(found->family, "tile");
  EXPECT_EQ(found->kernel->describe(), third.kernel->describe());
  EXPECT_EQ(found->workspace_bytes, third.workspace_bytes);
  ASSERT_FALSE(found->declined.empty());
  EXPECT_EQ(found->declined.front().reason, "tile#2 was measured to be the fastest here");

  ASSERT_TRUE(keep("general")) << "a later race may see it in another way";
  EXPECT_EQ(find()->family, "general");
}

TEST_F(TunedPlansTest, AnotherProblemOrGpuIsAnotherEntry) {
  ASSERT_TRUE(keep("tile#2"));
  const TunedPlans plans(folder_);
  const auto known = [&](const Problem& problem, const DeviceProperties& device) {
    return plans.find(problem, device, families()).has_value();
  };
  EXPECT_TRUE(known(dense_problem(), h200()));
  DeviceProperties second = h200();
  second.device.index = 1;
  EXPECT_TRUE(known(dense_problem(), second)) << "two GPUs of a kind share what is known";
  EXPECT_EQ(plans.find(dense_problem(), second, families())->device.index, 1);

  DeviceProperties other = h200();
  other.name = "NVIDIA H100";
  EXPECT_FALSE(known(dense_problem(), other));
  other = h200();
  other.multiprocessors = 114;
  EXPECT_FALSE(known(dense_problem(), other));

  Problem problem = dense_problem();
  problem.batch = 9;
  EXPECT_FALSE(known(problem, h200()));
  problem = dense_problem();
  problem.bias = true;
  EXPECT_FALSE(known(problem, h200()));
  problem = dense_problem();
  problem.precision = Precision::strict;
  EXPECT_FALSE(known(problem, h200()));
  problem = dense_problem();
  problem.direction = Direction::grad_input;
  EXPECT_FALSE(known(problem, h200()));
  problem = dense_problem();
  problem.input_strides = channels_last_strides(problem.input_sizes());
  EXPECT_FALSE(known(problem, h200())) << "the text of a problem does not tell its strides";
}

TEST_F(TunedPlansTest, SpoiltEntriesAreIgnored) {
  ASSERT_TRUE(keep("tile#2"));
  const std::string whole = contents();
  for (const std::size_t at : {std::size_t{0}, std::size_t{20}, whole.size() - 70, whole.size() - 1}) {
    std::string spoilt = whole;
    spoilt[at] = static_cast<char>(spoilt[at] ^ 1);
    overwrite(spoilt);
    EXPECT_FALSE(find().has_value()) << "byte " << at;
  }
  overwrite(whole.substr(0, whole.size() / 2));
  EXPECT_FALSE(find().has_value());
  overwrite("");
  EXPECT_FALSE(find().has_value());
  overwrite(whole);
  EXPECT_TRUE(find().has_value());
}

// Entries that are whole and untouched, and tell of something that is no more, or never was.
TEST_F(TunedPlansTest, OutdatedEntriesAreIgnored) {
  ASSERT_TRUE(keep("tile#2"));
  const std::string whole = contents();
  const std::string header = whole.substr(0, 40);  // magic and key
  Digest key{};
  std::copy_n(whole.begin() + 8, key.size(), reinterpret_cast<char*>(key.data()));
  const std::string payload = whole.substr(80);
  const std::string signature = payload.substr(payload.find('\n') + 1);
  const DiskCache disk(folder_, ".plan");
  const auto says = [&](const std::string& text) {
    EXPECT_TRUE(disk.write(key, text));
    return find().has_value();
  };
  EXPECT_TRUE(says(payload)) << "the test writes entries as the library does";
  EXPECT_FALSE(says("tile#1\n" + signature)) << "the cuts are in another order now";
  EXPECT_FALSE(says("tile#2\n" + std::string(64, '0'))) << "the kernel has changed";
  EXPECT_FALSE(says("tile#4000\n" + signature)) << "no such cut";
  EXPECT_FALSE(says("slab\n" + signature)) << "no such family";
  EXPECT_FALSE(says("tile#x\n" + signature));
  EXPECT_FALSE(says("\n" + signature));
  EXPECT_FALSE(says("tile#2"));
  EXPECT_FALSE(says(""));
}

TEST_F(TunedPlansTest, AFolderThatCanNotBeWrittenKeepsNothing) {
  EXPECT_FALSE(TunedPlans("").keep(dense_problem(), h200(), families(), "tile#2"));
  EXPECT_FALSE(TunedPlans("").find(dense_problem(), h200(), families()).has_value());
  EXPECT_FALSE(TunedPlans("/proc/no/such/folder").keep(dense_problem(), h200(), families(), "tile#2"));
}

// Whoever reads while others write gets one of the answers, whole.
TEST_F(TunedPlansTest, ManyProcessesAndThreads) {
  ASSERT_TRUE(keep("tile"));
  std::vector<pid_t> children;
  for (int child = 0; child < 3; ++child) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      bool good = true;
      for (int i = 0; i < 20; ++i) good = good && keep("tile#" + std::to_string((child + i) % 3)) && find().has_value();
      ::_exit(good ? 0 : 1);
    }
    children.push_back(pid);
  }
  {
    std::vector<std::jthread> readers;
    for (int reader = 0; reader < 2; ++reader) {
      readers.emplace_back([this] {
        for (int i = 0; i < 40; ++i) EXPECT_TRUE(find().has_value());
      });
    }
  }
  for (const pid_t pid : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1) << "no temporary file stays";
}

}  // namespace
}  // namespace tconv::cuda
