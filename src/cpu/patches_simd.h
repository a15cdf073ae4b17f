// The inner loops of forward and grad_input where kernel == stride and rows lie side by side.
#pragma once

#include <array>
#include <cstdint>

namespace tconv::cpu {

inline constexpr int kMostTapShift = 3;  // taps of a row that are interleaved in registers: 1, 2, 4 or 8
inline constexpr int kMostPatchLines = 6;
inline constexpr int kMostPatchVectors = 4;

// A register tile whose rows are taps, and whose columns are cells. The taps of a kernel row are put together as pieces
// of a line of the output, T of them:
//   piece(line, v)[j T + t] = initial[line] + sum over k of a[k a_step + line T + t] b[k b_step + v lanes + j],
// whole vectors, stored at line_places[line] + vector_places[v].
template <typename T>
struct MultiplyPatches {
  const T* a = nullptr;
  std::int64_t a_step = 0;
  const T* b = nullptr;
  std::int64_t b_step = 0;
  std::int64_t depth = 0;
  const T* initial = nullptr;
  T* to = nullptr;
  const std::int64_t* line_places = nullptr;
  const std::int64_t* vector_places = nullptr;
  bool past_caches = false;  // pieces are whole cache lines that nobody reads soon
};

// A part of a line, and its place elsewhere; places and counts of cells or of elements.
struct LineSegment {
  std::int64_t line = 0;
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t count = 0;
};

// Rows of `count` elements, from_step and to_step apart.
template <typename T>
struct CopyRows {
  const T* from = nullptr;
  std::int64_t from_step = 0;
  T* to = nullptr;
  std::int64_t to_step = 0;
  std::int64_t rows = 0;
  std::int64_t count = 0;
};

// Takes the taps of a line apart: to[segment.to + t to_step + i] = from[segment.from + i taps + t], i < segment.count.
template <typename T>
struct SplitLine {
  const T* from = nullptr;
  std::int64_t taps = 1;
  const LineSegment* segments = nullptr;
  std::int64_t count = 0;
  T* to = nullptr;
  std::int64_t to_step = 0;
};

// to[segment.to + i] = from[segment.line line_step + segment.from + i], i < count. Reads up to a vector beyond.
template <typename T>
struct PutLines {
  const T* from = nullptr;
  std::int64_t line_step = 0;
  const LineSegment* segments = nullptr;
  std::int64_t count = 0;
  T* to = nullptr;
  bool past_caches = false;  // nobody reads `to` soon: segments that follow each other are stored as whole lines
};

template <typename T>
struct PatchOps {
  std::int64_t lanes = 1;
  // [log2 of the taps][lines - 1][vectors - 1]
  using Table = std::array<std::array<void (*)(const MultiplyPatches<T>&), kMostPatchVectors>, kMostPatchLines>;
  std::array<Table, kMostTapShift + 1> multiply{};
  std::array<std::int64_t, kMostTapShift + 1> lines{};    // of the largest tile
  std::array<std::int64_t, kMostTapShift + 1> vectors{};  // of it and of lower ones
  void (*copy_rows)(const CopyRows<T>& job) = nullptr;
  void (*split_line)(const SplitLine<T>& job) = nullptr;
  void (*put_lines)(const PutLines<T>& job) = nullptr;
};

template <typename T>
const PatchOps<T>& patch_ops();

}  // namespace tconv::cpu
