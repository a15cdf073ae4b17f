// What host and device agree on about the gradients of small groups; compiled by both.
#pragma once

#include "params.cuh"

constexpr int kGroupThreads = 256;
constexpr int kGroupChannels = 8;  // of the layer's input in a group: the columns of a product

// A block takes a box of the layer's input pixels and all that their taps read of the output's gradient.
struct GroupShape {
  bool weight;       // grad_weight; otherwise grad_input
  int out_channels;  // of the layer's output in a group, a multiple of 8
  int kernel[3];
  int stride[3];
  int dilation[3];
  int tile[3];  // pixels: depth, height, width
  // Rows of four-byte elements come by copies of 16 bytes, from the multiple of 16 bytes at or before their first
  // element: how many elements that is, their lead, differs from row to row.
  bool copies;
  bool same_lead;  // of all rows of a box: channels, planes and rows lie a multiple of 16 bytes apart
  bool last;       // channels of a pixel are neighbours in both tensors: a thread brings eight of them at once
  int strip;       // grad_input: rows of sixteen pixels of a warp, one below the other
  int resident;    // blocks of a multiprocessor

  constexpr int taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  constexpr int pixels() const { return tile[0] * tile[1] * tile[2]; }
  constexpr int box(int axis) const {
    return (tile[axis] - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1;
  }
  constexpr int box_rows() const { return box(0) * box(1); }

  // In words. Channels begin on banks of their own: pixels that are two elements apart, of what the lanes of a product
  // read together, meet no bank twice; where rows have leads of their own, which may be odd, none more than twice.
  constexpr int row_pitch() const { return copies ? (box(2) + 3 + 3) / 4 * 4 : box(2); }
  constexpr int channel_pitch() const { return (box_rows() * row_pitch() + 25 + 31) / 32 * 32; }
  constexpr int channel_place(int channel) const {
    const int bank = weight ? channel % 4 * 8 : (pairs_taps() ? channel : channel / 2) % 2 * 16;
    const int odd = copies ? 0 : weight ? channel / 4 % 2 : channel % 2;
    return channel * channel_pitch() + bank + odd;
  }
  constexpr int box_words() const { return out_channels * channel_pitch(); }
  constexpr int tap_place(int tap) const {
    const int w = tap % kernel[2];
    const int h = tap / kernel[2] % kernel[1];
    const int d = tap / kernel[2] / kernel[1];
    return (d * dilation[0] * box(1) + h * dilation[1]) * row_pitch() + w * dilation[2];
  }

  // grad_weight: products of two taps and eight output channels by 8 input channels, shared out among the warps. The
  // lanes of a load have four channels of both taps, which lie on banks of their own where the stride is 2.
  constexpr int rows() const { return taps() * out_channels; }
  constexpr int products() const { return (taps() + 1) / 2 * (out_channels / 8); }
  constexpr int warp_products() const { return (products() + kGroupThreads / 32 - 1) / (kGroupThreads / 32); }
  constexpr int product_tap(int product, int lane) const { return product / (out_channels / 8) * 2 + lane / 16; }
  constexpr int product_channel(int product, int half, int lane) const {
    return product % (out_channels / 8) * 8 + half * 4 + lane / 4 % 4;
  }
  constexpr int pixel_pitch() const { return (pixels() + 31) / 32 * 32 + 4; }
  // grad_input: products of 16 pixels of a row by 8 input channels. Their depth is eight output channels at one tap,
  // or, where an even stride leaves at least half of the banks unused, four at two taps that are neighbours along the
  // width: banks are even for one of them and odd for the other. A last tap without a neighbour is taken alone.
  constexpr bool pairs_taps() const {
    return !weight && same_lead && kernel[2] > 1 && stride[2] % 2 == 0 && dilation[2] % 2 == 1;
  }
  constexpr int width_steps() const { return pairs_taps() ? (kernel[2] + 1) / 2 : kernel[2]; }
  constexpr bool is_pair(int step) const { return pairs_taps() && step * 2 + 1 < kernel[2]; }
  // What lies at `place` along the depth of the `slot`th product of a row of taps along the width: of its eight output
  // channels one, and a tap.
  constexpr int slot_channel(int slot, int place) const {
    if (!pairs_taps()) return place;
    return place / 4 * 2 + place / 2 % 2 + (is_pair(slot / 2) ? slot % 2 : place % 2) * 4;
  }
  constexpr int slot_tap(int slot, int place) const { return is_pair(slot / 2) ? slot / 2 * 2 + place % 2 : slot; }
  // Warps of the same strip share its taps.
  constexpr int strips() const { return pixels() / 16 / strip; }
  constexpr int tap_warps() const { return kGroupThreads / 32 / strips(); }
  // Of warps that share a strip's taps: their sums meet where the box was. What lies behind it is kept for the next
  // one.
  constexpr int sums_words() const { return weight ? 0 : (tap_warps() - 1) * strips() * strip * 128; }
  // Rows of the box that a strip reads for the taps along the height, and which of them it does.
  constexpr int strip_reach() const { return (strip - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1; }
  constexpr bool strip_reads(int row) const {
    for (int h = 0; h < kernel[1]; ++h) {
      const int rest = row - h * dilation[1];
      if (rest >= 0 && rest % stride[1] == 0 && rest / stride[1] < strip) return true;
    }
    return false;
  }
  constexpr int weight_words() const { return taps() * out_channels * kGroupChannels; }

  constexpr int shared_bytes() const {
    return 4 * (box_words() + (weight ? kGroupChannels * pixel_pitch() : weight_words()));
  }
};

struct GroupParams {
  const void* output;  // the gradient that is read
  void* input;         // read, or written by grad_input
  void* weight;        // read, or written by grad_weight
  float* sums;         // [part][group][row][input channel]
  tconv_device::i64 input_strides[5];
  tconv_device::i64 weight_strides[5];
  tconv_device::i64 output_strides[5];
  int groups;
  int input_size[3];
  int output_size[3];
  int pad[3];
  int tiles[4];  // samples, depth, height, width
  int parts;     // blocks of a group: each takes tile after tile
  int aligned;   // where channels are neighbours: eight of them begin at multiples of 16 bytes, in both tensors
};
