// Candidates of a problem timed against each other. Knows no device: what a run takes, a stopwatch says.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/family.h"
#include "tconv/tune.h"

namespace tconv {

struct Candidate {
  std::string name;
  Plan plan;
};

// The ways to compute a problem that are worth timing, the planner's own choice first: every family that accepts, and
// up to `most_cuts` cuts of those that have several. Left out is what is expected to be far slower than the choice, and
// the family that takes everything where it states no time. Pure.
std::vector<Candidate> candidates(const Problem& problem, const DeviceProperties& device,
                                  std::span<const Family> families, int most_cuts);

// Runs something once and says how many seconds that took.
using Stopwatch = std::function<double(const std::function<void()>& once)>;

// Times the candidates in turn. Those that one run shows to be lapped are not run again; one that throws is out.
Race race(std::span<const Candidate> candidates, const Buffers& buffers, const Execution& execution,
          const Stopwatch& stopwatch);

namespace cuda {
// Whether work on the stream is being recorded into a graph (or may not be asked, because another stream is).
bool is_captured(int device, void* stream);
// Takes times by events on the stream, the caches flushed before each run where `allocate` gives memory for it.
Stopwatch stopwatch(int device, void* stream, const Allocate& allocate);
// The winner of a race as a plan, kept in the cache folder.
Plan keep_tuned_plan(const Problem& problem, const DeviceProperties& device, const std::string& name);
}  // namespace cuda

}  // namespace tconv
