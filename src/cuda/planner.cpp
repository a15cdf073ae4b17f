// The kernel families of the CUDA backend, in the order in which they are asked; the last one takes every problem.
#include <array>

#include "core/family.h"
#include "cuda/columns.h"
#include "cuda/depthwise_weight.h"
#include "cuda/direct.h"
#include "cuda/general.h"
#include "cuda/group.h"
#include "cuda/reduce.h"
#include "cuda/tile.h"

namespace tconv::cuda {

std::span<const Family> families() {
  static constexpr std::array<Family, 7> kFamilies{{
      {"group", propose_group, /*exclusive=*/true, propose_group_cut, why_rather_no_group},
      {"columns", propose_columns, /*exclusive=*/true, propose_columns_cut, why_rather_no_columns},
      {"tile", propose_tile, /*exclusive=*/true, propose_tile_cut},
      {"direct", propose_direct, /*exclusive=*/true, propose_direct_cut},
      {"reduce", propose_reduce, /*exclusive=*/false, propose_reduce_cut},
      {"depthwise", propose_depthwise_weight},
      {"general", propose_general},
  }};
  return kFamilies;
}

}  // namespace tconv::cuda
