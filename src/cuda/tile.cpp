#include "cuda/tile.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cuda/device.h"
#include "cuda/jit_kernel.h"
#include "cuda/kernels/tile_pack_params.cuh"
#include "cuda/kernels/tile_taps.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tile_cost.h"
#include "cuda/tile_cuts.h"
#include "cuda/wgmma.h"
#include "tconv/error.h"

namespace tconv::cuda {
namespace {

template <typename T, std::size_t kCount>
std::string list(const T (&values)[kCount], const char* suffix = "") {
  std::string text = "{";
  for (const T value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value) + suffix;
  return text + "}";
}

const char* text_of(bool value) { return value ? "true" : "false"; }

// TileShape as a C++ initialiser, in the order of its members.
std::string initialiser(const TileShape& s) {
  const auto number = [](int value) { return std::to_string(value) + ", "; };
  std::string text = "{static_cast<TileMath>(" + std::to_string(static_cast<int>(s.math)) + "), ";
  text += number(s.element_bytes) + number(s.channels) + number(s.out_channels);
  text += list(s.kernel) + ", " + list(s.stride) + ", " + list(s.dilation) + ", " + text_of(s.bias) + ", ";
  text += std::string(text_of(s.gradient)) + ", ";
  text += list(s.backs) + ", " + list(s.back_step) + ", " + list(s.fold) + ", " + list(s.span) + ", " + list(s.slots) +
          ", ";
  text += list(s.slot_nibbles, "ULL") + ", " + list(s.residue_nibbles, "ULL") + ", ";
  text += list(s.phases) + ", " + list(s.planes) + ", " + list(s.tile) + ", ";
  text += number(s.block_channels) + text_of(s.warpgroup) + ", " + text_of(s.streams) + ", ";
  text += number(s.row_unit) + number(s.granule) + number(s.lead) + number(s.input_ring) + number(s.weight_ring) +
          number(s.window) + number(s.window_taps) + number(s.line_axis) + text_of(s.stays) + ", " +
          number(s.most_blocks) + number(s.store_vector) + number(s.row_vector) + number(s.image_row) +
          number(s.image_lead) + text_of(s.joins_rows) + ", " + text_of(s.sends_lines) + ", " + text_of(s.sends_boxes) +
          ", " + number(s.row_tiles) + number(s.column_tiles);
  text += number(s.row_teams) + number(s.column_teams) + number(s.depth_teams) + number(s.depth_blocks);
  text += number(s.slabs) + number(s.item_steps) + number(s.stage_backs) + number(s.unroll);
  text += std::string(text_of(s.all_taps)) + ", " + number(s.blocks_per_multiprocessor) + text_of(s.packed) + ", " +
          text_of(s.keeps_weights) + ", ";
  text += number(s.weight_vector) + list(s.weight_steps) + ", " + text_of(s.weight_boxes) + ", ";
  text += std::string(text_of(s.input_channels_last)) + ", " + text_of(s.wide_input) + ", " + text_of(s.tensor_copies) +
          ", " + text_of(s.output_channels_last) + ", " + text_of(s.wide_weights);
  return text + "}";
}

// Where the cells of a distance (gradient: of a tap) begin along an axis of the patch.
struct PlaneSite {
  int plane = 0;
  int cell = 0;
};

PlaneSite plane_site(const TileShape& shape, int a, int back) {
  if (!shape.gradient) return {0, (shape.backs[a] - 1 - back) * shape.back_step[a]};
  if (shape.plane_groups(a) > 1) return {back / shape.backs[a], back % shape.backs[a] * shape.back_step[a]};
  const int reach = back * shape.dilation[a];
  PlaneSite site{0, reach / shape.stride[a]};
  while (shape.plane_residue(a, site.plane) != reach % shape.stride[a]) ++site.plane;
  return site;
}

// Streams: how far the elements of a distance (gradient: of a tap) lie from the box's first, in bytes.
int box_offset(const TileShape& shape, const int (&back)[3]) {
  int offset = 0;
  for (int a = 0; a < 3; ++a) {
    const int step = shape.gradient ? back[a] * shape.dilation[a] : (shape.backs[a] - 1 - back[a]) * shape.back_step[a];
    offset += (a == 2 ? shape.row_place(step) : step) * shape.box_step(a);
  }
  return offset;
}

// Streams of plane boxes: how far the cells of a group's tap lie from the box's first, in bytes.
int plane_box_offset(const TileShape& shape, int group, int index) {
  int offset = 0;
  for (int a = 0; a < 3; ++a)
    offset += shape.plane_tap(a, group, index) * shape.dilation[a] / shape.stride[a] * shape.box_step(a);
  return offset;
}

// The same for each group, one after the other, and how many taps it has.
std::string plane_box_tables(const TileShape& shape) {
  std::string cells;
  std::string taps;
  for (int group = 0; group < shape.all_plane_groups(); ++group) {
    for (int index = 0; index < shape.all_backs(); ++index)
      cells += std::to_string(plane_box_offset(shape, group, index)) + ", ";
    taps += std::to_string(shape.group_taps(group)) + ", ";
  }
  return "constexpr int kFixedPlaneCells[] = {" + cells + "};\nconstexpr int kFixedPlaneTaps[] = {" + taps +
         "};\n__constant__ int kPlaneCells[] = {" + cells + "};\n__constant__ int kPlaneTaps[] = {" + taps + "};\n";
}

// For each distance: how far its cells lie from the patch's first, and which row tiles have a tap there.
std::string back_tables(const TileShape& shape) {
  std::string cells;
  std::string rows;
  for (int index = 0; index < shape.all_backs(); ++index) {
    const int back[3] = {shape.back_along(0, index), shape.back_along(1, index), shape.back_along(2, index)};
    int position = 0;
    int plane = 0;
    for (int a = 0; a < 3; ++a) {
      const PlaneSite site = plane_site(shape, a, back[a]);
      position = position * shape.patch(1 + a) + site.cell;
      plane = plane * shape.planes[a] + site.plane;
    }
    const int cell = shape.plane_boxes() ? plane_box_offset(shape, 0, index)
                     : shape.streams     ? box_offset(shape, back)
                                         : plane * shape.plane_pitch() + position;
    cells += std::to_string(cell) + ", ";
    rows += std::to_string(row_tiles_with_tap(shape, index)) + "u, ";
  }
  // Twice: for loops that are unrolled whole, where they become immediate operands, and for the others.
  return "constexpr int kFixedBackCells[] = {" + cells + "};\nconstexpr unsigned kFixedBackRows[] = {" + rows +
         "};\n__constant__ int kBackCells[] = {" + cells + "};\n__constant__ unsigned kBackRows[] = {" + rows + "};\n";
}

// Streams that read weights in place: where the taps lie, as tile_stream_weights.cuh wants them.
std::string weight_places(const TileShape& shape) {
  const bool along_slots = shape.weight_vector > 1 && shape.weight_steps[0] != 1 && shape.weight_steps[1] != 1;
  std::string places;
  for (int back = 0; back < shape.all_backs(); ++back) {
    for (int slot = 0; slot < shape.all_slots(); slot += along_slots ? shape.weight_vector : 1) {
      const int slots[3] = {slot / (shape.slots[2] * shape.slots[1]), slot / shape.slots[2] % shape.slots[1],
                            slot % shape.slots[2]};
      const int tap = phase_tap(shape, {0, 0, 0}, slots, back);
      places += std::to_string(tap < 0 ? -1 : tap * shape.weight_steps[2] * shape.element_bytes) + ", ";
    }
  }
  return "__constant__ int kWeightPlaces[] = {" + places + "};\n";
}

// A gradient's weight boxes: the taps of each group of planes, as tile_stream_weight_boxes.cuh wants them.
std::string plane_taps(const TileShape& shape) {
  std::string taps;
  for (int group = 0; group < shape.all_plane_groups(); ++group) {
    for (int index = 0; index < shape.all_backs(); ++index)
      taps += std::to_string(gradient_tap(shape, plane_group(shape, group), index)) + ", ";
  }
  return "__constant__ int kWeightTaps[] = {" + taps + "};\n";
}

// A forward layer's: where the taps stand, as tile_stream_tap_boxes.cuh wants them.
std::string phase_taps(const TileShape& shape) {
  std::string taps;
  std::vector<int> boxes(static_cast<std::size_t>(shape.stages_per_chunk()));
  for (int back = 0; back < shape.all_backs(); ++back) {
    for (int slot = 0; slot < shape.all_slots(); ++slot) {
      const int slots[3] = {slot / (shape.slots[2] * shape.slots[1]), slot / shape.slots[2] % shape.slots[1],
                            slot % shape.slots[2]};
      const int tap = phase_tap(shape, {0, 0, 0}, slots, back);
      const int height = tap / shape.kernel[2];
      const int place = height / shape.kernel[1] << 20 | height % shape.kernel[1] << 10 | tap % shape.kernel[2];
      taps += std::to_string(tap < 0 ? -1 : place) + ", ";
      boxes[static_cast<std::size_t>(back / shape.stage_backs)] += tap < 0 ? 0 : 1;
    }
  }
  std::string counts;
  for (const int count : boxes) counts += std::to_string(count) + ", ";
  return "constexpr int kFixedWeightTaps[] = {" + taps + "};\nconstexpr int kFixedStageBoxes[] = {" + counts +
         "};\n__constant__ int kWeightTaps[] = {" + taps + "};\n__constant__ int kStageBoxes[] = {" + counts + "};\n";
}

KernelSource source_of(const TileShape& shape, const char* file, const char* entry) {
  KernelSource source;
  source.file = file;
  source.entry = entry;
  source.config = "#include \"tile_params.cuh\"\n";
  source.config += std::string("using Element = ") + (shape.element_bytes == 4 ? "float" : "unsigned short") + ";\n";
  source.config += "constexpr TileShape kShape = " + initialiser(shape) + ";\n";
  source.config += back_tables(shape);
  if (!shape.even_planes()) source.config += plane_box_tables(shape);
  source.config +=
      "#define kClusterAttribute " +
      (shape.depth_blocks > 1 ? "__cluster_dims__(" + std::to_string(shape.depth_blocks) + ", 1, 1)" : "") + "\n";
  if (shape.streams) {
    source.config += std::string("#define kMaps ") + (shape.has_maps() ? "1" : "0") + "\n";
    source.config += std::string("#define kTensorCopies ") + (shape.tensor_copies ? "1" : "0") + "\n";
    const int weights = shape.packed ? 0 : !shape.weight_boxes ? 1 : shape.gradient ? 2 : 3;
    source.config += "#define kWeights " + std::to_string(weights) + "\n";
    if (weights == 1) source.config += weight_places(shape);
    if (weights > 1) source.config += shape.gradient ? plane_taps(shape) : phase_taps(shape);
    source.config += std::string("#define kUnevenPlanes ") + (shape.even_planes() ? "0" : "1") + "\n";
    source.config += std::string("#define kStores ") +
                     (shape.image_row > 0       ? "1"
                      : shape.gathers_vectors() ? "3"
                      : shape.store_vector > 0  ? "2"
                                                : "0") +
                     "\n";
    source.config += wgmma_from_registers(shape.math, shape.row_unit, shape.weight_boxes && !shape.gradient);
  } else if (shape.warpgroup) {
    source.config += wgmma_function(shape.math, 8 * shape.column_tiles);
  }
  return source;
}

KernelSource main_source(const TileShape& shape) {
  const char* const file = shape.streams ? "tile_stream.cuh" : shape.warpgroup ? "tile_sm90.cuh" : "tile.cuh";
  return source_of(shape, file, "tconv_tile");
}

// Whether the rows' weights lie one after the other, for each summed channel from a multiple of 16 bytes on.
bool has_row_runs(const TileShape& shape, const Problem& problem) {
  const long long taps = static_cast<long long>(shape.kernel[0]) * shape.kernel[1] * shape.kernel[2];
  const Strides& strides = problem.weight_strides;
  const auto [summed, row] = shape.gradient ? std::pair(strides[1], strides[0]) : std::pair(strides[0], strides[1]);
  const auto aligned = [&](long long stride) { return stride * shape.element_bytes % 16 == 0; };
  return has_dense_taps(problem) && strides[4] == 1 && row == taps && aligned(summed) &&
         (problem.groups == 1 || aligned(problem.in_channels_per_group() * strides[0]));
}

// Which weights neighbouring threads of the pack kernel read: neighbours in memory, as far as they are.
std::string_view pack_order(const TileShape& shape, const Problem& problem) {
  const bool taps = shape.kernel[0] * shape.kernel[1] * shape.kernel[2] > 1;
  const Strides& strides = problem.weight_strides;
  const auto [summed, row] = shape.gradient ? std::pair(strides[1], strides[0]) : std::pair(strides[0], strides[1]);
  if (row == 1 && taps) return "rows";
  if (summed == 1 && taps) return "summed";
  return summed < row ? "taps_of_summed" : "taps_of_rows";
}

KernelSource pack_source(const TileShape& shape, const Problem& problem) {
  if (shape.wide_weights) return source_of(shape, "tile_pack_wide.cuh", "tconv_tile_pack");
  KernelSource source = source_of(shape, "tile_pack.cuh", "tconv_tile_pack");
  source.config += std::string("#include \"tile_pack_params.cuh\"\nconstexpr bool kDenseTaps = ") +
                   text_of(has_dense_taps(problem)) + ";\n" +
                   "constexpr bool kRuns = " + text_of(shape.gradient && has_weight_runs(problem)) + ";\n" +
                   "constexpr bool kRowRuns = " + text_of(has_row_runs(shape, problem)) + ";\n" +
                   "constexpr PackOrder kOrder = PackOrder::" + std::string(pack_order(shape, problem)) + ";\n";
  return source;
}

// Elements of a tensor that fills a stretch of memory; 0: it has gaps, or elements in common.
std::int64_t elements_without_gaps(const Sizes& sizes, const Strides& strides) {
  std::int64_t reach = 1;
  for (std::size_t i = 0; i < sizes.size(); ++i) reach += (sizes[i] - 1) * strides[i];
  return reach == element_count(sizes) ? reach : 0;
}

// Whether blocks that could each have a multiprocessor to themselves ask for so much shared memory that they do:
// started while another kernel holds some multiprocessors, they would crowd on the others. (A recorded launch may have
// any number of blocks.)
bool keeps_apart(const TileShape& shape, long long blocks, const DeviceProperties& device) {
  return shape.streams && static_cast<double>(blocks) <= blocks_side_by_side(shape, device) && !device.any_batch;
}

std::size_t launched_shared_bytes(const TileShape& shape, long long blocks, const DeviceProperties& device) {
  const auto needed = static_cast<std::size_t>(shape.shared_bytes());
  return keeps_apart(shape, blocks, device) ? std::max(needed, alone_shared_bytes(device)) : needed;
}

class TileKernel final : public Kernel {
 public:
  // `unaligned` computes the problem when the input's address does not allow the candidate's 16-byte loads.
  TileKernel(const Problem& problem, const DeviceProperties& device, const TileCandidate& candidate,
             std::shared_ptr<const TileKernel> unaligned)
      : shape_(candidate.shape),
        device_(device.device.index),
        blocks_(candidate.blocks),
        queues_(blocks_ > static_cast<long long>(shape_.blocks_per_multiprocessor) * device.multiprocessors),
        kernel_(main_source(shape_), launched_shared_bytes(shape_, blocks_, device), device.arch),
        unaligned_(std::move(unaligned)) {
    if (shape_.packed) {
      pack_.emplace(pack_source(shape_, problem),
                    shape_.wide_weights ? 0 : static_cast<std::size_t>(pack_shared_bytes(shape_)), device.arch);
    }
    params_ = params_of(problem);
    if (shape_.sends_boxes) output_boxes_ = output_boxes(shape_, problem);
    // Blocks that start while the pack kernel still holds multiprocessors crowd on the others: harmless in a long queue
    // of blocks only.
    overlaps_pack_ = shape_.packed && (shape_.stays || keeps_apart(shape_, blocks_, device) ||
                                       (shape_.streams && shape_.blocks_per_multiprocessor == 1) ||
                                       blocks_ >= 2LL * shape_.blocks_per_multiprocessor * device.multiprocessors);
    pack_grid_ = {.grid_x = static_cast<unsigned>(shape_.wide_weights ? shape_.chunks() : pack_blocks(shape_)),
                  .grid_y = static_cast<unsigned>(shape_.channel_blocks()),
                  .grid_z = static_cast<unsigned>(params_.groups),
                  .block = kPackThreads};
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    if (blocks_ == 0) return;
    const void* const input = shape_.gradient ? buffers.output : buffers.input;
    void* const output = shape_.gradient ? buffers.input : buffers.output;
    const auto misses = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 != 0; };
    const bool weight_vectors = shape_.wide_weights || shape_.weight_vector > 1 || shape_.weight_boxes;
    if ((shape_.wide_input && misses(input)) || (weight_vectors && misses(buffers.weight)) ||
        ((shape_.stores_vectors() || shape_.sends_boxes) && misses(output))) {
      if (unaligned_ == nullptr) throw Error("tensors of this layout must be aligned to 16 bytes");
      return unaligned_->run(buffers, execution);
    }
    TileParams params = params_;
    params.input = input;
    params.weight = buffers.weight;
    params.bias = buffers.bias;
    params.output = output;
    const bool packs = pack_.has_value() && !buffers.weights_kept;
    if (packs) {
      void* packed = buffers.workspace;
      void* arguments[] = {&params, &packed};
      pack_->launch(device_, pack_grid_, arguments, execution.stream);
    }
    if (pack_) params.weight = buffers.workspace;
    const LaunchShape launch = {.grid_x = static_cast<unsigned>(std::min<long long>(blocks_, shape_.most_blocks)),
                                .block = static_cast<unsigned>(shape_.threads()),
                                .overlaps_previous = packs && overlaps_pack_};
    if (shape_.has_maps()) {
      TensorTileParams with_maps{params, {}, {}, {}};
      if (shape_.tensor_copies) with_maps.input = input_map(input);
      if (shape_.weight_boxes) with_maps.weight = weight_map(buffers.weight);
      if (shape_.sends_boxes) with_maps.output = output_map(output);
      void* arguments[] = {&with_maps};
      kernel_.launch(device_, launch, arguments, execution.stream);
    } else {
      void* arguments[] = {&params};
      kernel_.launch(device_, launch, arguments, execution.stream);
    }
  }

