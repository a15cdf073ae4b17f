// benchmarks/problems.json for tests: one problem per line, so that a few searches replace a JSON parser.
#pragma once

#include <charconv>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tconv/problem.h"

namespace tconv::test {

struct NamedProblem {
  std::string name;
  Problem problem;  // forward, with the strides that the model passes
};

// The text behind "key": up to the end of the number, list or string; empty where the line has no such key.
inline std::string_view field(std::string_view line, const std::string& key) {
  const std::string label = "\"" + key + "\": ";
  const std::size_t at = line.find(label);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = line.substr(at + label.size());
  if (rest.starts_with('[')) return rest.substr(1, rest.find(']') - 1);
  if (rest.starts_with('"')) return rest.substr(1, rest.find('"', 1) - 1);
  return rest.substr(0, rest.find_first_of(",}"));
}

inline std::vector<std::int64_t> numbers(std::string_view line, const std::string& key) {
  std::vector<std::int64_t> values;
  const std::string_view text = field(line, key);
  for (std::size_t at = 0; at < text.size();) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), value);
    if (error != std::errc{}) throw std::runtime_error("no number in the problem file at: " + std::string(text));
    values.push_back(value);
    at = text.find_first_not_of(", ", static_cast<std::size_t>(end - text.data()));
  }
  if (values.empty()) throw std::runtime_error("the problem file lacks " + key + " in: " + std::string(line));
  return values;
}

inline NamedProblem parse_problem(std::string_view line) {
  NamedProblem named{std::string(field(line, "name")), {}};
  Problem& problem = named.problem;
  problem.batch = numbers(line, "batch")[0];
  problem.in_channels = numbers(line, "in_channels")[0];
  problem.out_channels = numbers(line, "out_channels")[0];
  problem.groups = numbers(line, "groups")[0];
  const std::vector<std::int64_t> input = numbers(line, "input");
  const std::vector<std::int64_t> output = numbers(line, "output");
  problem.rank = static_cast<int>(input.size());
  for (std::size_t a = 0; a < input.size(); ++a) {
    Axis& axis = problem.axes[kSpatialAxes - input.size() + a];
    axis = {.input = input[a],
            .kernel = numbers(line, "kernel").at(a),
            .stride = numbers(line, "stride").at(a),
            .dilation = numbers(line, "dilation").at(a),
            .pad_begin = numbers(line, "padding").at(a),
            .pad_end = numbers(line, "padding").at(a),
            .output_padding = numbers(line, "output_padding").at(a)};
    if (axis.output() != output.at(a)) throw std::runtime_error(named.name + ": another output size than the file's");
  }
  set_contiguous(problem);
  if (field(line, "input_strides") == "channels_last") {
    problem.input_strides = channels_last_strides(problem.input_sizes());
  }
  if (field(line, "weight_strides") == "transposed") {
    const Sizes sizes = problem.weight_sizes();
    const std::int64_t taps = sizes[2] * sizes[3] * sizes[4];
    problem.weight_strides[0] = taps;
    problem.weight_strides[1] = sizes[0] * taps;
  }
  if (field(line, "weight_strides") == "expanded") problem.weight_strides[0] = 0;
  return named;
}

inline std::vector<NamedProblem> problem_file() {
  std::ifstream file(std::string(TCONV_SOURCE_DIR) + "/benchmarks/problems.json");
  if (!file) throw std::runtime_error("benchmarks/problems.json cannot be read");
  std::vector<NamedProblem> problems;
  for (std::string line; std::getline(file, line);) {
    if (line.find("{\"name\": ") != std::string::npos) problems.push_back(parse_problem(line));
  }
  return problems;
}

}  // namespace tconv::test
