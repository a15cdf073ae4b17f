// For warps that do nothing but load: the lines of a stage are copied into shared memory as they lie, without passing
// registers, and some time later arranged as cells. A warp has channels of its own, and nobody else reads its copies.
#pragma once

#include "reduce_load.cuh"
#include "split.cuh"

struct LineTable {
  int at[8];
};
// From an element of a channel's lines to the same place of each part.
constexpr LineTable line_parts(bool of_rows) {
  const RawLines lines = kShape.raw_lines(of_rows);
  LineTable parts{};
  for (int v = 0; v < kVector; ++v) {
    int line = 0;
    for (int dimension = 0; dimension < 3; ++dimension) {
      line = line * lines.count[dimension] + kShape.raw_line(of_rows, dimension, kShape.part_of(v, dimension), 0);
    }
    parts.at[v] = line * lines.pitch + kShape.raw_line(of_rows, 3, kShape.part_of(v, 3), 0);
  }
  return parts;
}
// How far the last element of a stage lies from its first, along samples and axes.
constexpr LineTable last_positions(bool of_rows, int length) {
  const RawLines lines = kShape.raw_lines(of_rows);
  LineTable last{};
  for (int dimension = 0; dimension < 3; ++dimension) {
    last.at[dimension] = kShape.raw_position(of_rows, dimension, lines.count[dimension] - 1);
  }
  last.at[3] = kShape.raw_position(of_rows, 3, length - 1);
  return last;
}

// One of the two tensors, as one warp loads it. A line is a run of neighbours along the width. A copy is a piece of a
// line of one channel or, where channels come last, some channels of one element; copies are numbered line after line.
template <bool kOfRows>
struct LineSide {
  static constexpr bool kChannelsLast = kShape.channels_last(kOfRows);
  static constexpr RawLines kLines = kShape.raw_lines(kOfRows);
  static constexpr int kCount1 = kLines.count[1];
  static constexpr int kCount2 = kLines.count[2];
  static constexpr int kBytes = kShape.element_bytes;
  static constexpr int kCopy = kOfRows ? kShape.row_copy : kShape.column_copy;  // elements
  static constexpr int kWarpChannels = kShape.warp_channels(kOfRows);
  static constexpr int kChannelBytes = kShape.raw_channel_bytes(kOfRows);
  static constexpr int kElementBytes = kShape.raw_element_bytes(kOfRows);
  // Copies along a line; lanes that copy different channels, and channels between them.
  static constexpr int kAlong = kChannelsLast ? 1 : kCopy;
  static constexpr int kLineCopies = (kLines.length + kAlong - 1) / kAlong;
  static constexpr int kCopies = kLines.lines() * kLineCopies;
  static constexpr int kWarpCopies = (kWarpChannels + kCopy - 1) / kCopy;
  static constexpr int kChannelLanes = kChannelsLast   ? (kWarpCopies < 32 ? kWarpCopies : 32)
                                       : kCopies <= 16 ? 32 / kCopies
                                                       : 1;
  static constexpr int kChannelStep = kChannelsLast ? kCopy : 1;
  static constexpr int kCopyLanes = kChannelsLast ? 32 / kChannelLanes : kCopies <= 16 ? kCopies : 32;
  static constexpr int kRounds = (kCopies + kCopyLanes - 1) / kCopyLanes;
  static constexpr int kTogether = kChannelLanes * kChannelStep;  // channels that are copied at once

  static constexpr int kChannels = kOfRows ? kShape.loaded_rows() : kShape.loaded_columns();
  static constexpr int kOthers = kShape.channel_lanes(kOfRows);
  static constexpr int kLanes = 32 / kOthers;
  static constexpr int kLength = kOfRows ? kShape.row_vector : kShape.column_vector;  // cells arranged at once
  static constexpr int kWords = kShape.vector_words(kLength);
  static constexpr int kGroups = (kOfRows ? kShape.row_units() : kShape.column_units()) / kLength;
  static constexpr int kGroupRounds = (kGroups + kLanes - 1) / kLanes;

  static constexpr LineTable kParts = line_parts(kOfRows);
  static constexpr LineTable kLast = last_positions(kOfRows, kLineCopies* kAlong);

