// Racing candidates, with families and times made up here.
#include "core/race.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tconv/error.h"

namespace tconv {
namespace {

// What ran last, so that a made-up stopwatch can say how long "that" takes.
struct Track {
  std::string last;
  std::map<std::string, int> runs;
};
Track& track() {
  static Track instance;
  return instance;
}

class NamedKernel final : public Kernel {
 public:
  explicit NamedKernel(std::string name) : name_(std::move(name)) {}
  void run(const Buffers& /*buffers*/, const Execution& /*execution*/) const override {
    if (name_ == "broken") throw Error("this kernel\nfails");
    track().last = name_;
    ++track().runs[name_];
  }
  std::string describe() const override { return "kernel of " + name_; }

 private:
  std::string name_;
};

Proposal accept(const std::string& name, double seconds) {
  Proposal proposal;
  proposal.kernel = std::make_shared<NamedKernel>(name);
  proposal.expected_seconds = seconds;
  return proposal;
}

Proposal cut(const Problem& /*problem*/, const DeviceProperties& /*device*/, int index) {
  if (index >= 4) return Proposal::decline("has 4 cuts for this problem");
  // The third cut is one that nobody in his senses would time.
  return accept("cuts#" + std::to_string(index), index == 2 ? 1.0 : 1e-3 * (index + 1));
}

const Family kCuts{"cuts", [](const Problem& p, const DeviceProperties& d) { return cut(p, d, 0); }, false, cut};
const Family kDeclines{"declines",
                       [](const Problem&, const DeviceProperties&) { return Proposal::decline("groups must be 1"); }};
const Family kOther{"other", [](const Problem&, const DeviceProperties&) { return accept("other", 3e-3); }};
const Family kBroken{"broken", [](const Problem&, const DeviceProperties&) { return accept("broken", 2e-3); }};
const Family kHopeless{"hopeless", [](const Problem&, const DeviceProperties&) { return accept("hopeless", 9e-3); }};
const Family kAnything{"anything", [](const Problem&, const DeviceProperties&) { return accept("anything", 0); }};
const Family kLast{"last", [](const Problem&, const DeviceProperties&) { return accept("last", 7e-3); }};

Problem small_problem() {
  Problem problem;
  problem.rank = 1;
  problem.axes[2] = {.input = 4, .kernel = 3, .stride = 2};
  set_contiguous(problem);
  return problem;
}

template <typename... Families>
std::vector<Candidate> candidates_of(int most_cuts, const Families&... families) {
  const std::array<Family, sizeof...(Families)> list{families...};
  return candidates(small_problem(), DeviceProperties{}, list, most_cuts);
}

std::vector<std::string> names_of(const std::vector<Candidate>& list) {
  std::vector<std::string> names;
  for (const Candidate& candidate : list) names.push_back(candidate.name);
  return names;
}

using Names = std::vector<std::string>;

TEST(Candidates, ThePlannersChoiceComesFirstAndTheHopelessStayOut) {
  EXPECT_EQ(names_of(candidates_of(9, kDeclines, kOther, kHopeless, kCuts, kAnything)),
            (Names{"cuts", "other", "cuts#1", "cuts#3"}));
  EXPECT_EQ(names_of(candidates_of(2, kOther, kCuts, kAnything)), (Names{"cuts", "other", "cuts#1"}));
}

TEST(Candidates, AnExclusiveFamilyIsTimedAgainstTheOthers) {
  Family exclusive = kOther;
  exclusive.exclusive = true;
  EXPECT_EQ(names_of(candidates_of(1, exclusive, kCuts, kAnything)), (Names{"other", "cuts"}));
}

TEST(Candidates, TheLastFamilyRacesWhereItStatesATimeOrIsAlone) {
  EXPECT_EQ(names_of(candidates_of(1, kCuts, kLast)), (Names{"cuts", "last"}));
  EXPECT_EQ(names_of(candidates_of(1, kCuts, kAnything)), (Names{"cuts"}));
  EXPECT_EQ(names_of(candidates_of(1, kDeclines, kAnything)), (Names{"anything"}));
}

// What each kernel is said to take; the first time is said once.
class RaceTest : public testing::Test {
 protected:
  void SetUp() override { track() = {}; }

  Race run_race(const std::vector<Candidate>& list) {
    std::vector<float> data(16);
    const Buffers buffers{.input = data.data(), .weight = data.data(), .output = data.data()};
    return race(list, buffers, {}, [this](const std::function<void()>& once) {
      once();
      std::vector<double>& times = seconds_[track().last];
      const double now = times.front();
      if (times.size() > 1) times.erase(times.begin());
      return now;
    });
  }

