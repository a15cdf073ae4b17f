// Lattices that alternate along rows of a tensor, whose channels become innermost: rows are read, and transposed, as
// one, in the order of memory, and every cell goes to where its lattice has it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cpu/rows_apart_simd.h"
#include "cpu/runs.h"

namespace tconv::cpu {

template <typename T>
class AlternatingRows {
 public:
  // The rows of some lattices, each with a line of its own. All lattices that are added lie alike along their rows.
  // False, and nothing is added, where these have no rows in common.
  bool add(const std::vector<Runs>& lattices, std::int64_t cell_step, const std::vector<T*>& lines) {
    const std::vector<Runs::Run>& first = lattices.front().all();
    std::int64_t begin = 0;  // of a row, from its first cell of the first lattice
    std::int64_t end = 0;
    for (const Runs& runs : lattices) {
      const std::vector<Runs::Run>& all = runs.all();
      if (!runs.along_row() || runs.count() == 0 || all.empty() || all.size() != first.size()) return false;
      const std::int64_t tensor = all[0].tensor - first[0].tensor;
      for (std::size_t r = 0; r < all.size(); ++r) {
        if (all[r].tensor - first[r].tensor != tensor) return false;
      }
      begin = std::min(begin, tensor);
      end = std::max(end, tensor + (runs.count() - 1) * runs.tensor_step() + 1);
    }
    std::vector<std::int32_t> of(end - begin, RowsApart<T>::kNobody);
    std::vector<std::int64_t> places(end - begin);
    for (std::size_t l = 0; l < lattices.size(); ++l) {
      const Runs& runs = lattices[l];
      const std::int64_t place = runs.all()[0].tensor - first[0].tensor - begin;
      for (std::int64_t i = 0; i < runs.count(); ++i) {
        of[place + i * runs.tensor_step()] = static_cast<std::int32_t>(l);
        places[place + i * runs.tensor_step()] = i * runs.line_step() * cell_step;
      }
    }
    if (of_.empty()) {
      to_ = lines[0];
      of_ = std::move(of);
      places_ = std::move(places);
      lattices_ = lattices.size();
    } else if (of != of_ || places != places_) {
      return false;
    }
    Rows& rows = rows_.emplace_back();
    for (std::size_t r = 0; r < first.size(); ++r) {
      rows.begins.push_back(first[r].tensor + begin);
      // Rows of lattices of which one is longer may lie at distances of their own along the line.
      for (std::size_t l = 0; l < lattices.size(); ++l) {
        rows.lines.push_back(lines[l] - to_ + lattices[l].all()[r].line * cell_step);
      }
    }
    return true;
  }

  void load(const View<const T>& view) {
    if (rows_.empty()) return;
    // Rows of lattices that alternate in height, too, in turn.
    std::vector<std::int64_t> begins;
    std::vector<std::int64_t> lines;
    std::size_t most = 0;
    for (const Rows& rows : rows_) most = std::max(most, rows.begins.size());
    for (std::size_t r = 0; r < most; ++r) {
      for (const Rows& rows : rows_) {
        if (r >= rows.begins.size()) continue;
        begins.push_back(rows.begins[r]);
        for (std::size_t l = 0; l < lattices_; ++l) lines.push_back(rows.lines[r * lattices_ + l]);
      }
    }
    RowsApart<T> job;
    job.from = view.data;
    job.channel_step = view.strides[1];
    job.channels = view.channels;
    job.begins = begins.data();
    job.lines = lines.data();
    job.rows = std::ssize(begins);
    job.lattices = static_cast<std::int64_t>(lattices_);
    job.of = of_.data();
    job.places = places_.data();
    job.length = std::ssize(places_);
    job.to = to_;
    rows_apart_ops<T>().transpose(job);
  }

 private:
  struct Rows {
    std::vector<std::int64_t> begins;  // of each, in the tensor
    std::vector<std::int64_t> lines;   // [row][lattice], from to_ on
  };

  T* to_ = nullptr;
  std::size_t lattices_ = 0;
  std::vector<Rows> rows_;        // of each time that lattices were added
  std::vector<std::int32_t> of_;  // of each position of a row: its lattice, and the place on the line
  std::vector<std::int64_t> places_;
};

// The lattices of one row. False: not done.
template <typename T>
bool load_alternating(const View<const T>& view, const std::vector<Runs>& lattices, const PackedSteps& steps,
                      const std::vector<T*>& lines) {
  AlternatingRows<T> rows;
  if (!rows.add(lattices, steps.cell, lines)) return false;
  rows.load(view);
  return true;
}

}  // namespace tconv::cpu
