// What the host and the device agree on about the columns kernel; compiled by both.
//
// For each input channel, the weights of (output channel, tap) are a row of a matrix where they lie. Its product with
// the cells of the input are the columns: what a cell adds to the outputs that its taps reach. A block computes some
// rows, whole output channels with all their taps (or with all the taps of one phase), for all the cells that its
// outputs read. So every output is a sum of elements that its block has in shared memory.
#pragma once

#include "params.cuh"

// Warps that share a sum, in turn a step each: a constant, since it sets the order of the sums.
constexpr int kColumnsDepth = 2;
constexpr int kColumnsRowUnit = 32;   // rows of a warp: two products of 16
constexpr int kColumnsCellUnit = 16;  // cells of a warp: two products of 8

struct ColumnsShape {
  // The problem; the batch alone stays a run-time value.
  int element_bytes;
  int channels;      // input channels of a group
  int out_channels;  // output channels of a group
  int kernel[3];
  int stride[3];
  int dilation[3];
  int pad[3];
  int input[3];
  int output[3];
  int tap_step[3];    // from one tap of a phase to the next
  int input_step[3];  // and backwards from the cell that it reads
  bool bias;

  // How tensors lie in memory.
  bool taps_inner;     // [input channel][output channel][tap] rather than [input channel][tap][output channel]
  int weight_stride;   // from one input channel to the next
  int channel_stride;  // of the input
  bool input_channels_last;
  bool output_channels_last;
  int weight_bytes;   // of a copy: 16, 8, 4 or 2
  bool copies_cells;  // channels-last input comes by asynchronous copies of 16 bytes

  // The cut.
  int block_channels;  // output channels of a block
  bool one_phase;      // of a block; then every phase of an axis has kernel / stride taps
  int samples;         // of a block
  int box_axis;        // along which an image is cut into boxes
  int box;             // cells o + pad = q stride + r of a box along that axis
  int boxes;
  int row_units;  // of a warp
  int cell_units;
  int row_warps;
  int cell_warps;
  int idle_warps;    // that only load
  int run_channels;  // of a thread's outputs
  bool stores_runs;  // which lie side by side and leave as one store
  int chunk;         // input channels of a stage
  int stages;        // of weights on their way
  int blocks_per_multiprocessor;

  // Elements of 16 bytes: the channels of a slab of cells.
  constexpr int vector() const { return 16 / element_bytes; }
  constexpr int slabs() const { return chunk / vector(); }
  constexpr int step_channels() const { return 2 * vector(); }                    // the depth of a product
  constexpr int warps() const { return row_warps * cell_warps * kColumnsDepth; }  // that multiply
  constexpr int threads() const { return 32 * (warps() + idle_warps); }
  constexpr int chunks() const { return (channels + chunk - 1) / chunk; }

  constexpr int slots(int a) const { return one_phase ? kernel[a] / stride[a] : kernel[a]; }  // taps of a block
  constexpr int all_slots() const { return slots(0) * slots(1) * slots(2); }
  constexpr int rows() const { return block_channels * all_slots(); }
  constexpr int padded_rows() const { return kColumnsRowUnit * row_units * row_warps; }
  constexpr int residues() const { return one_phase ? stride[0] * stride[1] * stride[2] : 1; }

  // Input cells of a box, along an axis and all: whole rows besides the axis that is cut, so that they are neighbours.
  constexpr int back(int a) const { return (kernel[a] - 1) * dilation[a] / stride[a]; }
  constexpr int box_input(int a) const {
    return boxes == 1 || a != box_axis || box + back(a) > input[a] ? input[a] : box + back(a);
  }
  constexpr int box_cells() const { return box_input(0) * box_input(1) * box_input(2); }
  constexpr int cells() const { return samples * box_cells(); }
  constexpr int padded_cells() const { return kColumnsCellUnit * cell_units * cell_warps; }

  // Cells q of the whole output along an axis: the first, and how many.
  constexpr int first_cell(int a) const { return pad[a] / stride[a]; }
  constexpr int output_cells(int a) const { return (output[a] - 1 + pad[a]) / stride[a] - first_cell(a) + 1; }
  // Places of a box's outputs along an axis: cells of one phase, or outputs (some before the first one or after the
  // last, where the image is cut).
  constexpr int places(int a) const {
    const bool cut = boxes > 1 && a == box_axis;
    if (one_phase) return cut ? box : output_cells(a);
    return cut ? box * stride[a] : output[a];
  }
  constexpr int all_places() const { return places(0) * places(1) * places(2); }

  // Shared memory. Weights: [input channel][row], so that the lanes of a fragment meet no bank twice: four rows of 8
  // words, or eight of 16 bytes.
  constexpr int row_bytes() const { return rows() * element_bytes; }
  constexpr int weight_pitch() const {
    const int wanted = element_bytes == 4 ? 32 : 16;  // modulo 128
    return (padded_rows() * element_bytes + 127 - wanted) / 128 * 128 + wanted;
  }
  constexpr int weight_stage_bytes() const { return chunk * weight_pitch(); }
  // Cells: [slab][cell], one more cell a slab, so that the slabs of a cell are stored in different banks.
  constexpr int slab_pitch() const { return 16 * (padded_cells() + 1); }
  constexpr int cell_stage_bytes() const { return slabs() * slab_pitch(); }
  constexpr int cell_stages() const { return copies_cells ? stages : 2; }
  // Columns: [row][cell], after the last stage in the same place.
  constexpr int column_pitch() const {
    if (element_bytes == 4) return padded_cells() + 4;
    return (padded_cells() + 23) / 32 * 32 + 8;
  }
  constexpr int shared_bytes() const {
    const int operands = stages * weight_stage_bytes() + cell_stages() * cell_stage_bytes();
    const int columns = padded_rows() * column_pitch() * 4;
    return operands > columns ? operands : columns;
  }
};

struct ColumnsParams {
  const void* input;
  const void* weight;
  const void* bias;
  void* output;
  long long input_batch;
  long long input_cell;  // from one cell to the next, in the order of the axes
  long long weight_group;
  long long weight_strides[5];  // input channel, output channel, depth, height, width
  long long output_strides[5];  // batch, channel, depth, height, width
  int batch;
  int groups;
  int channel_blocks;     // of a group
  int residue_blocks[3];  // phases that are blocks of their own
  int tiles[4];           // of samples, and boxes of an image
};
