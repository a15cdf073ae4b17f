// grad_weight of layers with one channel in a group: bound by memory. A thread walks over pixels of one channel and
// keeps a sum for every tap; the sums of a block, and then of the parts, are added up in a fixed order.
//
// The config before this file states
//   Element                    F32, F16 or BF16
//   kKernel, kStride, kDilation    int[3]
//   kAcross                    a DepthwiseAcross: neighbouring threads take neighbouring channels, rather than pixels
//   kStrip                     a DepthwiseStrip
#include "depthwise_weight_params.cuh"
#include "ptx.cuh"
#include "types.cuh"

using Storage = Element::Storage;
using tconv_device::i64;

constexpr int kTaps = kKernel[0] * kKernel[1] * kKernel[2];
constexpr int kChannels = kAcross.lanes > 0 ? kAcross.channels : 1;                                 // of a thread
constexpr int kAtOnce = kAcross.lanes > 0 ? kDepthwiseThreads / kAcross.lanes : kDepthwiseThreads;  // threads of one

// A pixel (or a strip of them) as sample, depth, row and column.
struct Pixel {
  int at[4];

  __device__ __forceinline__ Pixel(const DepthwiseWeightParams& p, int index) {
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      at[1 + axis] = index % p.steps[axis];
      index /= p.steps[axis];
    }
    at[0] = index;
  }
  __device__ __forceinline__ void advance(const DepthwiseWeightParams& p, const Pixel& step) {
    int carry = 0;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      at[1 + axis] += step.at[1 + axis] + carry;
      carry = at[1 + axis] >= p.steps[axis] ? 1 : 0;
      at[1 + axis] -= carry != 0 ? p.steps[axis] : 0;
    }
    at[0] += step.at[0] + carry;
  }
};

template <int kCount>
struct alignas(sizeof(Storage) * kCount) Vector {
  Storage value[kCount];
};

__device__ __forceinline__ float element_if(bool exists, const Storage* global) {
  unsigned word[1];
  ptx::load_if<sizeof(Storage)>(exists ? 1 : 0, global, word);
  if constexpr (sizeof(Storage) == 4) {
    return __uint_as_float(word[0]);
  } else {
    return Element::load(static_cast<Storage>(word[0]));
  }
}

__device__ __forceinline__ void add_pixel(const DepthwiseWeightParams& p, const Storage* input, const Storage* output,
                                          const Pixel& pixel, float (&sum)[kTaps][kChannels]) {
  const float value = Element::load(input[pixel.at[0] * p.input_strides[0] + pixel.at[1] * p.input_strides[2] +
                                          pixel.at[2] * p.input_strides[3] + pixel.at[3] * p.input_strides[4]]);
  int first[3];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) first[axis] = pixel.at[1 + axis] * kStride[axis] - p.pad[axis];
  const Storage* const sample = output + pixel.at[0] * p.output_strides[0];
#pragma unroll
  for (int d = 0; d < kKernel[0]; ++d) {
#pragma unroll
    for (int h = 0; h < kKernel[1]; ++h) {
      const int plane = first[0] + d * kDilation[0];
      const int row = first[1] + h * kDilation[1];
      const bool inside = static_cast<unsigned>(plane) < static_cast<unsigned>(p.output_size[0]) &&
                          static_cast<unsigned>(row) < static_cast<unsigned>(p.output_size[1]);
      const Storage* const line =
          sample + plane * p.output_strides[2] + row * p.output_strides[3] + first[2] * p.output_strides[4];
#pragma unroll
      for (int w = 0; w < kKernel[2]; ++w) {
        const int column = first[2] + w * kDilation[2];
        const bool exists = inside && static_cast<unsigned>(column) < static_cast<unsigned>(p.output_size[2]);
        sum[(d * kKernel[1] + h) * kKernel[2] + w][0] +=
            value * element_if(exists, line + w * kDilation[2] * p.output_strides[4]);
      }
    }
  }
}

