#include "cuda/reduce.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "cuda/device.h"
#include "cuda/jit_kernel.h"
#include "cuda/reduce_boxes.h"
#include "cuda/reduce_cost.h"
#include "cuda/wgmma.h"
#include "tconv/error.h"

namespace tconv::cuda {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

template <typename T, std::size_t kCount>
std::string list(const T (&values)[kCount]) {
  std::string text = "{";
  for (const T value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "}";
}

const char* text_of(bool value) { return value ? "true" : "false"; }

// ReduceShape as a C++ initialiser, in the order of its members.
std::string initialiser(const ReduceShape& s) {
  const auto number = [](int value) { return std::to_string(value) + ", "; };
  const auto truth = [](bool value) { return std::string(text_of(value)) + ", "; };
  std::string text = "{static_cast<TileMath>(" + std::to_string(static_cast<int>(s.math)) + "), ";
  text += number(s.element_bytes) + number(s.rows) + number(s.columns);
  text += list(s.kernel) + ", " + list(s.step) + ", " + list(s.tap_step) + ", ";
  text += truth(s.rows_channels_last) + truth(s.columns_channels_last);
  text += list(s.taps) + ", {" + truth(s.apart[0]) + truth(s.apart[1]) + text_of(s.apart[2]) + "}, ";
  text += truth(s.warpgroup) + number(s.row_tiles) + number(s.row_teams) + number(s.team_columns) +
          number(s.column_teams) + number(s.run) + number(s.run_teams) + number(s.team_runs);
  text += list(s.split) + ", " + list(s.tile) + ", " + number(s.row_vector) + number(s.column_vector) +
          number(s.most_lead) + number(s.row_lanes) + number(s.column_lanes) + number(s.most_cells) +
          number(s.loader_warps) + number(s.row_warps) + number(s.column_warps) + number(s.row_copy) +
          number(s.column_copy) + number(s.raw_stages) + truth(s.packed) + number(s.row_box) + number(s.column_box) +
          number(s.team_registers) + number(s.loader_registers) + number(s.stages) +
          number(s.blocks_per_multiprocessor) + truth(s.partial) + text_of(s.columns_first);
  return text + "}";
}

KernelSource source_of(const ReduceShape& shape, const char* file, const char* entry) {
  KernelSource source;
  source.file = file;
  source.entry = entry;
  source.config = "#include \"reduce_params.cuh\"\n";
  source.config += std::string("using Element = ") + (shape.element_bytes == 4 ? "float" : "unsigned short") + ";\n";
  source.config += "constexpr ReduceShape kShape = " + initialiser(shape) + ";\n";
  return source;
}

// For each product, how far the cells that it meets at the block's first tap lie from the stage's first.
std::string product_table(const ReduceShape& shape) {
  std::string cells;
  for (int product = 0; product < shape.products(); ++product) {
    int unit = 2 * product;
    const int w = unit % shape.tile[3];
    unit /= shape.tile[3];
    const int h = unit % shape.tile[2];
    unit /= shape.tile[2];
    const int d = unit % shape.tile[1];
    const int n = unit / shape.tile[1];
    const int row = (n * shape.extent(0) + d * shape.place_step(0)) * shape.extent(1) + h * shape.place_step(1);
    cells += std::to_string((row * shape.extent(2) + w * shape.place_step(2)) * shape.team_columns) + ", ";
  }
  return "__constant__ int kProductCells[] = {" + cells + "};\n";
}

KernelSource main_source(const ReduceShape& shape) {
  KernelSource source = source_of(shape, shape.warpgroup ? "reduce_sm90.cuh" : "reduce.cuh", "tconv_reduce");
  source.config += product_table(shape);
  source.config += std::string("#define kTensorCopies ") + (shape.boxes() ? "1" : "0") + "\n";
  if (shape.warpgroup) source.config += wgmma_function(shape.math, shape.run_columns(), shape.boxes());
  return source;
}

// Blocks that could each have a multiprocessor to themselves, started while their tensors are packed, would crowd on
// the multiprocessors that are done with that: they ask for so much shared memory that they don't. (A recorded launch
// may have any number of blocks.)
std::size_t launched_shared_bytes(const ReduceShape& shape, const ReduceParams& params,
                                  const DeviceProperties& device) {
  const auto needed = static_cast<std::size_t>(shape.shared_bytes());
  if (!shape.packed || device.any_batch || reduce_tiles(params) * params.parts > device.multiprocessors) return needed;
  return std::max(needed, alone_shared_bytes(device));
}

class ReduceKernel final : public Kernel {
 public:
  // `unaligned` computes the problem when the tensors' addresses do not allow the candidate's vectors.
  ReduceKernel(const Problem& problem, const Reduction& reduction, const DeviceProperties& device,
               const ReduceCandidate& candidate, std::shared_ptr<const ReduceKernel> unaligned)
      : reduction_(reduction),
        shape_(candidate.shape),
        unaligned_(std::move(unaligned)),
        params_(reduce_params(problem, reduction, shape_, candidate.parts)),
        device_(device.device.index),
        kernel_(main_source(shape_), launched_shared_bytes(shape_, params_, device), device.arch) {
    if (shape_.packed) {
      pack_.emplace(source_of(shape_, "reduce_pack.cuh", "tconv_reduce_pack"),
                    static_cast<std::size_t>(shape_.pack_bytes()), device.arch);
    }
    if (!shape_.partial) return;
    KernelSource finish = source_of(shape_, "reduce_finish.cuh", "tconv_reduce_finish");
    int pieces = 1;  // as many as leave each thread a few parts
    while (pieces < 8 && pieces * 8 <= candidate.parts) pieces *= 2;
    finish.config += "constexpr int kPieces = " + std::to_string(pieces) + ";\n";
    finish_.emplace(std::move(finish), 0, device.arch);
    const std::int64_t width = shape_.kernel[2];
    const std::int64_t threads = element_count(problem.weight_sizes()) / width * (width <= 8 ? 1 : ceil_div(width, 4));
    finish_blocks_ = ceil_div(threads, kFinishThreads / pieces);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const std::int64_t bytes = shape_.element_bytes;
    const auto at = [bytes](void* tensor, std::int64_t offset) { return static_cast<char*>(tensor) + offset * bytes; };
    ReduceParams params = params_;
    params.rows = at(reduction_.swapped ? buffers.output : buffers.input, reduction_.row_offset);
    params.columns = at(reduction_.swapped ? buffers.input : buffers.output, reduction_.column_offset);
    params.weight = at(buffers.weight, reduction_.weight_offset);
    char* const workspace = static_cast<char*>(buffers.workspace);
    params.packed_rows = workspace;
    params.packed_columns = workspace + packed_row_bytes(shape_, params);
    params.sums = reinterpret_cast<float*>(workspace + reduce_packed_bytes(shape_, params));
    const bool lines = shape_.loader_warps > 0;
    if (!aligned(params.rows, lines ? shape_.row_copy : shape_.row_vector) ||
        !aligned(params.columns, lines ? shape_.column_copy : shape_.column_vector)) {
      if (unaligned_ == nullptr) throw Error("the tensors of this problem must be aligned to 16 bytes");
      return unaligned_->run(buffers, execution);
    }
    void* arguments[] = {&params};
    if (pack_) {
      pack_->launch(device_,
                    {.grid_x = static_cast<unsigned>(reduce_stages(params)),
                     .grid_y = static_cast<unsigned>(reduce_row_images(params) + reduce_column_images(params)),
                     .block = 32 * kPackWarps,
                     .overlaps_previous = execution.beside_previous},
                    arguments, execution.stream);
    }
    const auto blocks = static_cast<unsigned>(reduce_tiles(params)) * static_cast<unsigned>(params.parts);
    const LaunchShape launch = {.grid_x = blocks,
                                .block = static_cast<unsigned>(shape_.threads()),
                                .overlaps_previous = pack_.has_value() || execution.beside_previous};
    if (shape_.boxes()) {
      BoxReduceParams with_maps{params, tensor_map(row_boxes(shape_, params), device_),
                                tensor_map(column_boxes(shape_, params), device_)};
      void* with[] = {&with_maps};
      kernel_.launch(device_, launch, with, execution.stream);
    } else {
      kernel_.launch(device_, launch, arguments, execution.stream);
    }
    if (finish_) {
      finish_->launch(
          device_,
          {.grid_x = static_cast<unsigned>(finish_blocks_), .block = kFinishThreads, .overlaps_previous = true},
          arguments, execution.stream);
    }
  }

  bool overlaps() const override { return kernel_.overlaps(); }

  void prepare() const override {
    if (pack_) pack_->prepare(device_);
    kernel_.prepare(device_);
    if (finish_) finish_->prepare(device_);
    if (unaligned_ != nullptr) unaligned_->prepare();
  }

  std::size_t workspace_bytes() const {
    const std::size_t own = reduce_workspace_bytes(shape_, params_);
    return unaligned_ == nullptr ? own : std::max(own, unaligned_->workspace_bytes());
  }

  std::string describe() const override {
    const ReduceShape& s = shape_;
    std::string text = std::to_string(s.block_rows()) + (reduction_.swapped ? " out" : " in") + " channels by " +
                       std::to_string(s.taps[0]) + "x" + std::to_string(s.taps[1]) + "x" + std::to_string(s.taps[2]) +
                       " taps x " + std::to_string(s.block_columns()) + " channels; ";
    for (int i = 0; i < 4; ++i) text += std::to_string(s.tile[i] * s.split[i]) + (i < 3 ? "x" : " pixels at a time");
    text += std::string(s.warpgroup ? ", warpgroups " : ", warps ") + std::to_string(s.row_teams) + "x" +
            std::to_string(s.column_teams) + "x" + std::to_string(s.run_teams) + " of " +
            std::to_string(s.tile_rows() * s.row_tiles) + "x" + std::to_string(s.team_runs * s.run_columns());
    if (s.boxes()) {
      text += ", boxes of " + std::to_string(s.row_box) + " and " + std::to_string(s.column_box) + " channels";
    } else if (s.packed) {
      text += ", packed ahead";
    } else if (s.loader_warps > 0) {
      text += " and " + std::to_string(s.loader_warps) + " warps that load";
    }
    const bool lines = s.loader_warps > 0;
    text += (lines ? ", copies of " : ", vectors of ") + std::to_string(lines ? s.row_copy : s.row_vector) + " and " +
            std::to_string(lines ? s.column_copy : s.column_vector);
    text += ", " + std::to_string(params_.parts) + (params_.parts == 1 ? " part" : " parts") + ", " +
            std::to_string(reduce_tiles(params_) * params_.parts) + " blocks (" +
            std::to_string(s.blocks_per_multiprocessor) + " per multiprocessor), " +
            std::to_string(s.shared_bytes() / 1024) + " KiB shared";
    return text;
  }

 private:
  bool aligned(const void* tensor, int vector) const {
    return reinterpret_cast<std::uintptr_t>(tensor) % static_cast<std::size_t>(vector * shape_.element_bytes) == 0;
  }

  Reduction reduction_;
  ReduceShape shape_;
  std::shared_ptr<const ReduceKernel> unaligned_;
  ReduceParams params_;
  int device_;
  JitKernel kernel_;
  std::optional<JitKernel> pack_;
  std::optional<JitKernel> finish_;
  std::int64_t finish_blocks_ = 0;
};

// Slices of the output channels, one after the other, so that what is packed ahead of each fits the workspace.
class SlicedReduce final : public Kernel {
 public:
  SlicedReduce(const Problem& slice, int slices, std::shared_ptr<const Kernel> kernel)
      : slices_(slices),
        output_bytes_(slice.out_channels * slice.output_strides[1] * static_cast<std::int64_t>(size_of(slice.dtype))),
        weight_bytes_(slice.out_channels * slice.weight_strides[1] * static_cast<std::int64_t>(size_of(slice.dtype))),
        kernel_(std::move(kernel)) {}

  void run(const Buffers& buffers, const Execution& execution) const override {
    for (int slice = 0; slice < slices_; ++slice) {
      Buffers part = buffers;
      part.output = static_cast<char*>(buffers.output) + slice * output_bytes_;
      part.weight = static_cast<char*>(buffers.weight) + slice * weight_bytes_;
      Execution turn = execution;
      turn.beside_previous = execution.beside_previous && slice == 0;
      kernel_->run(part, turn);
    }
  }
  bool overlaps() const override { return kernel_->overlaps(); }
  void prepare() const override { kernel_->prepare(); }
  std::string describe() const override {
    return kernel_->describe() + ", " + std::to_string(slices_) + " slices of the output channels";
  }

 private:
  std::int64_t slices_;
  std::int64_t output_bytes_;
  std::int64_t weight_bytes_;
  std::shared_ptr<const Kernel> kernel_;
};

// Both tensors of a slice may be small enough to be packed where all of them are not. Empty if that is no gain.
std::optional<Proposal> propose_slices(const Problem& problem, const DeviceProperties& device,
                                       const ReduceCandidate& best) {
  constexpr int kMostSlices = 4;
  constexpr std::int64_t kLeastChannels = 64;
  constexpr double kWorthwhile = 200e-6;  // each slice has launches of its own
  if (best.shape.packed || best.expected_seconds < kWorthwhile || problem.groups > 1 || device.any_batch) return {};
  for (int slices = 2; slices <= kMostSlices; ++slices) {
    if (problem.out_channels % slices != 0 || problem.out_channels / slices < kLeastChannels) continue;
    const std::vector<ReduceCandidate> candidates = reduce_candidates(slice_of(problem, slices), device);
    if (candidates.empty() || !candidates.front().shape.packed) continue;
    if (slices * candidates.front().expected_seconds > 0.9 * best.expected_seconds) continue;
    return propose_sliced_reduce(problem, device, slices, candidates.front());
  }
  return {};
}

}  // namespace

ReduceParams reduce_params(const Problem& problem, const Reduction& reduction, const ReduceShape& shape, int parts) {
  ReduceParams params{};
  std::copy(reduction.row_strides.begin(), reduction.row_strides.end(), params.row_strides);
  std::copy(reduction.column_strides.begin(), reduction.column_strides.end(), params.column_strides);
  std::copy(reduction.weight_strides.begin(), reduction.weight_strides.end(), params.weight_strides);
  params.batch = static_cast<int>(problem.batch);
  params.groups = static_cast<int>(problem.groups);
  params.row_blocks = static_cast<int>(ceil_div(shape.rows, shape.block_rows()));
  params.column_blocks = static_cast<int>(ceil_div(shape.columns, shape.block_columns()));
  params.tiles[0] = static_cast<int>(ceil_div(problem.batch, shape.tile[0] * shape.split[0]));
  for (int a = 0; a < kSpatialAxes; ++a) {
    const ReductionAxis& axis = reduction.axes[a];
    params.row_size[a] = static_cast<int>(axis.row_size);
    params.column_size[a] = static_cast<int>(axis.column_size);
    params.pad[a] = static_cast<int>(axis.pad);
    params.tap_blocks[a] = static_cast<int>(ceil_div(shape.kernel[a], shape.taps[a]));
    params.tiles[1 + a] = static_cast<int>(ceil_div(axis.row_size, shape.tile[1 + a] * shape.split[1 + a]));
  }
  params.parts = parts;
  for (int d = 0; d < 4; ++d) {
    const auto advance = [&](const Strides& strides, bool of_rows) {
      const auto step = [&](int i) {
        return std::int64_t{shape.split[i]} * shape.part_step(of_rows, i) *
               strides[static_cast<std::size_t>(i == 0 ? 0 : 1 + i)];
      };
      std::int64_t elements = step(d);
      for (int inner = d + 1; inner < 4; ++inner) elements -= (params.tiles[inner] - 1) * step(inner);
      return elements;
    };
    params.row_advance[d] = advance(reduction.row_strides, true);
    params.column_advance[d] = advance(reduction.column_strides, false);
  }
  return params;
}

Proposal propose_reduce(const Problem& problem, const DeviceProperties& device) {
  return propose_reduce_cut(problem, device, 0);
}

Proposal propose_reduce_cut(const Problem& problem, const DeviceProperties& device, int index) {
  if (const std::string_view reason = why_no_reduce(problem, device); !reason.empty()) {
    return Proposal::decline(std::string(reason));
  }
  const std::vector<ReduceCandidate> candidates = reduce_candidates(problem, device);
  if (candidates.empty()) return Proposal::decline("no tile fits registers and shared memory of the device");
  if (std::optional<Proposal> sliced = propose_slices(problem, device, candidates.front())) {
    if (index == 0) return *std::move(sliced);
    --index;
  }
  const auto count = static_cast<int>(candidates.size());
  if (index >= count) return Proposal::decline("has " + std::to_string(count) + " cuts for this problem");
  return propose_reduce(problem, device, candidates[static_cast<std::size_t>(index)]);
}

Proposal propose_reduce(const Problem& problem, const DeviceProperties& device, const ReduceCandidate& candidate) {
  const auto kernel_of = [&](const ReduceCandidate& cut, std::shared_ptr<const ReduceKernel> unaligned) {
    return std::make_shared<const ReduceKernel>(problem, *reduction_of(problem, cut.swapped), device, cut,
                                                std::move(unaligned));
  };
  std::shared_ptr<const ReduceKernel> unaligned;
  if (candidate.shape.row_vector > 1 || candidate.shape.column_vector > 1 || candidate.shape.loader_warps > 0) {
    const std::vector<ReduceCandidate> narrow = reduce_candidates(problem, device, {.aligned = false});
    if (!narrow.empty()) unaligned = kernel_of(narrow.front(), nullptr);
  }
  const auto kernel = kernel_of(candidate, std::move(unaligned));
  Proposal proposal;
  proposal.workspace_bytes = kernel->workspace_bytes();
  proposal.expected_seconds = candidate.expected_seconds;
  proposal.kernel = kernel;
  return proposal;
}

Problem slice_of(const Problem& problem, int slices) {
  Problem slice = problem;
  slice.out_channels /= slices;
  return slice;
}

Proposal propose_sliced_reduce(const Problem& problem, const DeviceProperties& device, int slices,
                               const ReduceCandidate& candidate) {
  const Problem slice = slice_of(problem, slices);
  Proposal proposal = propose_reduce(slice, device, candidate);
  proposal.expected_seconds *= slices;
  proposal.kernel = std::make_shared<const SlicedReduce>(slice, slices, std::move(proposal.kernel));
  return proposal;
}

}  // namespace tconv::cuda
