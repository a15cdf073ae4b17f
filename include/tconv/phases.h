// The phase decomposition of one axis: the heart of the library.
//
// Output o receives tap k from input i exactly when  o + pad_begin = i stride + k dilation.  All outputs with the same
// residue (o + pad_begin) mod stride see the same taps, so each residue class (a phase) is a dense correlation of step
// one. Kernels that restate this arithmetic for their own tiles are tested against it.
#pragma once

#include <cstdint>
#include <vector>

#include "tconv/problem.h"

namespace tconv {

// With j counting the outputs of the phase and t its taps:
//   output  first_output + j stride     0 <= j < outputs
//   tap     first_tap + t tap_step      0 <= t < taps
//   input   first_input + j - t input_step   (outside [0, input): contributes nothing)
struct Phase {
  std::int64_t residue = 0;
  std::int64_t first_output = 0;
  std::int64_t outputs = 0;
  std::int64_t first_tap = 0;
  std::int64_t tap_step = 1;
  std::int64_t taps = 0;
  std::int64_t first_input = 0;
  std::int64_t input_step = 1;

  bool operator==(const Phase&) const = default;
};

// The phases that have at least one output and one tap, by rising residue: at most `kernel` of them, however large the
// stride. Outputs in no phase hold the bias alone.
std::vector<Phase> phases(const Axis& axis);

// Whether some output of the axis lies in no phase.
bool has_empty_phase(const Axis& axis);

// Where one tap stands: it serves the outputs of one residue and reads the input `shift` cells away from the output's
// own cell (o + pad_begin) / stride.
struct TapSite {
  std::int64_t residue = 0;
  std::int64_t shift = 0;  // <= 0

  bool operator==(const TapSite&) const = default;
};
TapSite site_of(const Axis& axis, std::int64_t tap);

// Half-open range of an index.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end > begin ? end - begin : 0; }
  bool operator==(const Range&) const = default;
};

// The inputs i for which tap k of input i lands inside the output: the same map read from the input's side, which the
// gradients use (input i sends tap k to output i stride + k dilation - pad_begin).
Range inputs_reaching_output(const Axis& axis, std::int64_t tap);

}  // namespace tconv
