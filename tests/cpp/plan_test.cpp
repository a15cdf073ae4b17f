#include "tconv/plan.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/family.h"
#include "tconv/error.h"

namespace tconv {
namespace {

class NamedKernel : public Kernel {
 public:
  explicit NamedKernel(std::string name) : name_(std::move(name)) {}
  void run(const Buffers& /*buffers*/, const Execution& /*execution*/) const override {}
  std::string describe() const override { return "kernel of " + name_; }

 private:
  std::string name_;
};

Proposal accept(const char* name, double seconds, std::size_t workspace = 0) {
  Proposal proposal;
  proposal.kernel = std::make_shared<NamedKernel>(name);
  proposal.expected_seconds = seconds;
  proposal.workspace_bytes = workspace;
  return proposal;
}

// Families with and without an estimate. A name tells what the family does.
const Family kDeclines{"declines",
                       [](const Problem&, const DeviceProperties&) { return Proposal::decline("groups must be 1"); }};
const Family kPlain{"plain", [](const Problem&, const DeviceProperties&) { return accept("plain", 0); }};
const Family kPlainToo{"plain_too", [](const Problem&, const DeviceProperties&) { return accept("plain_too", 0); }};
const Family kSlow{"slow", [](const Problem&, const DeviceProperties&) { return accept("slow", 3e-3); }};
const Family kFast{"fast", [](const Problem&, const DeviceProperties&) { return accept("fast", 2e-5, 4096); }};
const Family kThreads{"threads", [](const Problem&, const DeviceProperties& device) {
                        return device.threads > 1 ? accept("threads", 0) : Proposal::decline("one thread only");
                      }};

Problem small_problem() {
  Problem problem;
  problem.rank = 1;
  problem.axes[2] = {.input = 4, .kernel = 3, .stride = 2};
  set_contiguous(problem);
  return problem;
}

template <typename... Families>
Plan plan_with(std::string_view force, const Families&... families) {
  const std::array<Family, sizeof...(Families)> list{families...};
  return make_plan(small_problem(), DeviceProperties{}, list, force);
}

std::string reason_of(const Plan& plan, const std::string& family) {
  for (const Declined& declined : plan.declined) {
    if (declined.family == family) return declined.reason;
  }
  return "(not there)";
}

template <typename Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "an Error must be thrown";
  return {};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(MakePlan, FirstFamilyWithoutEstimateWins) {
  const Plan plan = plan_with("", kDeclines, kPlain, kPlainToo);
  EXPECT_EQ(plan.family, "plain");
  EXPECT_EQ(plan.kernel->describe(), "kernel of plain");
  EXPECT_EQ(plan.problem, small_problem());
  ASSERT_EQ(plan.declined.size(), 2U);
  EXPECT_EQ(reason_of(plan, "declines"), "groups must be 1");
  EXPECT_EQ(reason_of(plan, "plain_too"), "an earlier family takes the problem");
}

TEST(MakePlan, FastestOfTheEstimatesWinsInAnyOrder) {
  for (const Plan& plan : {plan_with("", kSlow, kFast), plan_with("", kFast, kSlow)}) {
    EXPECT_EQ(plan.family, "fast");
    EXPECT_EQ(plan.kernel->describe(), "kernel of fast");
    EXPECT_EQ(plan.workspace_bytes, 4096U);
    EXPECT_EQ(plan.expected_seconds, 2e-5);
    EXPECT_EQ(reason_of(plan, "slow"), "expected to take 3.000 ms");
    EXPECT_EQ(reason_of(plan, "fast"), "(not there)");
  }
}

TEST(MakePlan, OrderDecidesBetweenEstimateAndNone) {
  EXPECT_EQ(plan_with("", kPlain, kFast).family, "plain");
  EXPECT_EQ(plan_with("", kSlow, kPlain, kFast).family, "fast");
  EXPECT_EQ(plan_with("", kSlow, kPlain).family, "slow");
  EXPECT_EQ(plan_with("", kPlain, kFast).workspace_bytes, 0U) << "nothing of the loser may stay in the plan";
}

TEST(MakePlan, AnExclusiveFamilyKeepsWhatItAccepts) {
  Family exclusive = kSlow;
  exclusive.exclusive = true;
  const Plan plan = plan_with("", kDeclines, exclusive, kFast);
  EXPECT_EQ(plan.family, "slow");
  EXPECT_TRUE(contains(reason_of(plan, "fast"), "what slow accepts is its own"));
  EXPECT_EQ(plan_with("fast", exclusive, kFast).family, "fast") << "forced is forced";

  Family declines = kDeclines;
  declines.exclusive = true;
  EXPECT_EQ(plan_with("", declines, kSlow, kFast).family, "fast") << "what it declines is anybody's";
}

TEST(MakePlan, AFamilyMayLeaveWhatItCouldTake) {
  Family modest = kFast;
  modest.exclusive = true;
  modest.why_rather_not = [](const Problem&, const DeviceProperties&) { return std::string("made for others"); };
  const Plan plan = plan_with("", modest, kSlow);
  EXPECT_EQ(plan.family, "slow");
  EXPECT_EQ(reason_of(plan, "fast"), "made for others");
  EXPECT_EQ(plan_with("fast", modest, kSlow).family, "fast") << "forced, it computes";
  modest.why_rather_not = [](const Problem&, const DeviceProperties&) { return std::string(); };
  EXPECT_EQ(plan_with("", modest, kSlow).family, "fast");
}

TEST(MakePlan, ForcedFamily) {
  const Plan plan = plan_with("slow", kDeclines, kFast, kSlow);
  EXPECT_EQ(plan.family, "slow");
  EXPECT_TRUE(contains(reason_of(plan, "fast"), "only slow is allowed"));
  EXPECT_TRUE(contains(reason_of(plan, "declines"), "only slow is allowed"));
}

TEST(MakePlan, ForcedFamilyThatDeclinesIsAnError) {
  const std::string message = message_of([] { plan_with("declines", kFast, kDeclines); });
  EXPECT_TRUE(contains(message, "no kernel family takes the problem " + to_string(small_problem()))) << message;
  EXPECT_TRUE(contains(message, "declines: groups must be 1")) << message;
  EXPECT_TRUE(contains(message, "fast: only declines is allowed")) << message;
}

TEST(MakePlan, UnknownForcedFamilyIsAnError) {
  const std::string message = message_of([] { plan_with("fats", kFast, kSlow); });
  EXPECT_TRUE(contains(message, "got \"fats\"")) << message;
  EXPECT_TRUE(contains(message, "fast")) << message;
  EXPECT_TRUE(contains(message, "slow")) << message;
}

TEST(MakePlan, NobodyTakesTheProblem) {
  EXPECT_TRUE(contains(message_of([] { plan_with("", kDeclines); }), "declines: groups must be 1"));
  EXPECT_THROW(make_plan(small_problem(), {}, {}, ""), Error);
}

TEST(MakePlan, FamiliesSeeTheDevice) {
  const std::array<Family, 2> list{kThreads, kPlain};
  DeviceProperties device;
  EXPECT_EQ(make_plan(small_problem(), device, list, "").family, "plain");
  device.threads = 2;
  device.device = {Backend::cuda, 3};
  const Plan plan = make_plan(small_problem(), device, list, "");
  EXPECT_EQ(plan.family, "threads");
  EXPECT_EQ(plan.device, (Device{Backend::cuda, 3}));
}

TEST(MakePlan, TextOfAPlan) {
  EXPECT_EQ(to_string(plan_with("", kFast)),
            to_string(small_problem()) + " on cpu: fast (kernel of fast), workspace 4096 bytes, expected 20.0 us");
  EXPECT_EQ(to_string(plan_with("", kPlain)), to_string(small_problem()) + " on cpu: plain (kernel of plain)");
}

TEST(PlanCache, SameQuestionSamePlan) {
  const Problem problem = small_problem();
  const auto first = plan(problem);
  EXPECT_EQ(plan(problem).get(), first.get());
  Problem other = problem;
  other.batch = 2;
  set_contiguous(other);
  EXPECT_NE(plan(other).get(), first.get());
  EXPECT_EQ(plan(other)->problem, other);
  const std::string family = families(Backend::cpu).back();
  const auto forced = plan(problem, {}, family);
  EXPECT_NE(forced.get(), first.get());
  EXPECT_EQ(forced->family, family);
  EXPECT_EQ(plan(problem, {}, family).get(), forced.get());
}

TEST(PlanCache, InvalidProblemsAreRefusedEveryTime) {
  Problem problem = small_problem();
  problem.axes[2].stride = 0;
  for (int attempt = 0; attempt < 2; ++attempt) EXPECT_THROW(plan(problem), Error);
  EXPECT_THROW(plan(small_problem(), {}, "no such family"), Error);
}

// Only the tensor that the direction writes may not be expanded.
TEST(PlanCache, ExpandedTensorsByDirection) {
  for (const Direction direction : {Direction::forward, Direction::grad_input, Direction::grad_weight}) {
    for (int expanded = 0; expanded < 3; ++expanded) {
      Problem problem = small_problem();
      problem.in_channels = 2;
      problem.out_channels = 2;
      set_contiguous(problem);
      problem.direction = direction;
      Strides& strides = expanded == 0   ? problem.output_strides
                         : expanded == 1 ? problem.input_strides
                                         : problem.weight_strides;
      strides[1] = 0;
      if (expanded == static_cast<int>(direction)) {
        EXPECT_THROW(plan(problem), Error) << name_of(direction);
      } else {
        EXPECT_NO_THROW(plan(problem)) << name_of(direction);
      }
    }
  }
}

TEST(PlanCache, UnknownDirectionIsAnError) {
  Problem problem = small_problem();
  problem.direction = static_cast<Direction>(9);
  EXPECT_TRUE(contains(message_of([&] { plan(problem); }), "unknown direction 9"));
}

// More problems than the cache keeps: an old plan stays whole in the hands of its user, and a new one is as good.
TEST(PlanCache, HoldersKeepTheirPlans) {
  const Problem problem = small_problem();
  const auto held = plan(problem);
  for (std::int64_t batch = 1; batch <= 5000; ++batch) {
    Problem other = problem;
    other.batch = batch;
    set_contiguous(other);
    ASSERT_EQ(plan(other)->problem, other);
  }
  EXPECT_EQ(held->problem, problem);
  EXPECT_NE(held->kernel, nullptr);
  EXPECT_EQ(plan(problem)->family, held->family);
}

TEST(PlanCache, ManyThreadsGetOnePlanPerProblem) {
  constexpr int kWorkers = 8;
  constexpr int kProblems = 200;
  std::vector<std::vector<std::shared_ptr<const Plan>>> seen(kWorkers);
  std::atomic<int> ready = 0;
  std::vector<std::thread> workers;
  workers.reserve(kWorkers);
  for (int worker = 0; worker < kWorkers; ++worker) {
    workers.emplace_back([&, worker] {
      ++ready;
      while (ready < kWorkers) std::this_thread::yield();
      for (int n = 0; n < kProblems; ++n) {
        Problem problem = small_problem();
        problem.batch = 10000 + n;
        set_contiguous(problem);
        seen[static_cast<std::size_t>(worker)].push_back(plan(problem));
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  for (std::size_t n = 0; n < kProblems; ++n) {
    EXPECT_EQ(seen[0][n]->problem.batch, 10000 + static_cast<std::int64_t>(n));
    for (const auto& plans : seen) EXPECT_EQ(plans[n].get(), seen[0][n].get());
  }
}

TEST(Run, MissingTensorsAreNamed) {
  Problem problem = small_problem();
  problem.bias = true;
  const auto made = plan(problem);
  std::vector<float> data(16, 1.0F);
  const Buffers all{.input = data.data(), .weight = data.data(), .bias = data.data(), .output = data.data()};
  for (void* Buffers::* member : {&Buffers::input, &Buffers::weight, &Buffers::bias, &Buffers::output}) {
    Buffers buffers = all;
    buffers.*member = nullptr;
    EXPECT_TRUE(contains(message_of([&] { run(*made, buffers); }), "must be given"));
  }
}

// y[o] = b + sum of x[i] w[k] over o = 2 i + k, by hand.
TEST(Run, SmallForwardByHand) {
  Problem problem = small_problem();
  problem.bias = true;
  std::vector<float> input = {1, 2, 3, 4};
  std::vector<float> weight = {1, 10, 100};
  std::vector<float> bias = {0.5F};
  std::vector<float> output(9, std::nanf(""));
  for (const std::string& family : families(Backend::cpu)) {
    std::shared_ptr<const Plan> made;
    try {
      made = plan(problem, {}, family);
    } catch (const Error&) {
      continue;  // a family may decline a problem as small as this one; the last takes everything
    }
    std::vector<std::byte> workspace(made->workspace_bytes + 256);
    void* aligned = workspace.data();
    std::size_t space = workspace.size();
    ASSERT_NE(std::align(256, made->workspace_bytes, aligned, space), nullptr);
    run(*made, {.input = input.data(),
                .weight = weight.data(),
                .bias = bias.data(),
                .output = output.data(),
                .workspace = aligned});
    EXPECT_EQ(output, (std::vector<float>{1.5F, 10.5F, 102.5F, 20.5F, 203.5F, 30.5F, 304.5F, 40.5F, 400.5F})) << family;
  }
  EXPECT_NO_THROW(plan(problem, {}, families(Backend::cpu).back()));
}

}  // namespace
}  // namespace tconv
