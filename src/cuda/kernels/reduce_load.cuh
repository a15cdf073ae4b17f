// From the two tensors into a block's shared memory: pixels become cells of V pixels of one channel.
#pragma once

#include "reduce_params.cuh"
#include "tile_element.cuh"

constexpr int kThreads = kShape.threads();
constexpr int kVector = kShape.vector();

// What a block computes, and which part of the pixels it adds up.
struct ReduceBlock {
  int part;
  int tile;  // among those of a part
  int group;
  int first_row;
  int first_column;
  int first_tap[3];

  __device__ __forceinline__ ReduceBlock(const ReduceParams& params, int index) {
    const int tiles = reduce_tiles(params);
    part = index / tiles;
    tile = index % tiles;
    int rest = tile;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      first_tap[axis] = rest % params.tap_blocks[axis] * kShape.taps[axis];
      rest /= params.tap_blocks[axis];
    }
    first_column = rest % params.column_blocks * kShape.block_columns();
    rest /= params.column_blocks;
    first_row = rest % params.row_blocks * kShape.block_rows();
    group = rest / params.row_blocks;
  }
};

// Which of the packed images of each tensor a block multiplies.
__device__ __forceinline__ long long row_image(const ReduceParams& params, const ReduceBlock& block) {
  return block.group * params.row_blocks + block.first_row / kShape.block_rows();
}
__device__ __forceinline__ long long column_image(const ReduceParams& params, const ReduceBlock& block) {
  long long image = block.group * params.column_blocks + block.first_column / kShape.block_columns();
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    image = image * params.tap_blocks[axis] + block.first_tap[axis] / kShape.taps[axis];
  }
  return image;
}

// Elements between the start of a vector and the first that a block's taps read along the width.
__device__ __forceinline__ int column_lead(const ReduceParams& params, const ReduceBlock& block) {
  constexpr int kUnit = kShape.column_unit();
  if (kUnit == 1) return 0;
  const int first = block.first_tap[2] * kShape.tap_step[2] - params.pad[2];
  return (first % kUnit + kUnit) % kUnit;
}

template <bool kOfRows>
__device__ __forceinline__ const long long (&side_strides(const ReduceParams& params))[5] {
  if constexpr (kOfRows) {
    return params.row_strides;
  } else {
    return params.column_strides;
  }
}

// The pixels of a stage: the first sample and the first pixel along each axis.
struct StageOrigin {
  int first[4];

  __device__ __forceinline__ StageOrigin(const ReduceParams& params, int index) {
#pragma unroll
    for (int dimension = 3; dimension >= 0; --dimension) {
      first[dimension] = index % params.tiles[dimension] * step(dimension);
      index /= params.tiles[dimension];
    }
  }

  // The dimension along which the next stage lies.
  __device__ __forceinline__ int advance(const ReduceParams& params) {
    int along = 3;
    first[3] += step(3);
#pragma unroll
    for (int dimension = 3; dimension > 0; --dimension) {
      if (first[dimension] >= params.tiles[dimension] * step(dimension)) {
        first[dimension] = 0;
        first[dimension - 1] += step(dimension - 1);
        along = dimension - 1;
      }
    }
    return along;
  }

  static constexpr int step(int dimension) { return kShape.tile[dimension] * kShape.split[dimension]; }
};

// The first element of a stage in one of the tensors, inside of it or not, along samples and axes.
template <bool kOfRows>
struct StageStart {
  int begin[4];

  StageStart() = default;
  __device__ __forceinline__ StageStart(const ReduceParams& params, const ReduceBlock& block, const StageOrigin& origin,
                                        int lead) {
#pragma unroll
    for (int dimension = 0; dimension < 4; ++dimension) {
      const int axis = dimension - 1;
      begin[dimension] = origin.first[dimension];
      if (!kOfRows && dimension > 0) {
        begin[dimension] = begin[dimension] * kShape.step[axis] + block.first_tap[axis] * kShape.tap_step[axis] -
                           params.pad[axis] - (axis == 2 ? lead : 0);
      }
    }
  }

  static __device__ __forceinline__ int limit(const ReduceParams& params, int dimension) {
    if (dimension == 0) return params.batch;
    return kOfRows ? params.row_size[dimension - 1] : params.column_size[dimension - 1];
  }
};

// The pixels of one channel, out of vectors of neighbours, one vector for each part of the cell.
template <int kWords>
__device__ __forceinline__ Cell cell_of(const unsigned* words, int at) {
  Cell cell;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    if constexpr (kShape.element_bytes == 4) {
      const unsigned bits = words[word * kWords + at];
      cell.word[word] = kRoundsToTf32 ? ptx::round_to_tf32(__uint_as_float(bits)) : bits;
    } else {
      const unsigned low = words[2 * word * kWords + at / 2];
      const unsigned high = words[(2 * word + 1) * kWords + at / 2];
      cell.word[word] = at % 2 == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
    }
  }
  return cell;
}

