// Boxes of weights that the copy engine brings out of the tensor itself: which problems have them, and how they lie.
#include <algorithm>

#include "cuda/tile_cuts.h"

namespace tconv::cuda {

TensorBoxes weight_boxes_of(const TileShape& shape, long long groups, const long long (&strides)[5]) {
  // The tensor's first channels are those of the layer's input, of all groups.
  const long long summed = shape.channels * (shape.gradient ? 1 : groups);
  const long long rows = shape.out_channels * (shape.gradient ? groups : 1);
  TensorBoxes boxes;
  boxes.element_bytes = shape.element_bytes;
  const bool of_rows = shape.weight_boxes == WeightBoxes::of_rows;
  const long long sizes[5] = {of_rows ? rows : summed, shape.kernel[2], shape.kernel[1], shape.kernel[0],
                              of_rows ? summed : rows};
  const long long steps[4] = {strides[4], strides[3], strides[2], strides[of_rows ? 0 : 1]};
  const int row = shape.weight_row_bytes() / shape.element_bytes;
  const int box[5] = {row, 1, 1, 1, shape.weight_box_bytes() / shape.element_bytes / row};
  std::copy(std::begin(sizes), std::end(sizes), boxes.sizes);
  std::copy(std::begin(steps), std::end(steps), boxes.strides);
  std::copy(std::begin(box), std::end(box), boxes.box);
  return boxes;
}

bool set_weight_boxes(TileShape& shape, const Problem& problem, bool aligned) {
  constexpr int kMostPlaces = 4096;  // in constant memory
  constexpr int kMostTaps = 1 << 10;
  if (!shape.tensor_copies || !aligned || shape.block_channels % 16 != 0) return false;
  const bool rounds = shape.element_bytes == 4;
  if (rounds && (shape.gradient || shape.splits())) return false;
  // Channels in the order of the tensor are exchanged for vectors of eight.
  if (!rounds && shape.store_vector > 2 && shape.store_vector != shape.vector()) return false;
  for (int a = 0; a < kSpatialAxes; ++a) {
    if (shape.output_step(a) % shape.span[a] != 0) return false;  // the taps of all blocks lie alike
    if (shape.kernel[a] >= kMostTaps) return false;
  }
  if (shape.all_plane_groups() * shape.all_backs() * shape.all_slots() > kMostPlaces) return false;
  long long strides[5];
  std::copy(problem.weight_strides.begin(), problem.weight_strides.end(), strides);
  if (shape.gradient) std::swap(strides[0], strides[1]);
  if (strides[0] != 1 && strides[1] != 1) return false;
  shape.weight_boxes = strides[1] == 1 ? WeightBoxes::of_rows : WeightBoxes::of_sums;
  if (rounds && shape.weight_boxes != WeightBoxes::of_rows) return false;
  shape.packed = false;
  return can_map(weight_boxes_of(shape, problem.groups, strides));
}

}  // namespace tconv::cuda
