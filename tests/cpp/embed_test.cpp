// The kernel sources inside the library are, byte for byte, the files of the project: all of them and no other.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "cuda/source.h"

namespace tconv::cuda {
namespace {

TEST(Embed, LibraryCarriesTheKernelFilesUnchanged) {
  const std::filesystem::path folder = std::filesystem::path(TCONV_SOURCE_DIR) / "src" / "cuda" / "kernels";
  std::map<std::string, std::string> on_disk;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".cuh") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    on_disk[entry.path().lexically_relative(folder).generic_string()] = {std::istreambuf_iterator<char>(file), {}};
  }
  std::map<std::string, std::string> embedded;
  for (const EmbeddedFile& file : embedded_files()) embedded[std::string(file.name)] = file.text;
  EXPECT_FALSE(on_disk.empty());
  EXPECT_EQ(embedded.size(), on_disk.size());
  for (const auto& [name, text] : on_disk) EXPECT_TRUE(embedded[name] == text) << name;
}

}  // namespace
}  // namespace tconv::cuda
