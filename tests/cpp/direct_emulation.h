// The direct kernel compiled for the CPU, once per element type.
#pragma once

#include <cstring>
#include <vector>

#include "block_emulator.h"
#include "cpu/scalar.h"
#include "cuda/kernels/direct_params.cuh"
#include "tconv/problem.h"

// In the kernel the sizes of arrays are constants; here they are variables, and #pragma unroll means nothing: neither
// deserves a warning.
#pragma GCC system_header
#define __device__
#define __forceinline__ inline
#define __syncthreads() tconv::test::BlockEmulator::barrier(tconv::test::BlockEmulator::Stop::block)
#define __syncwarp() tconv::test::BlockEmulator::barrier(tconv::test::BlockEmulator::Stop::warp)

#define __shfl_sync(mask, value, from) tconv::test::BlockEmulator::shuffle(value, from)

namespace tconv::test {
inline void require_aligned(const void* pointer, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % bytes != 0) throw std::runtime_error("an access is not aligned");
}
}  // namespace tconv::test

#define TCONV_EMULATE_DIRECT(element, accumulator, to_accumulator, to_element)      \
  using Element = element;                                                          \
  using Accumulator = accumulator;                                                  \
  inline DirectConfig kConfig;                                                      \
  inline DirectGeometry kGeometry;                                                  \
  inline Accumulator widen(Element value) { return to_accumulator; }                \
  inline Element narrow(Accumulator value) { return to_element; }                   \
  namespace direct {                                                                \
  inline void move_run(Element* to, const Element* from) {                          \
    const auto bytes = sizeof(Element) * static_cast<std::size_t>(kGeometry.store); \
    tconv::test::require_aligned(to, bytes);                                        \
    tconv::test::require_aligned(from, bytes);                                      \
    std::memcpy(to, from, bytes);                                                   \
  }                                                                                 \
  }

namespace direct_f64 {
TCONV_EMULATE_DIRECT(double, double, value, value)
#include "cuda/kernels/direct.cuh"
}  // namespace direct_f64
namespace direct_f32 {
TCONV_EMULATE_DIRECT(float, float, value, value)
#include "cuda/kernels/direct.cuh"
}  // namespace direct_f32
namespace direct_f16 {
TCONV_EMULATE_DIRECT(tconv::cpu::Float16, float, tconv::cpu::to_float(value), tconv::cpu::to_float16(value))
#include "cuda/kernels/direct.cuh"
}  // namespace direct_f16
namespace direct_bf16 {
TCONV_EMULATE_DIRECT(tconv::cpu::BFloat16, float, tconv::cpu::to_float(value), tconv::cpu::to_bfloat16(value))
#include "cuda/kernels/direct.cuh"
}  // namespace direct_bf16

#undef TCONV_EMULATE_DIRECT
#undef __shfl_sync
#undef __syncwarp
#undef __syncthreads
#undef __forceinline__
#undef __device__

namespace tconv::test {

struct alignas(16) Pack16 {
  unsigned char bytes[16];
};

// Runs the grid block by block on shared memory that holds garbage at first. The bytes after it must stay untouched.
inline void emulate_direct(const DirectConfig& config, const DirectArguments& arguments, std::int64_t blocks,
                           DType dtype) {
  const DirectGeometry geometry = direct_geometry(config);
  constexpr std::size_t kGuard = 256;
  std::vector<Pack16> memory(static_cast<std::size_t>(geometry.shared_bytes + 15) / 16 + kGuard / 16);
  auto* const shared = reinterpret_cast<unsigned char*>(memory.data());
  BlockEmulator emulator;
  for (std::int64_t block = 0; block < blocks; ++block) {
    std::memset(shared, 0xff, memory.size() * 16);  // NaN in every type
    emulator.run(geometry.threads, [&](int thread) {
      const int at = static_cast<int>(block);
      switch (dtype) {
        case DType::f64:
          direct_f64::kConfig = config;
          direct_f64::kGeometry = geometry;
          direct_f64::direct::compute_block(arguments, shared, at, thread);
          break;
        case DType::f32:
          direct_f32::kConfig = config;
          direct_f32::kGeometry = geometry;
          direct_f32::direct::compute_block(arguments, shared, at, thread);
          break;
        case DType::f16:
          direct_f16::kConfig = config;
          direct_f16::kGeometry = geometry;
          direct_f16::direct::compute_block(arguments, shared, at, thread);
          break;
        case DType::bf16:
          direct_bf16::kConfig = config;
          direct_bf16::kGeometry = geometry;
          direct_bf16::direct::compute_block(arguments, shared, at, thread);
          break;
      }
    });
    for (std::size_t i = static_cast<std::size_t>(geometry.shared_bytes); i < memory.size() * 16; ++i) {
      if (shared[i] != 0xff) throw std::runtime_error("the kernel wrote past its shared memory");
    }
  }
}

}  // namespace tconv::test
