// Weights into the order in which the blocks of tile_block.cuh read them: [block row][chunk][back][slab][row][vector].
//
// A block takes the weights of a few input channels (one cell's vector) and of one block of output channels: read as they
// lie in memory, written as cells. kStaged is false where they don't fit shared memory; they are then read in place.
#include "tile_element.cuh"
#include "tile_weights.cuh"

constexpr int kTaps = kShape.kernel[0] * kShape.kernel[1] * kShape.kernel[2];

extern "C" __global__ void __launch_bounds__(kPackThreads) tconv_tile_pack(const __grid_constant__ TileParams params, Cell* packed) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  Element* staged = reinterpret_cast<Element*>(shared_memory);  // [vector][output channel][tap]
  constexpr int kVector = kShape.vector();
  constexpr int kPlane = pack_plane(kShape);
  const int slab = blockIdx.x;  // of the group's channels, chunks included
  const int channel_block = blockIdx.y;
  const int group = blockIdx.z;
  const int first_channel = slab * kVector;
  const int first_out = channel_block * kShape.block_channels;
  const Element* weight = static_cast<const Element*>(params.weight) +
                          (group * static_cast<long long>(kShape.channels) + first_channel) * params.weight_strides[0] +
                          first_out * params.weight_strides[1];
  const auto load = [&](int v, int out_channel, int tap) {
    const bool exists = first_channel + v < kShape.channels && first_out + out_channel < kShape.out_channels;
    const int taps[3] = {tap / (kShape.kernel[2] * kShape.kernel[1]), tap / kShape.kernel[2] % kShape.kernel[1],
                         tap % kShape.kernel[2]};
    return exists ? weight[v * params.weight_strides[0] + out_channel * params.weight_strides[1] +
                           taps[0] * params.weight_strides[2] + taps[1] * params.weight_strides[3] +
                           taps[2] * params.weight_strides[4]]
                  : Element(0);
  };
  if constexpr (kStaged) {
    // Neighbouring threads read neighbours in memory, whichever dimension lies closest.
    const bool taps_first = params.weight_strides[1] != 1 || kTaps == 1;
    const bool inputs_first = params.weight_strides[0] < params.weight_strides[1];
    for (int i = threadIdx.x; i < kVector * kShape.block_channels * kTaps; i += kPackThreads) {
      int tap = taps_first ? i % kTaps : i / kShape.block_channels % kTaps;
      int v = inputs_first ? i / kTaps % kVector : i / (kTaps * kShape.block_channels);
      int out_channel = inputs_first ? i / (kTaps * kVector) : i / kTaps % kShape.block_channels;
      if (!taps_first) {
        out_channel = i % kShape.block_channels;
        v = i / (kTaps * kShape.block_channels);
      }
      staged[v * kPlane + out_channel * kTaps + tap] = load(v, out_channel, tap);
    }
    __syncthreads();
  }

  const int residue_blocks = params.residue_blocks[0] * params.residue_blocks[1] * params.residue_blocks[2];
  constexpr int kCells = kShape.all_backs() * kShape.rows();
  const int chunk = slab / kShape.slabs;
  for (int i = threadIdx.x; i < residue_blocks * kCells; i += kPackThreads) {
    const int row = i % kShape.rows();
    const int back = i / kShape.rows() % kShape.all_backs();
    const int residue_block = i / kCells;
    const int block_row = (group * residue_blocks + residue_block) * params.channel_blocks + channel_block;
    const BlockRows rows = block_rows(params, block_row);
    const int slot = row / kShape.block_channels;
    const int slots[3] = {slot / (kShape.slots[2] * kShape.slots[1]), slot / kShape.slots[2] % kShape.slots[1],
                          slot % kShape.slots[2]};
    const int out_channel = row % kShape.block_channels;
    const int tap = slot < kShape.all_slots() ? tap_of(rows, slots, back) : -1;
    Element values[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      values[v] = tap < 0 ? Element(0) : kStaged ? staged[v * kPlane + out_channel * kTaps + tap] : load(v, out_channel, tap);
    }
    const long long stage = (static_cast<long long>(block_row) * kShape.chunks() + chunk) * kShape.all_backs() + back;
    packed[(stage * kShape.slabs + slab % kShape.slabs) * kShape.rows() + row] = make_cell(values);
  }
}
