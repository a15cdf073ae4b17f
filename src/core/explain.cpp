#include "tconv/explain.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>
#include <sstream>

#include "tconv/error.h"
#include "tconv/phases.h"

namespace tconv {
namespace {

constexpr std::array<const char*, kSpatialAxes> kAxisNames = {"depth", "height", "width"};
constexpr std::int64_t kMostRows = 12;        // of a table or lattice
constexpr std::int64_t kMostColumns = 16;     // of a lattice
constexpr std::int64_t kMostTapColumns = 14;  // with more taps than this a table lists them instead
constexpr std::int64_t kMostListedTaps = 8;
constexpr std::int64_t kMostListedPhases = 12;
constexpr std::int64_t kLineWidth = 100;
constexpr const char* kNothing = "·";  // no tap
constexpr const char* kOutside = "–";  // the tap belongs to the phase, but its input lies outside

std::string text_of(std::int64_t value) { return std::to_string(value); }

// Columns that UTF-8 text takes on a terminal; every character used here is one column wide.
std::int64_t columns_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

std::string right(const std::string& text, std::int64_t width) {
  return std::string(static_cast<std::size_t>(std::max<std::int64_t>(0, width - columns_of(text))), ' ') + text;
}

std::string left(const std::string& text, std::int64_t width) {
  return text + std::string(static_cast<std::size_t>(std::max<std::int64_t>(0, width - columns_of(text))), ' ');
}

std::string centered(const std::string& text, std::int64_t width) {
  const std::int64_t before = std::max<std::int64_t>(0, width - columns_of(text)) / 2;
  return left(right(text, columns_of(text) + before), width);
}

std::string repeated(const std::string& text, std::int64_t times) {
  std::string result;
  for (std::int64_t i = 0; i < times; ++i) result += text;
  return result;
}

// "2, 5, 8, …": the first few of `count` values in steps of `step`.
std::string progression(std::int64_t first, std::int64_t step, std::int64_t count, std::int64_t most) {
  std::string text;
  for (std::int64_t i = 0; i < std::min(count, most); ++i) text += (i > 0 ? ", " : "") + text_of(first + i * step);
  if (count == most + 1) return text + ", " + text_of(first + most * step);
  return count > most ? text + ", … " + text_of(first + (count - 1) * step) : text;
}

std::string scaled(double value, const char* unit) {
  constexpr std::array<const char*, 6> kPrefixes = {"", "k", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  while (value >= 1000 && prefix + 1 < kPrefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), prefix == 0 ? "%.0f %s%s" : "%.3g %s%s", value, kPrefixes[prefix], unit);
  return text.data();
}

// The phase and place in it of each of the first outputs of an axis.
struct Place {
  Phase phase;
  std::int64_t index = 0;

