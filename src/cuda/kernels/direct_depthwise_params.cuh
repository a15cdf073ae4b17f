// What the host and the device agree on about the depthwise kernel; compiled by both.
#pragma once

#include "direct_params.cuh"

// What a kernel is compiled for. A plane is one output channel of one image; it reads one channel of the input.
struct DepthwiseConfig {
  DirectAxis height;
  DirectAxis width;
  int element_bytes;
  int accumulator_bytes;
  int bias;
  int weight_packed;  // the weights of a plane lie as (height, width), without gaps
  int store;          // elements that are stored together; rows of a plane are a multiple of it apart

  // The tile of a thread: `cells_height` rows of `strips` strips of `strip` cells. Strips of neighbouring threads are
  // neighbours, those of one thread are a whole block's width apart.
  int strip;
  int strips;
  int cells_height;

  // The threads of a block.
  int lanes_width;
  int lanes_height;
  int planes;

  int min_blocks;  // per multiprocessor, for the register allocation
};

struct DepthwiseArguments {
  const void* input;
  const void* weight;
  const void* bias;
  void* output;
  tconv_device::i64 input_batch;  // strides in elements
  tconv_device::i64 input_channel;
  tconv_device::i64 input_height;
  tconv_device::i64 weight_in;
  tconv_device::i64 weight_out;
  tconv_device::i64 weight_height;
  tconv_device::i64 weight_width;
  tconv_device::i64 output_batch;
  tconv_device::i64 output_channel;
  tconv_device::i64 output_height;
  int planes;
  int channels;        // of the output
  int group_channels;  // of the output, in a group
  int tiles;           // of a plane
  int tiles_width;
  int shifts;  // planes may begin between the places where a store may begin; their tiles then begin some cells earlier
  int in_height, in_width;                // sizes
  int out_height, out_width;              // sizes
  int pad_cells_height, pad_cells_width;  // pad_begin / stride
  DirectDivisor by_channels, by_group_channels, by_tiles, by_tiles_width;
};

struct DepthwiseGeometry {
  DirectSpan height;
  DirectSpan width;
  int threads;
  int strip_outputs;
  int window;  // inputs that a strip reads from a row
  int rows;    // of the input, that a thread reads
  int taps;
  int tile_width;  // cells
  int tile_height;
};

constexpr DepthwiseGeometry depthwise_geometry(DepthwiseConfig c) {
  DepthwiseGeometry g{};
  g.height = direct_span(c.height);
  g.width = direct_span(c.width);
  g.threads = c.lanes_width * c.lanes_height * c.planes;
  g.strip_outputs = c.strip * c.width.stride;
  g.window = c.strip + g.width.halo;
  g.rows = c.cells_height + g.height.halo;
  g.taps = c.height.kernel * c.width.kernel;
  g.tile_width = c.lanes_width * c.strip * c.strips;
  g.tile_height = c.lanes_height * c.cells_height;
  return g;
}
