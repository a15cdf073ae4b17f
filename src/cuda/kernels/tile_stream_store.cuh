// From the accumulators of a streaming block straight to the output, in vectors: no thread waits for another. What is
// stored together is said by tile_stream_store_width.cuh or tile_stream_store_channels.cuh.
#pragma once

template <int kCount>
__device__ __forceinline__ void store_vector(float* out, const float (&values)[kCount]) {
  unsigned words[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) words[i] = __float_as_uint(values[i]);
  ptx::store_words(out, words);
}
template <int kCount>
__device__ __forceinline__ void store_vector(unsigned short* out, const float (&values)[kCount]) {
  unsigned words[kCount / 2];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i)
    words[i] = kShape.math == TileMath::f16 ? ptx::pack_f16(values[2 * i], values[2 * i + 1])
                                            : ptx::pack_bf16(values[2 * i], values[2 * i + 1]);
  ptx::store_words(out, words);
}

template <typename Store>
__device__ __forceinline__ void store_directly(const Store& store, const CellTeam& team) {
#pragma unroll
  for (int tile = 0; tile < CellTeam::kCellTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const CellPlace place = cell_place(team.column(tile) + half * 8);
      if (place.exists) store.store(team, tile, half, place);
    }
  }
}
