// From the tensors into a block's shared memory. Loads go to registers before a stage is multiplied and to shared
// memory after it, so that their latency hides behind the multiplication.
#pragma once

#include "tile_element.cuh"
#include "tile_weights.cuh"

constexpr int kThreads = kShape.threads();
constexpr int kVector = kShape.vector();

constexpr unsigned kOutside = ~0u;  // an offset of nothing

// One pointer for all threads and a 32-bit offset of their own are an addressing mode of the load.
__device__ __forceinline__ const Element* at(const Element* pointer, unsigned bytes) {
  return reinterpret_cast<const Element*>(reinterpret_cast<const char*>(pointer) + bytes);
}

// Which cells of the problem a block computes.
struct BlockCells {
  int first[4];  // sample, then the first cell (q) along depth, height, width
};

// The input patch of a block: cells with their halo, [slab][sample][depth][row][column][vector].
struct InputLoader {
  static constexpr int kItems = kShape.slabs * kShape.pixels();
  static constexpr int kPerThread = (kItems + kThreads - 1) / kThreads;

  int first_chunk;              // of this block
  const Element* base;          // first channel of the group
  unsigned offset[kPerThread];  // from there, in bytes
  Element values[kShape.wide_input ? 1 : kPerThread][kVector];
  Cell wide[kShape.wide_input ? kPerThread : 1];

  // Neighbouring threads take neighbours in memory: pixels of a row, or channels of a pixel.
  static __device__ __forceinline__ int slab_of(int item) {
    return kShape.input_channels_last ? item % kShape.slabs : item / kShape.pixels();
  }
  static __device__ __forceinline__ int pixel_of(int item) {
    return kShape.input_channels_last ? item / kShape.slabs : item % kShape.pixels();
  }

  __device__ __forceinline__ InputLoader(const TileParams& params, const BlockRows& rows, const BlockCells& cells,
                                         int rank)
      : first_chunk(rank * kShape.block_chunks()) {
    base = static_cast<const Element*>(params.input) + cells.first[0] * params.input_strides[0] +
           static_cast<long long>(rows.group) * kShape.channels * params.input_strides[1];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int item = threadIdx.x + i * kThreads;
      int pixel = pixel_of(item);
      const int column = pixel % kShape.patch(3) + cells.first[3] - kShape.halo(2);
      pixel /= kShape.patch(3);
      const int row = pixel % kShape.patch(2) + cells.first[2] - kShape.halo(1);
      pixel /= kShape.patch(2);
      const int slice = pixel % kShape.patch(1) + cells.first[1] - kShape.halo(0);
      const int sample = pixel / kShape.patch(1);
      const bool inside = item < kItems && cells.first[0] + sample < params.batch &&
                          static_cast<unsigned>(slice) < static_cast<unsigned>(params.input_size[0]) &&
                          static_cast<unsigned>(row) < static_cast<unsigned>(params.input_size[1]) &&
                          static_cast<unsigned>(column) < static_cast<unsigned>(params.input_size[2]);
      const long long position = sample * params.input_strides[0] + slice * params.input_strides[2] +
                                 row * params.input_strides[3] + column * params.input_strides[4] +
                                 slab_of(item) * kVector * params.input_strides[1];
      offset[i] = inside ? static_cast<unsigned>(position * kShape.element_bytes) : kOutside;
    }
  }

  __device__ __forceinline__ void fetch(const TileParams& params, int block_chunk) {
    const int chunk = first_chunk + block_chunk;
    const Element* origin = base + static_cast<long long>(chunk) * kShape.chunk_channels() * params.input_strides[1];
    const int channels_left = kShape.channels - chunk * kShape.chunk_channels();
    constexpr bool kWholeChunks = kShape.channels % kShape.chunk_channels() == 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int first = slab_of(threadIdx.x + i * kThreads) * kVector;
      if constexpr (kShape.wide_input) {
        const bool exists = offset[i] != kOutside && (kWholeChunks || first < channels_left);
        wide[i] = exists ? ptx::load_16(at(origin, offset[i])) : Cell{};
      } else {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          const Element* channel = origin + v * params.input_strides[1];
          const bool exists = offset[i] != kOutside && (kWholeChunks || first + v < channels_left);
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
      ptx::store_16(stage + (slab_of(item) * kShape.slab_pitch() + pixel_of(item)) * 16, cell);
    }
  }
};

// Weights that the pack kernel has put into order: all stages of a block are one run of memory, copied some steps
// ahead.
struct PackedWeights {
  static constexpr int kAhead = kShape.weight_stages() - 1;
  static constexpr int kCellsPerBack = kShape.slabs * kShape.rows();
  static constexpr int kTotal = kShape.block_chunks() * kShape.stages_per_chunk();

  const Cell* base;

  __device__ __forceinline__ PackedWeights(const TileParams& params, const BlockRows&, int block_row, int rank,
                                           unsigned char*)
      : base(static_cast<const Cell*>(params.weight) + block_row * (kShape.packed_bytes() / 16) +
             rank * static_cast<long long>(kShape.block_chunks()) * kShape.all_backs() * kCellsPerBack) {}

  template <typename Stage>
  __device__ __forceinline__ void begin(Stage&& stage) const {
    ptx::wait_for_previous_kernel();
#pragma unroll
    for (int step = 0; step < (kAhead > 0 ? kAhead : 1); ++step) copy(step, stage(step));
  }

  // While `step` is multiplied: the copy for a later one sets out.
  template <typename Stage>
  __device__ __forceinline__ void start(int step, Stage&& stage) const {
    if (kAhead > 0) copy(step + kAhead, stage(step + kAhead));
  }

  __device__ __forceinline__ void fetch(const TileParams&, int) const {}
  template <typename Stage>
  __device__ __forceinline__ void store(int, Stage&&) const {}

  // Until the weights of `step` have arrived.
  __device__ __forceinline__ void wait(int) const { ptx::wait_for_copies<(kAhead > 0 ? kAhead - 1 : 0)>(); }

 private:
  // Always a whole stage, so that the loop has no variables: past the last distance of a chunk it brings what follows.
  __device__ __forceinline__ void copy(int step, unsigned shared) const {
    constexpr int kCells = kShape.stage_backs * kCellsPerBack;
    if (step < kTotal) {
      const int chunk = step / kShape.stages_per_chunk();
      const int first_back = step % kShape.stages_per_chunk() * kShape.stage_backs;
      const Cell* source =
          base + (static_cast<long long>(chunk) * kShape.all_backs() + first_back) * kCellsPerBack + threadIdx.x;
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
    base = static_cast<const Element*>(params.weight) +
           static_cast<long long>(rows.group) * kShape.channels * params.weight_strides[0];
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
