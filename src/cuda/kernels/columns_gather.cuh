// Outputs out of the columns: each adds up what its taps find there.
#pragma once

#include "columns_load.cuh"

__device__ __forceinline__ float loaded(F32, float value) { return value; }
__device__ __forceinline__ float loaded(F16, unsigned short bits) { return ptx::widen_f16(bits); }
__device__ __forceinline__ float loaded(BF16, unsigned short bits) { return BF16::load(bits); }
__device__ __forceinline__ float stored(F32, float value) { return value; }
__device__ __forceinline__ unsigned short stored(F16, float value) { return ptx::round_to_f16(value); }
__device__ __forceinline__ unsigned short stored(BF16, float value) { return ptx::round_to_bf16(value); }

__device__ __forceinline__ unsigned packed_pair(F16, float low, float high) { return ptx::pack_f16(low, high); }
__device__ __forceinline__ unsigned packed_pair(BF16, float low, float high) { return ptx::pack_bf16(low, high); }

constexpr int kRun = kShape.run_channels;

// Steps through the columns, in elements.
constexpr int kCellPitch = kShape.column_pitch();
constexpr int kSlotPitch = (kShape.taps_inner ? 1 : kShape.block_channels) * kCellPitch;
constexpr int kChannelPitch = (kShape.taps_inner ? kShape.all_slots() : 1) * kCellPitch;

// From one slot of an axis to the next, from one cell to the next, and from one tap of a phase to the next.
constexpr int slot_step(int a) { return a == 2 ? kSlotPitch : slot_step(a + 1) * kShape.slots(a + 1); }
constexpr int cell_step(int a) { return a == 2 ? 1 : cell_step(a + 1) * kShape.box_input(a + 1); }
constexpr int tap_step(int a) {
  return (kShape.one_phase ? 1 : kShape.tap_step[a]) * slot_step(a) - kShape.input_step[a] * cell_step(a);
}
// Taps of an output along an axis at most: those of a phase, each with a cell of its own.
constexpr int most_taps(int a) {
  const int taps = (kShape.kernel[a] - 1) / kShape.tap_step[a] + 1;
  const int cells = (kShape.input[a] - 1) / kShape.input_step[a] + 1;
  return taps < cells ? taps : cells;
}

// The taps that reach an output along one axis: where the first is in the columns, and how many there are.
struct ColumnsReach {
  int at;
  int taps;
};

template <int kAxis>
__device__ __forceinline__ ColumnsReach reach_of(const ColumnsBlock& block, int output) {
  constexpr int kStride = kShape.stride[kAxis];
  constexpr int kStep = kShape.input_step[kAxis];
  const int position = output + kShape.pad[kAxis];
  const int first = first_tap(kAxis, position % kStride);
  const int offset = position - first * kShape.dilation[kAxis];
  if (first < 0 || first >= kShape.kernel[kAxis] || offset < 0) return {0, 0};
  const int input = offset / kStride;
  const int taps = (kShape.kernel[kAxis] - 1 - first) / kShape.tap_step[kAxis] + 1;
  const int begin = input >= kShape.input[kAxis] ? (input - kShape.input[kAxis]) / kStep + 1 : 0;
  const int end = min(taps, input / kStep + 1);
  const int cell = input - (kShape.box_axis == kAxis ? block.first_input : 0);
  return {(kShape.one_phase ? 0 : first) * slot_step(kAxis) + cell * cell_step(kAxis) + begin * tap_step(kAxis),
          end - begin};
}

// The place along an axis that `rest` has, and the output there.
template <int kAxis>
__device__ __forceinline__ int take_output(const ColumnsBlock& block, int& rest) {
  const int place = rest % kShape.places(kAxis);
  rest /= kShape.places(kAxis);
  const bool cut = kShape.boxes > 1 && kAxis == kShape.box_axis;
  if (!kShape.one_phase && !cut) return place;
  const int first_q = cut ? block.first_q : kShape.first_cell(kAxis);
  const int position = kShape.one_phase ? (first_q + place) * kShape.stride[kAxis] + block.residue[kAxis]
                                        : first_q * kShape.stride[kAxis] + place;
  return position - kShape.pad[kAxis];
}

