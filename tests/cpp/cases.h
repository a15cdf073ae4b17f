// How many random cases a test draws.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace tconv::test {

// Sanitizers look for mistakes in memory, which a part of the cases shows, and make each case many times slower.
#ifdef TCONV_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr int cases(int count) { return kSanitized ? std::max(1, count / 8) : count; }

// Whether a test takes its whole list, not only the part that is meant for every day (`make test-kernels`).
inline bool takes_all() {
  const char* const value = std::getenv("TCONV_TEST_ALL_KERNELS");
  return value != nullptr && std::string_view(value) == "1";
}

// One in `step` of a list, or the whole list.
template <typename T>
std::vector<T> shortened(const std::vector<T>& list, std::size_t step) {
  std::vector<T> some;
  for (std::size_t i = 0; i < list.size(); i += takes_all() ? 1 : step) some.push_back(list[i]);
  return some;
}

}  // namespace tconv::test
