// forward and grad_input: every target phase is a dense correlation of step one over the packed source,
//   target[ct][p] = sum over source channels and taps of  weight[cs][ct][tap] source[cs][p + offset(tap)],
// a matrix product whose second operand is read in place. Each element is one chain of multiply-adds in an order that
// depends on the layer alone (source channel, then tap), so neither threads nor blocking nor batch change a result.
#include <hwy/cache_control.h>

#include <algorithm>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include "core/parallel.h"
#include "cpu/bf16_products.h"
#include "cpu/blocking.h"
#include "cpu/cell_places.h"
#include "cpu/packed_weights.h"
#include "cpu/packing.h"
#include "cpu/pair_source.h"
#include "cpu/panels.h"
#include "cpu/past_caches.h"
#include "cpu/phases_kernels.h"
#include "cpu/reach.h"
#include "cpu/results.h"
#include "cpu/scratch.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kDepth = 112;  // multiply-adds between two visits to the results: a panel stays in the L1 cache
constexpr std::int64_t kCells = 252;  // packed at a time; they stay in the L2 cache
constexpr std::int64_t kMostWeights = std::int64_t{1}
                                      << 16;   // elements of packed weights, where each task packs its own
constexpr std::int64_t kPiece = 32;            // source channels whose weights are packed by one task
constexpr double kSplitCost = 1.2;             // of products whose columns are read across cache lines
constexpr double kPartialCost = 1.2;           // of transposing results that are no whole vectors, beside long sums
constexpr std::int64_t kRowCost = 3;           // of a row that is multiplied by itself, in cells
constexpr std::int64_t kMostPlaces = 1 << 14;  // of cells, that a plan holds

template <typename T>
struct Memory {
  Scratch<T> source;
  Scratch<T> weights;
  Scratch<T> sums;
  Scratch<T> rows;
  Scratch<T> bias;
  Scratch<std::int64_t> offsets;
};

template <typename E, typename T>
class Correlate final : public Kernel {
 public:
  Correlate(const Problem& problem, const Blocking& blocking, Tiling tiling)
      : problem_(problem), roles_(problem), blocking_(blocking), tiling_(std::move(tiling)) {
    for (const PhaseTile& phase : tiling_.phases()) {
      const PhaseTile* const before = repeats_.empty() ? nullptr : &tiling_.phases()[repeats_.size() - 1];
      repeats_.push_back(before != nullptr &&
                         std::ranges::equal(before->taps, phase.taps, [](const Tap& a, const Tap& b) {
                           return a.source == b.source && a.offset == b.offset;
                         }));
    }
    const bool forward = problem.direction == Direction::forward;
    std::int64_t all = 1;
    for (const Axis& axis : problem.axes) all *= forward ? axis.output() : axis.input;
    std::int64_t covered = 0;
    for (const PhaseTile& phase : tiling_.phases()) {
      covered += phase.lattice[0].count * phase.lattice[1].count * phase.lattice[2].count;
    }
    fills_first_ = covered < all || tiling_.all_taps() == 0 || roles_.source_channels == 0;
    empty_ = all == 0 || problem.batch == 0 || roles_.target_channels == 0;
    const auto sources = static_cast<std::int64_t>(tiling_.sources().size());
    const std::int64_t taps = std::max<std::int64_t>(tiling_.most_taps(), 1);
    const std::int64_t length = tiling_.longest();
    const std::int64_t targets = std::min(blocking.target_channels, std::max<std::int64_t>(roles_.target_channels, 1));
    const std::int64_t depth = roles_.source_channels * taps;
    channels_inside_ = blocking.channels_together > 0;
    if (channels_inside_) {
      chunk_ = blocking.channels_together;
    } else {
      const std::int64_t line = sources * tiling_.plane_size() * roles_.stacked;
      chunk_ = std::min({blocking.most_source / std::max<std::int64_t>(line, 1),
                         std::max<std::int64_t>(kDepth / taps, 4), roles_.source_channels});
      // Channels of all stacked groups are neighbours if all of a group are read together.
      if (roles_.stacked > 1) chunk_ = std::max(chunk_, std::min(roles_.source_channels, kStackedChannels));
      chunk_ = even_parts(roles_.source_channels, chunk_);
    }
    // Cells are the columns that need no transposing. But all taps other than those at whole vectors are read across
    // cache lines then, which costs more than transposing long sums does.
    const auto waste = [](std::int64_t count) { return column_cost(count) / static_cast<double>(count); };
    const double split = depth >= kLongSum && reads_across_lines() ? kSplitCost : 1;
    // Many phases are better interleaved while they are transposed.
    const bool gathers = roles_.stacked == 1 && tiling_.row_phases() > kMostLattices && targets >= kMostLanes / 2;
    double transposing = depth < kLongSum ? 1.5 : targets % kMostLanes == 0 ? 1 : kPartialCost;
    if (roles_.target_strides[1] == 1) transposing = 1 / transposing;  // then the other way around
    cells_are_columns_ =
        roles_.stacked > 1 || (!channels_inside_ && !gathers && split * waste(length) <= transposing * waste(targets));
    const TileShape& shape = tiling_.shape();
    row_by_row_ = shape.images * shape.block[0] * shape.block[1] * (shape.block[2] + kRowCost) < length;
    const WeightOrder by_targets = channels_inside_ ? WeightOrder::channels_inside : WeightOrder::along_targets;
    packed_ = {problem, roles_, tiling_, cells_are_columns_ ? WeightOrder::along_cells : by_targets};
    // Tensors whose channels lie side by side are read and written where they are.
    reads_in_place_ = reads_in_place(roles_, chunk_if_inside());
    source_steps_ = roles_.source_strides;
    if constexpr (std::is_same_v<E, BFloat16>) {
      pairs_ = channels_inside_ && roles_.multiplies_pairs;
      for (std::int64_t& step : source_steps_) step = reads_in_place_ ? step / 2 : step;
      rounds_in_place_ = rounds_in_place(tiling_.maps(), roles_, chunk_if_inside());
    }
    stores_in_place_ = rounds_in_place_ || writes_in_place(roles_, chunk_if_inside());
    // Like the lines, an odd number of cache lines.
    cell_step_ = round_up(pairs_ ? ceil_div(chunk_, 2) : chunk_ * roles_.interleaved, kMostLanes);
    cell_step_ += cell_step_ / kMostLanes % 2 == 0 ? kMostLanes : 0;
    if (tiling_.tiles() > 1 && tiling_.all_taps() > 0 && !empty_) plan_stages();
    if (stages_.empty() && !channels_inside_) {
      chunk_ =
          std::min(chunk_, kMostWeights / std::max<std::int64_t>(tiling_.all_taps() * packed_.targets(targets), 1));
      chunk_ = even_parts(roles_.source_channels, chunk_);
    }
    // What reaches what in the first tile, and in those like it, is found out beforehand.
    if (channels_inside_ && tiling_.all_taps() > 0 && !empty_) {
      first_tile_ = tiling_.tile(0);
      if (tiling_.mostly_alike() && first_tile_.length * tiling_.slots() <= kMostPlaces) {
        const std::int64_t rows = packed_.tile_along_targets(math_ops<T>(), targets).rows;
        reach_row_ = round_up(targets, kMostLanes);
        reach_ = reach_of(first_tile_, packed_.all_phases(), rows, reach_row_);
      }
    }
  }

