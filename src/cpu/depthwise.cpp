// The "depthwise" family: one channel a group, or few. Here, forward where channels lie side by side in memory
// (channels-last). Nothing is packed but the weights, by blocks of channels; a vector holds channels, and every
// position is a short sum over its taps:
//   output[j][c] = bias[c] + sum over taps of  input[j + offset(tap)][c] weight[tap][c]
// Rows of positions are read where they lie, each position once for all cells and taps of a row that it brings
// together. With more channels a group (spread.h) rows are spread first, as many as an output reads, and for each tap
// there are planes.
#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <type_traits>
#include <vector>

#include "cpu/axis_map.h"
#include "cpu/blocking.h"
#include "cpu/depthwise_simd.h"
#include "cpu/past_caches.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"
#include "cpu/spread.h"
#include "cpu/tile.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kFewestChannels = 8;

template <typename E, typename T>
class Depthwise final : public Kernel {
 public:
  Depthwise(const Problem& problem, AxisMaps maps) : problem_(problem), maps_(std::move(maps)), groups_(problem) {
    for (int a = 0; a < 2; ++a) {
      for (const AxisTarget& target : maps_[a].targets) {
        for (std::int64_t j = 0; j < target.lattice.count; ++j) {
          rows_[a].push_back({target.lattice.first + j * target.lattice.step, j, &target});
        }
      }
      std::sort(rows_[a].begin(), rows_[a].end(), [](const Row& x, const Row& y) { return x.position < y.position; });
    }
    for (const Axis& axis : problem.axes) taps_ *= axis.kernel;
    row_count_ = problem.batch * static_cast<std::int64_t>(rows_[0].size() * rows_[1].size());
    cells_ = std::max<std::int64_t>(maps_[2].cells, 1);
    if constexpr (std::is_same_v<E, T>) {
      if (!groups_.alone()) plan_spreading();
    }
    for (const AxisTarget& target : maps_[2].targets) {
      for (const AxisTap& tap : target.taps) tap_order_.emplace(tap.tap, std::ssize(tap_order_));
    }
    cut_row();
  }

  // The order of the rows refers to the maps.
  Depthwise(const Depthwise&) = delete;
  Depthwise& operator=(const Depthwise&) = delete;

  // Whether rows that have been spread stay in the L2 cache until they are read for the last time.
  bool fits() const { return fits_; }

  std::size_t workspace_bytes() const { return weight_step() * ceil_div(channels(), kMostLanes) * sizeof(T); }

  void run(const Buffers& buffers, const Execution& execution) const override {
    T* const workspace = static_cast<T*>(buffers.workspace);
    load_weights(static_cast<const E*>(buffers.weight), workspace);
    WeighRow<E, T> job;
    job.weights = workspace;
    job.weight_step = weight_step();
    job.channels = channels();
    job.bias = problem_.bias ? static_cast<const E*>(buffers.bias) : nullptr;
    const E* const source = static_cast<const E*>(buffers.input);
    E* const target = static_cast<E*>(buffers.output);
    const Sizes sizes = problem_.output_sizes();
    job.past_caches = exceeds_caches(sizes, problem_.input_sizes(), sizeof(E)) &&
                      has_whole_lines(target, sizes, problem_.output_strides);
    // Of each segment of the cells, rows in turn.
    const std::int64_t units = std::ssize(pieces_) * row_count_;
    const std::int64_t units_a_task = units_of_task(units);
    for_each_task(execution, ceil_div(units, units_a_task), [&](std::int64_t task) {
      thread_local Memory memory;
      memory.held.assign(slots_[0] * slots_[1], {});
      WeighRow<E, T> own = job;
      for (std::int64_t unit = task * units_a_task; unit < std::min((task + 1) * units_a_task, units); ++unit) {
        const std::int64_t row = unit % row_count_;
        const std::int64_t first_cell = unit / row_count_ * cells_;
        const auto [from, to] = enter_row(row, memory.taps);
        own.from = groups_.alone() ? source + from : spread_rows(source, from, first_cell, memory);
        list_rows(memory);
        own.offsets = memory.offsets.data();
        own.rows = std::ssize(memory.offsets);
        own.places = memory.places.data();
        const std::vector<RowPiece>& pieces = pieces_[unit / row_count_];
        own.pieces = pieces.data();
        own.piece_count = std::ssize(pieces);
        own.to = target + to;
        depthwise_ops<E, T>().weigh_row(own);
      }
      if (own.past_caches) hwy::FlushStream();  // before another thread reads the results
    });
  }

