// grad_weight of layers with one channel in a group: bound by memory. A thread walks over pixels of one channel and
// keeps a sum for every tap; the sums of a block, and then of the parts, are added up in a fixed order.
//
// The config before this file states
//   Element                    F32, F16 or BF16
//   kKernel, kStride, kDilation    int[3]
//   kAcross                    neighbouring threads take neighbouring channels, rather than pixels
//   kStrip                     a DepthwiseStrip
#include "depthwise_weight_params.cuh"
#include "ptx.cuh"
#include "types.cuh"

using Storage = Element::Storage;
using tconv_device::i64;

constexpr int kTaps = kKernel[0] * kKernel[1] * kKernel[2];
constexpr int kAtOnce = kAcross ? kDepthwiseThreads / kDepthwiseLanes : kDepthwiseThreads;  // threads of a channel

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
                                          const Pixel& pixel, float (&sum)[kTaps]) {
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
        sum[(d * kKernel[1] + h) * kKernel[2] + w] +=
            value * element_if(exists, line + w * kDilation[2] * p.output_strides[4]);
      }
    }
  }
}

template <int kCount>
struct alignas(sizeof(Storage) * kCount) Vector {
  Storage value[kCount];
};

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

template <int kCells>
__device__ __forceinline__ void add_strip(const DepthwiseWeightParams& p, const Storage* input, const Storage* output,
                                          const Pixel& place, float (&sum)[kTaps]) {
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
          sum[(d * kKernel[1] + h) * kKernel[2] + w] +=
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
constexpr int kHeld = kTaps + (kStrip.cells > 0 ? kStrip.window() + kStrip.cells : 12);
constexpr int kBlocks = kHeld <= 44 ? 4 : kHeld <= 64 ? 3 : 2;

extern "C" __global__ void __launch_bounds__(kDepthwiseThreads, kBlocks)
    tconv_depthwise_weight(const __grid_constant__ DepthwiseWeightParams p) {
  constexpr int kWarps = kDepthwiseThreads / 32;
  ptx::let_next_kernel_start();
  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int part = blockIdx.x % p.parts;
  const int block = blockIdx.x / p.parts;
  const int channel = kAcross ? block * kDepthwiseLanes + lane : block;

  float sum[kTaps] = {};
  const int begin = static_cast<int>(static_cast<i64>(p.pixels) * part / p.parts);
  const int end = static_cast<int>(static_cast<i64>(p.pixels) * (part + 1) / p.parts);
  if (channel < p.channels) {
    const Storage* const input = static_cast<const Storage*>(p.input) + channel * p.input_strides[1];
    const Storage* const output = static_cast<const Storage*>(p.output) + channel * p.output_strides[1];
    const int first = begin + (kAcross ? warp : thread);
    const Pixel step(p, kAtOnce);
    Pixel pixel(p, first);
#pragma unroll 1
    for (int index = first; index < end; index += kAtOnce) {
      if constexpr (kStrip.cells > 0) {
        add_strip<kStrip.cells>(p, input, output, pixel, sum);
      } else {
        add_pixel(p, input, output, pixel, sum);
      }
      pixel.advance(p, step);
    }
  }

  if (kAcross) {
    __shared__ float lanes_sums[kWarps][kDepthwiseLanes];
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      lanes_sums[warp][lane] = sum[tap];
      __syncthreads();
      if (warp == 0 && channel < p.channels) {
        float total = 0;
        for (int other = 0; other < kWarps; ++other) total += lanes_sums[other][lane];
        store(p, part, channel, tap, total);
      }
      __syncthreads();
    }
  } else {
    __shared__ float warp_sums[kTaps][kWarps];
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      float total = sum[tap];
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
