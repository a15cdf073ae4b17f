// Weights into the order in which the blocks of tile_block.cuh read them: [block row][chunk][back][slab][row][vector].
// Where factors are split, slabs of small parts follow those of big ones.
//
// A block takes the weights of a few input channels and of one block of output channels: read as they lie in memory,
// written as cells. Where they don't fit shared memory they are read in place, by several blocks. kDenseTaps: the taps
// lie one after the other. kRuns: so do the input channels, for each output channel, from a multiple of 16 bytes on if
// the tensor begins at one.
#include "split.cuh"
#include "tile_element.cuh"
#include "tile_weights.cuh"

constexpr bool kStaged = pack_slabs(kShape) > 0;
constexpr int kSlabs = kStaged ? pack_slabs(kShape) : 1;  // of a block
constexpr int kVector = kShape.vector();
constexpr int kIns = kSlabs * kVector;
constexpr int kTaps = kShape.kernel[0] * kShape.kernel[1] * kShape.kernel[2];

// Loads that a thread has under way; from sm_100 on the assembler would spill so many.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kLoadsAtOnce = 8;
#else
constexpr int kLoadsAtOnce = 16;
#endif

// Runs of the weights of a block's input channels, which wait as they lie.
constexpr int kReadTaps = kShape.kernel[0] * kShape.kernel[1] * kShape.window_taps;
constexpr int kRun = kIns / kShape.window * kReadTaps;
constexpr int kRunVector = 16 / static_cast<int>(sizeof(Element));
constexpr bool kTakesRuns = kRuns && kStaged && kRun % kRunVector == 0 && kShape.channels % kIns == 0 &&
                            (kShape.window == 1 || kIns % (2 * kVector) == 0);
constexpr int kRunPitch = kRun | 1;

// Where a tap of an input channel of the block is in its run; -1: beyond the last tap.
__device__ __forceinline__ int place_in_run(int in_channel, int tap) {
  const int channel = kShape.windowed(in_channel);
  const int column = tap % kShape.kernel[2] * kShape.window + channel % kShape.window;
  if (column >= kShape.window_taps) return -1;
  return channel / kShape.window * kReadTaps + tap / kShape.kernel[2] * kShape.window_taps + column;
}

__device__ __forceinline__ void put(Cell* out, const Cell& cell) {
  if constexpr (kShape.splits()) {
    const SplitCell split(cell);
    out[0] = split.big;
    out[kShape.slabs * kShape.rows()] = split.small;
  } else {
    out[0] = cell;
  }
}

