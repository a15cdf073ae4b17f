#include "cpu/pair_source.h"

#include <algorithm>
#include <cstring>

#include "cpu/bf16_products.h"

namespace tconv::cpu {
namespace {

// Channels of a cell that lie side by side.
void copy_channels(const BFloat16* from, std::int64_t channels, float* to) {
  std::memcpy(to, from, channels * sizeof(BFloat16));
  if (channels % 2 == 0) return;
  const BFloat16 last[2] = {from[channels - 1], BFloat16{0}};
  std::memcpy(to + channels / 2, last, sizeof last);
}

// Cells of a row that are one element apart are transposed from where they lie; others are brought together first, some
// cells of some channels at a time.
class RowPacker {
 public:
  RowPacker(const View<const BFloat16>& view, const Runs& runs, std::int64_t cell_step)
      : view_(view), step_(runs.tensor_step()), to_step_(runs.line_step() * cell_step), cell_step_(cell_step) {}

  void operator()(const Runs::Run& run, std::int64_t count, std::int64_t first, std::int64_t channels, float* line) {
    float* to = line + run.line * cell_step_ + first / 2;
    const BFloat16* from = view_.data + first * view_.strides[1] + run.tensor;
    if (step_ == 1) return pair_channels(from, view_.strides[1], channels, count, to, to_step_);
    for (std::int64_t c = 0; c < channels; ++c) places_[c] = c * view_.strides[1];
    for (std::int64_t i = 0; i < count; i += kCells, from += kCells * step_, to += kCells * to_step_) {
      const std::int64_t cells = std::min(kCells, count - i);
      pair_runs(from, places_, channels, step_, cells, together_);
      pair_channels(reinterpret_cast<const BFloat16*>(together_), round_up(cells, 2), channels, cells, to, to_step_);
    }
  }

 private:
  static constexpr std::int64_t kCells = 128;

  View<const BFloat16> view_;
  std::int64_t step_;     // elements between cells
  std::int64_t to_step_;  // words
  std::int64_t cell_step_;
  std::int64_t places_[kTransposedChannels];
  float together_[kTransposedChannels * kCells / 2];
};

void pack_runs(const View<const BFloat16>& view, const Runs& runs, std::int64_t cell_step, float* line) {
  if (view.strides[1] == 1) {
    for (const Runs::Run& run : runs.all()) {
      for (std::int64_t i = 0; i < runs.count(); ++i) {
        copy_channels(view.data + run.tensor + i * runs.tensor_step(), view.channels,
                      line + (run.line + i * runs.line_step()) * cell_step);
      }
    }
    return;
  }
  RowPacker pack(view, runs, cell_step);
  for (std::int64_t first = 0; first < view.channels; first += kTransposedChannels) {
    const std::int64_t channels = std::min(kTransposedChannels, view.channels - first);
    for (const Runs::Run& run : runs.all()) pack(run, runs.count(), first, channels, line);
  }
}

}  // namespace

void pack_pairs(const Tiling& tiling, const Tile& tile, const View<const BFloat16>& view, std::int64_t cell_step,
                float* to) {
  for (const auto& source : tiling.sources()) {
    const Runs runs = source_runs(tiling, tile, source, view.strides);
    if (tiling.reads_around() || !runs.is_one_run(tile.length)) {
      clear_around(runs, tiling.lead(), tiling.plane_size(), cell_step, to);
    }
    pack_runs(view, runs, cell_step, to + tiling.lead() * cell_step);
    to += tiling.plane_size() * cell_step;
  }
}

}  // namespace tconv::cpu