  // Long loops are unrolled in part, which takes less time to compile.
  static constexpr int kGroupBatch = kGroupRounds == 1 || kVector * kWords > 16 ? 1 : kVector * kWords > 8 ? 2 : 4;
  static constexpr int kGroupUnroll = kGroupRounds <= 8 ? 8 : 1;
  static constexpr int kCopyUnroll = kRounds > 1 ? 4 : 8;
  static constexpr int kKept = kRounds <= 8 ? kRounds : 0;  // rounds of copies whose places stay in registers
  static constexpr int kChecked = 3;                        // rounds written out for stages at a border, too

  const Element* base;                     // sample 0, the warp's first channel
  const Element* next;                     // the first element of the stage that is copied next, inside or not
  int channels;                            // of the warp
  int first_channel;                       // of the warp among the block's
  unsigned offset[kKept > 0 ? kKept : 1];  // of the lane's copies from the stage's first element, in bytes
  unsigned raw;                            // where the lane's first copy goes in the warp's first raw stage

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  // Which of the copies, and of which channels, the lane makes: neighbouring lanes copy neighbours in memory.
  static __device__ __forceinline__ int copy_of(int round) {
    const int of_lanes = kChannelsLast ? lane() / kChannelLanes : lane() % kCopyLanes;
    return of_lanes < kCopyLanes ? round * kCopyLanes + of_lanes : kCopies;
  }
  static __device__ __forceinline__ int copied_channel() {
    return (kChannelsLast ? lane() % kChannelLanes : lane() / kCopyLanes) * kChannelStep;
  }

  // The element at which a copy starts, along samples and axes.
  struct Position {
    int at[4];
  };
  static __device__ __forceinline__ Position position_of(int copy) {
    Position position;
    position.at[3] = line_position<3>(copy % kLineCopies * kAlong);
    const int line = copy / kLineCopies;
    position.at[2] = line_position<2>(line % kCount2);
    position.at[1] = line_position<1>(line / kCount2 % kCount1);
    position.at[0] = line / kCount2 / kCount1;
    return position;
  }
  template <int kDimension>
  static __device__ __forceinline__ int line_position(int line) {
    if constexpr (kShape.line_gaps(kOfRows, kDimension)) {
      constexpr int kPlaces = kShape.line_places(kOfRows, kDimension);
      constexpr int kTaps = kShape.taps[kDimension - 1];
      constexpr int kStep = kShape.step[kDimension - 1];
      constexpr int kTapStep = kShape.tap_step[kDimension - 1];
      const int place = line % kPlaces;
      return line / kPlaces * kShape.part_step(kOfRows, kDimension) + place / kTaps * kStep + place % kTaps * kTapStep;
    } else {
      return line;
    }
  }

