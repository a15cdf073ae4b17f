#include "core/race.h"

#include <algorithm>
#include <exception>
#include <limits>

#include "tconv/error.h"

namespace tconv {
namespace {

// A cost model that is wrong by more than this would have been noticed.
constexpr double kHopeless = 8;
// After one timed run: slower than the fastest by this factor is no noise.
constexpr double kLapped = 1.5;
// Who is faster by less than this may be so by luck: the planner's choice stays.
constexpr double kNoise = 0.02;
constexpr int kFewestRuns = 5;
constexpr int kMostRuns = 25;
constexpr double kWantedSeconds = 0.05;  // of timed runs, all finalists together

bool is_hopeless(const Plan& plan, const Plan& choice) {
  return plan.expected_seconds > 0 && choice.expected_seconds > 0 &&
         plan.expected_seconds > kHopeless * choice.expected_seconds;
}

double median(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

class Contestant {
 public:
  Contestant(const Candidate& candidate, const Buffers& buffers, const Execution& execution, const Stopwatch& stopwatch)
      : candidate_(&candidate), buffers_(buffers), execution_(&execution), stopwatch_(&stopwatch) {
    entry_.name = candidate.name;
    entry_.description = candidate.plan.kernel->describe();
    entry_.expected_seconds = candidate.plan.expected_seconds;
  }

  // Compiles, loads, and fills caches that no later run finds empty.
  void warm_up() {
    guarded([this] { run(candidate_->plan, buffers_, *execution_); });
  }

  void time_once() {
    guarded([this] { samples_.push_back((*stopwatch_)([this] { run(candidate_->plan, buffers_, *execution_); })); });
  }

  bool is_out() const { return !entry_.failure.empty(); }
  double seconds() const { return is_out() ? std::numeric_limits<double>::infinity() : median(samples_); }

  RaceEntry entry() const {
    RaceEntry result = entry_;
    if (!is_out()) {
      result.seconds = seconds();
      result.runs = static_cast<int>(samples_.size());
    }
    return result;
  }

 private:
  template <typename Action>
  void guarded(const Action& action) {
    if (is_out()) return;
    try {
      action();
    } catch (const std::exception& error) {
      entry_.failure = error.what();
    }
  }

  const Candidate* candidate_;
  Buffers buffers_;
  const Execution* execution_;
  const Stopwatch* stopwatch_;
  RaceEntry entry_;
  std::vector<double> samples_;
};

}  // namespace

std::vector<Candidate> candidates(const Problem& problem, const DeviceProperties& device,
                                  std::span<const Family> families, int most_cuts) {
  std::vector<Candidate> found;
  found.push_back({{}, make_plan(problem, device, families, {})});
  found.front().name = found.front().plan.family;
  const auto add = [&](const std::string& name) {
    Plan plan;
    try {
      plan = make_plan(problem, device, families, name);
    } catch (const Error&) {
      return false;  // declines, or has no such cut
    }
    if (!is_hopeless(plan, found.front().plan)) found.push_back({name, std::move(plan)});
    return true;
  };
  for (const Family& family : families) {
    const std::string name(family.name);
    const bool chosen = name == found.front().name;
    // The last family takes everything; where it states no time, it is there for that alone.
    if (!chosen && &family == &families.back()) {
      const Proposal last = family.propose(problem, device);
      if (last.expected_seconds <= 0) continue;
    }
    if (!chosen && !add(name)) continue;
    if (family.propose_cut == nullptr) continue;
    for (int cut = 1; cut < most_cuts; ++cut) {
      if (!add(name + "#" + std::to_string(cut))) break;
    }
  }
  return found;
}

Race race(std::span<const Candidate> candidates, const Buffers& buffers, const Execution& execution,
          const Stopwatch& stopwatch) {
  std::vector<Contestant> all;
  all.reserve(candidates.size());
  for (const Candidate& candidate : candidates) all.emplace_back(candidate, buffers, execution, stopwatch);
  for (Contestant& contestant : all) contestant.warm_up();
  for (Contestant& contestant : all) contestant.time_once();

  double best = std::numeric_limits<double>::infinity();
  for (const Contestant& contestant : all) best = std::min(best, contestant.seconds());
  std::vector<Contestant*> finalists;
  double together = 0;
  for (Contestant& contestant : all) {
    // The planner's choice stays in the race: its time is what the others are compared with.
    if (contestant.is_out() || (contestant.seconds() > kLapped * best && &contestant != all.data())) continue;
    finalists.push_back(&contestant);
    together += contestant.seconds();
  }
  const int runs =
      static_cast<int>(std::clamp(kWantedSeconds / std::max(together, 1e-9), double{kFewestRuns}, double{kMostRuns}));
  for (int i = 1; i < runs && finalists.size() > 1; ++i) {
    for (Contestant* contestant : finalists) contestant->time_once();
  }

  Race result;
  for (std::size_t i = 0; i < all.size(); ++i) {
    result.entries.push_back(all[i].entry());
    if (all[i].seconds() < all[result.fastest].seconds()) result.fastest = i;
  }
  if (all[result.fastest].seconds() > (1 - kNoise) * all[result.planned].seconds()) result.fastest = result.planned;
  return result;
}

}  // namespace tconv
