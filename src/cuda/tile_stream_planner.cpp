#include <algorithm>
#include <map>
#include <utility>

#include "cuda/tensor_map.h"
#include "cuda/tile_cost.h"
#include "cuda/tile_cuts.h"

namespace tconv::cuda {
namespace {

// The largest copies that the rows of the input allow: whole ones, all inside or all outside. 0: none.
int granule_of(const Problem& problem, const TileShape& shape, bool aligned) {
  const Strides& strides = tile_input_strides(problem);
  if (shape.input_channels_last) return shape.wide_input ? shape.vector() : 0;
  if (strides[4] != 1) return 0;
  const Axis& width = problem.axes[2];
  const std::int64_t length = shape.gradient ? width.output() : width.input;
  for (int granule = aligned ? shape.vector() : 1; granule * shape.element_bytes >= 4; granule /= 2) {
    bool fits = length % granule == 0;
    for (const int d : {0, 1, 2, 3}) fits = fits && strides[d] % granule == 0;
    if (fits) return granule;
  }
  return 0;
}

// How far the copies of a row begin before the box, where that is the same for all blocks.
int lead_of(const Problem& problem, const TileShape& shape) {
  if (shape.input_channels_last) return 0;
  const Axis& width = problem.axes[2];
  const std::int64_t step = shape.tile[3] * shape.input_step(2);
  if (step % shape.granule != 0 && shape.tile[3] < tile_cells(shape, problem, 2)) return -1;
  if (shape.granule > 1 && shape.follows_residue(2) && width.pad_begin % width.stride != 0) return -1;
  const std::int64_t first = shape.gradient
                                 ? -width.pad_begin
                                 : (width.pad_begin / shape.output_step(2) + 1) * shape.fold[2] - 1 - shape.halo(2);
  return static_cast<int>((first % shape.granule + shape.granule) % shape.granule);
}

// How many neighbouring taps of the width a gradient may take as depth, where rows lie densely: as many as leave the
// least depth to multiply, of a kernel that they don't divide evenly with zeros at its end.
int window_of(const Problem& problem, const TileShape& shape) {
  const Axis& width = problem.axes[2];
  if (!shape.gradient || shape.input_channels_last || shape.granule < 2 || width.dilation != 1) return 1;
  const int step = 2 * shape.vector();
  const bool odd_stride = width.stride % 2 != 0 && width.input > 1;
  // Cells an odd number of words apart meet no bank twice anyway; of two-byte elements, words begin at even places.
  if (odd_stride && shape.channels >= step) return 1;
  const bool odd_pad = width.pad_begin % 2 != 0;
  if (shape.element_bytes == 2 && (odd_stride || odd_pad)) return 1;
  if (odd_pad && shape.depth_blocks > 2) return 1;  // few pixels and large weights, which are better off in place
  std::int64_t least = round_up(shape.channels, step) * width.kernel;
  // Cells two elements apart meet each bank twice without a window: one of whole steps may multiply a seventh more.
  const bool whole_steps = shape.channels == step;
  if (shape.element_bytes == 4 && !odd_stride && whole_steps) least = least * 8 / 7;
  int best = 1;
  for (int window = 2; window <= step; window *= 2) {
    const std::int64_t depth = round_up(std::int64_t{shape.channels} * window, step) * ceil_div(width.kernel, window);
    if (depth > least) continue;
    least = depth;
    best = window;
  }
  return best;
}

void set_window(TileShape& shape, int window) {
  shape.window = window;
  if (window == 1) return;
  shape.window_taps = shape.kernel[2];
  shape.channels *= window;
  shape.kernel[2] = static_cast<int>(ceil_div(shape.kernel[2], window));
  shape.dilation[2] = window;
  shape.phases[2] = shape.planes[2] = shape.stride[2];
  const int products = shape.all_backs();
  const int slabs = products >= 8 ? 2 : products >= 2 && window <= shape.vector() ? 4 : 8;
  const int needed = static_cast<int>(round_up(ceil_div(shape.channels, shape.vector()), 2));
  shape.slabs = std::min(slabs, needed == 6 ? 4 : needed);
}

// The axis whose distances are taken together: one besides the width, where neighbouring cells read neighbouring
// inputs. It sets the order of the sums, so it is the same for all cuts of a problem.
int line_axis_of(const TileShape& shape) {
  constexpr int kMostLine = 8;
  for (const int a : {1, 0}) {
    if (shape.input_step(a) == 1 && shape.axis_backs(a) > 1 && shape.axis_backs(a) <= kMostLine) return a;
  }
  return -1;
}

// Boxes of at most 64 cells and length one along the line's axis, for teams whose tiles are stacked along it.
std::vector<CellTile> stacked_planes(const Problem& problem, const TileShape& shape) {
  const int across = 2 - shape.line_axis;  // the dimension of the tile besides samples, width and the line's
  const std::int64_t others = tile_cells(shape, problem, across - 1);
  const std::int64_t width = tile_cells(shape, problem, 2);
  std::vector<CellTile> planes;
  const bool pixels = shape.tensor_copies && shape.output_channels_last;
  for (const int w : cut_lengths(width, 64)) {
    if (w < std::min<std::int64_t>(width, 16)) continue;
    CellTile plane = {1, 1, 1, w};
    plane[across] = static_cast<int>(std::min<std::int64_t>(others, 64 / w));
    // Parts of several samples are short pieces of rows, but not of pixels with all their channels.
    if ((w == width || pixels) && plane[across] == others)
      plane[0] = static_cast<int>(std::min<std::int64_t>(problem.batch, 64 / (w * others)));
    planes.push_back(plane);
  }
  return planes;
}

// Tiles of 64 cells of a team, teams.
struct CellTeams {
  int tiles;
  int teams;
};

std::vector<CellTeams> cell_teams(const TileShape& shape) {
  if (shape.line_axis < 0) return {{1, 1}, {1, 2}, {2, 1}, {2, 2}, {1, 3}, {2, 3}, {1, 4}};
  std::vector<CellTeams> choices = {{1, 1}, {1, 2}, {1, 3}, {1, 4}};
  // Stacked tiles share fragments only where the line's cells are one step apart.
  const int step = shape.gradient ? shape.dilation[shape.line_axis] : shape.back_step[shape.line_axis];
  for (const int tiles : {2, 3, 4, 5, 6, 8}) {
    for (const int teams : {1, 2, 3, 4}) {
      if (step == 1) choices.push_back({tiles, teams});
    }
  }
  return choices;
}

constexpr int kLeastRegisters = 64;         // at a kernel's start
constexpr int kLeastRegistersToStay = 96;   // loaders keep more from tile to tile
constexpr int kLeastRegistersInPlace = 80;  // weights on their way
constexpr int kLeastRegistersToKeep = 104;  // the same, in threads that will multiply
constexpr int kMostKeptStages = 16;         // of weights that stay in shared memory
constexpr int kMostCopyPlaces = 6;          // of a thread that loads, in registers

// How the copy engine would see the input; address and batch don't matter here.
TensorBoxes boxes_of(const Problem& problem, const TileShape& shape) {
  const Strides& strides = tile_input_strides(problem);
  const auto size = [&](int axis) { return shape.gradient ? problem.axes[axis].output() : problem.axes[axis].input; };
  return {.element_bytes = shape.element_bytes,
          .sizes = {problem.groups * shape.channels, size(2), size(1), size(0), 2},
          .strides = {strides[4], strides[3], strides[2], strides[0]},
          .box = {shape.chunk_channels(), shape.box(2), shape.box(1), shape.box(0), shape.tile[0]},
          .steps = {1, shape.box_stride(2), shape.box_stride(1), shape.box_stride(0), 1}};
}

// Chunks for the copy engine: as many channels as make a whole line of shared memory, where weights of all distances of
// a line take no more room than a stage should. A chunk ends where its group does.
bool set_tensor_copies(TileShape& shape, std::int64_t groups) {
  const int least = static_cast<int>(round_up(shape.channels, 2 * shape.vector()));
  for (int slabs = shape.line_axis >= 0 ? 4 : 8; slabs >= 2; slabs /= 2) {
    const int padded = static_cast<int>(round_up(shape.channels, slabs * shape.vector()));
    if (padded > least || (groups > 1 && padded != shape.channels)) continue;
    shape.slabs = slabs;
    return true;
  }
  return false;
}

// Boxes of one residue of a gradient's stride each, where the copy engine can take such steps.
bool set_plane_boxes(TileShape& shape, std::int64_t groups) {
  TileShape split = shape;
  for (int a = 0; a < kSpatialAxes; ++a) {
    if (shape.stride[a] > kMostBoxStep) return false;
    split.planes[a] = 1;
  }
  if (!set_tensor_copies(split, groups)) return false;
  split.tensor_copies = true;
  // Where residues differ in taps, items come in pairs, and blocks that share a sum take whole groups of residues.
  if (!split.even_planes() && (split.slabs < 4 || split.channel_chunks() % split.depth_blocks != 0)) return false;
  shape = split;
  return true;
}

// Whether products are so short that a team would wait for fragments longer than for them.
bool takes_two_steps(const TileShape& shape) {
  constexpr int kFewColumns = 192;
  const int columns = shape.rows() * shape.column_tiles / 8 * shape.line_backs();
  const int items = shape.even_planes() ? 2 : 4;  // of which half are left; uneven planes want pairs
  return shape.tensor_copies && !shape.splits() && shape.slabs / 2 % items == 0 && columns <= kFewColumns;
}

// Fits rings and residency around rows and cells; false when it cannot be built. `alone`: a grid with no more blocks
// than multiprocessors, each of which may have all of one.
bool complete_stream(TileShape& shape, const DeviceProperties& device, bool alone = false) {
  const int used = shape.all_slots() * shape.block_channels;
  shape.all_taps = every_phase_has_every_tap(shape);
  const bool apart = !shape.all_taps && !shape.folds() && shape.block_channels % 8 == 0 && shape.block_channels >= 16;
  shape.all_taps = !apart;  // or multiplied by stored zeros
  shape.row_unit = apart ? shape.block_channels : static_cast<int>(round_up(used, 8));
  shape.row_tiles = apart ? shape.all_slots() : 1;
  shape.row_teams = 1;
  const int sums = shape.rows() / 2 * shape.column_tiles / 8;
  // Two sets of fragments, and of split factors two sets of sums.
  const int parts = shape.weight_parts();
  const int per_fragment = shape.splits_late() ? 12 : 8 * parts;
  // The assembler needs more beside many sums of split factors, most where fragments are split late.
  const int beside_split = sums < 64 ? 52 : shape.splits_late() ? 64 : 60;
  const int others = shape.splits() ? beside_split : shape.element_bytes == 2 ? 48 : 32;
  const int fragments = per_fragment * shape.line_fragments();
  const int needed = parts * sums + fragments + others;
  const int store_vector = shape.store_vector;
  const int image_row = shape.image_row;
  const bool may_send_boxes = shape.sends_boxes;
  for (const int blocks : {3, 2, 1}) {
    if (alone && blocks > 1) continue;
    if (!alone && blocks * shape.column_teams < 2) continue;  // while one team stores, another multiplies
    shape.blocks_per_multiprocessor = blocks;
    const int at_start = shape.registers_at_start();
    const int least_to_stay = shape.tensor_copies ? kLeastRegisters : kLeastRegistersToStay;
    shape.stays = shape.depth_blocks == 1 && at_start >= least_to_stay;
    const bool gathers = shape.depth_blocks > 1 && store_vector >= 4;
    shape.store_vector = shape.stays || gathers ? store_vector : 0;
    shape.image_row = shape.store_vector > 0 ? 0 : image_row;
    shape.sends_boxes = may_send_boxes && shape.stays && shape.image_row > 0;
    // One product must fit what all threads start with.
    const bool many_copies = shape.copy_places() > 4 * (kStreamThreads - 32);
    if (many_copies &&
        (at_start < kLeastRegistersToStay || (shape.splits() && blocks > 1 && shape.granule == 1 && sums >= 48)))
      continue;
    const int least = shape.copies_weights() ? kLeastRegisters
                      : shape.keeps_weights  ? kLeastRegistersToKeep
                                             : kLeastRegistersInPlace;
    if (at_start < least) continue;
    if (shape.row_unit / 2 + 30 > at_start) continue;
    if (shape.multiplying_registers() < needed) continue;
    // Beyond this ptxas finds registers insufficient for lines of TF32 products and serialises them.
    const bool rounds = shape.element_bytes == 4 && !shape.splits() && shape.row_unit >= 16 && shape.row_unit < 32;
    if (rounds && shape.line_backs() > 1 && sums + fragments > at_start - 32) continue;
    // Staging in many turns beside the rings costs more than blocks that come and go, unless sums are short.
    const int most_turns = shape.image_row > 0 || shape.block_chunks() * shape.all_backs() <= 4 ? 4 : 2;
    if (shape.stays && shape.store_vector == 0)
      shape.stays = shape.block_channels <= most_turns * shape.turn_channels();
    shape.sends_boxes = shape.sends_boxes && shape.stays && shape.turn_channels() == shape.block_channels;
    shape.sends_lines = !shape.sends_boxes && sends_lines(shape);
    shape.item_steps = takes_two_steps(shape) && shape.multiplying_registers() >= needed + fragments ? 2 : 1;
    const int room = std::min(static_cast<int>(device.shared_bytes_per_block),
                              static_cast<int>(device.shared_bytes_per_multiprocessor) / blocks - 1024);
    const int per_line = shape.line_backs() * parts * shape.slabs * shape.rows() * 16;
    const int most = (blocks == 1 && !alone ? 32 : 16) * 1024;
    const int lines = shape.all_backs() / shape.line_backs();
    const int stage_lines = std::clamp(most / per_line, 1, lines);
    shape.stage_backs = static_cast<int>(ceil_div(lines, ceil_div(lines, stage_lines))) * shape.line_backs();
    // Blocks that stay load the next tile's chunks, too.
    const int most_slots = alone ? 8 : 4;
    const int most_inputs = shape.stays ? most_slots : std::min(most_slots, shape.block_chunks());
    shape.input_ring = std::min(2, most_inputs);
    shape.weight_ring = 2;
    if (shape.keeps_weights) {
      shape.weight_ring = shape.block_chunks() * shape.stages_per_chunk();
      if (!shape.stays || shape.weight_ring > kMostKeptStages) continue;
    }
    if (shape.shared_bytes() > room) shape.input_ring = std::min(2, shape.block_chunks());
    if (shape.shared_bytes() > room) continue;
    for (bool grew = true; grew;) {
      grew = false;
      for (int* const ring : {&shape.weight_ring, &shape.input_ring}) {
        const bool is_kept = ring == &shape.weight_ring && shape.keeps_weights;
        const int limit = ring == &shape.input_ring ? most_inputs : most_slots;
        if (*ring >= limit || is_kept) continue;
        ++*ring;
        grew = shape.shared_bytes() <= room || grew;
        if (shape.shared_bytes() > room) --*ring;
      }
    }
    return true;
  }
  return false;
}

// How many neighbours in memory one load of weights can bring: channels that are summed (a whole cell), channels of
// rows, or taps of neighbouring phases.
int weight_vector_of(const TileShape& shape, bool aligned) {
  const int (&steps)[3] = shape.weight_steps;
  const bool one_tap = shape.kernel[0] * shape.kernel[1] * shape.kernel[2] == 1;
  for (int vector = shape.vector(); aligned && vector > 1; vector /= 2) {
    const auto whole = [&](int step) { return steps[step] % vector == 0; };
    const bool taps = one_tap || whole(2);
    const bool by_channels = vector == shape.vector() && shape.channels % vector == 0 && whole(1) && taps;
    const bool by_rows = shape.out_channels % vector == 0 && shape.block_channels % vector == 0 && whole(0) && taps;
    const bool by_slots = steps[2] == 1 && shape.dilation[2] == 1 && shape.slots[2] == shape.span[2] &&
                          shape.span[2] % vector == 0 && shape.kernel[2] % vector == 0 && whole(0) && whole(1);
    if (steps[0] == 1 ? by_channels : steps[1] == 1 ? by_rows : by_slots) return vector;
  }
  return 1;
}

// Weights that are read where they lie. What a block brings is brought for its cells alone: that pays for few blocks
// (and was never faster for gradients).
bool set_weights_in_place(TileShape& shape, const Problem& problem, bool aligned) {
  constexpr int kMostPlaces = 1024;  // in constant memory
  if (shape.gradient || shape.folds() || !has_dense_taps(problem) || !taps_lie_alike(shape)) return false;
  if (shape.all_backs() * shape.all_slots() > kMostPlaces) return false;
  const std::array<std::int64_t, 3> steps = {problem.weight_strides[0], problem.weight_strides[1],
                                             problem.weight_strides[4]};
  const std::array<std::int64_t, 3> counts = {shape.chunk_channels(), shape.out_channels,
                                              std::int64_t{shape.kernel[0]} * shape.kernel[1] * shape.kernel[2]};
  double reach = 0;
  for (int i = 0; i < 3; ++i) {
    reach += static_cast<double>(steps[i]) * static_cast<double>(counts[i]);
    if (steps[i] > kIntMax / 16) return false;
    shape.weight_steps[i] = static_cast<int>(steps[i]);
  }
  if (reach * shape.element_bytes > static_cast<double>(kIntMax)) return false;
  shape.packed = false;
  shape.weight_vector = weight_vector_of(shape, aligned);
  return true;
}

constexpr int kMostWavesInPlace = 8;
enum class WeightsCome : std::uint8_t { packed, in_place, in_boxes };

void add_candidate(const Problem& problem, const DeviceProperties& device, const TileShape& shape,
                   std::vector<TileCandidate>& candidates) {
  TileCandidate candidate;
  candidate.shape = shape;
  candidate.shape.most_blocks =
      static_cast<int>(shape.stays ? device.multiprocessors * shape.blocks_per_multiprocessor : kIntMax);
  candidate.blocks = tile_blocks(shape, problem);
  if (candidate.blocks > kIntMax / 8) return;
  candidate.expected_seconds = stream_seconds(candidate.shape, problem, device);
  candidates.push_back(candidate);
}

void add_cuts(const Problem& problem, const DeviceProperties& device, const TileShape& base, bool aligned,
              std::vector<TileCandidate>& candidates) {
  const auto stacked = [&](const TileShape& shape) {
    std::vector<CellTile> stacks = stacked_planes(problem, shape);
    const int height = shape.column_tiles / 8 * shape.column_teams;
    for (CellTile& tile : stacks) tile[1 + base.line_axis] = height;
    const bool fits = height < tile_cells(shape, problem, base.line_axis) + shape.column_tiles / 8;
    return fits ? stacks : std::vector<CellTile>{};
  };
  for (const auto& span : span_choices(base)) {
    TileShape shape = base;
    bool fits = true;
    for (int a = 0; a < kSpatialAxes; ++a) fits = fits && set_span(shape, problem.axes[a], a, span[a]);
    if (!fits || shape.skips_backs()) continue;
    // Half of a product's least columns, where the copy engine brings both operands: more blocks for small layers.
    const int least_columns = base.tensor_copies && base.output_channels_last && base.element_bytes == 2 ? 32 : 64;
    const int least_used = base.gradient ? 12 : 4;
    std::map<int, std::vector<CellTile>> tiles_of;  // by columns
    std::vector<int> channel_counts = channel_choices(base);
    for (const int channels : {192, 256}) {
      if (channels < base.out_channels + 32) channel_counts.push_back(channels);
    }
    for (const int channels : channel_counts) {
      const std::int64_t used = static_cast<std::int64_t>(shape.all_slots()) * channels;
      if (used < least_used || used > 256 || (used < least_columns && channels < base.out_channels)) continue;
      if (base.folds() && channels < base.out_channels) continue;
      if (channels < 4 && base.out_channels >= 4) continue;  // stored in pieces
      shape.block_channels = channels;
      for (const auto& [tiles, teams] : cell_teams(base)) {
        shape.column_tiles = 8 * tiles;
        shape.column_teams = teams;
        const bool stacks = shape.stacks_tiles();
        auto [found, is_new] = tiles_of.try_emplace(stacks ? -tiles * 8 - teams : shape.columns());
        if (is_new) found->second = stacks ? stacked(shape) : cell_tiles(problem, shape, shape.columns());
        for (const CellTile& cells : found->second) {
          std::copy(cells.begin(), cells.end(), std::begin(shape.tile));
          if (shape.cells() * 2 <= shape.columns() && shape.columns() > 64) continue;
          shape.lead = lead_of(problem, shape);
          shape.stays = shape.depth_blocks == 1;
          set_stores(problem, shape, aligned, !device.any_batch);
          if (shape.copy_places() > kMostCopyPlaces * (kStreamThreads - 32)) continue;
          if (shape.tensor_copies && !can_map(boxes_of(problem, shape))) continue;
          if (!offsets_fit(shape, problem)) continue;
          const long long blocks = tile_blocks(shape, problem);
          const bool few_blocks = blocks <= kMostWavesInPlace * device.multiprocessors;
          // Blocks that take several tiles each may keep them; gradients, whose weights are packed, where they take
          // many.
          const bool many_tiles = shape.gradient ? !few_blocks : blocks >= 2 * device.multiprocessors;
          const bool may_keep = many_tiles && shape.even_planes() && tile_block_rows(shape, problem) == 1;
          const auto add = [&](WeightsCome way, bool keeps) {
            TileShape cut = shape;
            cut.keeps_weights = keeps;
            if (way == WeightsCome::in_place && !set_weights_in_place(cut, problem, aligned)) return false;
            if (way == WeightsCome::in_boxes && !set_weight_boxes(cut, problem, aligned)) return false;
            if (keeps && cut.rounds_boxes()) return false;
            const bool alone = way == WeightsCome::in_boxes && blocks <= device.multiprocessors;
            if (!complete_stream(cut, device, alone) || (cut.packed && !may_pack(cut, problem))) return false;
            if (cut.weight_boxes && !fits_weight_boxes(cut, problem, device)) return false;
            add_candidate(problem, device, cut, candidates);
            return true;
          };
          add(WeightsCome::packed, false);
          const bool boxed = add(WeightsCome::in_boxes, false);
          if (few_blocks && !boxed) add(WeightsCome::in_place, false);
          if (may_keep && !(boxed && add(WeightsCome::in_boxes, true)) && !add(WeightsCome::in_place, true))
            add(WeightsCome::packed, true);
        }
      }
    }
  }
}

}  // namespace

void add_streams(const Problem& problem, const DeviceProperties& device, TileShape base, bool aligned,
                 std::vector<TileCandidate>& candidates) {
  if (device.arch != 90 || !device.has_wgmma) return;
  if (base.math == TileMath::fp32x3 && base.input_channels_last) return;
  base.granule = granule_of(problem, base, aligned);
  if (base.granule == 0) return;
  base.streams = base.warpgroup = base.packed = true;
  for (int a = 0; a < kSpatialAxes && base.gradient; ++a) base.planes[a] = base.phases[a];
  set_window(base, window_of(problem, base));
  if (base.window > 1) base.wide_weights = false;
  if (base.splits_rows()) base.granule = 1;
  base.wide_input = base.input_channels_last || base.granule > 1;
  base.depth_teams = 1;
  // An exported file has launches without tensor maps, which depend on addresses.
  const bool may_map = base.input_channels_last && !device.any_batch;
  const bool strided = base.input_step(0) > 1 || base.input_step(1) > 1 || base.input_step(2) > 1;
  if (!may_map || !strided || !set_plane_boxes(base, problem.groups)) base.line_axis = line_axis_of(base);
  if (may_map && !strided) base.tensor_copies = set_tensor_copies(base, problem.groups);
  // All residues of a gradient come with one chunk here: there may be too few chunks for the blocks that share a sum.
  if (base.chunks() % base.depth_blocks != 0) return;
  for (const int axis : fold_axes(problem, base)) add_cuts(problem, device, folded(base, axis), aligned, candidates);
}

}  // namespace tconv::cuda
