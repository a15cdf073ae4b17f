// From the accumulators of a streaming block straight to the output: no thread waits for another. Only where phases
// along the width or (channels-last) channels make vectors; single outputs would leave in pieces of a sector.
#pragma once

__device__ __forceinline__ void store_vector(float* out, const float (&values)[2]) {
  *reinterpret_cast<float2*>(out) = {values[0], values[1]};
}
__device__ __forceinline__ void store_vector(float* out, const float (&values)[4]) {
  *reinterpret_cast<float4*>(out) = {values[0], values[1], values[2], values[3]};
}
template <int kCount>
__device__ __forceinline__ void store_vector(unsigned short* out, const float (&values)[kCount]) {
  struct alignas(2 * kCount) Words {
    unsigned word[kCount / 2];
  } words;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i)
    words.word[i] = to_storage(values[2 * i], Element()) |
                    static_cast<unsigned>(to_storage(values[2 * i + 1], Element())) << 16;
  *reinterpret_cast<Words*>(out) = words;
}

// Outputs of one cell, a vector at a time.
struct CellStore {
  static constexpr int kVector = kShape.store_vector;
  static constexpr bool kAlongChannels = kShape.output_channels_last;
  static constexpr int kPhases = kAlongChannels ? 1 : kVector;  // of a vector

  const TileParams& params;
  const BlockRows& rows;
  const BlockCells& cells;
  int channels;  // of the block that exist

  // All channels of one cell of a tile; `half` says which of the thread's two.
  __device__ __forceinline__ void store(const CellTeam& team, int tile, int half, const CellPlace& place,
                                        Element* output) const {
    if (cells.first[0] + place.at[0] >= params.batch) return;
    const auto site = [&](int axis, int residue) {
      return output_site(params, rows, cells, axis, place.at[1 + axis] * kShape.span[axis] + residue);
    };
    output += place.at[0] * params.output_strides[0];
#pragma unroll
    for (int sd = 0; sd < kShape.slots[0]; ++sd) {
      const OutputSite d = site(0, kShape.residue_of(0, sd));
      if (!d.inside) continue;
#pragma unroll
      for (int sh = 0; sh < kShape.slots[1]; ++sh) {
        const OutputSite h = site(1, kShape.residue_of(1, sh));
        if (!h.inside) continue;
#pragma unroll
        for (int sw = 0; sw < kShape.slots[2]; sw += kPhases) {
          const OutputSite w = site(2, kShape.residue_of(2, sw));
          if (!w.inside) continue;
          const int slot = (sd * kShape.slots[1] + sh) * kShape.slots[2] + sw;
          Element* const out = output + d.place + h.place + w.place;
          if constexpr (kAlongChannels) {
            store_along_channels(team, tile, half, slot, out);
          } else {
            store_along_width(team, tile, half, slot, out);
          }
        }
      }
    }
    if constexpr (kHasGaps) {
#pragma unroll 1
      for (int residue = 0; residue < kShape.span[0] * kShape.span[1] * kShape.span[2]; ++residue) {
        const OutputSite w = site(2, residue % kShape.span[2]);
        const OutputSite h = site(1, residue / kShape.span[2] % kShape.span[1]);
        const OutputSite d = site(0, residue / (kShape.span[2] * kShape.span[1]));
        const bool has_phase = w.slot >= 0 && h.slot >= 0 && d.slot >= 0;
        if (!has_phase && w.inside && h.inside && d.inside) store_bias(output + d.place + h.place + w.place);
      }
    }
  }

 private:
  __device__ __forceinline__ void store_along_width(const CellTeam& team, int tile, int half, int slot,
                                                    Element* output) const {
    const int lane_channel = threadIdx.x % 4 * 2;
    const long long stride = params.output_strides[1];
    output += lane_channel * stride;
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
        store_vector(output + (octet * 8 + side) * stride, values);
      }
    }
  }

  // Which channels lie where is row_of_channel's.
  __device__ __forceinline__ void store_along_channels(const CellTeam& team, int tile, int half, int slot,
                                                       Element* output) const {
#pragma unroll
    for (int group = 0; group < kShape.block_channels / (4 * kVector); ++group) {
      const int channel = first_channel(group);
      if (channel >= channels) return;
      const int octet = slot * kShape.block_channels / 8 + group * kVector / 2;
      float values[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        values[i] = team.octet(tile, octet + i / 2)[half * 2 + i % 2] + bias_of(params, rows, channel + i);
      store_vector(output + channel, values);
    }
  }
  __device__ __forceinline__ void store_bias(Element* output) const {
#pragma unroll 1
    for (int group = 0; group < kShape.block_channels / (4 * kVector); ++group) {
      const int channel = first_channel(group);
      if (channel >= channels) return;
      float values[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = bias_of(params, rows, channel + i);
      store_vector(output + channel, values);
    }
  }
  static __device__ __forceinline__ int first_channel(int group) { return (group * 4 + threadIdx.x % 4) * kVector; }
};

__device__ __forceinline__ void store_directly(const TileParams& params, const BlockRows& rows, const BlockCells& cells,
                                               const CellTeam& team) {
  const CellStore store{params, rows, cells, min(kShape.block_channels, kShape.out_channels - rows.first_channel)};
  Element* const output =
      static_cast<Element*>(params.output) + cells.first[0] * params.output_strides[0] +
      (static_cast<long long>(rows.group) * kShape.out_channels + rows.first_channel) * params.output_strides[1];
#pragma unroll
  for (int tile = 0; tile < CellTeam::kCellTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const CellPlace place = cell_place(team.column(tile) + half * 8);
      if (place.exists) store.store(team, tile, half, place, output);
    }
  }
}
