// Every environment variable is read here, once per process.
#pragma once

#include <cstdint>
#include <string>

namespace tconv {

// TCONV_AUTOTUNE: 0 ignores what was tuned before, 1 tunes every problem when it is first met; otherwise what was tuned
// is used.
enum class Autotune : std::uint8_t { ignore, use, tune };

struct Env {
  std::string force;                  // TCONV_FORCE: the only kernel family that may be chosen
  std::string cache_directory;        // TCONV_CACHE_DIR, else $XDG_CACHE_HOME/tconv, else ~/.cache/tconv
  std::string nvrtc;                  // TCONV_NVRTC: path of the NVRTC library to open
  std::string cuda_home;              // CUDA_HOME, else CUDA_PATH: a CUDA toolkit that may bring NVRTC
  Autotune autotune = Autotune::use;  // TCONV_AUTOTUNE
  int keep_memory = -1;               // TCONV_KEEP_MEMORY: most MiB of freed results to keep; -1: not said
  int log_level = 0;                  // TCONV_LOG: 0 nothing, 1 plans and compilations, 2 every call
};

const Env& env();

// Writes one line to standard error when TCONV_LOG is at least `level`.
void log(int level, const std::string& line);

}  // namespace tconv
