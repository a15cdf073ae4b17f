// What the host and the device agree on about the direct kernel for channels-last tensors; compiled by both.
//
// Both directions gather: "input" is what is read and "output" what is written, the other way round for grad_input. A
// cell is, per axis, the outputs of one step of the stride; for grad_input one element of dx, whose inputs lie a stride
// apart.
#pragma once

#include "direct_params.cuh"

// What a kernel is compiled for.
struct LastConfig {
  DirectAxis depth;
  DirectAxis height;
  DirectAxis width;
  int gradient;  // grad_input, else forward
  int element_bytes;
  int accumulator_bytes;
  int bias;
  int in_channels;   // of a group; 1 with as many outputs: depthwise, a thread's channels are the same on both sides
  int out_channels;  // of a group

  // The tile of a thread: cells of one slice, all their outputs, `channels` channels of a group (of several groups
  // where they have one channel).
  int channels;
  int load;   // channels that are loaded together ...
  int store;  // ... and stored
  int chunk;  // input channels that a thread holds at a time; depthwise: its channels
  int cells;  // of a row

  // The threads of a block.
  int lanes_channels;
  int lanes_height;
  int lanes_width;

  int unrolled;    // rows of taps as well, not only their columns
  int min_blocks;  // per multiprocessor, for the register allocation
};

struct LastArguments {
  const void* input;
  const void* weight;
  const void* bias;
  void* output;
  tconv_device::i64 input_batch;  // strides in elements
  tconv_device::i64 input_depth;
  tconv_device::i64 input_height;
  tconv_device::i64 input_width;
  tconv_device::i64 weight_group;
  tconv_device::i64 weight_out;
  tconv_device::i64 weight_in;
  tconv_device::i64 weight_depth;
  tconv_device::i64 weight_height;
  tconv_device::i64 weight_width;
  tconv_device::i64 output_batch;
  tconv_device::i64 output_depth;
  tconv_device::i64 output_height;
  tconv_device::i64 output_width;
  int channels;        // of the output
  int channel_blocks;  // a block takes one of them ...
  int tiles;           // ... and every `starts`-th tile of the batch
  int starts;
  int in_depth, in_height, in_width;           // sizes
  int out_depth, out_height, out_width;        // sizes
  int first_depth, first_height, first_width;  // input that cell 0 reads first; may be negative
  DirectDivisor by_channel_blocks, by_tiles_width, by_tiles_height, by_tiles_depth;
  int tiles_width, tiles_height, tiles_depth;
};

struct LastGeometry {
  int depthwise;
  int threads;
  int outputs_depth, outputs_height, outputs_width;  // of a thread
  int step_depth, step_height, step_width;           // inputs from one cell to the next
  int low_depth, low_height, low_width;              // offset of the last tap, forward
  DirectSpan span_depth, span_height;                // which taps serve an output, forward
  int window;                                        // inputs that a thread reads from a row
  int taps;
  int depth;       // input channels that an output sums up
  int tile_width;  // cells of a block
  int piece;       // accumulators of a shared-memory access
  int pieces;      // of a thread's channels
  int block_channels;
  int shared_bytes;  // weights (tap, in channel, piece, lane, of piece), then the bias likewise
};

constexpr int last_outputs(DirectAxis axis, int gradient, int cells) {
  return gradient != 0 ? cells : cells * axis.stride;
}
constexpr int last_window(DirectAxis axis, int gradient, int cells) {
  return gradient != 0 ? (cells - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1
                       : cells + direct_span(axis).halo;
}

constexpr LastGeometry last_geometry(LastConfig c) {
  LastGeometry g{};
  g.depthwise = c.in_channels == 1 && c.out_channels == 1 ? 1 : 0;
  g.threads = c.lanes_channels * c.lanes_height * c.lanes_width;
  g.outputs_depth = last_outputs(c.depth, c.gradient, 1);
  g.outputs_height = last_outputs(c.height, c.gradient, 1);
  g.outputs_width = last_outputs(c.width, c.gradient, c.cells);
  g.step_depth = c.gradient != 0 ? c.depth.stride : 1;
  g.step_height = c.gradient != 0 ? c.height.stride : 1;
  g.step_width = c.gradient != 0 ? c.width.stride : 1;
  g.span_depth = direct_span(c.depth);
  g.span_height = direct_span(c.height);
  g.low_depth = g.span_depth.low;
  g.low_height = g.span_height.low;
  g.low_width = direct_span(c.width).low;
  g.window = last_window(c.width, c.gradient, c.cells);
  g.taps = c.depth.kernel * c.height.kernel * c.width.kernel;
  g.depth = g.depthwise != 0 ? 1 : c.in_channels;
  g.tile_width = c.lanes_width * c.cells;
  const int most = 16 / c.accumulator_bytes;
  g.piece = c.channels < most ? c.channels : most;
  g.pieces = c.channels / g.piece;
  g.block_channels = c.lanes_channels * c.channels;
  g.shared_bytes = (g.taps * g.depth + c.bias) * g.block_channels * c.accumulator_bytes;
  return g;
}
