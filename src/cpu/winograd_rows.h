// Positions of a tensor, or of a packed line, combined along the fast axes into the lines that are multiplied.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "cpu/packing.h"
#include "cpu/scratch.h"
#include "cpu/winograd_plan.h"

namespace tconv::cpu {

// Cells whose channels lie side by side.
struct CellRows {
  const float* data = nullptr;  // position 0 of every axis
  std::int64_t image_step = 0;
  std::int64_t images = 0;
  Triple step{};    // from one position to the next
  Triple origin{};  // which position stands at 0 of the line; along a fast axis: the first of tile 0
  Triple low{};     // positions low <= position < high exist, others are zero
  Triple high{};

  // Positions of a lattice in a tensor, from image `image` on.
  static CellRows in_tensor(const float* data, const Strides& strides, const std::array<Lattice, kSpatialAxes>& lattice,
                            std::int64_t image, std::int64_t images) {
    CellRows rows{data + image * strides[0], strides[0], images, {}, {}, {}, {}};
    for (int a = 0; a < kSpatialAxes; ++a) {
      rows.data += lattice[a].first * strides[2 + a];
      rows.step[a] = lattice[a].step * strides[2 + a];
      rows.high[a] = lattice[a].count;
    }
    return rows;
  }

  // Positions of a combined line, of one point.
  static CellRows on_line(const float* data, const FastLine& line, std::int64_t cell_step, std::int64_t images) {
    CellRows rows{data + line.lead * cell_step, line.image_step * cell_step, images, {}, {}, {}, line.pitch};
    for (int a = 0; a < kSpatialAxes; ++a) rows.step[a] = line.steps[a] * cell_step;
    return rows;
  }

  // Positions of a packed line, counted from the beginning of the tile.
  static CellRows on_line(const float* data, const Tiling& tiling, std::int64_t cell_step, std::int64_t images) {
    CellRows rows{data, tiling.image_step() * cell_step, images, {}, {}, {}, tiling.pitch()};
    for (int a = 0; a < kSpatialAxes; ++a) rows.step[a] = tiling.steps()[a] * cell_step;
    return rows;
  }
};

// Lines [point][position][channel] of `line`, cells `cell_step` apart, from `inputs` neighbours of each tile; the whole
// line, also beyond the end of a tile that is not full: the end of one row is the beginning of the next.
void combine_rows(void (*combine)(const Combine<float>&), int inputs, const CellRows& rows, const FastAxis& fast,
                  const FastLine& line, std::int64_t channels, std::int64_t cell_step, float* to);

// The same along all fast axes. `rows` are those along the first; along the second, tile 0 begins at `second_origin`.
// `half` holds what is combined along the first of two axes.
using CombineTable = std::array<void (*)(const Combine<float>&), kSchemes.size()>;
void combine_along_all(const CombineTable& combine, int Scheme::* inputs, const CellRows& rows, const FastAxes& fast,
                       const std::vector<FastLine>& lines, std::int64_t second_origin, std::int64_t channels,
                       std::int64_t cell_step, Scratch<float>& half, float* to);

// The source of a tile as lines [source lattice][point][position][channel].
template <typename E>
class CombinedSource {
 public:
  CombinedSource(const Tiling& tiling, const FastAxes& fast, const std::vector<FastLine>& lines, const Strides& strides,
                 std::int64_t most_channels, bool whole_vectors)
      : fast_(fast),
        lines_(lines),
        strides_(strides),
        in_place_(std::is_same_v<E, float> && strides[1] == 1 && whole_vectors) {
    for (const auto& triple : tiling.sources()) {
      auto& bases = bases_.emplace_back();
      for (const FastAxis& each : fast) {
        const auto& sources = tiling.maps()[each.axis].sources;
        const auto same = [&](const Lattice& lattice) { return lattice.first == triple[each.axis].first; };
        bases.push_back(each.bases[std::ranges::find_if(sources, same) - sources.begin()] -
                        tiling.maps()[each.axis].lowest);
      }
    }
    // Like the lines, an odd number of cache lines.
    cell_step_ = round_up(most_channels, kMostLanes);
    cell_step_ += cell_step_ / kMostLanes % 2 == 0 ? kMostLanes : 0;
  }

  std::int64_t cell_step() const { return cell_step_; }
  std::int64_t line_size() const { return lines_.back().size * cell_step_; }   // of a point
  std::int64_t source_size() const { return points_of(fast_) * line_size(); }  // of a source lattice
  std::int64_t size() const { return static_cast<std::int64_t>(bases_.size()) * source_size(); }

  // `channels` of them from `first` on as packed lines, where they are not read in place.
  const float* pack(const Tiling& tiling, const Tile& tile, const E* first, std::int64_t channels,
                    Scratch<float>& memory) const {
    if (in_place_) return nullptr;
    float* const lines = memory.get(static_cast<std::int64_t>(bases_.size()) * tiling.plane_size() * cell_step_);
    pack_source(tiling, tile, View<const E>{first, strides_, channels}, PackedSteps{1, cell_step_}, lines);
    return lines + tiling.lead() * cell_step_;
  }

  // The same channels, `packed` or where they are, of tiles that begin so much later along each axis. `half` holds what
  // is combined along the first of two axes.
  void combine(const Tiling& tiling, const Tile& tile, const E* first, const float* packed, std::int64_t channels,
               const std::vector<std::int64_t>& starts, Scratch<float>& half, float* to) const {
    const std::int64_t plane = tiling.plane_size() * cell_step_;
    const std::int64_t count = in_place_ ? channels : round_up(channels, kMostLanes);
    for (std::size_t s = 0; s < bases_.size(); ++s) {
      CellRows rows;
      if constexpr (std::is_same_v<E, float>) {
        if (in_place_) {
          rows = CellRows::in_tensor(first, strides_, tiling.sources()[s], tile.image, tile.images);
          rows.origin = tile.origin;
        }
      }
      if (!in_place_) {
        rows = CellRows::on_line(packed + static_cast<std::int64_t>(s) * plane, tiling, cell_step_, tile.images);
      }
      rows.origin[fast_[0].axis] += bases_[s][0] + starts[0];
      combine_along_all(winograd_ops().source, &Scheme::points, rows, fast_, lines_, bases_[s].back() + starts.back(),
                        count, cell_step_, half, to + static_cast<std::int64_t>(s) * source_size());
    }
  }

 private:
  FastAxes fast_;
  std::vector<FastLine> lines_;
  Strides strides_;
  bool in_place_ = false;
  std::int64_t cell_step_ = 1;
  std::vector<std::vector<std::int64_t>> bases_;  // [source lattice][fast axis], from the first position of a line on
};

}  // namespace tconv::cpu
