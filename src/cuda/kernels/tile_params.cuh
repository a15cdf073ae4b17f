// What the host and the device agree on about the tile kernels; compiled by both.
//
// A block computes a matrix of rows (phase, output channel) by columns (cells). With o + pad = q stride + r per axis, q
// is the cell and r the residue of output o; tap k, k dilation = r + stride back, reads input cell q - back. So for one
// `back` every phase has at most one tap, all phases read the same input cells, and the block is a sum over (back,
// input channel) of small matrix products.
//
// The gradient of the input is the same map read the other way: what is read ("input" below) is the layer's output,
// what is written ("output") its input. Rows are channels of what is written, columns its cells i; tap k reads cell
// i + back of residue r. The residues of what is read lie in planes of their own in a block's patch, so that a tap is
// one shift there too, and the block is a sum over (tap, input channel).
#pragma once

// How operands are multiplied. fp32x3 is fp32-grade: each factor is split in two TF32 halves.
enum class TileMath : int { tf32, f16, bf16, fp32x3 };

// Threads of a streaming block that only load: three warps the input, one packed weights; weights that are read in
// place have as many threads of their own.
constexpr int kStreamThreads = 128;

struct TileShape {
  TileMath math;
  int element_bytes;

  // The problem: what a kernel is specialised for. Sizes along the axes and the batch stay run-time values.
  int channels;      // input channels of a group
  int out_channels;  // output channels of a group
  int kernel[3];
  int stride[3];
  int dilation[3];
  bool bias;
  bool gradient;

  // Distances `back` along each axis: 0, step, 2 step, ...
  int backs[3];
  int back_step[3];

  // Streams of few output channels: neighbouring outputs along an axis of stride 1 that are phases of one cell, so that
  // products have as many times the rows. Such cells lie `fold` inputs apart, and phases read the same inputs with taps
  // that are one apart: backs count from the input that the cell's last output reads with tap 0. Otherwise 1.
  int fold[3];

  // The residues of a block: the whole stride of an axis (then only those with taps own rows, and the others are
  // written as bias), or `span` neighbouring ones.
  int span[3];
  int slots[3];  // residues of the span that own rows
  // Nibble per residue of the span: its slot, 15 for none; and back. Unused when every residue of the span has a slot.
  unsigned long long slot_nibbles[3];
  unsigned long long residue_nibbles[3];

  // Gradient: the residues of an axis that are read (those with taps, by residue_nibbles, or every one), and how many
  // of them a patch holds, a plane each. Chunk after chunk brings the next ones; fewer than all of them are neighbours.
  int phases[3];
  int planes[3];

  int tile[4];         // cells of a block: samples, depth, height, width
  int block_channels;  // output channels of a block

  // Who multiplies: teams of one warp (mma.sync, tiles of 16 rows) or of four (wgmma, tiles of 64 rows).
  bool warpgroup;
  // Warpgroups that take cells as the 64 rows of wgmma, from the input as it lies in memory, which warps of their own
  // copy to shared memory some chunks ahead (tile_stream.cuh). Row tiles have `row_unit` rows then.
  bool streams;
  int row_unit;
  int granule;      // elements of one copy of the input
  int lead;         // elements by which the copies of a row begin before the box; -1: that differs
  int input_ring;   // chunks of input in shared memory
  int weight_ring;  // stages of weights
  // A gradient that streams rows as they lie may take `window` neighbouring taps of the width as depth, as if each were
  // a channel: neighbours in memory, in the input as in the weights. Then `channels` counts (channel, tap of a window),
  // `kernel` windows, and `dilation` is the way from one to the next. Otherwise 1.
  int window;
  int window_taps;  // that the windows of a row have together; the last one may have fewer than the others
  // The axis along which all distances are taken together, as a line; -1: none. Cells that are neighbours along it read
  // the same input at different distances, so that a team with several tiles of cells, one step of the axis apart,
  // multiplies a fragment of input once for each.
  int line_axis;
  // Blocks stay for tile after tile, `most_blocks` of them, and load the next one's input while they store.
  bool stays;
  int most_blocks;
  // Neighbouring channels of a channels-last output that a thread stores at once, from its sums or from those of all
  // blocks that share the tile. 0: outputs pass through shared memory by turns.
  int store_vector;
  int row_vector;  // outputs of a row that leave shared memory by one store
  // Streams: outputs pass through shared memory as they will lie in the tensor (tile_stream_store_image.cuh), with
  // `image_row` of them from one row to the next. 0: they pass as sums, a matrix for each phase.
  int image_row;
  int image_lead;    // positions before a row's first output, which are left out
  bool joins_rows;   // a tile has whole rows, which follow each other in the tensor
  bool sends_lines;  // the copy engine takes them to the tensor, line by line
  bool sends_boxes;  // or the columns of a team as one box of neighbours by channels

