// The gradient of the input on CUDA cores, for few channels per group: true fp32, bound by bandwidth where the taps are
// few. See direct_gradient_params.cuh for what lies where.
//
// A block takes a tile of cells of one image and some channels. What it reads goes to shared memory once, chunk of
// channels after chunk; a thread holds a strip's inputs of one row in
// registers and uses them for all taps of the width and all its channels. The order of a sum (channels, then taps) is
// the same for every tile.
//
// The config before this file states kConfig and the table kTapRows: for each tap of depth and height, how far its row
// lies from that of tap 0.
#include "direct_gradient_element.cuh"

namespace direct_gradient {

constexpr int kThreads = kConfig.threads();
constexpr int kVector = kConfig.vector();
constexpr int kStrip = kConfig.strip;
constexpr int kChannels = kConfig.thread_channels;
struct alignas(16) Pack {
  Sum value[kVector];
};
// Neighbours that are stored together, in one instruction: of a struct the compiler makes a store for each member.
constexpr int kRunBytes = kConfig.store * kConfig.element_bytes();
union Run {
  Element value[kConfig.store];
  unsigned words[kRunBytes < 4 ? 1 : kRunBytes / 4];
};

// Which part of the problem a block computes.
struct Place {
  const Element* input;   // of the image and group, at the patch's first row and column: may point before the tensor
  const Element* weight;  // of the block's first channel
  Element* output;        // of the image and the block's first channel
  int first[3];           // input row or column of the patch's first cell
  int cell[3];            // first output cell
  int channels;           // of the block that exist
};

__device__ __forceinline__ Place place_of(const DirectGradientArguments& a) {
  Place place;
  int index = blockIdx.x;
#pragma unroll
  for (int axis = 2; axis >= 0; --axis) {
    place.cell[axis] = index % a.tiles[axis] * kConfig.axes[axis].cells;
    index /= a.tiles[axis];
    place.first[axis] = place.cell[axis] * kConfig.axes[axis].stride - a.pad[axis];
  }
  const int first_channel = index % a.channel_blocks * kConfig.block_channels();
  index /= a.channel_blocks;
  const int group = index % a.groups;
  const long long sample = index / a.groups;
  place.channels = min(kConfig.block_channels(), kConfig.out_channels - first_channel);
  place.input = static_cast<const Element*>(a.input) + sample * a.input_strides[0] +
                static_cast<long long>(group) * kConfig.channels * a.input_strides[1];
  place.weight =
      static_cast<const Element*>(a.weight) + group * a.weight_group_stride + first_channel * a.weight_strides[1];
  place.output = static_cast<Element*>(a.output) + sample * a.output_strides[0] +
                 (static_cast<long long>(group) * kConfig.out_channels + first_channel) * a.output_strides[1];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    place.input += place.first[axis] * a.input_strides[2 + axis];
    place.output += place.cell[axis] * a.output_strides[2 + axis];
  }
  return place;
}

// Where an item of a chunk comes from and goes to.
struct Item {
  const Element* from;
  int to;
  bool exists;
};

// Rows are cut into pieces of 32: a warp takes a piece, its lanes neighbours of a row.
constexpr int kPieces = (kConfig.axes[2].length() + 31) / 32;
constexpr int kRowItems = kConfig.chunk * kConfig.rows() * kPieces * 32;
constexpr int kChannelItems = kConfig.chunk * kConfig.rows() * kConfig.axes[2].length();

__device__ __forceinline__ Item input_item(const DirectGradientArguments& a, const Place& place, int first_channel,
                                           int index) {
  int channel = 0;
  int column = 0;
  int row = 0;
  if constexpr (kConfig.input_channels_last) {
    channel = index % kConfig.chunk;
    column = index / kConfig.chunk % kConfig.axes[2].length();
    row = index / (kConfig.chunk * kConfig.axes[2].length());
  } else {
    const int piece = index / 32;
    column = piece % kPieces * 32 + index % 32;
    row = piece / kPieces % kConfig.rows();
    channel = piece / (kPieces * kConfig.rows());
  }
  const int at[3] = {row / kConfig.axes[1].length(), row % kConfig.axes[1].length(), column};
  Item item;
  item.from = place.input + (first_channel + channel) * a.input_strides[1];
  item.exists = channel < kConfig.chunk && first_channel + channel < kConfig.channels &&
                column < kConfig.axes[2].length() && at[0] < kConfig.axes[0].length();
  int planes[3];
  int cells[3];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    planes[axis] = at[axis] % kConfig.axes[axis].planes;
    cells[axis] = at[axis] / kConfig.axes[axis].planes;
    const int local = cells[axis] * kConfig.axes[axis].stride + kConfig.axes[axis].residue_of(planes[axis]);
    item.exists =
        item.exists && static_cast<unsigned>(place.first[axis] + local) < static_cast<unsigned>(a.input_size[axis]);
    item.from += local * a.input_strides[2 + axis];
  }
  item.to = channel * kConfig.input_channel() + kConfig.row_of(planes[0], planes[1], cells[0], cells[1]) +
            planes[2] * kConfig.segment() + cells[2];
  return item;
}

