// Tensors as the copy engine of sm_90 sees them.
#pragma once

struct TensorMap;  // kernels/tile_params.cuh

namespace tconv::cuda {

inline constexpr int kMostBoxStep = 8;  // that the copy engine takes from one element of a box to the next

// Boxes of a tensor of five dimensions, the fastest one, whose elements are neighbours, first.
struct TensorBoxes {
  const void* address = nullptr;  // a multiple of 16
  int element_bytes = 0;          // 2 or 4
  long long sizes[5] = {};
  long long strides[4] = {};                 // of the other dimensions, in elements
  int box[5] = {};                           // of the fastest one 32, 64 or 128 bytes
  unsigned char steps[5] = {1, 1, 1, 1, 1};  // from one element of a box to the next; of the fastest one 1
};

// Whether the copy engine takes boxes like these, whatever the address.
bool can_map(const TensorBoxes& boxes);

// What a kernel gives to ptx::copy_tensor on that GPU. For a kernel that is not launched but watched, the boxes as they
// are.
TensorMap tensor_map(const TensorBoxes& boxes, int device);

}  // namespace tconv::cuda
