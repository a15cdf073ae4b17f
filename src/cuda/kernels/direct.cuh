// Transposed convolution on CUDA cores, for few channels per group.
//
// A block takes a tile of cells of one or more planes: the inputs that it needs, halo included, and the weights go to
// shared memory once; all outputs of the cells, every phase, are computed and stored by the block. A thread computes
// strips of a row: for each (in channel, tap of depth, tap of height) it holds the strip's inputs in registers and uses
// them for all taps and residues of the width and for its output channels.
//
// The config before this file states
//   DirectType              F64, F32, F16 or BF16
//   TCONV_DIRECT_CONFIG     the initialiser of a DirectConfig
// The code below is also compiled for the CPU, by a test that runs the threads of a block one after the other between
// barriers; kConfig and kGeometry are then variables, which is why sizes are said by `const int`, not `constexpr`.
// Included once per element type, so without guards.
#include "direct_params.cuh"

#ifdef __CUDACC__
#include "types.cuh"
constexpr DirectConfig kConfig = TCONV_DIRECT_CONFIG;
constexpr DirectGeometry kGeometry = direct_geometry(kConfig);
using Element = DirectType::Storage;
using Accumulator = DirectType::Sum;
__device__ __forceinline__ Accumulator widen(Element value) { return DirectType::load(value); }
__device__ __forceinline__ Element narrow(Accumulator value) { return DirectType::store(value); }
#endif

#include "direct_element.cuh"
#include "direct_load.cuh"
#include "direct_store.cuh"

namespace direct {

// The taps of one axis that serve a residue of the output.
struct Taps {
  int first;
  int count;
  int row;  // row of the tile that the first one reads, for cell 0
};

__device__ __forceinline__ Taps taps_of(const DirectAxis axis, const DirectSpan span, int residue) {
  const int sum = residue + axis.pad_residue;
  Taps taps;
  taps.first = sum / span.common * span.inverse % span.tap_step;
  const bool any = sum % span.common == 0 && taps.first < axis.kernel;
  taps.count = span.even != 0 ? span.most_taps : any ? (axis.kernel - 1 - taps.first) / span.tap_step + 1 : 0;
  taps.row = (sum - taps.first * axis.dilation) / axis.stride - span.low;
  return taps;
}

// Offset and residue of a tap of the width; constants once the loop over the taps is unrolled.
__device__ __forceinline__ int width_offset(int tap) {
  const int reach = kConfig.width.pad_residue - tap * kConfig.width.dilation;
  return reach >= 0 ? (reach + kConfig.width.stride - 1) / kConfig.width.stride : -(-reach / kConfig.width.stride);
}
__device__ __forceinline__ int width_residue(int tap) {
  return width_offset(tap) * kConfig.width.stride - kConfig.width.pad_residue + tap * kConfig.width.dilation;
}

// Adds one row of inputs times one row of weights.
// sums (strip, strip outputs, thread channel); weights (kernel width, thread channel)
__device__ __forceinline__ void accumulate(Accumulator* sums, const Accumulator* const* rows, int row,
                                           const Accumulator* weights) {
  const int vector = kGeometry.vector;
  const int window = (kGeometry.window + vector - 1) / vector * vector;
  const int channels = kConfig.thread_channels;
  // A strip that starts inside a vector can't be read by vectors, and a single input past the last one need not be.
  const int packs = kConfig.strip % vector != 0 ? 0 : (kGeometry.window + vector - 2) / vector;
  Accumulator x[kConfig.strips * window];
#pragma unroll
  for (int s = 0; s < kConfig.strips; ++s) {
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      const Pack<Accumulator> pack = reinterpret_cast<const Pack<Accumulator>*>(rows[s] + row)[i];
#pragma unroll
      for (int v = 0; v < vector; ++v) x[s * window + i * vector + v] = pack.value[v];
    }
#pragma unroll
    for (int i = packs * vector; i < kGeometry.window; ++i) x[s * window + i] = rows[s][row + i];
  }
  Pack<Accumulator> w;
#pragma unroll
  for (int k = 0; k < kConfig.width.kernel; ++k) {
#pragma unroll
    for (int channel = 0; channel < channels; ++channel) {
      const int at = k * channels + channel;
      if (at % vector == 0) w = reinterpret_cast<const Pack<Accumulator>*>(weights)[at / vector];
#pragma unroll
      for (int s = 0; s < kConfig.strips; ++s) {
#pragma unroll
        for (int q = 0; q < kConfig.strip; ++q) {
          const int output = s * kGeometry.strip_outputs + q * kConfig.width.stride + width_residue(k);
          sums[output * channels + channel] +=
              x[s * window + q + width_offset(k) - kGeometry.width.low] * w.value[at % vector];
        }
      }
    }
  }
}