  int row_tiles;     // row tiles of a team
  int column_tiles;  // 8-column tiles of a team; even for warps
  int row_teams;
  int column_teams;
  int depth_teams;   // teams of a block that share one tile of outputs and split the sum
  int depth_blocks;  // blocks (of one cluster) that do so, each with its share of the chunks

  int slabs;        // 16-byte slabs of channels per chunk, even
  int item_steps;   // streams: steps of depth (two slabs each) whose fragments a team loads together
  int stage_backs;  // distances of one weight stage
  int unroll;       // of the loop over a stage's products
  bool all_taps;    // every phase of a block has a tap at every distance
  int blocks_per_multiprocessor;
  bool packed;  // weights come from the workspace, in the order of the stages; otherwise from the tensor itself
  // Streams: all tiles of a block have the same weights, which are brought once (in place by threads that multiply).
  bool keeps_weights;
  // Streams that read them there: elements of a load, and from one summed channel, row's channel or tap to the next.
  int weight_vector;
  int weight_steps[3];
  // The copy engine brings weights out of a channels-last tensor itself, as boxes of one tap, which products read as
  // they are: rows of a gradient's hold channels of the sum, those of a forward layer's (of two bytes) channels of its
  // rows.
  bool weight_boxes;
  bool input_channels_last;
  bool wide_input;  // channels-last input whose 16-byte vectors are aligned and whole
  // Streams: the copy engine brings boxes of channels-last input, zeros outside the tensor, 16-byte columns swapped so
  // that those of neighbouring cells lie on different banks.
  bool tensor_copies;
  bool output_channels_last;
  // A gradient's weights whose summed channels are neighbours in the tensor: a cell is one load.
  bool wide_weights;

  // Blocks of one residue of an axis begin with the cell of its first output: other residues' cells may lie one
  // further.
  constexpr bool follows_residue(int axis) const { return !gradient && span[axis] == 1 && stride[axis] > 1; }

  constexpr int slot_of(int axis, int residue) const {
    return slots[axis] == span[axis] ? residue : static_cast<int>(slot_nibbles[axis] >> (4 * residue) & 15);
  }
  constexpr int residue_of(int axis, int slot) const {
    return slots[axis] == span[axis] ? slot : static_cast<int>(residue_nibbles[axis] >> (4 * slot) & 15);
  }

  constexpr int residue_of_phase(int axis, int phase) const {
    return phases[axis] == stride[axis] ? phase : static_cast<int>(residue_nibbles[axis] >> (4 * phase) & 15);
  }
  constexpr int all_planes() const { return planes[0] * planes[1] * planes[2]; }
  constexpr int plane_groups(int axis) const { return gradient ? (phases[axis] + planes[axis] - 1) / planes[axis] : 1; }
  // The residue of a plane: of its group's first plane, and from there.
  constexpr int group_residue(int axis, int group) const {
    return plane_groups(axis) == 1 ? 0 : residue_of_phase(axis, group * planes[axis]);
  }
  constexpr int plane_residue(int axis, int plane) const {
    return plane_groups(axis) == 1 ? residue_of_phase(axis, plane) : plane;
  }
  constexpr int all_plane_groups() const { return plane_groups(0) * plane_groups(1) * plane_groups(2); }
  // Of all groups, each after the one before it along the width, which stands where along an axis.
  constexpr int group_along(int axis, int group) const {
    for (int inner = 2; inner > axis; --inner) group /= plane_groups(inner);
    return group % plane_groups(axis);
  }

