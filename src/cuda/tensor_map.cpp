#include "cuda/tensor_map.h"

#include <cstring>

#include "cuda/driver.h"
#include "cuda/jit_kernel.h"
#include "cuda/kernels/tile_params.cuh"
#include "tconv/error.h"

namespace tconv::cuda {
namespace {

constexpr int kDimensions = 5;

// In bytes. A dimension of one element is never stepped along: its stride may be anything, and is what a dense tensor
// would have.
struct ByteStrides {
  std::uint64_t of[kDimensions - 1];
};

ByteStrides byte_strides(const TensorBoxes& boxes) {
  ByteStrides strides{};
  auto dense = static_cast<std::uint64_t>(boxes.sizes[0]) * static_cast<std::uint64_t>(boxes.element_bytes);
  for (int i = 0; i + 1 < kDimensions; ++i) {
    const auto size = static_cast<std::uint64_t>(boxes.sizes[i + 1]);
    const auto stride = static_cast<std::uint64_t>(boxes.strides[i]) * static_cast<std::uint64_t>(boxes.element_bytes);
    strides.of[i] = size == 1 ? (dense + 15) / 16 * 16 : stride;
    dense = strides.of[i] * size;
  }
  return strides;
}

// How many elements a box spans along a dimension.
int reach(const TensorBoxes& boxes, int i) { return (boxes.box[i] - 1) * boxes.steps[i] + 1; }

}  // namespace

bool can_map(const TensorBoxes& boxes) {
  constexpr std::uint64_t kMostStride = 1ULL << 40U;
  constexpr int kMostBox = 256;
  const int row_bytes = boxes.box[0] * boxes.element_bytes;
  if (row_bytes != 32 && row_bytes != 64 && row_bytes != 128) return false;
  for (int i = 0; i < kDimensions; ++i) {
    if (boxes.sizes[i] < 1 || boxes.sizes[i] >= 1LL << 32U || boxes.box[i] < 1 || reach(boxes, i) > kMostBox)
      return false;
    if (boxes.steps[i] < 1 || boxes.steps[i] > kMostBoxStep) return false;
  }
  for (const std::uint64_t stride : byte_strides(boxes).of) {
    if (stride == 0 || stride % 16 != 0 || stride >= kMostStride) return false;
  }
  return true;
}

TensorMap tensor_map(const TensorBoxes& boxes, int device) {
  TensorMap map{};
  if (JitKernelWatch::watches()) {
    static_assert(sizeof(boxes) <= sizeof(map));
    std::memcpy(&map, &boxes, sizeof(boxes));
    return map;
  }
  // CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
  const int type = boxes.element_bytes == 2 ? 1 : 2;
  const int row_bytes = boxes.box[0] * boxes.element_bytes;
  const int swizzle = row_bytes == 128 ? 3 : row_bytes == 64 ? 2 : 1;
  constexpr int kPromotion = 2;  // to 128 bytes
  const ByteStrides strides = byte_strides(boxes);
  std::uint64_t sizes[kDimensions];
  std::uint32_t box[kDimensions];
  std::uint32_t steps[kDimensions];
  for (int i = 0; i < kDimensions; ++i) {
    sizes[i] = static_cast<std::uint64_t>(boxes.sizes[i]);
    box[i] = static_cast<std::uint32_t>(reach(boxes, i));
    steps[i] = boxes.steps[i];
  }
  const Driver& cuda = driver();
  if (cuda.tensor_map_encode_tiled == nullptr)
    throw Error("this NVIDIA driver is too old for sm_90a kernels: 525 or later is needed");
  // A thread that has not called CUDA yet, such as one of autograd's, has no context.
  const ContextScope context(primary_context(device));
  check(cuda.tensor_map_encode_tiled(&map, type, kDimensions, boxes.address, sizes, strides.of, box, steps,
                                     /*interleave=*/0, swizzle, kPromotion, /*fill=*/0),
        "describe a tensor to the copy engine");
  return map;
}

}  // namespace tconv::cuda
