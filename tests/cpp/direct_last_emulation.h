// The direct kernel for channels-last tensors compiled for the CPU, once per element type.
#pragma once

#include <cstdint>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/scalar.h"
#include "cuda/jit_kernel.h"
#include "cuda/kernels/direct_last_params.cuh"
#include "tconv/problem.h"

// In the kernel the sizes of arrays are constants; here they are variables, and #pragma unroll means nothing: neither
// deserves a warning.
#pragma GCC system_header
#define __device__
#define __forceinline__ inline
#define TCONV_LAST_ON_CPU

namespace tconv::test {
inline void require_whole(const void* pointer, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % bytes != 0) throw std::runtime_error("an access is not aligned");
}
}  // namespace tconv::test

#define TCONV_EMULATE_LAST(element, accumulator, to_accumulator, to_element)                   \
  using Element = element;                                                                     \
  using Accumulator = accumulator;                                                             \
  inline LastConfig kConfig;                                                                   \
  inline LastGeometry kGeometry;                                                               \
  inline Accumulator widen(Element value) { return to_accumulator; }                           \
  inline Element narrow(Accumulator value) { return to_element; }                              \
  namespace direct_last {                                                                      \
  inline void load_run(const Element* from, Element* values) {                                 \
    const auto bytes = sizeof(Element) * static_cast<std::size_t>(kConfig.load);               \
    tconv::test::require_whole(from, bytes);                                                   \
    std::memcpy(values, from, bytes);                                                          \
  }                                                                                            \
  inline void store_run(Element* to, const Accumulator* sums) {                                \
    tconv::test::require_whole(to, sizeof(Element) * static_cast<std::size_t>(kConfig.store)); \
    for (int i = 0; i < kConfig.store; ++i) to[i] = narrow(sums[i]);                           \
  }                                                                                            \
  inline void load_piece(const Accumulator* from, Accumulator* values) {                       \
    const auto bytes = sizeof(Accumulator) * static_cast<std::size_t>(kGeometry.piece);        \
    tconv::test::require_whole(from, bytes);                                                   \
    std::memcpy(values, from, bytes);                                                          \
  }                                                                                            \
  }

namespace last_f64 {
TCONV_EMULATE_LAST(double, double, value, value)
#include "cuda/kernels/direct_last.cuh"
}  // namespace last_f64
namespace last_f32 {
TCONV_EMULATE_LAST(float, float, value, value)
#include "cuda/kernels/direct_last.cuh"
}  // namespace last_f32
namespace last_f16 {
TCONV_EMULATE_LAST(tconv::cpu::Float16, float, tconv::cpu::to_float(value), tconv::cpu::to_float16(value))
#include "cuda/kernels/direct_last.cuh"
}  // namespace last_f16
namespace last_bf16 {
TCONV_EMULATE_LAST(tconv::cpu::BFloat16, float, tconv::cpu::to_float(value), tconv::cpu::to_bfloat16(value))
#include "cuda/kernels/direct_last.cuh"
}  // namespace last_bf16

#undef TCONV_EMULATE_LAST
#undef TCONV_LAST_ON_CPU
#undef __forceinline__
#undef __device__

namespace tconv::test {

// While it lives, launches of the kernel by its thread run here. After the weights are in shared memory the threads
// share nothing, so they run one after the other.
class LastEmulator final : public cuda::JitKernelWatch {
 public:
  int unaligned() const { return unaligned_; }  // launches that moved one element at a time

 private:
  bool launch(const cuda::JitKernel& kernel, const cuda::LaunchShape& shape, void** arguments) override {
    const std::string& text = kernel.source().config;
    const LastConfig config = config_of(text);
    const auto& its_arguments = *static_cast<const LastArguments*>(arguments[0]);
    if (config.load == 1 && config.store == 1 && config.channels > 1) ++unaligned_;
    if (shape.block != static_cast<unsigned>(last_geometry(config).threads) ||
        kernel.dynamic_shared_bytes() != static_cast<std::size_t>(last_geometry(config).shared_bytes)) {
      throw std::runtime_error("the launch does not fit the config");
    }
    const auto is = [&](const char* type) { return text.find("DirectType = " + std::string(type)) != text.npos; };
    const auto run = [&]<typename Sum>(Sum, auto& its_config, auto& its_geometry, const auto& stage,
                                       const auto& compute) {
      its_config = config;
      its_geometry = last_geometry(config);
      for (unsigned block = 0; block < shape.grid_x; ++block)
        run_block<Sum>(its_geometry, its_arguments, block, stage, compute);
    };
    if (is("F64;")) {
      run(0.0, last_f64::kConfig, last_f64::kGeometry, last_f64::direct_last::stage,
          last_f64::direct_last::compute_thread);
    } else if (is("F32;")) {
      run(0.0F, last_f32::kConfig, last_f32::kGeometry, last_f32::direct_last::stage,
          last_f32::direct_last::compute_thread);
    } else if (is("F16;")) {
      run(0.0F, last_f16::kConfig, last_f16::kGeometry, last_f16::direct_last::stage,
          last_f16::direct_last::compute_thread);
    } else if (is("BF16;")) {
      run(0.0F, last_bf16::kConfig, last_bf16::kGeometry, last_bf16::direct_last::stage,
          last_bf16::direct_last::compute_thread);
    } else {
      throw std::runtime_error("unknown element type: " + text);
    }
    return true;
  }

  // A config is a sequence of integers, here and in the source.
  static LastConfig config_of(const std::string& text) {
    std::string list = text.substr(text.find("TCONV_LAST_CONFIG") + 17);
    for (char& c : list) c = c == '{' || c == '}' || c == ',' ? ' ' : c;
    std::istringstream stream(list);
    int values[sizeof(LastConfig) / sizeof(int)];
    for (int& value : values) {
      if (!(stream >> value)) throw std::runtime_error("a config is too short");
    }
    LastConfig config;
    std::memcpy(&config, values, sizeof(config));
    return config;
  }

  template <typename Sum, typename Stage, typename Compute>
  static void run_block(const LastGeometry& geometry, const LastArguments& arguments, unsigned block,
                        const Stage& stage, const Compute& compute) {
    struct alignas(16) Unit {
      unsigned char bytes[16];
    };
    std::vector<Unit> memory(static_cast<std::size_t>(geometry.shared_bytes) / sizeof(Unit) + 1);
    std::memset(memory.data(), 0xff, memory.size() * sizeof(Unit));
    auto* const shared = reinterpret_cast<Sum*>(memory.data());
    const auto channel_block = static_cast<int>(block % static_cast<unsigned>(arguments.channel_blocks));
    const auto start = static_cast<int>(block / static_cast<unsigned>(arguments.channel_blocks));
    for (int thread = 0; thread < geometry.threads; ++thread) stage(arguments, channel_block, thread, shared);
    for (int thread = 0; thread < geometry.threads; ++thread) compute(arguments, channel_block, start, thread, shared);
  }

  int unaligned_ = 0;
};

}  // namespace tconv::test
