// Choosing by measurement instead of by the cost model.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tconv/plan.h"

namespace tconv {

// How many cuts of one family a race looks at, best expected first.
inline constexpr int kRacedCuts = 6;

// Gives device memory of so many bytes, aligned to 256, that stays valid until the race is over.
using Allocate = std::function<void*(std::size_t bytes)>;

struct RaceEntry {
  std::string name;  // what `force` takes: "direct", "tile#2"
  std::string description;
  double expected_seconds = 0;
  double seconds = 0;   // the median; one run alone for those that were lapped. 0: it failed
  int runs = 0;         // how many were timed
  std::string failure;  // why it has no time
};

struct Race {
  std::vector<RaceEntry> entries;
  std::size_t planned = 0;  // what the planner chooses by itself
  std::size_t fastest = 0;  // the planned one where no other is faster by more than noise
};

// Times every way to compute the problem, on these tensors and this stream; the one that the direction names is
// overwritten many times. Waits for the device. Buffers::workspace is not used: memory comes from `allocate`.
Race race(const Problem& problem, const Device& device, const Buffers& buffers, const Execution& execution,
          const Allocate& allocate, int most_cuts = kRacedCuts);

// Lets the candidates of a problem race, unless that was done before, and keeps the winner, in this process and in the
// cache folder: from then on `plan` answers with it. For GPUs; does nothing for a CPU, where something is forced, and
// while the stream is being captured. The tensor that the direction names holds no result afterwards.
void tune(const Problem& problem, const Device& device, const Buffers& buffers, const Execution& execution,
          const Allocate& allocate);

// TCONV_AUTOTUNE=1: the user wants every problem tuned when it is first met.
bool autotune_requested();

}  // namespace tconv
