#include "cuda/reduce_boxes.h"

#include <algorithm>
#include <array>

#include "cuda/reduce_fit.h"

namespace tconv::cuda {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr int kRowBox = 64;        // channels of two bytes: what a product takes of the rows
constexpr int kVectorBox = 32;     // channels of four bytes
constexpr int kMostColumns = 256;  // of one product

// Channels of a box of the shifted tensor that divide a block's evenly.
int column_box_of(int columns) {
  for (const int box : {64, 32, 16}) {
    if (columns % box == 0) return box;
  }
  return 0;
}

std::vector<int> column_choices(int columns) {
  for (const int count : {16, 32}) {
    if (columns <= count) return {count};
  }
  std::vector<int> choices;
  for (int count = kRowBox; count <= kMostColumns && count < columns + kRowBox; count += kRowBox)
    choices.push_back(count);
  return choices;
}

// Taps of a block: those of one product along the width, and whole rows of them.
std::vector<std::array<int, 3>> tap_choices(const ReduceShape& base) {
  std::vector<std::array<int, 3>> choices;
  for (int width = 1; width <= std::min(base.kernel[2], 16); ++width) {
    if (base.kernel[2] % width != 0) continue;
    choices.push_back({1, 1, width});
    if (width < base.kernel[2]) continue;
    for (int height = 2; height <= std::min(base.kernel[1], 8); ++height) {
      if (base.kernel[1] % height == 0) choices.push_back({1, height, width});
    }
    if (base.kernel[0] > 1 && base.kernel[0] <= 4) choices.push_back({base.kernel[0], base.kernel[1], width});
  }
  return choices;
}

// Boxes of that many pixels with the fewest outside of the tensor, rows of the tensor as long as they can be.
std::vector<std::array<int, 4>> pixel_boxes(const Problem& problem, const Reduction& reduction, int pixels) {
  const std::array<std::int64_t, 4> size = {problem.batch, reduction.axes[0].row_size, reduction.axes[1].row_size,
                                            reduction.axes[2].row_size};
  struct Box {
    std::array<int, 4> tile;
    double waste;
  };
  std::vector<Box> boxes;
  for (int w = 1; w <= pixels; w *= 2) {
    for (int h = 1; w * h <= pixels; h *= 2) {
      for (int d = 1; w * h * d <= pixels; d *= 2) {
        Box box = {{pixels / (w * h * d), d, h, w}, 1};
        for (std::size_t i = 0; i < 4; ++i)
          box.waste *= static_cast<double>(ceil_div(size[i], box.tile[i]) * box.tile[i]) / static_cast<double>(size[i]);
        boxes.push_back(box);
      }
    }
  }
  std::stable_sort(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) {
    return a.waste < b.waste * 0.999 || (a.waste < b.waste * 1.001 && a.tile[3] > b.tile[3]);
  });
  std::vector<std::array<int, 4>> tiles;
  for (std::size_t i = 0; i < std::min<std::size_t>(boxes.size(), 2); ++i) tiles.push_back(boxes[i].tile);
  return tiles;
}

TensorBoxes boxes_of(const ReduceShape& shape, const void* address, long long channels, const int (&size)[3],
                     const long long (&strides)[5], int batch, int box, bool steps) {
  const auto step = [&](int axis) { return static_cast<unsigned char>(steps ? std::min(shape.step[axis], 255) : 1); };
  return {.address = address,
          .element_bytes = shape.element_bytes,
          .sizes = {channels, size[2], size[1], size[0], batch},
          .strides = {strides[4], strides[3], strides[2], strides[0]},
          .box = {box, shape.tile[3], shape.tile[2], shape.tile[1], shape.tile[0]},
          .steps = {1, step(2), step(1), step(0), 1}};
}

// What a warp takes of a block: its rows, the channels of its columns, and how warps share the block.
struct WarpChoice {
  int row_tiles;
  int columns;
  int row_teams;
  int column_teams;
  int run_teams;
};

std::vector<WarpChoice> warp_choices(const ReduceShape& base, int taps) {
  constexpr int kMostTeams = 8;
  constexpr int kMostSums = 128;  // of a thread
  std::vector<WarpChoice> choices;
  for (const int row_tiles : {2, 4}) {
    for (const int row_teams : {1, 2, 4}) {
      if (row_tiles * 16 * row_teams >= base.rows + kVectorBox) continue;
      for (const int columns : {32, 64, 128}) {
        for (const int column_teams : {1, 2, 4}) {
          if (columns * column_teams >= base.columns + kVectorBox) continue;
          for (int run_teams = 1; run_teams <= taps; ++run_teams) {
            if (taps % run_teams != 0 || row_teams * column_teams * run_teams > kMostTeams) continue;
            if (row_tiles * taps / run_teams * columns / 2 > kMostSums) continue;
            choices.push_back({row_tiles, columns, row_teams, column_teams, run_teams});
          }
        }
      }
    }
  }
  return choices;
}

