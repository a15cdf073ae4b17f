#include "tconv/tune.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>

#include "core/env.h"
#include "core/race.h"
#include "tconv/prepare.h"

namespace tconv {
namespace {

double wall_seconds(const std::function<void()>& once) {
  const auto begin = std::chrono::steady_clock::now();
  once();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Many threads compile faster than the race would, one candidate after the other. What fails here fails there again.
void prepare_all(std::span<const Candidate> candidates) {
  std::vector<std::shared_ptr<const Plan>> plans;
  plans.reserve(candidates.size());
  for (const Candidate& candidate : candidates) plans.push_back(std::make_shared<const Plan>(candidate.plan));
  try {
    prepare(plans);
  } catch (const std::exception& error) {
    log(1, std::string("a candidate can't be prepared: ") + error.what());
  }
}

std::string microseconds(double seconds) { return std::to_string(1e6 * seconds) + " us"; }

}  // namespace

Race race(const Problem& problem, const Device& device, const Buffers& buffers, const Execution& execution,
          const Allocate& allocate, int most_cuts) {
  validate(problem);
  const bool on_cpu = device.backend == Backend::cpu;
  const std::vector<Candidate> all = candidates(problem, on_cpu ? cpu::properties() : cuda::properties(device.index),
                                                on_cpu ? cpu::families() : cuda::families(), most_cuts);
  prepare_all(all);
  std::size_t workspace = 0;
  for (const Candidate& candidate : all) workspace = std::max(workspace, candidate.plan.workspace_bytes);
  Buffers own = buffers;
  own.workspace = workspace > 0 ? allocate(workspace) : nullptr;
  own.weights_kept = false;
  return race(all, own, execution,
              on_cpu ? Stopwatch(wall_seconds) : cuda::stopwatch(device.index, execution.stream, allocate));
}

void tune(const Problem& problem, const Device& device, const Buffers& buffers, const Execution& execution,
          const Allocate& allocate) {
  if (device.backend != Backend::cuda || !env().force.empty()) return;
  if (cuda::is_captured(device.index, execution.stream)) return;
  // One race at a time: two at once would time each other.
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  if (plan(problem, device)->tuned) return;
  const Race raced = race(problem, device, buffers, execution, allocate);
  const RaceEntry& winner = raced.entries[raced.fastest];
  if (!winner.failure.empty()) return;  // nothing ran; the call itself will say why
  const RaceEntry& planned = raced.entries[raced.planned];
  log(1, "tuned " + to_string(problem) + ": " + winner.name + " (" + winner.description + ") takes " +
             microseconds(winner.seconds) + ", " + planned.name + " as planned " + microseconds(planned.seconds) +
             ", of " + std::to_string(raced.entries.size()) + " candidates");
  adopt(std::make_shared<const Plan>(cuda::keep_tuned_plan(problem, cuda::properties(device.index), winner.name)));
}

bool autotune_requested() { return env().autotune == Autotune::tune; }

}  // namespace tconv