  std::string describe() const override {
    return std::to_string(row_count_) + " rows, vectors along channels, " +
           (groups_.alone() ? "" : std::to_string(groups_.planes()) + " planes, ") + target_name();
  }

 private:
  struct Row {
    std::int64_t position;
    std::int64_t cell;  // of its lattice
    const AxisTarget* target;
  };
  // Taps in depth and height that a row reads: where their rows begin in the source (or where they have been spread),
  // and in the weights.
  struct RowTap {
    std::int64_t offset;
    std::int64_t place;
    Triple row;  // of the source: depth, height
  };
  struct Places {
    std::int64_t source;
    std::int64_t target;
  };
  // The row that a slot holds: where it begins in the source, and its first cell.
  struct Held {
    std::int64_t offset = -1;
    std::int64_t first_cell = -1;
  };
  struct Memory {
    std::vector<RowTap> taps;  // of a row
    // Rows of the source and their weights, plane by plane.
    std::vector<std::int64_t> offsets;
    std::vector<std::int64_t> places;
    Scratch<E> spread;  // [slot][plane][position][channel]
    std::vector<Held> held;
  };

  std::int64_t channels() const { return problem_.out_channels; }
  std::int64_t weight_step() const { return groups_.planes() * taps_ * kMostLanes; }  // from a block to the next
  // Rows that are worth a thread, and more where there are many: a thread that is held up holds up no other.
  std::int64_t units_of_task(std::int64_t units) const {
    constexpr std::int64_t kElements = 1 << 14;
    constexpr std::int64_t kTasksWanted = 32;
    return std::max(ceil_div(kElements, cells_ * channels()), ceil_div(units, kTasksWanted));
  }

  // Rows that one row of the output reads are held at a time, so much of them that they stay in the L2 cache.
  void plan_spreading() {
    constexpr double kShare = 0.25;
    constexpr std::int64_t kFewestCells = 16;
    for (int a = 0; a < 2; ++a) {
      for (const AxisTarget& target : maps_[a].targets) {
        if (target.taps.empty()) continue;
        const auto [low, high] = std::ranges::minmax(target.taps, {}, &AxisTap::offset);
        slots_[a] = std::max(slots_[a], high.offset - low.offset + 1);
      }
    }
    spread_step_ = round_up(channels(), kMostLanes);
    const std::int64_t halo = maps_[2].highest - maps_[2].lowest;
    const std::int64_t fit = static_cast<std::int64_t>(kShare * static_cast<double>(caches().l2_bytes) / sizeof(T)) /
                             (slots_[0] * slots_[1] * groups_.planes() * spread_step_);
    cells_ = std::min(cells_, std::max(fit - halo, kFewestCells));
    plane_size_ = (cells_ + halo) * spread_step_;
    const std::int64_t held = slots_[0] * slots_[1] * groups_.planes() * plane_size_;
    fits_ = held * static_cast<std::int64_t>(sizeof(T)) <= caches().l2_bytes;
    spread_ = spread_channels<T>(groups_, channels(), plane_size_);
  }

  void load_weights(const E* weight, T* to) const {
    const Strides& strides = problem_.weight_strides;
    const auto& [depth, height, width] = problem_.axes;
    for (std::int64_t first = 0; first < channels(); first += kMostLanes) {
      const std::int64_t count = std::min(channels() - first, kMostLanes);
      for (std::int64_t plane = 0; plane < groups_.planes(); ++plane) {
        for (std::int64_t d = 0; d < depth.kernel; ++d) {
          for (std::int64_t h = 0; h < height.kernel; ++h) {
            for (const auto& [w, place] : tap_order_) {
              T* const taps = to + place * kMostLanes;
              const E* const from = weight + d * strides[2] + h * strides[3] + w * strides[4];
              groups_.load_weights(from, strides, plane, first, count, taps);
              std::fill(taps + count, taps + kMostLanes, T{0});
            }
            to += width.kernel * kMostLanes;
          }
        }
      }
    }
  }

