// The results of a tile, and how they get into the tensor: interleaved with their neighbours of other phases, with the
// bias, rounded.
#pragma once

#include <hwy/cache_control.h>

#include "cpu/packing.h"
#include "cpu/panels.h"
#include "cpu/past_caches.h"

namespace tconv::cpu {

// The tile of results: [slot of the phase][m][n], where m, n are target channel and cell, or cell and target channel.
template <typename T>
struct Results {
  T* sums = nullptr;
  bool cells_are_columns = true;
  std::int64_t row_size = 0;
  std::int64_t phase_size = 0;
  // Groups whose channels alternate, and their distance in the tensor; `channels` below are those of one group.
  std::int64_t interleaved = 1;
  std::int64_t group_step = 0;

  std::int64_t channel_step() const { return cells_are_columns ? row_size : 1; }
  std::int64_t cell_step() const { return cells_are_columns ? 1 : row_size; }
};

template <typename E, typename T>
class ResultStore {
 public:
  // No bias: nullptr. `sizes` are those of the whole target.
  ResultStore(const Tiling& tiling, const Sizes& sizes, const Strides& strides, const E* bias, E* target)
      : tiling_(tiling),
        strides_(strides),
        bias_(bias),
        target_(target),
        past_caches_(exceeds_caches(sizes, sizeof(E))),
        whole_lines_(past_caches_ && has_whole_lines(target, sizes, strides)) {}

  // Stores the results of a tile for some channels.
  void operator()(const Tile& tile, std::int64_t first_channel, std::int64_t channels,
                  const Results<T>& results) const {
    put(tile, first_channel, channels, results);
    if (past_caches_) hwy::FlushStream();  // before another thread reads them
  }

  T bias_of(std::int64_t channel) const {
    T bias = 0;
    if (bias_ != nullptr) ops_.load(bias_ + channel, 1, &bias, 1, 1);
    return bias;
  }

 private:
  void put(const Tile& tile, std::int64_t first_channel, std::int64_t channels, const Results<T>& results) const {
    const View<E> view{target_ + first_channel * strides_[1], strides_, channels};
    const auto phases = static_cast<std::int64_t>(tiling_.phases().size());
    const std::int64_t in_row = tiling_.row_phases();
    if (results.interleaved > 1 || (strides_[1] == 1 && channels > 1)) {
      for (std::int64_t p = 0; p < phases; p += in_row) store_cells(tile, p, first_channel, view, results);
      return;
    }
    if (put_together(tile, first_channel, view, results)) return;
    for (std::int64_t p = 0; p < phases; p += in_row) {
      std::int64_t together = 0;  // cells that every phase of the row has
      if (neighbours(p)) together = store_rows(tile, p, first_channel, view, results);
      for (std::int64_t q = p; q < p + in_row; ++q) store_phase(tile, q, together, first_channel, view, results);
    }
  }

  // Whether the phases of a row lie side by side.
  bool neighbours(std::int64_t first) const {
    for (std::int64_t w = 1; w < tiling_.row_phases(); ++w) {
      if (tiling_.phases()[first + w].lattice[2].first != tiling_.phases()[first].lattice[2].first + w) return false;
    }
    return true;
  }

  // Stores the phases of rows where channels lie side by side: cells that all of them have in the order of memory, then
  // what some have beyond.
  void store_cells(const Tile& tile, std::int64_t first_phase, std::int64_t first_channel, const View<E>& view,
                   const Results<T>& results) const {
    const std::int64_t in_row = tiling_.row_phases();
    const Runs shortest = target_runs(tiling_, tile, tiling_.phases()[first_phase + in_row - 1], view.strides);
    const Runs runs = target_runs(tiling_, tile, tiling_.phases()[first_phase], view.strides);
    std::int64_t together = 0;
    if (in_row > 1 && neighbours(first_phase) && runs.along_row() && shortest.along_row()) {
      together = shortest.count();
      store_cells_of(runs, together, first_phase, in_row, first_channel, view, results);
    }
    for (std::int64_t p = first_phase; p < first_phase + in_row; ++p) {
      if (together > 0 && cells_in_row(tile, p) <= together) continue;
      Tile rest = tile;
      rest.begin[2] += together;
      rest.count[2] -= together;
      Results<T> beyond = results;
      beyond.sums += together * results.cell_step();
      const Runs rest_runs = target_runs(tiling_, rest, tiling_.phases()[p], view.strides);
      store_cells_of(rest_runs, rest_runs.count(), p, 1, first_channel, view, beyond);
    }
  }

