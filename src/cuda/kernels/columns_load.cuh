// What a block computes, and how its operands come to shared memory.
#pragma once

#include "columns_params.cuh"
#include "ptx.cuh"
#include "types.cuh"

using Storage = Element::Storage;
using tconv_device::i64;

constexpr int kThreads = kShape.threads();
constexpr int kVector = kShape.vector();

struct ColumnsBlock {
  int group;
  int first_channel;  // of the group
  int channels;       // that exist
  int residue[3];     // of the phase, if a block has one
  int first_q;        // of the box, along its axis
  int first_input;    // cell of the box, along its axis
  int sample;
  int samples;  // that exist

  __device__ __forceinline__ ColumnsBlock(const ColumnsParams& p, int index) {
    first_channel = index % p.channel_blocks * kShape.block_channels;
    channels = min(kShape.block_channels, kShape.out_channels - first_channel);
    index /= p.channel_blocks;
    group = index % p.groups;
    index /= p.groups;
#pragma unroll
    for (int a = 2; a >= 0; --a) {
      residue[a] = kShape.one_phase ? index % kShape.stride[a] : 0;
      if (kShape.one_phase) index /= kShape.stride[a];
    }
    constexpr int kAxis = kShape.box_axis;
    first_q = kShape.first_cell(kAxis) + (kShape.boxes > 1 ? index % kShape.boxes * kShape.box : 0);
    if (kShape.boxes > 1) index /= kShape.boxes;
    // All cells of a box are inside the image; where it is short of some, neighbours come instead.
    first_input = max(0, min(first_q - kShape.back(kAxis), kShape.input[kAxis] - kShape.box_input(kAxis)));
    sample = index * kShape.samples;
    samples = min(kShape.samples, p.batch - sample);
  }
};

// The tap of a slot along an axis: its number, or the phase's next.
__device__ __forceinline__ int first_tap(int a, int residue) {
  return kShape.dilation[a] == 1 ? residue : kFirstTaps[a * kMostStride + residue];
}
__device__ __forceinline__ int tap_of(const ColumnsBlock& block, int a, int slot) {
  return kShape.one_phase ? first_tap(a, block.residue[a]) + slot * kShape.tap_step[a] : slot;
}

// Copies the rows of a chunk's weights, zeros behind the last channel.
struct WeightCopies {
  static constexpr int kElements = kShape.weight_bytes / kShape.element_bytes;  // of a copy
  static constexpr int kRun = (kShape.taps_inner ? kShape.rows() : kShape.block_channels) / kElements;
  static constexpr int kCopies = kShape.rows() / kElements;  // of a row
  static constexpr int kItems = kShape.chunk * kCopies;

  const Storage* source;
  const ColumnsBlock& block;
  const ColumnsParams& p;

  __device__ __forceinline__ WeightCopies(const ColumnsParams& params, const ColumnsBlock& where)
      : block(where), p(params) {
    source = static_cast<const Storage*>(p.weight) + block.group * p.weight_group +
             block.first_channel * p.weight_strides[1];
  }

  // How far from the row's first weight a copy reads.
  __device__ __forceinline__ i64 offset(int copy) const {
    if constexpr (kShape.taps_inner) return copy * kElements;
    int slot = copy / kRun;
    i64 offset = copy % kRun * kElements;
#pragma unroll
    for (int a = 2; a >= 0; --a) {
      offset += tap_of(block, a, slot % kShape.slots(a)) * p.weight_strides[2 + a];
      slot /= kShape.slots(a);
    }
    return offset;
  }

  __device__ __forceinline__ void copy(int chunk, unsigned stage) const {
    const int run = block.channels * (kShape.taps_inner ? kShape.all_slots() : 1);
#pragma unroll 4
    for (int item = threadIdx.x; item < kItems; item += kThreads) {
      const int k = item / kCopies;
      const int copy = item % kCopies;
      const int channel = chunk * kShape.chunk + k;
      const bool exists = (kShape.channels % kShape.chunk == 0 || channel < kShape.channels) &&
                          (kShape.out_channels % kShape.block_channels == 0 || copy % kRun * kElements < run);
      const Storage* const from = exists ? source + channel * p.weight_strides[0] + offset(copy) : source;
      const unsigned to = stage + k * kShape.weight_pitch() + copy * kShape.weight_bytes;
      if constexpr (kShape.weight_bytes == 2) {
        unsigned word[1];
        ptx::load_if<2>(exists, from, word);
        ptx::store_shared_half(to, word[0]);
      } else {
        ptx::copy_async<kShape.weight_bytes>(to, from, exists);
      }
    }
  }
};

