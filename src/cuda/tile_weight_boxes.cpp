// Boxes of weights that the copy engine brings out of the tensor itself: which problems have them, and how they lie.
#include <algorithm>

#include "cuda/tile_cost.h"
#include "cuda/tile_cuts.h"

namespace tconv::cuda {
namespace {

TensorBoxes gradient_boxes(const TileShape& shape, long long groups, long long row_stride) {
  const long long rows = groups * shape.out_channels;
  const long long depth = static_cast<long long>(shape.channels) * shape.kernel[0] * shape.kernel[1] * shape.kernel[2];
  if (shape.reordered_rows() == 1) {
    return {.element_bytes = shape.element_bytes,
            .sizes = {depth, rows, 1, 1, 1},
            .strides = {row_stride, 0, 0, 0},
            .box = {shape.chunk_channels(), shape.rows(), 1, 1, 1}};
  }
  // row_of_channel: pairs of neighbours, of four threads, then the other pairs of their vectors.
  const int vector = shape.store_vector;
  return {.element_bytes = shape.element_bytes,
          .sizes = {depth, 2, 4, vector / 2, rows / (4 * vector)},
          .strides = {row_stride, vector * row_stride, 2 * row_stride, 4 * vector * row_stride},
          .box = {shape.chunk_channels(), 2, 4, vector / 2, shape.rows() / (4 * vector)}};
}

TensorBoxes forward_boxes(const TileShape& shape, long long groups, const long long (&strides)[5]) {
  return {.element_bytes = shape.element_bytes,
          .sizes = {shape.out_channels, shape.kernel[2], shape.kernel[1], shape.kernel[0], groups * shape.channels},
          .strides = {strides[4], strides[3], strides[2], strides[0]},
          .box = {shape.weight_run(), 1, 1, 1, shape.chunk_channels()}};
}

// Each tap's channels are whole chunks, side by side in memory.
bool has_gradient_boxes(const TileShape& shape, const Problem& problem) {
  const Strides& strides = problem.weight_strides;
  bool one_tap = true;
  for (const Axis& axis : problem.axes) one_tap = one_tap && axis.kernel == 1;
  if (strides[1] != 1 || shape.channels % shape.chunk_channels() != 0) return false;
  return one_tap || (has_dense_taps(problem) && strides[4] == shape.channels);
}

bool has_forward_boxes(const TileShape& shape, const Problem& problem) {
  constexpr int kMostPlaces = 4096;  // in constant memory
  constexpr int kMostTaps = 1 << 10;
  // Words of fp32 would have to be rounded and turned on their way: that was slower than loads by threads.
  if (shape.element_bytes != 2 || problem.weight_strides[1] != 1 || shape.block_channels % 16 != 0) return false;
  // Sums have the order of the tensor, and are exchanged for vectors of eight channels.
  if (shape.store_vector > 2 && shape.store_vector != shape.vector()) return false;
  for (const int taps : shape.kernel) {
    if (taps >= kMostTaps) return false;
  }
  return taps_lie_alike(shape) && shape.all_backs() * shape.all_slots() <= kMostPlaces;
}

}  // namespace

TensorBoxes weight_boxes_of(const TileShape& shape, long long groups, const long long (&strides)[5]) {
  return shape.gradient ? gradient_boxes(shape, groups, strides[1]) : forward_boxes(shape, groups, strides);
}

bool set_weight_boxes(TileShape& shape, const Problem& problem, bool aligned) {
  if (!shape.tensor_copies || !aligned || shape.splits() || shape.folds()) return false;
  if (!(shape.gradient ? has_gradient_boxes(shape, problem) : has_forward_boxes(shape, problem))) return false;
  shape.packed = false;
  shape.weight_boxes = true;
  return true;
}

bool fits_weight_boxes(const TileShape& shape, const Problem& problem, const DeviceProperties& device) {
  // Two warps round what a block reads: not as fast as many cells are multiplied with many rows, tile after tile.
  // (Packed copies for residues that differ in taps have gaps.)
  const int most_rounded_rows = shape.even_planes() ? 96 : 128;
  constexpr int kMostRoundedWaves = 2;
  constexpr int kTurn = 64;  // vectors that these warps take at once
  if (shape.rounds_boxes() && (shape.weight_back_pitch() % kTurn != 0 || shape.rows() > most_rounded_rows ||
                               tile_blocks(shape, problem) > kMostRoundedWaves * device.multiprocessors))
    return false;
  if (shape.gradient && (shape.rows() != shape.block_channels || shape.out_channels % shape.reordered_rows() != 0 ||
                         shape.rows() % shape.reordered_rows() != 0))
    return false;
  long long strides[5];
  std::copy(problem.weight_strides.begin(), problem.weight_strides.end(), strides);
  if (shape.gradient) std::swap(strides[0], strides[1]);
  return can_map(weight_boxes_of(shape, problem.groups, strides));
}

}  // namespace tconv::cuda