  std::int64_t cells_in_row(const Tile& tile, std::int64_t phase) const {
    return tiling_.cells_of(tile, tiling_.phases()[phase])[2];
  }

  // The first cells of runs, of some phases that lie side by side.
  void store_cells_of(const Runs& runs, std::int64_t cells, std::int64_t first_phase, std::int64_t phases,
                      std::int64_t first_channel, const View<E>& view, const Results<T>& results) const {
    std::vector<std::int64_t> places;
    bool has_taps = false;
    for (std::int64_t p = first_phase; p < first_phase + phases; ++p) {
      places.push_back(tiling_.slot(p) * results.phase_size);
      has_taps = has_taps || !tiling_.phases()[p].taps.empty();
    }
    StoreCells<E, T> job;
    job.places = places.data();
    job.phases = phases;
    job.phase_step = view.strides[4];
    // One cell of zeros is as good as another, but lines of them are transposed.
    const bool moves = has_taps || results.cells_are_columns;
    job.cell_step = moves ? runs.line_step() * results.cell_step() : 0;
    job.channel_step = results.channel_step();
    job.to_step = runs.tensor_step();
    job.cells = cells;
    job.channels = view.channels;
    job.interleaved = results.interleaved;
    job.group_step = results.group_step;
    job.bias = bias_ == nullptr ? nullptr : bias_ + first_channel;
    // Blocks of channels begin and end with whole lines too.
    constexpr std::int64_t kLine = 64 / sizeof(E);
    job.past_caches = whole_lines_ && first_channel % kLine == 0 && view.channels * results.interleaved % kLine == 0;
    for (const Runs::Run& run : runs.all()) {
      job.from = results.sums + (moves ? run.line * results.cell_step() : 0);
      job.to = view.data + run.tensor;
      ops_.store_cells(job);
    }
  }

  // Stores whole rows, of all phases, in the order of memory. False: nothing is done, since cells are rows, or there
  // are gaps between the phases, or too many of them.
  bool put_together(const Tile& tile, std::int64_t first_channel, const View<E>& view,
                    const Results<T>& results) const {
    const std::int64_t in_row = tiling_.row_phases();
    const Lattice& first = tiling_.phases()[0].lattice[2];
    if (!results.cells_are_columns || in_row == 1 || in_row > kMostLattices || view.strides[4] != 1) return false;
    if (!neighbours(0) || first.first != 0 || first.step != in_row) return false;
    std::int64_t length = 0;
    for (std::int64_t w = 0; w < in_row; ++w) length += cells_in_row(tile, w);
    std::vector<std::int64_t> residues;
    for (std::int64_t w = 0; w < in_row; ++w) {
      const auto has_taps = [&](std::int64_t p) { return !tiling_.phases()[p + w].taps.empty(); };
      bool any = false;
      for (std::int64_t p = 0; p < std::ssize(tiling_.phases()); p += in_row) any = any || has_taps(p);
      if (any) residues.push_back(w);
    }
    struct Row {
      std::int64_t to = 0;
      std::int64_t phase = 0;  // the first one
      std::int64_t line = 0;
    };
    std::vector<Row> rows;
    for (std::int64_t p = 0; p < std::ssize(tiling_.phases()); p += in_row) {
      const Runs runs = target_runs(tiling_, tile, tiling_.phases()[p], view.strides);
      if (!runs.along_row()) return false;
      for (const Runs::Run& run : runs.all()) rows.push_back({run.tensor, p, run.line});
    }
    std::ranges::sort(rows, {}, &Row::to);
    std::vector<std::int64_t> places;
    std::vector<std::int64_t> to_places;
    for (const Row& row : rows) {
      to_places.push_back(row.to);
      for (const std::int64_t w : residues) {
        const bool empty = tiling_.phases()[row.phase + w].taps.empty();
        places.push_back(empty ? -1 : tiling_.slot(row.phase + w) * results.phase_size + row.line);
      }
    }
    PutTogether<E, T> job;
    job.places = places.data();
    job.to_places = to_places.data();
    job.rows = std::ssize(rows);
    job.length = length;
    job.period = in_row;
    job.filled = std::ssize(residues);
    job.residues = residues.data();
    job.past_caches = past_caches_;
    job.from = results.sums;
    job.channel_step = results.channel_step();
    job.to = view.data;
    job.to_step = view.strides[1];
    job.channels = view.channels;
    job.bias = bias_ == nullptr ? nullptr : bias_ + first_channel;
    return ops_.put_together(job);
  }

