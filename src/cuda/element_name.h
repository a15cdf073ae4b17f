// The names that kernels/types.cuh gives the element types.
#pragma once

#include "tconv/problem.h"

namespace tconv::cuda {

constexpr const char* element_name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "F64";
    case DType::f32: return "F32";
    case DType::f16: return "F16";
    case DType::bf16: return "BF16";
  }
  return "";
}

}  // namespace tconv::cuda
