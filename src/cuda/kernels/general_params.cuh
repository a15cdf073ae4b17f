// What the host hands to the general kernel; compiled by both.
#pragma once

#include "params.cuh"

using GeneralIndex = tconv_device::i64;

// One spatial axis. With common = gcd(stride, dilation), an output with residue r = (o + pad) mod stride has taps only
// when common divides r: taps first, first + tap_step, ... with first = (r / common) inverse mod tap_step. A gradient
// reads the other way, has all taps everywhere and uses the first six members only.
struct GeneralAxis {
  GeneralIndex input;
  GeneralIndex output;
  GeneralIndex kernel;
  GeneralIndex stride;
  GeneralIndex dilation;
  GeneralIndex pad;
  GeneralIndex common;      // gcd(stride, dilation)
  GeneralIndex tap_step;    // stride / common
  GeneralIndex input_step;  // dilation / common
  GeneralIndex inverse;  // of input_step modulo tap_step; -1: taps are searched, since the product above could overflow
  // From one tap of a phase to the next, in elements.
  GeneralIndex input_jump;   // backwards
  GeneralIndex weight_jump;  // forwards
};

struct GeneralParams {
  const void* input;
  const void* weight;
  const void* bias;  // null: none
  void* output;
  GeneralIndex input_strides[5];   // batch, channel, depth, height, width
  GeneralIndex weight_strides[5];  // input channel, output channel of a group, depth, height, width
  GeneralIndex weight_group_stride;
  GeneralIndex output_strides[5];
  GeneralIndex batch;
  GeneralIndex groups;
  GeneralIndex in_channels;   // of a group
  GeneralIndex out_channels;  // of a group
  GeneralIndex bundles;       // of output channels, in a group: what a thread computes
  GeneralAxis axes[3];
  GeneralIndex channels_last;  // not zero: neighbouring threads take neighbouring channels rather than columns
  GeneralIndex work;           // batch x groups x bundles x output pixels
};
