// Packing the source of a tile as pairs of channels (bf16_products.h).
#pragma once

#include <cstdint>

#include "cpu/packing.h"
#include "cpu/scalar.h"
#include "cpu/tile.h"

namespace tconv::cpu {

// pack_source with channels innermost, of numbers that are neither widened nor moved one by one: words of two channels,
// `cell_step` from a cell to the next. Words behind those of the channels are left as they are.
void pack_pairs(const Tiling& tiling, const Tile& tile, const View<const BFloat16>& view, std::int64_t cell_step,
                float* to);

}  // namespace tconv::cpu
