// The kernels that take every grad_weight problem. A warp sums the products of a few input and a few output channels at
// one tap over a part of the pixels; parts are added up by a second kernel. Each order of a sum is fixed.
//
// The config before this file states
//   Element     F64, F32, F16 or BF16
//   Index       int where pixels and positions fit, else long long
#include "general_weight_params.cuh"
#include "types.cuh"

using Sum = Element::Sum;
using Storage = Element::Storage;
using tconv_device::i64;

__device__ __forceinline__ i64 weight_place(const GeneralWeightParams& p, i64 group, i64 ci, i64 co, i64 tap) {
  const i64 kw = tap % p.axes[2].kernel;
  const i64 kh = tap / p.axes[2].kernel % p.axes[1].kernel;
  const i64 kd = tap / p.axes[2].kernel / p.axes[1].kernel;
  return (group * p.in_channels + ci) * p.weight_strides[0] + co * p.weight_strides[1] + kd * p.weight_strides[2] +
         kh * p.weight_strides[3] + kw * p.weight_strides[4];
}

extern "C" __global__ void __launch_bounds__(32 * kWeightWarps) tconv_general_weight(const GeneralWeightParams p) {
  constexpr int kSums = kWeightBundle * kWeightBundle;
  __shared__ Sum lanes_sums[kWeightWarps][kSums][33];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const i64 work = static_cast<i64>(blockIdx.x) * kWeightWarps + warp;
  i64 rest = work;
  const i64 tap = rest % p.taps;
  rest /= p.taps;
  const i64 co = rest % p.out_bundles * kWeightBundle;
  rest /= p.out_bundles;
  const i64 ci = rest % p.in_bundles * kWeightBundle;
  rest /= p.in_bundles;
  const i64 group = rest % p.groups;
  const i64 part = rest / p.groups;
  const bool exists = work < p.work;

  Sum sum[kWeightBundle][kWeightBundle] = {};
  if (exists) {
    // Where the tap's output of pixel 0 lies.
    Index shift[3];
    i64 taps_left = tap;
    for (int axis = 2; axis >= 0; --axis) {
      const i64 k = taps_left % p.axes[axis].kernel;
      taps_left /= p.axes[axis].kernel;
      shift[axis] = static_cast<Index>(k * p.axes[axis].dilation - p.axes[axis].pad);
    }
    const Storage* const input =
        static_cast<const Storage*>(p.input) + (group * p.in_channels + ci) * p.input_strides[1];
    const Storage* const output =
        static_cast<const Storage*>(p.output) + (group * p.out_channels + co) * p.output_strides[1];
    const Index end = static_cast<Index>(p.pixels * (part + 1) / p.parts);
    for (Index pixel = static_cast<Index>(p.pixels * part / p.parts) + lane; pixel < end; pixel += 32) {
      Index left = pixel;
      const Storage* x = input;
      const Storage* dy = output;
      bool inside = true;
      for (int axis = 2; axis >= 0; --axis) {
        const Index size = static_cast<Index>(p.axes[axis].input);
        const Index at = left % size;
        left /= size;
        const Index position = at * static_cast<Index>(p.axes[axis].stride) + shift[axis];
        inside = inside && position >= 0 && position < p.axes[axis].output;
        x += at * p.input_strides[2 + axis];
        dy += position * p.output_strides[2 + axis];
      }
      if (!inside) continue;
      x += left * p.input_strides[0];
      dy += left * p.output_strides[0];
      Sum gradient[kWeightBundle];
      for (int j = 0; j < kWeightBundle; ++j) {
        gradient[j] = co + j < p.out_channels ? Element::load(dy[j * p.output_strides[1]]) : Sum(0);
      }
      for (int i = 0; i < kWeightBundle; ++i) {
        if (ci + i >= p.in_channels) continue;
        const Sum value = Element::load(x[i * p.input_strides[1]]);
        for (int j = 0; j < kWeightBundle; ++j) sum[i][j] += value * gradient[j];
      }
    }
  }
  for (int i = 0; i < kSums; ++i) lanes_sums[warp][i][lane] = sum[i / kWeightBundle][i % kWeightBundle];
  __syncwarp();
  const i64 my_ci = ci + lane / kWeightBundle;
  const i64 my_co = co + lane % kWeightBundle;
  if (!exists || lane >= kSums || my_ci >= p.in_channels || my_co >= p.out_channels) return;
  Sum total = 0;
  for (int i = 0; i < 32; ++i) total += lanes_sums[warp][lane][i];
  if (p.parts == 1) {
    static_cast<Storage*>(p.weight)[weight_place(p, group, my_ci, my_co, tap)] = Element::store(total);
  } else {
    const i64 weight = ((group * p.in_channels + my_ci) * p.out_channels + my_co) * p.taps + tap;
    static_cast<Sum*>(p.sums)[part * p.weights + weight] = total;
  }
}

extern "C" __global__ void __launch_bounds__(256) tconv_general_weight_finish(const GeneralWeightParams p) {
  const i64 weight = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
  if (weight >= p.weights) return;
  Sum total = 0;
  for (i64 part = 0; part < p.parts; ++part) total += static_cast<const Sum*>(p.sums)[part * p.weights + weight];
  i64 rest = weight;
  const i64 tap = rest % p.taps;
  rest /= p.taps;
  const i64 co = rest % p.out_channels;
  rest /= p.out_channels;
  const i64 ci = rest % p.in_channels;
  static_cast<Storage*>(p.weight)[weight_place(p, rest / p.in_channels, ci, co, tap)] = Element::store(total);
}
