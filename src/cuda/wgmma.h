// The text of a wgmma instruction, whose operand list depends on its width.
#pragma once

#include <string>

#include "cuda/kernels/tile_params.cuh"

namespace tconv::cuda {

// multiply(float (&d)[columns / 8][4], a, b): adds the product of what two descriptors point at. `transposed`: rows of
// shared memory hold neighbours along the result, not along the sum (two-byte elements).
std::string wgmma_function(TileMath math, int columns, bool transposed = false);

// multiply(float (&d)[columns / 8][4], const unsigned (&a)[4], b): the first factor is in the registers of the
// warpgroup.
std::string wgmma_from_registers(TileMath math, int columns, bool transposed = false);

}  // namespace tconv::cuda
