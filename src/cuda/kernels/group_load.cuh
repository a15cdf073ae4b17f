// What the kernels of small groups share: where a block's box lies, and how it comes to shared memory.
//
// The config before this file states Element (F32, F16 or BF16) and kShape.
#pragma once

#include "group_params.cuh"
#include "ptx.cuh"
#include "types.cuh"

using Storage = Element::Storage;
using tconv_device::i64;

constexpr int kWarps = kGroupThreads / 32;

struct GroupTile {
  int sample;
  int first[3];  // pixel along depth, height, width

  __device__ __forceinline__ GroupTile(const GroupParams& p, int index) {
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      first[axis] = index % p.tiles[1 + axis] * kShape.tile[axis];
      index /= p.tiles[1 + axis];
    }
    sample = index;
  }
};

// What tensor cores see of a value: halves are exact in TF32.
__device__ __forceinline__ float operand(Storage value) {
  if constexpr (sizeof(Storage) == 4) return __uint_as_float(ptx::round_to_tf32(value));
  return Element::load(value);
}

__device__ __forceinline__ bool is_inside(int index, int size) {
  return static_cast<unsigned>(index) < static_cast<unsigned>(size);
}

// From a pixel to the next one of its row.
__device__ __forceinline__ i64 column_stride(const i64 (&strides)[5]) { return kShape.last ? strides[4] : 1; }

// Eight channels of a pixel that are neighbours in memory.
struct alignas(16) Octet {
  Storage channel[8];

  __device__ __forceinline__ void load(const Storage* first, bool aligned) {
    if (aligned) {
      *this = *reinterpret_cast<const Octet*>(first);
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) channel[i] = first[i];
  }
};

// Where a block's box begins in the output's gradient.
struct BoxPlace {
  int begin[3];
  const Storage* first;  // of the group's first channel; may lie outside of the tensor

  __device__ __forceinline__ BoxPlace(const GroupParams& p, const GroupTile& tile, int group) {
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) begin[axis] = tile.first[axis] * kShape.stride[axis] - p.pad[axis];
    first = static_cast<const Storage*>(p.output) + tile.sample * p.output_strides[0] +
            static_cast<i64>(group) * kShape.out_channels * p.output_strides[1] + begin[0] * p.output_strides[2] +
            begin[1] * p.output_strides[3] + begin[2] * column_stride(p.output_strides);
  }
  // The lead of a row, modulo 4, of a channel modulo 4 and whatever depth and height in the box.
  __device__ __forceinline__ int lead(const GroupParams& p, int channel, int d, int h) const {
    return static_cast<int>(reinterpret_cast<unsigned long long>(first) / 4) + channel * low(p.output_strides[1]) +
           d * low(p.output_strides[2]) + h * low(p.output_strides[3]);
  }
  static __device__ __forceinline__ int low(i64 stride) { return kShape.same_lead ? 0 : static_cast<int>(stride) & 3; }
};

// Elements of a row's lead, out of what BoxPlace::lead says or sums of it.
__device__ __forceinline__ int lead_words(int sum) { return kShape.copies ? sum & 3 : 0; }

// A word of the box as a factor: rows that threads have loaded are rounded.
__device__ __forceinline__ unsigned box_word(const float* word) {
  return kShape.copies ? ptx::round_to_tf32(*word) : __float_as_uint(*word);
}

