#include "core/env.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>

namespace tconv {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string{} : std::string{value};
}

std::string default_cache_directory() {
  if (const std::string base = variable("XDG_CACHE_HOME"); !base.empty()) return base + "/tconv";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/tconv";
  return {};
}

// A value that is not a number counts as 0.
int number(const std::string& text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

Env read_env() {
  Env env;
  env.force = variable("TCONV_FORCE");
  env.cache_directory = variable("TCONV_CACHE_DIR");
  if (env.cache_directory.empty()) env.cache_directory = default_cache_directory();
  env.nvrtc = variable("TCONV_NVRTC");
  env.cuda_home = variable("CUDA_HOME");
  if (env.cuda_home.empty()) env.cuda_home = variable("CUDA_PATH");
  if (const std::string autotune = variable("TCONV_AUTOTUNE"); !autotune.empty()) {
    env.autotune = number(autotune) > 0 ? Autotune::tune : Autotune::ignore;
  }
  if (const std::string keep = variable("TCONV_KEEP_MEMORY"); !keep.empty()) env.keep_memory = number(keep);
  env.log_level = number(variable("TCONV_LOG"));
  return env;
}

}  // namespace

const Env& env() {
  static const Env instance = read_env();
  return instance;
}

void log(int level, const std::string& line) {
  if (env().log_level >= level) std::fprintf(stderr, "tconv: %s\n", line.c_str());
}

}  // namespace tconv