  // Tensor copies that bring a gradient's residues in boxes of their own, one chunk after the other: cells are
  // neighbours in them, as those of a forward problem are. Taps of a residue are `phases` apart then, and some residues
  // may have one less than others.
  constexpr bool plane_boxes() const {
    return tensor_copies && gradient && (stride[0] > 1 || stride[1] > 1 || stride[2] > 1);
  }
  constexpr int first_tap(int axis, int group) const {
    const int residue = group_residue(axis, group);
    if (dilation[axis] == 1 || stride[axis] == 1) return residue;
    int tap = 0;
    while (tap * dilation[axis] % stride[axis] != residue) ++tap;
    return tap;
  }
  constexpr int plane_taps(int axis, int group) const {
    return (kernel[axis] - first_tap(axis, group) + phases[axis] - 1) / phases[axis];
  }
  // Whether all residues have their taps at the same distances.
  constexpr bool even_planes() const {
    if (!plane_boxes()) return true;
    for (int axis = 0; axis < 3; ++axis) {
      if (kernel[axis] % phases[axis] != 0 || (phases[axis] - 1) * dilation[axis] >= stride[axis]) return false;
    }
    return true;
  }
  constexpr int group_taps(int group) const {
    int taps = 1;
    for (int axis = 0; axis < 3; ++axis) taps *= plane_taps(axis, group_along(axis, group));
    return taps;
  }
  constexpr int all_group_taps() const {
    int taps = 0;
    for (int group = 0; group < all_plane_groups(); ++group) taps += group_taps(group);
    return taps;
  }
  // The tap of an axis that is the `index`-th of a group's.
  constexpr int plane_tap(int axis, int group, int index) const {
    for (int inner = 2; inner > axis; --inner) index /= plane_taps(inner, group_along(inner, group));
    const int own = group_along(axis, group);
    return first_tap(axis, own) + index % plane_taps(axis, own) * phases[axis];
  }

  // What one step between cells is in the tensor that is read and in the one that is written.
  constexpr int input_step(int axis) const { return gradient ? stride[axis] : fold[axis]; }
  constexpr int output_step(int axis) const { return gradient ? 1 : stride[axis] * fold[axis]; }
  constexpr bool folds() const { return fold[0] * fold[1] * fold[2] > 1; }

  // Blocks along the output channels of a group, and along the residues of an axis.
  constexpr int channel_blocks() const { return (out_channels + block_channels - 1) / block_channels; }
  constexpr int residue_blocks(int axis) const { return (output_step(axis) + span[axis] - 1) / span[axis]; }
  constexpr int all_residue_blocks() const { return residue_blocks(0) * residue_blocks(1) * residue_blocks(2); }

  // The tap with which residue `residue` of an axis reads the inputs at a distance; -1: none.
  constexpr int axis_tap(int axis, int residue, int back) const {
    const int reach = residue + stride[axis] * back * back_step[axis] - (fold[axis] - 1);
    const bool exists = reach >= 0 && residue < stride[axis] * fold[axis] && reach % dilation[axis] == 0 &&
                        reach / dilation[axis] < kernel[axis];
    return exists ? reach / dilation[axis] : -1;
  }
  constexpr bool has_tap(int axis, int residue, int back) const { return axis_tap(axis, residue, back) >= 0; }
  // Blocks that compute a part of an axis' phases may have no tap at all at some distances, and skip those.
  constexpr bool skips_backs() const {
    if (gradient || all_backs() > 64) return false;
    for (int axis = 0; axis < 3; ++axis) {
      for (int residue = 0; span[axis] < stride[axis] && residue < stride[axis]; ++residue) {
        for (int back = 0; back < backs[axis]; ++back) {
          if (!has_tap(axis, residue, back)) return true;
        }
      }
    }
    return false;
  }

