// The device code that the library carries, and the text that is handed to the compiler.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tconv::cuda {

struct EmbeddedFile {
  std::string_view name;
  std::string_view text;
};

// Every kernels/*.cuh, put into the library by the build.
std::span<const EmbeddedFile> embedded_files();

// One kernel to compile: an embedded file behind a text of compile-time constants.
struct KernelSource {
  std::string file;    // such as "general.cuh"
  std::string config;  // C++ text put before the file: constexpr constants and type aliases; may include embedded files
  std::string entry;   // the extern "C" __global__ function
};

// The whole translation unit: the config, then the file with every #include "x.cuh" of an embedded file replaced by its
// text, once each. Throws Error for a file that is not embedded.
std::string render(const KernelSource& source);

// The same over any set of files.
std::string render(const KernelSource& source, std::span<const EmbeddedFile> files);

}  // namespace tconv::cuda
