#include "cuda/nvrtc_library.h"

#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <system_error>

#include "core/env.h"
#include "cuda/shared_library.h"
#include "tconv/error.h"

namespace tconv::cuda {
namespace {

namespace fs = std::filesystem;

// The newest first. All CUDA 11 releases since 11.2 share one name.
constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"};

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator(); it.increment(error)) {
    entries.push_back(it->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> paths;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t /*size*/, void* out) {
        if (info->dlpi_name != nullptr && info->dlpi_name[0] != '\0') {
          static_cast<std::vector<std::string>*>(out)->emplace_back(info->dlpi_name);
        }
        return 0;
      },
      &paths);
  return paths;
}

// The version number behind the name, so that 13 sorts above 11.2.
double version_of(const std::string& path) {
  const std::string name = fs::path(path).filename();
  const std::size_t at = name.find(".so.");
  return at == std::string::npos ? 0 : std::strtod(name.c_str() + at + 4, nullptr);
}

class Search {
 public:
  bool try_open(const std::string& path, int flags = RTLD_NOW | RTLD_LOCAL) {
    if (handle_ != nullptr || !tried_.insert(path + (flags & RTLD_NOLOAD ? "?" : "")).second) return handle_ != nullptr;
    handle_ = ::dlopen(path.c_str(), flags);
    if (handle_ == nullptr) {
      if (const char* why = ::dlerror(); why != nullptr && (flags & RTLD_NOLOAD) == 0) last_error_ = why;
    }
    return handle_ != nullptr;
  }

  void try_folder(const std::string& folder) {
    for (const std::string& file : nvrtc_files(folder)) try_open(file);
  }

  void* handle() const { return handle_; }
  const std::string& last_error() const { return last_error_; }

 private:
  void* handle_ = nullptr;
  std::set<std::string> tried_;
  std::string last_error_;
};

void* find_library() {
  Search search;
  if (const std::string& named = env().nvrtc; !named.empty()) {
    // Falling back to another one would hide the mistake.
    if (!search.try_open(named)) throw Error("TCONV_NVRTC must name the NVRTC library, got " + search.last_error());
    return search.handle();
  }
  for (const char* name : kNames) search.try_open(name, RTLD_NOW | RTLD_NOLOAD);
  if (search.handle() == nullptr) {
    for (const std::string& library : loaded_libraries()) {
      for (const std::string& folder : folders_beside(library)) search.try_folder(folder);
    }
  }
  std::vector<std::string> toolkits = {"/usr/local/cuda"};
  if (!env().cuda_home.empty()) toolkits.insert(toolkits.begin(), env().cuda_home);
  for (const std::string& toolkit : toolkits) {
    for (const char* sub : {"/lib64", "/targets/x86_64-linux/lib", "/targets/sbsa-linux/lib", "/lib"}) {
      search.try_folder(toolkit + sub);
    }
  }
  for (const char* name : kNames) search.try_open(name);
  if (search.handle() == nullptr) {
    throw Error(
        "compiling GPU kernels needs NVRTC (libnvrtc.so.13, .12 or .11.2), which was found neither beside PyTorch nor "
        "in a "
        "CUDA toolkit nor on the loader's path; install it with `pip install nvidia-cuda-nvrtc` (CUDA 13) or `pip "
        "install "
        "nvidia-cuda-nvrtc-cu12`, or set TCONV_NVRTC to its path (" +
        search.last_error() + ")");
  }
  return search.handle();
}

std::string path_of(void* symbol) {
  Dl_info info{};
  return ::dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

Nvrtc open_nvrtc() {
  void* library = find_library();
  Nvrtc table;
  resolve(library, "nvrtcVersion", table.version);
  table.path = path_of(reinterpret_cast<void*>(table.version));
  try {
    resolve(library, "nvrtcGetNumSupportedArchs", table.supported_arch_count);
    resolve(library, "nvrtcGetSupportedArchs", table.supported_archs);
    resolve(library, "nvrtcCreateProgram", table.create_program);
    resolve(library, "nvrtcDestroyProgram", table.destroy_program);
    resolve(library, "nvrtcCompileProgram", table.compile_program);
    resolve(library, "nvrtcGetCUBINSize", table.cubin_size);
    resolve(library, "nvrtcGetCUBIN", table.cubin);
    resolve(library, "nvrtcGetPTXSize", table.ptx_size);
    resolve(library, "nvrtcGetPTX", table.ptx);
    resolve(library, "nvrtcGetProgramLogSize", table.log_size);
    resolve(library, "nvrtcGetProgramLog", table.log);
    resolve(library, "nvrtcGetErrorString", table.error_string);
  } catch (const Error& error) {
    throw Error("NVRTC must be of version 11.2 or later, got " + table.path + ": " + error.what());
  }
  const auto require = [&](NvrtcResult result) {
    if (result != 0) throw Error("NVRTC " + table.path + " cannot describe itself: " + table.error_string(result));
  };
  require(table.version(&table.major, &table.minor));
  int count = 0;
  require(table.supported_arch_count(&count));
  table.archs.resize(static_cast<std::size_t>(count));
  require(table.supported_archs(table.archs.data()));
  std::sort(table.archs.begin(), table.archs.end());
  log(1, "NVRTC " + std::to_string(table.major) + "." + std::to_string(table.minor) + " from " + table.path);
  return table;
}

}  // namespace

std::vector<std::string> nvrtc_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const fs::path& entry : entries_of(folder)) {
    if (entry.filename().string().starts_with("libnvrtc.so.")) files.push_back(entry);
  }
  std::stable_sort(files.begin(), files.end(),
                   [](const std::string& a, const std::string& b) { return version_of(a) > version_of(b); });
  return files;
}

std::vector<std::string> folders_beside(const std::string& loaded_library) {
  const fs::path folder = fs::path(loaded_library).parent_path();
  // Wheels keep their libraries in <package>/lib or <package>.libs; a search two levels up finds the folder of
  // packages.
  fs::path packages;
  for (fs::path at = folder; at.has_relative_path(); at = at.parent_path()) {
    if (at.filename() == "site-packages" || at.filename() == "dist-packages") packages = at;
  }
  if (packages.empty()) return {};
  std::vector<std::string> folders;
  for (const fs::path& package : entries_of(packages / "nvidia")) folders.push_back(package / "lib");
  folders.push_back(packages / "torch" / "lib");
  return folders;
}

const Nvrtc& nvrtc() {
  // A failed attempt throws out of the initialisation and is made again at the next call: PyTorch may be loaded by
  // then.
  static const Nvrtc table = open_nvrtc();
  return table;
}

}  // namespace tconv::cuda
