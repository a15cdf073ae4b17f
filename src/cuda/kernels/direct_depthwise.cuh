// Depthwise transposed convolution of one or two axes, bound by bandwidth.
//
// A thread reads its inputs, halo included, and its plane's weights from global memory into registers, all of them
// before the first use; neighbours share the halo through the first-level cache. It computes whole strips of 16 bytes
// of output, which it stores as they are: lanes of a warp hold neighbouring strips. So there is no shared memory and no
// barrier, and the latency of memory is met once.
//
// The config before this file states
//   DirectType                 F64, F32, F16 or BF16
//   TCONV_DEPTHWISE_CONFIG     the initialiser of a DepthwiseConfig
// The code below is also compiled for the CPU by a test; kConfig and kGeometry are then variables, which is why sizes
// are said by `const int`, not `constexpr`. Included once per element type, so without guards.
#include "direct_depthwise_params.cuh"

#ifdef __CUDACC__
#include "types.cuh"
constexpr DepthwiseConfig kConfig = TCONV_DEPTHWISE_CONFIG;
constexpr DepthwiseGeometry kGeometry = depthwise_geometry(kConfig);
using Element = DirectType::Storage;
using Accumulator = DirectType::Sum;
__device__ __forceinline__ Accumulator widen(Element value) { return DirectType::load(value); }
__device__ __forceinline__ Element narrow(Accumulator value) { return DirectType::store(value); }
#endif

#include "direct_taps.cuh"

