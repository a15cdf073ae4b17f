#include "cpu/caches.h"

#include <unistd.h>

#include <algorithm>

namespace tconv::cpu {
namespace {

Caches find_caches() {
  Caches result;
#ifdef _SC_LEVEL2_CACHE_SIZE
  // Some systems answer 0. Beyond 2 MiB a cache is likely to be shared by several cores.
  const std::int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) result.l2_bytes = std::clamp<std::int64_t>(bytes, 256 << 10, 2 << 20);
#endif
#ifdef _SC_LEVEL3_CACHE_SIZE
  // Some answer with the sum of all such caches of a processor, of which a core reaches one.
  const std::int64_t last = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (last > 0) result.last_bytes = std::min(result.last_bytes, last);
#endif
  return result;
}

Caches& found() {
  static Caches caches = find_caches();
  return caches;
}

}  // namespace

const Caches& caches() { return found(); }

void use_last_cache(std::int64_t bytes) { found().last_bytes = bytes < 0 ? find_caches().last_bytes : bytes; }

}  // namespace tconv::cpu
