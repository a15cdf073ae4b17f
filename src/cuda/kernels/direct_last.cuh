// Transposed convolution of channels-last tensors with few channels in a group, forward and grad_input, bound by
// bandwidth where layers are depthwise.
//
// A thread owns a few channels, 16 bytes of them, and computes all outputs of a few cells of a row: neighbouring lanes
// own neighbouring channels, so that loads and stores are whole lines as they lie in memory. It reads its inputs, halo
// included, from global memory into registers; neighbours share the halo through the first-level cache. The weights of
// a block's channels are put into shared memory once, in the order in which threads read them; then the block goes from
// tile to tile without a barrier.
//
// The config before this file states
//   DirectType           F64, F32, F16 or BF16
//   TCONV_LAST_CONFIG    the initialiser of a LastConfig
// The code below is also compiled for the CPU by a test (TCONV_LAST_ON_CPU); kConfig and kGeometry are then variables,
// which is why sizes are said by `const int`, not `constexpr`. Included once per element type, so without guards.
#include "direct_last_params.cuh"

#ifndef TCONV_LAST_ON_CPU
#include "ptx.cuh"
#include "types.cuh"
constexpr LastConfig kConfig = TCONV_LAST_CONFIG;
constexpr LastGeometry kGeometry = last_geometry(kConfig);
constexpr int kUnroll = kConfig.unrolled != 0 ? 4096 : 1;  // of the rows of taps that a row of outputs has
using Element = DirectType::Storage;
using Accumulator = DirectType::Sum;
__device__ __forceinline__ Accumulator widen(Element value) { return DirectType::load(value); }
#endif

#include "direct_taps.cuh"

namespace direct_last {

using direct_taps::divide;
using tconv_device::i64;

#ifndef TCONV_LAST_ON_CPU
template <typename Value, int kCount>
struct alignas(kCount * sizeof(Value)) Vector {
  Value value[kCount];
};

// The word that moves `kBytes` in one instruction.
template <int kBytes>
struct Word {
  using Type = uint4;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<4> {
  using Type = unsigned;
};
template <>
struct Word<2> {
  using Type = unsigned short;
};

// Channels that lie together.
__device__ __forceinline__ void load_run(const Element* from, Element* values) {
  using Loaded = Word<kConfig.load* static_cast<int>(sizeof(Element))>::Type;
  union {
    Loaded word;
    Vector<Element, kConfig.load> run;
  } read;
  read.word = __ldg(reinterpret_cast<const Loaded*>(from));
#pragma unroll
  for (int i = 0; i < kConfig.load; ++i) values[i] = read.run.value[i];
}

__device__ __forceinline__ unsigned pack(F16, float low, float high) { return ptx::pack_f16(low, high); }
__device__ __forceinline__ unsigned pack(BF16, float low, float high) { return ptx::pack_bf16(low, high); }

// In one instruction: of a struct the compiler makes a store for each member.
template <typename Type, int kCount>
__device__ __forceinline__ void store_run(Type type, Element* to, const Accumulator* sums) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(Element));
  if constexpr (kBytes == 2) {
    *to = Type::store(sums[0]);
  } else {
    union {
      unsigned words[kBytes / 4];
      Element run[kCount];
    } write;
    if constexpr (sizeof(Element) == 2) {
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) write.words[i] = pack(type, sums[2 * i], sums[2 * i + 1]);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) write.run[i] = Type::store(sums[i]);
    }
    ptx::store_words(to, write.words);
  }
}
__device__ __forceinline__ void store_run(Element* to, const Accumulator* sums) {
  store_run<DirectType, kConfig.store>(DirectType{}, to, sums);
}

__device__ __forceinline__ void load_piece(const Accumulator* from, Accumulator* values) {
  const auto piece = *reinterpret_cast<const Vector<Accumulator, kGeometry.piece>*>(from);
#pragma unroll
  for (int i = 0; i < kGeometry.piece; ++i) values[i] = piece.value[i];
}
#endif