// Adds up the taps of a pixel's outputs in the channels of a thread.
__device__ __forceinline__ void add_taps(float (&total)[kRun], const float* from, const ColumnsReach (&reach)[3]) {
  constexpr int kMost = most_taps(0) * most_taps(1) * most_taps(2);
#pragma unroll(kMost <= 16 ? most_taps(0) : 1)
  for (int d = 0; d < most_taps(0); ++d) {
#pragma unroll(kMost <= 16 ? most_taps(1) : 1)
    for (int h = 0; h < most_taps(1); ++h) {
#pragma unroll(kMost <= 16 ? most_taps(2) : 1)
      for (int w = 0; w < most_taps(2); ++w) {
        const bool exists = d < reach[0].taps && h < reach[1].taps && w < reach[2].taps;
        const int at = d * tap_step(0) + h * tap_step(1) + w * tap_step(2);
#pragma unroll
        for (int run = 0; run < kRun; ++run) {
          if (exists) total[run] += from[at + run * kChannelPitch];
        }
      }
    }
  }
}

// Channels that are neighbours in memory leave by one store.
template <typename Type, int kCount>
__device__ __forceinline__ void store_run(void* output, const float (&total)[kCount]) {
  constexpr int kPerWord = 4 / sizeof(typename Type::Storage);
  unsigned words[kCount / kPerWord];
#pragma unroll
  for (int i = 0; i < kCount / kPerWord; ++i) {
    if constexpr (kPerWord == 1) {
      words[i] = __float_as_uint(total[i]);
    } else {
      words[i] = packed_pair(Type{}, total[2 * i], total[2 * i + 1]);
    }
  }
  ptx::store_words(output, words);
}

__device__ __forceinline__ void gather_outputs(const ColumnsParams& p, const ColumnsBlock& block,
                                               const float* columns) {
  constexpr int kRuns = kShape.block_channels / kRun;
  constexpr int kItems = kShape.samples * kRuns * kShape.all_places();
  const int first_out = block.group * kShape.out_channels + block.first_channel;
  Storage* const output =
      static_cast<Storage*>(p.output) + block.sample * p.output_strides[0] + first_out * p.output_strides[1];
#pragma unroll 1
  for (int item = threadIdx.x; item < kItems; item += kThreads) {
    int rest = item;
    int channel = 0;
    if constexpr (kShape.output_channels_last) {
      channel = rest % kRuns * kRun;
      rest /= kRuns;
    }
    const int w = take_output<2>(block, rest);
    const int h = take_output<1>(block, rest);
    const int d = take_output<0>(block, rest);
    if constexpr (!kShape.output_channels_last) {
      channel = rest % kRuns * kRun;
      rest /= kRuns;
    }
    const int sample = rest;
    const bool inside = static_cast<unsigned>(w) < static_cast<unsigned>(kShape.output[2]) &&
                        static_cast<unsigned>(h) < static_cast<unsigned>(kShape.output[1]) &&
                        static_cast<unsigned>(d) < static_cast<unsigned>(kShape.output[0]);
    if (!inside || channel >= block.channels || sample >= block.samples) continue;

    const ColumnsReach reach[3] = {reach_of<0>(block, d), reach_of<1>(block, h), reach_of<2>(block, w)};
    float total[kRun] = {};
    add_taps(total,
             columns + channel * kChannelPitch + sample * kShape.box_cells() + reach[0].at + reach[1].at + reach[2].at,
             reach);
    if constexpr (kShape.bias) {
#pragma unroll
      for (int run = 0; run < kRun; ++run) {
        if (channel + run < block.channels)
          total[run] += loaded(Element{}, static_cast<const Storage*>(p.bias)[first_out + channel + run]);
      }
    }
    Storage* const place = output + sample * p.output_strides[0] + channel * p.output_strides[1] +
                           d * p.output_strides[2] + h * p.output_strides[3] + w * p.output_strides[4];
    if constexpr (kShape.stores_runs) {
      store_run<Element>(place, total);
    } else {
#pragma unroll
      for (int run = 0; run < kRun; ++run) {
        if (channel + run < block.channels) place[run * p.output_strides[1]] = stored(Element{}, total[run]);
      }
    }
  }
}