// Adds the partial sums of the threads that took other input channels of the chunks, in a fixed order.
__device__ __forceinline__ void reduce(Accumulator* sums, Accumulator* partial, int part, int thread) {
  const int threads = kGeometry.threads / kConfig.chunk_parts;
  __syncthreads();
  if (part > 0) {
#pragma unroll
    for (int i = 0; i < kGeometry.sums; ++i) partial[((part - 1) * kGeometry.sums + i) * threads + thread] = sums[i];
  }
  __syncthreads();
  if (part > 0) return;
#pragma unroll 1
  for (int other = 0; other < kConfig.chunk_parts - 1; ++other) {
#pragma unroll
    for (int i = 0; i < kGeometry.sums; ++i) sums[i] += partial[(other * kGeometry.sums + i) * threads + thread];
  }
}

__device__ __forceinline__ void load_chunk(const DirectArguments& a, const Place& place, int first_in, int thread,
                                           const DirectPlane* planes, Accumulator* weights, Accumulator* inputs) {
  if (kConfig.input_channels_last != 0) {
    load_channels(a, place, first_in, thread, planes, inputs);
  } else {
    load_rows(a, place, first_in, thread, planes, inputs);
  }
  load_weights(a, first_in, thread, planes, weights);
  wait_for_copies();
  __syncthreads();
}

