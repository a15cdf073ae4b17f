#include "tconv/explain.h"

#include <gtest/gtest.h>

#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tconv/error.h"
#include "tconv/info.h"

namespace tconv {
namespace {

Problem problem_of(const std::vector<Axis>& axes, std::int64_t batch = 1, std::int64_t channels = 1) {
  Problem problem;
  problem.rank = static_cast<int>(axes.size());
  problem.batch = batch;
  problem.in_channels = channels;
  problem.out_channels = channels;
  for (std::size_t a = 0; a < axes.size(); ++a) problem.axes[kSpatialAxes - axes.size() + a] = axes[a];
  set_contiguous(problem);
  return problem;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::int64_t columns_of(const std::string& line) {
  std::int64_t columns = 0;
  for (const char c : line) columns += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  return columns;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The words of a table's row after its bar.
std::vector<std::string> cells_of(const std::string& line) {
  const std::string bar = "│";
  std::istringstream stream(line.substr(line.find(bar) + bar.size()));
  std::vector<std::string> cells;
  for (std::string cell; stream >> cell;) cells.push_back(cell);
  return cells;
}

TEST(Explain, FillsInTheOutputLength) {
  const std::string text = explain_phases(
      problem_of({Axis{.input = 128, .kernel = 3, .stride = 2, .dilation = 2, .pad_begin = 1, .pad_end = 1}}));
  EXPECT_TRUE(contains(text, "(128-1)·2 - 1 - 1 + 2·(3-1) + 0 + 1 = 257")) << text;
}

// The table is drawn from the phases; here it is compared with the definition of the operation.
TEST(Explain, TableAgreesWithBruteForce) {
  std::mt19937 random(std::random_device{}());
  const auto pick = [&random](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int trial = 0; trial < 300; ++trial) {
    Axis axis{.input = pick(1, 9), .kernel = pick(1, 6), .stride = pick(1, 5), .dilation = pick(1, 4)};
    axis.pad_begin = axis.pad_end = pick(0, 4);
    axis.output_padding = pick(0, std::max(axis.stride, axis.dilation) - 1);
    if (axis.output() < 1) continue;
    const Problem problem = problem_of({axis});
    std::int64_t rows = 0;
    bool in_table = false;
    for (const std::string& line : lines_of(explain_phases(problem))) {
      if (contains(line, "┼")) {
        in_table = true;
        continue;
      }
      if (!in_table || !contains(line, "│")) continue;
      const std::vector<std::string> cells = cells_of(line);
      ASSERT_GE(static_cast<std::int64_t>(cells.size()), axis.kernel) << line;
      for (std::int64_t k = 0; k < axis.kernel; ++k) {
        const std::int64_t reach = rows + axis.pad_begin - k * axis.dilation;
        std::string expected = "·";
        if (reach % axis.stride == 0) {
          const std::int64_t input = reach / axis.stride;
          expected = input >= 0 && input < axis.input ? "x" + std::to_string(input) : "–";
        }
        EXPECT_EQ(cells[static_cast<std::size_t>(k)], expected) << "output " << rows << " tap " << k << "\n"
                                                                << explain_phases(problem);
      }
      ++rows;
    }
    EXPECT_LE(rows, axis.output()) << to_string(problem);
    EXPECT_GE(rows, std::min<std::int64_t>(axis.output(), 6)) << to_string(problem);
  }
}

TEST(Explain, LatticeCountsTapsOfBothAxes) {
  const Axis axis{.input = 64, .kernel = 3, .stride = 5, .dilation = 2, .pad_begin = 1, .pad_end = 1};
  const std::string text = explain_phases(problem_of({axis, axis}));
  EXPECT_TRUE(contains(text, "9 of 25 phases have taps")) << text;
  EXPECT_TRUE(contains(text, "1x1")) << text;
  // Output 0 has residue 1, which no tap reaches.
  EXPECT_TRUE(contains(text, "0  ·    │ ·   ·   ·   · │")) << text;
}

TEST(Explain, StaysReadableAtAnySize) {
  const std::vector<Problem> problems = {
      problem_of({Axis{.input = 862, .kernel = 1024, .stride = 256}}, 1, 80),
      problem_of({Axis{.input = 1000000, .kernel = 3, .stride = 1000000, .dilation = 7}}),
      problem_of(
          {Axis{.input = 1, .kernel = 1}, Axis{.input = 1, .kernel = 4, .stride = 2, .pad_begin = 1, .pad_end = 1}}),
      problem_of({Axis{.input = 512, .kernel = 31}, Axis{.input = 512, .kernel = 127, .stride = 3}}, 8, 64),
      problem_of({Axis{.input = 12, .kernel = 3, .stride = 2}, Axis{.input = 24, .kernel = 5, .stride = 2},
                  Axis{.input = 48, .kernel = 7, .stride = 2}}),
  };
  for (const Problem& problem : problems) {
    const std::vector<std::string> lines = lines_of(explain_phases(problem));
    EXPECT_LT(lines.size(), 90U);
    for (const std::string& line : lines) {
      EXPECT_LE(columns_of(line), 125) << line;
      EXPECT_FALSE(line.ends_with(' ')) << '"' << line << '"';
    }
  }
}

TEST(Explain, TakesEmptyProblems) {
  EXPECT_NO_THROW(explain_phases(problem_of({Axis{.input = 4, .kernel = 3, .stride = 2}}, 0)));
  const Axis empty{.input = 1, .kernel = 2, .pad_begin = 1, .pad_end = 1};
  ASSERT_EQ(empty.output(), 0);
  EXPECT_NO_THROW(explain_phases(problem_of({empty, empty})));
  EXPECT_NO_THROW(explain_phases(problem_of({empty})));
}

TEST(Explain, RefusesWhatIsNoProblem) {
  Problem problem = problem_of({Axis{.input = 4, .kernel = 3}});
  problem.axes[2].stride = 0;
  EXPECT_THROW(explain_phases(problem), Error);
}

// Text with every run of blanks as one, so that wrapped lines can be compared.
std::string unwrapped(const std::string& text) {
  std::string result;
  std::istringstream words(text);
  for (std::string word; words >> word;) result += word + " ";
  return result;
}

TEST(Explain, NamesThePlanAndWhoDeclined) {
  const Problem problem = problem_of({Axis{.input = 4, .kernel = 3, .stride = 2}}, 2, 8);
  const std::string text = explain(problem);
  for (const std::string& line : lines_of(text)) EXPECT_LE(columns_of(line), 125) << line;
  const auto chosen = plan(problem);
  const std::string words = unwrapped(text.substr(text.find("\nPlan\n")));
  EXPECT_TRUE(unwrapped(to_string(problem) + " " + words.substr(5)).starts_with(unwrapped(to_string(*chosen)))) << text;
  EXPECT_EQ(chosen->declined.size() + 1, families(Backend::cpu).size());
  for (const Declined& declined : chosen->declined) {
    EXPECT_TRUE(contains(words, unwrapped("not " + declined.family + ": " + declined.reason))) << text;
  }
}

TEST(Info, TellsVersionAndInstructionSet) {
  const Info found = info();
  EXPECT_EQ(found.version, version());
  EXPECT_FALSE(found.version.empty());
  EXPECT_FALSE(found.cpu_target.empty());
  EXPECT_GE(found.cpu_threads, 1);
  EXPECT_FALSE(found.cuda_status.empty());
}

}  // namespace
}  // namespace tconv