  constexpr int vector() const { return 16 / element_bytes; }
  constexpr int chunk_channels() const { return slabs * vector(); }
  // Channels of the tensor that is read, and of a chunk of it.
  constexpr int read_channels() const { return channels / window; }
  constexpr int chunk_read_channels() const { return chunk_channels() / window; }
  // Which (channel, tap of a window) is where products expect the `index`-th one: the lanes of a fragment load two
  // words that are neighbours in memory, half a step of depth apart for the tensor cores.
  constexpr int windowed(int index) const {
    const int step = 2 * vector();
    const int word = vector() / 4;  // elements of four bytes
    const int at = index % step;
    const int lane = at % vector() / word;
    return window == 1 ? index : index / step * step + (lane * 2 + at / vector()) * word + at % word;
  }
  constexpr int channel_chunks() const { return (channels + chunk_channels() - 1) / chunk_channels(); }
  constexpr int chunks() const { return channel_chunks() * all_plane_groups(); }
  constexpr int block_chunks() const { return chunks() / depth_blocks; }
  // Distances along an axis at which a chunk is multiplied; for a gradient its taps: those of the kernel, or of a group
  // of planes as many as any plane could have.
  constexpr int axis_backs(int axis) const {
    if (!gradient) return backs[axis];
    if (plane_boxes()) return plane_taps(axis, 0);
    return plane_groups(axis) == 1 ? kernel[axis] : planes[axis] * backs[axis];
  }
  constexpr int all_backs() const { return axis_backs(0) * axis_backs(1) * axis_backs(2); }
  // Which distance along an axis the `index`-th one is: lines one after the other, or the width's fastest.
  constexpr int back_along(int axis, int index) const {
    if (axis == line_axis) return index % axis_backs(axis);
    if (line_axis >= 0) index /= axis_backs(line_axis);
    for (int inner = 2; inner > axis; --inner) {
      if (inner != line_axis) index /= axis_backs(inner);
    }
    return index % axis_backs(axis);
  }
  constexpr int line_backs() const { return line_axis < 0 ? 1 : axis_backs(line_axis); }
  constexpr int all_slots() const { return slots[0] * slots[1] * slots[2]; }
  constexpr int stages_per_chunk() const { return (all_backs() + stage_backs - 1) / stage_backs; }
  constexpr int tile_rows() const { return streams ? row_unit : warpgroup ? 64 : 16; }
  constexpr int rows() const { return tile_rows() * row_tiles * row_teams; }
  // Rows that are reordered together, where sums are stored straight from registers; 1: none.
  constexpr int reordered_rows() const {
    const bool reorders = output_channels_last && store_vector > 2 && depth_blocks == 1 && !exchanges_channels();
    return reorders ? 4 * store_vector : 1;
  }
  // The row of a phase's channel among the phase's rows. Of every eight rows a thread has two sums: channels that it
  // stores together are spread over as many eights as it takes.
  constexpr int row_of_channel(int channel) const {
    if (reordered_rows() == 1) return channel;
    const int group = 4 * store_vector;
    const int within = channel % store_vector;
    return channel / group * group + within / 2 * 8 + channel % group / store_vector * 2 + within % 2;
  }
  constexpr bool stores_vectors() const { return store_vector > 1 || row_vector > 1; }
  constexpr bool sends() const { return sends_lines || sends_boxes; }
  constexpr bool has_maps() const { return tensor_copies || sends_boxes; }
  constexpr int columns() const { return 8 * column_tiles * column_teams; }
  constexpr int cells() const { return tile[0] * tile[1] * tile[2] * tile[3]; }
  constexpr int teams() const { return row_teams * column_teams * depth_teams; }
  constexpr int team_threads() const { return warpgroup ? 128 : 32; }
  constexpr int multiplying_threads() const { return team_threads() * teams(); }
  // Weights that one thread asks the copy engine for; of a gradient's boxes, warps that are idle otherwise round the
  // words to TF32.
  constexpr bool copies_weights() const { return packed || weight_boxes; }
  constexpr bool rounds_boxes() const { return weight_boxes && gradient && math == TileMath::tf32; }
  // Streams: whether warps of their own bring the weights.
  constexpr bool loads_weights() const { return !copies_weights() && !keeps_weights; }
  constexpr int stream_threads() const { return !streams ? 0 : loads_weights() ? 2 * kStreamThreads : kStreamThreads; }
  constexpr int threads() const { return multiplying_threads() + stream_threads(); }

  // Streams: registers of a thread at the start, and after those that load have given up what goes to the others.
  constexpr int registers_at_start() const { return 65536 / (threads() * blocks_per_multiprocessor) / 8 * 8; }
  constexpr int loading_registers() const {
    if (tensor_copies) return !rounds_boxes() ? 40 : registers_at_start() > 64 ? 64 : 56;
    const bool many_copies = stays && copy_places() > 4 * (kStreamThreads - 32);
    return (registers_at_start() < 128 ? 48 : 56) + (many_copies ? 16 : 0);
  }
  // Of a thread that brings weights: warps of their own, or (kept ones) those that multiply later, in passing.
  constexpr int weight_registers() const {
    if (copies_weights()) return 0;
    return registers_at_start() - 8 < 104 ? registers_at_start() - 8 : 104;
  }
  constexpr int multiplying_registers() const {
    const int given = (loading_registers() + (keeps_weights ? 0 : weight_registers())) * kStreamThreads;
    const int left = (registers_at_start() * threads() - given) / multiplying_threads() / 8 * 8;
    return left < 240 ? left : 240;
  }
  constexpr int halo(int axis) const { return (backs[axis] - 1) * back_step[axis]; }
  constexpr int patch(int dimension) const {
    return dimension == 0 ? tile[0] : (tile[dimension] - 1) * fold[dimension - 1] + 1 + halo(dimension - 1);
  }
  constexpr int pixels() const { return patch(0) * patch(1) * patch(2) * patch(3); }

