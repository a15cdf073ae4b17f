// The inner loops of the columns family for few cells: rows of weights are read once, as they lie in memory, several at
// a time, and those after them are asked for meanwhile.
#pragma once

#include <cstdint>

namespace tconv::cpu {

inline constexpr std::int64_t kRowsTogether = 8;

// Where a(k, m) lies among as many cells: [k / kRowsTogether][m][k % kRowsTogether].
inline std::int64_t place_in_rows(std::int64_t k, std::int64_t m, std::int64_t cells) {
  return (k / kRowsTogether * cells + m) * kRowsTogether + k % kRowsTogether;
}

// d[m d_step + n] += sum over k < depth of a(k, m) w[k w_step + n], in order, for n < columns. The rows of d go on to
// whole vectors.
template <typename T>
struct AddRows {
  const T* a = nullptr;
  std::int64_t cells = 0;
  const T* w = nullptr;
  std::int64_t w_step = 0;
  std::int64_t depth = 0;
  std::int64_t columns = 0;
  T* d = nullptr;
  std::int64_t d_step = 0;
};

template <typename T>
void add_rows(const AddRows<T>& job);

// The sum over n < columns of w[k w_step + n] g[m g_step + n], of which every lane of a vector has a part:
//   sums[(k cells + m) lanes + l] += what lane l adds up.
// The rows of g go on to whole vectors.
template <typename T>
struct DotRows {
  const T* w = nullptr;
  std::int64_t w_step = 0;
  std::int64_t rows = 0;
  const T* g = nullptr;
  std::int64_t g_step = 0;
  std::int64_t cells = 0;
  std::int64_t columns = 0;
  T* sums = nullptr;
};

template <typename T>
void dot_rows(const DotRows<T>& job);

// to[i] = the sum of the lanes of vector i.
template <typename T>
void sum_lanes(const T* vectors, std::int64_t count, T* to);

}  // namespace tconv::cpu
