// Runs the kernels that a plan launches on the CPU: while an emulator lives, each launch of its thread renders the
// kernel as for NVRTC, compiles it with the host compiler against ptx_emulation.h and runs it block by block.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/jit_kernel.h"
#include "cuda/source.h"

namespace tconv::test {

class KernelEmulator final : public cuda::JitKernelWatch {
 public:
  KernelEmulator() : folder_(std::filesystem::temp_directory_path() / ("tconv-emulated-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~KernelEmulator() override { std::filesystem::remove_all(folder_); }

  int launches() const { return launches_; }

 private:
  using Entry = const char* (*)(void**, const unsigned*, unsigned, std::size_t);

  bool launch(const cuda::JitKernel& kernel, const cuda::LaunchShape& shape, void** arguments) override {
    ++launches_;
    const unsigned grid[3] = {shape.grid_x, shape.grid_y, shape.grid_z};
    const char* failure = entry_of(kernel.source())(arguments, grid, shape.block, kernel.dynamic_shared_bytes());
    if (failure != nullptr) throw std::runtime_error(failure);
    return true;
  }

  // Everything between `begin` and the end of `end` becomes `with`; false: not found.
  static bool replace(std::string& text, const std::string& begin, const std::string& end, const std::string& with) {
    const std::size_t first = text.find(begin);
    if (first == std::string::npos) return false;
    const std::size_t last = text.find(end, first);
    if (last == std::string::npos) throw std::runtime_error("no end of: " + begin);
    text.replace(first, last + end.size() - first, with);
    return true;
  }

  static std::string host_source(const cuda::KernelSource& source) {
    std::vector<cuda::EmbeddedFile> files(cuda::embedded_files().begin(), cuda::embedded_files().end());
    for (cuda::EmbeddedFile& file : files) {
      if (file.name == "ptx.cuh") file.text = "";
    }
    std::string text = render(source, files);
    replace(text, "extern __shared__", ";", "unsigned char* const shared_memory = emulation::shared_memory();");
    // The instruction that the host writes out for the shape's width.
    const std::size_t wgmma = text.find("wgmma.mma_async");
    if (wgmma != std::string::npos) {
      const std::string type = text.find(".f32.tf32.", wgmma) != std::string::npos  ? "tf32"
                               : text.find(".f32.f16.", wgmma) != std::string::npos ? "f16"
                                                                                    : "bf16";
      const bool transposed = text.find("p, 1, 1, 1", wgmma) != std::string::npos;
      replace(
          text, "__device__ __forceinline__ void multiply(float (&d)", "\n}\n",
          "template <int kTiles, typename A>\nvoid multiply(float (&d)[kTiles][4], const A& a, unsigned long long b) "
          "{\n  ptx::multiply_warpgroup<emulation::Type::" +
              type + ", " + (transposed ? "true" : "false") + ">(d, a, b);\n}\n");
    }
    unsigned cluster = 1;
    if (const std::size_t at = text.find("__cluster_dims__("); at != std::string::npos)
      cluster = static_cast<unsigned>(std::stoul(text.substr(at + 17)));
    return "#include \"ptx_emulation.h\"\n" + text +
           "\nextern \"C\" const char* emulate(void** arguments, const unsigned* grid, unsigned threads, std::size_t "
           "shared_bytes) {\n  static std::string failure;\n  try {\n    emulation::run_grid(" +
           source.entry + ", arguments, {grid[0], grid[1], grid[2]}, threads, " + std::to_string(cluster) +
           ", shared_bytes);\n  } catch (const std::exception& error) {\n    failure = error.what();\n    return "
           "failure.c_str();\n  }\n  return nullptr;\n}\n";
  }

  Entry entry_of(const cuda::KernelSource& source) {
    const std::string text = host_source(source);
    if (const auto found = entries_.find(text); found != entries_.end()) return found->second;
    static int s_libraries = 0;  // the loader takes a file of the same name for the same library, even after its end
    const std::string stem = (folder_ / ("kernel" + std::to_string(s_libraries++))).string();
    std::ofstream(stem + ".cpp") << text;
    const std::string command = TCONV_HOST_COMPILER " -shared " + stem + ".cpp -o " + stem + ".so 2> " + stem + ".log";
    if (std::system(command.c_str()) != 0) {
      std::ifstream log(stem + ".log");
      throw std::runtime_error("the host compiler refused a kernel:\n" +
                               std::string(std::istreambuf_iterator<char>(log), {}).substr(0, 4000));
    }
    // Never closed: a library may hold thread-local state.
    void* library = dlopen((stem + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const auto entry = reinterpret_cast<Entry>(dlsym(library, "emulate"));
    if (entry == nullptr) throw std::runtime_error(dlerror());
    entries_.emplace(text, entry);
    return entry;
  }

  std::filesystem::path folder_;
  std::map<std::string, Entry> entries_;
  int launches_ = 0;
};

}  // namespace tconv::test