// Starts the copies of the box, zeros outside, and in front of the first element of a row whatever is there. A warp
// takes channels: with all lanes pieces of a row, for which there is little to compute, and what is left of several
// rows of a plane at once, or of all rows together.
__device__ __forceinline__ void copy_box(const GroupParams& p, const BoxPlace& place, const float* box) {
  constexpr int kRowCopies = kShape.row_pitch() / 4;
  constexpr int kWhole = kRowCopies / 32 * 32;
  constexpr int kRest = kRowCopies - kWhole;
  constexpr int kDivisor = kRest > 0 ? kRest : 1;  // what is left out without a rest must compile, too
  constexpr int kUnrolledRows = kShape.box(1) <= 8 ? kShape.box(1) : 4;
  const int lane = threadIdx.x % 32;
  const int first_column = -place.begin[2];
  const int end_column = p.output_size[2] - place.begin[2];
  // One copy of a row, to its place in shared memory.
  const auto copy = [&](unsigned row, const Storage* line, bool exists, int piece) {
    const int column = piece * 4 - lead_words(static_cast<int>(reinterpret_cast<unsigned long long>(line) / 4));
    const int wanted = exists && column + 4 > first_column ? max(0, min(4, end_column - column)) : 0;
    ptx::copy_16_async(row + piece * 16, line + column, wanted * 4);
  };
#pragma unroll 1
  for (int channel = threadIdx.x / 32; channel < kShape.out_channels; channel += kWarps) {
    const unsigned target = ptx::shared_address(box + kShape.channel_place(channel));
    const Storage* const source = place.first + channel * p.output_strides[1];
    if constexpr (kWhole > 0) {
      const Storage* plane = source;
      unsigned row = target;
#pragma unroll 1
      for (int d = 0; d < kShape.box(0); ++d, plane += p.output_strides[2]) {
        const bool plane_exists = is_inside(place.begin[0] + d, p.output_size[0]);
        const Storage* line = plane;
#pragma unroll kUnrolledRows
        for (int h = 0; h < kShape.box(1); ++h, line += p.output_strides[3], row += kShape.row_pitch() * 4) {
          const bool exists = plane_exists && is_inside(place.begin[1] + h, p.output_size[1]);
#pragma unroll
          for (int piece = 0; piece < kWhole; piece += 32) copy(row, line, exists, piece + lane);
        }
      }
    }
    if constexpr (kRest > 0 && kRest * kShape.box(1) >= 32) {
      constexpr int kAtOnce = 32 / kDivisor;
      const int below = lane / kDivisor;
      const Storage* plane = source + below * p.output_strides[3];
      const unsigned first_row = target + below * kShape.row_pitch() * 4;
#pragma unroll 1
      for (int d = 0; d < kShape.box(0); ++d, plane += p.output_strides[2]) {
        const bool plane_exists = is_inside(place.begin[0] + d, p.output_size[0]);
        const Storage* line = plane;
#pragma unroll 4
        for (int h = 0; h < kShape.box(1); h += kAtOnce, line += kAtOnce * p.output_strides[3]) {
          const bool exists = plane_exists && is_inside(place.begin[1] + h + below, p.output_size[1]);
          if (below < kAtOnce && h + below < kShape.box(1))
            copy(first_row + (d * kShape.box(1) + h) * kShape.row_pitch() * 4, line, exists, kWhole + lane % kDivisor);
        }
      }
    } else if constexpr (kRest > 0) {
#pragma unroll 2
      for (int i = lane; i < kShape.box_rows() * kRest; i += 32) {
        const int row = i / kDivisor;
        const int d = row / kShape.box(1);
        const int h = row % kShape.box(1);
        const bool exists =
            is_inside(place.begin[0] + d, p.output_size[0]) && is_inside(place.begin[1] + h, p.output_size[1]);
        copy(target + row * kShape.row_pitch() * 4, source + d * p.output_strides[2] + h * p.output_strides[3], exists,
             kWhole + i % kDivisor);
      }
    }
  }
  ptx::commit_copies();
}

// Once all threads' copies are there: zeros for what a copy brought in front of a row.
__device__ __forceinline__ void finish_copies(const GroupParams& p, const BoxPlace& place, float* box) {
  ptx::wait_for_copies<0>();
  __syncthreads();
  if (place.begin[2] >= 0) return;
  for (int row = threadIdx.x; row < kShape.out_channels * kShape.box_rows(); row += kGroupThreads) {
    const int channel = row / kShape.box_rows();
    const int lead = lead_words(place.lead(p, channel, row / kShape.box(1) % kShape.box(0), row % kShape.box(1)));
    float* const line = box + kShape.channel_place(channel) + row % kShape.box_rows() * kShape.row_pitch() + lead;
#pragma unroll
    for (int back = 1; back <= 3; ++back) {
      const int column = -place.begin[2] - back;
      if (column >= 0 && column < kShape.box(2)) line[column] = 0;
    }
  }
  __syncthreads();
}

