#include "cuda/source.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "tconv/error.h"

namespace tconv::cuda {
namespace {

constexpr std::array<EmbeddedFile, 4> kFiles{{
    {"a.cuh", "#pragma once\n#include \"b.cuh\"\n  # include \"c.cuh\"  // twice\nint a;\n#include <not/ours.h>\n"},
    {"b.cuh", "#pragma once\n#include \"c.cuh\"\nint b;"},
    {"c.cuh", "#pragma once\nint c;\n"},
    {"broken.cuh", "#include \"missing.cuh\"\n"},
}};

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(Source, InlinesEveryFileOnceInOrder) {
  const std::string text = render({"a.cuh", "constexpr int kTaps = 3;", "kernel"}, kFiles);
  EXPECT_EQ(count(text, "int a;"), 1U);
  EXPECT_EQ(count(text, "int b;"), 1U);
  EXPECT_EQ(count(text, "int c;"), 1U);
  EXPECT_LT(text.find("kTaps = 3"), text.find("int c;"));
  EXPECT_LT(text.find("int c;"), text.find("int b;"));
  EXPECT_LT(text.find("int b;"), text.find("int a;"));
  EXPECT_EQ(count(text, "#pragma once"), 0U);
  EXPECT_EQ(count(text, "#include \""), 0U);
  EXPECT_EQ(count(text, "#include <not/ours.h>"), 1U);
}

// The compiler's messages must name the file and line that a person can open.
TEST(Source, KeepsLineNumbers) {
  const std::string text = render({"a.cuh", "", "kernel"}, kFiles);
  EXPECT_NE(text.find("#line 4 \"a.cuh\"\nint a;"), std::string::npos) << text;
  EXPECT_NE(text.find("#line 3 \"b.cuh\"\nint b;"), std::string::npos) << text;
}

TEST(Source, MissingFilesAreErrors) {
  EXPECT_THROW(render({"nowhere.cuh", "", "kernel"}, kFiles), Error);
  try {
    render({"broken.cuh", "", "kernel"}, kFiles);
    FAIL() << "a missing include must be an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("missing.cuh"), std::string::npos) << error.what();
  }
}

TEST(Source, TheLibraryCarriesItsKernels) {
  const std::string text = render({"general.cuh", "", "tconv_general"});
  EXPECT_NE(text.find("tconv_general"), std::string::npos);
  EXPECT_NE(text.find("struct GeneralParams"), std::string::npos);
  // Device code includes nothing: headers would cost more than the kernel's own compilation.
  for (const EmbeddedFile& file : embedded_files()) {
    EXPECT_EQ(file.text.find("#include <"), std::string_view::npos) << file.name;
  }
}

}  // namespace
}  // namespace tconv::cuda