  // Weights that several tiles use are packed once for all of them: all at a time or, where they take too much room,
  // stage by stage. Without stages each task packs its own.
  void plan_stages() {
    const std::int64_t blocks = roles_.groups * blocking_.target_blocks;
    const std::int64_t room = room_for_weights(problem_);
    if (element_count(problem_.weight_sizes()) <= room) {
      stages_.push_back({0, blocks, packed_.all_phases(), 0, roles_.source_channels});
      stage_size_ = blocks * weights_of_tap() * tiling_.all_taps();
    } else if (reads_in_place_ && stores_in_place_) {
      stages_there_ = stages_at_once(tiling_.tiles());
      cut_stages(room / stages_there_);
      if (stages_there_ * stage_size_ > room) {  // the smallest stages are larger
        stages_there_ = 1;
        cut_stages(room);
      }
    } else if (fits_room(problem_, roles_, blocking_.target_channels, tiling_.all_taps())) {
      // Sums that are kept by a tile have all of their weights at a time.
      cut_stages(room);
      stages_there_ = 2 * stage_size_ > room ? 1 : stages_at_once(tiling_.tiles());
    }
    workspace_bytes_ = std::min<std::int64_t>(std::ssize(stages_), stages_there_) * stage_size_ * sizeof(T);
  }

  // Of a block, packed.
  std::int64_t weights_of_tap() const { return packed_.targets(blocking_.target_channels) * roles_.source_channels; }

