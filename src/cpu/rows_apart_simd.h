// Rows of channels that become cells with their channels innermost, each where its lattice has it.
#pragma once

#include <cstdint>

namespace tconv::cpu {

// Position i of row r and channel c: from[c channel_step + begins[r] + i] -> to[lines[r lattices + of[i]] + places[i] +
// c], unless of[i] is kNobody.
template <typename T>
struct RowsApart {
  static constexpr std::int32_t kNobody = -1;

  const T* from = nullptr;
  std::int64_t channel_step = 0;
  std::int64_t channels = 0;
  const std::int64_t* begins = nullptr;
  const std::int64_t* lines = nullptr;
  std::int64_t rows = 0;
  std::int64_t lattices = 0;
  const std::int32_t* of = nullptr;  // whose a position is, and where it stands on the line
  const std::int64_t* places = nullptr;
  std::int64_t length = 0;  // of a row
  T* to = nullptr;
};

template <typename T>
struct RowsApartOps {
  void (*transpose)(const RowsApart<T>& job) = nullptr;
};

template <typename T>
const RowsApartOps<T>& rows_apart_ops();

}  // namespace tconv::cpu
