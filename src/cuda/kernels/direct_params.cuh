// What the host and the device agree on about the direct kernel; compiled by both, so it includes nothing.
//
// Per axis an output o = cell stride + residue. Tap k serves the one residue for which residue + pad - k dilation is
// divisible by the stride, and reads input cell + (pad / stride) + offset(k), with pad = (pad / stride) stride +
// pad_residue and offset(k) = ceil((pad_residue - k dilation) / stride). So for a given tap everything but the cell is
// a constant.
#pragma once

#include "params.cuh"

struct DirectAxis {
  int kernel;
  int stride;
  int dilation;
  int pad_residue;  // pad_begin mod stride
};

// Division by a value that the host knows: dividend * multiplier >> shift, exact below 2^31.
struct DirectDivisor {
  unsigned multiplier;
  int shift;
};

// What a kernel is compiled for. A plane is one image of one block of a group's output channels.
struct DirectConfig {
  DirectAxis depth;
  DirectAxis height;
  DirectAxis width;
  int in_channels;   // of a group
  int out_channels;  // of a group
  int element_bytes;
  int accumulator_bytes;
  int bias;
  int input_channels_last;   // lanes load along the channels, else along the row
  int output_channels_last;  // lanes store along the channels, else along the row
  int weight_packed;         // the weights of an input channel lie as (out channel, depth, height, width), without gaps
  int input_dense;           // elements of a row of the input are neighbours
  int store;                 // neighbours of a row that may be stored together; 0: they are apart

  // The tile of a block, in cells, for `planes` planes.
  int cells_depth;
  int cells_height;
  int cells_width;
  int planes;  // more than one only where a block takes all output channels of a group
  int chunk;   // input channels in shared memory at a time

  // The tile of a thread: `strips` strips of `strip` cells of a row, all residues of the width, `thread_channels`
  // channels.
  int strip;
  int strips;
  int thread_channels;

  // How the threads of a block share the work: output channels, (depth, height) residues, input channels of a chunk.
  int channel_parts;
  int phase_parts;
  int chunk_parts;

  int min_blocks;  // per multiprocessor, for the register allocation
};

struct DirectSpan {
  int low;         // offset of the last tap
  int halo;        // offset of the first tap minus low
  int common;      // gcd(stride, dilation)
  int tap_step;    // taps of one residue are this far apart ...
  int shift_step;  // ... and read inputs this far apart
  int inverse;     // of dilation / common modulo tap_step
  int most_taps;   // of a residue
  int even;        // every residue has most_taps taps
};

// All counts are of elements unless they say bytes.
struct DirectGeometry {
  DirectSpan depth;
  DirectSpan height;
  DirectSpan width;
  int vector;  // accumulators in 16 bytes
  int phases;  // (depth, height) residues
  int chunks;
  int row_strips;  // strips in a row of the tile
  int items;       // strips of a plane per strip index of a thread
  int lanes;       // threads that share one (part of chunk, phase, channel): planes x items, rounded up to warps
  int threads;
  int strip_outputs;  // outputs of a strip: strip x width stride
  int window;         // inputs that a strip reads from a row
  int sums;           // accumulators of a thread
  int store;          // outputs that are stored together
  int piece;          // a warp's strips are neighbours: its outputs are one piece of a row

  // Shared memory: planes, bias, weights, inputs (later partial sums), staged outputs.
  int rows_depth;
  int rows_height;
  int row_length;     // tile with halo
  int pitch;          // between rows
  int input_channel;  // between channels
  int input_plane;
  int weight_row;  // (kernel width, thread_channels), rounded up to vectors
  int weight_channel;
  int weight_part;  // between parts of the output channels
  int weight_plane;
  int stage;    // elements of a warp
  int bias_at;  // byte offsets
  int weights_at;
  int inputs_at;
  int stage_at;
  int shared_bytes;
};

// One plane of a block, in shared memory. Offsets in elements, of the tile's first element.
struct DirectPlane {
  tconv_device::i64 input;  // may point before the tensor: halo
  tconv_device::i64 output;
  tconv_device::i64 weight;
  int first_channel;  // output channel of the first sum, for the bias
  int channels;       // output channels that exist; 0: no such plane
};
static_assert(sizeof(DirectPlane) == 32, "the layout of shared memory counts on it");

struct DirectArguments {
  const void* input;
  const void* weight;
  const void* bias;
  void* output;
  tconv_device::i64 input_batch;  // strides in elements
  tconv_device::i64 input_channel;
  tconv_device::i64 input_depth;
  tconv_device::i64 input_height;
  tconv_device::i64 input_width;
  tconv_device::i64 weight_in;
  tconv_device::i64 weight_out;
  tconv_device::i64 weight_depth;
  tconv_device::i64 weight_height;
  tconv_device::i64 weight_width;
  tconv_device::i64 output_batch;
  tconv_device::i64 output_channel;
  tconv_device::i64 output_depth;
  tconv_device::i64 output_height;
  tconv_device::i64 output_width;
  int planes;
  int groups;
  int channel_blocks;  // blocks of output channels in a group
  int tiles_depth, tiles_height, tiles_width;
  int in_depth, in_height, in_width;                       // sizes
  int out_depth, out_height, out_width;                    // sizes
  int pad_cells_depth, pad_cells_height, pad_cells_width;  // pad_begin / stride
};

