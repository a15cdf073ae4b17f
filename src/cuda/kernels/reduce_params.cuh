// What the host and the device agree on about the reduce kernels (grad_weight on tensor cores); compiled by both.
//
// A gradient of the weight is a product summed over pixels. One tensor stays in place and gives the rows, the other is
// shifted by the taps and gives the columns (which is which, the planner decides):
//
//   W[row, column, k] = sum over samples and i of  rows[n, row, i] columns[n, column, i step + k tap_step - pad]
//
// In shared memory sixteen bytes, a cell, hold V pixels of one channel. The pixels of a cell are not neighbours: a tile
// of pixels is split into V parts of equal size (along the width, or the rows, or the samples), and a cell has the same
// place of each part. So the next pixel is the next cell, and a tap is only another start among the cells, whatever the
// shift. A unit is the cells of all channels at one place. With channels side by side in a unit and units along the
// width one after the other, neighbouring taps of neighbouring channels are neighbouring rows of one matrix: a run.
#pragma once

#include "tile_params.cuh"

// The lines of a stage that warps copy as they lie: how many along samples, depth and height, and their elements.
struct RawLines {
  int count[3];
  int length;
  int pitch;
  constexpr int lines() const { return count[0] * count[1] * count[2]; }
};

// Warps of a block that packs.
constexpr int kPackWarps = 4;

struct ReduceShape {
  TileMath math;
  int element_bytes;

  // The problem, per group and axis (depth, height, width). Sizes along the axes and the batch stay run-time values.
  int rows;     // channels of the tensor in place
  int columns;  // channels of the shifted tensor
  int kernel[3];
  int step[3];
  int tap_step[3];
  bool rows_channels_last;
  bool columns_channels_last;

  // A block: its taps (neighbours along each axis), its rows and its columns.
  int taps[3];
  bool apart[3];   // no two taps of the block read the same element: only what they read is kept, tap beside tap
  bool warpgroup;  // teams of four warps (wgmma, 64 rows) or of one (mma.sync, 16 rows)
  int row_tiles;   // of a team
  int row_teams;
  int team_columns;  // channels of the shifted tensor in one team
  int column_teams;  // teams side by side, along the channels
  int run;           // taps along the width in one product
  int run_teams;     // teams that share the runs of the block
  int team_runs;     // runs of a team

  // The pixels of one stage: parts of a cell and units, along samples, depth, height, width.
  int split[4];
  int tile[4];

  // How the tensors are loaded. A lane loads vectors of neighbours in memory: along the width, or the channels where
  // these come last. Lanes of a warp take neighbouring places along the units, the others along the channels.
  int row_vector;
  int column_vector;
  int most_lead;  // elements of a vector in front of the first that a tap reads, at most
  int row_lanes;
  int column_lanes;
  int most_cells;    // cells that a thread loads at once
  int loader_warps;  // warps that load and do nothing else; 0: all warps do both
  int row_warps;     // of these, those that share the channels of each tensor: all, or each tensor has its own
  int column_warps;
  int row_copy;  // elements that such a warp copies at once, along the width
  int column_copy;
  int raw_stages;  // of its copies
  bool packed;     // a kernel before has arranged both tensors as the stages of the blocks: they come whole
  // Channels-last tensors: channels of a box that the copy engine brings, pixels as they lie, those of each tap on
  // their own. Products of two-byte elements read them with channels along the rows, single warps read four-byte ones
  // as fragments, so that nothing is arranged. 0: no boxes.
  int row_box;
  int column_box;
  int team_registers;  // of a thread, where those that load give up some of theirs; else 0
  int loader_registers;

  int stages;  // tiles of pixels in shared memory: one is multiplied, the others are loaded
  int blocks_per_multiprocessor;
  bool partial;        // the sums of a block are parts, added up by the second kernel
  bool columns_first;  // neighbouring columns are neighbours in the weight, rather than neighbouring taps

