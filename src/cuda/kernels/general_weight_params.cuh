// What the host hands to the kernels that take every grad_weight problem; compiled by both.
#pragma once

#include "params.cuh"

constexpr int kWeightWarps = 4;   // of a block
constexpr int kWeightBundle = 4;  // channels of each tensor in a warp

struct GeneralWeightAxis {
  tconv_device::i64 input;
  tconv_device::i64 output;
  tconv_device::i64 kernel;
  tconv_device::i64 stride;
  tconv_device::i64 dilation;
  tconv_device::i64 pad;
};

struct GeneralWeightParams {
  const void* input;
  const void* output;
  void* weight;
  void* sums;  // [part][weight], the weights counted over [group][input channel][output channel][tap]
  tconv_device::i64 input_strides[5];
  tconv_device::i64 weight_strides[5];
  tconv_device::i64 output_strides[5];
  tconv_device::i64 groups;
  tconv_device::i64 in_channels;   // of a group
  tconv_device::i64 out_channels;  // of a group
  tconv_device::i64 in_bundles;
  tconv_device::i64 out_bundles;
  tconv_device::i64 taps;
  tconv_device::i64 pixels;  // batch x input pixels
  tconv_device::i64 weights;
  tconv_device::i64 parts;
  tconv_device::i64 work;  // warps
  GeneralWeightAxis axes[3];
};
