// How many random cases a test draws.
#pragma once

#include <algorithm>

namespace tconv::test {

// Sanitizers look for mistakes in memory, which a part of the cases shows, and make each case many times slower.
constexpr int cases(int count) {
#ifdef TCONV_SANITIZED
  return std::max(1, count / 8);
#else
  return count;
#endif
}

}  // namespace tconv::test
