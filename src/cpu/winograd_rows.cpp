#include "cpu/winograd_rows.h"

#include <algorithm>
#include <array>

namespace tconv::cpu {

void combine_rows(void (*combine)(const Combine<float>&), int inputs, const CellRows& rows, const FastAxis& fast,
                  const FastLine& line, std::int64_t channels, std::int64_t cell_step, float* to) {
  static constexpr std::array<float, 512> kZeros{};
  const Scheme& scheme = kSchemes[fast.scheme];
  const int axis = fast.axis;
  const auto exists = [&](int a, std::int64_t position) { return position >= rows.low[a] && position < rows.high[a]; };
  const auto at = [&](int point, std::int64_t position) {
    return to + (point * line.size + line.lead + position) * cell_step;
  };
  const auto clear = [&](std::int64_t position, std::int64_t count) {
    for (int point = 0; point < scheme.points; ++point) std::fill_n(at(point, position), count * cell_step, 0.0F);
  };
  clear(-line.lead, line.lead);
  // Cells from `low` to `high` of a row exist; where the width is the fast axis, tiles are looked at one by one.
  std::int64_t low = 0;
  std::int64_t high = line.pitch[2];
  if (axis != 2) {
    low = std::clamp<std::int64_t>(rows.low[2] - rows.origin[2], 0, high);
    high = std::clamp<std::int64_t>(rows.high[2] - rows.origin[2], low, high);
  }
  Combine<float> job;
  job.to_step = cell_step;
  job.count = channels;
  const std::int64_t step = (axis == 2 ? scheme.outputs : 1) * rows.step[2];
  for (std::int64_t image = 0; image < rows.images; ++image) {
    for (std::int64_t d = 0; d < line.pitch[0]; ++d) {
      for (std::int64_t h = 0; h < line.pitch[1]; ++h) {
        const std::int64_t place = image * line.image_step + d * line.steps[0] + h * line.steps[1];
        const Triple cell = {d, h, 0};
        bool any = low < high;
        const float* from = rows.data + image * rows.image_step;
        for (int a = 0; a < 2; ++a) {
          if (a == axis) continue;
          any = any && exists(a, rows.origin[a] + cell[a]);
          from += (rows.origin[a] + cell[a]) * rows.step[a];
        }
        if (!any) {
          clear(place, line.pitch[2]);
          continue;
        }
        clear(place, low);
        clear(place + high, line.pitch[2] - high);
        if (axis != 2) from += (rows.origin[2] + low) * rows.step[2];
        job.cells = high - low;
        for (std::int64_t w = low; w < high; w += job.cells) {
          const std::int64_t first = rows.origin[axis] + (axis == 2 ? w : cell[axis]) * scheme.outputs;
          if (axis == 2) {  // tiles that exist as a whole, or one that does not
            const std::int64_t whole = (rows.high[2] - first - inputs) / scheme.outputs + 1;
            job.cells = exists(2, first) && exists(2, first + inputs - 1) ? std::min(whole, high - w) : 1;
          }
          for (int i = 0; i < inputs; ++i) {
            const bool real = exists(axis, first + i);
            job.from[i] = real ? from + (first + i) * rows.step[axis] : kZeros.data();
            job.from_steps[i] = real ? step : 0;
          }
          for (int point = 0; point < scheme.points; ++point) job.to[point] = at(point, place + w);
          combine(job);
        }
      }
    }
  }
}

void combine_along_all(const CombineTable& combine, int Scheme::* inputs, const CellRows& rows, const FastAxes& fast,
                       const std::vector<FastLine>& lines, std::int64_t second_origin, std::int64_t channels,
                       std::int64_t cell_step, Scratch<float>& half, float* to) {
  const Scheme& scheme = kSchemes[fast[0].scheme];
  if (fast.size() == 1) {
    combine_rows(combine[fast[0].scheme], scheme.*inputs, rows, fast[0], lines[0], channels, cell_step, to);
    return;
  }
  const std::int64_t half_size = lines[0].size * cell_step;  // of a point
  float* const points = half.get(scheme.points * half_size);
  combine_rows(combine[fast[0].scheme], scheme.*inputs, rows, fast[0], lines[0], channels, cell_step, points);
  const Scheme& second = kSchemes[fast[1].scheme];
  for (int point = 0; point < scheme.points; ++point) {
    CellRows half_rows = CellRows::on_line(points + point * half_size, lines[0], cell_step, rows.images);
    half_rows.origin[fast[1].axis] = second_origin;
    combine_rows(combine[fast[1].scheme], second.*inputs, half_rows, fast[1], lines[1], channels, cell_step,
                 to + lines[1].size * cell_step * second.points * point);
  }
}

}  // namespace tconv::cpu
