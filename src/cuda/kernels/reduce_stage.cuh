// For warps that do nothing but load: the lines of a stage are copied into shared memory as they lie, without passing
// registers, and some time later arranged as cells. A warp has channels of its own, and nobody else reads its copies.
#pragma once

#include "reduce_load.cuh"

constexpr int power_above(int count) {
  int power = 1;
  while (power < count && power < 32) power *= 2;
  return power;
}

// One of the two tensors, as one warp loads it. A line is a run of neighbours along the width; its copies are numbered
// line after line.
template <bool kOfRows>
struct LineSide {
  static constexpr RawLines kLines = kShape.raw_lines(kOfRows);
  static constexpr int kBytes = kShape.element_bytes;
  static constexpr int kCopy = kOfRows ? kShape.row_copy : kShape.column_copy;  // elements
  static constexpr int kLineCopies = (kLines.length + kCopy - 1) / kCopy;
  static constexpr int kCopies = kLines.lines() * kLineCopies;
  static constexpr int kTogether = kCopies <= 16 ? 32 / kCopies : 1;  // channels that the lanes copy at once
  static constexpr int kRounds = (kCopies + 31) / 32;

  static constexpr int kChannels = kOfRows ? kShape.loaded_rows() : kShape.loaded_columns();
  static constexpr int kWarpChannels = kShape.warp_channels(kOfRows);
  static constexpr int kChannelBytes = kShape.raw_channel_bytes(kOfRows);
  static constexpr int kOthers = power_above(kWarpChannels);  // lanes along the channels, at most 32
  static constexpr int kLanes = 32 / kOthers;
  static constexpr int kLength = kOfRows ? kShape.row_vector : kShape.column_vector;  // cells arranged at once
  static constexpr int kWords = kShape.vector_words(kLength);
  static constexpr int kGroups = (kOfRows ? kShape.row_units() : kShape.column_units()) / kLength;
  static constexpr int kGroupRounds = (kGroups + kLanes - 1) / kLanes;

  const Element* base;  // sample 0, the warp's first channel
  int channels;         // of the warp
  int first_channel;    // of the warp among the block's
  unsigned offset[kRounds];  // of the lane's copies from the stage's first element, in bytes
  unsigned raw;              // where the lane's first copy goes in the warp's first raw stage

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  // Which of a channel's copies, and of which channel, the lane makes.
  static __device__ __forceinline__ int copy_of(int round) {
    return kCopies <= 16 ? lane() % kCopies : lane() + 32 * round;
  }
  static __device__ __forceinline__ int copied_channel() { return kCopies <= 16 ? lane() / kCopies : 0; }

  // The element at which a copy starts, along samples and axes.
  struct Position {
    int at[4];
  };
  static __device__ __forceinline__ Position position_of(int copy) {
    Position position;
    position.at[3] = copy % kLineCopies * kCopy;
    int line = copy / kLineCopies;
#pragma unroll
    for (int dimension = 2; dimension >= 0; --dimension) {
      position.at[dimension] = kShape.raw_position(kOfRows, dimension, line % kLines.count[dimension]);
      line /= kLines.count[dimension];
    }
    return position;
  }

  __device__ __forceinline__ LineSide(const ReduceParams& params, const ReduceBlock& block, int warp, unsigned warp_raw)
      : raw(warp_raw) {
    const long long (&stride)[5] = side_strides<kOfRows>(params);
    const int block_first = kOfRows ? block.first_row : block.first_column;
    const int all = kOfRows ? kShape.rows : kShape.columns;
    first_channel = warp * kWarpChannels;
    channels = min(kWarpChannels, min(kChannels, all - block_first) - first_channel);
    base = static_cast<const Element*>(kOfRows ? params.rows : params.columns) +
           (static_cast<long long>(block.group) * all + block_first + first_channel) * stride[1];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const Position position = position_of(copy_of(round));
      long long elements = copied_channel() * stride[1];
#pragma unroll
      for (int dimension = 0; dimension < 4; ++dimension) {
        elements += position.at[dimension] * stride[dimension == 0 ? 0 : 1 + dimension];
      }
      offset[round] = static_cast<unsigned>(elements * kBytes);
    }
  }

  // Copies the stage that starts at `origin`; what lies outside the tensor becomes zeros.
  __device__ __forceinline__ void copy(const ReduceParams& params, const ReduceBlock& block, const StageOrigin& origin,
                                       unsigned stage_offset) const {
    const long long (&stride)[5] = side_strides<kOfRows>(params);
    const StageStart<kOfRows> start(params, block, origin, kOfRows ? 0 : column_lead(params, block));
    const Element* first = base;
    bool inside = true;
#pragma unroll
    for (int dimension = 0; dimension < 4; ++dimension) {
      first += start.begin[dimension] * stride[dimension == 0 ? 0 : 1 + dimension];
      const int last = dimension == 3
                           ? kLineCopies * kCopy - 1
                           : kShape.raw_position(kOfRows, dimension, kLines.count[dimension] - 1);
      inside = inside && start.begin[dimension] >= 0 && start.begin[dimension] + last < start.limit(params, dimension);
    }
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int number = copy_of(round);
      if (number >= kCopies || copied_channel() >= kTogether) continue;
      unsigned wanted = 1;
      if (!inside) {
        const Position position = position_of(number);
#pragma unroll
        for (int dimension = 0; dimension < 4; ++dimension) {
          const int at = start.begin[dimension] + position.at[dimension];
          if (static_cast<unsigned>(at) >= static_cast<unsigned>(start.limit(params, dimension))) wanted = 0;
        }
      }
      const char* source = reinterpret_cast<const char*>(wanted != 0 ? first : base) + (wanted != 0 ? offset[round] : 0);
      const long long step = wanted != 0 ? kTogether * stride[1] * kBytes : 0;
      const int line = number / kLineCopies;
      unsigned target = raw + stage_offset + copied_channel() * kChannelBytes +
                        (line * kLines.pitch + (number - line * kLineCopies) * kCopy) * kBytes;
#pragma unroll
      for (int channel = 0; channel < kWarpChannels; channel += kTogether) {
        if (channel + copied_channel() < channels) ptx::copy_async<kCopy * kBytes>(target, source, wanted);
        source += step;
        target += kTogether * kChannelBytes;
      }
    }
  }

  // Where the first element of a group of cells stands in a channel's lines.
  static __device__ __forceinline__ int group_at(int group) {
    int unit = group * kLength;
    int place[4];
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      const int extent = kOfRows ? kShape.tile[1 + axis] : kShape.extent(axis);
      place[1 + axis] = unit % extent;
      unit /= extent;
    }
    place[0] = unit;
    int line = 0;