  // Stages of some phases of a block or, of a single one, some source channels.
  void cut_stages(std::int64_t room) {
    stages_.clear();
    stage_size_ = 0;
    const PhaseRange all = packed_.all_phases();
    for (std::int64_t block = 0; block < roles_.groups * blocking_.target_blocks; ++block) {
      for (PhaseRange phases{0, 0}; phases.first < all.last; phases.first = phases.last) {
        std::int64_t size = 0;
        while (phases.last < all.last) {
          const std::int64_t more = weights_of_tap() * packed_.taps_of({phases.last, phases.last + 1});
          if (phases.last > phases.first && size + more > room) break;
          size += more;
          ++phases.last;
        }
        const std::int64_t chunks = ceil_div(roles_.source_channels, chunk_);
        const std::int64_t channels =
            size <= room ? chunks * chunk_ : even_parts(chunks, room * chunks / size) * chunk_;
        for (std::int64_t c = 0; c < roles_.source_channels; c += channels) {
          stages_.push_back({block, 1, phases, c, std::min(c + channels, roles_.source_channels)});
        }
        const std::int64_t most = std::min(channels, roles_.source_channels);
        stage_size_ = std::max(stage_size_, ceil_div(size * most, roles_.source_channels));
      }
    }
  }

  std::int64_t chunk_if_inside() const { return channels_inside_ ? chunk_ : 0; }

  bool reads_across_lines() const {
    for (const PhaseTile& phase : tiling_.phases()) {
      for (const Tap& tap : phase.taps) {
        if (tap.offset % kMostLanes != 0) return true;
      }
    }
    return false;
  }

  std::size_t workspace_bytes() const { return workspace_bytes_; }

  void run(const Buffers& buffers, const Execution& execution) const override {
    if (empty_) return;
    const bool forward = problem_.direction == Direction::forward;
    const Tensors tensors{static_cast<const E*>(forward ? buffers.input : buffers.output),
                          static_cast<const E*>(buffers.weight),
                          problem_.bias && forward ? static_cast<const E*>(buffers.bias) : nullptr,
                          static_cast<E*>(forward ? buffers.output : buffers.input)};
    if (fills_first_) fill_with_bias(tensors, execution);
    if (tiling_.all_taps() == 0 || roles_.source_channels == 0) return;
    if (stages_.empty()) {
      const std::int64_t blocks = roles_.groups * blocking_.target_blocks;
      const Stage stage{0, blocks, packed_.all_phases(), 0, roles_.source_channels};
      for_each_task(execution, ceil_div(blocks, roles_.stacked) * tiling_.tiles(),
                    [&](std::int64_t task) { run_task(tensors, stage, nullptr, task); });
      return;
    }
    // Of each stage: its weights are packed, and multiplied by. Where there is room for the weights of two stages, no
    // thread waits for the last tile of one.
    std::vector<TaskGroup> groups;
    for (std::int64_t s = 0; s < std::ssize(stages_); ++s) {
      const Stage& stage = stages_[s];
      const auto products_of = [](std::int64_t index) { return index < 0 ? -1 : 2 * index + 1; };
      const std::int64_t pieces = ceil_div(stage.channels(), chunk_) * pieces_of_chunk();
      groups.push_back({stage.blocks * pieces, {products_of(s - stages_there_), -1}});
      const std::int64_t sums = stage.first_channel > 0 ? products_of(s - 1) : -1;
      groups.push_back({ceil_div(stage.blocks, roles_.stacked) * tiling_.tiles(), {2 * s, sums}});
    }
    for_each_group(execution, groups, [&](std::size_t group, std::int64_t task) {
      const auto index = static_cast<std::int64_t>(group / 2);
      T* const weights = static_cast<T*>(buffers.workspace) + index % stages_there_ * stage_size_;
      if (group % 2 == 1) return run_task(tensors, stages_[index], weights, task);
      pack_weights(tensors, stages_[index], weights, task);
    });
  }

  std::string describe() const override {
    return std::to_string(tiling_.phases().size()) + " phases, " + std::to_string(tiling_.tiles()) +
           " tiles of up to " + std::to_string(tiling_.longest()) + " cells, " +
           std::to_string(blocking_.target_channels) + " target channels, " + std::to_string(chunk_) +
           " source channels a step, " + (pairs_ ? "pairs of bfloat16, " : "") +
           (rounds_in_place_ ? "rounded at once, " : "") +
           (roles_.stacked > 1 ? std::to_string(roles_.stacked) + " groups together, " : "") + target_name();
  }

 private:
  struct Tensors {
    const E* source;
    const E* weight;
    const E* bias;
    E* target;
  };

  Sizes target_sizes() const {
    return problem_.direction == Direction::forward ? problem_.output_sizes() : problem_.input_sizes();
  }

  ResultStore<E, T> store_of(const Tensors& tensors) const {
    return {tiling_, target_sizes(), roles_.target_strides, tensors.bias, tensors.target};
  }

