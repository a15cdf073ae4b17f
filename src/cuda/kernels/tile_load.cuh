// From the tensors into a block's shared memory. Loads go to registers before a stage is multiplied and to shared
// memory after it, so that their latency hides behind the multiplication.
#pragma once

#include "tile_element.cuh"
#include "tile_place.cuh"
#include "tile_weights.cuh"

constexpr int kThreads = kShape.threads();
constexpr int kVector = kShape.vector();

constexpr unsigned kOutside = ~0u;  // an offset of nothing

// One pointer for all threads and a 32-bit offset of their own are an addressing mode of the load.
__device__ __forceinline__ const Element* at(const Element* pointer, unsigned bytes) {
  return reinterpret_cast<const Element*>(reinterpret_cast<const char*>(pointer) + bytes);
}

// Along an axis of a patch, an index over what is read: its plane and its cell. Planes vary faster, as in memory.
__device__ __forceinline__ int plane_of(int axis, int index) { return index % kShape.planes[axis]; }
__device__ __forceinline__ int cell_of(int axis, int index) { return index / kShape.planes[axis]; }

__device__ __forceinline__ constexpr int patch_length(int axis) { return kShape.patch(1 + axis) * kShape.planes[axis]; }

// The input patch of a block: cells with their halo, [slab][plane][sample][depth][row][column][vector].
struct InputLoader {
  static constexpr int kPixels = kShape.pixels() * kShape.all_planes();
  static constexpr int kItems = kShape.slabs * kPixels;
  static constexpr int kGroups = kShape.all_plane_groups();
  static constexpr int kPerThread = (kItems + kThreads - 1) / kThreads;

  int first_chunk;                                // of this block
  const Element* base;                            // first channel of the group
  unsigned offset[kPerThread];                    // from there, in bytes
  unsigned inside[kGroups > 1 ? kPerThread : 1];  // for which groups of planes the place exists, a bit each
  Element values[kShape.wide_input ? 1 : kPerThread][kVector];
  Cell wide[kShape.wide_input ? kPerThread : 1];

  // Neighbouring threads take neighbours in memory: pixels of a row, or channels of a pixel.
  static __device__ __forceinline__ int slab_of(int item) {
    return kShape.input_channels_last ? item % kShape.slabs : item / kPixels;
  }
  static __device__ __forceinline__ int pixel_of(int item) {
    return kShape.input_channels_last ? item / kShape.slabs : item % kPixels;
  }