  void prepare() const override {
    kernel_.prepare(device_);
    if (pack_) pack_->prepare(device_);
    if (unaligned_ != nullptr) unaligned_->prepare();
  }

  bool queues() const override { return queues_; }

  std::size_t workspace_bytes() const {
    const std::size_t own = shape_.packed ? packed_bytes() : 0;
    return unaligned_ == nullptr ? own : std::max(own, unaligned_->workspace_bytes());
  }

  std::size_t packed_bytes() const {
    const long long rows =
        static_cast<long long>(params_.groups) * shape_.channel_blocks() * shape_.all_residue_blocks();
    return static_cast<std::size_t>(rows * shape_.packed_bytes() + shape_.packed_tail_bytes());
  }

  std::string describe() const override {
    const TileShape& s = shape_;
    std::string text = (s.gradient ? "" : std::to_string(s.all_slots()) + " phases x ") +
                       std::to_string(s.block_channels) + " channels by ";
    for (int i = 0; i < 4; ++i) text += std::to_string(s.tile[i]) + (i < 3 ? "x" : " cells");
    if (s.folds()) {
      text += " of " + std::to_string(s.fold[0]) + "x" + std::to_string(s.fold[1]) + "x" + std::to_string(s.fold[2]) +
              " outputs";
    }
    text += ", depth " + std::to_string(s.chunk_channels()) + "x" + std::to_string(s.stage_backs) + " of " +
            std::to_string(s.channels) + "x" + std::to_string(s.all_backs());
    if (s.window > 1) {
      text += " in windows of " + std::to_string(s.window);
    } else if (s.gradient) {
      text += " in " + std::to_string(s.all_plane_groups()) + "x" + std::to_string(s.all_planes()) + " planes";
    }
    text += std::string(s.streams     ? ", streams to warpgroups "
                        : s.warpgroup ? ", warpgroups "
                                      : ", warps ") +
            std::to_string(s.row_teams) + "x" + std::to_string(s.column_teams) + "x" + std::to_string(s.depth_teams) +
            " of " + std::to_string(s.tile_rows() * s.row_tiles) + "x" + std::to_string(8 * s.column_tiles);
    if (s.depth_blocks > 1) text += ", " + std::to_string(s.depth_blocks) + " blocks a tile";
    text += ", " + std::to_string(blocks_) + " blocks (" + std::to_string(s.blocks_per_multiprocessor) +
            " per multiprocessor), " + std::to_string(s.shared_bytes() / 1024) + " KiB shared, weights " +
            (s.packed         ? "packed"
             : s.weight_boxes ? "in boxes"
                              : "in place") +
            (s.keeps_weights ? " and kept" : "");
    return text;
  }