namespace depthwise {

using direct_taps::divide;
using direct_taps::offset_of;
using direct_taps::residue_of;
using tconv_device::i64;
using tconv_device::u64;

#ifdef __CUDACC__
struct alignas(kConfig.store * sizeof(Element)) Run {
  Element value[kConfig.store];
};
__device__ __forceinline__ void store_run(Element* to, const Element* values) {
  Run run;
#pragma unroll
  for (int i = 0; i < kConfig.store; ++i) run.value[i] = values[i];
  *reinterpret_cast<Run*>(to) = run;
}

struct alignas(16) Pack {
  Element value[16 / sizeof(Element)];
};
__device__ __forceinline__ void load_pack(const Element* from, Element* values) {
  const Pack pack = *reinterpret_cast<const Pack*>(from);
#pragma unroll
  for (int i = 0; i < 16 / static_cast<int>(sizeof(Element)); ++i) values[i] = pack.value[i];
}
#endif

// The tile of a thread, in cells, and its plane.
struct Place {
  const Element* input;
  const Element* weight;
  Element* output;
  int channel;
  int height;
  int width;     // may be negative, where the tile was shifted
  bool aligned;  // strips begin where a store may begin
  bool inner;    // the whole block reads only inputs that exist
  bool exists;
};

__device__ __forceinline__ Place place_of(const DepthwiseArguments& a, int block, int thread) {
  const int lanes = kConfig.lanes_width * kConfig.lanes_height;
  const int plane_block = divide(block, a.by_tiles);
  const int tile = block - plane_block * a.tiles;
  const int tile_height = divide(tile, a.by_tiles_width);
  const int tile_width = tile - tile_height * a.tiles_width;
  const int plane = plane_block * kConfig.planes + thread / lanes;
  const int batch = divide(plane, a.by_channels);
  Place place;
  place.channel = plane - batch * a.channels;
  const int group = divide(place.channel, a.by_group_channels);
  const int in_group = place.channel - group * a.group_channels;
  place.input = static_cast<const Element*>(a.input) + (batch * a.input_batch + group * a.input_channel);
  place.weight = static_cast<const Element*>(a.weight) + (group * a.weight_in + in_group * a.weight_out);
  place.output = static_cast<Element*>(a.output) + (batch * a.output_batch + place.channel * a.output_channel);

  const int past = static_cast<int>(reinterpret_cast<u64>(place.output) / sizeof(Element) % kConfig.store);
  place.aligned = a.shifts != 0 ? past % kConfig.width.stride == 0 : past == 0;
  const int shift = a.shifts != 0 && place.aligned ? past / kConfig.width.stride : 0;
  const int block_height = tile_height * kGeometry.tile_height;
  const int block_width = tile_width * kGeometry.tile_width;
  place.height = block_height + thread / kConfig.lanes_width % kConfig.lanes_height * kConfig.cells_height;
  place.width = block_width + thread % kConfig.lanes_width * kConfig.strip - shift;
  place.exists = plane < a.planes && place.height * kConfig.height.stride < a.out_height &&
                 place.width * kConfig.width.stride < a.out_width;

  const int most_shift = a.shifts != 0 ? kConfig.store / kConfig.width.stride : 0;
  const int first_row = block_height + a.pad_cells_height + kGeometry.height.low;
  const int first_column = block_width + a.pad_cells_width + kGeometry.width.low;
  place.inner = first_row >= 0 && first_row + kGeometry.tile_height + kGeometry.height.halo <= a.in_height &&
                first_column >= most_shift && first_column + kGeometry.tile_width + kGeometry.width.halo <= a.in_width;
  return place;
}

// inputs (row, strip, window); zero where the input has none
template <bool kInner>
__device__ __forceinline__ void load_inputs(const DepthwiseArguments& a, const Place& place, Element* inputs) {
  const int first_row = place.height + a.pad_cells_height + kGeometry.height.low;
  const int first_column = place.width + a.pad_cells_width + kGeometry.width.low;
  const Element* from = place.input + (first_row * a.input_height + first_column);
#pragma unroll
  for (int row = 0; row < kGeometry.rows; ++row) {
    const bool row_exists = kInner || static_cast<unsigned>(first_row + row) < static_cast<unsigned>(a.in_height);
#pragma unroll
    for (int s = 0; s < kConfig.strips; ++s) {
#pragma unroll
      for (int i = 0; i < kGeometry.window; ++i) {
        const int column = s * kConfig.lanes_width * kConfig.strip + i;
        const bool exists =
            kInner || (row_exists && static_cast<unsigned>(first_column + column) < static_cast<unsigned>(a.in_width));
        Element value{};
        if (exists) value = from[column];
        inputs[(row * kConfig.strips + s) * kGeometry.window + i] = value;
      }
    }
    from += a.input_height;
  }
}

__device__ __forceinline__ void load_weights(const DepthwiseArguments& a, const Place& place, Element* weights) {
  const int pack = 16 / static_cast<int>(sizeof(Element));
  if (kConfig.weight_packed != 0 && kGeometry.taps % pack == 0 && reinterpret_cast<u64>(place.weight) % 16 == 0) {
#pragma unroll
    for (int i = 0; i < kGeometry.taps; i += pack) load_pack(place.weight + i, weights + i);
    return;
  }
#pragma unroll
  for (int kh = 0; kh < kConfig.height.kernel; ++kh) {
#pragma unroll
    for (int kw = 0; kw < kConfig.width.kernel; ++kw) {
      const int tap = kh * kConfig.width.kernel + kw;
      weights[tap] = place.weight[kConfig.weight_packed != 0 ? tap : kh * a.weight_height + kw * a.weight_width];
    }
  }
}

__device__ __forceinline__ void store_strip(Element* row, int column, int out_width, bool aligned,
                                            const Accumulator* sums) {
  Element values[kGeometry.strip_outputs];
#pragma unroll
  for (int i = 0; i < kGeometry.strip_outputs; ++i) values[i] = narrow(sums[i]);
  if (aligned && column >= 0 && column + kGeometry.strip_outputs <= out_width) {
#pragma unroll
    for (int i = 0; i < kGeometry.strip_outputs; i += kConfig.store) store_run(row + column + i, values + i);
  } else {
#pragma unroll
    for (int i = 0; i < kGeometry.strip_outputs; ++i) {
      if (static_cast<unsigned>(column + i) < static_cast<unsigned>(out_width)) row[column + i] = values[i];
    }
  }
}

__device__ __forceinline__ void compute_thread(const DepthwiseArguments& a, int block, int thread) {
  const Place place = place_of(a, block, thread);
  if (!place.exists) return;

  Element inputs[kGeometry.rows * kConfig.strips * kGeometry.window];
  if (place.inner) {
    load_inputs<true>(a, place, inputs);
  } else {
    load_inputs<false>(a, place, inputs);
  }
  Element weights[kGeometry.taps];
  load_weights(a, place, weights);
  const Accumulator bias =
      kConfig.bias != 0 ? widen(static_cast<const Element*>(a.bias)[place.channel]) : Accumulator(0);

  Element* row = place.output + place.height * kConfig.height.stride * a.output_height;
#pragma unroll
  for (int out = 0; out < kConfig.cells_height * kConfig.height.stride; ++out) {
    const int cell = out / kConfig.height.stride;
    Accumulator sums[kConfig.strips * kGeometry.strip_outputs];
#pragma unroll
    for (int i = 0; i < kConfig.strips * kGeometry.strip_outputs; ++i) sums[i] = bias;
#pragma unroll
    for (int kh = 0; kh < kConfig.height.kernel; ++kh) {
      if (residue_of(kConfig.height, kh) != out % kConfig.height.stride) continue;
      const int from = cell + offset_of(kConfig.height, kh) - kGeometry.height.low;
#pragma unroll
      for (int kw = 0; kw < kConfig.width.kernel; ++kw) {
        const Accumulator weight = widen(weights[kh * kConfig.width.kernel + kw]);
#pragma unroll
        for (int s = 0; s < kConfig.strips; ++s) {
#pragma unroll
          for (int q = 0; q < kConfig.strip; ++q) {
            const int column = q + offset_of(kConfig.width, kw) - kGeometry.width.low;
            sums[s * kGeometry.strip_outputs + q * kConfig.width.stride + residue_of(kConfig.width, kw)] +=
                widen(inputs[(from * kConfig.strips + s) * kGeometry.window + column]) * weight;
          }
        }
      }
    }
    if (place.height * kConfig.height.stride + out < a.out_height) {
#pragma unroll
      for (int s = 0; s < kConfig.strips; ++s) {
        const int column = (place.width + s * kConfig.lanes_width * kConfig.strip) * kConfig.width.stride;
        store_strip(row, column, a.out_width, place.aligned, sums + s * kGeometry.strip_outputs);
      }
    }
    row += a.output_height;
  }
}

}  // namespace depthwise

#ifdef __CUDACC__
extern "C" __global__ void __launch_bounds__(kGeometry.threads, kConfig.min_blocks)
    tconv_depthwise(const __grid_constant__ DepthwiseArguments arguments) {
  depthwise::compute_thread(arguments, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x));
}
#endif
