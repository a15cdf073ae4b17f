// What the inner loops of the gradients of depthwise layers share, built once per instruction set. The guard is
// Highway's: it lets the file in again for each of them.
#if defined(TCONV_CPU_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TCONV_CPU_GRADIENTS_INL_H_
#undef TCONV_CPU_GRADIENTS_INL_H_
#else
#define TCONV_CPU_GRADIENTS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "cpu/depthwise_gradients_simd.h"

HWY_BEFORE_NAMESPACE();
namespace tconv::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Taps whose weights and sums stay in registers.
constexpr int kTogether = HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64 ? 8 : 4;

// Asks for the next lines of the strips, into the L2 cache.
class Asking {
 public:
  HWY_INLINE Asking(Strip*& strips, std::int64_t lines)
      : strip_(strips), lines_(lines), at_(strips->at), end_(strips->end) {}
  HWY_INLINE ~Asking() { strip_->at = at_; }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

  HWY_INLINE void ask() {
    constexpr std::int64_t kLine = 64;
    if (at_ >= end_) {
      if (end_ == nullptr) return;
      ++strip_;
      at_ = strip_->at;
      end_ = strip_->end;
      return;
    }
    __builtin_prefetch(at_, 0, 2);
    if (lines_ > 1) __builtin_prefetch(at_ + kLine, 0, 2);
    if (lines_ > 2) __builtin_prefetch(at_ + 2 * kLine, 0, 2);
    if (lines_ > 3) __builtin_prefetch(at_ + 3 * kLine, 0, 2);
    at_ += lines_ * kLine;
  }

 private:
  Strip*& strip_;       // of the job, whose next call goes on from there
  std::int64_t lines_;  // at a time
  const char* at_;
  const char* end_;
};

// Keeps a vector that is used twice in a register: GCC would rather load it twice.
template <class V>
HWY_INLINE void hold([[maybe_unused]] V& vector) {
#if HWY_ARCH_X86 && HWY_COMPILER_GCC && HWY_TARGET != HWY_SCALAR
  asm("" : "+v"(vector.raw));
#endif
}

// What a call computes.
template <bool kOfInput, bool kOfWeight>
struct Wanted {
  static constexpr bool kInput = kOfInput;
  static constexpr bool kWeight = kOfWeight;
};

}  // namespace HWY_NAMESPACE
}  // namespace tconv::cpu
HWY_AFTER_NAMESPACE();

#endif
