// Pieces of the tile family's planner: into which rows and cells a problem may be cut, and what fits.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "cuda/tensor_map.h"
#include "cuda/tile.h"

namespace tconv::cuda {

constexpr std::int64_t kIntMax = std::numeric_limits<int>::max();

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

std::vector<int> residues_with_taps(const Axis& axis);

// Gives a block the residues [0, span) of an axis (and of every later block the next span).
bool set_span(TileShape& shape, const Axis& axis, int a, int span);

// Whether each phase of a block has a tap at each distance, so that no product can be left out.
bool every_phase_has_every_tap(const TileShape& shape);

// Lengths into which `whole` may be cut, none above `most`: even cuts, the longest `choices` of them, and round
// numbers.
std::vector<int> cut_lengths(std::int64_t whole, std::int64_t most, int choices = 4);

// Boxes of cells that fill at most `columns` columns of the shape's teams: samples, depth, height, width.
using CellTile = std::array<int, 4>;
std::vector<CellTile> cell_tiles(const Problem& problem, TileShape shape, int columns);

// Inside a block, offsets from the sample's and the chunk's first element are 32-bit.
bool offsets_fit(const TileShape& shape, const Problem& problem);

// Whether the taps of a channel pair lie one after the other, at equal steps.
bool has_dense_taps(const Problem& problem);

// Whether the weights of neighbouring output channels lie one after the other, for each input channel from a multiple
// of 16 bytes on.
bool has_weight_runs(const Problem& problem);

// Whether one table says for all blocks where their taps are: those of a block's phases lie behind those of the first
// block's by as many taps as the phases do.
bool taps_lie_alike(const TileShape& shape);

// Whether a packed copy of the weights may be made: a grid of the pack kernel has limits, and blocks of a few phases
// out of many would multiply the copy's size.
bool may_pack(const TileShape& shape, const Problem& problem);

// Which phases a block computes together: all, or fewer of the outer axes, or a run of the width's.
std::vector<std::array<int, 3>> span_choices(const TileShape& base);
std::vector<int> channel_choices(const TileShape& base);

// Axes along which pairs of neighbouring outputs may be phases of a cell, -1 for none, and the shape with such pairs.
std::vector<int> fold_axes(const Problem& problem, const TileShape& base);
TileShape folded(TileShape shape, int axis);

// How outputs leave a streaming block that is cut already: what is stored at once, and how it passes shared memory.
// `may_map`: whether the copy engine may be told where the tensor is.
void set_stores(const Problem& problem, TileShape& shape, bool aligned, bool may_map);

// Whether the copy engine takes an image's lines to the tensor: long ones, which leave while the next tile is
// multiplied.
bool sends_lines(const TileShape& shape);

// What the copy engine takes to the tensor from a team, where it takes boxes: all but the address.
TensorBoxes output_boxes(const TileShape& shape, const Problem& problem);

// Weights as the copy engine sees them, whatever their address: `strides` of a summed channel, a row's channel, depth,
// height and width.
TensorBoxes weight_boxes_of(const TileShape& shape, long long groups, const long long (&strides)[5]);
// Lets the copy engine bring them, where they lie as it needs them, and whether it can once the cut is complete: how
// outputs leave sets the order of a gradient's rows.
bool set_weight_boxes(TileShape& shape, const Problem& problem, bool aligned);
bool fits_weight_boxes(const TileShape& shape, const Problem& problem, const DeviceProperties& device);

// Cuts for blocks whose warps have roles (kernels/tile_stream.cuh), where the device and the tensors allow them.
void add_streams(const Problem& problem, const DeviceProperties& device, TileShape base, bool aligned,
                 std::vector<TileCandidate>& candidates);

}  // namespace tconv::cuda
