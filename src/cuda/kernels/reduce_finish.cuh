// The second kernel of grad_weight on tensor cores: adds up the parts of each weight, always in the same order. The
// config before this file defines Element, kShape and kPieces: threads that share the parts of a weight.
#include "reduce_params.cuh"
#include "tile_element.cuh"

constexpr int kLanes = kFinishThreads / kPieces;
constexpr int kWidth = kShape.kernel[2];
constexpr int kTogether = kWidth <= 8 ? kWidth : 4;  // neighbouring taps of a thread

extern "C" __global__ void __launch_bounds__(kFinishThreads)
    tconv_reduce_finish(const __grid_constant__ ReduceParams params) {
  __shared__ float pieces[kPieces > 1 ? kPieces : 1][kTogether][kLanes];
  const int lane = threadIdx.x % kLanes;
  const int piece = threadIdx.x / kLanes;

  // Neighbouring lanes take neighbouring columns, as the parts lie; a thread takes taps that are neighbours in the
  // weight.
  constexpr int kWidths = (kWidth + kTogether - 1) / kTogether;
  long long rest = static_cast<long long>(blockIdx.x) * kLanes + lane;
  const int column = static_cast<int>(rest % kShape.columns);
  rest /= kShape.columns;
  const int first = static_cast<int>(rest % kWidths) * kTogether;
  rest /= kWidths;
  const int h = static_cast<int>(rest % kShape.kernel[1]);
  rest /= kShape.kernel[1];
  const int d = static_cast<int>(rest % kShape.kernel[0]);
  rest /= kShape.kernel[0];
  const int row = static_cast<int>(rest % kShape.rows);
  const int group = static_cast<int>(rest / kShape.rows);
  const bool exists = group < params.groups;

  int tile =
      (group * params.row_blocks + row / kShape.block_rows()) * params.column_blocks + column / kShape.block_columns();
  tile = (tile * params.tap_blocks[0] + d / kShape.taps[0]) * params.tap_blocks[1] + h / kShape.taps[1];
  const long long part_sums = static_cast<long long>(reduce_tiles(params)) * kShape.block_rows() * kShape.block_sums();

  ptx::wait_for_previous_kernel();
  float total[kTogether] = {};
  if (exists) {
    int at[kTogether];  // among the sums of a part, from the first tap's tile
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int w = min(first + i, kWidth - 1);
      at[i] =
          w / kShape.taps[2] * kShape.block_rows() * kShape.block_sums() +
          kShape.sum_of(column % kShape.block_columns(), d % kShape.taps[0], h % kShape.taps[1], w % kShape.taps[2]);
    }
    const float* sums = params.sums + (static_cast<long long>(tile) * params.tap_blocks[2] * kShape.block_rows() +
                                       row % kShape.block_rows()) *
                                          kShape.block_sums();
    const int begin = params.parts * piece / kPieces;
    const int end = params.parts * (piece + 1) / kPieces;
    sums += begin * part_sums;
#pragma unroll 2
    for (int part = begin; part < end; ++part) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) total[i] += sums[at[i]];
      sums += part_sums;
    }
  }
  if constexpr (kPieces > 1) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i) pieces[piece][i][lane] = total[i];
    __syncthreads();
    if (piece > 0) return;
#pragma unroll
    for (int other = 1; other < kPieces; ++other) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) total[i] += pieces[other][i][lane];
    }
  }
  if (!exists) return;
  const long long (&stride)[6] = params.weight_strides;
  Element* const weight = static_cast<Element*>(params.weight) + group * stride[0] + row * stride[1] +
                          column * stride[2] + d * stride[3] + h * stride[4];
#pragma unroll
  for (int i = 0; i < kTogether; ++i) {
    if (first + i < kWidth) weight[(first + i) * stride[5]] = to_storage(total[i], Element());
  }
}