  std::int64_t input(std::int64_t t) const { return phase.first_input + index - t * phase.input_step; }
  // Taps whose input exists.
  std::int64_t live_taps(const Axis& axis) const {
    std::int64_t count = 0;
    for (std::int64_t t = 0; t < phase.taps; ++t) count += input(t) >= 0 && input(t) < axis.input ? 1 : 0;
    return count;
  }
};

using Places = std::vector<std::optional<Place>>;

Places first_places(const Axis& axis, std::int64_t count) {
  Places places(static_cast<std::size_t>(std::clamp<std::int64_t>(axis.output(), 0, count)));
  for (const Phase& phase : phases(axis)) {
    for (std::int64_t j = 0; j < phase.outputs; ++j) {
      const std::int64_t output = phase.first_output + j * axis.stride;
      if (output >= static_cast<std::int64_t>(places.size())) break;
      places[static_cast<std::size_t>(output)] = Place{phase, j};
    }
  }
  return places;
}

// Enough outputs to see the edge and two periods of the phases.
std::int64_t telling_outputs(const Axis& axis, std::int64_t least, std::int64_t most) {
  return std::clamp<std::int64_t>(std::max(2 * std::min(axis.stride, most) + 2, std::min(axis.kernel, most) + 1), least,
                                  most);
}

std::string without_trailing_spaces(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\n') result.erase(result.find_last_not_of(' ') + 1);
    result += c;
  }
  return result;
}

std::string output_length(const Axis& axis, const char* name) {
  return "  " + left(name, 7) + "(I-1)·s - p - p' + d·(K-1) + q + 1 = (" + text_of(axis.input) + "-1)·" +
         text_of(axis.stride) + " - " + text_of(axis.pad_begin) + " - " + text_of(axis.pad_end) + " + " +
         text_of(axis.dilation) + "·(" + text_of(axis.kernel) + "-1) + " + text_of(axis.output_padding) +
         " + 1 = " + text_of(axis.output()) + "\n";
}

std::string phase_list(const Axis& axis, const char* name) {
  const std::vector<Phase> all = phases(axis);
  std::int64_t covered = 0;
  for (const Phase& phase : all) covered += phase.outputs;
  const auto count = static_cast<std::int64_t>(all.size());
  std::string text =
      std::string("  ") + name + ": o + " + text_of(axis.pad_begin) + " = " + text_of(axis.stride) + "·i + " +
      text_of(axis.dilation) + "·k; gcd(stride, dilation) = " + text_of(std::gcd(axis.stride, axis.dilation)) + "; " +
      text_of(count) + " of " + text_of(axis.stride) + (axis.stride == 1 ? " phase has taps\n" : " phases have taps\n");
  for (std::int64_t i = 0; i < std::min(count, kMostListedPhases); ++i) {
    const Phase& phase = all[static_cast<std::size_t>(i)];
    text += "    phase " + left(text_of(phase.residue), 4) + "outputs " +
            left(progression(phase.first_output, axis.stride, phase.outputs, 3), 22) + " taps " +
            progression(phase.first_tap, phase.tap_step, phase.taps, kMostListedTaps) + "\n";
  }
  if (count > kMostListedPhases) text += "    … and " + text_of(count - kMostListedPhases) + " more\n";
  if (covered < axis.output())
    text += "    the other " + text_of(axis.output() - covered) + " outputs hold the bias alone\n";
  return text;
}

std::string input_cell(const Axis& axis, std::int64_t input) {
  return input >= 0 && input < axis.input ? "x" + text_of(input) : kOutside;
}

// One axis: rows are outputs, columns are taps, a cell is the input that the tap brings.
std::string tap_table(const Axis& axis, const char* name) {
  const bool by_tap = axis.kernel <= kMostTapColumns;
  const Places places = first_places(axis, telling_outputs(axis, 6, kMostRows));
  std::string text =
      std::string("  ") + name + ": first outputs" +
      (by_tap ? " (rows) and taps (columns); xi: the tap brings input i, " : "; k·xi: tap k brings input i, ") +
      kOutside + ": outside the input\n";
  std::int64_t width = 4;
  for (const auto& place : places) {
    if (place) width = std::max(width, 1 + static_cast<std::int64_t>(text_of(place->input(0)).size()));
  }
  std::string rule = "  ──────────────┼";
  text += "    output  phase │";
  if (by_tap) {
    for (std::int64_t k = 0; k < axis.kernel; ++k) {
      text += centered("k" + text_of(k), width + 1);
      rule += repeated("─", width + 1);
    }
  } else {
    text += " taps";
    rule += repeated("─", 40);
  }
  text += "\n  " + rule + "\n";
  for (std::size_t o = 0; o < places.size(); ++o) {
    const auto& place = places[o];
    text += "  " + right(text_of(static_cast<std::int64_t>(o)), 8) +
            right(place ? text_of(place->phase.residue) : kNothing, 7) + " │";
    if (!place) {
      text += by_tap ? repeated(centered(kNothing, width + 1), axis.kernel) + " bias alone\n" : " bias alone\n";
      continue;
    }
    const Phase& phase = place->phase;
    if (by_tap) {
      std::int64_t t = 0;
      for (std::int64_t k = 0; k < axis.kernel; ++k) {
        const bool ours = t < phase.taps && k == phase.first_tap + t * phase.tap_step;
        text += centered(ours ? input_cell(axis, place->input(t)) : kNothing, width + 1);
        t += ours ? 1 : 0;
      }
    } else {
      for (std::int64_t t = 0; t < std::min(phase.taps, kMostListedTaps); ++t) {
        text += " " + text_of(phase.first_tap + t * phase.tap_step) + "·" + input_cell(axis, place->input(t)) + " ";
      }
      if (phase.taps > kMostListedTaps) text += " …";
    }
    text += "\n";
  }
  if (axis.output() > static_cast<std::int64_t>(places.size())) text += "         …\n";
  return text;
}

std::string short_taps(const std::optional<Place>& place) {
  if (!place) return kNothing;
  const Phase& phase = place->phase;
  const std::int64_t last = phase.first_tap + (phase.taps - 1) * phase.tap_step;
  if (phase.taps > 3) return text_of(phase.first_tap) + ".." + text_of(last);
  std::string text;
  for (std::int64_t t = 0; t < phase.taps; ++t) {
    text += (t > 0 ? "," : "") + text_of(phase.first_tap + t * phase.tap_step);
  }
  return text;
}

// Whether a period of the phases begins at this output: tap 0 always has residue 0.
bool begins_period(const Axis& axis, const std::optional<Place>& place) {
  return axis.stride > 1 && place && place->phase.residue == 0;
}

// Two axes: a cell tells how many taps of each axis reach that output.
std::string lattice(const Axis& rows, const Axis& columns) {
  const Places down = first_places(rows, telling_outputs(rows, 6, kMostRows));
  Places across = first_places(columns, telling_outputs(columns, 12, kMostColumns));
  std::int64_t label = 4;
  for (const auto& place : down) label = std::max(label, columns_of(short_taps(place)));
  std::int64_t cell = 3;
  for (const auto& place : across) cell = std::max(cell, columns_of(short_taps(place)));
  const std::int64_t margin = 2 + 6 + 2 + label + 1;
  const std::int64_t fitting = (kLineWidth - margin) / (cell + 2);
  if (static_cast<std::int64_t>(across.size()) > fitting) across.resize(static_cast<std::size_t>(fitting));

  std::string text = std::string(
                         "  First outputs: height (rows) x width (columns). A cell tells how many taps reach it, "
                         "height x width;\n  ") +
                     kNothing + " is the bias alone. Lines mark where the pattern of the phases begins again.\n\n";
  const auto row = [&](const std::string& first, const std::string& second, const auto& content) {
    text += "  " + right(first, 6) + "  " + left(second, label) + " │";
    for (std::size_t i = 0; i < across.size(); ++i) {
      if (i > 0) text += begins_period(columns, across[i]) ? "│" : " ";
      text += centered(content(i), cell);
    }
    text += "\n";
  };
  const auto rule = [&] {
    text += "  " + repeated("─", 6 + 2 + label + 1) + "┼";
    for (std::size_t i = 0; i < across.size(); ++i) {
      if (i > 0) text += begins_period(columns, across[i]) ? "┼" : "─";
      text += repeated("─", cell);
    }
    text += "\n";
  };
  row("", "", [](std::size_t i) { return text_of(static_cast<std::int64_t>(i)); });
  row("output", "taps", [&](std::size_t i) { return short_taps(across[i]); });
  rule();
  for (std::size_t o = 0; o < down.size(); ++o) {
    if (o > 0 && begins_period(rows, down[o])) rule();
    row(text_of(static_cast<std::int64_t>(o)), short_taps(down[o]), [&](std::size_t i) -> std::string {
      const std::int64_t vertical = down[o] ? down[o]->live_taps(rows) : 0;
      const std::int64_t horizontal = across[i] ? across[i]->live_taps(columns) : 0;
      if (vertical * horizontal == 0) return kNothing;
      return text_of(vertical) + "x" + text_of(horizontal);
    });
  }
  return text;
}

// Words in lines of at most kLineWidth columns, indented, the later ones deeper.
std::string wrapped(const std::string& sentence) {
  std::string text;
  std::string line = " ";
  std::istringstream words(sentence);
  for (std::string word; words >> word;) {
    if (columns_of(line) + 1 + columns_of(word) > kLineWidth) {
      text += line + "\n";
      line = "     ";
    }
    line += " " + word;
  }
  return text + line + "\n";
}

std::string work(const Problem& problem) {
  const double bytes =
      static_cast<double>(element_count(problem.input_sizes()) + element_count(problem.weight_sizes()) +
                          element_count(problem.output_sizes())) *
      static_cast<double>(size_of(problem.dtype));
  double inserted = 1;
  for (const Axis& axis : problem.axes) inserted *= static_cast<double>(axis.stride);
  std::string text = "Work\n  " + scaled(2 * multiply_adds(problem), "FLOP") + ", " + scaled(bytes, "B") +
                     " of input, weight and output";
  if (inserted > 1)
    text += "; multiplying by inserted zeros would take " + scaled(inserted, "") + "times the operations";
  return text + "\n";
}

}  // namespace

