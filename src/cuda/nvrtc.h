// NVRTC, the run-time compiler, opened when the first kernel is compiled: building the library needs no CUDA.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/source.h"

namespace tconv::cuda {

struct Compiled {
  std::string cubin;            // or PTX, when the compiler is older than the architecture
  int registers = 0;            // per thread
  std::size_t spill_bytes = 0;  // local memory per thread: spilled registers and arrays that were not kept in registers
  std::size_t shared_bytes = 0;  // static shared memory per block
  std::string log;
};

// Compiles for one architecture (90 means sm_90a). Throws Error, which carries the compiler's log. No GPU is needed.
Compiled compile(const KernelSource& source, int arch);

// What the compiler is asked to make: machine code, or PTX when it is older than the GPU.
struct Target {
  int arch = 0;
  bool specific = false;  // sm_90a, sm_100a: with the instructions that only this architecture has
  bool ptx = false;

  std::string option() const;
};

// Nothing when the compiler knows only newer architectures. `supported` is in rising order.
std::optional<Target> target_for(int arch, int major, int minor, const std::vector<int>& supported);

// The options that compile() passes; they belong to the key of the kernel caches.
std::vector<std::string> compile_options(int arch);

// Fills in registers, local and shared memory from the assembler's statistics in the log.
void read_statistics(std::string_view log, Compiled& compiled);

struct NvrtcVersion {
  int major = 0;
  int minor = 0;
  std::string path;  // the library that was opened
};

// Throws Error, saying what to install, when no NVRTC can be found.
NvrtcVersion nvrtc_version();

// Whether the compiler that was found can make code for an architecture; a planner's family may decline by it.
bool nvrtc_supports(int arch);

}  // namespace tconv::cuda