  constexpr bool boxes() const { return row_box > 0; }
  constexpr bool warps_read_boxes() const { return boxes() && !warpgroup; }
  constexpr int row_box_bytes() const { return pixels() * row_box * element_bytes; }
  constexpr int column_box_bytes() const { return pixels() * column_box * element_bytes; }

  constexpr int vector() const { return 16 / element_bytes; }
  constexpr int all_taps() const { return taps[0] * taps[1] * taps[2]; }
  constexpr int tile_rows() const { return warpgroup ? 64 : 16; }
  constexpr int team_threads() const { return warpgroup ? 128 : 32; }
  constexpr int teams() const { return row_teams * column_teams * run_teams; }
  constexpr int team_warps() const { return team_threads() * teams() / 32; }
  constexpr int threads() const { return 32 * (team_warps() + loader_warps); }
  constexpr int block_rows() const { return tile_rows() * row_tiles * row_teams; }
  constexpr int block_columns() const { return team_columns * column_teams; }
  constexpr int loaded_rows() const { return block_rows() < rows ? block_rows() : rows; }
  constexpr int loaded_columns() const { return block_columns() < columns ? block_columns() : columns; }

  constexpr int width_runs() const { return (taps[2] + run - 1) / run; }
  constexpr int runs() const { return taps[0] * taps[1] * width_runs(); }
  // Columns of one product: a multiple of 8 (wgmma) or 16 (pairs of mma.sync).
  constexpr int run_columns() const {
    const int multiple = warpgroup ? 8 : 16;
    return (run * team_columns + multiple - 1) / multiple * multiple;
  }
  constexpr int column_tiles() const { return run_columns() / 8; }

  // Places along an axis among the units of the shifted tensor.
  constexpr int place_step(int axis) const { return apart[axis] ? taps[axis] : step[axis]; }
  constexpr int place_tap(int axis) const { return apart[axis] ? 1 : tap_step[axis]; }
  constexpr int places(int axis) const {
    return (tile[1 + axis] - 1) * place_step(axis) + (taps[axis] - 1) * place_tap(axis) + 1;
  }
  // Places from one row to the next, and so on: vectors along the width start at multiples of their length, wherever
  // the first element of a block lies.
  constexpr int extent(int axis) const {
    if (axis < 2 || columns_channels_last) return places(axis);
    return (places(axis) + most_lead + column_vector - 1) / column_vector * column_vector;
  }
  // What is loaded along the width starts at multiples of this many elements.
  constexpr int column_unit() const {
    return columns_channels_last ? 1 : loader_warps > 0 ? column_copy : column_vector;
  }
  // How far a place lies from the tile's first element, in elements (of those that any tap can read).
  constexpr int reach(int axis, int place) const {
    return apart[axis] ? place / taps[axis] * step[axis] + place % taps[axis] * tap_step[axis] : place;
  }

  constexpr int row_units() const { return tile[0] * tile[1] * tile[2] * tile[3]; }
  constexpr int column_units() const { return tile[0] * extent(0) * extent(1) * extent(2); }
  constexpr int pixels() const { return boxes() ? row_units() : row_units() * vector(); }
  // Two units at a time, neighbours along the width, or as many pixels of a box.
  constexpr int products() const { return pixels() / (2 * vector()); }

