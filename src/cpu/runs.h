// The cells of a tile in a tensor, and where they stand along its packed line.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
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
    if (!runs_.empty() && runs_.front().line != 0) return false;
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

// How a packed tile is laid out: elements between channels and between the cells of the line.
struct PackedSteps {
  std::int64_t channel = 0;
  std::int64_t cell = 1;
  // Groups whose channels are interleaved: channel c of group g, group_step further in the tensor, stands at
  // c interleaved + g of a cell.
  std::int64_t interleaved = 1;
  std::int64_t group_step = 0;
};

// Where the source positions of a tile stand along the line.
inline Runs source_runs(const Tiling& tiling, const Tile& tile, const std::array<Lattice, kSpatialAxes>& source,
                        const Strides& strides, RunAxis axis = RunAxis::any) {
  return {tiling, tile, source, tile.origin, tiling.pitch(), strides, axis};
}

// The cells of one phase in the tensor that the tile is a tile of.
inline Runs target_runs(const Tiling& tiling, const Tile& tile, const PhaseTile& phase, const Strides& strides,
                        RunAxis axis = RunAxis::any) {
  return {tiling, tile, phase.lattice, tile.begin, tile.count, strides, axis};
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

}  // namespace tconv::cpu
