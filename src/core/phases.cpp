#include "tconv/phases.h"

#include <algorithm>
#include <numeric>

namespace tconv {
namespace {

// Floor of a / b for b > 0.
std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }

}  // namespace

TapSite site_of(const Axis& axis, std::int64_t tap) {
  const std::int64_t reach = tap * axis.dilation;
  return {reach % axis.stride, -(reach / axis.stride)};
}

std::vector<Phase> phases(const Axis& axis) {
  const std::int64_t length = axis.output();
  const std::int64_t common = std::gcd(axis.stride, axis.dilation);
  const std::int64_t tap_step = axis.stride / common;
  std::vector<Phase> result;
  // The first tap_step taps have different residues, and every later tap repeats the residue of one of them.
  for (std::int64_t k = 0; k < std::min(axis.kernel, tap_step); ++k) {
    const TapSite site = site_of(axis, k);
    Phase phase;
    phase.residue = site.residue;
    phase.first_output = site.residue - axis.pad_begin % axis.stride;
    if (phase.first_output < 0) phase.first_output += axis.stride;
    if (phase.first_output >= length) continue;
    phase.outputs = (length - 1 - phase.first_output) / axis.stride + 1;
    phase.first_tap = k;
    phase.tap_step = tap_step;
    phase.taps = (axis.kernel - 1 - k) / tap_step + 1;
    phase.first_input = (phase.first_output + axis.pad_begin - site.residue) / axis.stride + site.shift;
    phase.input_step = axis.dilation / common;
    result.push_back(phase);
  }
  std::sort(result.begin(), result.end(), [](const Phase& a, const Phase& b) { return a.residue < b.residue; });
  return result;
}

bool has_empty_phase(const Axis& axis) {
  std::int64_t covered = 0;
  for (const Phase& phase : phases(axis)) covered += phase.outputs;
  return covered < axis.output();
}

Range inputs_reaching_output(const Axis& axis, std::int64_t tap) {
  // 0 <= i stride + offset < output
  const std::int64_t offset = tap * axis.dilation - axis.pad_begin;
  Range range;
  range.begin = std::clamp<std::int64_t>(ceil_div(-offset, axis.stride), 0, axis.input);
  range.end = std::clamp<std::int64_t>(ceil_div(axis.output() - offset, axis.stride), range.begin, axis.input);
  return range;
}

}  // namespace tconv
