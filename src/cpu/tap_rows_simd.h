// The inner loop of tap_rows.cpp.
#pragma once

#include <cstdint>

namespace tconv::cpu {

// What a tap adds to some results: the products[from + j] for begin <= j < end.
struct TapRow {
  std::int64_t from = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// to[j] += the sum of what the taps have there, in their order, for whole vectors of j < count. No more is loaded than
// a vector before `begin` and behind `end` of a tap.
template <typename T>
struct AddTaps {
  const T* products = nullptr;
  const TapRow* taps = nullptr;
  std::int64_t tap_count = 0;
  T* to = nullptr;
  std::int64_t count = 0;
};

template <typename T>
void add_taps(const AddTaps<T>& job);

}  // namespace tconv::cpu
