// The text of a wgmma instruction, whose operand list depends on its width.
#pragma once

#include <string>

#include "cuda/kernels/tile_params.cuh"

namespace tconv::cuda {

// multiply(float (&d)[columns / 8][4], a, b): adds the product of what two descriptors point at.
std::string wgmma_function(TileMath math, int columns);

}  // namespace tconv::cuda
