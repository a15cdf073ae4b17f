// What the tiles are cut to fit.
#pragma once

#include <cstdint>

namespace tconv::cpu {

struct Caches {
  std::int64_t l2_bytes = std::int64_t{1} << 20;     // of one core
  std::int64_t last_bytes = std::int64_t{32} << 20;  // of the last level, which cores share

  // Elements of fp32 that a share of the cache holds.
  std::int64_t elements(double share) const {
    return static_cast<std::int64_t>(static_cast<double>(l2_bytes) * share / sizeof(float));
  }
};

// Those of this machine, asked for once.
const Caches& caches();

// For tests: the size of the last level, or as it was found if negative.
void use_last_cache(std::int64_t bytes);

}  // namespace tconv::cpu