  // Stores the cells that all phases of the rows have, interleaved; returns how many of a row, 0 for nothing done.
  std::int64_t store_rows(const Tile& tile, std::int64_t first_phase, std::int64_t first_channel, const View<E>& view,
                          const Results<T>& results) const {
    // The last phase is the shortest.
    const Runs shortest =
        target_runs(tiling_, tile, tiling_.phases()[first_phase + tiling_.row_phases() - 1], view.strides);
    const PhaseTile& phase = tiling_.phases()[first_phase];
    const Runs runs = target_runs(tiling_, tile, phase, view.strides);
    if (!runs.along_row() || !shortest.along_row()) return 0;
    std::vector<std::int64_t> places;
    for (std::int64_t w = 0; w < tiling_.row_phases(); ++w) {
      places.push_back(tiling_.slot(first_phase + w) * results.phase_size);
    }
    if (!results.cells_are_columns) {
      if (view.strides[4] != 1 || runs.tensor_step() != tiling_.row_phases()) return 0;
      StoreRows<E, T> job;
      job.places = places.data();
      job.phases = tiling_.row_phases();
      job.cell_step = results.row_size;
      job.to_step = view.strides[1];
      job.channels = view.channels;
      job.bias = bias_ == nullptr ? nullptr : bias_ + first_channel;
      job.past_caches = past_caches_;
      const std::vector<Runs::Run>& rows = runs.all();
      const std::int64_t count = shortest.count();
      for (std::size_t first = 0, next = 0; first < rows.size(); first = next) {
        // Rows without anything between them are one.
        job.count = count;
        for (next = first + 1; next < rows.size() && job.phases == 1; ++next) {
          if (rows[next].tensor != rows[first].tensor + job.count || rows[next].line != rows[first].line + job.count) {
            break;
          }
          job.count += count;
        }
        job.from = results.sums + rows[first].line * results.row_size;
        job.to = view.data + rows[first].tensor;
        ops_.store_rows(job);
      }
      return count;
    }
    if (tiling_.row_phases() == 1) return 0;
    Interleave<E, T> job;
    job.places = places.data();
    job.phases = tiling_.row_phases();
    job.cell_step = results.cell_step();
    job.to_step = view.strides[4];
    job.period = runs.tensor_step();
    job.count = shortest.count();
    job.past_caches = past_caches_;
    for_each_channel_and_run(view, runs, false, [&](std::int64_t channel, const Runs::Run& run) {
      job.from = results.sums + channel * results.channel_step() + run.line * results.cell_step();
      job.to = view.data + channel * view.strides[1] + run.tensor;
      job.bias = bias_of(first_channel + channel);
      ops_.interleave(job);
    });
    return job.count;
  }

  // Stores what one phase has beyond the first `done` cells of each row.
  void store_phase(const Tile& tile, std::int64_t index, std::int64_t done, std::int64_t first_channel,
                   const View<E>& view, const Results<T>& results) const {
    const PhaseTile& phase = tiling_.phases()[index];
    if (phase.lattice[2].count - tile.begin[2] <= done || tile.count[2] <= done) return;
    Tile rest = tile;
    rest.begin[2] += done;
    rest.count[2] -= done;
    const Runs runs = target_runs(tiling_, rest, phase, view.strides);
    const T* const sums = results.sums + tiling_.slot(index) * results.phase_size + done * results.cell_step();
    for_each_channel_and_run(view, runs, false, [&](std::int64_t channel, const Runs::Run& run) {
      ops_.store(sums + channel * results.channel_step() + run.line * results.cell_step(),
                 runs.line_step() * results.cell_step(), view.data + channel * view.strides[1] + run.tensor,
                 runs.tensor_step(), runs.count(), bias_of(first_channel + channel));
    });
  }

  const ElementOps<E, T>& ops_ = element_ops<E, T>();  // asked for once: rows may be short
  const Tiling& tiling_;
  Strides strides_;
  const E* bias_;
  E* target_;
  bool past_caches_;
  bool whole_lines_;
};

}  // namespace tconv::cpu