  // In cells. Units of the rows' tensor start on different banks; those of the other must touch, for the runs.
  constexpr int row_pitch() const { return block_rows() + (packed ? 0 : 1); }
  constexpr int team_cells() const { return column_units() * team_columns; }
  constexpr int row_cells() const {
    return boxes() ? block_rows() / row_box * row_box_bytes() / 16 : (row_units() * row_pitch() + 7) / 8 * 8;
  }
  constexpr int column_cells() const {
    return boxes() ? all_taps() * block_columns() / column_box * column_box_bytes() / 16
                   : (column_teams * team_cells() + 7) / 8 * 8;
  }
  // fp32 out of TF32: warpgroups read the big and the small parts of the factors from cells of their own.
  constexpr bool splits() const { return warpgroup && math == TileMath::fp32x3; }
  constexpr int plane_cells() const { return row_cells() + column_cells(); }
  constexpr int stage_cells() const { return plane_cells() * (splits() ? 2 : 1); }
  // The last run of a row may have fewer taps than the others, and the last eight columns of it fewer channels: they
  // are multiplied with whatever follows, and not stored.
  constexpr int spare_cells() const { return boxes() ? 0 : run * team_columns + 16; }
  // Stages; then the places of the units, or two barriers for each stage and the lines of the warps that load.
  constexpr int table_cell() const { return stages * stage_cells() + spare_cells(); }
  constexpr int raw_cell() const { return table_cell() + stages; }
  constexpr int pipeline_bytes() const {
    if (loader_warps == 0) return 16 * (table_cell() + row_units() + column_units());
    return 16 * raw_cell() + (packed || boxes() ? 0 : raw_stages * raw_stage_bytes());
  }
  constexpr int shared_bytes() const {
    const int staged = partial ? 0 : 4 * staged_rows() * staged_pitch();
    return pipeline_bytes() > staged ? pipeline_bytes() : staged;
  }

  // From one part of a cell to the next, along samples or an axis, in elements; and which part of it a pixel is.
  constexpr int part_step(bool of_rows, int dimension) const {
    return tile[dimension] * (of_rows || dimension == 0 ? 1 : step[dimension - 1]);
  }
  // Without loops, which would take the compiler long where it meets them in each of many copies.
  constexpr int inner_parts(int dimension) const {
    return (dimension < 1 ? split[1] : 1) * (dimension < 2 ? split[2] : 1) * (dimension < 3 ? split[3] : 1);
  }
  constexpr int part_of(int v, int dimension) const { return v / inner_parts(dimension) % split[dimension]; }
  // The pixels of a cell, a bit each, that belong to a part: some neighbours, over and over again. Splits are powers of
  // two, at most 8 together.
  constexpr unsigned part_bits(int dimension, int part) const {
    const int inner = inner_parts(dimension);
    return (((1u << inner) - 1) << part * inner) * (255u / ((1u << inner * split[dimension]) - 1));
  }

