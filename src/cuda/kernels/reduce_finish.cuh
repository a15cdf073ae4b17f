// The second kernel of grad_weight on tensor cores: adds up the parts of each weight, always in the same order. The
// config before this file defines Element and kShape.
#include "reduce_params.cuh"
#include "tile_element.cuh"

extern "C" __global__ void __launch_bounds__(kFinishLanes* kFinishPieces)
    tconv_reduce_finish(const __grid_constant__ ReduceParams params) {
  __shared__ float pieces[kFinishPieces][kFinishLanes];
  const int lane = threadIdx.x % kFinishLanes;
  const int piece = threadIdx.x / kFinishLanes;

  // Neighbouring lanes take neighbouring columns, as the parts lie.
  const long long index = static_cast<long long>(blockIdx.x) * kFinishLanes + lane;
  long long rest = index;
  const int column = static_cast<int>(rest % kShape.columns);
  rest /= kShape.columns;
  int tap[3];
#pragma unroll
  for (int axis = 2; axis >= 0; --axis) {
    tap[axis] = static_cast<int>(rest % kShape.kernel[axis]);
    rest /= kShape.kernel[axis];
  }
  const int row = static_cast<int>(rest % kShape.rows);
  const int group = static_cast<int>(rest / kShape.rows);
  const bool exists = group < params.groups;

  int tile =
      (group * params.row_blocks + row / kShape.block_rows()) * params.column_blocks + column / kShape.block_columns();
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) tile = tile * params.tap_blocks[axis] + tap[axis] / kShape.taps[axis];
  const long long part_sums = static_cast<long long>(reduce_tiles(params)) * kShape.block_rows() * kShape.block_sums();
  const float* const sums =
      params.sums +
      (static_cast<long long>(tile) * kShape.block_rows() + row % kShape.block_rows()) * kShape.block_sums() +
      kShape.sum_of(column % kShape.block_columns(), tap[0] % kShape.taps[0], tap[1] % kShape.taps[1],
                    tap[2] % kShape.taps[2]);

  float total = 0;
  const int begin = params.parts * piece / kFinishPieces;
  const int end = params.parts * (piece + 1) / kFinishPieces;
  if (exists) {
#pragma unroll 8
    for (int part = begin; part < end; ++part) total += sums[part * part_sums];
  }
  pieces[piece][lane] = total;
  __syncthreads();
  if (piece > 0 || !exists) return;
#pragma unroll
  for (int other = 1; other < kFinishPieces; ++other) total += pieces[other][lane];
  const long long (&stride)[6] = params.weight_strides;
  static_cast<Element*>(params.weight)[group * stride[0] + row * stride[1] + column * stride[2] + tap[0] * stride[3] +
                                       tap[1] * stride[4] + tap[2] * stride[5]] = to_storage(total, Element());
}