 private:
  // The input as the copy engine sees it: boxes of cells with a chunk of their channels.
  TensorMap input_map(const void* input) const {
    const TileShape& s = shape_;
    const TileParams& p = params_;
    return tensor_map({.address = input,
                       .element_bytes = s.element_bytes,
                       .sizes = {static_cast<long long>(p.groups) * s.channels, p.input_size[2], p.input_size[1],
                                 p.input_size[0], p.batch},
                       .strides = {p.input_strides[4], p.input_strides[3], p.input_strides[2], p.input_strides[0]},
                       .box = {s.chunk_channels(), s.box(2), s.box(1), s.box(0), s.tile[0]},
                       .steps = {1, s.box_stride(2), s.box_stride(1), s.box_stride(0), 1}},
                      device_);
  }

  TensorMap weight_map(const void* weight) const {
    TensorBoxes boxes = weight_boxes_of(shape_, params_.groups, params_.weight_strides);
    boxes.address = weight;
    return tensor_map(boxes, device_);
  }

  TensorMap output_map(const void* output) const {
    TensorBoxes boxes = output_boxes_;
    boxes.address = output;
    return tensor_map(boxes, device_);
  }

  TileParams params_of(const Problem& problem) const {
    TileParams params{};
    for (int i = 0; i < 5; ++i) {
      params.input_strides[i] = tile_input_strides(problem)[i];
      params.weight_strides[i] = problem.weight_strides[i];
      params.output_strides[i] = tile_output_strides(problem)[i];
    }
    params.weight_group_stride = problem.in_channels_per_group() * problem.weight_strides[0];
    if (shape_.gradient) std::swap(params.weight_strides[0], params.weight_strides[1]);
    params.weight_bytes = elements_without_gaps(problem.weight_sizes(), problem.weight_strides) * shape_.element_bytes;
    params.batch = static_cast<int>(problem.batch);
    params.groups = static_cast<int>(problem.groups);
    params.tiles[0] = static_cast<int>(ceil_div(problem.batch, shape_.tile[0]));
    for (int a = 0; a < kSpatialAxes; ++a) {
      const Axis& axis = problem.axes[a];
      params.input_size[a] = static_cast<int>(shape_.gradient ? axis.output() : axis.input);
      params.output_size[a] = static_cast<int>(shape_.gradient ? axis.input : axis.output());
      params.pad[a] = static_cast<int>(axis.pad_begin);
      params.first_cell[a] = shape_.gradient ? 0 : static_cast<int>(axis.pad_begin / shape_.output_step(a));
      params.tiles[1 + a] = static_cast<int>(ceil_div(tile_cells(shape_, problem, a), shape_.tile[1 + a]));
      params.residue_blocks[a] = shape_.residue_blocks(a);
    }
    params.channel_blocks = shape_.channel_blocks();
    return params;
  }

