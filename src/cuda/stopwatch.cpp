// Times of work on a GPU, by events on the stream itself.
#include <cstdint>

#include "core/env.h"
#include "core/race.h"
#include "cuda/driver.h"

namespace tconv::cuda {
namespace {

// More than the L2 cache of any GPU, and long enough for the host to issue a run before the GPU gets to it.
constexpr std::size_t kFlushBytes = std::size_t{160} << 20U;

class Event {
 public:
  Event() { check(driver().event_create(&event_, 0), "create an event"); }
  ~Event() { driver().event_destroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(DriverStream stream) const { check(driver().event_record(event_, stream), "record an event"); }
  void wait() const { check(driver().event_synchronize(event_), "wait for a timed run"); }
  double seconds_since(const Event& begin) const {
    float milliseconds = 0;
    check(driver().event_elapsed_time(&milliseconds, begin.event_, event_), "read the time of a run");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  DriverEvent event_ = nullptr;
};

// `flush` is memory of kFlushBytes, or null to leave the caches as they are.
double seconds_on_stream(int device, void* stream, void* flush, const std::function<void()>& once) {
  const ContextScope context(primary_context(device));
  const RelaxedCaptureScope relaxed;  // another thread may be capturing a stream of its own
  auto* const handle = static_cast<DriverStream>(stream);
  const Event begin;
  const Event end;
  if (flush != nullptr) {
    const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(flush));
    check(driver().memset_d32_async(address, 0, kFlushBytes / 4, handle), "write to memory");
  }
  begin.record(handle);
  once();
  end.record(handle);
  end.wait();
  return end.seconds_since(begin);
}

}  // namespace

bool is_captured(int device, void* stream) {
  const ContextScope context(primary_context(device));
  int status = 0;
  // The legacy stream may not even be asked while another one is captured.
  return driver().stream_is_capturing(static_cast<DriverStream>(stream), &status) != 0 || status != 0;
}

Stopwatch stopwatch(int device, void* stream, const Allocate& allocate) {
  void* flush = nullptr;
  try {
    flush = allocate(kFlushBytes);
  } catch (const std::exception& error) {
    log(1, std::string("runs are timed with warm caches, memory being short: ") + error.what());
  }
  return [device, stream, flush](const std::function<void()>& once) {
    return seconds_on_stream(device, stream, flush, once);
  };
}

}  // namespace tconv::cuda