// Columns first, first + 1, ... of a row: by vectors where all of them exist.
template <int kLoad, int kCount>
__device__ __forceinline__ void load_row(const Storage* row, int first, int width, float (&values)[kCount]) {
  if (first >= 0 && first + kCount <= width) {
    Vector<kLoad> loads[kCount / kLoad];
#pragma unroll
    for (int i = 0; i < kCount / kLoad; ++i)
      loads[i] = *reinterpret_cast<const Vector<kLoad>*>(row + first + i * kLoad);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = Element::load(loads[i / kLoad].value[i % kLoad]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const bool exists = static_cast<unsigned>(first + i) < static_cast<unsigned>(width);
    values[i] = exists ? Element::load(row[first + i]) : 0.0f;
  }
}

__device__ __forceinline__ Vector<kChannels> load_channels(const Storage* from) {
  if constexpr (kAcross.load == kChannels) {
    return *reinterpret_cast<const Vector<kChannels>*>(from);
  } else {
    Vector<kChannels> channels;
#pragma unroll
    for (int v = 0; v < kChannels; ++v) channels.value[v] = from[v];
    return channels;
  }
}

// Some cells of a row, a few channels of them: what they read lies a stride apart, and neighbouring cells share it.
template <int kCells>
__device__ __forceinline__ void add_cells(const DepthwiseWeightParams& p, const Storage* input, const Storage* output,
                                          const Pixel& place, float (&sum)[kTaps][kChannels]) {
  using Channels = Vector<kChannels>;
  const int first_cell = place.at[3] * kCells;
  const Storage* const row = input + place.at[0] * p.input_strides[0] + place.at[1] * p.input_strides[2] +
                             place.at[2] * p.input_strides[3] + first_cell * p.input_strides[4];
  Channels cells[kCells];
#pragma unroll
  for (int q = 0; q < kCells; ++q) {
    cells[q] = {};
    if (first_cell + q < p.input_size[2]) cells[q] = load_channels(row + q * p.input_strides[4]);
  }
  const int first[3] = {place.at[1] * kStride[0] - p.pad[0], place.at[2] * kStride[1] - p.pad[1],
                        first_cell * kStride[2] - p.pad[2]};
  const Storage* const sample = output + place.at[0] * p.output_strides[0];
  constexpr int kWindow = (kCells - 1) * kStride[2] + (kKernel[2] - 1) * kDilation[2] + 1;
#pragma unroll
  for (int d = 0; d < kKernel[0]; ++d) {
#pragma unroll
    for (int h = 0; h < kKernel[1]; ++h) {
      const int plane = first[0] + d * kDilation[0];
      const int line = first[1] + h * kDilation[1];
      const bool inside = static_cast<unsigned>(plane) < static_cast<unsigned>(p.output_size[0]) &&
                          static_cast<unsigned>(line) < static_cast<unsigned>(p.output_size[1]);
      const Storage* const from =
          sample + plane * p.output_strides[2] + line * p.output_strides[3] + first[2] * p.output_strides[4];
      Channels window[kWindow];
#pragma unroll
      for (int i = 0; i < kWindow; ++i) {
        window[i] = {};
        if (inside && static_cast<unsigned>(first[2] + i) < static_cast<unsigned>(p.output_size[2]))
          window[i] = load_channels(from + i * p.output_strides[4]);
      }
#pragma unroll
      for (int w = 0; w < kKernel[2]; ++w) {
#pragma unroll
        for (int q = 0; q < kCells; ++q) {
#pragma unroll
          for (int v = 0; v < kChannels; ++v) {
            sum[(d * kKernel[1] + h) * kKernel[2] + w][v] +=
                Element::load(cells[q].value[v]) * Element::load(window[q * kStride[2] + w * kDilation[2]].value[v]);
          }
        }
      }
    }
  }
}

template <int kCells>
__device__ __forceinline__ void add_strip(const DepthwiseWeightParams& p, const Storage* input, const Storage* output,
                                          const Pixel& place, float (&sum)[kTaps][kChannels]) {
  float cells[kCells];
  load_row<kStrip.input_load>(
      input + place.at[0] * p.input_strides[0] + place.at[1] * p.input_strides[2] + place.at[2] * p.input_strides[3],
      place.at[3] * kCells, p.input_size[2], cells);
  const int column = place.at[3] * kCells * kStride[2] - p.pad[2] - kStrip.lead;
  const Storage* const sample = output + place.at[0] * p.output_strides[0];
#pragma unroll
  for (int d = 0; d < kKernel[0]; ++d) {
#pragma unroll
    for (int h = 0; h < kKernel[1]; ++h) {
      const int plane = place.at[1] * kStride[0] - p.pad[0] + d * kDilation[0];
      const int row = place.at[2] * kStride[1] - p.pad[1] + h * kDilation[1];
      if (static_cast<unsigned>(plane) >= static_cast<unsigned>(p.output_size[0]) ||
          static_cast<unsigned>(row) >= static_cast<unsigned>(p.output_size[1])) {
        continue;
      }
      float window[kStrip.window()];
      load_row<kStrip.output_load>(sample + plane * p.output_strides[2] + row * p.output_strides[3], column,
                                   p.output_size[2], window);
#pragma unroll
      for (int w = 0; w < kKernel[2]; ++w) {
#pragma unroll
        for (int q = 0; q < kCells; ++q) {
          sum[(d * kKernel[1] + h) * kKernel[2] + w][0] +=
              cells[q] * window[kStrip.lead + q * kStride[2] + w * kDilation[2]];
        }
      }
    }
  }
}

__device__ __forceinline__ void store(const DepthwiseWeightParams& p, int part, int channel, int tap, float total) {
  if (p.parts > 1) {
    p.sums[(static_cast<i64>(part) * p.channels + channel) * kTaps + tap] = total;
    return;
  }
  const int w = tap % kKernel[2];
  const int h = tap / kKernel[2] % kKernel[1];
  const int d = tap / kKernel[2] / kKernel[1];
  static_cast<Storage*>(p.weight)[channel * p.weight_strides[0] + d * p.weight_strides[2] + h * p.weight_strides[3] +
                                  w * p.weight_strides[4]] = Element::store(total);
}

// Values that a thread holds at once, and so how many blocks share the registers of a multiprocessor.
constexpr int kWindowOfCells = (kAcross.cells - 1) * kStride[2] + (kKernel[2] - 1) * kDilation[2] + 1;
constexpr int kSingleHalves = sizeof(Storage) == 2 && kStrip.output_load == 1 ? 8 : 0;  // halves that come one by one
constexpr int kHeld = kAcross.lanes > 0  ? (kTaps + 2 * kAcross.cells + kWindowOfCells) * kChannels
                      : kStrip.cells > 0 ? kTaps + kStrip.window() + kStrip.cells + kSingleHalves
                                         : kTaps + 12;
constexpr int kBlocks = kAcross.lanes > 0 ? (kHeld <= 32   ? 3
                                             : kHeld <= 64 ? 2
                                                           : 1)
                        : kHeld <= 44     ? 4
                        : kHeld <= 64     ? 3
                                          : 2;

extern "C" __global__ void __launch_bounds__(kDepthwiseThreads, kBlocks)
    tconv_depthwise_weight(const __grid_constant__ DepthwiseWeightParams p) {
  constexpr int kWarps = kDepthwiseThreads / 32;
  ptx::let_next_kernel_start();
  const int thread = threadIdx.x;
  const int part = blockIdx.x % p.parts;
  const int block = blockIdx.x / p.parts;
  const int place = kAcross.lanes > 0 ? thread / kAcross.lanes : thread;  // among the threads of a channel
  const int channel = kAcross.lanes > 0 ? (block * kAcross.lanes + thread - place * kAcross.lanes) * kChannels : block;

  float sum[kTaps][kChannels] = {};
  const int begin = static_cast<int>(static_cast<i64>(p.pixels) * part / p.parts);
  const int end = static_cast<int>(static_cast<i64>(p.pixels) * (part + 1) / p.parts);
  if (channel < p.channels && place < kAtOnce) {
    const Storage* const input = static_cast<const Storage*>(p.input) + channel * p.input_strides[1];
    const Storage* const output = static_cast<const Storage*>(p.output) + channel * p.output_strides[1];
    const int first = begin + place;
    const Pixel step(p, kAtOnce);
    Pixel pixel(p, first);
#pragma unroll 1
    for (int index = first; index < end; index += kAtOnce) {
      if constexpr (kAcross.lanes > 0) {
        add_cells<kAcross.cells>(p, input, output, pixel, sum);
      } else if constexpr (kStrip.cells > 0) {
        add_strip<kStrip.cells>(p, input, output, pixel, sum);
      } else {
        add_pixel(p, input, output, pixel, sum);
      }
      pixel.advance(p, step);
    }
  }

  if constexpr (kAcross.lanes > 0) {
    // (tap, place, channel of the block), some taps at a time
    constexpr int kBlockChannels = kAcross.lanes > 0 ? kAcross.block_channels() : 1;  // an array, in either case
    constexpr int kTapSums = kAtOnce * kBlockChannels;
    constexpr int kMostTaps = 32 * 1024 / static_cast<int>(sizeof(float)) / kTapSums;
    constexpr int kBatch = kMostTaps < 1 ? 1 : kMostTaps < kTaps ? kMostTaps : kTaps;
    __shared__ float lanes_sums[kBatch * kTapSums];
#pragma unroll
    for (int first = 0; first < kTaps; first += kBatch) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
#pragma unroll
        for (int v = 0; v < kChannels; ++v) {
          if (first + i < kTaps && place < kAtOnce)
            lanes_sums[i * kTapSums + thread * kChannels + v] = sum[first + i < kTaps ? first + i : 0][v];
        }
      }
      __syncthreads();
#pragma unroll 1
      for (int index = thread; index < kBatch * kBlockChannels; index += kDepthwiseThreads) {
        const int tap = first + index / kBlockChannels;
        const int of_block = index % kBlockChannels;
        if (tap >= kTaps || block * kBlockChannels + of_block >= p.channels) continue;
        const float* const sums = lanes_sums + index / kBlockChannels * kTapSums + of_block;
        float total = 0;
#pragma unroll 8
        for (int other = 0; other < kAtOnce; ++other) total += sums[other * kBlockChannels];
        store(p, part, block * kBlockChannels + of_block, tap, total);
      }
      __syncthreads();
    }
  } else {
    const int lane = thread % 32;
    const int warp = thread / 32;
    __shared__ float warp_sums[kTaps][kWarps];
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      float total = sum[tap][0];
#pragma unroll
      for (int by = 16; by > 0; by /= 2) total += __shfl_xor_sync(~0u, total, by);
      if (lane == 0) warp_sums[tap][warp] = total;
    }
    __syncthreads();
    if (thread < kTaps) {
      float total = 0;
      for (int other = 0; other < kWarps; ++other) total += warp_sums[thread][other];
      store(p, part, channel, thread, total);
    }
  }
  ptx::wait_for_previous_kernel();  // whoever waits for this kernel waits for the one beside it, too
}

extern "C" __global__ void __launch_bounds__(kDepthwiseThreads)
    tconv_depthwise_weight_finish(const __grid_constant__ DepthwiseWeightParams p) {
  const int index = blockIdx.x * kDepthwiseThreads + threadIdx.x;
  if (index >= p.channels * kTaps) return;
  ptx::wait_for_previous_kernel();
  float total = 0;
#pragma unroll 8
  for (int part = 0; part < p.parts; ++part) total += p.sums[static_cast<i64>(part) * p.channels * kTaps + index];
  DepthwiseWeightParams whole = p;
  whole.parts = 1;
  store(whole, 0, index / kTaps, index % kTaps, total);
}
