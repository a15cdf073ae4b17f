// What the host hands to the kernel that sums a tensor per channel; compiled by both.
#pragma once

#include "params.cuh"

constexpr int kBiasThreads = 256;
constexpr int kBiasLanes = 32;  // channels of a block where these are neighbours in memory

// An element of channel c is at c channel_stride + place, where the place is made of four positions, the last of them
// the fastest.
struct GradBiasParams {
  const void* input;
  void* output;  // [channel][part]
  tconv_device::i64 channels;
  tconv_device::i64 channel_stride;
  tconv_device::i64 sizes[4];
  tconv_device::i64 strides[4];
  tconv_device::i64 elements;  // of a channel
  tconv_device::i64 parts;
};