  // Lines along samples, depth and height, and elements of a line: parts that overlap share theirs; where places lie
  // apart, only theirs are there.
  constexpr bool line_gaps(bool of_rows, int dimension) const {
    return !of_rows && dimension > 0 && apart[dimension - 1];
  }
  constexpr int line_places(bool of_rows, int dimension) const {
    return of_rows || dimension == 0 ? tile[dimension] : extent(dimension - 1);
  }
  constexpr int raw_line(bool of_rows, int dimension, int part, int place) const {
    const int parts = line_gaps(of_rows, dimension) ? line_places(of_rows, dimension) : part_step(of_rows, dimension);
    return part * parts + place;
  }
  // How far a line lies from the first, in elements.
  constexpr int raw_position(bool of_rows, int dimension, int line) const {
    if (!line_gaps(of_rows, dimension)) return line;
    const int places = line_places(of_rows, dimension);
    return line / places * part_step(of_rows, dimension) + reach(dimension - 1, line % places);
  }
  constexpr RawLines raw_lines(bool of_rows) const {
    RawLines lines{};
    for (int dimension = 0; dimension < 3; ++dimension) {
      lines.count[dimension] =
          raw_line(of_rows, dimension, split[dimension] - 1, line_places(of_rows, dimension) - 1) + 1;
    }
    lines.length = raw_line(of_rows, 3, split[3] - 1, line_places(of_rows, 3) - 1) + 1;
    lines.pitch = channels_last(of_rows) ? lines.length : (lines.length + vector() - 1) / vector() * vector();
    return lines;
  }
  constexpr bool channels_last(bool of_rows) const { return of_rows ? rows_channels_last : columns_channels_last; }
  constexpr bool sides_apart() const { return row_warps + column_warps == loader_warps; }
  // Warps that share the channels of a block: of the block itself, or of one that packs its stages.
  constexpr int side_warps(bool of_rows) const { return packed ? kPackWarps : of_rows ? row_warps : column_warps; }
  // A warp that loads has channels of its own.
  constexpr int warp_channels(bool of_rows) const {
    const int channels = of_rows ? loaded_rows() : loaded_columns();
    const int copy = !channels_last(of_rows) ? 1 : of_rows ? row_copy : column_copy;
    const int warps = side_warps(of_rows) == 0 ? 1 : side_warps(of_rows);
    return ((channels + warps - 1) / warps + copy - 1) / copy * copy;
  }
  // Lanes along the channels when a warp arranges its lines, a power of two; the others go along the units.
  constexpr int channel_lanes(bool of_rows) const {
    int lanes = 1;
    while (lanes < warp_channels(of_rows) && lanes < 32) lanes *= 2;
    return lanes;
  }
  // From one channel to the next in a warp's lines, and from one element of a line to the next. Where channels lie
  // apart, eight lanes meet no bank twice: those that read the same channel have neighbouring places.
  constexpr int raw_channel_bytes(bool of_rows) const {
    if (channels_last(of_rows)) return element_bytes;
    const RawLines lines = raw_lines(of_rows);
    const int places = channel_lanes(of_rows) < 8 ? 8 / channel_lanes(of_rows) : 1;
    return ((lines.lines() * lines.pitch * element_bytes + 16 * places - 1) / (16 * places) | 1) * 16 * places;
  }
  constexpr int raw_element_bytes(bool of_rows) const {
    return channels_last(of_rows) ? (warp_channels(of_rows) * element_bytes + 15) / 16 * 16 : element_bytes;
  }
  constexpr int raw_side_bytes(bool of_rows) const {
    if (!channels_last(of_rows)) return warp_channels(of_rows) * raw_channel_bytes(of_rows);
    const RawLines lines = raw_lines(of_rows);
    return lines.lines() * lines.pitch * raw_element_bytes(of_rows);
  }
  constexpr int raw_stage_bytes() const {
    return row_warps * raw_side_bytes(true) + column_warps * raw_side_bytes(false);
  }
  // Shared memory of a block that packs the stage of one tensor.
  constexpr int pack_bytes() const {
    return kPackWarps * (raw_side_bytes(true) > raw_side_bytes(false) ? raw_side_bytes(true) : raw_side_bytes(false));
  }

  // Pieces of 32 vectors, one per lane; what a thread has of them, and how many of those it loads at once.
  constexpr int row_chunks() const {
    return chunks(row_units(), loaded_rows(), row_lanes, row_vector, rows_channels_last);
  }
  constexpr int column_chunks() const {
    return chunks(column_units(), loaded_columns(), column_lanes, column_vector, columns_channels_last);
  }
  constexpr int row_batches() const { return batches_of(row_chunks(), row_vector); }
  constexpr int column_batches() const { return batches_of(column_chunks(), column_vector); }
  constexpr int batches() const { return row_batches() + column_batches(); }
  constexpr int row_batch() const { return batch_of(row_chunks(), row_vector); }
  constexpr int column_batch() const { return batch_of(column_chunks(), column_vector); }
  constexpr int vector_words(int vector) const { return vector * element_bytes < 4 ? 1 : vector * element_bytes / 4; }
  // Words of a batch on their way into a thread.
  constexpr int batch_words() const {
    const int of_rows = vector() * row_batch() * vector_words(row_vector);
    const int of_columns = vector() * column_batch() * vector_words(column_vector);
    return of_rows > of_columns ? of_rows : of_columns;
  }

