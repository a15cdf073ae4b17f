#include "cuda/columns.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "cuda/element_name.h"
#include "cuda/jit_kernel.h"
#include "tconv/phases.h"

namespace tconv::cuda {
namespace {

template <std::size_t kCount>
std::string list(const int (&values)[kCount]) {
  std::string text = "{";
  for (const int value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "}";
}

// ColumnsShape as a C++ initialiser, in the order of its members.
std::string initialiser(const ColumnsShape& s) {
  const auto number = [](int value) { return std::to_string(value) + ", "; };
  const auto truth = [](bool value) { return std::string(value ? "true, " : "false, "); };
  std::string text = "{" + number(s.element_bytes) + number(s.channels) + number(s.out_channels);
  for (const auto* values :
       {&s.kernel, &s.stride, &s.dilation, &s.pad, &s.input, &s.output, &s.tap_step, &s.input_step})
    text += list(*values) + ", ";
  text += truth(s.bias) + truth(s.taps_inner) + number(s.weight_stride) + number(s.channel_stride) +
          truth(s.input_channels_last) + truth(s.output_channels_last);
  text += number(s.weight_bytes) + truth(s.copies_cells) + number(s.block_channels) + truth(s.one_phase);
  text += number(s.samples) + number(s.box_axis) + number(s.box) + number(s.boxes);
  text +=
      number(s.row_units) + number(s.cell_units) + number(s.row_warps) + number(s.cell_warps) + number(s.idle_warps);
  text += number(s.run_channels) + truth(s.stores_runs);
  return text + number(s.chunk) + number(s.stages) + std::to_string(s.blocks_per_multiprocessor) + "}";
}

// The first tap of each residue of each axis, -1 where there is none; kMostStride numbers for an axis.
std::string first_taps(const Problem& problem) {
  std::int64_t most = 1;
  for (const Axis& axis : problem.axes) {
    if (axis.dilation != 1) most = std::max(most, axis.stride);
  }
  std::vector<std::int64_t> taps(static_cast<std::size_t>(kSpatialAxes * most), -1);
  for (std::size_t a = 0; a < problem.axes.size(); ++a) {
    const Axis& axis = problem.axes[a];
    if (axis.dilation == 1) continue;  // the residue itself
    for (std::int64_t tap = axis.kernel - 1; tap >= 0; --tap) {
      const std::int64_t residue = site_of(axis, tap).residue;
      taps[a * static_cast<std::size_t>(most) + static_cast<std::size_t>(residue)] = tap;
    }
  }
  std::string text = "constexpr int kMostStride = " + std::to_string(most) + ";\n__constant__ int kFirstTaps[] = {";
  for (const std::int64_t tap : taps) text += std::to_string(tap) + ", ";
  return text + "};\n";
}

KernelSource source_of(const ColumnsShape& shape, const Problem& problem) {
  KernelSource source;
  source.file = "columns.cuh";
  source.entry = "tconv_columns";
  source.config = "#include \"types.cuh\"\n#include \"columns_params.cuh\"\n";
  source.config += std::string("using Element = ") + element_name(problem.dtype) + ";\n";
  source.config += "constexpr ColumnsShape kShape = " + initialiser(shape) + ";\n" + first_taps(problem);
  return source;
}

class ColumnsKernel final : public Kernel {
 public:
  // `unaligned` computes the problem when addresses do not allow the candidate's copies.
  ColumnsKernel(const Problem& problem, const DeviceProperties& device, const ColumnsCandidate& candidate,
                std::shared_ptr<const ColumnsKernel> unaligned)
      : shape_(candidate.shape),
        device_(device.device.index),
        blocks_(candidate.blocks),
        params_(params_of(problem)),
        kernel_(source_of(shape_, problem), static_cast<std::size_t>(shape_.shared_bytes()), device.arch),
        unaligned_(std::move(unaligned)) {}

  void prepare() const override {
    kernel_.prepare(device_);
    if (unaligned_ != nullptr) unaligned_->prepare();
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const auto misses = [](const void* address, int bytes) {
      return reinterpret_cast<std::uintptr_t>(address) % static_cast<unsigned>(bytes) != 0;
    };
    if (unaligned_ != nullptr &&
        (misses(buffers.weight, shape_.weight_bytes) || (shape_.copies_cells && misses(buffers.input, 16)) ||
         (shape_.stores_runs && misses(buffers.output, shape_.run_channels * shape_.element_bytes))))
      return unaligned_->run(buffers, execution);
    ColumnsParams params = params_;
    params.input = buffers.input;
    params.weight = buffers.weight;
    params.bias = buffers.bias;
    params.output = buffers.output;
    void* arguments[] = {&params};
    kernel_.launch(device_,
                   {.grid_x = static_cast<unsigned>(blocks_), .block = static_cast<unsigned>(shape_.threads())},
                   arguments, execution.stream);
  }

  std::string describe() const override {
    const ColumnsShape& s = shape_;
    std::string text = std::to_string(s.block_channels) + " channels x " + std::to_string(s.all_slots()) + " taps" +
                       (s.one_phase ? " of a phase" : "") + " by " + std::to_string(s.samples) + "x" +
                       std::to_string(s.box_cells()) + " cells";
    text += ", depth " + std::to_string(s.chunk) + " of " + std::to_string(s.channels) + ", " +
            std::to_string(s.stages) + " stages, warps " + std::to_string(s.row_warps) + "x" +
            std::to_string(s.cell_warps) + "x" + std::to_string(kColumnsDepth) + " of " +
            std::to_string(kColumnsRowUnit * s.row_units) + "x" + std::to_string(kColumnsCellUnit * s.cell_units);
    return text + ", " + std::to_string(blocks_) + " blocks (" + std::to_string(s.blocks_per_multiprocessor) +
           " per multiprocessor), " + std::to_string(s.shared_bytes() / 1024) + " KiB shared, weights in place by " +
           std::to_string(s.weight_bytes) + " bytes";
  }

 private:
  ColumnsParams params_of(const Problem& problem) const {
    const ColumnsShape& s = shape_;
    ColumnsParams params{};
    params.input_batch = problem.input_strides[0];
    for (std::size_t a = 0; a < problem.axes.size(); ++a) {
      if (problem.axes[a].input > 1) params.input_cell = problem.input_strides[2 + a];
      params.residue_blocks[a] = s.one_phase ? s.stride[a] : 1;
      params.tiles[1 + a] = 1;
    }
    for (std::size_t i = 0; i < problem.weight_strides.size(); ++i) {
      params.weight_strides[i] = problem.weight_strides[i];
      params.output_strides[i] = problem.output_strides[i];
    }
    params.weight_group = problem.in_channels_per_group() * problem.weight_strides[0];
    params.batch = static_cast<int>(problem.batch);
    params.groups = static_cast<int>(problem.groups);
    params.channel_blocks = (s.out_channels + s.block_channels - 1) / s.block_channels;
    params.tiles[0] = (params.batch + s.samples - 1) / s.samples;
    params.tiles[1 + s.box_axis] = s.boxes;
    return params;
  }

  ColumnsShape shape_;
  int device_;
  long long blocks_;
  ColumnsParams params_;
  JitKernel kernel_;
  std::shared_ptr<const ColumnsKernel> unaligned_;
};

}  // namespace

Proposal propose_columns(const Problem& problem, const DeviceProperties& device) {
  return propose_columns_cut(problem, device, 0);
}

Proposal propose_columns_cut(const Problem& problem, const DeviceProperties& device, int index) {
  if (std::string reason = why_no_columns(problem, device); !reason.empty())
    return Proposal::decline(std::move(reason));
  const std::vector<ColumnsCandidate> candidates = columns_candidates(problem, device);
  if (candidates.empty()) return Proposal::decline("no cut fits registers and shared memory of the device");
  const auto count = static_cast<int>(candidates.size());
  if (index >= count) return Proposal::decline("has " + std::to_string(count) + " cuts for this problem");
  return propose_columns(problem, device, candidates[static_cast<std::size_t>(index)]);
}

Proposal propose_columns(const Problem& problem, const DeviceProperties& device, const ColumnsCandidate& candidate) {
  std::shared_ptr<const ColumnsKernel> unaligned;
  if (candidate.shape.copies_cells || candidate.shape.stores_runs ||
      candidate.shape.weight_bytes > candidate.shape.element_bytes) {
    const std::vector<ColumnsCandidate> narrow = columns_candidates(problem, device, {.aligned = false});
    if (narrow.empty()) return Proposal::decline("no cut for unaligned addresses fits the device");
    unaligned = std::make_shared<const ColumnsKernel>(problem, device, narrow.front(), nullptr);
  }
  Proposal proposal;
  proposal.expected_seconds = candidate.expected_seconds;
  proposal.kernel = std::make_shared<const ColumnsKernel>(problem, device, candidate, std::move(unaligned));
  return proposal;
}

}  // namespace tconv::cuda
