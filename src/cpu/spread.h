// Small groups as layers with one channel a group. With I input and O output channels a group, output channel c is a
// sum over what input channels c / O I + i bring, i < I: so many planes, each a layer with one channel a group, whose
// input is channel i of every group, O times. Cells are spread into planes before they are multiplied, and what is
// computed for the planes is gathered again: look-ups in registers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu/simd.h"
#include "cpu/spread_simd.h"
#include "cpu/tile.h"
#include "tconv/problem.h"

namespace tconv::cpu {

struct SmallGroups {
  std::int64_t inputs = 1;   // channels of a group
  std::int64_t outputs = 1;  // the same

  explicit SmallGroups(const Problem& problem)
      : inputs(problem.in_channels_per_group()), outputs(problem.out_channels_per_group()) {}

  bool alone() const { return inputs == 1 && outputs == 1; }
  std::int64_t planes() const { return inputs; }
  // The channel of the input that output channel c reads in a plane.
  std::int64_t input_of(std::int64_t c, std::int64_t plane) const { return c / outputs * inputs + plane; }
  // to[c] = the weights of one tap and plane for the output channels first + c, c < count.
  template <typename E, typename T>
  void load_weights(const E* from, const Strides& strides, std::int64_t plane, std::int64_t first, std::int64_t count,
                    T* to) const {
    if (alone()) return element_ops<E, T>().load(from + first * strides[0], strides[0], to, 1, count);
    if constexpr (std::is_same_v<E, T>) {
      for_each_weight(strides, plane, first, count, [&](std::int64_t c, std::int64_t at) { to[c] = from[at]; });
    }
  }
  // The other way.
  template <typename E, typename T>
  void store_weights(const T* from, const Strides& strides, std::int64_t plane, std::int64_t first, std::int64_t count,
                     E* to) const {
    if (alone()) return element_ops<E, T>().store(from, 1, to + first * strides[0], strides[0], count, T{0});
    if constexpr (std::is_same_v<E, T>) {
      for_each_weight(strides, plane, first, count, [&](std::int64_t c, std::int64_t at) { to[at] = from[c]; });
    }
  }

 private:
  template <typename Visit>
  void for_each_weight(const Strides& strides, std::int64_t plane, std::int64_t first, std::int64_t count,
                       const Visit& visit) const {
    std::int64_t group = first / outputs;
    std::int64_t output = first % outputs;
    for (std::int64_t c = 0; c < count; ++c) {
      visit(c, (group * inputs + plane) * strides[0] + output * strides[1]);
      if (++output == outputs) {
        output = 0;
        ++group;
      }
    }
  }
};

// Result channel c < count of a cell is the sum of source[term(c, t)], t < terms.
template <typename T>
class ChannelPicks {
 public:
  // The result: `count` elements, and zeros up to whole vectors if it is `padded`. The source: `size` elements; vectors
  // begin at multiples of their size.
  template <typename Term>
  void add(std::int64_t to, std::int64_t count, bool padded, std::int64_t size, std::int64_t terms, const Term& term) {
    const std::int64_t lanes = spread_ops<T>().lanes;
    for (std::int64_t first = 0; first < count; first += lanes) {
      std::map<std::pair<std::int64_t, std::int64_t>, Pick<T>> picks;  // by term and vector
      for (std::int64_t t = 0; t < terms; ++t) {
        for (std::int64_t c = first; c < std::min(first + lanes, count); ++c) {
          const std::int64_t place = term(c, t);
          const std::int64_t from = place / lanes * lanes;
          Pick<T>& pick = picks[{t, from}];
          pick.from = from;
          pick.valid = std::min(lanes, size - from);
          pick.places[c - first] = static_cast<Pick<T>::Index>(place - from);
          pick.kept[c - first] = -1;
        }
      }
      vectors_.push_back({to + first, padded ? lanes : std::min(lanes, count - first), std::ssize(picks)});
      for (const auto& [place, pick] : picks) picks_.push_back(pick);
    }
  }

  void operator()(const T* from, std::int64_t from_step, T* to, std::int64_t to_step, std::int64_t cells,
                  bool past_caches = false) const {
    spread_ops<T>().pick({from, from_step, to, to_step, cells, &vectors_, &picks_, past_caches});
  }

 private:
  std::vector<PickedVector> vectors_;
  std::vector<Pick<T>> picks_;
};

// From the channels of a cell of the input, `channels` of the output's channels reading them, to planes, plane_step
// apart, of channels filled up with zeros.
template <typename T>
ChannelPicks<T> spread_channels(const SmallGroups& groups, std::int64_t channels, std::int64_t plane_step) {
  ChannelPicks<T> picks;
  const std::int64_t size = channels / groups.outputs * groups.inputs;
  for (std::int64_t plane = 0; plane < groups.planes(); ++plane) {
    picks.add(plane * plane_step, channels, true, size, 1,
              [&](std::int64_t c, std::int64_t /*term*/) { return groups.input_of(c, plane); });
  }
  return picks;
}

// The other way: sums over the output channels of a group.
template <typename T>
ChannelPicks<T> gather_channels(const SmallGroups& groups, std::int64_t channels, std::int64_t plane_step) {
  ChannelPicks<T> picks;
  picks.add(0, channels / groups.outputs * groups.inputs, false, groups.planes() * plane_step, groups.outputs,
            [&](std::int64_t c, std::int64_t term) {
              return c % groups.inputs * plane_step + c / groups.inputs * groups.outputs + term;
            });
  return picks;
}

}  // namespace tconv::cpu
