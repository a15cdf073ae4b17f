// How the outputs of a streaming block leave: the part of the planner that says what is stored at once.
#include "cuda/tile_cost.h"
#include "cuda/tile_cuts.h"

namespace tconv::cuda {
namespace {

// Channels that a thread can store at once; 0: none.
int channel_vector_of(const TileShape& shape, const Strides& strides) {
  for (const int slots : shape.slots) {
    if (slots > 32) return 0;  // a bit each
  }
  for (int vector = shape.vector(); vector > 1; vector /= 2) {
    bool fits = shape.out_channels % vector == 0 && shape.block_channels % (4 * vector) == 0;
    for (const int d : {0, 2, 3, 4}) fits = fits && strides[d] % vector == 0;
    if (fits) return vector;
  }
  return 0;
}

// How many neighbours of a row can leave shared memory together: whole vectors, all inside or all outside.
int row_vector_of(const Problem& problem, const TileShape& shape, bool aligned) {
  const Strides& strides = tile_output_strides(problem);
  if (!aligned || shape.output_channels_last || shape.output_step(2) != 1 || strides[4] != 1) return 1;
  const Axis& width = problem.axes[2];
  const std::int64_t outputs = shape.gradient ? width.input : width.output();
  for (int vector = shape.vector(); vector > 1; vector /= 2) {
    bool fits = outputs % vector == 0 && shape.tile[3] % vector == 0;
    for (const int d : {0, 1, 2, 3}) fits = fits && strides[d] % vector == 0;
    if (fits) return vector;
  }
  return 1;
}

// The longest vectors of the output that lines of an image divide into, all inside or all outside.
int image_vector_of(const Problem& problem, const TileShape& shape) {
  const Strides& strides = tile_output_strides(problem);
  const auto outputs = [&](int a) { return shape.gradient ? problem.axes[a].input : problem.axes[a].output(); };
  const auto lead = [&](int a) { return problem.axes[a].pad_begin % shape.output_step(a); };
  const auto divides = [&](std::int64_t vector) {
    for (const int d : {0, 1, 2}) {
      if (strides[d] % vector != 0) return false;
    }
    const std::int64_t row = shape.image_row;
    if (shape.joins_rows) {
      return shape.tile[2] * shape.span[1] * row % vector == 0 && lead(1) * row % vector == 0 &&
             outputs(1) * row % vector == 0;
    }
    const bool whole_row = shape.tile[3] >= tile_cells(shape, problem, 2);
    return strides[3] % vector == 0 && row % vector == 0 && outputs(2) % vector == 0 &&
           (whole_row || lead(2) % vector == 0);
  };
  int vector = shape.vector();
  while (vector > 1 && !divides(vector)) vector /= 2;
  return vector;
}

// How outputs pass through shared memory: as they will lie in the tensor, where every output of a row has a phase here.
void set_image(const Problem& problem, TileShape& shape, bool aligned) {
  shape.image_row = shape.image_lead = 0;
  shape.joins_rows = false;
  const Strides& strides = tile_output_strides(problem);
  if (shape.output_channels_last || strides[4] != 1 || shape.depth_blocks > 1) return;
  if (shape.span[2] != shape.output_step(2) || (shape.all_slots() > 1 && shape.block_channels % 8 != 0)) return;
  for (int a = 0; a < kSpatialAxes; ++a) {
    if (shape.slots[a] != shape.span[a]) return;
  }
  const Axis& width = problem.axes[2];
  const std::int64_t length = shape.gradient ? width.input : width.output();
  const std::int64_t height = shape.gradient ? problem.axes[1].input : problem.axes[1].output();
  const auto lead = static_cast<int>(width.pad_begin % shape.output_step(2));
  const int positions = shape.tile[3] * shape.span[2];
  const bool whole_rows = shape.tile[3] >= tile_cells(shape, problem, 2);
  shape.image_row = positions;
  if (whole_rows && lead > 0) {
    shape.image_row = static_cast<int>(length);
    shape.image_lead = lead;
  }
  shape.row_vector = aligned ? image_vector_of(problem, shape) : 1;
  const bool may_join = whole_rows && shape.span[1] == shape.output_step(1) && shape.tile[2] * shape.span[1] > 1 &&
                        strides[3] == length && height * length <= kIntMax &&
                        !(shape.image_of_columns() && shape.stacks_tiles());
  if (!aligned || !may_join) return;
  TileShape joined = shape;
  joined.joins_rows = true;
  joined.image_row = static_cast<int>(length);
  joined.image_lead = lead;
  joined.row_vector = image_vector_of(problem, joined);
  // What is no output must be left out of joined rows, one store for each phase then.
  const bool leaves_out_more = joined.image_row != shape.image_row;
  if (joined.row_vector > shape.row_vector || (joined.row_vector == shape.row_vector && !leaves_out_more))
    shape = joined;
}

// Whether a team's columns are 64 neighbours of a row, 128 bytes of each channel: shorter ones are faster by threads,
// longer ones leave as lines.
bool may_send_boxes(const Problem& problem, const TileShape& shape) {
  if (shape.image_row == 0 || shape.joins_rows || !shape.image_of_columns() || shape.folds()) return false;
  if (shape.element_bytes != 2 || shape.column_tiles != 8 || shape.tile[3] % 64 != 0) return false;
  if (shape.tensor_copies || shape.block_channels % 8 != 0) return false;
  for (int a = 0; a < kSpatialAxes; ++a) {
    if (shape.output_step(a) != 1) return false;
  }
  // What is left of the last channels must not be another group's.
  if (problem.groups > 1 && shape.out_channels % shape.block_channels != 0) return false;
  return can_map(output_boxes(shape, problem));
}

}  // namespace

TensorBoxes output_boxes(const TileShape& shape, const Problem& problem) {
  const Strides& strides = tile_output_strides(problem);
  const auto size = [&](int a) { return shape.gradient ? problem.axes[a].input : problem.axes[a].output(); };
  return {.element_bytes = shape.element_bytes,
          .sizes = {size(2), size(1), size(0), problem.groups * shape.out_channels, problem.batch},
          .strides = {strides[3], strides[2], strides[1], strides[0]},
          .box = {8 * shape.column_tiles, 1, 1, shape.block_channels, 1}};
}

void set_stores(const Problem& problem, TileShape& shape, bool aligned, bool may_map) {
  const bool by_channels = shape.output_channels_last && aligned;
  shape.store_vector = by_channels ? channel_vector_of(shape, tile_output_strides(problem)) : 0;
  shape.row_vector = row_vector_of(problem, shape, aligned);
  set_image(problem, shape, aligned);
  shape.sends_boxes = aligned && may_map && may_send_boxes(problem, shape);
}

bool sends_lines(const TileShape& shape) {
  constexpr int kLeastBytes = 256;
  if (shape.image_row == 0 || !shape.stays || shape.turn_channels() < shape.block_channels) return false;
  const int piece = shape.image_piece();
  if (shape.row_vector < shape.vector() || piece * shape.element_bytes < kLeastBytes) return false;
  if (!shape.image_of_columns()) return true;
  // A team's own columns are whole lines, or parts of one.
  const int own = 8 * shape.column_tiles;
  return !shape.stacks_tiles() && (own % piece == 0 && shape.image_line() % piece == 0);
}

}  // namespace tconv::cuda