#pragma unroll
    for (int dimension = 0; dimension < 3; ++dimension) {
      line = line * kLines.count[dimension] + kShape.raw_line(kOfRows, dimension, 0, place[dimension]);
    }
    return line * kLines.pitch + (kOfRows ? place[3] : kShape.reach(2, place[3]));
  }
  // From there to the same place of another part.
  static constexpr int part_at(int v) {
    int line = 0;
    for (int dimension = 0; dimension < 3; ++dimension) {
      line = line * kLines.count[dimension] + kShape.raw_line(kOfRows, dimension, kShape.part_of(v, dimension), 0);
    }
    return line * kLines.pitch + kShape.part_of(v, 3) * kShape.part_step(kOfRows, 3);
  }

  __device__ __forceinline__ void arrange(unsigned stage_offset, unsigned stage) const {
#pragma unroll
    for (int channel_round = 0; channel_round < kWarpChannels; channel_round += kOthers) {
      const int channel = channel_round + lane() % kOthers;
      if (channel >= channels) continue;
      const unsigned lines = raw + stage_offset + channel * kChannelBytes;
      const int of_block = first_channel + channel;
      const int cell = kOfRows ? of_block
                               : kShape.row_cells() + of_block / kShape.team_columns * kShape.team_cells() +
                                     of_block % kShape.team_columns;
      constexpr int kNext = kOfRows ? kShape.row_pitch() : kShape.team_columns;
#pragma unroll
      for (int round = 0; round < kGroupRounds; ++round) {
        const int group = round * kLanes + lane() / kOthers;
        if (group >= kGroups) continue;
        unsigned words[kVector * kWords];
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          unsigned loaded[kWords];
          ptx::load_shared<kLength * kBytes>(lines + (group_at(group) + part_at(v)) * kBytes, loaded);
#pragma unroll
          for (int word = 0; word < kWords; ++word) words[v * kWords + word] = loaded[word];
        }
#pragma unroll
        for (int at = 0; at < kLength; ++at) {
          ptx::store_16(stage + (cell + (group * kLength + at) * kNext) * 16, cell_of<kWords>(words, at));
        }
      }
    }
  }
};

// Both tensors.
struct LineLoader {
  LineSide<true> rows;
  LineSide<false> columns;

  __device__ __forceinline__ LineLoader(const ReduceParams& params, const ReduceBlock& block, int warp, unsigned raw)
      : rows(params, block, warp, raw + warp * kShape.raw_warp_bytes()),
        columns(params, block, warp, raw + warp * kShape.raw_warp_bytes() + kShape.raw_side_bytes(true)) {}

  __device__ __forceinline__ void copy(const ReduceParams& params, const ReduceBlock& block, const StageOrigin& origin,
                                       int slot) const {
    rows.copy(params, block, origin, slot * kShape.raw_stage_bytes());
    columns.copy(params, block, origin, slot * kShape.raw_stage_bytes());
  }
  __device__ __forceinline__ void arrange(int slot, unsigned stage) const {
    rows.arrange(slot * kShape.raw_stage_bytes(), stage);
    columns.arrange(slot * kShape.raw_stage_bytes(), stage);
  }
};
