#include "cuda/tile_cuts.h"

#include <algorithm>
#include <set>

#include "cuda/tile_cost.h"
#include "tconv/phases.h"

namespace tconv::cuda {

std::vector<int> residues_with_taps(const Axis& axis) {
  std::set<int> residues;
  for (std::int64_t k = 0; k < axis.kernel && static_cast<std::int64_t>(residues.size()) < axis.stride; ++k) {
    residues.insert(static_cast<int>(site_of(axis, k).residue));
  }
  return {residues.begin(), residues.end()};
}

bool set_span(TileShape& shape, const Axis& axis, int a, int span) {
  shape.span[a] = span;
  shape.slots[a] = span;
  if (span < shape.output_step(a) || shape.gradient) return true;
  const std::vector<int> residues = residues_with_taps(axis);
  if (static_cast<std::int64_t>(residues.size()) == axis.stride) return true;
  if (span > 15) return false;
  shape.slots[a] = static_cast<int>(residues.size());
  shape.slot_nibbles[a] = ~0ULL;
  shape.residue_nibbles[a] = 0;
  for (std::size_t slot = 0; slot < residues.size(); ++slot) {
    shape.slot_nibbles[a] &= ~(15ULL << (4 * residues[slot]));
    shape.slot_nibbles[a] |= static_cast<unsigned long long>(slot) << (4 * residues[slot]);
    shape.residue_nibbles[a] |= static_cast<unsigned long long>(residues[slot]) << (4 * slot);
  }
  return true;
}

bool every_phase_has_every_tap(const TileShape& shape) {
  if (shape.gradient) return true;
  for (int a = 0; a < kSpatialAxes; ++a) {
    if (shape.span[a] < shape.stride[a]) continue;  // differs from block to block: see skips_backs
    for (int slot = 0; slot < shape.slots[a]; ++slot) {
      for (int back = 0; back < shape.backs[a]; ++back) {
        if (!shape.has_tap(a, shape.residue_of(a, slot), back)) return false;
      }
    }
  }
  return true;
}

std::vector<int> cut_lengths(std::int64_t whole, std::int64_t most, int choices) {
  most = std::max<std::int64_t>(std::min(whole, most), 1);
  std::vector<int> lengths;
  std::int64_t pieces = ceil_div(whole, most);
  for (int i = 0; i < choices; ++i, ++pieces)
    lengths.push_back(static_cast<int>(std::max<std::int64_t>(ceil_div(whole, pieces), 1)));
  for (int power = 8; power <= most; power *= 2) lengths.push_back(power);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

std::vector<CellTile> cell_tiles(const Problem& problem, TileShape shape, int columns) {
  const std::array<std::int64_t, 4> size = {std::max<std::int64_t>(problem.batch, 1), tile_cells(shape, problem, 0),
                                            tile_cells(shape, problem, 1), tile_cells(shape, problem, 2)};
  const auto fits = [&](int n, int d, int h, int w) {
    const CellTile tile = {n, d, h, w};
    std::copy(tile.begin(), tile.end(), std::begin(shape.tile));
    return shape.needed_columns() <= columns;
  };
  // How often the next outer length fits, given the inner ones.
  const auto most = [&](auto&& fits_length) {
    std::int64_t length = 1;
    while (length < columns && fits_length(static_cast<int>(length + 1))) ++length;
    return length;
  };
  // The share of the columns that are cells of the problem.
  const auto filled = [&](const CellTile& tile) {
    double share = 1.0 / columns;
    for (std::size_t i = 0; i < size.size(); ++i)
      share *= static_cast<double>(size[i]) / static_cast<double>(ceil_div(size[i], tile[i]));
    return share;
  };
  std::vector<CellTile> tiles;
  std::vector<CellTile> parts;  // of several samples
  double best = 0;
  // Pixels with all their channels are long enough pieces of memory, rows need useful lengths.
  const bool pixels = shape.tensor_copies && shape.output_channels_last;
  const int least_width = pixels ? 8 : 16;
  // Low tiles of pixels leave room for samples; the usual ones come first.
  const auto heights = [&](int w) {
    const std::int64_t highest = most([&](int length) { return fits(1, 1, length, w); });
    std::vector<int> lengths = cut_lengths(size[2], highest);
    if (!pixels || shape.gradient) return lengths;
    for (const int length : cut_lengths(size[2], highest, 16)) {
      if (std::find(lengths.begin(), lengths.end(), length) == lengths.end()) lengths.push_back(length);
    }
    return lengths;
  };
  for (const int w : cut_lengths(size[3], columns, pixels ? 12 : 4)) {
    if (w < std::min<std::int64_t>(size[3], least_width)) continue;
    for (const int h : heights(w)) {
      for (const int d : cut_lengths(size[1], most([&](int length) { return fits(1, length, h, w); }))) {
        if (!fits(1, d, h, w)) continue;
        const int n = static_cast<int>(std::min(size[0], most([&](int length) { return fits(length, d, h, w); })));
        const bool whole = d == size[1] && h == size[2] && w == size[3];
        tiles.push_back({whole ? n : 1, d, h, w});
        best = std::max(best, filled(tiles.back()));
        const bool long_rows = w % 16 == 0 || (w == size[3] && w > 8);
        if (!whole && n > 1 && (long_rows || pixels)) parts.push_back({n, d, h, w});
      }
    }
  }
  // Parts of samples are short pieces to copy and to store: only where nothing else fills the columns.
  constexpr double kFull = 0.85;
  if (best < kFull) tiles.insert(tiles.end(), parts.begin(), parts.end());
  if (pixels) {
    constexpr double kNearlyAsFull = 0.9;
    for (const CellTile& tile : tiles) best = std::max(best, filled(tile));
    std::erase_if(tiles, [&](const CellTile& tile) { return filled(tile) < kNearlyAsFull * best; });
  }
  return tiles;
}

bool offsets_fit(const TileShape& shape, const Problem& problem) {
  const auto span = [](const Strides& strides, const std::array<std::int64_t, 5>& extent) {
    double reach = 0;
    for (std::size_t i = 0; i < extent.size(); ++i)
      reach += static_cast<double>(strides[i]) * static_cast<double>(extent[i]);
    return reach;
  };
  std::array<std::int64_t, 5> patch = {shape.tile[0] - 1, shape.chunk_channels() - 1, 0, 0, 0};
  const std::array<std::int64_t, 5> taps = {shape.chunk_channels() - 1, shape.out_channels - 1, shape.kernel[0] - 1,
                                            shape.kernel[1] - 1, shape.kernel[2] - 1};
  std::array<std::int64_t, 5> outputs = {shape.tile[0] - 1, 0, 0, 0, 0};
  for (int a = 0; a < kSpatialAxes; ++a) {
    outputs[2 + a] = static_cast<std::int64_t>(shape.tile[1 + a] + 1) * shape.output_step(a);
    // A gradient counts from the patch's own first element.
    patch[2 + a] =
        shape.gradient ? static_cast<std::int64_t>(shape.patch(1 + a)) * shape.stride[a] : problem.axes[a].input - 1;
  }
  return span(tile_input_strides(problem), patch) * shape.element_bytes < static_cast<double>(kIntMax) &&
         (!shape.output_channels_last || span(tile_output_strides(problem), outputs) < static_cast<double>(kIntMax)) &&
         (shape.packed || span(problem.weight_strides, taps) * shape.element_bytes < static_cast<double>(kIntMax));
}

bool has_dense_taps(const Problem& problem) {
  const Strides& strides = problem.weight_strides;
  return (problem.axes[1].kernel == 1 || strides[3] == strides[4] * problem.axes[2].kernel) &&
         (problem.axes[0].kernel == 1 || strides[2] == strides[4] * problem.axes[2].kernel * problem.axes[1].kernel);
}

bool has_weight_runs(const Problem& problem) {
  std::int64_t taps = 1;
  for (const Axis& axis : problem.axes) taps *= axis.kernel;
  const Strides& strides = problem.weight_strides;
  return has_dense_taps(problem) && strides[4] == 1 && strides[1] == taps &&
         strides[0] * static_cast<std::int64_t>(size_of(problem.dtype)) % 16 == 0;
}

bool may_pack(const TileShape& shape, const Problem& problem) {
  if (problem.groups > 65535 || shape.out_channels / shape.block_channels > 60000) return false;
  const double weights = static_cast<double>(element_count(problem.weight_sizes())) * shape.element_bytes;
  const double packed =
      static_cast<double>(shape.packed_bytes()) * static_cast<double>(tile_block_rows(shape, problem));
  return packed < 8 * weights + (64 << 20);
}

bool taps_lie_alike(const TileShape& shape) {
  for (int a = 0; a < kSpatialAxes; ++a) {
    if (shape.output_step(a) % shape.span[a] != 0) return false;
    for (int i = shape.span[a] * shape.backs[a]; i < shape.stride[a] * shape.backs[a]; ++i) {
      const int residue = i / shape.backs[a];
      const int first = residue % shape.span[a];  // the same of the first block
      const int tap = shape.axis_tap(a, residue, i % shape.backs[a]);
      const int first_tap = shape.axis_tap(a, first, i % shape.backs[a]);
      if (first_tap < 0 ? tap >= 0 : tap != first_tap + residue - first) return false;
    }
  }
  return true;
}

std::vector<std::array<int, 3>> span_choices(const TileShape& base) {
  if (base.gradient || base.folds()) return {{base.output_step(0), base.output_step(1), base.output_step(2)}};
  std::vector<std::array<int, 3>> spans = {
      {base.stride[0], base.stride[1], base.stride[2]}, {1, base.stride[1], base.stride[2]}, {1, 1, base.stride[2]}};
  for (const int width : {4, 8, 16, 32}) {
    if (width < base.stride[2]) spans.push_back({1, 1, width});
  }
  // Phases with different numbers of taps share a row tile at the price of products by zero; alone, each has its own.
  // Alone, each has cells of its own, too: of small images many fewer than all together.
  if (base.out_channels >= 64 && base.stride[2] <= 4) spans.push_back({1, 1, 1});
  std::sort(spans.begin(), spans.end());
  spans.erase(std::unique(spans.begin(), spans.end()), spans.end());
  return spans;
}

std::vector<int> channel_choices(const TileShape& base) {
  std::vector<int> choices = {base.out_channels};
  for (const int channels : {1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 128}) {
    if (channels < base.out_channels || (channels >= 16 && channels < base.out_channels + 16))
      choices.push_back(channels);
  }
  std::sort(choices.begin(), choices.end());
  choices.erase(std::unique(choices.begin(), choices.end()), choices.end());
  return choices;
}

// A product of 16 rows or fewer takes nearly as long as one of 32: of few output channels that leaves tensor cores
// idle, and phases share them at the price of products by zeros at both ends of the kernel, which pays for long ones.
// Each output's sum keeps its order; in strict arithmetic only along the line, whose sums are added up as a whole.
std::vector<int> fold_axes(const Problem& problem, const TileShape& base) {
  constexpr int kMostChannels = 16;
  constexpr int kLeastKernel = 5;
  std::vector<int> axes = {-1};
  const bool strided = base.stride[0] * base.stride[1] * base.stride[2] > 1;
  if (base.gradient || strided || base.depth_blocks > 1 || base.out_channels > kMostChannels) return axes;
  for (int a = 0; a < kSpatialAxes; ++a) {
    const Axis& axis = problem.axes[a];
    const bool keeps_order = base.math != TileMath::fp32x3 || a == base.line_axis;
    if (axis.dilation == 1 && axis.kernel >= kLeastKernel && axis.output() > 2 && keeps_order) axes.push_back(a);
  }
  return axes;
}

TileShape folded(TileShape shape, int axis) {
  if (axis < 0) return shape;
  shape.fold[axis] = 2;
  ++shape.backs[axis];
  return shape;
}

}  // namespace tconv::cuda
