// Which taps of an axis bring a cell to the output.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "cpu/tile.h"
#include "tconv/problem.h"

namespace tconv::cpu {

// The taps that bring cell j to the output: [first, last).
inline std::pair<std::int64_t, std::int64_t> taps_that_reach(const Axis& axis, std::int64_t j) {
  const std::int64_t place = j * axis.stride - axis.pad_begin;
  const std::int64_t first = place >= 0 ? 0 : std::min(ceil_div(-place, axis.dilation), axis.kernel);
  const std::int64_t room = axis.output() - place;
  const std::int64_t last = room <= 0 ? 0 : std::min(ceil_div(room, axis.dilation), axis.kernel);
  return {first, std::max(first, last)};
}

}  // namespace tconv::cpu
