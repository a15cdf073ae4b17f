// What host and device agree on about the kernels for grad_weight of depthwise layers; compiled by both.
#pragma once

#include "params.cuh"

constexpr int kDepthwiseThreads = 256;
constexpr int kDepthwiseLanes = 32;     // channels of a block where these are neighbours in memory
constexpr int kMostDepthwiseTaps = 64;  // a thread keeps a sum for each

struct DepthwiseWeightParams {
  const void* input;
  const void* output;
  void* weight;
  float* sums;  // [part][channel][tap]
  tconv_device::i64 input_strides[5];
  tconv_device::i64 weight_strides[5];
  tconv_device::i64 output_strides[5];
  int channels;
  int input_size[3];
  int output_size[3];
  int pad[3];
  int pixels;  // batch x input pixels
  int parts;
};