  __device__ __forceinline__ LineSide(const ReduceParams& params, const ReduceBlock& block, const StageOrigin& origin,
                                      int warp, unsigned warp_raw)
      : raw(warp_raw) {
    const long long (&stride)[5] = side_strides<kOfRows>(params);
    const int block_first = kOfRows ? block.first_row : block.first_column;
    const int all = kOfRows ? kShape.rows : kShape.columns;
    first_channel = warp * kWarpChannels;
    channels = min(kWarpChannels, min(kChannels, all - block_first) - first_channel);
    base = static_cast<const Element*>(kOfRows ? params.rows : params.columns) +
           (static_cast<long long>(block.group) * all + block_first + first_channel) * stride[1];
    next = base;
    const StageStart<kOfRows> start(params, block, origin, kOfRows ? 0 : column_lead(params, block));
#pragma unroll
    for (int dimension = 0; dimension < 4; ++dimension) {
      next += start.begin[dimension] * stride[dimension == 0 ? 0 : 1 + dimension];
    }
    if constexpr (kKept > 0) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) offset[round] = offset_of(params, round);
    }
  }

  static __device__ __forceinline__ unsigned offset_of(const ReduceParams& params, int round) {
    const long long (&stride)[5] = side_strides<kOfRows>(params);
    const Position position = position_of(copy_of(round));
    long long elements = copied_channel() * stride[1];
#pragma unroll
    for (int dimension = 0; dimension < 4; ++dimension) {
      elements += position.at[dimension] * stride[dimension == 0 ? 0 : 1 + dimension];
    }
    return static_cast<unsigned>(elements * kBytes);
  }

  // Copies the stage that starts at `origin`; what lies outside the tensor becomes zeros.
  __device__ __forceinline__ void copy(const ReduceParams& params, const ReduceBlock& block, const StageOrigin& origin,
                                       unsigned stage_offset) const {
    if (channels <= 0) return;
    const StageStart<kOfRows> start(params, block, origin, kOfRows ? 0 : column_lead(params, block));
    bool inside = true;
    constexpr LineTable kEnd = kLast;  // nvcc reads no static member at an index that it does not know at once
#pragma unroll
    for (int dimension = 0; dimension < 4; ++dimension) {
      inside = inside && start.begin[dimension] >= 0 &&
               start.begin[dimension] + kEnd.at[dimension] < start.limit(params, dimension);
    }
    if constexpr (kRounds <= kChecked) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        copy_round(params, start, inside, round, offset[kKept > 0 ? round : 0], stage_offset);
      }
    } else {
      if (kKept > 0 && inside && channels == kWarpChannels) {
#pragma unroll
        for (int round = 0; round < kKept; ++round) {
          copy_round(params, start, true, round, offset[kKept > 0 ? round : 0], stage_offset);
        }
        return;
      }
#pragma unroll 1
      for (int round = 0; round < kRounds; ++round) {
        copy_round(params, start, inside, round, offset_of(params, round), stage_offset);
      }
    }
  }

  // One round of the lane's copies, the first of them at `place` from the stage's first element, in bytes.
  __device__ __forceinline__ void copy_round(const ReduceParams& params, const StageStart<kOfRows>& start, bool inside,
                                             int round, unsigned place, unsigned stage_offset) const {
    const long long (&stride)[5] = side_strides<kOfRows>(params);
    const int number = copy_of(round);
    if (number >= kCopies || copied_channel() >= kTogether) return;
    bool wanted = true;
    if (!inside) {
      const Position position = position_of(number);
#pragma unroll
      for (int dimension = 0; dimension < 4; ++dimension) {
        const int at = start.begin[dimension] + position.at[dimension];
        if (static_cast<unsigned>(at) >= static_cast<unsigned>(start.limit(params, dimension))) wanted = false;
      }
    }
    const char* source = reinterpret_cast<const char*>(wanted ? next : base) + (wanted ? place : 0);
    const long long step = wanted ? kTogether * stride[1] * kBytes : 0;
    const int gaps = kLines.pitch - kLineCopies * kAlong;  // at the ends of lines
    unsigned target = raw + stage_offset + copied_channel() * kChannelBytes +
                      (number * kAlong + (gaps == 0 ? 0 : number / kLineCopies * gaps)) * kElementBytes;
    if constexpr (kCopy * kBytes < 4) {
      copy_halves(target, source, step, wanted);
    } else if (channels == kWarpChannels) {
#pragma unroll kCopyUnroll
      for (int channel = 0; channel < kWarpChannels; channel += kTogether) {
        if (channel + kTogether <= kWarpChannels || channel + copied_channel() < kWarpChannels) {
          ptx::copy_async<kCopy * kBytes>(target, source, wanted);
        }
        source += step;
        target += kTogether * kChannelBytes;
      }
    } else {
#pragma unroll 1
      for (int channel = copied_channel(); channel < channels; channel += kTogether) {
        ptx::copy_async<kCopy * kBytes>(target, source, wanted);
        source += step;
        target += kTogether * kChannelBytes;
      }
    }
  }

  // Elements of two bytes on their own, too short for a copy, pass registers, some at a time.
  __device__ __forceinline__ void copy_halves(unsigned target, const char* source, long long step, bool wanted) const {
    constexpr int kAtOnce = 8;
#pragma unroll 1
    for (int channel = copied_channel(); channel < channels; channel += kAtOnce * kTogether) {
      unsigned words[kAtOnce][1];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        ptx::load_if<2>(wanted && channel + i * kTogether < channels, source + i * step, words[i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (channel + i * kTogether < channels) {
          ptx::store_shared_half(target + i * kTogether * kChannelBytes, words[i][0]);
        }
      }
      source += kAtOnce * step;
      target += kAtOnce * kTogether * kChannelBytes;
    }
  }

  __device__ __forceinline__ void advance(const ReduceParams& params, int along) {
    next += kOfRows ? params.row_advance[along] : params.column_advance[along];
  }

  // Where the first element of a group of cells stands in a channel's lines.
  static __device__ __forceinline__ int group_at(int group) {
    constexpr int kWidth = kShape.line_places(kOfRows, 3);
    constexpr int kHeight = kShape.line_places(kOfRows, 2);
    constexpr int kDepth = kShape.line_places(kOfRows, 1);
    int unit = group * kLength;
    const int w = unit % kWidth;
    unit /= kWidth;
    const int h = unit % kHeight;
    unit /= kHeight;
    const int line = (unit / kDepth * kCount1 + unit % kDepth) * kCount2 + h;
    return line * kLines.pitch + w;
  }

  // Hands the cells of the stage, numbered among those of this tensor, to store(number, cell).
  template <typename Store>
  __device__ __forceinline__ void arrange(unsigned stage_offset, const Store& store) const {
    if (channels <= 0) return;
#pragma unroll 1
    for (int channel_round = 0; channel_round < kWarpChannels; channel_round += kOthers) {
      const int channel = channel_round + lane() % kOthers;
      if (channel >= channels) continue;
      const unsigned lines = raw + stage_offset + channel * kChannelBytes;
      const int of_block = first_channel + channel;
      const int cell =
          kOfRows ? of_block : of_block / kShape.team_columns * kShape.team_cells() + of_block % kShape.team_columns;
      constexpr int kNext = kOfRows ? kShape.row_pitch() : kShape.team_columns;
#pragma unroll kGroupUnroll
      for (int round = 0; round < kGroupRounds; round += kGroupBatch) {
        // Some groups at a time, so that one's reads are under way while another's are waited for.
        unsigned words[kGroupBatch][kVector * kWords];
#pragma unroll
        for (int i = 0; i < kGroupBatch; ++i) {
          const int group = (round + i) * kLanes + lane() / kOthers;
          if (group >= kGroups) continue;
          const unsigned first = lines + group_at(group) * kElementBytes;
          constexpr LineTable kPlaces = kParts;
#pragma unroll
          for (int v = 0; v < kVector; ++v) {
            unsigned loaded[kWords];
            ptx::load_shared<kLength * kBytes>(first + kPlaces.at[v] * kElementBytes, loaded);
#pragma unroll
            for (int word = 0; word < kWords; ++word) words[i][v * kWords + word] = loaded[word];
          }
        }
#pragma unroll
        for (int i = 0; i < kGroupBatch; ++i) {
          const int group = (round + i) * kLanes + lane() / kOthers;
          if (group >= kGroups) continue;
          const int target = cell + group * kLength * kNext;
#pragma unroll
          for (int at = 0; at < kLength; ++at) store(target + at * kNext, cell_of<kWords>(words[i], at));
        }
      }
    }
  }
};