// Where the cells of a unit lie: from the stage's first element in bytes, and along samples and axes.
struct alignas(16) UnitPlace {
  unsigned offset;
  unsigned short at[4];
};

// One of the two tensors. A warp loads chunks of 32 vectors: neighbouring channels for neighbouring lanes, then units.
template <bool kOfRows>
struct Side {
  static constexpr bool kChannelsLast = kOfRows ? kShape.rows_channels_last : kShape.columns_channels_last;
  static constexpr int kUnits = kOfRows ? kShape.row_units() : kShape.column_units();
  static constexpr int kChannels = kOfRows ? kShape.loaded_rows() : kShape.loaded_columns();
  static constexpr int kLength = kOfRows ? kShape.row_vector : kShape.column_vector;
  static constexpr int kLanes = kOfRows ? kShape.row_lanes : kShape.column_lanes;
  static constexpr int kOthers = 32 / kLanes;
  static constexpr int kUnitsStep = kChannelsLast ? 1 : kLength;  // units and channels of a vector
  static constexpr int kChannelsStep = kChannelsLast ? kLength : 1;
  static constexpr int kUnitGroups = (kUnits / kUnitsStep + kLanes - 1) / kLanes;
  static constexpr int kChunks = kOfRows ? kShape.row_chunks() : kShape.column_chunks();
  static constexpr int kBatch = kOfRows ? kShape.row_batch() : kShape.column_batch();
  static constexpr int kWords = kShape.vector_words(kLength);
  static constexpr unsigned kNothing = ~0u;

  const Element* base;  // sample 0, the block's first channel
  int channels;         // of the block
  unsigned channel_bytes;
  int lead;  // elements along the width before the block's first, so that vectors start at multiples of their length
  const UnitPlace* places;

  // The stage that is loaded next: its first element, inside the tensor or not, and whether all of it is inside.
  const Element* start;
  StageStart<kOfRows> at_start;
  bool inside;

  unsigned words[kBatch * kVector * kWords];  // on their way

  __device__ __forceinline__ Side(const ReduceParams& params, const ReduceBlock& block, UnitPlace* table) {
    const long long (&stride)[5] = side_strides<kOfRows>(params);
    const int first_channel = kOfRows ? block.first_row : block.first_column;
    const int all = kOfRows ? kShape.rows : kShape.columns;
    base = static_cast<const Element*>(kOfRows ? params.rows : params.columns) +
           (static_cast<long long>(block.group) * all + first_channel) * stride[1];
    channels = min(kChannels, all - first_channel);
    channel_bytes = static_cast<unsigned>(stride[1] * kShape.element_bytes);
    lead = kOfRows ? 0 : column_lead(params, block);
    places = table;
#pragma unroll 1
    for (int unit = threadIdx.x; unit < kUnits; unit += kThreads) {
      UnitPlace place;
      int rest = unit;
#pragma unroll
      for (int axis = 2; axis >= 0; --axis) {
        const int extent = kOfRows ? kShape.tile[1 + axis] : kShape.extent(axis);
        place.at[1 + axis] = kOfRows ? rest % extent : kShape.reach(axis, rest % extent);
        rest /= extent;
      }
      place.at[0] = rest;
      const long long elements =
          place.at[0] * stride[0] + place.at[1] * stride[2] + place.at[2] * stride[3] + place.at[3] * stride[4];
      place.offset = static_cast<unsigned>(elements * kShape.element_bytes);
      table[unit] = place;
    }
  }

  static __device__ __forceinline__ int unit_of(int chunk) {
    return (chunk % kUnitGroups * kLanes + threadIdx.x % 32 / kOthers) * kUnitsStep;
  }
  static __device__ __forceinline__ int channel_of(int chunk) {
    return (chunk / kUnitGroups * kOthers + threadIdx.x % kOthers) * kChannelsStep;
  }
  static __device__ __forceinline__ int chunk_of(int batch, int item) {
    return (batch * kBatch + item) * kShape.team_warps() + threadIdx.x / 32;
  }

  // How far a vector lies from the stage's first element, in bytes.
  __device__ __forceinline__ unsigned offset_of(int chunk) const {
    const int unit = unit_of(chunk);
    const int channel = channel_of(chunk);
    const bool exists = chunk < kChunks && unit < kUnits && channel < channels;
    return exists ? places[min(unit, kUnits - 1)].offset + channel * channel_bytes : kNothing;
  }