__device__ __forceinline__ bool is_input(int index) {
  if (kConfig.input_channels_last) return index < kChannelItems;
  return index < kRowItems && index / 32 % kPieces * 32 + index % 32 < kConfig.axes[2].length();
}

// Inputs of a chunk into shared memory; zero where there are none.
__device__ __forceinline__ void load_inputs(const DirectGradientArguments& a, const Place& place, int first_channel,
                                            Sum* inputs) {
  constexpr int kItems = kConfig.input_channels_last ? kChannelItems : kRowItems;
#pragma unroll 8
  for (int index = threadIdx.x; index < kItems; index += kThreads) {
    const Item item = input_item(a, place, first_channel, index);
    const Sum value = item.exists ? widen(__ldg(item.from)) : Sum(0);
    if (is_input(index)) inputs[item.to] = value;
  }
}

__device__ __forceinline__ void load_weights(const DirectGradientArguments& a, const Place& place, int first_channel,
                                             Sum* weights) {
  constexpr int kTaps = kConfig.outer_taps() * kConfig.axes[2].kernel;
  constexpr int kItems = kConfig.chunk * kTaps * kConfig.block_channels();
#pragma unroll 4
  for (int item = threadIdx.x; item < kItems; item += kThreads) {
    // As they lie in a dense weight.
    const int tap = item % kTaps;
    const int channel = item / kTaps % kConfig.chunk;
    const int out_channel = item / (kTaps * kConfig.chunk);
    const int width = tap % kConfig.axes[2].kernel;
    const int outer = tap / kConfig.axes[2].kernel;
    const long long position = (first_channel + channel) * a.weight_strides[0] + out_channel * a.weight_strides[1] +
                               outer / kConfig.axes[1].kernel * a.weight_strides[2] +
                               outer % kConfig.axes[1].kernel * a.weight_strides[3] + width * a.weight_strides[4];
    const bool exists = first_channel + channel < kConfig.channels && out_channel < place.channels;
    Sum* const to = weights + out_channel / kChannels * kConfig.weight_part() + channel * kConfig.weight_channel() +
                    outer * kConfig.weight_row() + width * kChannels + out_channel % kChannels;
    *to = exists ? widen(__ldg(place.weight + position)) : Sum(0);
  }
}

// What each tap of the width reads: worked out once, by the front end, rather than in every product by the optimizer.
struct WidthTaps {
  int plane[kConfig.axes[2].kernel];
  int back[kConfig.axes[2].kernel];
};
constexpr WidthTaps width_taps() {
  WidthTaps taps{};
  for (int tap = 0; tap < kConfig.axes[2].kernel; ++tap) {
    taps.plane[tap] = kConfig.axes[2].plane_of(tap);
    taps.back[tap] = kConfig.axes[2].back_of(tap);
  }
  return taps;
}

// Adds one row of inputs times one row of weights. sums (cell, channel)
__device__ __forceinline__ void accumulate(Sum (&sums)[kStrip][kChannels], const Sum* row, const Sum* weights) {
  constexpr int kWindow = kConfig.window();
  constexpr int kPlanes = kConfig.axes[2].planes;
  Sum x[kPlanes][kWindow];
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) {
#pragma unroll
    for (int i = 0; i < kWindow; i += kVector) {
      const Sum* const from = row + plane * kConfig.segment() + i;
      if (i + 1 == kWindow) {  // one past the last vector
        x[plane][i] = from[0];
        break;
      }
      const Pack pack = *reinterpret_cast<const Pack*>(from);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        if (i + v < kWindow) x[plane][i + v] = pack.value[v];
      }
    }
  }
  constexpr WidthTaps kTaps = width_taps();
  Pack w;
