// Boxes of input as they lie in memory, by asynchronous copies of single threads.
#pragma once

#include "tile_stream_load.cuh"

// Where copies begin along an axis.
__device__ __forceinline__ int copy_begin(const TileParams& params, const BlockCells& cells, int axis) {
  return box_begin(params, cells, axis) - (axis == 2 ? box_lead(params, cells) : 0);
}

// The copies of a thread: some places of the box, the same in every chunk, each for every channel (channels-last: for
// all channels at once, a place for each 16 bytes of them). Threads that are left over when few places are shared out
// take other channels.
struct InputCopies {
  static constexpr int kPieceBytes = kShape.granule * kShape.element_bytes;
  static constexpr int kPlaces = kShape.copy_places();
  static constexpr int kPieces = kPlaces / kShape.box_rows();  // of a row
  static constexpr int kChannels = kShape.input_channels_last ? 1 : kShape.chunk_read_channels();
  static constexpr int kAtOnce = kPlaces >= kInputThreads              ? 1
                                 : kInputThreads / kPlaces < kChannels ? kInputThreads / kPlaces
                                                                       : kChannels;
  static constexpr int kPerThread = (kPlaces + kInputThreads - 1) / kInputThreads;
  static constexpr int kTurns = (kChannels + kAtOnce - 1) / kAtOnce;
  static constexpr unsigned kOutside = ~0u;

  unsigned source[kPerThread];  // in bytes from the box's first element
  unsigned target[kPerThread];
  int first_channel;

  __device__ __forceinline__ InputCopies(const TileParams& params, const BlockCells& cells, int thread) {
    first_channel = thread / kPlaces;
    if (kAtOnce == 1) first_channel = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int place = kAtOnce > 1 ? thread % kPlaces : thread + i * kInputThreads;
      const int piece = place % kPieces;
      int row = place / kPieces;
      const int slab = kShape.input_channels_last ? piece % kShape.slabs : 0;
      const int w = kShape.input_channels_last ? piece / kShape.slabs : piece * kShape.granule;
      target[i] = kShape.input_channels_last ? (row * kShape.box(2) + w) * kShape.cell_pitch() + slab * 16
                                             : (row * kShape.row_pitch() + kShape.row_place(w)) * kShape.element_bytes;
      const int h = row % kShape.box(1);
      row /= kShape.box(1);
      const int d = row % kShape.box(0);
      const int n = row / kShape.box(0);
      const auto inside = [&](int axis, int index) {
        return static_cast<unsigned>(copy_begin(params, cells, axis) + index) <
               static_cast<unsigned>(params.input_size[axis]);
      };
      const bool exists = place < kPlaces && first_channel < kAtOnce && cells.first[0] + n < params.batch &&
                          inside(0, d) && inside(1, h) && inside(2, w);
      // Inside a chunk's box, distances are 32-bit: the planner sees to that.
      const auto stride = [&](int dimension) { return static_cast<unsigned>(params.input_strides[dimension]); };
      const unsigned position = n * stride(0) + d * stride(2) + h * stride(3) + w * stride(4) +
                                (slab * kShape.vector() + first_channel) * stride(1);
      source[i] = exists ? position * kShape.element_bytes : kOutside;
      target[i] += first_channel * kShape.channel_pitch();
    }
  }

  // `base`: the box's first element in the chunk's first channel.
  __device__ __forceinline__ void copy(const Element* base, long long channel_bytes, int channels_left, unsigned stage,
                                       int thread) const {
    if (kAtOnce > 1 && first_channel >= kAtOnce) return;
    constexpr bool kWholeChunks = kShape.channels % kShape.chunk_channels() == 0;
    // One pointer for all threads and a 32-bit offset of their own are an addressing mode of the copy.
    const char* from = reinterpret_cast<const char*>(base);
#pragma unroll(kPerThread <= (kWholeChunks ? 2 : 1) ? 4 : 1)
    for (int turn = 0; turn < kTurns; ++turn) {
      const int channel =
          kShape.input_channels_last ? thread % kShape.slabs * kShape.vector() : first_channel + turn * kAtOnce;
      if (kChannels % kAtOnce != 0 && channel >= kChannels) break;
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        if (kPlaces % kInputThreads != 0 && kAtOnce == 1 && thread + i * kInputThreads >= kPlaces) break;
        const bool wanted = source[i] != kOutside && (kWholeChunks || channel < channels_left);
        ptx::copy_async<kPieceBytes>(stage + target[i], from + source[i], wanted);
      }
      stage += kAtOnce * kShape.channel_pitch();
      from += kAtOnce * channel_bytes;
    }
  }
};

__device__ __forceinline__ void stream_input(const StreamParams& stream, const TilePlace& tile,
                                             const StreamBarriers& barriers, unsigned ring, int thread,
                                             RingPlace<kShape.input_ring>& place) {
  const TileParams& params = tile_params(stream);
  const BlockCells& cells = tile.cells;
  const InputCopies copies(params, cells, thread);
  int channel = tile.rank * kShape.block_chunks() * kShape.chunk_read_channels();
  const long long channel_bytes = params.input_strides[1] * kShape.element_bytes;
  const Element* base =
      static_cast<const Element*>(params.input) + cells.first[0] * params.input_strides[0] +
      (static_cast<long long>(tile.rows.group) * kShape.read_channels() + channel) * params.input_strides[1];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) base += copy_begin(params, cells, axis) * params.input_strides[2 + axis];
#pragma unroll 1
  for (int chunk = 0; chunk < kShape.block_chunks(); ++chunk) {
    ptx::wait_barrier(barriers.input_empty(place.slot), place.parity ^ 1);
    copies.copy(base, channel_bytes, kShape.read_channels() - channel, ring + place.slot * kShape.input_stage_bytes(),
                thread);
    ptx::arrive_after_copies(barriers.input_full(place.slot));
    place.advance();
    channel += kShape.chunk_read_channels();
    base += kShape.chunk_read_channels() * params.input_strides[1];
  }
}
