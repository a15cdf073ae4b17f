// Cuts of grad_weight whose channels-last tensors come in boxes, and how the copy engine sees those.
#pragma once

#include <vector>

#include "cuda/reduce.h"
#include "cuda/tensor_map.h"

namespace tconv::cuda {

// Shapes worth considering, without parts; empty where tensors or device don't allow boxes.
std::vector<ReduceShape> box_shapes(const Problem& problem, const Reduction& reduction, ReduceShape base,
                                    const DeviceProperties& device);

// Boxes of a stage in either tensor.
TensorBoxes row_boxes(const ReduceShape& shape, const ReduceParams& params);
TensorBoxes column_boxes(const ReduceShape& shape, const ReduceParams& params);

}  // namespace tconv::cuda