  // Streams: whether a team's tiles of 64 cells lie one step of the line's axis apart, and how many fragments of input
  // a line takes then.
  constexpr bool stacks_tiles() const { return line_axis >= 0 && column_tiles > 8; }
  constexpr int line_fragments() const { return (column_tiles / 8 - 1) * tile_fragments() + line_backs(); }
  // From one tile's fragment to the next one's.
  constexpr int tile_fragments() const { return line_axis < 0 ? 1 : input_step(line_axis); }
  // From one fragment of a line to the next, in bytes.
  constexpr int line_step() const {
    return line_axis < 0 ? 0 : (gradient ? dilation[line_axis] : back_step[line_axis]) * box_step(line_axis);
  }

  // Products of an item (a step of depth, or a few, at the distances of a line), and what one takes to compile: one of
  // many sums longer than in proportion.
  constexpr int item_products() const { return line_backs() * item_steps * row_tiles * (column_tiles / 8); }
  constexpr int product_cost() const { return 4 + row_unit * (128 + row_unit) / 352; }
  // They come in two halves where lines are long, and the next item's fragments are loaded between them. Those are a
  // second set of registers, so that two items are code of their own; where that would be too much, the fragments too
  // come in halves that take turns: each is loaded while the products of the other run, which is up to 2% slower (8% of
  // two-byte elements, whose items are not as long) and compiles in two thirds of the time.
  constexpr bool halves_items() const { return line_backs() > 2 && item_steps == 1 && !splits(); }
  constexpr bool takes_turns() const { return halves_items() && item_products() * product_cost() > 600; }

  // The column of a cell. Warps take any sixteen cells; a warpgroup takes a run of the patch as it lies in memory, in
  // which every distance back is one shift of the whole run, and the columns that fall on the halo are not stored.
  constexpr int column_of(int n, int d, int h, int w) const {
    if (warpgroup && !streams) return ((n * patch(1) + d) * patch(2) + h) * patch(3) + w;
    if (!stacks_tiles()) return ((n * tile[1] + d) * tile[2] + h) * tile[3] + w;
    return line_axis == 1 ? h * 64 + (n * tile[1] + d) * tile[3] + w : d * 64 + (n * tile[2] + h) * tile[3] + w;
  }
  constexpr int needed_columns() const { return column_of(tile[0] - 1, tile[1] - 1, tile[2] - 1, tile[3] - 1) + 1; }

  // Planes and slabs start on different banks, so that lanes spread which write neighbours: pixels of a row, which go
  // to the planes in turn, or (channels-last) slabs of a pixel.
  constexpr int plane_pitch() const {
    if (all_planes() == 1) return pixels();
    const int along = input_channels_last && slabs < 8 ? 8 / slabs : input_channels_last ? 1 : 8;
    return (pixels() + 7) / 8 * 8 + (along + planes[2] - 1) / planes[2];
  }
  constexpr int slab_pitch() const {
    const int cells_of_slab = all_planes() * plane_pitch();
    return input_channels_last ? (cells_of_slab + 7) / 8 * 8 + 8 / slabs : cells_of_slab;
  }
  constexpr int input_stage_bytes() const {
    if (!streams) return slabs * slab_pitch() * 16;
    if (tensor_copies) return (box_bytes() + 1023) / 1024 * 1024;  // as the swapping of columns repeats
    return input_channels_last ? box_bytes() : chunk_read_channels() * channel_pitch();
  }
  constexpr int box_bytes() const { return box_rows() * box(2) * cell_pitch(); }  // channels-last