// The taps of an axis that serve an output of the thread's tile. Loops go over these alone: over all taps, the compiler
// would write products for each and find out later that most of them are none.
__device__ __forceinline__ int served_taps(const DirectAxis axis, const DirectSpan span) {
  return kConfig.gradient != 0 ? axis.kernel : span.most_taps;
}
__device__ __forceinline__ int served_tap(const DirectAxis axis, const DirectSpan span, int output, int index) {
  if (kConfig.gradient != 0) return index;
  const int reach = output % axis.stride + axis.pad_residue;
  return reach / span.common * span.inverse % span.tap_step + index * span.tap_step;
}
// The output of a cell that a tap serves.
__device__ __forceinline__ int served_output(const DirectAxis axis, int cell, int tap) {
  return kConfig.gradient != 0 ? cell : cell * axis.stride + direct_taps::residue_of(axis, tap);
}

// The input of the window that a tap of an axis brings to an output of the thread's tile; negative: none.
__device__ __forceinline__ int source_of(const DirectAxis axis, int low, int output, int tap) {
  if (kConfig.gradient != 0) return output * axis.stride + tap * axis.dilation;
  if (tap >= axis.kernel || direct_taps::residue_of(axis, tap) != output % axis.stride) return -1;
  return output / axis.stride + direct_taps::offset_of(axis, tap) - low;
}

// A thread's channels in shared memory: row `row` of (piece, lane, of piece).
__device__ __forceinline__ void load_channels(const Accumulator* shared, int row, int lane, Accumulator* values) {
#pragma unroll
  for (int piece = 0; piece < kGeometry.pieces; ++piece) {
    load_piece(shared + ((row * kGeometry.pieces + piece) * kConfig.lanes_channels + lane) * kGeometry.piece,
               values + piece * kGeometry.piece);
  }
}

// The weights of a block's channels, and its bias, into shared memory; zero where a channel does not exist.
__device__ __forceinline__ void stage(const LastArguments& a, int channel_block, int thread, Accumulator* shared) {
  const int rows = kGeometry.taps * kGeometry.depth;
  const auto put = [&](int row, int channel, Accumulator value) {
    const int lane = channel / kConfig.channels;
    const int piece = channel % kConfig.channels / kGeometry.piece;
    shared[((row * kGeometry.pieces + piece) * kConfig.lanes_channels + lane) * kGeometry.piece +
           channel % kGeometry.piece] = value;
  };
  // Threads along the taps, which mostly lie together.
  for (int i = thread; i < rows * kGeometry.block_channels; i += kGeometry.threads) {
    const int tap = i % kGeometry.taps;
    const int in = i / kGeometry.taps % kGeometry.depth;
    const int in_block = i / rows;
    const int channel = channel_block * kGeometry.block_channels + in_block;
    const int group = channel / kConfig.out_channels;
    const int kw = tap % kConfig.width.kernel;
    const int kh = tap / kConfig.width.kernel % kConfig.height.kernel;
    const int kd = tap / kConfig.width.kernel / kConfig.height.kernel;
    const i64 at = group * a.weight_group + channel % kConfig.out_channels * a.weight_out + in * a.weight_in +
                   kd * a.weight_depth + kh * a.weight_height + kw * a.weight_width;
    put(tap * kGeometry.depth + in, in_block,
        channel < a.channels ? widen(static_cast<const Element*>(a.weight)[at]) : Accumulator(0));
  }
  if (kConfig.bias != 0) {
    for (int i = thread; i < kGeometry.block_channels; i += kGeometry.threads) {
      const int channel = channel_block * kGeometry.block_channels + i;
      put(rows, i, channel < a.channels ? widen(static_cast<const Element*>(a.bias)[channel]) : Accumulator(0));
    }
  }
}