  std::map<std::string, std::vector<double>> seconds_;
};

TEST_F(RaceTest, TheFastestWins) {
  seconds_ = {{"cuts#0", {3e-3}}, {"cuts#1", {2e-3}}, {"cuts#3", {2.5e-3}}, {"other", {9e-3}}};
  const Race result = run_race(candidates_of(9, kOther, kCuts, kAnything));
  ASSERT_EQ(result.entries.size(), 4U);
  EXPECT_EQ(result.planned, 0U);
  EXPECT_EQ(result.entries[result.fastest].name, "cuts#1");
  EXPECT_EQ(result.entries[result.fastest].description, "kernel of cuts#1");
  EXPECT_EQ(result.entries[result.fastest].seconds, 2e-3);
  EXPECT_EQ(result.entries[0].expected_seconds, 1e-3);
}

TEST_F(RaceTest, TheLappedRunNoFurtherAndThePlannedOneDoes) {
  seconds_ = {{"cuts#0", {9e-3}}, {"cuts#1", {2e-3}}, {"cuts#3", {2.5e-3}}, {"other", {8e-3}}};
  const Race result = run_race(candidates_of(9, kOther, kCuts, kAnything));
  EXPECT_EQ(track().runs["other"], 2) << "once to warm up, once timed";
  EXPECT_GE(track().runs["cuts#0"], 6);
  EXPECT_EQ(result.entries[1].name, "other");
  EXPECT_EQ(result.entries[1].seconds, 8e-3);
  EXPECT_EQ(result.entries[1].runs, 1);
  EXPECT_GE(result.entries[0].runs, 5);
}

TEST_F(RaceTest, MediansDecide) {
  // The first of the timed runs is a stroke of luck, the others are not.
  seconds_ = {{"cuts#0", {2e-3}}, {"cuts#1", {1.5e-3, 2.2e-3}}, {"cuts#3", {2.1e-3}}};
  EXPECT_EQ(run_race(candidates_of(9, kCuts, kAnything)).fastest, 0U);
}

TEST_F(RaceTest, NoiseDoesNotChangeThePlan) {
  seconds_ = {{"cuts#0", {1.00e-3}}, {"cuts#1", {0.99e-3}}, {"cuts#3", {2e-3}}};
  EXPECT_EQ(run_race(candidates_of(9, kCuts, kAnything)).fastest, 0U);
  seconds_ = {{"cuts#0", {1.00e-3}}, {"cuts#1", {0.97e-3}}, {"cuts#3", {2e-3}}};
  EXPECT_EQ(run_race(candidates_of(9, kCuts, kAnything)).fastest, 1U);
}

TEST_F(RaceTest, WhoFailsIsOutAndSaysWhy) {
  seconds_ = {{"cuts#0", {1e-3}}, {"other", {0.5e-3}}};
  const Race result = run_race(candidates_of(1, kBroken, kOther, kCuts, kAnything));
  ASSERT_EQ(names_of(candidates_of(1, kBroken, kOther, kCuts, kAnything)), (Names{"cuts", "broken", "other"}));
  EXPECT_EQ(result.entries[1].failure, "this kernel\nfails");
  EXPECT_EQ(result.entries[1].seconds, 0);
  EXPECT_EQ(result.entries[result.fastest].name, "other");

  const Race alone = run_race(candidates_of(1, kBroken));
  EXPECT_FALSE(alone.entries[alone.fastest].failure.empty()) << "nobody is left: the winner is no winner";
}

TEST_F(RaceTest, OneCandidateIsNotRunAgainAndAgain) {
  seconds_ = {{"other", {1e-3}}};
  EXPECT_EQ(run_race(candidates_of(1, kOther)).fastest, 0U);
  EXPECT_EQ(track().runs["other"], 2);
}

// On a CPU the clock on the wall serves.
TEST(RaceOnCpu, TimesRealKernels) {
  Problem problem = small_problem();
  problem.in_channels = problem.out_channels = 8;
  problem.axes[2].input = 64;
  set_contiguous(problem);
  std::vector<float> input(8 * 64, 1.0F);
  std::vector<float> weight(8 * 8 * 3, 1.0F);
  std::vector<float> output(8 * 129);
  std::vector<std::vector<std::byte>> memory;
  const Allocate allocate = [&memory](std::size_t bytes) {
    std::vector<std::byte>& fresh = memory.emplace_back(bytes + 256);
    void* start = fresh.data();
    std::size_t space = fresh.size();
    return std::align(256, bytes, start, space);
  };
  const Race result =
      race(problem, {}, {.input = input.data(), .weight = weight.data(), .output = output.data()}, {}, allocate);
  ASSERT_FALSE(result.entries.empty());
  EXPECT_EQ(result.entries[result.planned].name, plan(problem)->family);
  for (const RaceEntry& entry : result.entries) {
    EXPECT_GT(entry.seconds, 0) << entry.name << ": " << entry.failure;
  }
}

TEST(PlanGeneration, AnAdoptedPlanIsFoundAndCounted) {
  Problem problem = small_problem();
  problem.batch = 77;
  set_contiguous(problem);
  const auto before = plan(problem);
  EXPECT_FALSE(before->tuned);
  const std::uint64_t generation = plan_generation();
  auto other = std::make_shared<Plan>(*plan(problem, {}, families(Backend::cpu).back()));
  other->tuned = true;
  adopt(other);
  EXPECT_EQ(plan(problem).get(), other.get());
  EXPECT_GT(plan_generation(), generation);
  EXPECT_EQ(plan(problem, {}, before->family)->family, before->family) << "what is forced stays forced";
  EXPECT_NE(to_string(*plan(problem)).find(", tuned"), std::string::npos);
}

}  // namespace
}  // namespace tconv
