// What the host and the device agree on about the depthwise kernel of grad_input; compiled by both. "input" is what is
// read, the gradient of the layer's output; "output" what is written.
#pragma once

#include "direct_gradient_params.cuh"

struct DepthwiseGradientAxis {
  int kernel;
  int stride;
  int dilation;
};

struct DepthwiseGradientConfig {
  DirectFloat type;
  DepthwiseGradientAxis height;
  DepthwiseGradientAxis width;
  int load;   // elements that are loaded together: rows begin at multiples of it, and so do the windows of strips ...
  int lead;   // ... which therefore begin this many columns before the first that is needed
  int store;  // elements that are stored together

  // The tile of a thread.
  int strip;
  int rows;

  constexpr int window() const {
    const int needed = lead + (strip - 1) * width.stride + (width.kernel - 1) * width.dilation + 1;
    return (needed + load - 1) / load * load;
  }
  constexpr int input_rows() const { return (rows - 1) * height.stride + (height.kernel - 1) * height.dilation + 1; }
  // Whether some tap of the thread's rows reads a row.
  constexpr bool reads_row(int row) const {
    for (int i = 0; i < rows; ++i) {
      const int reach = row - i * height.stride;
      if (reach >= 0 && reach % height.dilation == 0 && reach / height.dilation < height.kernel) return true;
    }
    return false;
  }
};

constexpr int kDepthwiseThreads = 128;

struct DepthwiseGradientArguments {
  const void* input;
  const void* weight;
  void* output;
  long long input_batch;  // strides in elements
  long long input_channel;
  long long input_row;
  long long weight_channel;
  long long weight_height;
  long long weight_width;
  long long output_batch;
  long long output_channel;
  long long output_row;
  long long threads;  // that have work
  int channels;
  int strips;      // of a row
  int row_groups;  // of a plane
  int input_rows, input_width;
  int output_rows, output_width;
  int pad_height, pad_width;
};
