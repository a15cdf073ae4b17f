// forward of few output channels, in one or two dimensions: too few for the columns of register tiles, and as rows they
// leave a loaded vector one multiply-add. The taps of a kernel row are rows too, and cells are the columns,
//   products[channel, tap][cell] = sum over input channels of  weight[channel][tap] input[cell],
// with nothing read beside a cell; then every output adds up what its taps find in the products. Rows of the input are
// multiplied once (the first and the last ones of a band of output rows twice), and the sums of the output rows that
// they reach wait for the next ones in a ring.
// An output is a sum over kernel rows, each over its taps, each over input channels, in an order that depends on the
// layer alone.
#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>
#include <vector>

#include "cpu/blocking.h"
#include "cpu/caches.h"
#include "cpu/packing.h"
#include "cpu/past_caches.h"
#include "cpu/phases_kernels.h"
#include "cpu/scratch.h"
#include "cpu/tap_rows_simd.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kFewOutputs = 3;       // fewer of them than this: more fill register tiles themselves
constexpr std::int64_t kFewestChannels = 24;  // that outweigh adding up products
constexpr std::int64_t kFewestTaps = 4;       // of a row
constexpr std::int64_t kFewestRows = 6;       // of register tiles
constexpr std::int64_t kColumns = 128;        // cells that are multiplied together, if rows are shorter
constexpr std::int64_t kMostColumns = 256;    // the same, if images are smaller
constexpr std::int64_t kLongestRow = 1024;    // cells of a task
constexpr std::int64_t kFewestInRow = 64;
constexpr double kSourceShare = 0.25;       // of the L2 cache, for the packed input
constexpr std::int64_t kTasksWanted = 8;    // for each thread
constexpr std::int64_t kBandOverHalo = 20;  // rows of a band, for each that is multiplied twice
constexpr std::int64_t kMostScratch = std::int64_t{1} << 19;

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a >= 0 ? a / b : -ceil_div(-a, b); }

// The taps that reach the outputs of one residue along a row: output j stride + residue reads input j + offset.
struct ResidueTap {
  std::int64_t tap = 0;
  std::int64_t offset = 0;
};

template <typename T>
struct Memory {
  Scratch<T> source;    // [channel][cell]
  Scratch<T> products;  // [output channel, tap][cell]
  Scratch<T> ring;      // [output row][output channel, residue][cell]
  std::vector<TapRow> taps;
};

