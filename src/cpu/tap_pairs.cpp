#include "cpu/tap_pairs.h"

#include <algorithm>

#include "cpu/bf16_products.h"
#include "cpu/blocking.h"
#include "cpu/panels.h"
#include "cpu/scratch.h"

namespace tconv::cpu {
namespace {

constexpr std::int64_t kDepth = 112;  // pairs between two visits to the sums: their input stays in the L1 cache

struct Memory {
  Scratch<BFloat16> elements;
  Scratch<float> window;
  Scratch<float> input;
  Scratch<float> lines;
  std::vector<std::int64_t> places;
};

// The window as words: every element beside the one that the next cell reads.
void load_window(const TapPairs& job, std::int64_t cell_step, Memory& memory, float* words) {
  const std::int64_t size = job.window.size();
  BFloat16* const elements = memory.elements.get(size);
  job.window.load(job.tile, job.grad, elements, copy_elements);
  const std::int64_t paired = std::max<std::int64_t>(size - cell_step, 0);
  pair_cells(elements, elements + cell_step, paired, words);
  pair_cells(elements + paired, nullptr, size - paired, words + paired);
}

// Pairs of the cells of all runs as rows of `width` words, a channel each. An odd last cell is the second of its pair,
// whose first one counts as zero.
void pack_panel(const TapPairs& job, std::int64_t first, std::int64_t channels, std::int64_t width, Memory& memory,
                float* to) {
  const Runs& runs = job.runs;
  const std::int64_t pairs = ceil_div(runs.count(), 2);
  const auto all = static_cast<std::int64_t>(runs.all().size()) * pairs;
  const BFloat16* const from = job.input.data + first * job.input.strides[1];
  if (channels < width) std::fill_n(to, all * width, 0.0F);
  if (job.input.strides[1] == 1) {
    float* row = to;
    for (const Runs::Run& run : runs.all()) {
      const BFloat16* cell = from + run.tensor;
      for (std::int64_t i = 0; i < runs.count(); i += 2, cell += 2 * runs.tensor_step(), row += width) {
        pair_cells(cell, i + 1 < runs.count() ? cell + runs.tensor_step() : nullptr, channels, row);
      }
    }
  } else {
    constexpr std::int64_t kChannels = kMostLanes;  // that are transposed together
    float* const lines = memory.lines.get(kChannels * all);
    memory.places.clear();
    for (const Runs::Run& run : runs.all()) memory.places.push_back(run.tensor);
    for (std::int64_t c = 0; c < channels; c += kChannels) {
      const std::int64_t some = std::min(kChannels, channels - c);
      for (std::int64_t line = 0; line < some; ++line) {
        pair_runs(from + (c + line) * job.input.strides[1], memory.places.data(), std::ssize(memory.places),
                  runs.tensor_step(), runs.count(), lines + line * all);
      }
      element_ops<float, float>().load_channels(lines, all, to + c, width, some, all);
    }
  }
  if (runs.count() % 2 == 0) return;
  for (std::int64_t last = pairs - 1; last < all; last += pairs) put_numbers_second(to + last * width, width);
}

}  // namespace

void sum_tap_pairs(const TapPairs& job) {
  thread_local Memory memory;
  const MathOps<float>& math = math_ops<float>();
  const WordTapsTable& table = bf16_taps();
  const std::int64_t cell_step = job.window.place_on_line(job.runs.line_step());
  float* const window = memory.window.get(job.window.size());
  load_window(job, cell_step, memory, window);
  const std::int64_t channels = job.input.channels;
  const std::int64_t count = job.runs.count();
  const std::int64_t pairs = ceil_div(count, 2);
  const auto runs = static_cast<std::int64_t>(job.runs.all().size());
  // Pieces of runs, several of them between two visits to the sums where they are short; an odd last cell by itself.
  struct Piece {
    std::int64_t cell;
    std::int64_t pair;
    std::int64_t pairs;
  };
  std::vector<Piece> pieces;
  const std::int64_t depth = even_parts(count / 2, kDepth);
  for (std::int64_t k = 0; k < count / 2; k += depth) pieces.push_back({2 * k, k, std::min(depth, count / 2 - k)});
  if (count % 2 != 0) pieces.push_back({count - 2, pairs - 1, 1});

  auto size = math.tile_for_cells(job.by_runs.front().rows, channels);
  if (size.vectors == 1) size.rows = even_parts(job.by_runs.front().rows, kMostWordRows);
  const std::int64_t panel = size.vectors * math.lanes;
  float* const packed = memory.input.get(runs * pairs * panel);
  std::vector<std::int64_t> b_places;
  MultiplyTaps<float> taps;
  taps.a_step = 2 * cell_step;
  taps.c_step = job.sums_step;
  for (std::int64_t n = 0; n < channels; n += panel) {
    taps.b_step = panel_width(math, panel, channels, n);
    pack_panel(job, n, std::min(panel, channels - n), taps.b_step, memory, packed);
    for (const Piece& piece : pieces) {
      taps.depth = piece.pairs;
      taps.a = window + piece.cell * cell_step;
      taps.b = packed + piece.pair * taps.b_step;
      const std::int64_t together = std::max<std::int64_t>(kDepth / piece.pairs, 1);
      for (const TapRows& group : job.by_runs) {
        b_places.clear();
        for (const std::size_t r : group.runs) b_places.push_back(static_cast<std::int64_t>(r) * pairs * taps.b_step);
        const std::int64_t all = std::ssize(group.runs);
        for (std::int64_t r = 0; r < all; r += together) {
          taps.a_places = group.places.data() + r;
          taps.b_places = b_places.data() + r;
          taps.parts = std::min(together, all - r);
          for (std::int64_t m = group.first; m < std::ssize(job.row_places); m += group.step) {
            for (std::int64_t i = m; i < m + group.rows; i += size.rows) {
              taps.a_rows = job.row_places.data() + i;
              taps.c = job.sums + i * job.sums_step + n;
              table[std::min(size.rows, m + group.rows - i) - 1][taps.b_step / math.lanes - 1](taps);
            }
          }
        }
      }
    }
  }
}

}  // namespace tconv::cpu