  __device__ __forceinline__ InputLoader(const TileParams& params, const BlockRows& rows, const BlockCells& cells,
                                         int rank)
      : first_chunk(rank * kShape.block_chunks()) {
    base = static_cast<const Element*>(params.input) + cells.first[0] * params.input_strides[0] +
           static_cast<long long>(rows.group) * kShape.channels * params.input_strides[1];
    // Of the first cell's first residue. It may lie outside the tensor, as may the patch.
    int first[3];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      first[axis] = kShape.gradient ? cells.first[1 + axis] * kShape.stride[axis] - params.pad[axis]
                                    : cells.first[1 + axis] - kShape.halo(axis);
      if (kShape.gradient) base += first[axis] * params.input_strides[2 + axis];
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int item = threadIdx.x + i * kThreads;
      int pixel = pixel_of(item);
      int local[3];
#pragma unroll
      for (int axis = 2; axis >= 0; --axis) {
        const int index = pixel % patch_length(axis);
        pixel /= patch_length(axis);
        local[axis] = kShape.gradient ? cell_of(axis, index) * kShape.stride[axis] +
                                            kShape.plane_residue(axis, plane_of(axis, index))
                                      : index;
      }
      const int sample = pixel;
      bool exists = item < kItems && cells.first[0] + sample < params.batch;
      long long position = sample * params.input_strides[0] + slab_of(item) * kVector * params.input_strides[1];
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) {
        if (kShape.plane_groups(axis) == 1) {
          exists = exists &&
                   static_cast<unsigned>(first[axis] + local[axis]) < static_cast<unsigned>(params.input_size[axis]);
        }
        position += (kShape.gradient ? local[axis] : first[axis] + local[axis]) * params.input_strides[2 + axis];
      }
      offset[i] = exists ? static_cast<unsigned>(position * kShape.element_bytes) : kOutside;
      if constexpr (kGroups > 1) {
        inside[i] = 0;
#pragma unroll(kGroups <= 4 ? kGroups : 1)
        for (int index = 0; index < kGroups; ++index) {
          const PlaneGroup group = plane_group(index);
          bool here = exists;
#pragma unroll
          for (int axis = 0; axis < 3; ++axis) {
            if (kShape.plane_groups(axis) == 1) continue;
            const int place = first[axis] + local[axis] + kShape.group_residue(axis, group.at[axis]);
            here = here && static_cast<unsigned>(place) < static_cast<unsigned>(params.input_size[axis]);
          }
          if (here) inside[i] |= 1u << index;
        }
      }
    }
  }

  __device__ __forceinline__ void fetch(const TileParams& params, int block_chunk) {
    const int chunk = (first_chunk + block_chunk) / kGroups;
    const int group_index = (first_chunk + block_chunk) % kGroups;
    const Element* origin = base + static_cast<long long>(chunk) * kShape.chunk_channels() * params.input_strides[1];
    if (kGroups > 1) {
      const PlaneGroup group = plane_group(group_index);
#pragma unroll
      for (int axis = 0; axis < 3; ++axis)
        origin += static_cast<long long>(kShape.group_residue(axis, group.at[axis])) * params.input_strides[2 + axis];
    }
    const int channels_left = kShape.channels - chunk * kShape.chunk_channels();
    constexpr bool kWholeChunks = kShape.channels % kShape.chunk_channels() == 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int first = slab_of(threadIdx.x + i * kThreads) * kVector;
      const bool here = kGroups > 1 ? (inside[kGroups > 1 ? i : 0] >> group_index & 1) != 0 : offset[i] != kOutside;
      if constexpr (kShape.wide_input) {
        const bool exists = here && (kWholeChunks || first < channels_left);
        wide[i] = exists ? ptx::load_16(at(origin, offset[i])) : Cell{};
      } else {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          const Element* channel = origin + v * params.input_strides[1];
          const bool exists = here && (kWholeChunks || first + v < channels_left);
          values[i][v] = exists ? __ldg(at(channel, offset[i])) : Element(0);
        }
      }
    }
  }

  __device__ __forceinline__ void store(unsigned stage) const {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int item = threadIdx.x + i * kThreads;
      if (kItems % kThreads != 0 && item >= kItems) break;
      const Cell cell =
          kShape.wide_input ? rounded(wide[kShape.wide_input ? i : 0]) : make_cell(values[kShape.wide_input ? 0 : i]);
      ptx::store_16(stage + (slab_of(item) * kShape.slab_pitch() + place_of(pixel_of(item))) * 16, cell);
    }
  }

  // Where a pixel lies in its slab.
  static __device__ __forceinline__ int place_of(int pixel) {
    if (kShape.all_planes() == 1) return pixel;
    int plane = 0;
    int cell = 0;
    int plane_scale = 1;
    int cell_scale = 1;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      const int index = pixel % patch_length(axis);
      pixel /= patch_length(axis);
      plane += plane_of(axis, index) * plane_scale;
      cell += cell_of(axis, index) * cell_scale;
      plane_scale *= kShape.planes[axis];
      cell_scale *= kShape.patch(1 + axis);
    }
    return plane * kShape.plane_pitch() + cell + pixel * cell_scale;
  }
};

// Weights that the pack kernel has put into order: all stages of a block are one run of memory, copied some steps
// ahead.
struct PackedWeights {
  static constexpr int kAhead = kShape.weight_stages() - 1;
  static constexpr int kCellsPerBack = kShape.slabs * kShape.rows();

  const Cell* base;
  StageWalk copied;  // the next stage to copy

  __device__ __forceinline__ PackedWeights(const TileParams& params, const BlockRows& rows, int block_row, int rank,
                                           unsigned char*)
      : base(static_cast<const Cell*>(params.weight) + block_row * (kShape.packed_bytes() / 16) +
             rank * static_cast<long long>(kShape.block_chunks()) * kShape.all_backs() * kCellsPerBack),
        copied(rows) {}

  template <typename Stage>
  __device__ __forceinline__ void begin(Stage&& stage) {
    ptx::wait_for_previous_kernel();
#pragma unroll
    for (int step = 0; step < (kAhead > 0 ? kAhead : 1); ++step) copy(stage(step));
  }

  // While `step` is multiplied: the copy for a later one sets out.
  template <typename Stage>
  __device__ __forceinline__ void start(int step, Stage&& stage) {
    if (kAhead > 0) copy(stage(step + kAhead));
  }

  __device__ __forceinline__ void fetch(const TileParams&, int) const {}
  template <typename Stage>
  __device__ __forceinline__ void store(int, Stage&&) const {}

  // Until the weights of `step` have arrived.
  __device__ __forceinline__ void wait(int) const { ptx::wait_for_copies<(kAhead > 0 ? kAhead - 1 : 0)>(); }

