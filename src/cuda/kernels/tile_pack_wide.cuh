// Weights into the order of tile_pack.cuh where the summed channels are neighbours in the tensor: cells are copied
// whole and rounded on the way. A block takes one chunk of one block of output channels.
#include "tile_element.cuh"
#include "tile_pack_params.cuh"
#include "tile_weights.cuh"

// Lanes of a warp take the slabs of a row, which are neighbours in the tensor, and some rows, which are neighbours in
// the copy.
constexpr int kSlabLanes = kShape.slabs < 8 ? kShape.slabs : 8;
constexpr int kRowLanes = 32 / kSlabLanes;

extern "C" __global__ void __launch_bounds__(kPackThreads, 4)
    tconv_tile_pack(const __grid_constant__ TileParams params, Cell* packed) {
  ptx::let_next_kernel_start();
  constexpr int kGroups = kShape.all_plane_groups();
  const int chunk = blockIdx.x;
  const int channel_block = blockIdx.y;
  const PlaneGroup planes = plane_group(chunk % kGroups);
  const int first_channel = chunk / kGroups * kShape.chunk_channels();
  const int first_out = channel_block * kShape.block_channels;
  const int outs = min(kShape.block_channels, kShape.out_channels - first_out);
  const Element* weight = static_cast<const Element*>(params.weight) + blockIdx.z * params.weight_group_stride +
                          first_out * params.weight_strides[1] + first_channel;
  const int block_row = blockIdx.z * kShape.channel_blocks() + channel_block;
  Cell* out = packed + (static_cast<long long>(block_row) * kShape.chunks() + chunk) * kShape.all_backs() *
                           kShape.slabs * kShape.rows();
  constexpr int kRowTurns = (kShape.rows() + kRowLanes - 1) / kRowLanes;
  constexpr int kSlabTurns = kShape.slabs / kSlabLanes;
  const int lane = threadIdx.x % 32;
#pragma unroll 4
  for (int turn = threadIdx.x / 32; turn < kShape.all_backs() * kSlabTurns * kRowTurns; turn += kPackThreads / 32) {
    const int row = turn % kRowTurns * kRowLanes + lane / kSlabLanes;
    const int slab = turn / kRowTurns % kSlabTurns * kSlabLanes + lane % kSlabLanes;
    const int back = turn / (kRowTurns * kSlabTurns);
    if (row >= kShape.rows()) continue;
    const int tap = gradient_tap_of(planes, back);
    const bool exists = row < outs && tap >= 0 && first_channel + slab * kShape.vector() < kShape.channels;
    const Element* from = weight + row * params.weight_strides[1] + slab * kShape.vector() +
                          tap / (kShape.kernel[2] * kShape.kernel[1]) * params.weight_strides[2] +
                          tap / kShape.kernel[2] % kShape.kernel[1] * params.weight_strides[3] +
                          tap % kShape.kernel[2] * params.weight_strides[4];
    // Rows beyond the block's channels only fill up the last tile; others have a place of their own.
    const int place = row < kShape.block_channels ? kShape.row_of_channel(row) : row;
    out[(back * kShape.slabs + slab) * kShape.rows() + place] = exists ? rounded(ptx::load_16(from)) : Cell{};
  }
  // What follows the last stage of all is copied with it.
  if (kShape.packed_tail_bytes() > 0 && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) {
    Cell* tail =
        packed + static_cast<long long>(params.groups) * kShape.channel_blocks() * (kShape.packed_bytes() / 16);
    for (int i = threadIdx.x; i < kShape.packed_tail_bytes() / 16; i += kPackThreads) tail[i] = Cell{};
  }
}
