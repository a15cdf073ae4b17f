#include "cuda/nvrtc.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "cuda/nvrtc_library.h"
#include "tconv/error.h"

namespace tconv::cuda {
namespace {

class Program {
 public:
  Program(const Nvrtc& library, const std::string& text, const std::string& name) : library_(library) {
    const NvrtcResult result = library.create_program(&program_, text.c_str(), name.c_str(), 0, nullptr, nullptr);
    if (result != 0) throw Error("NVRTC could not take " + name + ": " + library.error_string(result));
  }
  ~Program() { library_.destroy_program(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  NvrtcProgram get() const { return program_; }

  using SizeFunction = NvrtcResult (*)(NvrtcProgram, std::size_t*);
  using BytesFunction = NvrtcResult (*)(NvrtcProgram, char*);
  std::string bytes(SizeFunction size_of, BytesFunction copy) const {
    std::size_t size = 0;
    if (size_of(program_, &size) != 0 || size == 0) return {};
    std::string text(size, '\0');
    return copy(program_, text.data()) == 0 ? text : std::string{};
  }

 private:
  const Nvrtc& library_;
  NvrtcProgram program_ = nullptr;
};

std::size_t number_before(std::string_view line, std::string_view words) {
  const std::size_t at = line.find(words);
  if (at == std::string_view::npos || at == 0) return 0;
  std::size_t begin = at;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  std::size_t value = 0;
  std::from_chars(line.data() + begin, line.data() + at, value);
  return value;
}

}  // namespace

std::string Target::option() const {
  return "--gpu-architecture=" + std::string(ptx ? "compute_" : "sm_") + std::to_string(arch) + (specific ? "a" : "");
}

std::optional<Target> target_for(int arch, int major, int minor, const std::vector<int>& supported) {
  if (std::binary_search(supported.begin(), supported.end(), arch)) {
    const int version = major * 100 + minor;
    const bool specific = (arch == 90 && version >= 1200) || (arch == 100 && version >= 1208);
    return Target{arch, specific, false};
  }
  // The driver turns PTX for an older architecture into code for the one at hand.
  const auto newer = std::upper_bound(supported.begin(), supported.end(), arch);
  if (newer == supported.begin()) return std::nullopt;
  return Target{*std::prev(newer), false, true};
}

std::vector<std::string> compile_options(int arch) {
  const Nvrtc& library = nvrtc();
  const std::optional<Target> target = target_for(arch, library.major, library.minor, library.archs);
  if (!target) {
    throw Error("NVRTC must be able to compile for sm_" + std::to_string(arch) + ", which version " +
                std::to_string(library.major) + "." + std::to_string(library.minor) + " cannot (" + library.path + ")");
  }
  // Constants and the functions of shared headers are unannotated: they are the host's as much as the device's.
  return {target->option(), "--std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v"};
}

void read_statistics(std::string_view log, Compiled& compiled) {
  compiled.registers = 0;
  compiled.spill_bytes = compiled.shared_bytes = 0;
  while (!log.empty()) {
    const std::size_t end = std::min(log.find('\n'), log.size());
    const std::string_view line = log.substr(0, end);
    log.remove_prefix(std::min(end + 1, log.size()));
    compiled.registers = std::max(compiled.registers, static_cast<int>(number_before(line, " registers")));
    compiled.shared_bytes = std::max(compiled.shared_bytes, number_before(line, " bytes smem"));
    compiled.spill_bytes = std::max({compiled.spill_bytes, number_before(line, " bytes stack frame"),
                                     number_before(line, " bytes cumulative stack size"),
                                     number_before(line, " bytes spill stores"), number_before(line, " bytes lmem")});
  }
}

Compiled compile(const KernelSource& source, int arch) {
  const Nvrtc& library = nvrtc();
  const std::vector<std::string> options = compile_options(arch);
  std::vector<const char*> pointers;
  for (const std::string& option : options) pointers.push_back(option.c_str());

  const Program program(library, render(source), source.file);
  const NvrtcResult result = library.compile_program(program.get(), static_cast<int>(pointers.size()), pointers.data());
  Compiled compiled;
  compiled.log = program.bytes(library.log_size, library.log);
  while (!compiled.log.empty() && compiled.log.back() == '\0') compiled.log.pop_back();
  if (result != 0) {
    throw Error("NVRTC " + std::to_string(library.major) + "." + std::to_string(library.minor) + " could not compile " +
                source.file + " (" + source.entry + ") with " + options.front() + ": " + library.error_string(result) +
                "\n" + compiled.log);
  }
  // Asked for a virtual architecture, NVRTC makes no machine code.
  compiled.cubin = program.bytes(library.cubin_size, library.cubin);
  if (compiled.cubin.empty()) compiled.cubin = program.bytes(library.ptx_size, library.ptx);
  if (compiled.cubin.empty()) throw Error("NVRTC returned no code for " + source.file);
  read_statistics(compiled.log, compiled);
  return compiled;
}

NvrtcVersion nvrtc_version() {
  const Nvrtc& library = nvrtc();
  return {library.major, library.minor, library.path};
}

bool nvrtc_supports(int arch) {
  const Nvrtc& library = nvrtc();
  return target_for(arch, library.major, library.minor, library.archs).has_value();
}

}  // namespace tconv::cuda
