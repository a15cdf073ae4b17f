// The kernel that takes every problem of the directions forward and grad_input: each thread gathers one pixel of a few
// channels from the taps that reach it. What is read is called input and what is written output, whichever of the
// layer's tensors that is. Only the element type and a few constants are compiled in, so that one compilation serves
// every shape.
//
// The config before this file states
//   Element                 F64, F32, F16 or BF16
//   Index                   int where positions, tap distances and products of residues fit, else long long
//   kBundle                 output channels of a thread
//   kGradient               whether outputs gather as the layer's inputs do: each from all its taps
#include "general_params.cuh"
#include "types.cuh"

using Sum = Element::Sum;
using Storage = Element::Storage;

// Loads in flight per thread; 64-bit positions leave no registers for more.
constexpr int kUnroll = sizeof(Index) == 8 ? 1 : 4;

// The taps that reach one output along one axis: taps first + t tap_step read inputs start - t input_step, begin <= t <
// end. (input_step is negative for a gradient.)
struct Reach {
  Index first;
  Index start;
  Index begin;
  Index end;
};

__device__ __forceinline__ Index first_tap(const GeneralAxis& axis, Index residue) {
  if (axis.inverse >= 0) {
    return residue / static_cast<Index>(axis.common) * static_cast<Index>(axis.inverse) %
           static_cast<Index>(axis.tap_step);
  }
  Index tap = 0;
  while (tap < axis.kernel && tap * axis.dilation % axis.stride != residue) ++tap;
  return tap;
}

// Layer input i reads the gradient at i stride - pad + t dilation with its tap t.
__device__ __forceinline__ Reach reach_of_gradient(const GeneralAxis& axis, Index output) {
  const Index dilation = static_cast<Index>(axis.dilation);
  Reach reach = {0, 0, 0, 0};
  reach.start = output * static_cast<Index>(axis.stride) - static_cast<Index>(axis.pad);
  if (reach.start < 0) reach.begin = (-reach.start - 1) / dilation + 1;
  const Index room = static_cast<Index>(axis.input) - reach.start;  // taps up to here fall inside
  const Index inside = room <= 0 ? 0 : (room - 1) / dilation + 1;
  reach.end = inside < static_cast<Index>(axis.kernel) ? inside : static_cast<Index>(axis.kernel);
  return reach;
}

__device__ __forceinline__ Reach reach_of(const GeneralAxis& axis, Index output) {
  if (kGradient) return reach_of_gradient(axis, output);
  const Index stride = static_cast<Index>(axis.stride);
  const Index position = output + static_cast<Index>(axis.pad);
  const Index cell = position / stride;
  const Index residue = position - cell * stride;
  Reach reach = {0, 0, 0, 0};
  if (residue % static_cast<Index>(axis.common) != 0) return reach;
  reach.first = first_tap(axis, residue);
  const Index input_step = static_cast<Index>(axis.input_step);
  const Index kernel = static_cast<Index>(axis.kernel);
  const Index offset = position - reach.first * static_cast<Index>(axis.dilation);
  // A multiple of the stride; below zero not even the first tap has an input.
  if (reach.first >= kernel || offset < 0) return reach;
  reach.start = offset / stride;
  const Index last = static_cast<Index>(axis.input) - 1;
  if (reach.start > last) reach.begin = (reach.start - last + input_step - 1) / input_step;
  const Index taps = (kernel - 1 - reach.first) / static_cast<Index>(axis.tap_step) + 1;
  const Index inside = reach.start / input_step + 1;
  reach.end = taps < inside ? taps : inside;
  return reach;
}

// Quotient of `rest` by `size`; `rest` keeps the remainder's place: position along the axis that varies faster.
__device__ __forceinline__ Index take(Index& rest, GeneralIndex size) {
  const Index count = static_cast<Index>(size);
  const Index whole = rest / count;
  const Index position = rest - whole * count;
  rest = whole;
  return position;
}

