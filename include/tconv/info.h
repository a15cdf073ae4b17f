// What this build is and what it finds on the machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tconv/problem.h"

namespace tconv {

const char* version();

struct Info {
  std::string version;
  std::string cpu_target;                 // the instruction set that the CPU kernels run with, such as "AVX3"
  int cpu_threads = 1;                    // threads that the library would start for itself
  std::string cache_directory;            // where compiled GPU kernels are kept
  std::string forced_family;              // TCONV_FORCE, or empty
  std::vector<std::string> cuda_devices;  // empty without a usable GPU; cuda_status says why
  std::string cuda_status;
};

Info info();

// Bytes that the threads of the CPU kernels keep from call to call, for tiles and panels.
std::int64_t scratch_bytes();

// Does nothing but multiply-adds of f32 or f64 in the calling thread's registers, as fast as the processor can, and
// returns how many: the rate that benchmarks compare kernels with.
std::int64_t multiply_adds(DType dtype, std::int64_t rounds);

// TCONV_KEEP_MEMORY: how many MiB of results that are no longer used a front may keep for later ones; negative where
// the user does not say.
int keep_memory_requested();

}  // namespace tconv
