// The kernel families of the CUDA backend, in the order in which they are asked; the last one takes every forward
// problem.
#include <array>

#include "core/family.h"
#include "cuda/direct.h"
#include "cuda/general.h"
#include "cuda/tile.h"

namespace tconv::cuda {

std::span<const Family> families() {
  static constexpr std::array<Family, 3> kFamilies{{
      {"tile", propose_tile, /*exclusive=*/true, propose_tile_cut},
      {"direct", propose_direct, /*exclusive=*/true},
      {"general", propose_general},
  }};
  return kFamilies;
}

}  // namespace tconv::cuda
