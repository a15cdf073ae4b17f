// Every way to compute a call, timed: what `python -m tconv bench --exhaustive` shows.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <sstream>
#include <string>

#include "execute.h"
#include "geometry.h"
#include "ops.h"
#include "words.h"

namespace tconv::front {
namespace {

using at::IntArrayRef;

// The candidates of one direction timed against each other: a line for each, its fields separated by tabs.
// `grad_output` is given for the gradients.
std::string race_lines(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                       const OptionalTensor& grad_output, IntArrayRef stride, IntArrayRef padding,
                       IntArrayRef output_padding, std::int64_t groups, IntArrayRef dilation,
                       const std::string& direction_name, std::int64_t cuts) {
  check_types(input, weight);
  const Geometry<std::int64_t> g =
      geometry_of<std::int64_t>(input.sizes(), weight.sizes(), stride, padding, output_padding, groups, dilation);
  const auto empty = [format = memory_format_of(input, weight)](const Tensor& like, IntArrayRef sizes) {
    return at::empty(sizes, like.options().memory_format(format));
  };
  const Direction direction = parse_direction(direction_name);
  TORCH_CHECK(direction == Direction::forward || grad_output.has_value(), "expected grad_output for ", direction_name);
  Operands operands{input, weight, {}, grad_output.value_or(Tensor())};
  switch (direction) {
    case Direction::forward:
      operands.bias = bias.value_or(Tensor());
      operands.output = empty(input, g.output_shape());
      break;
    case Direction::grad_input: operands.input = empty(input, input.sizes()); break;
    case Direction::grad_weight: operands.weight = empty(weight, weight.sizes()); break;
    case Direction::grad_bias: operands.bias = at::empty({g.out_channels}, input.options()); break;
  }
  const Race raced = race_of(g, direction, operands, static_cast<int>(cuts));
  std::ostringstream lines;
  for (std::size_t i = 0; i < raced.entries.size(); ++i) {
    const RaceEntry& entry = raced.entries[i];
    lines << entry.name << '\t' << entry.seconds << '\t' << entry.runs << '\t' << entry.expected_seconds << '\t'
          << (i == raced.planned ? "planned" : "") << '\t' << entry.description << '\t'
          << entry.failure.substr(0, entry.failure.find('\n')) << '\n';
  }
  return lines.str();
}

TORCH_LIBRARY_IMPL(tconv, CPU, m) { m.impl("_race", TORCH_FN(race_lines)); }
TORCH_LIBRARY_IMPL(tconv, CUDA, m) { m.impl("_race", TORCH_FN(race_lines)); }

}  // namespace
}  // namespace tconv::front