constexpr int direct_round_up(int value, int step) { return (value + step - 1) / step * step; }

constexpr int direct_gcd(int a, int b) {
  while (b != 0) {
    const int rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// ceil((pad_residue - tap dilation) / stride)
constexpr int direct_offset(DirectAxis axis, int tap) {
  const int reach = axis.pad_residue - tap * axis.dilation;
  return reach >= 0 ? (reach + axis.stride - 1) / axis.stride : -(-reach / axis.stride);
}

constexpr DirectSpan direct_span(DirectAxis axis) {
  DirectSpan span{};
  span.low = direct_offset(axis, axis.kernel - 1);
  span.halo = direct_offset(axis, 0) - span.low;
  span.common = direct_gcd(axis.stride, axis.dilation);
  span.tap_step = axis.stride / span.common;
  span.shift_step = axis.dilation / span.common;
  for (int i = 0; i < span.tap_step; ++i) {
    if (i * (span.shift_step % span.tap_step) % span.tap_step == 1 % span.tap_step) span.inverse = i;
  }
  span.most_taps = (axis.kernel + span.tap_step - 1) / span.tap_step;
  span.even = (span.common == 1 && axis.kernel % span.tap_step == 0) ? 1 : 0;
  return span;
}

// Spreads lanes that read the same place of neighbouring planes over all banks.
constexpr int direct_plane_pitch(int count, int planes, int vector) {
  return planes == 1 ? count : direct_round_up(count, 8 * vector) + vector;
}

constexpr DirectGeometry direct_geometry(DirectConfig c) {
  DirectGeometry g{};
  g.depth = direct_span(c.depth);
  g.height = direct_span(c.height);
  g.width = direct_span(c.width);
  g.vector = 16 / c.accumulator_bytes;
  g.phases = c.depth.stride * c.height.stride;
  g.chunks = (c.in_channels + c.chunk - 1) / c.chunk;
  g.row_strips = c.cells_width / c.strip;
  g.items = (g.row_strips * c.cells_height * c.cells_depth + c.strips - 1) / c.strips;
  g.lanes = direct_round_up(c.planes * g.items, 32);
  g.threads = g.lanes * c.channel_parts * c.phase_parts * c.chunk_parts;
  g.strip_outputs = c.strip * c.width.stride;
  g.window = c.strip + g.width.halo;
  g.sums = c.strips * g.strip_outputs * c.thread_channels;
  g.store = c.store > 1 ? c.store : 1;
  while (g.strip_outputs % g.store != 0) g.store /= 2;
  g.piece = (c.store != 0 && g.row_strips % 32 == 0 && g.items % 32 == 0) ? 1 : 0;

  g.rows_depth = c.cells_depth + g.depth.halo;
  g.rows_height = c.cells_height + g.height.halo;
  g.row_length = c.cells_width + g.width.halo;
  // A strip reads whole vectors from its first cell on, so a strip that starts inside a vector reads past the row.
  g.pitch = direct_round_up(g.row_length + (c.strip % g.vector == 0 ? 0 : g.vector), g.vector);
  g.input_channel = g.rows_depth * g.rows_height * g.pitch;
  g.input_plane = direct_plane_pitch(c.chunk * g.input_channel, c.planes, g.vector);
  g.weight_row = direct_round_up(c.width.kernel * c.thread_channels, g.vector);
  g.weight_channel = c.depth.kernel * c.height.kernel * g.weight_row;
  g.weight_part = c.chunk * g.weight_channel;
  g.weight_plane = direct_plane_pitch(c.channel_parts * g.weight_part, c.planes, g.vector);
  g.stage = 32 * (c.output_channels_last != 0 ? c.thread_channels : g.strip_outputs);

  const int sums = (c.chunk_parts - 1) * (g.threads / c.chunk_parts) * g.sums;
  const int inputs = c.planes * g.input_plane;
  g.bias_at = c.planes * static_cast<int>(sizeof(DirectPlane));
  g.weights_at = g.bias_at + direct_round_up(c.planes * c.channel_parts * c.thread_channels * c.accumulator_bytes, 16);
  g.inputs_at = g.weights_at + c.planes * g.weight_plane * c.accumulator_bytes;
  g.stage_at = g.inputs_at + direct_round_up((inputs > sums ? inputs : sums) * c.accumulator_bytes, 16);
  g.shared_bytes = g.stage_at + g.threads / c.chunk_parts / 32 * direct_round_up(g.stage * c.element_bytes, 16);
  return g;
}
