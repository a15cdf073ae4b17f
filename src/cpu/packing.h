// Moving tiles between tensors of any strides and element type and the packed lines that the inner loops read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu/simd.h"
#include "cpu/tile.h"
#include "tconv/problem.h"

namespace tconv::cpu {

// A tensor [batch, channel, depth, height, width] of which a block of channels is used.
template <typename E>
struct View {
  E* data;  // first channel of the block
  Strides strides;
  std::int64_t channels;

  // Whether neighbouring channels lie closer together than neighbours in a row.
  bool channels_first() const { return std::abs(strides[1]) < std::abs(strides[4]); }
};

enum class RunAxis { row, any };

// The cells of a tile that exist in a tensor, as runs that are equally spaced both in the tensor and along the line.
class Runs {
 public:
  struct Run {
    std::int64_t tensor = 0;  // where it begins
    std::int64_t line = 0;
  };

  // Position c of each axis of the tile, 0 <= c < extent, stands for position base + c of the lattice.
  Runs(const Tiling& tiling, const Tile& tile, const std::array<Lattice, kSpatialAxes>& lattice, const Triple& base,
       const Triple& extent, const Strides& strides, RunAxis axis = RunAxis::any) {
    std::array<Steps, 1 + kSpatialAxes> axes;
    axes[0] = {0, tile.images, tile.image * strides[0], strides[0], tiling.image_step()};
    for (int a = 0; a < kSpatialAxes; ++a) {
      const std::int64_t begin = std::clamp<std::int64_t>(-base[a], 0, extent[a]);
      const std::int64_t end = std::clamp<std::int64_t>(lattice[a].count - base[a], begin, extent[a]);
      const std::int64_t stride = strides[2 + a];
      axes[1 + a] = {begin, end, (lattice[a].first + base[a] * lattice[a].step) * stride, lattice[a].step * stride,
                     tiling.steps()[a]};
    }
    // Runs go along the row, unless it is so short that another axis makes much fewer of them.
    std::size_t along = kSpatialAxes;
    if (axis == RunAxis::any && axes[along].size() < 4) {
      for (std::size_t a = 0; a < kSpatialAxes; ++a) {
        if (axes[a].size() > axes[along].size()) along = a;
      }
    }
    along_row_ = along == kSpatialAxes;
    std::swap(axes[along], axes[kSpatialAxes]);
    count_ = axes[kSpatialAxes].size();
    tensor_step_ = axes[kSpatialAxes].tensor_step;
    line_step_ = axes[kSpatialAxes].line_step;
    if (count_ == 0) return;
    runs_.reserve(std::max<std::int64_t>(axes[0].size() * axes[1].size() * axes[2].size(), 0));
    const Run last = axes[kSpatialAxes].at(axes[kSpatialAxes].begin);
    for (std::int64_t i = axes[0].begin; i < axes[0].end; ++i) {
      for (std::int64_t j = axes[1].begin; j < axes[1].end; ++j) {
        for (std::int64_t k = axes[2].begin; k < axes[2].end; ++k) {
          const Run x = axes[0].at(i);
          const Run y = axes[1].at(j);
          const Run z = axes[2].at(k);
          runs_.push_back({x.tensor + y.tensor + z.tensor + last.tensor, x.line + y.line + z.line + last.line});
        }
      }
    }
  }

  std::int64_t count() const { return count_; }  // cells of a run
  std::int64_t tensor_step() const { return tensor_step_; }
  std::int64_t line_step() const { return line_step_; }
  const std::vector<Run>& all() const { return runs_; }

  // Whether the positions 0 <= p < length of the line lie at equal distances in the tensor, all of them.
  bool is_one_run(std::int64_t length) const {
    if (count_ * static_cast<std::int64_t>(runs_.size()) != length || line_step_ != 1) return false;
    return std::all_of(runs_.begin(), runs_.end(), [this](const Run& run) {
      return run.tensor - runs_.front().tensor == (run.line - runs_.front().line) * tensor_step_;
    });
  }
  bool along_row() const { return along_row_; }

  // The same with nothing between them along the line, and `positions` where they were.
  Runs closed_up(std::vector<std::int64_t>& positions) const {
    Runs closed = *this;
    closed.line_step_ = 1;
    positions.clear();
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      closed.runs_[r].line = static_cast<std::int64_t>(r) * count_;
      for (std::int64_t i = 0; i < count_; ++i) positions.push_back(runs_[r].line + i * line_step_);
    }
    return closed;
  }

 private:
  struct Steps {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t tensor_base = 0;
    std::int64_t tensor_step = 0;
    std::int64_t line_step = 0;

    std::int64_t size() const { return end - begin; }
    Run at(std::int64_t c) const { return {tensor_base + c * tensor_step, c * line_step}; }
  };