// Four-byte elements, read by single warps.
std::vector<ReduceShape> vector_shapes(const Problem& problem, const Reduction& reduction, ReduceShape base,
                                       const DeviceProperties& device) {
  base.row_box = base.column_box = kVectorBox;
  base.run = 1;
  std::vector<ReduceShape> shapes;
  for (const int pixels : {32, 64}) {
    for (const auto& tile : pixel_boxes(problem, reduction, pixels)) {
      std::copy(tile.begin(), tile.end(), std::begin(base.tile));
      for (const auto& taps : tap_choices(base)) {
        std::copy(taps.begin(), taps.end(), std::begin(base.taps));
        for (const WarpChoice& choice : warp_choices(base, base.all_taps())) {
          ReduceShape shape = base;
          shape.row_tiles = choice.row_tiles;
          shape.team_columns = choice.columns;
          shape.row_teams = choice.row_teams;
          shape.column_teams = choice.column_teams;
          shape.run_teams = choice.run_teams;
          shape.team_runs = base.all_taps() / choice.run_teams;
          const ReduceParams params = reduce_params(problem, reduction, shape, 1);
          if (!can_map(row_boxes(shape, params)) || !can_map(column_boxes(shape, params))) continue;
          if (fit_boxes_to_device(shape, device)) shapes.push_back(shape);
        }
      }
    }
  }
  return shapes;
}

}  // namespace

TensorBoxes row_boxes(const ReduceShape& shape, const ReduceParams& params) {
  return boxes_of(shape, params.rows, static_cast<long long>(params.groups) * shape.rows, params.row_size,
                  params.row_strides, params.batch, shape.row_box, false);
}

TensorBoxes column_boxes(const ReduceShape& shape, const ReduceParams& params) {
  return boxes_of(shape, params.columns, static_cast<long long>(params.groups) * shape.columns, params.column_size,
                  params.column_strides, params.batch, shape.column_box, true);
}

std::vector<ReduceShape> box_shapes(const Problem& problem, const Reduction& reduction, ReduceShape base,
                                    const DeviceProperties& device) {
  if (device.arch != 90 || !device.has_wgmma || device.any_batch) return {};
  if (!base.rows_channels_last || !base.columns_channels_last) return {};
  std::fill(std::begin(base.split), std::end(base.split), 1);
  if (base.math == TileMath::tf32) {
    return base.rows < 24 || base.columns < 24 ? std::vector<ReduceShape>{}
                                               : vector_shapes(problem, reduction, base, device);
  }
  if (base.element_bytes != 2 || base.rows < 24 || base.columns < 8) return {};
  base.warpgroup = true;
  base.row_box = kRowBox;
  base.column_teams = base.run_teams = 1;
  std::vector<ReduceShape> shapes;
  for (const int pixels : {64, 128}) {
    for (const auto& tile : pixel_boxes(problem, reduction, pixels)) {
      std::copy(tile.begin(), tile.end(), std::begin(base.tile));
      for (const int columns : column_choices(base.columns)) {
        base.team_columns = columns;
        base.column_box = column_box_of(columns);
        for (const auto& taps : tap_choices(base)) {
          std::copy(taps.begin(), taps.end(), std::begin(base.taps));
          base.run = taps[2];
          base.team_runs = taps[0] * taps[1];
          if (base.run_columns() > kMostColumns) continue;
          for (const auto& [tiles, teams] : {std::array{1, 1}, std::array{1, 2}, std::array{2, 1}, std::array{2, 2}}) {
            if (tiles * teams > 1 && (tiles * teams - 1) * 64 >= base.rows) continue;
            ReduceShape shape = base;
            shape.row_tiles = tiles;
            shape.row_teams = teams;
            if (4 * tiles * shape.team_runs * shape.column_tiles() > 160) continue;
            const ReduceParams params = reduce_params(problem, reduction, shape, 1);
            if (!can_map(row_boxes(shape, params)) || !can_map(column_boxes(shape, params))) continue;
            if (fit_boxes_to_device(shape, device)) shapes.push_back(shape);
          }
        }
      }
    }
  }
  return shapes;
}

}  // namespace tconv::cuda