__device__ __forceinline__ float storage_of(unsigned word, float) { return __uint_as_float(word); }
__device__ __forceinline__ unsigned short storage_of(unsigned word, unsigned short) {
  return static_cast<unsigned short>(word);
}

// The channels of a cell as tensor cores see them.
__device__ __forceinline__ Cell packed(const float (&values)[4]) {
  Cell cell;
#pragma unroll
  for (int i = 0; i < 4; ++i) cell.word[i] = ptx::round_to_tf32(values[i]);
  return cell;
}
__device__ __forceinline__ Cell packed(const unsigned short (&values)[8]) {
  Cell cell;
#pragma unroll
  for (int i = 0; i < 4; ++i) cell.word[i] = values[2 * i] | static_cast<unsigned>(values[2 * i + 1]) << 16;
  return cell;
}

// The cells of a chunk as [slab][cell][16 bytes of channels], zeros behind the last channel. Either asynchronous
// copies, or loads that wait in registers until the slot in shared memory is free.
struct CellLoads {
  static constexpr int kCells = kShape.padded_cells();
  static constexpr int kAll = kShape.slabs() * kCells;
  static constexpr int kItems = (kAll + kThreads - 1) / kThreads;

  const Storage* source[kItems];
  unsigned exists;  // a bit for each
  i64 channel_step;
  Storage values[kShape.copies_cells ? 1 : kItems][kVector];

  // Neighbouring threads read neighbours in memory.
  static __device__ __forceinline__ int slab_of(int item) {
    return kShape.input_channels_last ? item % kShape.slabs() : item / kCells;
  }
  static __device__ __forceinline__ int cell_of(int item) {
    return kShape.input_channels_last ? item / kShape.slabs() : item % kCells;
  }

  __device__ __forceinline__ CellLoads(const ColumnsParams& p, const ColumnsBlock& block)
      : exists(0), channel_step(p.input_channel) {
    i64 inner = p.input_cell;
#pragma unroll
    for (int a = 2; a > kShape.box_axis; --a) inner *= kShape.input[a];
    const Storage* const first = static_cast<const Storage*>(p.input) + block.sample * p.input_batch +
                                 static_cast<i64>(block.group) * kShape.channels * p.input_channel +
                                 block.first_input * inner;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = threadIdx.x + i * kThreads;
      const int cell = cell_of(item);
      const int sample = cell / kShape.box_cells();
      const bool wanted = item < kAll && sample < block.samples;
      source[i] = wanted ? first + sample * p.input_batch + cell % kShape.box_cells() * p.input_cell +
                               slab_of(item) * kVector * p.input_channel
                         : first;
      exists |= static_cast<unsigned>(wanted) << i;
    }
  }

  // Channels of an item that exist in the next chunk, which is `chunk`.
  __device__ __forceinline__ int channels_left(int chunk, int i) const {
    return kShape.channels - chunk * kShape.chunk - slab_of(threadIdx.x + i * kThreads) * kVector;
  }

  // Chunks come one after the other.
  __device__ __forceinline__ void copy(int chunk, unsigned stage) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = threadIdx.x + i * kThreads;
      if (kAll % kThreads != 0 && item >= kAll) break;
      const bool wanted = (exists >> i & 1) != 0 && channels_left(chunk, i) > 0;
      ptx::copy_async<16>(stage + slab_of(item) * kShape.slab_pitch() + cell_of(item) * 16, source[i], wanted);
      if (wanted) source[i] += kShape.chunk;
    }
  }

  __device__ __forceinline__ void load(int chunk) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int left = (exists >> i & 1) != 0 ? channels_left(chunk, i) : 0;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        unsigned word[1];
        ptx::load_if<sizeof(Storage)>(v < left, source[i] + v * channel_step, word);
        values[i][v] = storage_of(word[0], Storage{});
      }
      source[i] += kShape.chunk * channel_step;
    }
  }

  __device__ __forceinline__ void store(unsigned stage) const {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = threadIdx.x + i * kThreads;
      if (kAll % kThreads != 0 && item >= kAll) break;
      ptx::store_16(stage + slab_of(item) * kShape.slab_pitch() + cell_of(item) * 16, packed(values[i]));
    }
  }
};