  TileShape shape_;
  int device_;
  long long blocks_;
  bool queues_;
  bool overlaps_pack_ = false;
  JitKernel kernel_;
  std::optional<JitKernel> pack_;
  LaunchShape pack_grid_;
  std::shared_ptr<const TileKernel> unaligned_;
  TileParams params_{};
  TensorBoxes output_boxes_;
};

// Whether two cuts of a problem add up in the same order, so that their results have the same bits.
bool same_sums(const TileShape& a, const TileShape& b) {
  return a.streams && b.streams && a.slabs == b.slabs && a.depth_teams == b.depth_teams &&
         a.depth_blocks == b.depth_blocks && a.window == b.window && a.line_axis == b.line_axis &&
         std::ranges::equal(a.planes, b.planes) && std::ranges::equal(a.fold, b.fold);
}

// Two kernels that each have a block for every multiprocessor wait for one another. A cut that takes a little longer
// on fewer of them leaves the others to the gradient of the weight.
const TileCandidate& cut_beside_another(const std::vector<TileCandidate>& candidates, const DeviceProperties& device) {
  constexpr double kLeastShare = 0.39;  // of the chip, below which the gradient that runs beside ends first
  constexpr double kFewerBlocks = 0.7;  // than those of the best cut, to make up for a cost that is only expected
  constexpr double kLonger = 1.2;
  constexpr double kSharedTime = 0.4;  // of the time; the rest is felt whatever the number of blocks
  const TileCandidate& best = candidates.front();
  const auto share = [&](const TileCandidate& cut) { return static_cast<double>(cut.blocks) / device.multiprocessors; };
  const auto cost = [&](const TileCandidate& cut) {
    return cut.expected_seconds * (1 - kSharedTime + kSharedTime * share(cut));
  };
  if (share(best) > 1) return best;
  const TileCandidate* chosen = &best;
  for (const TileCandidate& cut : candidates) {
    const bool fits = share(cut) >= kLeastShare && share(cut) <= kFewerBlocks * share(best) &&
                      cut.expected_seconds <= kLonger * best.expected_seconds && same_sums(cut.shape, best.shape);
    if (fits && cost(cut) < cost(*chosen)) chosen = &cut;
  }
  return *chosen;
}

}  // namespace