// Four blocks per multiprocessor: without a number the assembler prefers occupancy and spills.
extern "C" __global__ void __launch_bounds__(kPackThreads, 4)
    tconv_tile_pack(const __grid_constant__ TileParams params, Cell* packed) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  ptx::let_next_kernel_start();
  Element* staged = reinterpret_cast<Element*>(shared_memory);  // [input channel][output channel][tap]
  constexpr int kRow = pack_row(kShape);
  constexpr int kPlane = pack_plane(kShape);
  constexpr int kParts = pack_parts(kShape);
  const int first_slab = blockIdx.x / kParts * kSlabs;  // of the group's channels, chunks included
  const int channel_block = blockIdx.y;
  const int group = blockIdx.z;
  const int first_channel = first_slab * kVector;
  const int first_out = channel_block * kShape.block_channels;
  const Element* weight = static_cast<const Element*>(params.weight) + group * params.weight_group_stride +
                          first_out * params.weight_strides[1];
  // Output channels that exist; the rest of a block is zeros.
  const int outs = min(kShape.block_channels, kShape.out_channels - first_out);
  const auto load = [&](int v, int out_channel, int tap) {
    const int channel = kShape.windowed(first_channel + v);
    const int column = tap % kShape.kernel[2] * kShape.window + channel % kShape.window;
    if (channel >= kShape.channels || out_channel >= outs || column >= kShape.window_taps) return Element(0);
    const long long position = kDenseTaps && kShape.window == 1
                                   ? tap * params.weight_strides[4]
                                   : tap / (kShape.kernel[2] * kShape.kernel[1]) * params.weight_strides[2] +
                                         tap / kShape.kernel[2] % kShape.kernel[1] * params.weight_strides[3] +
                                         column * params.weight_strides[4];
    return weight[channel / kShape.window * params.weight_strides[0] + out_channel * params.weight_strides[1] +
                  position];
  };
  if constexpr (kTakesRuns) {
    struct alignas(16) Vector {
      Element values[kRunVector];
    };
    const Element* const runs = weight + first_channel / kShape.window * params.weight_strides[0];
    const int rows = first_channel < kShape.channels ? outs : 0;
    if (reinterpret_cast<unsigned long long>(params.weight) % 16 == 0) {
      constexpr int kPieces = kRun / kRunVector;
#pragma unroll kLoadsAtOnce / 2
      for (int i = threadIdx.x; i < kShape.block_channels * kPieces; i += kPackThreads) {
        const int out_channel = i / kPieces;
        const int first = i % kPieces * kRunVector;
        Vector vector{};
        if (out_channel < rows)
          vector = *reinterpret_cast<const Vector*>(runs + out_channel * params.weight_strides[1] + first);
#pragma unroll
        for (int v = 0; v < kRunVector; ++v) staged[out_channel * kRunPitch + first + v] = vector.values[v];
      }
    } else {
      for (int i = threadIdx.x; i < kShape.block_channels * kRun; i += kPackThreads) {
        const int out_channel = i / kRun;
        staged[out_channel * kRunPitch + i % kRun] =
            out_channel < rows ? runs[out_channel * params.weight_strides[1] + i % kRun] : Element(0);
      }
    }
    __syncthreads();
  } else if constexpr (kStaged) {
    // Neighbouring threads read neighbours in memory: channels of either side, or taps and then whichever channels lie
    // closer.
    const bool outs_first = params.weight_strides[1] == 1 && kTaps > 1;
    const bool ins_before_taps = params.weight_strides[0] == 1 && kTaps > 1 && !outs_first;
    const bool ins_first = params.weight_strides[0] < params.weight_strides[1];
#pragma unroll kLoadsAtOnce
    for (int i = threadIdx.x; i < kIns * kShape.block_channels * kTaps; i += kPackThreads) {
      const int tap = outs_first ? i / kShape.block_channels % kTaps : ins_before_taps ? i / kIns % kTaps : i % kTaps;
      const int outer = i / kTaps;
      const int v = outs_first        ? i / (kTaps * kShape.block_channels)
                    : ins_before_taps ? i % kIns
                    : ins_first       ? outer % kIns
                                      : outer / kShape.block_channels;
      const int out_channel = outs_first                     ? i % kShape.block_channels
                              : ins_before_taps || ins_first ? outer / kIns
                                                             : outer % kShape.block_channels;
      staged[v * kPlane + out_channel * kRow + tap] = load(v, out_channel, tap);
    }
    __syncthreads();
  }

  // The last stage of the last block is copied whole: what follows it must be something, so that nothing uninitialised
  // is read.
  if (kShape.packed_tail_bytes() > 0 && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) {
    const int block_rows_count = params.groups * kShape.channel_blocks() * kShape.all_residue_blocks();
    Cell* tail = packed + block_rows_count * (kShape.packed_bytes() / 16);
    for (int i = threadIdx.x; i < kShape.packed_tail_bytes() / 16; i += kPackThreads) tail[i] = Cell{};
  }

  // A line is the output channels of one phase at one distance; a team of threads takes a line. (A gradient has one
  // phase, and lines for each group of planes.)
  constexpr int kAcross = !kStaged                      ? 1
                          : kShape.block_channels >= 32 ? 32
                          : kShape.block_channels >= 16 ? 16
                          : kShape.block_channels >= 8  ? 8
                                                        : 4;
  constexpr int kLines = kShape.all_backs() * kShape.all_slots();
  constexpr int kResidueBlocks = kShape.all_residue_blocks();
  constexpr int kGroups = kShape.all_plane_groups();
  constexpr int kChannelParts = kStaged ? 1 : kPackChannelParts;
  constexpr int kLineBlocks = kParts / kChannelParts;
  constexpr int kPartChannels = (kShape.block_channels + kChannelParts - 1) / kChannelParts;
  const int channel_part = blockIdx.x % kChannelParts;
  const int end = min((channel_part + 1) * kPartChannels, kShape.block_channels);
  const int first_line = (blockIdx.x / kChannelParts % kLineBlocks * kPackThreads + threadIdx.x) / kAcross;
  for (int line = first_line; line < kResidueBlocks * kGroups * kLines; line += kLineBlocks * kPackThreads / kAcross) {
    const int slot = line % kShape.all_slots();
    const int back = line / kShape.all_slots() % kShape.all_backs();
    const int block_row =
        (group * kResidueBlocks + line / (kLines * kGroups)) * kShape.channel_blocks() + channel_block;
    const int planes = line / kLines % kGroups;
    const int chunk = first_slab / kShape.slabs * kGroups + planes;
    const int slots[3] = {slot / (kShape.slots[2] * kShape.slots[1]), slot / kShape.slots[2] % kShape.slots[1],
                          slot % kShape.slots[2]};
    const int tap =
        kShape.gradient ? gradient_tap_of(plane_group(planes), back) : tap_of(block_rows(block_row), slots, back);
    const long long stage = (static_cast<long long>(block_row) * kShape.chunks() + chunk) * kShape.all_backs() + back;
    Cell* out = packed + (stage * kShape.weight_parts() * kShape.slabs + first_slab % kShape.slabs) * kShape.rows();
#pragma unroll
    for (int slab = 0; slab < kSlabs; ++slab) {
      for (int channel = channel_part * kPartChannels + threadIdx.x % kAcross; channel < end; channel += kAcross) {
        Element values[kVector];
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          const int in_channel = slab * kVector + v;
          if constexpr (kTakesRuns) {
            const int place = tap < 0 ? -1 : place_in_run(in_channel, tap);
            values[v] = place < 0 ? Element(0) : staged[channel * kRunPitch + place];
          } else {
            values[v] = tap < 0   ? Element(0)
                        : kStaged ? staged[in_channel * kPlane + channel * kRow + tap]
                                  : load(in_channel, channel, tap);
          }
        }
        put(out + slab * kShape.rows() + slot * kShape.block_channels + kShape.row_of_channel(channel),
            make_cell(values));
      }
      // Rows that only fill up the last tile.
      for (int row = kShape.all_slots() * kShape.block_channels + threadIdx.x % kAcross;
           slot == 0 && channel_part == 0 && row < kShape.rows(); row += kAcross) {
        put(out + slab * kShape.rows() + row, Cell{});
      }
    }
  }
}