// The box of the output's gradient, zeros outside: a warp takes rows, its lanes neighbours, with the loads of several
// rows under way, since nothing else hides what they take.
__device__ __forceinline__ void load_box(const GroupParams& p, const BoxPlace& place, float* box) {
  constexpr int kPieces = (kShape.box(2) + 31) / 32;
  constexpr int kLoads = kShape.weight ? 12 : 20;  // sums of weights take registers
  constexpr int kAtOnce = kPieces >= kLoads ? 1 : kLoads / kPieces;
  constexpr int kRows = kShape.out_channels * kShape.box_rows();
  const int lane = threadIdx.x % 32;
  const Storage* const source = place.first + lane;
#pragma unroll 1
  for (int first = threadIdx.x / 32; first < kRows; first += kWarps * kAtOnce) {
    Storage values[kAtOnce][kPieces] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = first + i * kWarps;
      const int channel = row / kShape.box_rows();
      const int d = row / kShape.box(1) % kShape.box(0);
      const int h = row % kShape.box(1);
      const bool exists = row < kRows && is_inside(place.begin[0] + d, p.output_size[0]) &&
                          is_inside(place.begin[1] + h, p.output_size[1]);
      const Storage* const line =
          source + channel * p.output_strides[1] + d * p.output_strides[2] + h * p.output_strides[3];
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const int column = piece * 32 + lane;
        if (exists && column < kShape.box(2) && is_inside(place.begin[2] + column, p.output_size[2]))
          values[i][piece] = line[piece * 32];
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = first + i * kWarps;
      if (row >= kRows) break;
      float* const target =
          box + kShape.channel_place(row / kShape.box_rows()) + row % kShape.box_rows() * kShape.row_pitch() + lane;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        if (piece * 32 + lane < kShape.box(2)) target[piece * 32] = operand(values[i][piece]);
      }
    }
  }
}

// The same where channels are neighbours: a thread takes eight of them at every 256th pixel of the box, with the loads
// of several pixels under way.
__device__ __forceinline__ void load_box_of_octets(const GroupParams& p, const BoxPlace& place, float* box) {
  constexpr int kPixels = kShape.box_rows() * kShape.box(2);
  constexpr int kPerThread = (kPixels + kGroupThreads - 1) / kGroupThreads;
  constexpr int kMost = sizeof(Storage) == 2 ? 6 : 4;
  constexpr int kAtOnce = kPerThread < kMost ? kPerThread : kMost;
#pragma unroll 1
  for (int octet = 0; octet < kShape.out_channels / 8; ++octet) {
    const Storage* const source = place.first + octet * 8;
#pragma unroll 1
    for (int first = threadIdx.x; first < kPixels; first += kGroupThreads * kAtOnce) {
      Octet octets[kAtOnce] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int pixel = first + i * kGroupThreads;
        const int w = pixel % kShape.box(2);
        const int h = pixel / kShape.box(2) % kShape.box(1);
        const int d = pixel / kShape.box(2) / kShape.box(1);
        const bool exists = pixel < kPixels && is_inside(place.begin[0] + d, p.output_size[0]) &&
                            is_inside(place.begin[1] + h, p.output_size[1]) &&
                            is_inside(place.begin[2] + w, p.output_size[2]);
        if (exists) {
          octets[i].load(source + d * p.output_strides[2] + h * p.output_strides[3] + w * p.output_strides[4],
                         p.aligned != 0);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int pixel = first + i * kGroupThreads;
        if (pixel >= kPixels) break;
        static_assert(!kShape.last ||
                      kShape.row_pitch() == kShape.box(2));  // so that pixels of a channel lie without gaps
#pragma unroll
        for (int c = 0; c < 8; ++c) box[kShape.channel_place(octet * 8 + c) + pixel] = operand(octets[i].channel[c]);
      }
    }
  }
}

// The box, for all threads.
__device__ __forceinline__ void bring_box(const GroupParams& p, const BoxPlace& place, float* box) {
  if constexpr (kShape.last) {
    load_box_of_octets(p, place, box);
  } else {
    load_box(p, place, box);
  }
  __syncthreads();
}