 private:
  // Always a whole stage, so that the loop has no variables: past the last distance of a chunk it brings what follows.
  __device__ __forceinline__ void copy(unsigned shared) {
    constexpr int kCells = kShape.stage_backs * kCellsPerBack;
    if (!copied.ended()) {
      const long long first_back =
          static_cast<long long>(copied.chunk) * kShape.all_backs() + copied.stage * kShape.stage_backs;
      const Cell* source = base + first_back * kCellsPerBack + threadIdx.x;
      copied.advance();
      shared += threadIdx.x * 16;
#pragma unroll 16
      for (int i = 0; i < kCells / kThreads; ++i) ptx::copy_16_async(shared + i * kThreads * 16, source + i * kThreads);
      if (kCells % kThreads != 0 && threadIdx.x < kCells % kThreads) {
        ptx::copy_16_async(shared + kCells / kThreads * kThreads * 16, source + kCells / kThreads * kThreads);
      }
    }
    ptx::commit_copies();
  }
};

// Weights read from the tensor by each block itself: one launch, for problems whose blocks each have weights of their
// own or that are too small to pay for two. All products of a chunk are one stage here, so that a thread's cells keep
// their places from chunk to chunk.
struct WeightsInPlace {
  static constexpr int kSlabCells = kShape.block_channels * kShape.all_slots() * kShape.all_backs();
  static constexpr int kItems = kShape.slabs * kSlabCells;
  static constexpr int kPerThread = (kItems + kThreads - 1) / kThreads;
  // Neighbouring threads take neighbouring output channels first, whose cells lie side by side in shared memory, and
  // then taps, which lie side by side in a contiguous weight.
  static constexpr int kAcross = kShape.block_channels % 8 == 0 ? 8 : kShape.block_channels;

  int first_chunk;
  const Element* base;
  unsigned offset[kPerThread];  // from the chunk's first channel, in bytes
  unsigned place[kPerThread];   // bytes from the start of the stage
  Element values[kPerThread][kVector];

  __device__ __forceinline__ WeightsInPlace(const TileParams& params, const BlockRows& rows, int, int rank,
                                            unsigned char*)
      : first_chunk(rank * kShape.block_chunks()) {
    base = static_cast<const Element*>(params.weight) + rows.group * params.weight_group_stride;
    // All weights of a chunk lie within 32 bits of each other: the planner sees to that.
    const auto stride = [&](int dimension) { return static_cast<unsigned>(params.weight_strides[dimension]); };
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      int item = threadIdx.x + i * kThreads;
      const int slab = item / kSlabCells;
      int out_channel = item % kAcross;
      item /= kAcross;
      int slot[3];
      slot[2] = item % kShape.slots[2];
      item /= kShape.slots[2];
      const int back = item % kShape.all_backs();
      item /= kShape.all_backs();
      slot[1] = item % kShape.slots[1];
      item /= kShape.slots[1];
      slot[0] = item % kShape.slots[0];
      item /= kShape.slots[0];
      out_channel += item % (kShape.block_channels / kAcross) * kAcross;
      const int tap = tap_of(rows, slot, back);
      const unsigned position = slab * kVector * stride(0) + (rows.first_channel + out_channel) * stride(1) +
                                tap / (kShape.kernel[2] * kShape.kernel[1]) * stride(2) +
                                tap / kShape.kernel[2] % kShape.kernel[1] * stride(3) +
                                tap % kShape.kernel[2] * stride(4);
      offset[i] = tap < 0 || slab >= kShape.slabs || rows.first_channel + out_channel >= kShape.out_channels
                      ? kOutside
                      : position * kShape.element_bytes;
      const int row =
          ((slot[0] * kShape.slots[1] + slot[1]) * kShape.slots[2] + slot[2]) * kShape.block_channels + out_channel;
      place[i] = ((back * kShape.slabs + slab) * kShape.rows() + row) * 16;
    }
  }

  template <typename Stage>
  __device__ __forceinline__ void begin(Stage&&) const {}
  template <typename Stage>
  __device__ __forceinline__ void start(int, Stage&&) const {}
  __device__ __forceinline__ void wait(int) const {}

  // A step is a chunk here.
  __device__ __forceinline__ void fetch(const TileParams& params, int step) {
    if (step >= kShape.block_chunks()) return;
    const int first = (first_chunk + step) * kShape.chunk_channels();
    const Element* origin = base + static_cast<long long>(first) * params.weight_strides[0];
    constexpr bool kWhole = kShape.channels % kShape.chunk_channels() == 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int channel = first + (threadIdx.x + i * kThreads) / kSlabCells * kVector;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const Element* row = origin + v * params.weight_strides[0];
        const bool exists = offset[i] != kOutside && (kWhole || channel + v < kShape.channels);
        values[i][v] = exists ? __ldg(at(row, offset[i])) : Element(0);
      }
    }
  }

  template <typename Stage>
  __device__ __forceinline__ void store(int step, Stage&& stage) const {
    if (step >= kShape.block_chunks()) return;
    const unsigned shared = stage(step);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (kItems % kThreads != 0 && static_cast<int>(threadIdx.x) + i * kThreads >= kItems) break;
      ptx::store_16(shared + place[i], make_cell(values[i]));
    }
  }
};
