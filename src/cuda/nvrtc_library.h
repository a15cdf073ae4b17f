// Where NVRTC is, and its functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tconv::cuda {

using NvrtcResult = int;
using NvrtcProgram = struct NvrtcProgramHandle*;

struct Nvrtc {
  NvrtcResult (*version)(int* major, int* minor) = nullptr;
  NvrtcResult (*supported_arch_count)(int* count) = nullptr;
  NvrtcResult (*supported_archs)(int* archs) = nullptr;
  NvrtcResult (*create_program)(NvrtcProgram* program, const char* text, const char* name, int header_count,
                                const char* const* headers, const char* const* header_names) = nullptr;
  NvrtcResult (*destroy_program)(NvrtcProgram* program) = nullptr;
  NvrtcResult (*compile_program)(NvrtcProgram program, int option_count, const char* const* options) = nullptr;
  NvrtcResult (*cubin_size)(NvrtcProgram program, std::size_t* size) = nullptr;
  NvrtcResult (*cubin)(NvrtcProgram program, char* bytes) = nullptr;
  NvrtcResult (*ptx_size)(NvrtcProgram program, std::size_t* size) = nullptr;
  NvrtcResult (*ptx)(NvrtcProgram program, char* bytes) = nullptr;
  NvrtcResult (*log_size)(NvrtcProgram program, std::size_t* size) = nullptr;
  NvrtcResult (*log)(NvrtcProgram program, char* bytes) = nullptr;
  const char* (*error_string)(NvrtcResult result) = nullptr;

  std::string path;
  int major = 0;
  int minor = 0;
  std::vector<int> archs;  // that it can compile for, rising
};

// Opens NVRTC once. Throws Error, saying what was tried and what to install, when there is none.
const Nvrtc& nvrtc();

// Files named libnvrtc.so.<version> in a folder, the newest first. For the search and its test.
std::vector<std::string> nvrtc_files(const std::string& folder);

// Folders where NVRTC lies beside a Python package, given the path of a library that the process has loaded from it:
// .../site-packages/torch/lib/x.so leads to itself and to .../site-packages/nvidia/*/lib.
std::vector<std::string> folders_beside(const std::string& loaded_library);

}  // namespace tconv::cuda