__device__ __forceinline__ void compute_block(const DirectArguments& a, unsigned char* shared, int block, int thread) {
  DirectPlane* const planes = reinterpret_cast<DirectPlane*>(shared);
  Accumulator* const bias = reinterpret_cast<Accumulator*>(shared + kGeometry.bias_at);
  Accumulator* const weights = reinterpret_cast<Accumulator*>(shared + kGeometry.weights_at);
  Accumulator* const inputs = reinterpret_cast<Accumulator*>(shared + kGeometry.inputs_at);
  const int stage_bytes = (kGeometry.stage * static_cast<int>(sizeof(Element)) + 15) / 16 * 16;

  const Place place = place_of(a, block);
  load_planes(a, place, thread, planes, bias);
  if (kGeometry.chunks == 1) load_chunk(a, place, 0, thread, planes, weights, inputs);

  const int lane = thread % kGeometry.lanes;
  const int part = thread / kGeometry.lanes % kConfig.channel_parts;
  const int first_phase = thread / (kGeometry.lanes * kConfig.channel_parts) % kConfig.phase_parts;
  const int chunk_part = thread / (kGeometry.lanes * kConfig.channel_parts * kConfig.phase_parts);

  const Accumulator* rows[kConfig.strips];
#pragma unroll
  for (int s = 0; s < kConfig.strips; ++s) {
    const Strip strip = strip_of(lane, s);
    rows[s] = inputs + strip.plane * kGeometry.input_plane +
              (strip.depth * kGeometry.rows_height + strip.height) * kGeometry.pitch + strip.width;
  }
  const Accumulator* const my_weights =
      weights + strip_of(lane, 0).plane * kGeometry.weight_plane + part * kGeometry.weight_part;
  Element* const stage = reinterpret_cast<Element*>(
      shared + kGeometry.stage_at + thread % (kGeometry.threads / kConfig.chunk_parts) / 32 * stage_bytes);

  const int body = kGeometry.sums / kConfig.width.stride * kConfig.width.kernel;  // multiply-adds of a row
  [[maybe_unused]] const int tap_unroll =
      kGeometry.height.even != 0 && body * kGeometry.height.most_taps <= 512 ? kGeometry.height.most_taps : 1;

  // Every thread takes the same number of phases, so that all of them meet at the barriers.
#pragma unroll 1
  for (int turn = 0; turn < (kGeometry.phases + kConfig.phase_parts - 1) / kConfig.phase_parts; ++turn) {
    const int phase = turn * kConfig.phase_parts + first_phase;
    const int residue_depth = phase / kConfig.height.stride;
    const int residue_height = phase % kConfig.height.stride;
    Taps depth = taps_of(kConfig.depth, kGeometry.depth, residue_depth);
    const Taps height = taps_of(kConfig.height, kGeometry.height, residue_height);
    if (phase >= kGeometry.phases) depth.count = 0;

    Accumulator sums[kGeometry.sums];
#pragma unroll
    for (int i = 0; i < kGeometry.sums; ++i) sums[i] = Accumulator(0);

#pragma unroll 1
    for (int chunk = 0; chunk < kGeometry.chunks; ++chunk) {
      if (kGeometry.chunks > 1) {
        __syncthreads();
        load_chunk(a, place, chunk * kConfig.chunk, thread, planes, weights, inputs);
      }
      const int left = kConfig.in_channels - chunk * kConfig.chunk;
      const int ins = left < kConfig.chunk ? left : kConfig.chunk;
#pragma unroll 1
      for (int in = chunk_part; in < ins; in += kConfig.chunk_parts) {
#pragma unroll 1
        for (int td = 0; td < depth.count; ++td) {
          const int kd = depth.first + td * kGeometry.depth.tap_step;
          const int row_depth = depth.row - td * kGeometry.depth.shift_step;
          const Accumulator* tap_weights = my_weights + in * kGeometry.weight_channel +
                                           (kd * kConfig.height.kernel + height.first) * kGeometry.weight_row;
          int row = in * kGeometry.input_channel + (row_depth * kGeometry.rows_height + height.row) * kGeometry.pitch;
#pragma unroll tap_unroll
          for (int th = 0; th < height.count; ++th) {
            accumulate(sums, rows, row, tap_weights);
            tap_weights += kGeometry.height.tap_step * kGeometry.weight_row;
            row -= kGeometry.height.shift_step * kGeometry.pitch;
          }
        }
      }
    }

    if (kConfig.chunk_parts > 1) reduce(sums, inputs, chunk_part, thread % (kGeometry.threads / kConfig.chunk_parts));
    if (chunk_part > 0 || phase >= kGeometry.phases) continue;
    Element* const output =
        static_cast<Element*>(a.output) + planes[0].output + part * kConfig.thread_channels * a.output_channel;
    const int channels = planes[0].channels - part * kConfig.thread_channels;
#pragma unroll
    for (int s = 0; s < kConfig.strips; ++s) {
      const Strip strip = strip_of(lane, s);
      int columns = 0;
      const int start = strip_start(a, place, planes, strip, residue_depth, residue_height, columns);
      const Accumulator* const strip_sums = sums + s * kGeometry.strip_outputs * kConfig.thread_channels;
      const Accumulator* const shift = bias + (strip.plane * kConfig.channel_parts + part) * kConfig.thread_channels;
      if (kConfig.output_channels_last != 0) {
        store_channels(a, output, channels, start, columns, shift, strip_sums, stage, lane % 32);
      } else if (kGeometry.store > 1 && reinterpret_cast<u64>(a.output) % (kGeometry.store * sizeof(Element)) == 0) {
        store_rows<true>(a, output, channels, start, columns, shift, strip_sums, stage, lane % 32);
      } else {
        store_rows<false>(a, output, channels, start, columns, shift, strip_sums, stage, lane % 32);
      }
    }
  }
}

}  // namespace direct

#ifdef __CUDACC__
extern "C" __global__ void __launch_bounds__(kGeometry.threads, kConfig.min_blocks)
    tconv_direct(const __grid_constant__ DirectArguments arguments) {
  extern __shared__ __align__(16) unsigned char shared[];
  direct::compute_block(arguments, shared, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x));
}
#endif
