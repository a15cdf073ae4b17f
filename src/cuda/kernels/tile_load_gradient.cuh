// A gradient's weights, read from the tensor by each block itself and put together as cells.
#pragma once

#include "tile_load.cuh"

// A row's weights of a chunk lie together in a dense tensor, channel after channel with all its taps. Neighbouring
// threads take neighbouring taps, then channels, and each the few loads of one cell; where channels are neighbours in
// memory, they take these first, a cell with one load. Loads go to registers a step before they are stored.
struct GradientWeights {
  static constexpr int kItems = kShape.stage_backs * kShape.slabs * kShape.rows();
  static constexpr int kPerThread = (kItems + kThreads - 1) / kThreads;
  static constexpr int kSteps = kShape.block_chunks() * kShape.stages_per_chunk();

  int first_chunk;
  const Element* base;
  unsigned offset[kPerThread];  // from the first channel and tap of a stage, in bytes
  Element values[kPerThread][kVector];
  Cell wide[kPerThread];

  static __device__ __forceinline__ int back_of(int item) {
    return (kShape.wide_weights ? item / kShape.slabs : item) % kShape.stage_backs;
  }
  static __device__ __forceinline__ int slab_of(int item) {
    return (kShape.wide_weights ? item : item / kShape.stage_backs) % kShape.slabs;
  }
  static __device__ __forceinline__ int row_of(int item) { return item / (kShape.stage_backs * kShape.slabs); }

  __device__ __forceinline__ GradientWeights(const TileParams& params, const BlockRows& rows, int, int rank,
                                             unsigned char*)
      : first_chunk(rank * kShape.block_chunks()) {
    base = static_cast<const Element*>(params.weight) + rows.group * params.weight_group_stride +
           rows.first_channel * params.weight_strides[1];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int item = threadIdx.x + i * kThreads;
      const int row = row_of(item);
      const bool exists =
          item < kItems && row < kShape.block_channels && rows.first_channel + row < kShape.out_channels;
      const long long position = row * params.weight_strides[1] + slab_of(item) * kVector * params.weight_strides[0] +
                                 tap_position(params, gradient_tap_of(PlaneGroup{}, back_of(item)));
      offset[i] = exists ? static_cast<unsigned>(position * kShape.element_bytes) : kOutside;
    }
  }

  template <typename Stage>
  __device__ __forceinline__ void begin(Stage&&) const {}
  template <typename Stage>
  __device__ __forceinline__ void start(int, Stage&&) const {}
  __device__ __forceinline__ void wait(int) const {}

  // The taps of another group of planes lie a constant distance further, and so do those of another stage: the planner
  // reads in place only what is so.
  __device__ __forceinline__ void fetch(const TileParams& params, int step) {
    if (step >= kSteps) return;
    constexpr int kStages = kShape.stages_per_chunk();
    constexpr int kGroups = kShape.all_plane_groups();
    const int chunk = first_chunk + step / kStages;
    const int first = chunk / kGroups * kShape.chunk_channels();
    const int first_back = step % kStages * kShape.stage_backs;
    const Element* origin = base + static_cast<long long>(first) * params.weight_strides[0] +
                            static_cast<long long>(first_back) * params.weight_strides[4];
    if (kGroups > 1) {
      const PlaneGroup group = plane_group(chunk % kGroups);
#pragma unroll
      for (int axis = 0; axis < 3; ++axis)
        origin += kShape.group_residue(axis, group.at[axis]) * params.weight_strides[2 + axis];
    }
    constexpr bool kWhole =
        kShape.channels % kShape.chunk_channels() == 0 && kShape.all_backs() % kShape.stage_backs == 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int item = threadIdx.x + i * kThreads;
      const bool tap = kWhole || first_back + back_of(item) < kShape.all_backs();
      if constexpr (kShape.wide_weights) {
        const bool exists =
            offset[i] != kOutside && tap && (kWhole || first + slab_of(item) * kVector < kShape.channels);
        wide[i] = exists ? ptx::load_16(at(origin, offset[i])) : Cell{};
        continue;
      }
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const bool exists =
            offset[i] != kOutside && tap && (kWhole || first + slab_of(item) * kVector + v < kShape.channels);
        const Element* const channel = origin + v * params.weight_strides[0];
        values[i][v] = exists ? __ldg(at(channel, offset[i])) : Element(0);
      }
    }
  }

  template <typename Stage>
  __device__ __forceinline__ void store(int step, Stage&& stage) const {
    if (step >= kSteps) return;
    const unsigned shared = stage(step);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int item = threadIdx.x + i * kThreads;
      if (kItems % kThreads != 0 && item >= kItems) break;
      const int place =
          back_of(item) * kShape.weight_back_pitch() + slab_of(item) * kShape.weight_slab_pitch() + row_of(item);
      ptx::store_16(shared + place * 16, kShape.wide_weights ? rounded(wide[i]) : make_cell(values[i]));
    }
  }

 private:
  static __device__ __forceinline__ long long tap_position(const TileParams& params, int tap) {
    return tap / (kShape.kernel[2] * kShape.kernel[1]) * params.weight_strides[2] +
           tap / kShape.kernel[2] % kShape.kernel[1] * params.weight_strides[3] +
           tap % kShape.kernel[2] * params.weight_strides[4];
  }
};