  // Sums of a block, [row][team of columns][run][column of the run].
  constexpr int all_runs() const { return run_teams * team_runs; }
  constexpr int block_sums() const { return column_teams * all_runs() * run_columns(); }
  // Where a sum stands in its row.
  constexpr int sum_of(int column, int d, int h, int w) const {
    const int block_run = (d * taps[1] + h) * width_runs() + w / run;
    return (column / team_columns * all_runs() + block_run) * run_columns() + w % run * team_columns +
           column % team_columns;
  }

  // The row of a warp, among those of its team, that the lanes of one of its eight fragment rows hold in each half of a
  // tile. Of boxes neighbouring channels are read at once, which are rows of both halves.
  constexpr int row_of(int tile, int half, int lane_row) const {
    return tile * tile_rows() + (warps_read_boxes() ? 2 * lane_row + half : 8 * half + lane_row);
  }

  // Results pass through shared memory, eight rows of every warp at a time, so that they leave in the weight's order.
  // Rows are 8 words apart modulo 32: the fragments' stores meet no bank twice.
  constexpr int staged_rows() const { return 8 * (warpgroup ? 4 : 1) * row_teams; }
  constexpr int staged_pitch() const { return (block_sums() + 31) / 32 * 32 + 8; }

  static constexpr int chunks(int units, int channels, int lanes, int vector, bool channels_last) {
    const int others = 32 / lanes;
    const int along = channels_last ? units : units / vector;
    const int across = channels_last ? channels / vector : channels;
    return ((along + lanes - 1) / lanes) * ((across + others - 1) / others);
  }
  constexpr int batches_of(int chunks, int vector) const {
    const int items = (chunks + team_warps() - 1) / team_warps();
    const int most = most_cells > vector ? most_cells / vector : 1;
    return (items + most - 1) / most;
  }
  constexpr int batch_of(int chunks, int vector) const {
    const int items = (chunks + team_warps() - 1) / team_warps();
    return (items + batches_of(chunks, vector) - 1) / batches_of(chunks, vector);
  }
};

struct ReduceParams {
  const void* rows;
  const void* columns;
  void* packed_rows;         // [group][row block][stage] cells, where stages come whole
  void* packed_columns;      // [group][column block][tap block][stage] cells
  float* sums;               // [part][tile][row][...] where the block's sums are parts
  void* weight;              // else: the result
  long long row_strides[5];  // batch, channel, depth, height, width
  long long column_strides[5];
  long long weight_strides[6];  // group, row, column, depth, height, width
  int batch;
  int groups;
  int row_size[3];
  int column_size[3];
  int pad[3];  // may be negative
  int row_blocks;
  int column_blocks;
  int tap_blocks[3];
  int tiles[4];  // stages along samples, depth, height, width
  // From a stage to the next one, in elements: the one along each dimension, from the last along those further in.
  long long row_advance[4];
  long long column_advance[4];
  int parts;
};

struct BoxReduceParams {
  ReduceParams reduce;
  TensorMap rows;
  TensorMap columns;
};

// Blocks that share a part: one for each tile of the weight.
constexpr int reduce_tiles(const ReduceParams& params) {
  return params.groups * params.row_blocks * params.column_blocks * params.tap_blocks[0] * params.tap_blocks[1] *
         params.tap_blocks[2];
}

constexpr int reduce_row_images(const ReduceParams& params) { return params.groups * params.row_blocks; }
constexpr int reduce_column_images(const ReduceParams& params) {
  return params.groups * params.column_blocks * params.tap_blocks[0] * params.tap_blocks[1] * params.tap_blocks[2];
}
// Stages of all parts together.
constexpr long long reduce_stages(const ReduceParams& params) {
  return static_cast<long long>(params.tiles[0]) * params.tiles[1] * params.tiles[2] * params.tiles[3];
}

// Threads of a block of the second kernel.
constexpr int kFinishThreads = 256;
