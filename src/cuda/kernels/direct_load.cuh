// The direct kernel's way in: planes, bias, weights and the input tile with its halo, into shared memory.
namespace direct {

using tconv_device::i64;
using tconv_device::u64;

// The block's place: its tile in cells and its first plane.
struct Place {
  int depth;
  int height;
  int width;
  int plane;
};

__device__ __forceinline__ Place place_of(const DirectArguments& a, int block) {
  Place place;
  place.width = block % a.tiles_width * kConfig.cells_width;
  block /= a.tiles_width;
  place.height = block % a.tiles_height * kConfig.cells_height;
  block /= a.tiles_height;
  place.depth = block % a.tiles_depth * kConfig.cells_depth;
  place.plane = block / a.tiles_depth * kConfig.planes;
  return place;
}

__device__ __forceinline__ void load_planes(const DirectArguments& a, const Place& place, int thread,
                                            DirectPlane* planes, Accumulator* bias) {
  const int channels = kConfig.channel_parts * kConfig.thread_channels;
  if (thread < kConfig.planes) {
    const int index = place.plane + thread;
    const int block = index % a.channel_blocks;
    const int group = index / a.channel_blocks % a.groups;
    const int batch = index / a.channel_blocks / a.groups;
    DirectPlane plane;
    plane.input = batch * a.input_batch + static_cast<i64>(group) * kConfig.in_channels * a.input_channel +
                  (place.depth + a.pad_cells_depth + kGeometry.depth.low) * a.input_depth +
                  (place.height + a.pad_cells_height + kGeometry.height.low) * a.input_height +
                  (place.width + a.pad_cells_width + kGeometry.width.low) * a.input_width;
    plane.first_channel = group * kConfig.out_channels + block * channels;
    plane.output = batch * a.output_batch + plane.first_channel * a.output_channel +
                   static_cast<i64>(place.depth) * kConfig.depth.stride * a.output_depth +
                   static_cast<i64>(place.height) * kConfig.height.stride * a.output_height +
                   static_cast<i64>(place.width) * kConfig.width.stride * a.output_width;
    plane.weight = static_cast<i64>(group) * kConfig.in_channels * a.weight_in + block * channels * a.weight_out;
    const int left = kConfig.out_channels - block * channels;
    plane.channels = index >= a.planes ? 0 : left < channels ? left : channels;
    planes[thread] = plane;
  }
  __syncthreads();
  for (int i = thread; i < kConfig.planes * channels; i += kGeometry.threads) {
    const DirectPlane& plane = planes[i / channels];
    const int channel = i % channels;
    const bool valid = kConfig.bias != 0 && channel < plane.channels;
    bias[i] = valid ? widen(static_cast<const Element*>(a.bias)[plane.first_channel + channel]) : Accumulator(0);
  }
}

// weights (plane, channel part, in channel, kernel depth, kernel height, kernel width, thread channel)
__device__ __forceinline__ void load_weights(const DirectArguments& a, int first_in, int thread,
                                             const DirectPlane* planes, Accumulator* weights) {
  const int channels = kConfig.channel_parts * kConfig.thread_channels;
  const int rows = kConfig.depth.kernel * kConfig.height.kernel;
  const int length = kConfig.width.kernel;
  const int ins = kConfig.in_channels - first_in < kConfig.chunk ? kConfig.in_channels - first_in : kConfig.chunk;
  const Element* const global = static_cast<const Element*>(a.weight);
  // A thread takes rows, so that a position is worked out once for all taps of the width.
#pragma unroll 2
  for (int i = thread; i < kConfig.planes * kConfig.chunk * channels * rows; i += kGeometry.threads) {
    const int row = i % rows;
    const int channel = i / rows % channels;
    const int in = i / (rows * channels) % kConfig.chunk;
    const int p = i / (rows * channels * kConfig.chunk);
    const bool valid = in < ins && channel < planes[p].channels;
    const Element* from = global + planes[p].weight + (first_in + in) * a.weight_in;
    if (kConfig.weight_packed != 0) {
      from += (channel * rows + row) * length;
    } else {
      from += channel * a.weight_out + row / kConfig.height.kernel * a.weight_depth +
              row % kConfig.height.kernel * a.weight_height;
    }
    if (!valid) from = global;
    Accumulator* const to = weights + p * kGeometry.weight_plane +
                            channel / kConfig.thread_channels * kGeometry.weight_part + in * kGeometry.weight_channel +
                            row * kGeometry.weight_row + channel % kConfig.thread_channels;
    if (sizeof(Element) == sizeof(Accumulator)) {
#pragma unroll
      for (int kw = 0; kw < length; ++kw) {
        copy_async(to + kw * kConfig.thread_channels, from, valid);
        if (valid) from += kConfig.weight_packed != 0 ? 1 : a.weight_width;
      }
    } else {
      Element values[length];
#pragma unroll
      for (int kw = 0; kw < length; ++kw) {
        values[kw] = Element{};
        if (valid) values[kw] = from[kConfig.weight_packed != 0 ? kw : kw * a.weight_width];
      }
#pragma unroll
      for (int kw = 0; kw < length; ++kw) to[kw * kConfig.thread_channels] = widen(values[kw]);
    }
  }
}

// A position of the tile along each axis, and whether the input has it.
__device__ __forceinline__ bool inside(int cell, int pad_cells, int low, int row, int size) {
  return static_cast<unsigned>(cell + pad_cells + low + row) < static_cast<unsigned>(size);
}

// inputs (plane, in channel, depth, height, width), lanes along the width. A group of lanes keeps its row and goes from
// channel to channel, so that positions are worked out once.
__device__ __forceinline__ void load_rows(const DirectArguments& a, const Place& place, int first_in, int thread,
                                          const DirectPlane* planes, Accumulator* inputs) {
  const int length = kGeometry.row_length;
  const int lanes = length <= 4 ? 4 : length <= 8 ? 8 : length <= 16 ? 16 : 32;
  const int columns = (length + lanes - 1) / lanes;
  const int rows = kConfig.planes * kGeometry.rows_depth * kGeometry.rows_height;
  const int slots = kGeometry.threads / lanes;
  const int step = slots / rows > 1 ? (slots / rows < kConfig.chunk ? slots / rows : kConfig.chunk) : 1;
  const int batch = 4;  // loads in flight before the first conversion
  const int ins = kConfig.in_channels - first_in < kConfig.chunk ? kConfig.in_channels - first_in : kConfig.chunk;
  const int lane = thread % lanes;
  const int first = step > 1 ? thread / lanes / rows : 0;
  if (first >= step) return;
#pragma unroll 1
  for (int i = step > 1 ? thread / lanes % rows : thread / lanes; i < rows; i += slots) {
    const int height = i % kGeometry.rows_height;
    const int depth = i / kGeometry.rows_height % kGeometry.rows_depth;
    const int p = i / (kGeometry.rows_height * kGeometry.rows_depth);
    const bool row = planes[p].channels != 0 &&
                     inside(place.depth, a.pad_cells_depth, kGeometry.depth.low, depth, a.in_depth) &&
                     inside(place.height, a.pad_cells_height, kGeometry.height.low, height, a.in_height);
    const i64 apart = kConfig.input_dense != 0 ? 1 : a.input_width;
    const Element* from =
        static_cast<const Element*>(a.input) + (planes[p].input + (first_in + first) * a.input_channel +
                                                depth * a.input_depth + height * a.input_height + lane * apart);
    const int to = p * kGeometry.input_plane + (depth * kGeometry.rows_height + height) * kGeometry.pitch + lane;
    if (sizeof(Element) == sizeof(Accumulator)) {
#pragma unroll 2
      for (int in = first; in < ins; in += step) {
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          const int column = c * lanes + lane;
          const bool valid = row && inside(place.width, a.pad_cells_width, kGeometry.width.low, column, a.in_width);
          if (column < length) {
            copy_async(inputs + to + in * kGeometry.input_channel + c * lanes, from + c * lanes * apart, valid);
          }
        }
        from += step * a.input_channel;
      }
    } else {
#pragma unroll 1
      for (int in = first; in < ins; in += batch * step) {
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          const int column = c * lanes + lane;
          const bool valid =
              row && column < length && inside(place.width, a.pad_cells_width, kGeometry.width.low, column, a.in_width);
          Element values[batch];
#pragma unroll
          for (int v = 0; v < batch; ++v) {
            values[v] = Element{};
            if (valid && in + v * step < ins) values[v] = from[c * lanes * apart + v * step * a.input_channel];
          }
#pragma unroll
          for (int v = 0; v < batch; ++v) {
            if (column < length && in + v * step < ins) {
              inputs[to + (in + v * step) * kGeometry.input_channel + c * lanes] = widen(values[v]);
            }
          }
        }
        from += batch * step * a.input_channel;
      }
    }
  }
}

