// Channels moved by look-ups, cell by cell, where elements are computed as they are.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "cpu/panels.h"

namespace tconv::cpu {

// Lanes of one vector of the source: lane l of the result is lane places[l] there where kept[l] has all bits set, and
// otherwise zero.
template <typename T>
struct Pick {
  using Index = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  std::int64_t from = 0;   // where the vector begins in the cell
  std::int64_t valid = 0;  // elements of it that are there
  Index places[kMostLanes] = {};
  Index kept[kMostLanes] = {};
};

// A vector of the result: the sum of `picks` picks. `count` elements are stored.
struct PickedVector {
  std::int64_t to = 0;
  std::int64_t count = 0;
  std::int64_t picks = 0;
};

// Cells j in [0, cells): from[j from_step + ...] -> to[j to_step + ...].
template <typename T>
struct PickChannels {
  const T* from = nullptr;
  std::int64_t from_step = 0;
  T* to = nullptr;
  std::int64_t to_step = 0;
  std::int64_t cells = 0;
  const std::vector<PickedVector>* vectors = nullptr;
  const std::vector<Pick<T>>* picks = nullptr;  // of the vectors in turn
  bool past_caches = false;                     // `to` is whole cache lines, which nobody reads soon
};

template <typename T>
struct SpreadOps {
  std::int64_t lanes = 1;
  void (*pick)(const PickChannels<T>& job) = nullptr;
};

template <typename T>
const SpreadOps<T>& spread_ops();

}  // namespace tconv::cpu
