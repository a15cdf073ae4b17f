#include "beside.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>
#include <vector>

namespace tconv::front {

// One for each thread and device: events are recorded anew for every use. Never destroyed: at the end of a process the
// driver may be gone before a thread's objects are.
struct Beside::Lane {
  explicit Lane(c10::Device device)
      : stream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
        begin(device.type()),
        end(device.type()) {}

  static Lane& of(c10::Device device) {
    thread_local auto& lanes = *new std::vector<std::unique_ptr<Lane>>();
    const auto index = static_cast<std::size_t>(static_cast<unsigned char>(device.index()));
    if (lanes.size() <= index) lanes.resize(index + 1);
    if (lanes[index] == nullptr) lanes[index] = std::make_unique<Lane>(device);
    return *lanes[index];
  }

  c10::Stream stream;
  c10::Event begin;
  c10::Event end;
};

Beside::Beside(c10::Device device)
    : stream_(c10::impl::VirtualGuardImpl(device.type()).getStream(device)), lane_(Lane::of(device)) {
  lane_.begin.record(stream_);
  lane_.begin.block(lane_.stream);
  guard_.reset_stream(lane_.stream);
}

void Beside::leave() {
  lane_.end.record(lane_.stream);
  guard_.reset();
}

Beside::~Beside() {
  if (guard_.current_stream().has_value()) leave();
  lane_.end.block(stream_);
}

}  // namespace tconv::front