__device__ __forceinline__ void compute(const GeneralParams& p, Index work) {
  Index rest = work;
  Index bundle = 0;
  Index group = 0;
  if (p.channels_last != 0) {
    bundle = take(rest, p.bundles);
    group = take(rest, p.groups);
  }
  const Index column = take(rest, p.axes[2].output);
  const Index row = take(rest, p.axes[1].output);
  const Index plane = take(rest, p.axes[0].output);
  if (p.channels_last == 0) {
    bundle = take(rest, p.bundles);
    group = take(rest, p.groups);
  }
  const GeneralIndex sample = rest;

  const Reach d = reach_of(p.axes[0], plane);
  const Reach h = reach_of(p.axes[1], row);
  const Reach w = reach_of(p.axes[2], column);

  const GeneralIndex channel = static_cast<GeneralIndex>(bundle) * kBundle;  // within the group
  const GeneralIndex left = p.out_channels - channel;
  const Storage* const input = static_cast<const Storage*>(p.input) + sample * p.input_strides[0] +
                               group * p.in_channels * p.input_strides[1] + d.start * p.input_strides[2] +
                               h.start * p.input_strides[3] + w.start * p.input_strides[4];
  const Storage* const weight = static_cast<const Storage*>(p.weight) + group * p.weight_group_stride +
                                channel * p.weight_strides[1] + d.first * p.weight_strides[2] +
                                h.first * p.weight_strides[3] + w.first * p.weight_strides[4];

  Sum total[kBundle] = {};
  const Storage* x_plane = input - d.begin * p.axes[0].input_jump;
  const Storage* w_plane = weight + d.begin * p.axes[0].weight_jump;
  for (Index td = d.begin; td < d.end; ++td) {
    const Storage* x_row = x_plane - h.begin * p.axes[1].input_jump;
    const Storage* w_row = w_plane + h.begin * p.axes[1].weight_jump;
    for (Index th = h.begin; th < h.end; ++th) {
      const Storage* x_tap = x_row - w.begin * p.axes[2].input_jump;
      const Storage* w_tap = w_row + w.begin * p.axes[2].weight_jump;
      for (Index tw = w.begin; tw < w.end; ++tw) {
        const Storage* x = x_tap;
        const Storage* k = w_tap;
        // One sum per tap, then the sum of those: rounding grows with the longer of the two, not with their product.
        Sum partial[kBundle] = {};
#ifdef __CUDACC__
#pragma unroll kUnroll
#endif
        for (GeneralIndex ci = 0; ci < p.in_channels; ++ci) {
          const Sum value = Element::load(*x);
          for (int j = 0; j < kBundle; ++j) {
            if (j < left) partial[j] += value * Element::load(k[j * p.weight_strides[1]]);
          }
          x += p.input_strides[1];
          k += p.weight_strides[0];
        }
        for (int j = 0; j < kBundle; ++j) total[j] += partial[j];
        x_tap -= p.axes[2].input_jump;
        w_tap += p.axes[2].weight_jump;
      }
      x_row -= p.axes[1].input_jump;
      w_row += p.axes[1].weight_jump;
    }
    x_plane -= p.axes[0].input_jump;
    w_plane += p.axes[0].weight_jump;
  }

  const GeneralIndex out_channel = group * p.out_channels + channel;
  const Storage* const bias = static_cast<const Storage*>(p.bias);
  Storage* const output = static_cast<Storage*>(p.output) + sample * p.output_strides[0] +
                          out_channel * p.output_strides[1] + plane * p.output_strides[2] + row * p.output_strides[3] +
                          column * p.output_strides[4];
  for (int j = 0; j < kBundle; ++j) {
    if (j < left) {
      const Sum value = bias != nullptr ? total[j] + Element::load(bias[out_channel + j]) : total[j];
      output[j * p.output_strides[1]] = Element::store(value);
    }
  }
}

// Two blocks per multiprocessor: without a number the assembler prefers occupancy and spills.
extern "C" __global__ void __launch_bounds__(256, 2) tconv_general(const GeneralParams p) {
  const GeneralIndex work = static_cast<GeneralIndex>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (work < p.work) compute(p, static_cast<Index>(work));
}