// The same tile with lanes along (plane, in channel): what lies together in a channels-last tensor.
__device__ __forceinline__ void load_channels(const DirectArguments& a, const Place& place, int first_in, int thread,
                                              const DirectPlane* planes, Accumulator* inputs) {
  const int channels = kConfig.planes * kConfig.chunk;
  const int ins = kConfig.in_channels - first_in < kConfig.chunk ? kConfig.in_channels - first_in : kConfig.chunk;
  const Element* const global = static_cast<const Element*>(a.input);
#pragma unroll 4
  for (int i = thread; i < channels * kGeometry.rows_depth * kGeometry.rows_height * kGeometry.row_length;
       i += kGeometry.threads) {
    const int in = i % channels % kConfig.chunk;
    const int p = i % channels / kConfig.chunk;
    const int width = i / channels % kGeometry.row_length;
    const int height = i / (channels * kGeometry.row_length) % kGeometry.rows_height;
    const int depth = i / (channels * kGeometry.row_length * kGeometry.rows_height);
    const bool valid = in < ins && planes[p].channels != 0 &&
                       inside(place.depth, a.pad_cells_depth, kGeometry.depth.low, depth, a.in_depth) &&
                       inside(place.height, a.pad_cells_height, kGeometry.height.low, height, a.in_height) &&
                       inside(place.width, a.pad_cells_width, kGeometry.width.low, width, a.in_width);
    const i64 from = planes[p].input + (first_in + in) * a.input_channel + depth * a.input_depth +
                     height * a.input_height + width * a.input_width;
    Accumulator* const to = inputs + p * kGeometry.input_plane + in * kGeometry.input_channel +
                            (depth * kGeometry.rows_height + height) * kGeometry.pitch + width;
    copy_async(to, valid ? global + from : global, valid);
  }
}

}  // namespace direct
