// Words that Python passes for the core's enumerations.
#pragma once

#include <array>
#include <string>
#include <utility>

#include "tconv/error.h"
#include "tconv/problem.h"

namespace tconv::front {

template <typename Enum, std::size_t kCount>
Enum parse(const char* what, const std::string& word, const std::array<std::pair<const char*, Enum>, kCount>& words) {
  std::string known;
  for (const auto& [name, value] : words) {
    if (word == name) return value;
    known += known.empty() ? name : std::string(", ") + name;
  }
  throw Error(std::string(what) + " must be one of " + known + ", got \"" + word + "\"");
}

inline Direction parse_direction(const std::string& word) {
  return parse<Direction, 4>("direction", word,
                             {{{name_of(Direction::forward), Direction::forward},
                               {name_of(Direction::grad_input), Direction::grad_input},
                               {name_of(Direction::grad_weight), Direction::grad_weight},
                               {name_of(Direction::grad_bias), Direction::grad_bias}}});
}

}  // namespace tconv::front
