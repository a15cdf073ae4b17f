#include "cpu/pieces.h"

#include <algorithm>
#include <optional>

#include "cpu/tile.h"

namespace tconv::cpu {
namespace {

// The outputs from `first` up to `last` of an axis, with the inputs that reach them; nothing if there are none.
struct Cut {
  Axis axis;
  std::int64_t first_input;
};
std::optional<Cut> cut(const Axis& axis, std::int64_t first, std::int64_t last) {
  const std::int64_t reach = axis.dilation * (axis.kernel - 1);
  const std::int64_t begin = std::max<std::int64_t>(ceil_div(first + axis.pad_begin - reach, axis.stride), 0);
  const std::int64_t end = std::min((last - 1 + axis.pad_begin) / axis.stride + 1, axis.input);
  if (end <= begin) return {};
  Axis piece = axis;
  piece.input = end - begin;
  piece.pad_begin = first + axis.pad_begin - begin * axis.stride;
  piece.pad_end = 0;
  piece.output_padding = 0;
  const std::int64_t beyond = piece.output() - (last - first);
  piece.pad_end = std::max<std::int64_t>(beyond, 0);
  piece.output_padding = std::max<std::int64_t>(-beyond, 0);
  if (piece.pad_begin < 0) return {};
  return Cut{piece, begin};
}

}  // namespace

std::vector<PieceOfProblem> pieces_of(const Problem& problem, std::int64_t wanted, std::int64_t fewest) {
  const Axis& width = problem.axes[2];
  const std::int64_t images = std::min(problem.batch, wanted);
  const std::int64_t most = std::max<std::int64_t>(width.input / fewest, 1);
  const std::int64_t of_row = std::clamp<std::int64_t>(ceil_div(wanted, images), 1, most);
  std::vector<PieceOfProblem> pieces;
  for (std::int64_t i = 0; i < images; ++i) {
    const std::int64_t image = problem.batch * i / images;
    for (std::int64_t r = 0; r < of_row; ++r) {
      const std::int64_t first = width.output() * r / of_row;
      const std::optional<Cut> along = cut(width, first, width.output() * (r + 1) / of_row);
      if (!along) return {{problem, 0, 0}};
      PieceOfProblem piece{problem, image * problem.input_strides[0] + along->first_input * problem.input_strides[4],
                           image * problem.output_strides[0] + first * problem.output_strides[4]};
      piece.problem.batch = problem.batch * (i + 1) / images - image;
      piece.problem.axes[2] = along->axis;
      pieces.push_back(piece);
    }
  }
  return pieces;
}

}  // namespace tconv::cpu