template <typename E, typename T>
class TapRows final : public Kernel {
 public:
  TapRows(const Problem& problem, std::int64_t threads)
      : problem_(problem),
        height_(problem.axes[1]),
        width_(problem.axes[2]),
        channels_(problem.in_channels_per_group()),
        outputs_(problem.out_channels_per_group()),
        rows_(outputs_ * width_.kernel),
        output_rows_(height_.output()),
        output_columns_(width_.output()) {
    for (std::int64_t q = 0; q < std::min(width_.stride, output_columns_); ++q) {
      auto& taps = residues_.emplace_back();
      for (std::int64_t tap = 0; tap < width_.kernel; ++tap) {
        const std::int64_t distance = q + width_.pad_begin - tap * width_.dilation;
        if (distance % width_.stride != 0) continue;
        taps.push_back({tap, distance / width_.stride});
        lowest_ = std::min(lowest_, taps.back().offset);
        highest_ = std::max(highest_, taps.back().offset);
      }
    }
    const std::int64_t cells = ceil_div(output_columns_, width_.stride);
    const std::int64_t most =
        std::clamp(caches().elements(kSourceShare) / channels_ - (highest_ - lowest_), kFewestInRow, kLongestRow);
    segment_ = std::min(round_up(even_parts(cells, most), kMostLanes), cells);
    segments_ = ceil_div(cells, segment_);
    // The layer alone sets this: it is the order in which kernel rows are added up.
    together_ = std::min(ceil_div(kColumns, std::max<std::int64_t>(width_.input, 1)), height_.input);
    reach_ = (height_.kernel - 1) * height_.dilation + 1;
    ring_rows_ = (together_ - 1) * height_.stride + reach_;
    const std::int64_t others = problem.batch * problem.groups * segments_;
    const std::int64_t most_bands = height_.input / (kBandOverHalo * ceil_div(reach_, height_.stride));
    const std::int64_t wanted = ceil_div(kTasksWanted * threads, others);
    std::int64_t bands = std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(most_bands, 1));
    // Of few tasks none must be left over.
    if (bands < wanted && bands > threads && others % threads != 0) bands = bands / threads * threads;
    band_ = even_parts(output_rows_, ceil_div(output_rows_, bands));
    bands_ = ceil_div(output_rows_, band_);
    // Small images are multiplied together too, as long as every thread has some.
    if (together_ == height_.input && bands_ * segments_ == 1) {
      const std::int64_t most_images = std::max<std::int64_t>(kMostColumns / (height_.input * width_.input), 1);
      const std::int64_t fitting = std::max<std::int64_t>(kMostScratch / scratch_elements(), 1);
      images_ = even_parts(problem.batch, std::min({most_images, ceil_div(others, 2 * threads), fitting}));
    }
    const Strides& weight = problem.weight_strides;
    in_place_ = std::is_same_v<E, T> && weight[4] == 1 && (outputs_ == 1 || weight[1] == width_.kernel);
  }

  std::size_t workspace_bytes() const {
    if (in_place_) return 0;
    return static_cast<std::size_t>(problem_.groups * height_.kernel * channels_ * rows_) * sizeof(T);
  }

  // Elements that a thread holds for each image that it computes at once.
  std::int64_t scratch_elements() const {
    const std::int64_t columns = together_ * std::min(segment_ + highest_ - lowest_, width_.input);
    const auto residues = static_cast<std::int64_t>(residues_.size());
    return (channels_ + rows_) * round_up(columns, kMostLanes) +
           ring_rows_ * outputs_ * residues * ring_cells(segment_);
  }

  void run(const Buffers& buffers, const Execution& execution) const override {
    const Tensors tensors{static_cast<const E*>(buffers.input), static_cast<const E*>(buffers.weight),
                          problem_.bias ? static_cast<const E*>(buffers.bias) : nullptr,
                          static_cast<E*>(buffers.output), exceeds_caches(problem_.output_sizes(), sizeof(E))};
    T* const packed = in_place_ ? nullptr : static_cast<T*>(buffers.workspace);
    if (packed != nullptr) pack_weights(tensors.weight, packed);
    for_each_task(execution, ceil_div(problem_.batch, images_) * problem_.groups * bands_ * segments_,
                  [&](std::int64_t task) { run_task(tensors, packed, task); });
  }

  std::string describe() const override {
    return std::to_string(rows_) + " taps of a row, " + std::to_string(together_) + " rows together, " +
           std::to_string(bands_) + " bands of " + std::to_string(band_) + " output rows, " +
           std::to_string(segments_) + " segments of " + std::to_string(segment_) + " cells, " + target_name();
  }

 private:
  struct Tensors {
    const E* input;
    const E* weight;
    const E* bias;
    E* output;
    bool past_caches;  // results are stored
  };

  // [group][kernel row][input channel][output channel][tap]
  void pack_weights(const E* weight, T* to) const {
    const Strides& strides = problem_.weight_strides;
    for (std::int64_t group = 0; group < problem_.groups; ++group) {
      for (std::int64_t row = 0; row < height_.kernel; ++row) {
        for (std::int64_t c = 0; c < channels_; ++c) {
          for (std::int64_t o = 0; o < outputs_; ++o, to += width_.kernel) {
            const E* const from = weight + (group * channels_ + c) * strides[0] + o * strides[1] + row * strides[3];
            element_ops<E, T>().load(from, strides[4], to, 1, width_.kernel);
          }
        }
      }
    }
  }

  // The weights of a kernel row: a[channel step + row of the product].
  struct Weights {
    const T* a = nullptr;
    std::int64_t step = 0;
  };
  Weights weights_of(const Tensors& tensors, const T* packed, std::int64_t group, std::int64_t row) const {
    if constexpr (std::is_same_v<E, T>) {
      const Strides& strides = problem_.weight_strides;
      if (packed == nullptr) return {tensors.weight + group * channels_ * strides[0] + row * strides[3], strides[0]};
    }
    return {packed + (group * height_.kernel + row) * channels_ * rows_, rows_};
  }

  // What a task computes: some output rows, and outputs of some cells of each.
  struct Part {
    std::int64_t image = 0;
    std::int64_t images = 0;
    std::int64_t group = 0;
    std::int64_t first_row = 0;
    std::int64_t last_row = 0;
    std::int64_t first_cell = 0;
    std::int64_t cells = 0;
    std::int64_t first_input = 0;  // of the columns that it reads
    std::int64_t inputs = 0;
  };

  Part part_at(std::int64_t task) const {
    Part part;
    part.first_cell = task % segments_ * segment_;
    part.cells = std::min(segment_, ceil_div(output_columns_, width_.stride) - part.first_cell);
    part.first_input = std::clamp<std::int64_t>(part.first_cell + lowest_, 0, width_.input);
    part.inputs =
        std::clamp(part.first_cell + part.cells + highest_, part.first_input, width_.input) - part.first_input;
    const std::int64_t band = task / segments_ % bands_;
    part.first_row = band * band_;
    part.last_row = std::min(part.first_row + band_, output_rows_);
    part.group = task / segments_ / bands_ % problem_.groups;
    part.image = task / segments_ / bands_ / problem_.groups * images_;
    part.images = std::min(images_, problem_.batch - part.image);
    return part;
  }

  // Sums of output rows, of which ring_rows_ at a time are under way.
  struct Ring {
    T* sums = nullptr;
    std::int64_t cells = 0;  // of a residue
    std::int64_t row = 0;
    std::int64_t image = 0;
  };

  static std::int64_t ring_cells(std::int64_t cells) { return round_up(cells, kMostLanes) + kMostLanes; }

  void run_task(const Tensors& tensors, const T* packed, std::int64_t task) const {
    thread_local Memory<T> memory;
    const Part part = part_at(task);
    Ring ring;
    ring.cells = ring_cells(part.cells);
    ring.row = outputs_ * static_cast<std::int64_t>(residues_.size()) * ring.cells;
    ring.image = ring_rows_ * ring.row;
    ring.sums = memory.ring.get(part.images * ring.image);
    const std::int64_t begun = std::min(ring_rows_, part.last_row - part.first_row);
    for (std::int64_t m = 0; m < part.images; ++m) {
      for (std::int64_t row = 0; row < begun; ++row) begin_row(tensors, part, ring, m, row);
    }
    std::int64_t line = round_up(part.images * together_ * part.inputs, kMostVectors * kMostLanes);
    line += line / kMostLanes % 2 == 0 ? kMostLanes : 0;
    T* const source = memory.source.get(channels_ * line);
    // A vector may be read before the first product and behind the last one.
    T* const products = memory.products.get(rows_ * line + 2 * kMostLanes) + kMostLanes;
    const std::int64_t first =
        std::max<std::int64_t>(-floor_div(reach_ - 1 - part.first_row - height_.pad_begin, height_.stride), 0);
    const std::int64_t last =
        std::min(floor_div(part.last_row - 1 + height_.pad_begin, height_.stride), height_.input - 1);
    find_taps(part, line, memory.taps);
    std::int64_t done = part.first_row;
    for (std::int64_t row = first; row <= last && part.inputs > 0;) {
      const std::int64_t end = std::min((row / together_ + 1) * together_, last + 1);
      // Nothing reaches the output rows before these any more.
      const std::int64_t next = std::min(row * height_.stride - height_.pad_begin, part.last_row);
      for (; done < next; ++done) finish_rows(tensors, part, ring, done);
      load_rows(tensors, part, row, end, line, source);
      Ahead ahead = rows_ahead(tensors, part, end, std::min(end + together_, last + 1));
      for (std::int64_t kernel_row = 0; kernel_row < height_.kernel; ++kernel_row) {
        const std::int64_t to = kernel_row * height_.dilation - height_.pad_begin;
        const auto reached = [&](std::int64_t i) {
          return i * height_.stride + to >= part.first_row && i * height_.stride + to < part.last_row;
        };
        bool any = false;
        for (std::int64_t i = row; i < end; ++i) any = any || reached(i);
        if (!any) continue;
        multiply(weights_of(tensors, packed, part.group, kernel_row), source, line,
                 part.images * (end - row) * part.inputs, ahead, products);
        for (std::int64_t m = 0; m < part.images; ++m) {
          for (std::int64_t i = row; i < end; ++i) {
            if (!reached(i)) continue;
            const std::int64_t slot = (i * height_.stride + to - part.first_row) % ring_rows_;
            add_to_row(part, memory.taps, products + (m * (end - row) + i - row) * part.inputs, line, ring,
                       ring.sums + m * ring.image + slot * ring.row);
          }
        }
      }
      row = end;
    }
    for (; done < part.last_row; ++done) finish_rows(tensors, part, ring, done);
    if (tensors.past_caches) hwy::FlushStream();  // before another thread reads the results
  }

  // Input rows from `row` to `end` of all images, side by side.
  void load_rows(const Tensors& tensors, const Part& part, std::int64_t row, std::int64_t end, std::int64_t line,
                 T* source) const {
    const Strides& strides = problem_.input_strides;
    const ElementOps<E, T>& ops = element_ops<E, T>();
    const std::int64_t count = (end - row) * part.inputs;  // of an image
    const bool channels_inside = strides[1] == 1 && strides[4] != 1 && channels_ > 1;
    const bool one_run = strides[3] == part.inputs * strides[4];
    for (std::int64_t m = 0; m < part.images; ++m) {
      const E* const first = tensors.input + (part.image + m) * strides[0] + part.group * channels_ * strides[1] +
                             row * strides[3] + part.first_input * strides[4];
      T* const to = source + m * count;
      if (channels_inside) {
        for (std::int64_t i = 0; i < end - row; ++i) {
          ops.load_channels(first + i * strides[3], strides[4], to + i * part.inputs, line, part.inputs, channels_);
        }
        continue;
      }
      for (std::int64_t c = 0; c < channels_; ++c) {
        const E* const from = first + c * strides[1];
        const std::int64_t rows = one_run ? 1 : end - row;
        for (std::int64_t i = 0; i < rows; ++i) {
          ops.load(from + i * strides[3], strides[4], to + c * line + i * part.inputs, 1, count / rows);
        }
      }
    }
    // What vectors read behind the cells.
    const std::int64_t all = part.images * count;
    const std::int64_t behind = round_up(all, kMostLanes) - all;
    for (std::int64_t c = 0; c < channels_ && behind > 0; ++c) std::fill_n(source + c * line + all, behind, T{0});
  }

  // What the next rows will be loaded from: it is asked for meanwhile.
  struct Ahead {
    const E* data = nullptr;
    std::int64_t runs = 0;
    std::int64_t run_step = 0;
    std::int64_t lines = 0;  // of a run
    std::int64_t next = 0;   // of all lines
    std::int64_t at_once = 0;

    void ask() {
      constexpr std::int64_t kLine = 64 / sizeof(E);
      const std::int64_t end = std::min(next + at_once, runs * lines);
      for (; next < end; ++next) hwy::Prefetch(data + next / lines * run_step + next % lines * kLine);
    }
  };
  Ahead rows_ahead(const Tensors& tensors, const Part& part, std::int64_t row, std::int64_t end) const {
    Ahead ahead;
    const Strides& strides = problem_.input_strides;
    if (row >= end || !(strides[4] == 1 || strides[1] == 1)) return ahead;
    const bool along_row = strides[4] == 1;
    ahead.data = tensors.input + part.image * strides[0] + part.group * channels_ * strides[1] +
                 part.first_input * strides[4] + row * strides[3];
    ahead.runs = along_row ? channels_ : part.inputs;
    ahead.run_step = along_row ? strides[1] : strides[4];
    ahead.lines = ceil_div((along_row ? part.inputs : channels_) * static_cast<std::int64_t>(sizeof(E)), 64);
    const std::int64_t tiles = height_.kernel * std::max<std::int64_t>(part.inputs / (kMostVectors * kMostLanes), 1);
    ahead.at_once = ceil_div(ahead.runs * ahead.lines, tiles);
    return ahead;
  }

  void multiply(const Weights& weights, const T* source, std::int64_t line, std::int64_t columns, Ahead& ahead,
                T* products) const {
    const MathOps<T>& math = math_ops<T>();
    const auto tile = math.tile_for(rows_, columns);
    Multiply<T> job;
    job.depth = channels_;
    job.a_step = weights.step;
    job.b_step = line;
    job.c_step = line;
    for (std::int64_t n = 0; n < columns;) {
      const std::int64_t vectors = std::min(tile.vectors, ceil_div(columns - n, math.lanes));
      job.b = source + n;
      for (std::int64_t m = 0; m < rows_; m += tile.rows) {
        job.a = weights.a + m;
        job.c = products + m * line + n;
        math.multiply_packed[std::min(tile.rows, rows_ - m) - 1][vectors - 1](job);
      }
      n += vectors * math.lanes;
      ahead.ask();
    }
  }

  // What the taps of all residues, one after the other, add to the first output channel.
  void find_taps(const Part& part, std::int64_t line, std::vector<TapRow>& taps) const {
    taps.clear();
    for (const auto& residue : residues_) {
      for (const ResidueTap& tap : residue) {
        const std::int64_t begin = part.first_input - part.first_cell - tap.offset;  // the cell that reads the first
        taps.push_back({tap.tap * line - begin, begin, begin + part.inputs});
      }
    }
  }

  // The products of one input row and kernel row to the sums of the output row that they belong to.
  void add_to_row(const Part& part, const std::vector<TapRow>& taps, const T* products, std::int64_t line,
                  const Ring& ring, T* sums) const {
    AddTaps<T> job;
    job.count = round_up(part.cells, kMostLanes);
    job.to = sums;
    for (std::int64_t o = 0; o < outputs_; ++o) {
      job.products = products + o * width_.kernel * line;
      job.taps = taps.data();
      for (const auto& residue : residues_) {
        job.tap_count = static_cast<std::int64_t>(residue.size());
        if (job.tap_count > 0) add_taps(job);
        job.taps += job.tap_count;
        job.to += ring.cells;
      }
    }
  }

  void begin_row(const Tensors& tensors, const Part& part, const Ring& ring, std::int64_t image,
                 std::int64_t slot) const {
    const std::int64_t each = ring.row / outputs_;
    for (std::int64_t o = 0; o < outputs_; ++o) {
      T bias = 0;
      if (tensors.bias != nullptr) {
        element_ops<E, T>().load(tensors.bias + part.group * outputs_ + o, 1, &bias, 1, 1);
      }
      std::fill_n(ring.sums + image * ring.image + slot * ring.row + o * each, each, bias);
    }
  }

  void finish_rows(const Tensors& tensors, const Part& part, const Ring& ring, std::int64_t row) const {
    for (std::int64_t m = 0; m < part.images; ++m) finish_row(tensors, part, ring, m, row);
  }

  // Stores an output row, and begins the next one that has its place.
  void finish_row(const Tensors& tensors, const Part& part, const Ring& ring, std::int64_t image,
                  std::int64_t row) const {
    const Strides& strides = problem_.output_strides;
    const std::int64_t slot = (row - part.first_row) % ring_rows_;
    const auto residues = static_cast<std::int64_t>(residues_.size());
    E* const to = tensors.output + (part.image + image) * strides[0] + part.group * outputs_ * strides[1] +
                  row * strides[3] + part.first_cell * width_.stride * strides[4];
    const std::int64_t count = std::min(part.cells * width_.stride, output_columns_ - part.first_cell * width_.stride);
    const bool channels_inside = outputs_ > 1 && strides[1] == 1 && strides[4] == outputs_;
    // Channels that lie side by side are phases too.
    const std::int64_t channels = channels_inside ? outputs_ : 1;
    std::array<std::int64_t, kMostPlaces> places{};
    for (std::int64_t first = 0; first < outputs_; first += channels) {
      for (std::int64_t q = 0; q < residues; ++q) {
        for (std::int64_t o = 0; o < channels; ++o) {
          places[q * channels + o] = ((first + o) * residues + q) * ring.cells;
        }
      }
      const auto put = [&](std::int64_t cell, std::int64_t cells, std::int64_t phases) {
        Interleave<E, T> job;
        job.from = ring.sums + image * ring.image + slot * ring.row + cell;
        job.places = places.data();
        job.phases = phases * channels;
        job.cell_step = 1;
        job.to = to + first * strides[1] + cell * width_.stride * strides[4];
        job.to_step = channels_inside ? 1 : strides[4];
        job.period = width_.stride * strides[4];
        job.count = cells;
        job.past_caches = tensors.past_caches;
        if (job.phases > 1) {
          element_ops<E, T>().interleave(job);
        } else {
          element_ops<E, T>().store(job.from + places[0], 1, job.to, job.period, cells, T{0});
        }
      };
      const std::int64_t whole = residues < width_.stride ? 0 : count / residues;
      if (whole > 0) put(0, whole, residues);
      if (whole * residues < count) put(whole, 1, count - whole * residues);
    }
    if (row + ring_rows_ < part.last_row) begin_row(tensors, part, ring, image, slot);
  }

 public:
  static constexpr std::int64_t kMostPlaces = 64;  // of phases that are put together

 private:
  Problem problem_;
  Axis height_;
  Axis width_;
  std::int64_t channels_ = 0;  // of a group: input
  std::int64_t outputs_ = 0;   // and output
  std::int64_t rows_ = 0;      // of the products
  std::int64_t output_rows_ = 0;
  std::int64_t output_columns_ = 0;
  std::vector<std::vector<ResidueTap>> residues_;
  std::int64_t lowest_ = 0;  // of the offsets of the taps, and of 0
  std::int64_t highest_ = 0;
  std::int64_t segment_ = 0;  // cells of a row that a task computes
  std::int64_t segments_ = 0;
  std::int64_t together_ = 1;   // rows that are multiplied together
  std::int64_t reach_ = 1;      // output rows from the first that an input row reaches to the last
  std::int64_t ring_rows_ = 1;  // whose sums are under way
  std::int64_t band_ = 0;       // output rows of a task
  std::int64_t bands_ = 0;
  std::int64_t images_ = 1;  // of a task
  bool in_place_ = false;    // weights are read where they are
};

}  // namespace

