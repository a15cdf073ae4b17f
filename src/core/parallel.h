// Threads for the CPU kernels: the caller's (PyTorch's, through Execution) or the library's own small pool.
#pragma once

#include <cstdint>

#include "tconv/plan.h"

namespace tconv {

// Runs body(begin, end) over disjoint pieces that cover [0, count); see ParallelFor. Safe from several threads at once;
// a call from inside a body runs inline. How the range is cut may vary from run to run: a body must compute the same
// values whatever its bounds.
void parallel_for(const Execution& execution, std::int64_t count, std::int64_t grain, const ParallelBody& body);

// Threads that the library's own pool would use, the caller's included.
int thread_count();

}  // namespace tconv