  bool along_row_ = true;
  std::int64_t count_ = 0;
  std::int64_t tensor_step_ = 0;
  std::int64_t line_step_ = 0;
  std::vector<Run> runs_;
};

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

// How a packed tile is laid out: elements between channels and between the cells of the line.
struct PackedSteps {
  std::int64_t channel = 0;
  std::int64_t cell = 1;
  // Groups whose channels are interleaved: channel c of group g, group_step further in the tensor, stands at
  // c interleaved + g of a cell.
  std::int64_t interleaved = 1;
  std::int64_t group_step = 0;
};

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
  constexpr std::int64_t kWorthTransposing = 4;  // channels
  if (std::is_same_v<E, T> && steps.cell == 1 && view.strides[1] == 1 && runs.line_step() == 1 &&
      view.channels >= kWorthTransposing) {
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

// Where the source positions of a tile stand along the line.
inline Runs source_runs(const Tiling& tiling, const Tile& tile, const std::array<Lattice, kSpatialAxes>& source,
                        const Strides& strides, RunAxis axis = RunAxis::any) {
  return {tiling, tile, source, tile.origin, tiling.pitch(), strides, axis};
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

// How lattices lie in the rows of a tensor that they have in common, each a run of every lattice.
struct CommonRows {
  std::int64_t period = 0;
  std::vector<std::int64_t> residues;  // of each lattice, from where the row begins
  std::vector<std::int64_t> counts;
  std::vector<std::int64_t> begins;  // of each row, in the tensor
  std::vector<std::int64_t> lines;   // and along the line

  // Nothing where they have no rows in common.
  static std::optional<CommonRows> of(const std::vector<Runs>& lattices) {
    CommonRows rows;
    rows.period = lattices.front().tensor_step();
    const std::vector<Runs::Run>& first = lattices.front().all();
    if (first.empty()) return {};
    std::int64_t begin = first.front().tensor;
    for (const Runs& runs : lattices) {
      if (!runs.along_row() || runs.tensor_step() != rows.period || runs.line_step() != 1 || runs.count() == 0 ||
          runs.all().size() != first.size()) {
        return {};
      }
      // Rows without gaps between them are as far apart as they are long, which lattices may differ in.
      for (std::size_t r = 0; r < first.size(); ++r) {
        const Runs::Run& run = runs.all()[r];
        const bool common = run.line == first[r].line &&
                            run.tensor - runs.all().front().tensor == first[r].tensor - first.front().tensor;
        if (!common) return {};
      }
      begin = std::min(begin, runs.all().front().tensor);
      rows.counts.push_back(runs.count());
    }
    for (const Runs& runs : lattices) {
      rows.residues.push_back(runs.all().front().tensor - begin);
      if (rows.residues.back() >= rows.period) return {};
    }
    for (const Runs::Run& run : first) {
      rows.begins.push_back(run.tensor - first.front().tensor + begin);
      rows.lines.push_back(run.line);
    }
    return rows;
  }

  std::int64_t extent() const { return period * *std::ranges::max_element(counts); }  // of a row
  template <typename E, typename T>
  TakeApart<E, T> job() const {
    TakeApart<E, T> job;
    job.period = period;
    job.lattices = std::ssize(counts);
    job.residues = residues.data();
    job.counts = counts.data();
    return job;
  }
};

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

// The same as load_alternating for long rows, of which only what lattices hold is transposed.
template <typename T>
bool load_apart_transposed(const View<const T>& view, const std::vector<Runs>& lattices, const PackedSteps& steps,
                           const std::vector<T*>& lines) {
  constexpr std::int64_t kChannels = 16;
  constexpr std::int64_t kCells = 112;    // of a lattice at a time
  constexpr std::int64_t kFewest = 128;   // elements of a row
  constexpr std::int64_t kMostTaken = 4;  // whose lines stay in the L1 cache
  const std::optional<CommonRows> rows = CommonRows::of(lattices);
  if (!rows || rows->extent() < kFewest || std::ssize(lattices) > kMostTaken) return false;
  T taken[kMostTaken * kChannels * kCells];
  T* places[kMostTaken];
  std::int64_t counts[kMostTaken];
  std::int64_t channel_begins[kChannels];
  std::int64_t channel_lines[kChannels];
  const std::int64_t count = std::ssize(lattices);
  for (std::int64_t l = 0; l < count; ++l) places[l] = taken + l * kChannels * kCells;
  TakeApart<T, T> job = rows->job<T, T>();
  job.from_places = channel_begins;
  job.to_places = channel_lines;
  job.lines = places;
  job.counts = counts;
  const std::int64_t longest = *std::ranges::max_element(rows->counts);
  for (std::int64_t first = 0; first < view.channels; first += kChannels) {
    job.rows = std::min(kChannels, view.channels - first);
    for (std::int64_t c = 0; c < job.rows; ++c) {
      channel_begins[c] = (first + c) * view.strides[1];
      channel_lines[c] = c * kCells;
    }
    for (std::size_t row = 0; row < rows->begins.size(); ++row) {
      for (std::int64_t here = 0; here < longest; here += kCells) {
        job.from = view.data + rows->begins[row] + here * rows->period;
        for (std::int64_t l = 0; l < count; ++l) {
          counts[l] = std::clamp<std::int64_t>(rows->counts[l] - here, 0, kCells);
        }
        if (!element_ops<T, T>().take_apart(job)) return false;
        for (std::int64_t l = 0; l < count; ++l) {
          element_ops<T, T>().load_channels(places[l], kCells,
                                            lines[l] + (rows->lines[row] + here) * steps.cell + first, steps.cell,
                                            job.rows, counts[l]);
        }
      }
    }
  }
  return true;
}

// Lattices that alternate along rows of a tensor, line by line of `lines`: their rows are read, and transposed, as one.
// False where they have no rows in common.
template <typename T>
bool load_alternating(const View<const T>& view, const std::vector<Runs>& lattices, const PackedSteps& steps,
                      const std::vector<T*>& lines) {
  if (load_apart_transposed(view, lattices, steps, lines)) return true;
  const std::int64_t step = lattices.front().tensor_step();
  for (const Runs& runs : lattices) {
    if (!runs.along_row() || runs.tensor_step() != step || runs.line_step() != 1 || runs.count() == 0 ||
        runs.all().size() != lattices.front().all().size()) {
      return false;
    }
  }
  constexpr std::int64_t kChannels = 16;
  constexpr std::int64_t kCells = 240;
  T cells[kCells * kChannels];
  for (std::int64_t first = 0; first < view.channels; first += kChannels) {
    const std::int64_t channels = std::min(kChannels, view.channels - first);
    for (std::size_t row = 0; row < lattices.front().all().size(); ++row) {
      std::int64_t begin = lattices.front().all()[row].tensor;
      std::int64_t end = begin;
      for (const Runs& runs : lattices) {
        begin = std::min(begin, runs.all()[row].tensor);
        end = std::max(end, runs.all()[row].tensor + (runs.count() - 1) * step + 1);
      }
      for (std::int64_t here = begin; here < end; here += kCells) {
        const std::int64_t count = std::min(kCells, end - here);
        element_ops<T, T>().load_channels(view.data + first * view.strides[1] + here, view.strides[1], cells, kChannels,
                                          channels, count);
        for (std::size_t l = 0; l < lattices.size(); ++l) {
          const Runs::Run& run = lattices[l].all()[row];
          const std::int64_t from = std::max<std::int64_t>(ceil_div(here - run.tensor, step), 0);
          const std::int64_t to = std::min(ceil_div(here + count - run.tensor, step), lattices[l].count());
          for (std::int64_t i = from; i < to; ++i) {
            const T* const cell = cells + (run.tensor + i * step - here) * kChannels;
            T* const place = lines[l] + (run.line + i) * steps.cell + first;
            if (channels == kChannels) {
              std::copy_n(cell, kChannels, place);
            } else {
              std::copy_n(cell, channels, place);
            }
          }
        }
      }
    }
  }
  return true;
}

// The source of a tile as `lines` [source lattice][plane_size], zero wherever there is no source position.
template <typename E, typename T>
void pack_source(const Tiling& tiling, const Tile& tile, const View<const E>& view, const PackedSteps& steps, T* to) {
  const std::int64_t size = tiling.plane_size();
  const std::size_t alternating = tiling.maps()[2].sources.size();  // lattices of one row
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
    if constexpr (std::is_same_v<E, T>) {
      const bool transposes =
          steps.channel == 1 && steps.interleaved == 1 && view.strides[1] != 1 && view.strides[4] == 1;
      if (alternating > 1 && transposes && load_alternating(view, lattices, steps, places)) continue;
    }
    if (steps.cell == 1 && lattices.front().tensor_step() > 1 && load_apart(view, lattices, steps.channel, places)) {
      continue;
    }
    if (steps.interleaved > 1 && alternating > 1 && load_groups_apart(view, lattices, steps, places)) continue;
    for (std::size_t l = 0; l < alternating; ++l) load_runs(view, lattices[l], steps, places[l]);
  }
}

// The cells of one phase in the tensor that the tile is a tile of.
inline Runs target_runs(const Tiling& tiling, const Tile& tile, const PhaseTile& phase, const Strides& strides,
                        RunAxis axis = RunAxis::any) {
  return {tiling, tile, phase.lattice, tile.begin, tile.count, strides, axis};
}

}  // namespace tconv::cpu
