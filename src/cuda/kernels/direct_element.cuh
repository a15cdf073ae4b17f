// Elements on their way into shared memory, where they lie in the type of the sums.
//
// Before this file stand
//   Element, Accumulator    how an element lies in global memory, and what shared memory and the sums hold
//   widen, narrow           from one to the other
namespace direct {

#ifdef __CUDACC__
// Into shared memory without waiting; zero where `valid` does not hold, and then nothing is read.
__device__ __forceinline__ void copy_async(float* to, const float* from, bool valid) {
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(valid ? 4 : 0)
      : "memory");
}
__device__ __forceinline__ void copy_async(double* to, const double* from, bool valid) {
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(valid ? 8 : 0)
      : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
inline void wait_for_copies() {}
#endif

// Elements that have to be converted go through registers.
template <typename To, typename From>
__device__ __forceinline__ void copy_async(To* to, const From* from, bool valid) {
  *to = valid ? widen(*from) : To(0);
}

// 16 bytes that move in one instruction.
template <typename Value>
struct alignas(16) Pack {
  Value value[16 / sizeof(Value)];
};

}  // namespace direct
