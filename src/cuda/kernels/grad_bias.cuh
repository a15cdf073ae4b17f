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

__device__ __forceinline__ tconv_device::i64 place_of(const GradBiasParams& p, Index element) {
  if (kRows == 1) return element * p.strides[3];
  const Index columns = static_cast<Index>(p.sizes[3]);
  Index row = element / columns;
  tconv_device::i64 place = (element - row * columns) * p.strides[3];
  if (kRows == 2) return place + row * p.strides[0];
  for (int i = 2; i >= 0; --i) {
    const Index size = static_cast<Index>(p.sizes[i]);
    place += row % size * p.strides[i];
    row /= size;
  }
  return place;
}

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
    for (; element + 3 * kAtOnce < end; element += 4 * kAtOnce) {
#ifdef __CUDACC__
#pragma unroll
#endif
      for (int i = 0; i < 4; ++i) sum[i] += In::load(input[place_of(p, element + i * kAtOnce)]);
    }
    for (; element < end; element += kAtOnce) sum[0] += In::load(input[place_of(p, element)]);
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