  // For outputs that no tap reaches.
  void fill_with_bias(const Tensors& tensors, const Execution& execution) const {
    const Sizes sizes = target_sizes();
    const Strides& strides = roles_.target_strides;
    const std::int64_t rows = sizes[0] * sizes[1] * sizes[2] * sizes[3];
    const ElementOps<E, T>& ops = element_ops<E, T>();
    const ResultStore<E, T> store = store_of(tensors);
    parallel_for(execution, rows, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t h = row % sizes[3];
        const std::int64_t d = row / sizes[3] % sizes[2];
        const std::int64_t channel = row / (sizes[3] * sizes[2]) % sizes[1];
        const std::int64_t image = row / (sizes[3] * sizes[2] * sizes[1]);
        const T zero = 0;
        ops.store(&zero, 0,
                  tensors.target + image * strides[0] + channel * strides[1] + d * strides[2] + h * strides[3],
                  strides[4], sizes[4], store.bias_of(channel));
      }
    });
  }

  TargetBlock block_at(std::int64_t index) const {
    TargetBlock block;
    block.group = index / blocking_.target_blocks;
    block.first = index % blocking_.target_blocks * blocking_.target_channels;
    block.targets = std::min(blocking_.target_channels, roles_.target_channels - block.first);
    return block;
  }

  // Blocks of targets, of all groups in turn, whose weights for some phases and source channels are packed at a time:
  // all of them or one.
  struct Stage {
    std::int64_t first_block = 0;
    std::int64_t blocks = 0;
    PhaseRange phases;
    std::int64_t first_channel = 0;
    std::int64_t last_channel = 0;

    std::int64_t channels() const { return last_channel - first_channel; }
  };

  // Where the weights shared by all tiles begin: [group][block][chunk]
  std::int64_t shared_place(const Stage& stage, const TargetBlock& block, std::int64_t first_channel) const {
    const std::int64_t index = block.group * blocking_.target_blocks + block.first / blocking_.target_channels;
    const std::int64_t before = (index - stage.first_block) * packed_.targets(blocking_.target_channels);
    const std::int64_t channel = first_channel - stage.first_channel;
    return (before * stage.channels() + packed_.targets(block.targets) * channel) * packed_.taps_of(stage.phases);
  }

  // Of one block and chunk of source channels, a piece: all threads pack while none can multiply.
  std::int64_t pieces_of_chunk() const { return roles_.interleaved > 1 || pairs_ ? 1 : ceil_div(chunk_, kPiece); }
  void pack_weights(const Tensors& tensors, const Stage& stage, T* shared, std::int64_t task) const {
    const std::int64_t pieces = pieces_of_chunk();
    const std::int64_t chunks = ceil_div(stage.channels(), chunk_);
    const TargetBlock block = block_at(stage.first_block + task / pieces / chunks);
    const std::int64_t c = stage.first_channel + task / pieces % chunks * chunk_;
    const std::int64_t channels = std::min(chunk_, stage.last_channel - c);
    T* const to = shared + shared_place(stage, block, c);
    if (pieces == 1) return pack_chunk(tensors, stage, block, c, channels, to);
    const std::int64_t begin = task % pieces * kPiece;
    packed_.pack_piece(tensors.weight, block, c, channels, begin, std::min(begin + kPiece, channels), stage.phases, to);
  }

  // The weights of a chunk, of pairs of source channels where they are multiplied so.
  void pack_chunk(const Tensors& tensors, const Stage& stage, const TargetBlock& block, std::int64_t first_channel,
                  std::int64_t channels, T* to) const {
    if constexpr (std::is_same_v<E, BFloat16>) {
      if (pairs_ && packed_.pack_pairs(tensors.weight, block, first_channel, channels, stage.phases, to)) return;
    }
    packed_.pack(tensors.weight, block, first_channel, channels, stage.phases, to);
    if constexpr (std::is_same_v<E, BFloat16>) {
      if (!pairs_) return;
      const MathOps<T>& math = math_ops<T>();
      const std::int64_t panel = packed_.tile_along_targets(math, block.targets).vectors * math.lanes;
      for (std::size_t p = stage.phases.first; p < stage.phases.last; ++p) {
        T* weights = to + packed_.place_of_phase(block, channels, p, stage.phases.first);
        for (std::int64_t row = 0; row < block.targets; row += panel) {
          const std::int64_t width = panel_width(math, panel, block.targets, row);
          for (std::size_t tap = 0; tap < tiling_.phases()[p].taps.size(); ++tap, weights += channels * width) {
            pair_rows(weights, width, channels);
          }
        }
      }
    }
  }

  // Of `targets` channels.
  Results<T> results_of(const Tile& tile, std::int64_t targets, Memory<T>& memory) const {
    Results<T> results;
    results.cells_are_columns = cells_are_columns_;
    results.interleaved = roles_.interleaved;
    results.group_step = roles_.target_channels / roles_.interleaved;
    results.row_size = round_up(cells_are_columns_ ? tile.length : targets, kMostLanes);
    results.phase_size = results.row_size * (cells_are_columns_ ? targets : tile.length);
    results.sums = memory.sums.get(tiling_.slots() * results.phase_size + kMostLanes);
    if (tiling_.has_empty_phases()) {
      std::fill_n(results.sums + (tiling_.slots() - 1) * results.phase_size, results.phase_size, T{0});
    }
    return results;
  }

  void run_task(const Tensors& tensors, const Stage& stage, const T* shared, std::int64_t task) const {
    thread_local Memory<T> memory;
    if (roles_.stacked > 1) return run_stack(tensors, stage, shared, task, memory);
    const std::int64_t together = std::min(stage.blocks, blocking_.target_blocks);  // of a group
    const Tile tile = tiling_.tile(task / together % tiling_.tiles());
    const TargetBlock block =
        block_at(stage.first_block + task / (together * tiling_.tiles()) * together + task % together);
    if (channels_inside_) return run_inside(tensors, stage, shared, tile, block, memory);
    run_lines(tensors, stage, shared, tile, block, 1, memory);
  }

  // Of some groups, a tile.
  void run_stack(const Tensors& tensors, const Stage& stage, const T* shared, std::int64_t task,
                 Memory<T>& memory) const {
    const Tile tile = tiling_.tile(task % tiling_.tiles());
    const std::int64_t first = task / tiling_.tiles() * roles_.stacked;
    run_lines(tensors, stage, shared, tile, block_at(first), std::min(roles_.stacked, roles_.groups - first), memory);
  }

  // A tile of one block or of those of several groups, where each channel is a line.
  void run_lines(const Tensors& tensors, const Stage& stage, const T* shared, const Tile& tile,
                 const TargetBlock& first, std::int64_t groups, Memory<T>& memory) const {
    const MathOps<T>& math = math_ops<T>();
    const auto phases = tiling_.phases().size();
    const auto sources = static_cast<std::int64_t>(tiling_.sources().size());
    const Results<T> results = results_of(tile, first.targets * groups, memory);

    const PackedSteps steps{sources * tiling_.plane_size(), 1};  // [group][channel][source lattice][line]
    T* const source = memory.source.get(groups * chunk_ * steps.channel);
    T* const own =
        shared != nullptr ? nullptr : memory.weights.get(chunk_ * tiling_.all_taps() * packed_.targets(first.targets));
    std::int64_t* const offsets = memory.offsets.get(chunk_ * tiling_.all_taps());
    for (std::int64_t c = 0; c < roles_.source_channels; c += chunk_) {
      const std::int64_t channels = std::min(chunk_, roles_.source_channels - c);
      const auto view_of = [&](std::int64_t group, std::int64_t count) {
        const std::int64_t channel = group * roles_.source_channels + c;
        return View<const E>{tensors.source + channel * roles_.source_strides[1], roles_.source_strides, count};
      };
      // Groups of which all channels are read are neighbours.
      const bool at_once = channels == roles_.source_channels;
      const std::int64_t views = at_once ? 1 : groups;
      for (std::int64_t g = 0; g < views; ++g) {
        pack_source(tiling_, tile, view_of(first.group + g, groups / views * channels), steps,
                    source + g * channels * steps.channel);
      }
      for (std::size_t phase = 0; phase < phases; ++phase) {
        std::int64_t* to = offsets + packed_.taps_before(phase) * channels;
        for (std::int64_t i = 0; i < channels; ++i) {
          for (const Tap& tap : tiling_.phases()[phase].taps) {
            *to++ = i * steps.channel + tap.source * tiling_.plane_size() + tap.offset;
          }
        }
      }
      for (std::int64_t g = 0; g < groups; ++g) {
        TargetBlock block = first;
        block.group += g;
        if (own != nullptr) packed_.pack(tensors.weight, block, c, channels, stage.phases, own);
        const T* const weights = own != nullptr ? own : shared + shared_place(stage, block, c);
        const Cells cells{source + g * channels * steps.channel + tiling_.lead(), 1};
        Results<T> of_group = results;
        of_group.sums += g * block.targets * results.row_size;
        if (cells_are_columns_) {
          multiply_along_cells(math, block, channels, weights, cells, offsets, tile.length, of_group, c > 0);
        } else {
          multiply_along_targets(math, block, channels, weights, cells, offsets, tile, results, c > 0, memory.rows);
        }
      }
    }
    store_of(tensors)(tile, roles_.first_target(first.group, first.first), first.targets * groups / roles_.interleaved,
                      results);
  }

  void store(const Tensors& tensors, const Tile& tile, const TargetBlock& block, const Results<T>& results) const {
    store_of(tensors)(tile, roles_.first_target(block.group, block.first), block.targets / roles_.interleaved, results);
  }

  // The source of some channels: where cell 0 stands, and the distance from one cell of the line to the next.
  struct Cells {
    const T* first = nullptr;
    std::int64_t step = 1;
  };

  Cells pack_cells(const Tile& tile, const View<const E>& view, const PackedSteps& steps, T* memory) const {
    pack_source(tiling_, tile, view, steps, memory);
    return {memory + tiling_.lead() * steps.cell, steps.cell};
  }

  // What a phase adds to its results, apart from operands.
  Multiply<T> job_of(std::size_t phase, std::int64_t channels, const Results<T>& results, bool accumulate) const {
    Multiply<T> job;
    job.depth = channels * static_cast<std::int64_t>(tiling_.phases()[phase].taps.size());
    job.c = results.sums + tiling_.slot(phase) * results.phase_size;
    job.c_step = results.row_size;
    job.accumulate = accumulate;
    return job;
  }

  void multiply_along_cells(const MathOps<T>& math, const TargetBlock& block, std::int64_t channels, const T* weights,
                            const Cells& cells, const std::int64_t* offsets, std::int64_t length,
                            const Results<T>& results, bool accumulate) const {
    const auto [panel, most_vectors] = math.tile_for(block.targets, tiling_.longest());
    for (std::size_t phase = 0; phase < tiling_.phases().size(); ++phase) {
      if (tiling_.phases()[phase].taps.empty()) continue;
      Multiply<T> job = job_of(phase, channels, results, accumulate);
      job.offsets = offsets + packed_.taps_before(phase) * channels;
      T* const sums = job.c;
      for (std::int64_t n = 0; n < length;) {
        const std::int64_t vectors = std::min(most_vectors, ceil_div(length - n, math.lanes));
        job.b = cells.first + n;
        for (std::int64_t m = 0; m < block.targets; m += panel) {
          job.a = weights + packed_.place_of_phase(block, channels, phase) + m * job.depth;
          job.c = sums + m * job.c_step + n;
          job.a_step = std::min(panel, block.targets - m);
          math.multiply_in_place[job.a_step - 1][vectors - 1](job);
        }
        n += vectors * math.lanes;
      }
    }
  }

  // Cells of the line that are multiplied together, no more than `most`.
  struct Piece {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  std::vector<Piece> pieces_of(const Tile& tile, std::int64_t most) const {
    std::vector<Piece> pieces;
    const auto cut = [&](std::int64_t begin, std::int64_t end) {
      for (; begin < end; begin += most) pieces.push_back({begin, std::min(most, end - begin)});
    };
    if (!row_by_row_) {
      cut(0, tile.length);
      return pieces;
    }
    for (std::int64_t image = 0; image < tile.images; ++image) {
      for (std::int64_t d = 0; d < tile.count[0]; ++d) {
        for (std::int64_t h = 0; h < tile.count[1]; ++h) {
          const std::int64_t row = tiling_.place_on_line({image, {d, h, 0}, 2, 1, {}});
          cut(row, row + tile.count[2]);
        }
      }
    }
    return pieces;
  }

  void multiply_along_targets(const MathOps<T>& math, const TargetBlock& block, std::int64_t channels, const T* weights,
                              const Cells& cells, const std::int64_t* offsets, const Tile& tile,
                              const Results<T>& results, bool accumulate, Scratch<T>& memory) const {
    const std::int64_t length = row_by_row_ ? tile.count[2] : tile.length;
    const auto size = math.tile_for(tiling_.longest(), block.targets);
    const RowPanels row_panels(math, size.rows);
    const std::int64_t most = even_parts(ceil_div(length, row_panels.rows), kCells / row_panels.rows) * row_panels.rows;
    T* const rows = memory.get(row_panels.size(most, std::max(kDepth, tiling_.most_taps())));
    for (const auto& [first, count] : pieces_of(tile, most)) {
      const T* const cell = cells.first + first;
      for (std::size_t phase = 0; phase < tiling_.phases().size(); ++phase) {
        const auto taps = static_cast<std::int64_t>(tiling_.phases()[phase].taps.size());
        if (taps == 0) continue;
        Multiply<T> job = job_of(phase, channels, results, accumulate);
        const Panels<T> panels{weights + packed_.place_of_phase(block, channels, phase), job.depth, 0};
        job.a = rows;
        job.c += first * job.c_step;
        const std::int64_t most_depth = even_parts(panels.depth, kDepth);
        for (std::int64_t k = 0; k < panels.depth; k += most_depth) {
          job.depth = std::min(most_depth, panels.depth - k);
          // Phases of kernel == stride, among others, read the same cells.
          if (!repeats_[phase] || most_depth < panels.depth) {
            pack_rows(math, row_panels, count, cell, offsets + packed_.taps_before(phase) * channels + k, job.depth,
                      rows);
          }
          multiply_panels(math, size, count, block.targets, {panels.data, panels.depth, k}, job);
          job.accumulate = true;
        }
      }
    }
  }

  Reach reach_of(const Tile& tile, const PhaseRange& phases, std::int64_t tile_rows, std::int64_t row_size) const {
    return find_reach(tiling_, tile, phases, tile_rows, {reads_in_place_ ? &source_steps_ : nullptr, cell_step_},
                      {stores_in_place_ ? &roles_.target_strides : nullptr, row_size}, !rounds_in_place_);
  }

  // A tile where channels are innermost: cells are rows of the product as they are, and a tap is a distance. Taps that
  // read nothing but zeros are left out.
  void run_inside(const Tensors& tensors, const Stage& stage, const T* shared, const Tile& tile,
                  const TargetBlock& block, Memory<T>& memory) const {
    const MathOps<T>& math = math_ops<T>();
    const auto& phases = tiling_.phases();
    const auto size = packed_.tile_along_targets(math, block.targets);
    Results<T> results;
    if (!stores_in_place_) results = results_of(tile, block.targets, memory);
    T* const source = reads_in_place_
                          ? nullptr
                          : memory.source.get(cell_step_ * static_cast<std::int64_t>(tiling_.sources().size()) *
                                              tiling_.plane_size());
    T* const own =
        shared != nullptr ? nullptr : memory.weights.get(chunk_ * tiling_.all_taps() * packed_.targets(block.targets));
    const bool known =
        !reach_.empty() && (stores_in_place_ || results.row_size == reach_row_) && tiling_.alike(first_tile_, tile);
    Reach own_reach;
    if (!known) own_reach = reach_of(tile, stage.phases, size.rows, results.row_size);
    const Reach& reach = known ? reach_ : own_reach;
    const std::int64_t target = roles_.first_target(block.group, block.first);
    const std::int64_t line = rounds_in_place_ ? 2 * kMostLanes : kMostLanes;
    const bool past_caches = chunk_ >= roles_.source_channels && size.vectors * math.lanes % line == 0 &&
                             writes_whole_lines(tensors.target, block);
    T* const bias =
        rounds_in_place_ && tensors.bias != nullptr ? memory.bias.get(round_up(block.targets, kMostLanes)) : nullptr;
    if (bias != nullptr) {
      element_ops<E, T>().load(tensors.bias + target, 1, bias, 1, block.targets);
      std::fill(bias + block.targets, bias + round_up(block.targets, kMostLanes), T{0});
    }
    std::vector<std::int64_t> places;
    for (std::int64_t c = stage.first_channel; c < stage.last_channel; c += chunk_) {
      const std::int64_t channels = std::min(chunk_, stage.last_channel - c);
      const E* const first = tensors.source + (block.group * roles_.cell_channels() + c) * roles_.source_strides[1];
      const T* cells = nullptr;
      if constexpr (std::is_same_v<E, T> || std::is_same_v<E, BFloat16>) {
        if (reads_in_place_) {
          cells = reinterpret_cast<const T*>(first);  // pairs of bfloat16 are words
          if (known) cells += CellPlaces::in_tensor(tile, tiling_.sources()[0], source_steps_).begin();
        }
      }
      if (cells == nullptr) {
        const View<const E> view{first, roles_.source_strides, channels};
        if constexpr (std::is_same_v<E, BFloat16>) {
          if (pairs_) {
            pack_pairs(tiling_, tile, view, cell_step_, source);
            cells = source + tiling_.lead() * cell_step_;
          }
        }
        if (cells == nullptr) {
          const PackedSteps steps{1, cell_step_, roles_.interleaved, roles_.source_channels};
          cells = pack_cells(tile, view, steps, source).first;
        }
      }
      if (own != nullptr) pack_chunk(tensors, stage, block, c, channels, own);
      const T* const weights = own != nullptr ? own : shared + shared_place(stage, block, c);
      for (std::size_t p = stage.phases.first; p < stage.phases.last; ++p) {
        if (!stores_in_place_ && phases[p].taps.empty()) continue;
        MultiplyCells<T> job;
        job.depth = pairs_ ? ceil_div(channels, 2) : channels;
        job.interleaved = roles_.interleaved;
        T* sums = nullptr;
        if constexpr (std::is_same_v<E, T>) {
          if (stores_in_place_) {
            sums = tensors.target + target + begin_in_tensor(phases[p].lattice, roles_.target_strides);
            if (known) sums += CellPlaces::in_tensor(tile, phases[p].lattice, roles_.target_strides).begin();
            job.initial = tensors.bias == nullptr ? nullptr : tensors.bias + target;
          }
        }
        if constexpr (std::is_same_v<E, BFloat16>) {
          if (rounds_in_place_) {
            job.rounded = tensors.target + target + begin_in_tensor(phases[p].lattice, roles_.target_strides);
            if (known) job.rounded += CellPlaces::in_tensor(tile, phases[p].lattice, roles_.target_strides).begin();
            job.initial = bias;
            job.columns = block.targets;
          }
        }
        if (sums == nullptr && !rounds_in_place_) sums = results.sums + tiling_.slot(p) * results.phase_size;
        const Panels<T> panels{weights + packed_.place_of_phase(block, channels, p, stage.phases.first),
                               static_cast<std::int64_t>(phases[p].taps.size()) * channels};
        job.a = cells;
        job.c = sums;
        for (const Reached& reached : reach[p]) {
          places.clear();
          for (const std::int64_t t : reached.taps) places.push_back(t * channels);
          const auto count = static_cast<std::int64_t>(reached.taps.size());
          const std::int64_t parts =
              rounds_in_place_ ? std::max(count, std::int64_t{1}) : even_parts(count, kDepthInPlace / channels);
          // At least once: what no tap reaches is zero.
          for (std::int64_t t = 0; t == 0 || t < count; t += parts) {
            job.offsets = reached.offsets.data() + t;
            job.places = places.data() + t;
            job.parts = std::min(parts, count - t);
            job.accumulate = c > 0 || t > 0 || reached.adds;
            job.past_caches = past_caches && parts >= count && !reached.adds;
            if constexpr (std::is_same_v<T, float>) {
              if (pairs_) {
                reached.cells.multiply_by(bf16_cells(), math, size, block.targets, panels, job);
                continue;
              }
            }
            reached.cells.multiply(math, size, block.targets, panels, job);
          }
        }
      }
    }
    if (!stores_in_place_) store(tensors, tile, block, results);
    if (past_caches) hwy::FlushStream();  // before another thread reads the results
  }

  // Whether sums in the tensor go past the caches.
  bool writes_whole_lines(const E* target, const TargetBlock& block) const {
    constexpr std::int64_t kLine = 64 / sizeof(E);
    const Sizes sizes = target_sizes();
    return stores_in_place_ && exceeds_caches(sizes, sizeof(E)) &&
           has_whole_lines(target, sizes, roles_.target_strides) &&
           roles_.first_target(block.group, block.first) % kLine == 0 && block.targets % kLine == 0;
  }

  Problem problem_;
  Roles roles_;
  Blocking blocking_;
  Tiling tiling_;
  std::int64_t chunk_ = 1;
  PackedWeights<E, T> packed_;
  std::vector<bool> repeats_;  // of each phase: it reads what the phase before it reads
  bool fills_first_ = false;
  bool empty_ = false;
  bool reads_in_place_ = false;
  bool stores_in_place_ = false;
  bool rounds_in_place_ = false;   // stores, of sums of pairs
  bool pairs_ = false;             // of channels of the source, bfloat16, are multiplied together
  Strides source_steps_{};         // in elements, or in pairs that are read in place
  bool channels_inside_ = false;   // the packed source has its channels innermost
  bool cells_are_columns_ = true;  // of the register tiles; otherwise target channels are
  bool row_by_row_ = false;        // where they are: what lies between rows of cells is left out
  std::int64_t cell_step_ = 1;
  std::vector<Stage> stages_;
  std::int64_t stage_size_ = 0;    // elements of its weights, at most
  std::int64_t stages_there_ = 1;  // whose weights are
  Tile first_tile_;
  Reach reach_;  // of the first tile, and of those like it
  std::int64_t reach_row_ = 0;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace

Proposal propose_correlate(const Problem& problem, const DeviceProperties& device) {
  const Roles roles(problem);
  AxisMaps maps = maps_of(problem);
  const Blocking blocking = choose_blocking(maps, problem, roles, std::max(device.threads, 1), caches());
  Tiling tiling(std::move(maps), problem.batch, blocking.cells);
  if (tiling.plane_size() > kLongestLine) {
    return Proposal::decline("a packed line must not exceed " + std::to_string(kLongestLine) + " elements, got " +
                             std::to_string(tiling.plane_size()));
  }
  return with_types(problem.dtype, [&]<typename E, typename T> {
    Proposal proposal;
    const auto kernel = std::make_shared<Correlate<E, T>>(problem, blocking, tiling);
    proposal.workspace_bytes = kernel->workspace_bytes();
    proposal.kernel = kernel;
    return proposal;
  });
}

}  // namespace tconv::cpu
