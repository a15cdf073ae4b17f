// What the host and the device agree on about the direct kernel of grad_input; compiled by both.
//
// "input" is what is read, the gradient of the layer's output; "output" what is written, the gradient of its input.
// Along an axis, tap k of output cell i reads input i stride - pad + k dilation: with k dilation = r + stride back,
// cell i + back of residue r. In shared memory the residues with taps lie in planes of their own, so that neighbouring
// cells are neighbours there.
#pragma once

#include "params.cuh"

enum class DirectFloat : int { f64, f32, f16, bf16 };

struct DirectGradientAxis {
  int kernel;
  int stride;
  int dilation;
  int planes;                          // residues with taps
  unsigned long long residue_nibbles;  // of the planes, where not every residue has taps
  int halo;                            // the greatest distance `back`
  int cells;                           // of a block's tile

  constexpr int residue_of(int plane) const {
    return planes == stride ? plane : static_cast<int>(residue_nibbles >> (4 * plane) & 15);
  }
  constexpr int plane_of(int tap) const {
    int plane = 0;
    while (residue_of(plane) != tap * dilation % stride) ++plane;
    return plane;
  }
  constexpr int back_of(int tap) const { return tap * dilation / stride; }
  constexpr int patch() const { return cells + halo; }
  constexpr int length() const { return patch() * planes; }
};

struct DirectGradientConfig {
  DirectFloat type;
  DirectGradientAxis axes[3];
  int channels;      // summed: input channels of a group
  int out_channels;  // of a group
  bool input_channels_last;
  bool output_channels_last;
  int store;  // neighbours of a row that may be stored together

  int chunk;            // input channels in shared memory at a time
  int strip;            // cells of a thread, neighbours of a row
  int thread_channels;  // output channels of a thread
  int channel_parts;    // threads that share the output channels of a block
  int min_blocks;       // per multiprocessor, for the register allocation

  constexpr int element_bytes() const { return type == DirectFloat::f64 ? 8 : type == DirectFloat::f32 ? 4 : 2; }
  constexpr int sum_bytes() const { return type == DirectFloat::f64 ? 8 : 4; }
  constexpr int vector() const { return 16 / sum_bytes(); }
  constexpr int row_strips() const { return (axes[2].cells + strip - 1) / strip; }
  constexpr int items() const { return axes[0].cells * axes[1].cells * row_strips(); }
  constexpr int lanes() const { return (items() + 31) / 32 * 32; }
  constexpr int threads() const { return lanes() * channel_parts; }
  constexpr int block_channels() const { return thread_channels * channel_parts; }
  constexpr int outer_taps() const { return axes[0].kernel * axes[1].kernel; }
  constexpr int window() const { return strip + axes[2].halo; }
  constexpr int chunks() const { return (channels + chunk - 1) / chunk; }
  constexpr int stages() const { return chunks() > 1 ? 2 : 1; }

  // Shared memory of a stage, in sums: [channel][plane of depth, height][depth][height][plane of width][column], and
  // the weights [part][channel][tap of depth, height][tap of width, thread channel]. Neighbours of a row go to the
  // planes in turn, which begin on different banks.
  constexpr int segment() const {
    const int needed = (row_strips() * strip + axes[2].halo + vector() - 1) / vector() * vector();
    if (axes[2].planes == 1) return needed;
    const int banks = 128 / sum_bytes();
    const int apart = banks / axes[2].planes;
    int pitch = needed;  // apart, give or take a quarter
    while (pitch % banks < apart - banks / 4 || pitch % banks > apart + banks / 4 || pitch % banks == 0)
      pitch += vector();
    return pitch;
  }
  constexpr int row() const { return axes[2].planes * segment(); }
  constexpr int rows() const { return axes[0].length() * axes[1].length(); }
  constexpr int input_channel() const { return rows() * row(); }
  constexpr int weight_row() const { return (axes[2].kernel * thread_channels + vector() - 1) / vector() * vector(); }
  constexpr int weight_channel() const { return outer_taps() * weight_row(); }
  constexpr int weight_part() const { return chunk * weight_channel(); }
  constexpr int input_count() const { return chunk * input_channel(); }
  constexpr int stage() const { return input_count() + channel_parts * weight_part(); }
  constexpr int shared_bytes() const { return stages() * stage() * sum_bytes(); }

  // Where the row that a tap of depth and height reads lies, from that of tap 0's cell in plane 0.
  constexpr int row_of(int depth_plane, int height_plane, int depth, int height) const {
    return (((depth_plane * axes[1].planes + height_plane) * axes[0].patch() + depth) * axes[1].patch() + height) *
           row();
  }
};

struct DirectGradientArguments {
  const void* input;
  const void* weight;
  void* output;
  long long input_strides[5];
  long long weight_strides[5];  // input channel, output channel of a group, depth, height, width
  long long weight_group_stride;
  long long output_strides[5];
  int groups;
  int channel_blocks;  // of a group
  int tiles[3];
  int input_size[3];
  int output_size[3];
  int pad[3];
};
