// A map whose values are made once, however many threads ask at the same time.
#pragma once

#include <exception>
#include <future>
#include <map>
#include <mutex>

namespace tconv::cuda {

template <typename Key, typename Value>
class OnceMap {
 public:
  // The value of the key; the first caller makes it while the others wait. When making fails, those who waited get the
  // same exception, and the next caller tries again.
  template <typename Make>
  Value get(const Key& key, const Make& make) {
    std::promise<Value> promise;
    std::shared_future<Value> future;
    bool mine = false;
    {
      const std::scoped_lock lock(mutex_);
      auto [entry, inserted] = futures_.try_emplace(key);
      if (inserted) entry->second = promise.get_future().share();
      mine = inserted;
      future = entry->second;
    }
    if (mine) {
      try {
        promise.set_value(make());
      } catch (...) {
        {
          const std::scoped_lock lock(mutex_);
          futures_.erase(key);
        }
        promise.set_exception(std::current_exception());
      }
    }
    return future.get();
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::shared_future<Value>> futures_;
};

}  // namespace tconv::cuda