  // Where the image of a row begins in the source and the row itself in the target, and the taps that reach it.
  Places enter_row(std::int64_t index, std::vector<RowTap>& taps) const {
    const auto heights = static_cast<std::int64_t>(rows_[1].size());
    const auto depths = static_cast<std::int64_t>(rows_[0].size());
    const Row& height = rows_[1][index % heights];
    const Row& depth = rows_[0][index / heights % depths];
    const std::int64_t image = index / (heights * depths);
    taps.clear();
    for (const AxisTap& kd : depth.target->taps) {
      const Lattice& in_depth = maps_[0].sources[kd.source];
      const std::int64_t d = depth.cell + kd.offset;
      if (d < 0 || d >= in_depth.count) continue;
      for (const AxisTap& kh : height.target->taps) {
        const Lattice& in_height = maps_[1].sources[kh.source];
        const std::int64_t h = height.cell + kh.offset;
        if (h < 0 || h >= in_height.count) continue;
        taps.push_back({d * problem_.input_strides[2] + h * problem_.input_strides[3],
                        (kd.tap * problem_.axes[1].kernel + kh.tap) * problem_.axes[2].kernel * kMostLanes,
                        {d, h, 0}});
      }
    }
    return {image * problem_.input_strides[0], image * problem_.output_strides[0] +
                                                   depth.position * problem_.output_strides[2] +
                                                   height.position * problem_.output_strides[3]};
  }

  void list_rows(Memory& memory) const {
    memory.offsets.clear();
    memory.places.clear();
    for (std::int64_t plane = 0; plane < groups_.planes(); ++plane) {
      for (const RowTap& tap : memory.taps) {
        memory.offsets.push_back(tap.offset + plane * plane_size_);
        memory.places.push_back(tap.place + plane * taps_ * kMostLanes);
      }
    }
  }

  // Spreads what the cells from first_cell on read of an image's rows, and makes the rows' offsets refer to that.
  const E* spread_rows(const E* source, std::int64_t image, std::int64_t first_cell, Memory& memory) const {
    if constexpr (std::is_same_v<E, T>) {
      const std::int64_t slot_size = groups_.planes() * plane_size_;
      E* const spread = memory.spread.get(slots_[0] * slots_[1] * slot_size);
      const std::int64_t begin = first_cell + maps_[2].lowest;  // at the beginning of a slot
      const std::int64_t low = std::max<std::int64_t>(begin, 0);
      const std::int64_t high = std::min(first_cell + cells_ + maps_[2].highest, maps_[2].sources[0].count);
      for (RowTap& tap : memory.taps) {
        const std::int64_t slot = tap.row[0] % slots_[0] * slots_[1] + tap.row[1] % slots_[1];
        const std::int64_t from = image + tap.offset;
        E* const to = spread + slot * slot_size;
        if (memory.held[slot].offset != from || memory.held[slot].first_cell != first_cell) {
          memory.held[slot] = {from, first_cell};
          spread_(source + from + low * problem_.input_strides[4], problem_.input_strides[4],
                  to + (low - begin) * spread_step_, spread_step_, std::max<std::int64_t>(high - low, 0));
        }
        tap.offset = slot * slot_size - begin * spread_step_;
      }
      return spread;
    }
    return nullptr;
  }

  // The pieces of a row's cells, segment by segment. Where neighbouring taps are several positions apart, so are the
  // cells of a piece.
  void cut_row() {
    const std::int64_t step = groups_.alone() ? problem_.input_strides[4] : spread_step_;
    const std::int64_t to_step = problem_.output_strides[4];
    for (std::int64_t begin = 0; begin < maps_[2].cells; begin += cells_) {
      std::vector<RowPiece>& pieces = pieces_.emplace_back();
      for (const AxisTarget& width : maps_[2].targets) {
        const std::vector<AxisTap>& taps = width.taps;
        const std::int64_t apart = taps.size() < 2 ? 1 : taps[0].offset - taps[1].offset;
        const std::int64_t end = std::min(width.lattice.count, begin + cells_);
        for (std::int64_t cell = begin; cell < std::min(begin + apart, end); ++cell) {
          RowPiece& piece = pieces.emplace_back();
          piece.to = (width.lattice.first + cell * width.lattice.step) * to_step;
          piece.to_step = apart * width.lattice.step * to_step;
          piece.cells = ceil_div(end - cell, apart);
          if (taps.empty()) continue;
          const std::int64_t position = cell + taps[0].offset;
          piece.first = (position >= 0 ? position : position - apart + 1) / apart;
          const std::int64_t residue = position - piece.first * apart;
          piece.from = residue * step;
          piece.from_step = apart * step;
          piece.positions = ceil_div(std::max<std::int64_t>(problem_.axes[2].input - residue, 0), apart);
          piece.taps = std::ssize(taps);
          piece.place = tap_order_[taps[0].tap] * kMostLanes;
        }
      }
    }
  }

