// Moving tiles between tensors of any strides and element type and the packed lines that the inner loops read.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu/alternating_rows.h"
#include "cpu/runs.h"
#include "cpu/simd.h"
#include "cpu/tile.h"
#include "tconv/problem.h"

namespace tconv::cpu {

// Calls visit(channel, run) for all of them, in the order in which memory is best walked.
template <typename E, typename Visit>
void for_each_channel_and_run(const View<E>& view, const Runs& runs, bool channels_inside, const Visit& visit) {
  if (channels_inside || view.channels_first()) {
    for (const Runs::Run& run : runs.all()) {
      for (std::int64_t channel = 0; channel < view.channels; ++channel) visit(channel, run);
    }
  } else {
    for (std::int64_t channel = 0; channel < view.channels; ++channel) {
      for (const Runs::Run& run : runs.all()) visit(channel, run);
    }
  }
}

// Cells of a few channels become lines: taken apart as the lattices of rows are. False: not done.
template <typename E, typename T>
bool load_cells_apart(const View<const E>& view, const Runs& runs, const PackedSteps& steps, T* line) {
  const std::int64_t period = runs.tensor_step();
  if (steps.cell != 1 || view.strides[1] != 1 || runs.line_step() != 1 || runs.count() == 0 || view.channels < 1 ||
      view.channels > period || period > kMostLattices) {
    return false;
  }
  std::array<std::int64_t, kMostLattices> residues{};
  std::array<std::int64_t, kMostLattices> counts{};
  std::array<T*, kMostLattices> lines{};
  for (std::int64_t c = 0; c < view.channels; ++c) {
    residues[c] = c;
    counts[c] = runs.count();
    lines[c] = line + c * steps.channel;
  }
  std::vector<std::int64_t> from_places;
  std::vector<std::int64_t> to_places;
  for (const Runs::Run& run : runs.all()) {
    from_places.push_back(run.tensor);
    to_places.push_back(run.line);
  }
  TakeApart<E, T> job;
  job.from = view.data;
  job.from_places = from_places.data();
  job.to_places = to_places.data();
  job.rows = std::ssize(from_places);
  job.period = period;
  job.lattices = view.channels;
  job.residues = residues.data();
  job.counts = counts.data();
  job.lines = lines.data();
  return element_ops<E, T>().take_apart(job);
}

template <typename E, typename T>
void load_runs(const View<const E>& view, const Runs& runs, const PackedSteps& steps, T* line) {
  const ElementOps<E, T>& ops = element_ops<E, T>();
  if (steps.interleaved > 1) {
    const std::int64_t place = 0;
    LoadGroups<E, T> job;
    job.from_places = &place;
    job.to_places = &place;
    job.cell_step = runs.tensor_step();
    job.group_step = steps.group_step;
    job.to_step = runs.line_step() * steps.cell;
    job.cells = runs.count();
    job.channels = view.channels;
    job.groups = steps.interleaved;
    for (std::size_t r = 0; r < runs.all().size(); ++r) {
      job.from = view.data + runs.all()[r].tensor;
      job.next = view.data + runs.all()[std::min(r + 1, runs.all().size() - 1)].tensor;
      job.to = line + runs.all()[r].line * steps.cell;
      ops.load_groups(job);
    }
    return;
  }
  if (steps.channel == 1 && view.strides[1] == 1) {
    for (const Runs::Run& run : runs.all()) {
      for (std::int64_t i = 0; i < runs.count(); ++i) {
        ops.load(view.data + run.tensor + i * runs.tensor_step(), 1,
                 line + (run.line + i * runs.line_step()) * steps.cell, 1, view.channels);
      }
    }
    return;
  }
  if (!std::is_same_v<E, T> && load_cells_apart(view, runs, steps, line)) return;
  constexpr std::int64_t kWorthTransposing = 4;  // channels
  if (steps.cell == 1 && view.strides[1] == 1 && runs.line_step() == 1 && view.channels >= kWorthTransposing) {
    for (const Runs::Run& run : runs.all()) {
      ops.load_channels(view.data + run.tensor, runs.tensor_step(), line + run.line, steps.channel, runs.count(),
                        view.channels);
    }
    return;
  }
  if (steps.channel == 1 && runs.tensor_step() == 1 && runs.line_step() == 1) {
    // A few channels of all runs at a time: as many streams as the hardware follows.
    constexpr std::int64_t kChannels = 16;
    for (std::int64_t first = 0; first < view.channels; first += kChannels) {
      for (const Runs::Run& run : runs.all()) {
        ops.load_channels(view.data + first * view.strides[1] + run.tensor, view.strides[1],
                          line + run.line * steps.cell + first, steps.cell, std::min(kChannels, view.channels - first),
                          runs.count());
      }
    }
    return;
  }
  if (steps.channel == 1 && view.channels > 1 && !view.channels_first()) {
    // Some cells of some channels become lines, and these are transposed.
    constexpr std::int64_t kChannels = 16;
    constexpr std::int64_t kCells = 240;
    T lines[kChannels * kCells];
    for (std::int64_t first = 0; first < view.channels; first += kChannels) {
      const std::int64_t channels = std::min(kChannels, view.channels - first);
      for (const Runs::Run& run : runs.all()) {
        for (std::int64_t i = 0; i < runs.count(); i += kCells) {
          const std::int64_t cells = std::min(kCells, runs.count() - i);
          for (std::int64_t c = 0; c < channels; ++c) {
            ops.load(view.data + (first + c) * view.strides[1] + run.tensor + i * runs.tensor_step(),
                     runs.tensor_step(), lines + c * kCells, 1, cells);
          }
          element_ops<T, T>().load_channels(lines, kCells,
                                            line + (run.line + i * runs.line_step()) * steps.cell + first,
                                            runs.line_step() * steps.cell, channels, cells);
        }
      }
    }
    return;
  }
  for_each_channel_and_run(view, runs, steps.cell != 1, [&](std::int64_t channel, const Runs::Run& run) {
    ops.load(view.data + channel * view.strides[1] + run.tensor, runs.tensor_step(),
             line + channel * steps.channel + run.line * steps.cell, runs.line_step() * steps.cell, runs.count());
  });
}

// Zeros into the cells of a line that no run fills.
template <typename T>
void clear_around(const Runs& runs, std::int64_t lead, std::int64_t size, std::int64_t cell, T* line) {
  if (!runs.along_row()) {
    std::fill_n(line, size * cell, T{0});
    return;
  }
  std::int64_t done = 0;
  for (const Runs::Run& run : runs.all()) {
    std::fill(line + done * cell, line + (lead + run.line) * cell, T{0});
    done = lead + run.line + runs.count();
  }
  std::fill(line + done * cell, line + size * cell, T{0});
}

// Lattices that alternate along rows of a tensor, each channel a line, read as the rows that they have in common.
// False: not done.
template <typename E, typename T>
bool load_apart(const View<const E>& view, const std::vector<Runs>& lattices, std::int64_t channel_step,
                const std::vector<T*>& lines) {
  const std::optional<CommonRows> rows = CommonRows::of(lattices);
  constexpr std::int64_t kShortest = 3;  // period: every second element is found as fast by itself
  if (view.strides[4] != 1 || !rows || rows->period < kShortest) return false;
  std::vector<std::int64_t> from_places;
  std::vector<std::int64_t> to_places;
  from_places.reserve(view.channels * rows->begins.size());
  to_places.reserve(view.channels * rows->begins.size());
  for (std::int64_t channel = 0; channel < view.channels; ++channel) {
    for (const std::int64_t begin : rows->begins) from_places.push_back(channel * view.strides[1] + begin);
    for (const std::int64_t line : rows->lines) to_places.push_back(channel * channel_step + line);
  }
  TakeApart<E, T> job = rows->job<E, T>();
  job.from = view.data;
  job.from_places = from_places.data();
  job.to_places = to_places.data();
  job.rows = std::ssize(from_places);
  job.lines = lines.data();
  return element_ops<E, T>().take_apart(job);
}

// Lattices of groups that are interleaved, read as the rows that they have in common. False: not done.
template <typename E, typename T>
bool load_groups_apart(const View<const E>& view, const std::vector<Runs>& lattices, const PackedSteps& steps,
                       const std::vector<T*>& lines) {
  const std::optional<CommonRows> rows = CommonRows::of(lattices);
  if (!rows) return false;
  const ElementOps<E, T>& ops = element_ops<E, T>();
  const std::int64_t common = *std::ranges::min_element(rows->counts);
  std::vector<std::int64_t> places;
  for (T* const line : lines) places.push_back(line - lines.front());
  LoadGroups<E, T> job;
  job.cell_step = rows->period;
  job.group_step = steps.group_step;
  job.to_step = steps.cell;
  job.channels = view.channels;
  job.groups = steps.interleaved;
  for (std::size_t r = 0; r < rows->begins.size(); ++r) {
    job.from = view.data + rows->begins[r];
    job.next = view.data + rows->begins[std::min(r + 1, rows->begins.size() - 1)];
    job.to = lines.front() + rows->lines[r] * steps.cell;
    job.from_places = rows->residues.data();
    job.to_places = places.data();
    job.lattices = std::ssize(places);
    job.cells = common;
    ops.load_groups(job);
    job.lattices = 1;
    job.from += common * job.cell_step;
    job.to += common * job.to_step;
    for (std::size_t l = 0; l < places.size(); ++l) {
      job.cells = rows->counts[l] - common;
      job.from_places = rows->residues.data() + l;
      job.to_places = places.data() + l;
      if (job.cells > 0) ops.load_groups(job);
    }
  }
  return true;
}

// The source of a tile as `lines` [source lattice][plane_size], zero wherever there is no source position.
template <typename E, typename T>
void pack_source(const Tiling& tiling, const Tile& tile, const View<const E>& view, const PackedSteps& steps, T* to) {
  const std::int64_t size = tiling.plane_size();
  const std::size_t alternating = tiling.maps()[2].sources.size();  // lattices of one row
  const bool transposes = std::is_same_v<E, T> && alternating > 1 && steps.channel == 1 && steps.interleaved == 1 &&
                          view.strides[1] != 1 && view.strides[4] == 1;
  AlternatingRows<T> rows;
  for (std::size_t s = 0; s < tiling.sources().size(); s += alternating) {
    std::vector<Runs> lattices;
    std::vector<T*> places;
    for (std::size_t l = s; l < s + alternating; ++l) {
      const Runs& runs = lattices.emplace_back(source_runs(tiling, tile, tiling.sources()[l], view.strides));
      T* const lines = to + static_cast<std::int64_t>(l) * size * steps.cell;
      places.push_back(lines + tiling.lead() * steps.cell);
      if (tiling.reads_around() || !runs.is_one_run(tile.length)) {
        if (steps.cell == 1) {
          for (std::int64_t c = 0; c < view.channels; ++c) std::fill_n(lines + c * steps.channel, size, T{0});
        } else {
          clear_around(runs, tiling.lead(), size, steps.cell, lines);
        }
      } else if (steps.cell == 1) {
        // Vectors that run on behind the line may be multiplied by zeros, which a NaN would survive.
        for (std::int64_t c = 0; c < view.channels; ++c) {
          std::fill_n(lines + c * steps.channel + tiling.lead() + tile.length, kSlack, T{0});
        }
      }
    }
    if (transposes && rows.add(lattices, steps.cell, places)) continue;
    if (steps.cell == 1 && lattices.front().tensor_step() > 1 && load_apart(view, lattices, steps.channel, places)) {
      continue;
    }
    if (steps.interleaved > 1 && alternating > 1 && load_groups_apart(view, lattices, steps, places)) continue;
    for (std::size_t l = 0; l < alternating; ++l) load_runs(view, lattices[l], steps, places[l]);
  }
  if constexpr (std::is_same_v<E, T>) rows.load(view);
}

}  // namespace tconv::cpu
