#include "cuda/source.h"

#include <algorithm>
#include <set>

#include "tconv/error.h"

namespace tconv::cuda {
namespace {

std::string_view find(std::span<const EmbeddedFile> files, std::string_view name) {
  const auto file = std::find_if(files.begin(), files.end(), [&](const EmbeddedFile& f) { return f.name == name; });
  if (file == files.end())
    throw Error("kernel file must be one that the library carries, got \"" + std::string(name) + "\"");
  return file->text;
}

std::string_view trim(std::string_view line) {
  const auto begin = line.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1);
}

// The x of  #include "x" , or nothing. Device code includes no other kind of file, so <...> is left to the compiler.
std::string_view included_file(std::string_view line) {
  line = trim(line);
  if (!line.starts_with('#')) return {};
  line = trim(line.substr(1));
  if (!line.starts_with("include")) return {};
  const auto open = line.find('"');
  const auto close = line.find('"', open == std::string_view::npos ? open : open + 1);
  return close == std::string_view::npos ? std::string_view{} : line.substr(open + 1, close - open - 1);
}

// Appends `rest`, the text of `name`, with the files that it includes in their places, once each.
void append(std::string& text, std::string_view name, std::string_view rest, std::span<const EmbeddedFile> files,
            std::set<std::string, std::less<>>& done) {
  text += "#line 1 \"" + std::string(name) + "\"\n";
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (const std::string_view included = included_file(line); !included.empty()) {
      if (done.emplace(included).second) append(text, included, find(files, included), files, done);
      text += "#line " + std::to_string(number + 1) + " \"" + std::string(name) + "\"\n";
    } else if (trim(line) == "#pragma once") {
      text += '\n';
    } else {
      text += line;
      text += '\n';
    }
  }
}

}  // namespace

std::string render(const KernelSource& source, std::span<const EmbeddedFile> files) {
  std::string text;
  std::set<std::string, std::less<>> done = {source.file};
  append(text, "config", source.config, files, done);
  append(text, source.file, find(files, source.file), files, done);
  return text;
}

std::string render(const KernelSource& source) { return render(source, embedded_files()); }

}  // namespace tconv::cuda