  // Streams: a chunk of input as it lies in memory, a box of elements for each channel, or of cells with their
  // channels. Rows begin where a copy may begin. The four channels (or eight cells) that lanes read together lie on
  // different banks.
  constexpr int box(int axis) const {
    if (!gradient || plane_boxes()) return patch(1 + axis);
    return (tile[1 + axis] - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + (axis == 2 ? window : 1);
  }
  // What one step along an axis of the box is in the tensor that is read.
  constexpr unsigned char box_stride(int axis) const {
    return static_cast<unsigned char>(plane_boxes() ? stride[axis] : 1);
  }
  constexpr int box_rows() const { return tile[0] * box(0) * box(1); }
  // A gradient's cells lie `stride` elements apart, for large strides on a few banks only: there the residues of a row
  // lie in planes of their own, at the price of copies of one element.
  constexpr bool splits_rows() const {
    return streams && gradient && window == 1 && !input_channels_last && element_bytes == 4 && stride[2] % 4 == 0;
  }
  constexpr int plane_length() const { return (box(2) + stride[2] - 1) / stride[2]; }
  // Elements from the start of a row to its element `index`, and from one cell to the next.
  constexpr int row_place(int index) const {
    return splits_rows() ? index % stride[2] * plane_length() + index / stride[2] : index;
  }
  constexpr int cell_step(int axis) const {
    return plane_boxes() || (splits_rows() && axis == 2) ? 1 : input_step(axis);
  }
  constexpr int row_pitch() const {
    if (splits_rows()) return stride[2] * plane_length();
    return (box(2) + (lead >= 0 ? lead : granule - 1) + granule - 1) / granule * granule;
  }
  constexpr int copy_places() const {
    if (tensor_copies) return 0;
    return box_rows() * (input_channels_last ? slabs * box(2) : splits_rows() ? box(2) : row_pitch() / granule);
  }
  constexpr int channel_pitch() const {
    const int words = (box_rows() * row_pitch() * element_bytes + 3) / 4;
    if (window > 1) {
      const int apart = 16 * window / vector() % 32;  // banks for each of the channels of a step
      return 4 * ((words - apart + 31) / 32 * 32 + apart);
    }
    return 4 * (element_bytes == 4 ? (words + 23) / 32 * 32 + 8 : (words + 11) / 16 * 16 + 4);
  }
  // Whether eight neighbouring columns are eight neighbours in memory at an address of a multiple of 16 bytes, whatever
  // the distance: then the lanes of a warp name such vectors, and each other's channels come as pairs.
  constexpr bool names_vectors() const {
    return streams && !gradient && !input_channels_last && element_bytes == 2 && granule == 8 && lead == 0 &&
           backs[2] == 1 && tile[3] % 8 == 0;
  }
  constexpr int cell_pitch() const { return slabs * 16 + (tensor_copies ? 0 : 16); }
  // Bytes from one cell to the next along an axis of the box.
  constexpr int box_step(int axis) const {
    const int along = input_channels_last ? cell_pitch() : element_bytes;
    const int row = input_channels_last ? box(2) : row_pitch();
    return along * (axis == 2 ? 1 : axis == 1 ? row : row * box(1));
  }
  // Streams whose threads load two cells of a tile, eight apart: bytes from one to the other where both are always in
  // one row, else 0.
  constexpr int other_cell() const {
    if (tensor_copies || names_vectors()) return 0;
    const int inner = stacks_tiles() && line_axis == 2 ? 1 : 2;
    return tile[1 + inner] % 16 == 0 ? 8 * cell_step(inner) * box_step(inner) : 0;
  }
  // Streams with fp32 out of TF32 (split.cuh): weights come as slabs of the big parts and slabs of the small ones, and
  // sums of a few products, `part_items` items of a chunk, are added up in fp32. That sets the order of the sums: it is
  // the same for all cuts of a problem.
  constexpr bool splits() const { return streams && math == TileMath::fp32x3; }
  constexpr int weight_parts() const { return splits() ? 2 : 1; }
  constexpr int part_items() const {
    return line_backs() > 1 || channel_chunks() * (slabs / 2) * all_backs() <= 8 ? 1 : 2;
  }
  // With a part in every item, products are waited for anyway before the next fragments are split.
  constexpr bool splits_late() const { return splits() && part_items() == 1; }

  // Weights that a gradient's loader puts together itself: neighbours in memory are taps, then channels, or (wide) the
  // other way around, and their cells begin on different banks.
  constexpr bool pads_weights() const { return gradient && !packed && !streams; }
  constexpr int weight_slab_pitch() const {
    const int taps = all_backs() < 8 ? all_backs() : 8;
    return rows() + (!pads_weights() ? 0 : wide_weights ? 8 / slabs : taps % 8);
  }
  constexpr int weight_back_pitch() const {
    return weight_parts() * slabs * weight_slab_pitch() + (pads_weights() ? 1 : 0);
  }
  // Boxes of weights: a gradient's have a row for each channel of the block, with a chunk's channels; a forward layer's
  // one for each of a chunk's channels, with a run of the block's.
  constexpr int weight_run() const {
    int run = 128 / element_bytes;
    while (run > 1 && block_channels % run != 0) run /= 2;
    return run;
  }
  constexpr int weight_runs() const { return gradient ? 1 : block_channels / weight_run(); }
  constexpr int weight_row_bytes() const { return gradient ? slabs * 16 : weight_run() * element_bytes; }
  constexpr int weight_box_bytes() const { return block_channels / weight_runs() * slabs * 16; }
  // From what one product reads of a stage to the next step of depth, row tile, and slab or run, in 16 bytes.
  constexpr int weight_depth_pitch() const {
    if (!weight_boxes) return 2 * weight_slab_pitch();
    return gradient ? 2 : weight_row_bytes();
  }
  constexpr int weight_tile_pitch() const { return weight_boxes ? row_unit * slabs : row_unit; }
  constexpr int weight_leading_pitch() const { return weight_boxes ? weight_box_bytes() / 16 : weight_slab_pitch(); }
  // The high word of their descriptors: the step between eights of rows, and how columns are swapped.
  constexpr unsigned weight_descriptor() const {
    if (!weight_boxes) return 8;
    const unsigned kind = weight_row_bytes() == 128 ? 1 : weight_row_bytes() == 64 ? 2 : 3;
    return kind << 30 | static_cast<unsigned>(weight_row_bytes() / 2);
  }
  constexpr int weight_stage_bytes() const { return stage_backs * weight_back_pitch() * 16; }
  constexpr int input_stages() const { return streams ? input_ring : block_chunks() > 1 ? 2 : 1; }
  constexpr int weight_stages() const {
    if (streams) return weight_ring;
    const int most = packed ? 3 : 2;
    const int steps = block_chunks() * stages_per_chunk();
    return steps < most ? steps : most;
  }
  constexpr int pipeline_bytes() const {
    return input_stages() * input_stage_bytes() + weight_stages() * weight_stage_bytes();
  }

  // The epilogue passes the outputs through shared memory, `turn_channels` of each phase at a time. For rows that leave
  // along the width, rows of the staged matrix are 8 words apart modulo 32, so that the fragments' stores meet no bank
  // twice, and phases that interleave start on different banks; pixels that leave along the channels need an odd pitch.
  constexpr int staged_pitch() const {
    return (columns() + 31) / 32 * 32 + (output_channels_last ? 1 : streams ? 4 : 8);
  }
  constexpr int staged_slot_pitch(int channels) const {
    const int apart = 32 / slots[2] / 2 * 2;
    return channels * staged_pitch() + (output_channels_last || slots[2] == 1 ? 0 : apart > 2 ? apart : 2);
  }
  constexpr int staged_bytes(int channels) const {
    if (sends_boxes) return channels * columns() * element_bytes;
    if (image_row > 0) return (channels + 7) / 8 * 8 * image_pitch();
    return (all_slots() * staged_slot_pitch(channels) * 4 + 15) / 16 * 16;
  }
  // Blocks that share a tile lay down their sums cell after cell, eight banks apart, and read each other's by vectors.
  constexpr bool gathers_vectors() const { return store_vector > 0 && depth_blocks > 1; }
  constexpr int gathered_pitch() const { return (rows() + 23) / 32 * 32 + 8; }  // in words
  constexpr int gathered_bytes() const { return columns() * gathered_pitch() * 4; }
  constexpr int positions() const { return cells() * span[0] * span[1] * span[2]; }

  // An image has the order of the columns where each cell is one output, otherwise that of the outputs. Its channels
  // begin on different banks, for stores by columns as for those by vectors of phases.
  constexpr bool image_of_columns() const { return span[0] * span[1] * span[2] == 1; }
  // Neighbours in the image that are neighbours in the tensor: a row, or joined rows, or as much of them as a team has
  // that stores its own columns.
  constexpr int image_line() const { return joins_rows ? tile[2] * span[1] * image_row : image_row; }
  constexpr int image_piece() const {
    const int line = image_line();
    return image_of_columns() && line > 8 * column_tiles ? 8 * column_tiles : line;
  }
  constexpr int image_outputs() const { return tile[0] * tile[1] * span[0] * tile[2] * span[1] * image_row; }
  // From one channel to the next, in bytes; of boxes, which the copy engine wants without gaps, in a team's own one.
  constexpr int image_pitch() const {
    if (sends_boxes) return 8 * column_tiles * element_bytes;
    const int bytes = (image_of_columns() ? columns() : image_outputs()) * element_bytes;
    return (bytes + 47) / 64 * 64 + 16;
  }
  constexpr int table_bytes() const { return output_channels_last ? positions() * 8 : 0; }
  constexpr int turn_channels() const {
    int channels = block_channels;
    if (store_vector > 0) return channels;
    int room = pipeline_bytes() > 32 * 1024 ? pipeline_bytes() : 32 * 1024;
    if (stays) room = (blocks_per_multiprocessor == 1 ? 40 : 20) * 1024;
    if (stays && image_row > 0 && element_bytes == 2) room = (blocks_per_multiprocessor == 1 ? 72 : 36) * 1024;
    // Whole turns of eight channels, whose sums each thread knows when it is compiled.
    const int least = image_row > 0 ? 8 : 4;
    while (channels > least && channels % (image_row > 0 ? 16 : 2) == 0 &&
           staged_bytes(channels) + table_bytes() > room)
      channels /= 2;
    return channels;
  }
  // Where outputs are staged: in place of the operands, or beside those of the next tile. Boxes begin where the order
  // of their columns does.
  constexpr int staged_offset() const {
    if (!stays) return 0;
    return sends_boxes ? (pipeline_bytes() + 1023) / 1024 * 1024 : pipeline_bytes();
  }
  // Packed weights of warpgroups come by the copy engine, which tells barriers, behind everything else in shared
  // memory.
  constexpr bool bulk_weights() const { return warpgroup && packed; }
  // Sums in the order of the tensor's channels: warps exchange some of them at a time to have whole vectors.
  static constexpr int kExchanges = 4;
  constexpr bool exchanges_channels() const { return weight_boxes && !gradient && store_vector > 2; }
  constexpr int exchange_bytes() const { return exchanges_channels() ? kExchanges * 16 * multiplying_threads() : 0; }
  constexpr int barrier_offset() const {
    const int staged = gathers_vectors()  ? gathered_bytes()
                       : store_vector > 0 ? exchange_bytes()
                                          : (staged_bytes(turn_channels()) + table_bytes() + 15) / 16 * 16;
    if (stays) return staged_offset() + staged;
    return pipeline_bytes() > staged ? pipeline_bytes() : staged;
  }
  constexpr int barriers() const {
    if (!streams) return bulk_weights() ? weight_stages() : 0;
    return 2 * (input_ring + weight_ring) + (rounds_boxes() ? weight_ring : 0);
  }
  constexpr int shared_bytes() const { return barrier_offset() + 8 * barriers(); }
  // Warps copy stages whole; where they don't divide the distances evenly, the last copy reads this far past the end.
  constexpr int packed_tail_bytes() const {
    return bulk_weights() || all_backs() % stage_backs == 0 ? 0 : weight_stage_bytes();
  }
  // Packed weights of one block row: all its stages, one after the other.
  constexpr long long packed_bytes() const { return 16LL * weight_parts() * chunks() * all_backs() * slabs * rows(); }
};

struct TileParams {
  const void* input;
  const void* weight;  // the tensor, or the packed copy
  const void* bias;
  void* output;
  long long input_strides[5];
  long long weight_strides[5];  // input channel, output channel, depth, height, width
  long long weight_group_stride;
  long long weight_bytes;  // of all weights, where they lie without gaps; otherwise 0
  long long output_strides[5];
  int batch;
  int groups;
  int input_size[3];
  int output_size[3];
  int pad[3];
  int first_cell[3];  // of output 0
  int tiles[4];       // blocks along samples, depth, height, width
  // As in TileShape, for those who work out a grid from here.
  int residue_blocks[3];
  int channel_blocks;
};

// How the copy engine finds boxes of a tensor; the driver writes it.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

struct TensorTileParams {
  TileParams tile;
  TensorMap input;
  TensorMap weight;  // of weight boxes
  TensorMap output;  // of boxes that leave
};
