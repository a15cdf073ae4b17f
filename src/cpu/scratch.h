// Aligned memory that a thread keeps from one task to the next.
#pragma once

#include <hwy/aligned_allocator.h>

#include <cstddef>
#include <new>

namespace tconv::cpu {

template <typename T>
class Scratch {
 public:
  // At least `count` elements, contents undefined, valid until the next call.
  T* get(std::size_t count) {
    if (count > size_) {
      size_ = 0;
      memory_ = hwy::AllocateAligned<T>(count);
      if (memory_ == nullptr) throw std::bad_alloc();
      size_ = count;
    }
    return memory_.get();
  }

 private:
  hwy::AlignedFreeUniquePtr<T[]> memory_;
  std::size_t size_ = 0;
};

}  // namespace tconv::cpu
