// Sums a tensor per channel, in an order that depends on its shape alone. A block sums one part of one channel, or of
// 32 where channels are neighbours in memory; the parts are summed by the same kernel, once more.
//
// The config before this file states
//   In, Out          F64, F32, F16 or BF16; sums are kept in In's type of sums
//   Index            int where the elements of a channel can be counted with it, else long long
//   kAcross          neighbouring threads take neighbouring channels
//   kRows            positions that vary: 1 (one run of memory), 2 (rows of it), 4
#include "grad_bias_params.cuh"
#include "types.cuh"

using Sum = In::Sum;

constexpr int kAtOnce = kAcross ? kBiasThreads / kBiasLanes : kBiasThreads;  // threads that share a channel

// A thread's way through the elements of its channel: a row of memory and a place in it, moved without a division.
struct Cursor {
  Index row;
  Index column;
  Index row_step;
  Index column_step;
  Index columns;

  __device__ __forceinline__ Cursor(const GradBiasParams& p, Index element) {
    columns = kRows == 1 ? 1 : static_cast<Index>(p.sizes[3]);
    row = element / columns;
    column = element - row * columns;
    row_step = kAtOnce / columns;
    column_step = kAtOnce - row_step * columns;
  }

  __device__ __forceinline__ void advance() {
    row += row_step;
    column += column_step;
    if (kRows > 1 && column >= columns) {
      column -= columns;
      ++row;
    }
  }

  __device__ __forceinline__ tconv_device::i64 place(const GradBiasParams& p) const {
    if (kRows == 1) return row * p.strides[3];
    tconv_device::i64 place = column * p.strides[3];
    if (kRows == 2) return place + row * p.strides[0];
    Index rest = row;
    for (int i = 2; i >= 0; --i) {
      const Index size = static_cast<Index>(p.sizes[i]);
      place += rest % size * p.strides[i];
      rest /= size;
    }
    return place;
  }
};

extern "C" __global__ void __launch_bounds__(kBiasThreads) tconv_grad_bias(const GradBiasParams p) {
  __shared__ Sum sums[kBiasThreads];
  const int thread = threadIdx.x;
  const tconv_device::i64 part = blockIdx.x % p.parts;
  const tconv_device::i64 block = blockIdx.x / p.parts;
  const tconv_device::i64 channel = kAcross ? block * kBiasLanes + thread % kBiasLanes : block;
  const int first = kAcross ? thread / kBiasLanes : thread;

  Sum sum[4] = {};
  if (channel < p.channels) {
    const In::Storage* const input = static_cast<const In::Storage*>(p.input) + channel * p.channel_stride;
    const Index begin = static_cast<Index>(p.elements * part / p.parts);
    const Index end = static_cast<Index>(p.elements * (part + 1) / p.parts);
    Index element = begin + first;
    Cursor cursor(p, element);
    for (; element + 3 * kAtOnce < end; element += 4 * kAtOnce) {
#ifdef __CUDACC__
#pragma unroll
#endif
      for (int i = 0; i < 4; ++i) {
        sum[i] += In::load(input[cursor.place(p)]);
        cursor.advance();
      }
    }
    for (; element < end; element += kAtOnce) {
      sum[0] += In::load(input[cursor.place(p)]);
      cursor.advance();
    }
  }
  sums[thread] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  constexpr int kLeast = kAcross ? kBiasLanes : 1;
  for (int half = kBiasThreads / 2; half >= kLeast; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  if (thread < kLeast && channel < p.channels) {
    static_cast<Out::Storage*>(p.output)[channel * p.parts + part] = Out::store(sums[thread]);
  }
}
