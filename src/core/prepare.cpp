#include "tconv/prepare.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tconv {

void prepare(const Plan& plan) { plan.kernel->prepare(); }

void prepare(std::span<const std::shared_ptr<const Plan>> plans, const PrepareProgress& progress) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;  // guards done, failure and the calls of progress
  std::size_t done = 0;
  std::exception_ptr failure;

  const auto note = [&](const std::exception_ptr& error) {
    if (error != nullptr && failure == nullptr) failure = error;
  };
  const auto work = [&] {
    for (std::size_t at = next.fetch_add(1); at < plans.size(); at = next.fetch_add(1)) {
      std::exception_ptr error;
      try {
        prepare(*plans[at]);
      } catch (...) {
        error = std::current_exception();
      }
      const std::scoped_lock lock(mutex);
      note(error);
      ++done;
      try {
        if (progress) progress(done, plans.size());
      } catch (...) {
        note(std::current_exception());
      }
    }
  };

  const std::size_t count = std::min<std::size_t>(plans.size(), std::max(1U, std::thread::hardware_concurrency()));
  {
    std::vector<std::jthread> helpers;
    for (std::size_t i = 1; i < count; ++i) helpers.emplace_back(work);
    work();
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace tconv