// What a thread reads: its window in the input.
struct Window {
  const Element* first;  // of its channels; may lie outside the tensor
  int depth, height, width;
};

// inputs (window, chunk); zero where the input has none
__device__ __forceinline__ void load_row(const LastArguments& a, const Window& window, int d, int h, int first_channel,
                                         Element* inputs) {
  const bool row_exists = static_cast<unsigned>(window.depth + d) < static_cast<unsigned>(a.in_depth) &&
                          static_cast<unsigned>(window.height + h) < static_cast<unsigned>(a.in_height);
  const Element* const row = window.first + (d * a.input_depth + h * a.input_height + first_channel);
#pragma unroll
  for (int i = 0; i < kGeometry.window; ++i) {
    const bool exists = row_exists && static_cast<unsigned>(window.width + i) < static_cast<unsigned>(a.in_width);
#pragma unroll
    for (int c = 0; c < kConfig.chunk; c += kConfig.load) {
      Element* const to = inputs + i * kConfig.chunk + c;
#pragma unroll
      for (int v = 0; v < kConfig.load; ++v) to[v] = Element{};
      if (exists) load_run(row + i * a.input_width + c, to);
    }
  }
}

// Adds to the sums of a row of outputs what a row of taps brings.
__device__ __forceinline__ void add_row(const Element* inputs, const Accumulator* shared, int row_of_taps,
                                        int first_channel, int lane, Accumulator* sums) {
  const int depth = kGeometry.depthwise != 0 ? 1 : kConfig.chunk;
#pragma unroll
  for (int kw = 0; kw < kConfig.width.kernel; ++kw) {
#pragma unroll
    for (int in = 0; in < depth; ++in) {
      Accumulator weights[kConfig.channels];
      load_channels(shared, (row_of_taps * kConfig.width.kernel + kw) * kGeometry.depth + first_channel + in, lane,
                    weights);
#pragma unroll
      for (int cell = 0; cell < kConfig.cells; ++cell) {
        const int out = served_output(kConfig.width, cell, kw);
        const int from = source_of(kConfig.width, kGeometry.low_width, out, kw);
#pragma unroll
        for (int v = 0; v < kConfig.channels; ++v) {
          sums[out * kConfig.channels + v] +=
              widen(inputs[from * kConfig.chunk + (kGeometry.depthwise != 0 ? v : in)]) * weights[v];
        }
      }
    }
  }
}

// Where a thread writes.
struct Place {
  Element* first;  // output of its first cell; may lie outside the tensor
  int depth, height, width;
};

__device__ __forceinline__ void compute_tile(const LastArguments& a, const Window& window, const Place& place, int lane,
                                             const Accumulator* shared) {
#pragma unroll 1
  for (int od = 0; od < kGeometry.outputs_depth; ++od) {
#pragma unroll 1
    for (int oh = 0; oh < kGeometry.outputs_height; ++oh) {
      Accumulator sums[kGeometry.outputs_width * kConfig.channels];
      Accumulator bias[kConfig.channels];
#pragma unroll
      for (int v = 0; v < kConfig.channels; ++v) bias[v] = Accumulator(0);
      if (kConfig.bias != 0) load_channels(shared, kGeometry.taps * kGeometry.depth, lane, bias);
#pragma unroll
      for (int i = 0; i < kGeometry.outputs_width * kConfig.channels; ++i) sums[i] = bias[i % kConfig.channels];

#pragma unroll kUnroll
      for (int i = 0; i < served_taps(kConfig.depth, kGeometry.span_depth); ++i) {
        const int kd = served_tap(kConfig.depth, kGeometry.span_depth, od, i);
        const int d = source_of(kConfig.depth, kGeometry.low_depth, od, kd);
        if (d < 0) continue;
#pragma unroll kUnroll
        for (int j = 0; j < served_taps(kConfig.height, kGeometry.span_height); ++j) {
          const int kh = served_tap(kConfig.height, kGeometry.span_height, oh, j);
          const int h = source_of(kConfig.height, kGeometry.low_height, oh, kh);
          if (h < 0) continue;
          const int taps = kd * kConfig.height.kernel + kh;
#pragma unroll kUnroll
          for (int chunk = 0; chunk < kGeometry.depth; chunk += kConfig.chunk) {
            Element inputs[kGeometry.window * kConfig.chunk];
            load_row(a, window, d, h, chunk, inputs);
            add_row(inputs, shared, taps, chunk, lane, sums);
          }
        }
      }

      if (place.depth + od < a.out_depth && place.height + oh < a.out_height) {
        Element* to = place.first + (od * a.output_depth + oh * a.output_height);
#pragma unroll
        for (int out = 0; out < kGeometry.outputs_width; ++out) {
          if (place.width + out < a.out_width) {
#pragma unroll
            for (int c = 0; c < kConfig.channels; c += kConfig.store)
              store_run(to + c, sums + out * kConfig.channels + c);
          }
          to += a.output_width;
        }
      }
    }
  }
}

