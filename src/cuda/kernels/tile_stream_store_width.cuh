// Vectors of neighbouring phases along the width; single outputs would leave in pieces of a sector.
#pragma once

#include "tile_stream_store.cuh"

// Outputs of the phases of one cell along the width, a vector at a time.
struct VectorStore {
  static constexpr int kVector = kShape.store_vector;

  const TileParams& params;
  const BlockRows& rows;
  const BlockCells& cells;
  Element* output;  // of the first sample and channel
  int channels;     // of the block that exist

  __device__ __forceinline__ VectorStore(const TileParams& tile_params, const BlockRows& block_rows,
                                         const BlockCells& block_cells)
      : params(tile_params), rows(block_rows), cells(block_cells) {
    channels = min(kShape.block_channels, kShape.out_channels - rows.first_channel);
    output = static_cast<Element*>(params.output) + cells.first[0] * params.output_strides[0] +
             (static_cast<long long>(rows.group) * kShape.out_channels + rows.first_channel) * params.output_strides[1];
  }

  // All channels of one cell of a tile; `half` says which of the thread's two.
  __device__ __forceinline__ void store(const CellTeam& team, int tile, int half, const CellPlace& place) const {
    if (cells.first[0] + place.at[0] >= params.batch) return;
    // Every residue of a span has a slot here.
    const auto site = [&](int axis, int slot) {
      return output_site(params, rows, cells, axis, place.at[1 + axis] * kShape.span[axis] + slot);
    };
    Element* const sample = output + place.at[0] * params.output_strides[0];
#pragma unroll
    for (int sd = 0; sd < kShape.slots[0]; ++sd) {
      const OutputSite d = site(0, sd);
      if (!d.inside) continue;
#pragma unroll
      for (int sh = 0; sh < kShape.slots[1]; ++sh) {
        const OutputSite h = site(1, sh);
        if (!h.inside) continue;
#pragma unroll
        for (int sw = 0; sw < kShape.slots[2]; sw += kVector) {
          const OutputSite w = site(2, sw);
          if (!w.inside) continue;
          store_channels(team, tile, half, (sd * kShape.slots[1] + sh) * kShape.slots[2] + sw,
                         sample + d.place + h.place + w.place);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ void store_channels(const CellTeam& team, int tile, int half, int slot,
                                                 Element* pixel) const {
    const int lane_channel = threadIdx.x % 4 * 2;
    const long long stride = params.output_strides[1];
    pixel += lane_channel * stride;
#pragma unroll
    for (int octet = 0; octet < kShape.block_channels / 8; ++octet) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int channel = octet * 8 + lane_channel + side;
        if (channel >= channels) return;
        const float bias = bias_of(params, rows, channel);
        float values[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i)
          values[i] = team.octet(tile, (slot + i) * kShape.block_channels / 8 + octet)[half * 2 + side] + bias;
        store_vector(pixel + (octet * 8 + side) * stride, values);
      }
    }
  }
};
