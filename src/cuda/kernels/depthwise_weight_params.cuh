// What host and device agree on about the kernels for grad_weight of depthwise layers; compiled by both.
#pragma once

#include "params.cuh"

constexpr int kDepthwiseThreads = 256;
constexpr int kMostDepthwiseTaps = 64;  // a thread keeps a sum for each

// Cells of a row that a thread takes at once, where rows lie densely: it loads them, and for each row of taps all that
// they read, by vectors.
struct DepthwiseStrip {
  int cells;        // 0: one pixel after the other, element by element
  int input_load;   // elements that are loaded together from rows of the input
  int output_load;  // and of the output: windows begin at multiples of it ...
  int lead;         // ... and therefore this many columns before the first that is needed
  int needed;       // columns

  constexpr int window() const { return (lead + needed + output_load - 1) / output_load * output_load; }
};

// Where channels are neighbours in memory, threads take a few of them, and some cells of a row at once.
struct DepthwiseAcross {
  int channels;  // of a thread
  int load;      // of them together: all or one
  int lanes;     // threads along the channels; 0: threads along the pixels of one channel
  int cells;

  constexpr int block_channels() const { return channels * lanes; }
};

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
  int steps[3];  // of a channel's pixels along each axis: the input's size, or strips of a row
  int pixels;    // batch x steps
  int parts;
};