Proposal propose_tile(const Problem& problem, const DeviceProperties& device) {
  return propose_tile_cut(problem, device, 0);
}

Proposal propose_tile_cut(const Problem& problem, const DeviceProperties& device, int index) {
  if (std::string reason = why_no_tile(problem, device); !reason.empty()) return Proposal::decline(std::move(reason));
  if (element_count(problem.output_sizes()) == 0 || element_count(problem.input_sizes()) == 0)
    return Proposal::decline("nothing to compute");
  const std::vector<TileCandidate> candidates = tile_candidates(problem, device);
  if (candidates.empty()) return Proposal::decline("no tile fits registers and shared memory of the device");
  const auto count = static_cast<int>(candidates.size());
  if (index >= count) return Proposal::decline("has " + std::to_string(count) + " cuts for this problem");
  if (problem.beside && index == 0) return propose_tile(problem, device, cut_beside_another(candidates, device));
  return propose_tile(problem, device, candidates[static_cast<std::size_t>(index)]);
}

Proposal propose_tile(const Problem& problem, const DeviceProperties& device, const TileCandidate& candidate) {
  std::shared_ptr<const TileKernel> unaligned;
  if (candidate.shape.wide_input || candidate.shape.wide_weights || candidate.shape.weight_vector > 1 ||
      candidate.shape.weight_boxes || candidate.shape.stores_vectors() || candidate.shape.sends_boxes) {
    const std::vector<TileCandidate> narrow = tile_candidates(problem, device, {.aligned = false});
    if (!narrow.empty()) unaligned = std::make_shared<const TileKernel>(problem, device, narrow.front(), nullptr);
  }
  const auto kernel = std::make_shared<const TileKernel>(problem, device, candidate, std::move(unaligned));
  Proposal proposal;
  proposal.workspace_bytes = kernel->workspace_bytes();
  proposal.expected_seconds = candidate.expected_seconds;
  proposal.kernel = kernel;
  return proposal;
}

}  // namespace tconv::cuda
