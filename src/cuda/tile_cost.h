// What a cut of a problem into tiles costs: registers, blocks, seconds.
#pragma once

#include <cstdint>

#include "core/family.h"
#include "cuda/kernels/tile_params.cuh"

namespace tconv::cuda {

// What the kernels read and write: the layer's input and output, or for a gradient the other way round.
const Strides& tile_input_strides(const Problem& problem);
const Strides& tile_output_strides(const Problem& problem);

// Cells along an axis that hold outputs of any residue, and those that the blocks of a cut go through.
std::int64_t tile_cells(const Problem& problem, int axis);
std::int64_t tile_cells(const TileShape& shape, const Problem& problem, int axis);

// Blocks along the rows (phases and output channels) and along the cells of a problem.
long long tile_block_rows(const TileShape& shape, const Problem& problem);
long long tile_block_cells(const TileShape& shape, const Problem& problem);
// Blocks of the whole grid.
long long tile_blocks(const TileShape& shape, const Problem& problem);

// Which row tiles of a block have a tap at a distance, a bit each.
unsigned row_tiles_with_tap(const TileShape& shape, int back_index);

// Loads of weights that a thread has under way when they are read in place.
int loads_in_place(const TileShape& shape);

// An estimate, on the safe side, of the registers that a thread needs.
int tile_registers(const TileShape& shape);

// How many blocks can have a multiprocessor each at once: those of a cluster share a part of the chip, whose
// multiprocessors clusters of four and eight don't divide evenly (of an H200's 132, 120 and 104 are taken).
double blocks_side_by_side(const TileShape& shape, const DeviceProperties& device);

// Bytes of the sectors at both ends of the rows that blocks store, and of those that two blocks write in parts, each of
// which costs a read besides.
double row_end_bytes(const TileShape& shape, const Problem& problem);
double torn_bytes(const TileShape& shape, const Problem& problem);

// Expected seconds of a problem cut in this way.
double tile_seconds(const TileShape& shape, const Problem& problem, const DeviceProperties& device);
double stream_seconds(const TileShape& shape, const Problem& problem, const DeviceProperties& device);

}  // namespace tconv::cuda