Proposal propose_tap_rows(const Problem& problem, const DeviceProperties& device) {
  const Axis& depth = problem.axes[0];
  const Axis& width = problem.axes[2];
  if (problem.direction != Direction::forward) return Proposal::decline("computes forward");
  if (depth.input != 1 || depth.kernel != 1 || depth.output() != 1 || depth.pad_begin != 0) {
    return Proposal::decline("needs two dimensions");
  }
  const std::int64_t outputs = problem.out_channels_per_group();
  const std::int64_t rows = outputs * width.kernel;
  if (outputs >= kFewOutputs || problem.in_channels_per_group() < kFewestChannels || rows < kFewestRows ||
      width.kernel < kFewestTaps) {
    return Proposal::decline("needs few output channels, many input channels and several taps");
  }
  if (width.stride * outputs > TapRows<float, float>::kMostPlaces) return Proposal::decline("needs shorter strides");
  if (problem.batch == 0 || element_count(problem.output_sizes()) == 0 || element_count(problem.input_sizes()) == 0) {
    return Proposal::decline("needs something to compute");
  }
  return with_types(problem.dtype, [&]<typename E, typename T> {
    Proposal proposal;
    const auto kernel = std::make_shared<TapRows<E, T>>(problem, std::max(device.threads, 1));
    // Of one sample, as below: a sample's result does not depend on the rest of its batch.
    Problem sample = problem;
    sample.batch = 1;
    if (static_cast<std::int64_t>(kernel->workspace_bytes() / sizeof(T)) > room_for_weights(sample)) {
      return Proposal::decline("has too many weights");
    }
    if (kernel->scratch_elements() > kMostScratch) return Proposal::decline("has too many taps, or too far apart");
    proposal.workspace_bytes = kernel->workspace_bytes();
    proposal.kernel = kernel;
    return proposal;
  });
}

}  // namespace tconv::cpu
