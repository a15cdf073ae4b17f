// Work beside the current stream of a GPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

namespace tconv::front {

// While it lives, another stream of the device is the current one. Its work begins after what the caller's stream has
// been given so far, and what that stream is given after this object's end begins after it. That is a fork and a join
// of a CUDA Graph, too.
class Beside {
 public:
  explicit Beside(c10::Device device);
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;
  ~Beside();

  // The caller's stream is the current one again; the other stream's work goes on.
  void leave();

 private:
  struct Lane;

  c10::Stream stream_;
  Lane& lane_;
  c10::OptionalStreamGuard guard_;
};

}  // namespace tconv::front