__device__ __forceinline__ void compute_thread(const LastArguments& a, int channel_block, int start, int thread,
                                               const Accumulator* shared) {
  const int lane = thread % kConfig.lanes_channels;
  const int lane_width = thread / kConfig.lanes_channels % kConfig.lanes_width;
  const int lane_height = thread / (kConfig.lanes_channels * kConfig.lanes_width);
  const int channel = (channel_block * kConfig.lanes_channels + lane) * kConfig.channels;
  if (channel >= a.channels) return;
  const int in_channel = kGeometry.depthwise != 0 ? channel : channel / kConfig.out_channels * kConfig.in_channels;
#pragma unroll 1
  for (int tile = start; tile < a.tiles; tile += a.starts) {
    const int rows = divide(tile, a.by_tiles_width);
    const int slices = divide(rows, a.by_tiles_height);
    const int sample = divide(slices, a.by_tiles_depth);
    const int depth = slices - sample * a.tiles_depth;
    const int height = (rows - slices * a.tiles_height) * kConfig.lanes_height + lane_height;
    const int width = (tile - rows * a.tiles_width) * kGeometry.tile_width + lane_width * kConfig.cells;
    Window window;
    window.depth = depth * kGeometry.step_depth + a.first_depth;
    window.height = height * kGeometry.step_height + a.first_height;
    window.width = width * kGeometry.step_width + a.first_width;
    window.first = static_cast<const Element*>(a.input) +
                   (sample * a.input_batch + window.depth * a.input_depth + window.height * a.input_height +
                    window.width * a.input_width + in_channel);
    Place place;
    place.depth = depth * kGeometry.outputs_depth;
    place.height = height * kGeometry.outputs_height;
    place.width = width / kConfig.cells * kGeometry.outputs_width;
    place.first =
        static_cast<Element*>(a.output) + (sample * a.output_batch + place.depth * a.output_depth +
                                           place.height * a.output_height + place.width * a.output_width + channel);
    if (place.height < a.out_height && place.width < a.out_width) compute_tile(a, window, place, lane, shared);
  }
}

}  // namespace direct_last

#ifndef TCONV_LAST_ON_CPU
extern "C" __global__ void __launch_bounds__(kGeometry.threads, kConfig.min_blocks)
    tconv_direct_last(const __grid_constant__ LastArguments arguments) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  ptx::let_next_kernel_start();
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x);
  const int start = direct_taps::divide(block, arguments.by_channel_blocks);
  const int channel_block = block - start * arguments.channel_blocks;
  direct_last::stage(arguments, channel_block, thread, reinterpret_cast<Accumulator*>(shared_memory));
  __syncthreads();
  direct_last::compute_thread(arguments, channel_block, start, thread,
                              reinterpret_cast<const Accumulator*>(shared_memory));
}
#endif