#pragma unroll
  for (int tap = 0; tap < kConfig.axes[2].kernel; ++tap) {
#pragma unroll
    for (int channel = 0; channel < kChannels; ++channel) {
      const int at = tap * kChannels + channel;
      if (at % kVector == 0) w = reinterpret_cast<const Pack*>(weights)[at / kVector];
#pragma unroll
      for (int cell = 0; cell < kStrip; ++cell) {
        sums[cell][channel] += x[kTaps.plane[tap]][cell + kTaps.back[tap]] * w.value[at % kVector];
      }
    }
  }
}

// The sums of a strip; `cells` of them and `channels` channels exist.
__device__ __forceinline__ void store(const DirectGradientArguments& a, Element* output, int cells, int channels,
                                      const Sum (&sums)[kStrip][kChannels]) {
  constexpr int kStore = kConfig.store;
  const bool together = kStore > 1 && cells >= kStrip && reinterpret_cast<unsigned long long>(output) % kRunBytes == 0;
#pragma unroll
  for (int channel = 0; channel < kChannels; ++channel) {
    if (channel >= channels) break;
    Element* const row = output + channel * a.output_strides[1];
    if (together) {
#pragma unroll
      for (int cell = 0; cell < kStrip; cell += kStore) {
        Run run;
#pragma unroll
        for (int i = 0; i < kStore; ++i) run.value[i] = narrow(sums[cell + i][channel], Element());
        ptx::store_words(row + cell, run.words);
      }
    } else {
#pragma unroll
      for (int cell = 0; cell < kStrip; ++cell) {
        if (cell < cells) row[cell * a.output_strides[4]] = narrow(sums[cell][channel], Element());
      }
    }
  }
}

}  // namespace direct_gradient

extern "C" __global__ void __launch_bounds__(kConfig.threads(), kConfig.min_blocks)
    tconv_direct_gradient(const __grid_constant__ DirectGradientArguments a) {
  using namespace direct_gradient;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  ptx::let_next_kernel_start();
  Sum* const inputs = reinterpret_cast<Sum*>(shared_memory);
  const Place place = place_of(a);
  const int lane = threadIdx.x % kConfig.lanes();
  const int part = threadIdx.x / kConfig.lanes();
  const bool works = lane < kConfig.items();
  const int item = works ? lane : 0;
  const int width = item % kConfig.row_strips() * kStrip;
  const int height = item / kConfig.row_strips() % kConfig.axes[1].cells;
  const int depth = item / (kConfig.row_strips() * kConfig.axes[1].cells);

  Sum sums[kStrip][kChannels] = {};
#pragma unroll 1
  for (int chunk = 0; chunk < kConfig.chunks(); ++chunk) {
    if (chunk > 0) __syncthreads();
    load_inputs(a, place, chunk * kConfig.chunk, inputs);
    load_weights(a, place, chunk * kConfig.chunk, inputs + kConfig.input_count());
    __syncthreads();
    const int channels = min(kConfig.chunk, kConfig.channels - chunk * kConfig.chunk);
    const Sum* from = inputs + kConfig.row_of(0, 0, depth, height) + width;
    const Sum* with = inputs + kConfig.input_count() + part * kConfig.weight_part();
#pragma unroll 1
    for (int channel = 0; channel < channels; ++channel) {
#pragma unroll(kConfig.outer_taps() <= 4 ? kConfig.outer_taps() : 1)
      for (int tap = 0; tap < kConfig.outer_taps(); ++tap) {
        accumulate(sums, from + kTapRows[tap], with + tap * kConfig.weight_row());
      }
      from += kConfig.input_channel();
      with += kConfig.weight_channel();
    }
  }
  if (!works || place.cell[0] + depth >= a.output_size[0] || place.cell[1] + height >= a.output_size[1]) return;
  Element* const output = place.output + depth * a.output_strides[2] + height * a.output_strides[3] +
                          width * a.output_strides[4] + part * kChannels * a.output_strides[1];
  store(a, output, a.output_size[2] - place.cell[2] - width, place.channels - part * kChannels, sums);
}