std::string explain_phases(const Problem& problem) {
  validate(problem);
  const int first_axis = kSpatialAxes - problem.rank;
  std::string text = to_string(problem) + "\n\nOutput size\n";
  for (int a = first_axis; a < kSpatialAxes; ++a) text += output_length(problem.axes[a], kAxisNames[a]);

  text += "\nPhases: output o receives input i through tap k where o + padding = stride·i + dilation·k\n";
  double all = 1;
  double tapped = 1;
  for (int a = first_axis; a < kSpatialAxes; ++a) {
    text += phase_list(problem.axes[a], kAxisNames[a]);
    all *= static_cast<double>(problem.axes[a].stride);
    tapped *= static_cast<double>(phases(problem.axes[a]).size());
  }
  if (problem.rank > 1 && tapped < all) {
    text += "  together: " + scaled(tapped, "") + "of " + scaled(all, "") +
            "phases have taps, the others hold the bias alone\n";
  }
  if (problem.direction == Direction::grad_input || problem.direction == Direction::grad_weight) {
    text += std::string("  ") + name_of(problem.direction) + " reads the same map the other way\n";
  }
  text += "\n";
  if (problem.rank == 2) {
    text += lattice(problem.axes[1], problem.axes[2]);
  } else {
    for (int a = first_axis; a < kSpatialAxes; ++a) {
      text += (a > first_axis ? "\n" : "") + tap_table(problem.axes[a], kAxisNames[a]);
    }
  }
  return without_trailing_spaces(text + "\n" + work(problem));
}

std::string explain(const Problem& problem, const Device& device) {
  std::string text = explain_phases(problem) + "\nPlan\n";
  std::shared_ptr<const Plan> chosen;
  try {
    chosen = plan(problem, device);
  } catch (const Error& error) {
    return text + wrapped(std::string("none: ") + error.what());
  }
  // The problem itself stands at the top already.
  text += wrapped(to_string(*chosen).substr(to_string(problem).size() + 1));
  for (const Declined& declined : chosen->declined) text += wrapped("not " + declined.family + ": " + declined.reason);
  return text;
}

}  // namespace tconv
