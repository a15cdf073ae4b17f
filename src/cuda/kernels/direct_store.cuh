// The direct kernel's way out: sums and bias to the output, whole rows (or whole runs of channels) at a time.
namespace direct {

// The strip that a thread of a warp computes, within the block's tile.
struct Strip {
  int plane;
  int depth;  // cells
  int height;
  int width;
  bool valid;
};

// `lane` counts the threads that share (part of chunk, phase, channel part).
__device__ __forceinline__ Strip strip_of(int lane, int index) {
  const bool channels_last = kConfig.output_channels_last != 0;
  const int plane = channels_last ? lane % kConfig.planes : lane / kGeometry.items;
  const int item = (channels_last ? lane / kConfig.planes : lane % kGeometry.items) + index * kGeometry.items;
  Strip strip;
  strip.valid = plane < kConfig.planes && (!channels_last || lane / kConfig.planes < kGeometry.items) &&
                item < kGeometry.row_strips * kConfig.cells_height * kConfig.cells_depth;
  strip.plane = strip.valid ? plane : 0;
  const int place = strip.valid ? item : 0;
  strip.width = place % kGeometry.row_strips * kConfig.strip;
  strip.height = place / kGeometry.row_strips % kConfig.cells_height;
  strip.depth = place / (kGeometry.row_strips * kConfig.cells_height);
  return strip;
}

// Where a thread's strip of outputs begins, from the output of the block's first plane; `columns` is set to the number
// of its outputs that exist.
__device__ __forceinline__ int strip_start(const DirectArguments& a, const Place& place, const DirectPlane* planes,
                                           const Strip& strip, int residue_depth, int residue_height, int& columns) {
  const int depth = strip.depth * kConfig.depth.stride + residue_depth;
  const int height = strip.height * kConfig.height.stride + residue_height;
  const int width = strip.width * kConfig.width.stride;
  columns = a.out_width - place.width * kConfig.width.stride - width;
  const bool exists = strip.valid && place.depth * kConfig.depth.stride + depth < a.out_depth &&
                      place.height * kConfig.height.stride + height < a.out_height && columns > 0 &&
                      (kConfig.planes == 1 || planes[strip.plane].channels != 0);
  if (!exists) columns = 0;
  const int plane = kConfig.planes == 1 ? 0 : static_cast<int>(planes[strip.plane].output - planes[0].output);
  return plane + depth * static_cast<int>(a.output_depth) + height * static_cast<int>(a.output_height) +
         width * static_cast<int>(a.output_width);
}

__device__ __forceinline__ Accumulator biased(Accumulator sum, Accumulator bias) {
  return kConfig.bias != 0 ? sum + bias : sum;
}

constexpr int kNowhere = -2147483647 - 1;

#ifdef __CUDACC__
struct alignas(kGeometry.store * sizeof(Element)) Run {
  Element value[kGeometry.store];
};
__device__ __forceinline__ void move_run(Element* to, const Element* from) {
  *reinterpret_cast<Run*>(to) = *reinterpret_cast<const Run*>(from);
}
#endif

// `kRuns`: kGeometry.store elements at a time.
template <bool kRuns>
__device__ __forceinline__ void move(Element* to, const Element* from) {
  if (kRuns) {
    move_run(to, from);
  } else {
    *to = *from;
  }
}

// A warp's strips through shared memory, one channel at a time, so that its lanes store neighbours of a row.
// sums (strip outputs, thread channels), of one strip per lane; `channels` of them exist
template <bool kRuns>
__device__ __forceinline__ void store_rows(const DirectArguments& a, Element* output, int channels, int start,
                                           int columns, const Accumulator* bias, const Accumulator* sums,
                                           Element* stage, int lane) {
  const int run = kGeometry.strip_outputs;
  const int pack = 16 / static_cast<int>(sizeof(Element));
  const int unit = kRuns ? kGeometry.store : 1;
  const int stores = run / unit;
  const bool piece = kGeometry.piece != 0;  // the stores are then at constant distances from each other
  int to[piece ? 1 : stores];
  int left = 0;
  if (piece) {
    to[0] = __shfl_sync(0xffffffffu, start, 0) + lane * unit;
    left = __shfl_sync(0xffffffffu, columns, 0) - lane * unit;
  } else {
#pragma unroll
    for (int j = 0; j < stores; ++j) {
      const int from = (j * 32 + lane) / stores;
      const int column = (j * 32 + lane) % stores * unit;
      const int row = __shfl_sync(0xffffffffu, start, from);
      const int apart = kConfig.store != 0 ? 1 : static_cast<int>(a.output_width);
      to[j] = column < __shfl_sync(0xffffffffu, columns, from) ? row + column * apart : kNowhere;
    }
  }
#pragma unroll
  for (int channel = 0; channel < kConfig.thread_channels; ++channel) {
    const Accumulator shift = bias[channel];
    if (run % pack == 0) {
#pragma unroll
      for (int j = 0; j < run / pack; ++j) {
        Pack<Element> values;
#pragma unroll
        for (int v = 0; v < pack; ++v) {
          values.value[v] = narrow(biased(sums[(j * pack + v) * kConfig.thread_channels + channel], shift));
        }
        reinterpret_cast<Pack<Element>*>(stage + lane * run)[j] = values;
      }
    } else {
#pragma unroll
      for (int j = 0; j < run; ++j) {
        stage[lane * run + j] = narrow(biased(sums[j * kConfig.thread_channels + channel], shift));
      }
    }
    __syncwarp();
    if (channel < channels) {
      Element* const place = output + (piece ? to[0] : 0);
#pragma unroll
      for (int j = 0; j < stores; ++j) {
        const Element* const from = stage + (j * 32 + lane) * unit;
        if (piece) {
          if (j * 32 * unit < left) move<kRuns>(place + j * 32 * unit, from);
        } else {
          if (to[j] != kNowhere) move<kRuns>(place + to[j], from);
        }
      }
    }
    output += a.output_channel;
    __syncwarp();
  }
}

// The same with one output of a strip at a time, so that its lanes store neighbouring channels.
__device__ __forceinline__ void store_channels(const DirectArguments& a, Element* output, int channels, int start,
                                               int columns, const Accumulator* bias, const Accumulator* sums,
                                               Element* stage, int lane) {
  const int run = kConfig.thread_channels;
  int to[run];
  int last[run];  // outputs of the strip that exist
#pragma unroll
  for (int j = 0; j < run; ++j) {
    const int from = (j * 32 + lane) / run;
    const int channel = (j * 32 + lane) % run;
    to[j] = __shfl_sync(0xffffffffu, start, from) + channel * static_cast<int>(a.output_channel);
    last[j] = __shfl_sync(0xffffffffu, columns, from);
    if (channel >= channels) last[j] = 0;
  }
#pragma unroll
  for (int column = 0; column < kGeometry.strip_outputs; ++column) {
    if (run == 1) {
      const Element value = narrow(biased(sums[column], bias[0]));
      if (column < last[0]) output[to[0]] = value;
    } else {
#pragma unroll
      for (int j = 0; j < run; ++j) stage[lane * run + j] = narrow(biased(sums[column * run + j], bias[j]));
      __syncwarp();
#pragma unroll
      for (int j = 0; j < run; ++j) {
        if (column < last[j]) output[to[j]] = stage[j * 32 + lane];
      }
      __syncwarp();
    }
    output += a.output_width;
  }
}

}  // namespace direct