  __device__ __forceinline__ void prepare(const ReduceParams& params, const ReduceBlock& block,
                                          const StageOrigin& origin) {
    const long long (&stride)[5] = side_strides<kOfRows>(params);
    at_start = StageStart<kOfRows>(params, block, origin, lead);
    start = base;
    inside = true;
#pragma unroll
    for (int dimension = 0; dimension < 4; ++dimension) {
      const int begin = at_start.begin[dimension];
      start += begin * stride[dimension == 0 ? 0 : 1 + dimension];
      const int last_unit = kOfRows || dimension == 0 ? kShape.tile[dimension] - 1
                                                      : kShape.reach(dimension - 1, kShape.extent(dimension - 1) - 1);
      const int end = begin + (kShape.split[dimension] - 1) * kShape.part_step(kOfRows, dimension) + last_unit;
      inside = inside && begin >= 0 && end < at_start.limit(params, dimension);
    }
  }

  // The pixels of a vector's cells that exist, a bit each.
  __device__ __forceinline__ unsigned mask_of(const ReduceParams& params, int chunk) const {
    const UnitPlace place = places[min(unit_of(chunk), kUnits - 1)];
    unsigned mask = ~0u;
#pragma unroll
    for (int dimension = 0; dimension < 4; ++dimension) {
#pragma unroll
      for (int part = 0; part < kShape.split[dimension]; ++part) {
        const int position =
            at_start.begin[dimension] + place.at[dimension] + part * kShape.part_step(kOfRows, dimension);
        if (static_cast<unsigned>(position) >= static_cast<unsigned>(at_start.limit(params, dimension))) {
          mask &= ~kShape.part_bits(dimension, part);
        }
      }
    }
    return mask;
  }

  // Loads the pixels of one batch of the thread's vectors.
  __device__ __forceinline__ void fetch(const ReduceParams& params, int batch) {
    const long long (&stride)[5] = side_strides<kOfRows>(params);
    unsigned offsets[kBatch];
    unsigned masks[kBatch];
#pragma unroll
    for (int item = 0; item < kBatch; ++item) {
      offsets[item] = offset_of(chunk_of(batch, item));
      masks[item] = offsets[item] != kNothing ? ~0u : 0u;
    }
    if (!inside) {
#pragma unroll
      for (int item = 0; item < kBatch; ++item) masks[item] &= mask_of(params, chunk_of(batch, item));
    }
    const char* parts[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const Element* part = start;
#pragma unroll
      for (int dimension = 0; dimension < 4; ++dimension) {
        part += kShape.part_of(v, dimension) * kShape.part_step(kOfRows, dimension) *
                stride[dimension == 0 ? 0 : 1 + dimension];
      }
      parts[v] = reinterpret_cast<const char*>(part);
    }
#pragma unroll
    for (int item = 0; item < kBatch; ++item) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        unsigned loaded[kWords];
        ptx::load_if<kLength * kShape.element_bytes>(masks[item] & 1u << v, parts[v] + offsets[item], loaded);
#pragma unroll
        for (int word = 0; word < kWords; ++word) words[(item * kVector + v) * kWords + word] = loaded[word];
      }
    }
  }

  __device__ __forceinline__ void store(unsigned stage, int batch) const {
#pragma unroll
    for (int item = 0; item < kBatch; ++item) {
      const int chunk = chunk_of(batch, item);
      const int unit = unit_of(chunk);
      const int channel = channel_of(chunk);
      if (chunk >= kChunks || unit >= kUnits || channel >= kChannels) continue;
      const int cell = kOfRows ? unit * kShape.row_pitch() + channel
                               : kShape.row_cells() + channel / kShape.team_columns * kShape.team_cells() +
                                     unit * kShape.team_columns + channel % kShape.team_columns;
      constexpr int kNext = kChannelsLast ? 1 : kOfRows ? kShape.row_pitch() : kShape.team_columns;
#pragma unroll
      for (int at = 0; at < kLength; ++at)
        ptx::store_16(stage + (cell + at * kNext) * 16, cell_of<kWords>(words + item * kVector * kWords, at));
    }
  }
};

// Both tensors, in batches of as many cells as a thread can hold on their way.
struct Loader {
  Side<true> rows;
  Side<false> columns;

  __device__ __forceinline__ Loader(const ReduceParams& params, const ReduceBlock& block, UnitPlace* table)
      : rows(params, block, table), columns(params, block, table + kShape.row_units()) {}

  // Which stage is loaded next.
  __device__ __forceinline__ void prepare(const ReduceParams& params, const ReduceBlock& block,
                                          const StageOrigin& origin) {
    rows.prepare(params, block, origin);
    columns.prepare(params, block, origin);
  }

  __device__ __forceinline__ void fetch(const ReduceParams& params, int batch) {
    if (batch < kShape.row_batches()) {
      rows.fetch(params, batch);
    } else {
      columns.fetch(params, batch - kShape.row_batches());
    }
  }

  __device__ __forceinline__ void store(unsigned stage, int batch) const {
    if (batch < kShape.row_batches()) {
      rows.store(stage, batch);
    } else {
      columns.store(stage, batch - kShape.row_batches());
    }
  }
};
