// From the sums of blocks that share a tile to a channels-last output: each block lays its sums down in shared memory,
// cell after cell, and adds up those of all blocks for its share of the outputs, vectors of channels at a time. Single
// words of another block's memory cost as much as vectors of them.
#pragma once

struct GatheredSums {
  static constexpr int kPitch = kShape.gathered_pitch();
  static constexpr int kVector = kShape.store_vector;
  static constexpr int kVectors = kShape.block_channels / kVector;  // of an output
  static_assert(kVector % 4 == 0);                                  // as the sums of other blocks come

  const TileParams& params;
  const BlockRows& rows;
  const BlockCells& cells;
  unsigned staged;

  __device__ __forceinline__ void stage(const CellTeam& team) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < CellTeam::kCellTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned cell = staged + ((team.column(tile) + half * 8) * kPitch + lane % 4 * 2) * 4;
#pragma unroll
        for (int octet = 0; octet < CellTeam::kOctets; ++octet) {
          const float (&sums)[4] = team.octet(tile, octet);
          const unsigned pair[2] = {__float_as_uint(sums[2 * half]), __float_as_uint(sums[2 * half + 1])};
          ptx::store_shared(cell + octet * 32, pair);
        }
      }
    }
  }

  // In the order of the blocks' ranks, the bias last.
  __device__ __forceinline__ void add_up(const Position& position, int channel, float (&values)[kVector]) const {
    if (position.slot >= 0) {
      const unsigned address =
          staged + (position.column * kPitch + position.slot * kShape.block_channels + channel) * 4;
#pragma unroll
      for (int first = 0; first < kVector; first += 4) {
        float parts[kShape.depth_blocks][4];
#pragma unroll
        for (int rank = 0; rank < kShape.depth_blocks; ++rank)
          ptx::load_vector_from_block(address + first * 4, rank, parts[rank]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[first + i] = parts[0][i];
#pragma unroll
          for (int rank = 1; rank < kShape.depth_blocks; ++rank) values[first + i] += parts[rank][i];
        }
      }
    }
    if (!kShape.bias) return;
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] += bias_of(params, rows, channel + i);
  }

  __device__ __forceinline__ void store(int rank) const {
    Element* const output = static_cast<Element*>(params.output) + cells.first[0] * params.output_strides[0] +
                            static_cast<long long>(rows.group) * kShape.out_channels + rows.first_channel;
    const int channels = kShape.out_channels - rows.first_channel;
#pragma unroll 1
    for (int index = rank * kThreads + threadIdx.x; index < kPositions * kVectors;
         index += kThreads * kShape.depth_blocks) {
      const Position position = position_of(params, rows, cells, index / kVectors);
      const int channel = index % kVectors * kVector;
      if (!position.inside || channel >= channels) continue;
      float values[kVector] = {};
      add_up(position, channel, values);
      store_vector(output + position.place + channel, values);
    }
  }
};

__device__ __forceinline__ void store_gathered(const TileParams& params, const TilePlace& place, const CellTeam& team,
                                               unsigned staged) {
  const GatheredSums sums{params, place.rows, place.cells, staged};
  sums.stage(team);
  ptx::cluster_barrier();
  sums.store(place.rank);
  ptx::cluster_barrier();  // before the block's shared memory is another's
}
