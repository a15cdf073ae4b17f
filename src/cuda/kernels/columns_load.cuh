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

constexpr int power_of_two_from(int count) {
  int power = 1;
  while (power < count) power *= 2;
  return power;
}

// Copies the rows of chunk after chunk of weights, zeros behind the last channel. A thread has the same places of all
// rows, so that only a pointer moves.
struct WeightCopies {
  static constexpr int kElements = kShape.weight_bytes / kShape.element_bytes;  // of a copy
  static constexpr int kRun = (kShape.taps_inner ? kShape.rows() : kShape.block_channels) / kElements;
  static constexpr int kCopies = kShape.rows() / kElements;  // of a row
  static constexpr int kLanes = power_of_two_from(kCopies) < kThreads ? power_of_two_from(kCopies) : kThreads;
  static constexpr int kPasses = (kCopies + kLanes - 1) / kLanes;
  static constexpr int kRows = kThreads / kLanes;  // at once
  static constexpr int kTurns = (kShape.chunk + kRows - 1) / kRows;
  static constexpr bool kTail = kShape.channels % kShape.chunk != 0;

  const Storage* source[kPasses];
  bool exists[kPasses];
  int row;
  int lane;

  __device__ __forceinline__ WeightCopies(const ColumnsParams& p, const ColumnsBlock& block)
      : row(threadIdx.x / kLanes), lane(threadIdx.x % kLanes) {
    const Storage* const first = static_cast<const Storage*>(p.weight) + block.group * p.weight_group +
                                 block.first_channel * p.weight_strides[1] + row * p.weight_strides[0];
    const int run = block.channels * (kShape.taps_inner ? kShape.all_slots() : 1);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int copy = pass * kLanes + lane;
      exists[pass] = copy < kCopies && copy % kRun * kElements < run && row < kRows;
      source[pass] = exists[pass] ? first + offset(p, block, copy) : first;
    }
  }

  // How far from the row's first weight a copy reads.
  static __device__ __forceinline__ i64 offset(const ColumnsParams& p, const ColumnsBlock& block, int copy) {
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

  // Chunks come one after the other.
  __device__ __forceinline__ void copy(int chunk, unsigned stage) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const unsigned to = stage + row * kShape.weight_pitch() + (pass * kLanes + lane) * kShape.weight_bytes;
      if (pass * kLanes + lane < kCopies && (kThreads % kLanes == 0 || row < kRows)) {
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) {
          const int k = turn * kRows + row;
          if (kShape.chunk % kRows != 0 && k >= kShape.chunk) break;
          const bool wanted = exists[pass] && (!kTail || chunk * kShape.chunk + k < kShape.channels);
          copy_one(to + turn * kRows * kShape.weight_pitch(),
                   source[pass] + static_cast<i64>(turn * kRows) * kShape.weight_stride, wanted);
        }
      }
      source[pass] += static_cast<i64>(kShape.chunk) * kShape.weight_stride;
    }
  }

  static __device__ __forceinline__ void copy_one(unsigned to, const Storage* from, bool wanted) {
    if constexpr (kShape.weight_bytes == 2) {
      unsigned word[1];
      ptx::load_if<2>(wanted, from, word);
      ptx::store_shared_half(to, word[0]);
    } else {
      ptx::copy_async<kShape.weight_bytes>(to, from, wanted);
    }
  }
};

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

  static constexpr bool kTail = kShape.channels % kShape.chunk != 0;

  const Storage* source[kItems];
  unsigned exists;  // a bit for each
  Storage values[kShape.copies_cells ? 1 : kItems][kVector];

  // Neighbouring threads read neighbours in memory.
  static __device__ __forceinline__ int slab_of(int item) {
    return kShape.input_channels_last ? item % kShape.slabs() : item / kCells;
  }
  static __device__ __forceinline__ int cell_of(int item) {
    return kShape.input_channels_last ? item / kShape.slabs() : item % kCells;
  }

  __device__ __forceinline__ CellLoads(const ColumnsParams& p, const ColumnsBlock& block) : exists(0) {
    i64 inner = p.input_cell;
#pragma unroll
    for (int a = 2; a > kShape.box_axis; --a) inner *= kShape.input[a];
    const Storage* const first = static_cast<const Storage*>(p.input) + block.sample * p.input_batch +
                                 static_cast<i64>(block.group) * kShape.channels * kShape.channel_stride +
                                 block.first_input * inner;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = threadIdx.x + i * kThreads;
      const int cell = cell_of(item);
      const int sample = cell / kShape.box_cells();
      const bool wanted = item < kAll && sample < block.samples;
      source[i] = wanted ? first + sample * p.input_batch + cell % kShape.box_cells() * p.input_cell +
                               static_cast<i64>(slab_of(item) * kVector) * kShape.channel_stride
                         : first;
      exists |= static_cast<unsigned>(wanted) << i;
    }
  }

  __device__ __forceinline__ bool exists_at(int i) const { return (exists >> i & 1) != 0; }

  // Channels of an item that exist in a chunk.
  static __device__ __forceinline__ int channels_left(int chunk, int i) {
    return kShape.channels - chunk * kShape.chunk - slab_of(threadIdx.x + i * kThreads) * kVector;
  }

  // Chunks come one after the other.
  __device__ __forceinline__ void copy(int chunk, unsigned stage) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int item = threadIdx.x + i * kThreads;
      if (kAll % kThreads != 0 && item >= kAll) break;
      const bool wanted = exists_at(i) && (!kTail || channels_left(chunk, i) > 0);
      ptx::copy_async<16>(stage + slab_of(item) * kShape.slab_pitch() + cell_of(item) * 16, source[i], wanted);
      source[i] += kShape.chunk;
    }
  }

  __device__ __forceinline__ void load(int chunk) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) values[i][v] = 0;
      if (exists_at(i)) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          if (!kTail || v < channels_left(chunk, i))
            values[i][v] = source[i][static_cast<i64>(v) * kShape.channel_stride];
        }
      }
      source[i] += static_cast<i64>(kShape.chunk) * kShape.channel_stride;
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
