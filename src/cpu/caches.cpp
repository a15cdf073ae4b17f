#include "cpu/caches.h"

#include <unistd.h>

#include <algorithm>

namespace tconv::cpu {

const Caches& caches() {
  static const Caches found = [] {
    Caches result;
#ifdef _SC_LEVEL2_CACHE_SIZE
    // Some systems answer 0. Beyond 2 MiB a cache is likely to be shared by several cores.
    const std::int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (bytes > 0) result.l2_bytes = std::clamp<std::int64_t>(bytes, 256 << 10, 2 << 20);
#endif
    return result;
  }();
  return found;
}

}  // namespace tconv::cpu
