#pragma once

#include <stdexcept>

namespace tconv {

// The one exception type of the library. Its message states the rule that was broken and the value that came.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tconv