// Both tensors.
struct LineLoader {
  LineSide<true> rows;
  LineSide<false> columns;

  __device__ __forceinline__ LineLoader(const ReduceParams& params, const ReduceBlock& block, const StageOrigin& origin,
                                        int warp, unsigned raw)
      : rows(params, block, origin, warp, raw + warp * kShape.raw_side_bytes(true)),
        columns(
            params, block, origin, column_warp(warp),
            raw + kShape.row_warps * kShape.raw_side_bytes(true) + column_warp(warp) * kShape.raw_side_bytes(false)) {}

  // Warps that have nothing to do with a tensor stand behind those that share its channels.
  static __device__ __forceinline__ int column_warp(int warp) {
    if constexpr (!kShape.sides_apart()) return warp;
    return warp >= kShape.row_warps ? warp - kShape.row_warps : kShape.column_warps;
  }

  __device__ __forceinline__ void copy(const ReduceParams& params, const ReduceBlock& block, const StageOrigin& origin,
                                       int slot) const {
    rows.copy(params, block, origin, slot * kShape.raw_stage_bytes());
    columns.copy(params, block, origin, slot * kShape.raw_stage_bytes());
  }
  __device__ __forceinline__ void advance(const ReduceParams& params, int along) {
    rows.advance(params, along);
    columns.advance(params, along);
  }
  __device__ __forceinline__ void arrange(int slot, unsigned stage) const {
    const auto store_to = [](unsigned first) {
      return [first](int number, const Cell& cell) {
        if constexpr (kShape.splits()) {
          const SplitCell split(cell);
          ptx::store_16(first + number * 16, split.big);
          ptx::store_16(first + (kShape.plane_cells() + number) * 16, split.small);
        } else {
          ptx::store_16(first + number * 16, cell);
        }
      };
    };
    rows.arrange(slot * kShape.raw_stage_bytes(), store_to(stage));
    columns.arrange(slot * kShape.raw_stage_bytes(), store_to(stage + kShape.row_cells() * 16));
  }
};
