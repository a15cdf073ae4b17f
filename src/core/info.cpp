#include "tconv/info.h"

#include "core/env.h"
#include "core/parallel.h"
#include "cpu/families.h"
#include "cpu/scratch.h"
#include "cuda/device.h"

namespace tconv {
namespace {

// The build passes its own version; this one serves a compiler called by hand.
#ifndef TCONV_VERSION
constexpr const char* kVersion = "0.1.0";
#else
constexpr const char* kVersion = TCONV_VERSION;
#endif

}  // namespace

const char* version() { return kVersion; }

Info info() {
  Info info;
  info.version = version();
  info.cpu_target = cpu::target_name();
  info.cpu_threads = thread_count();
  info.cache_directory = env().cache_directory;
  info.forced_family = env().force;
  info.cuda_devices = cuda::device_names();
  info.cuda_status = cuda::status();
  return info;
}

std::int64_t scratch_bytes() { return cpu::scratch_bytes; }

int keep_memory_requested() { return env().keep_memory; }

}  // namespace tconv
