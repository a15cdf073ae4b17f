// Aligned memory that a thread keeps from one task to the next.
#pragma once

#include <hwy/aligned_allocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace tconv::cpu {

// Bytes that all threads keep.
inline std::atomic<std::int64_t> scratch_bytes{0};

template <typename T>
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { count(0); }

  // At least this many elements, contents undefined, valid until the next call.
  T* get(std::size_t elements) {
    if (elements > size_) {
      count(0);
      memory_ = hwy::AllocateAligned<T>(elements);
      if (memory_ == nullptr) throw std::bad_alloc();
      count(elements);
    }
    return memory_.get();
  }

 private:
  void count(std::size_t size) {
    scratch_bytes += static_cast<std::int64_t>(size * sizeof(T)) - static_cast<std::int64_t>(size_ * sizeof(T));
    size_ = size;
  }

  hwy::AlignedFreeUniquePtr<T[]> memory_;
  std::size_t size_ = 0;
};

}  // namespace tconv::cpu
