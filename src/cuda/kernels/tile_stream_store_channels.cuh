// From the accumulators of a streaming block straight to the output, no thread waiting for another: vectors of
// neighbouring channels of a channels-last pixel, of which four threads fill whole sectors.
#pragma once

// Outputs of one cell, a vector at a time.
struct VectorStore {
  static constexpr int kVector = kShape.store_vector;
  static constexpr int kGroups = kShape.block_channels / (4 * kVector);  // of four threads' vectors

  const TileParams& params;
  const BlockRows& rows;
  const BlockCells& cells;
  Element* origin;    // the output of the tile's first cell and residue, which may lie outside, and its first channel
  int channels;       // of the block that exist
  bool whole;         // all outputs of the tile are inside
  unsigned exchange;  // shared memory of the warp

  __device__ __forceinline__ VectorStore(const TileParams& tile_params, const BlockRows& block_rows,
                                         const BlockCells& block_cells, unsigned exchanges)
      : params(tile_params), rows(block_rows), cells(block_cells) {
    exchange = exchanges + threadIdx.x / 32 * (kShape.exchange_bytes() / (kThreads / 32));
    channels = min(kShape.block_channels, kShape.out_channels - rows.first_channel);
    origin = static_cast<Element*>(params.output) + cells.first[0] * params.output_strides[0] +
             static_cast<long long>(rows.group) * kShape.out_channels + rows.first_channel;
    whole = cells.first[0] + kShape.tile[0] <= params.batch;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      const int first = first_output(axis);
      origin += first * params.output_strides[2 + axis];
      const int last = first + (kShape.tile[1 + axis] - 1) * kShape.output_step(axis) + kShape.span[axis] - 1;
      whole = whole && first >= 0 && last < params.output_size[axis] &&
              rows.first_residue[axis] + kShape.span[axis] <= kShape.output_step(axis);
    }
  }
  __device__ __forceinline__ int first_output(int axis) const {
    return cells.first[1 + axis] * kShape.output_step(axis) + rows.first_residue[axis] - output_pad(params, axis);
  }

  // A bit for each slot of an axis whose output exists.
  __device__ __forceinline__ unsigned inside(int axis, int cell) const {
    unsigned bits = 0;
#pragma unroll
    for (int slot = 0; slot < kShape.slots[axis]; ++slot)
      bits |= output_site(params, rows, cells, axis, cell * kShape.span[axis] + kShape.residue_of(axis, slot)).inside
              << slot;
    return bits;
  }
  // Inside a tile distances are 32-bit: the planner sees to that.
  __device__ __forceinline__ int distance(int axis, int outputs) const {
    return outputs * static_cast<int>(params.output_strides[2 + axis]);
  }

  // All outputs of one cell of a tile; `half` says which of the thread's two. Warps come together.
  __device__ __forceinline__ void store(const CellTeam& team, int tile, int half, const CellPlace& place) const {
    unsigned exists[3] = {~0u, ~0u, ~0u};
    bool wanted = place.exists;
    if (!whole) {
      wanted = wanted && cells.first[0] + place.at[0] < params.batch;
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) exists[axis] = wanted ? inside(axis, place.at[1 + axis]) : 0;
    }
    int from = place.at[0] * static_cast<int>(params.output_strides[0]);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) from += distance(axis, place.at[1 + axis] * kShape.output_step(axis));
    Element* const first = origin + from;
    if constexpr (kShape.exchanges_channels()) {
      exchange_cell(team, tile, half, first, exists, wanted);
    } else if (wanted) {
#pragma unroll
      for (int slot = 0; slot < kShape.all_slots(); ++slot) {
        if (!has_output(exists, slot)) continue;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          float values[kVector];
          take_sums(team, tile, half, slot * kGroups + group, values);
          store_group(first + slot_distance(slot), group, values);
        }
      }
    }
    if constexpr (kHasGaps) {
      if (wanted) store_gaps(first, place);
    }
  }

 private:
  static __device__ __forceinline__ int slot_along(int axis, int slot) {
    return axis == 2   ? slot % kShape.slots[2]
           : axis == 1 ? slot / kShape.slots[2] % kShape.slots[1]
                       : slot / (kShape.slots[2] * kShape.slots[1]);
  }
  static __device__ __forceinline__ bool has_output(const unsigned (&exists)[3], int slot) {
    return (exists[0] >> slot_along(0, slot) & exists[1] >> slot_along(1, slot) & exists[2] >> slot_along(2, slot) &
            1) != 0;
  }
  // From a cell's first output to that of a slot.
  __device__ __forceinline__ int slot_distance(int slot) const {
    int to = 0;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) to += distance(axis, kShape.residue_of(axis, slot_along(axis, slot)));
    return to;
  }
  // A vector's sums, of slot after slot; which channels they are is row_of_channel's.
  static __device__ __forceinline__ void take_sums(const CellTeam& team, int tile, int half, int vector,
                                                   float (&values)[kVector]) {
    const int octet = vector / kGroups * kShape.block_channels / 8 + vector % kGroups * kVector / 2;
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = team.octet(tile, octet + i / 2)[half * 2 + i % 2];
  }

  // Adds the bias.
  __device__ __forceinline__ void store_group(Element* pixel, int group, float (&values)[kVector]) const {
    const int channel = (group * 4 + threadIdx.x % 4) * kVector;
    if (channel >= channels) return;
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] += bias_of(params, rows, channel + i);
    store_vector(pixel + channel, values);
  }

  // The same for sums of which a thread has two channels in each eight: the warp exchanges them, eight cells by 32
  // channels for one vector each, a few at a time. A cell of an eight moves by two places from one eight to the next,
  // so that reads meet no bank twice.
  __device__ __forceinline__ void exchange_cell(const CellTeam& team, int tile, int half, Element* first,
                                                const unsigned (&exists)[3], bool wanted) const {
    constexpr int kVectors = kShape.all_slots() * kGroups;
    constexpr int kAtOnce = TileShape::kExchanges;
    const int lane = threadIdx.x % 32;
    const auto place = [&](int index, int octet, int cell) {
      return exchange + index * 512 + octet * 128 + (cell + 2 * octet) % 8 * 16;
    };
#pragma unroll
    for (int begin = 0; begin < kVectors; begin += kAtOnce) {
      const int count = min(kAtOnce, kVectors - begin);
      __syncwarp();  // what was there has been read
#pragma unroll
      for (int i = 0; i < count; ++i) {
        float values[kVector];
        take_sums(team, tile, half, begin + i, values);
        const int channel = (begin + i) % kGroups * 32 + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < kVector; ++j) values[j] += bias_of(params, rows, channel + j / 2 * 8 + j % 2);
        unsigned words[4] = {};
        pack_vector(values, words);
        ptx::store_matrices(place(i, lane / 8, lane % 8), words);
      }
      __syncwarp();
      unsigned words[kAtOnce][4];
#pragma unroll
      for (int i = 0; i < count; ++i) ptx::load_shared<16>(place(i, lane % 4, lane / 4), words[i]);
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const int slot = (begin + i) / kGroups;
        const int channel = ((begin + i) % kGroups * 4 + lane % 4) * kVector;
        if (wanted && has_output(exists, slot) && channel < channels)
          ptx::store_words(first + slot_distance(slot) + channel, words[i]);
      }
    }
  }

  // Outputs of no phase.
  __device__ __forceinline__ void store_gaps(Element* first, const CellPlace& place) const {
#pragma unroll 1
    for (int residue = 0; residue < kShape.span[0] * kShape.span[1] * kShape.span[2]; ++residue) {
      const int at[3] = {residue / (kShape.span[2] * kShape.span[1]), residue / kShape.span[2] % kShape.span[1],
                         residue % kShape.span[2]};
      bool wanted = true;
      bool has_phase = true;
      Element* pixel = first;
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) {
        const OutputSite site =
            output_site(params, rows, cells, axis, place.at[1 + axis] * kShape.span[axis] + at[axis]);
        wanted = wanted && site.inside;
        has_phase = has_phase && site.slot >= 0;
        pixel += distance(axis, at[axis]);
      }
      if (!wanted || has_phase) continue;
#pragma unroll 1
      for (int group = 0; group < kGroups; ++group) {
        float values[kVector] = {};
        store_group(pixel, group, values);
      }
    }
  }
};

__device__ __forceinline__ void store_directly(const VectorStore& store, const CellTeam& team) {
#pragma unroll
  for (int tile = 0; tile < CellTeam::kCellTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Worked out for each tile of outputs rather than kept in registers that the products need.
      const CellPlace place = cell_place(ptx::opaque(team.column(tile)) + half * 8);
      store.store(team, tile, half, place);
    }
  }
}