  Problem problem_;
  AxisMaps maps_;
  SmallGroups groups_;
  std::array<std::vector<Row>, 2> rows_;  // of depth and height, in the order of their positions
  std::int64_t taps_ = 1;
  std::map<std::int64_t, std::int64_t> tap_order_;  // along a row: those of a phase side by side
  std::int64_t row_count_ = 0;
  std::int64_t cells_ = 1;  // of a segment of a row
  std::vector<std::vector<RowPiece>> pieces_;
  // Rows that are spread: how many along depth and height, and how they are laid out.
  std::array<std::int64_t, 2> slots_ = {1, 1};
  std::int64_t plane_size_ = 0;
  std::int64_t spread_step_ = 0;
  bool fits_ = true;
  ChannelPicks<T> spread_;
};

// Whether the lattices of an axis are all of its positions.
bool is_covered(const AxisMap& map, std::int64_t size) {
  return std::transform_reduce(map.targets.begin(), map.targets.end(), std::int64_t{0}, std::plus<>(),
                               [](const AxisTarget& target) { return target.lattice.count; }) == size;
}

// Groups so small that lines of them (blocking.h, stacked groups), which are transposed, cost more than their products
// do, above all where they are taken apart to be transposed. Every plane is a copy of the input and reads all of the
// output's gradient: hence the square.
bool pays_to_spread(const Problem& problem) {
  const SmallGroups groups(problem);
  if (size_of(problem.dtype) < sizeof(float) || groups.outputs > kSmallGroup) return false;
  if (groups.planes() == 1) return problem.out_channels >= kFewestChannels;
  constexpr std::int64_t kMost = 8;
  constexpr std::int64_t kMostStrided = 32;
  const bool strided = std::ranges::any_of(problem.axes, [](const Axis& axis) { return axis.stride > 1; });
  return problem.out_channels >= kMostLanes &&
         groups.planes() * groups.planes() * groups.outputs <= (strided ? kMostStrided : kMost);
}

}  // namespace

Proposal propose_depthwise(const Problem& problem, const DeviceProperties& /*device*/) {
  if (problem.direction == Direction::grad_bias) return Proposal::decline("has no weights to read");
  const SmallGroups groups(problem);
  const bool side_by_side = problem.input_strides[1] == 1 && problem.output_strides[1] == 1;
  if (!groups.alone() && (!side_by_side || !pays_to_spread(problem))) {
    return Proposal::decline("needs one channel a group, or few that lie side by side, got " +
                             std::to_string(groups.inputs) + " and " + std::to_string(groups.outputs));
  }
  if (element_count(problem.input_sizes()) == 0 || element_count(problem.output_sizes()) == 0) {
    return Proposal::decline("needs at least one element");
  }
  const bool forward = problem.direction == Direction::forward;
  if (groups.alone() && (!side_by_side || problem.in_channels < kFewestChannels)) {
    if (forward) return propose_depthwise_rows(problem);
    Proposal proposal = propose_depthwise_flat_gradients(problem);
    if (proposal.kernel == nullptr) proposal = propose_depthwise_line_gradients(problem);
    return proposal.kernel != nullptr ? proposal : propose_depthwise_row_gradients(problem);
  }
  if (!forward) return propose_depthwise_gradients(problem);
  AxisMaps maps;
  for (int a = 0; a < kSpatialAxes; ++a) {
    maps[a] = map_from_whole_output(problem.axes[a]);
    if (maps[a].sources.empty() || !is_covered(maps[a], problem.axes[a].output())) {
      return Proposal::decline("needs rows without gaps");
    }
  }
  return with_types(problem.dtype, [&]<typename E, typename T> {
    Proposal proposal;
    const auto kernel = std::make_shared<Depthwise<E, T>>(problem, maps);
    if (!kernel->fits()) return Proposal::decline("needs taps close enough for the L2 cache to hold what they read");
    proposal.workspace_bytes = kernel->workspace_bytes();
    proposal.kernel = kernel;
    return proposal;
  });
}

}  // namespace tconv::cpu
