#include "cuda/kernel_cache.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/env.h"
#include "cuda/once_map.h"
#include "tconv/error.h"

namespace tconv::cuda {
namespace {

// What a function may use without asking.
constexpr std::size_t kFreeSharedBytes = 48 * 1024;

void put(std::string& bytes, std::uint64_t value) {
  for (unsigned shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(value >> shift);
}

bool take(std::string_view& bytes, std::uint64_t& value) {
  if (bytes.size() < 8) return false;
  value = 0;
  for (unsigned i = 0; i < 8; ++i) value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  bytes.remove_prefix(8);
  return true;
}

bool take(std::string_view& bytes, std::string& text) {
  std::uint64_t size = 0;
  if (!take(bytes, size) || size > bytes.size()) return false;
  text = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return true;
}

Compiled compile_through(const DiskCache& disk, const Digest& key, const KernelSource& source, int arch) {
  if (const std::optional<std::string> bytes = disk.read(key)) {
    if (std::optional<Compiled> found = from_bytes(*bytes)) return *std::move(found);
  }
  const auto start = std::chrono::steady_clock::now();
  Compiled made = compile(source, arch);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  log(1, "compiled " + source.file + " for sm_" + std::to_string(arch) + " in " + std::to_string(took.count()) +
             " ms: " + std::to_string(made.registers) + " registers, " + std::to_string(made.spill_bytes) +
             " bytes local");
  disk.write(key, to_bytes(made));
  return made;
}

std::shared_ptr<const Compiled> compiled(const Digest& key, const KernelSource& source, int arch) {
  static OnceMap<Digest, std::shared_ptr<const Compiled>> memory;
  return memory.get(key, [&] {
    return std::make_shared<const Compiled>(compile_through(DiskCache(env().cache_directory), key, source, arch));
  });
}

std::shared_ptr<LoadedKernel> load_module(const Compiled& code, const KernelSource& source, int device) {
  auto kernel = std::make_shared<LoadedKernel>();
  kernel->driver = &driver();
  kernel->context = primary_context(device);
  kernel->static_shared_bytes = code.shared_bytes;
  const std::string what = source.entry + " of " + source.file + " on GPU " + std::to_string(device);
  const ContextScope context(kernel->context);
  const RelaxedCaptureScope relaxed;
  DriverModule module = nullptr;
  check(kernel->driver->module_load_data(&module, code.cubin.c_str()), "load " + what);
  check(kernel->driver->module_get_function(&kernel->function, module, source.entry.c_str()), "find " + what);
  // Asking for an attribute makes a driver that loads lazily load now, outside of any capture.
  int local_bytes = 0;
  check(kernel->driver->function_get_attribute(&local_bytes, FunctionAttribute::local_bytes, kernel->function),
        "describe " + what);
  log(1, "loaded " + what + (local_bytes > 0 ? ", " + std::to_string(local_bytes) + " bytes of local memory" : ""));
  return kernel;
}

void grant_shared(LoadedKernel& kernel, std::size_t bytes, const std::string& entry) {
  const std::scoped_lock lock(kernel.mutex);
  if (bytes <= kernel.granted_shared || bytes + kernel.static_shared_bytes <= kFreeSharedBytes) return;
  const ContextScope context(kernel.context);
  check(kernel.driver->function_set_attribute(kernel.function, FunctionAttribute::max_dynamic_shared_bytes,
                                              static_cast<int>(bytes)),
        "give " + entry + " " + std::to_string(bytes) + " bytes of shared memory");
  kernel.granted_shared = bytes;
}

}  // namespace

std::string to_bytes(const Compiled& compiled) {
  std::string bytes;
  put(bytes, static_cast<std::uint64_t>(compiled.registers));
  put(bytes, compiled.spill_bytes);
  put(bytes, compiled.shared_bytes);
  for (const std::string* text : {&compiled.log, &compiled.cubin}) {
    put(bytes, text->size());
    bytes += *text;
  }
  return bytes;
}

std::optional<Compiled> from_bytes(std::string_view bytes) {
  Compiled compiled;
  std::uint64_t registers = 0;
  std::uint64_t spill = 0;
  std::uint64_t shared = 0;
  const bool whole = take(bytes, registers) && take(bytes, spill) && take(bytes, shared) && take(bytes, compiled.log) &&
                     take(bytes, compiled.cubin) && bytes.empty() && !compiled.cubin.empty();
  if (!whole) return std::nullopt;
  compiled.registers = static_cast<int>(registers);
  compiled.spill_bytes = spill;
  compiled.shared_bytes = shared;
  return compiled;
}

Digest key_of(const KernelSource& source, int arch) {
  const NvrtcVersion version = nvrtc_version();
  std::string text = "NVRTC " + std::to_string(version.major) + "." + std::to_string(version.minor) + "\n";
  for (const std::string& option : compile_options(arch)) text += option + "\n";
  return sha256(text + "sm_" + std::to_string(arch) + " " + source.entry + "\n" + render(source));
}

std::shared_ptr<const Compiled> compiled(const KernelSource& source, int arch) {
  return compiled(key_of(source, arch), source, arch);
}

Compiled compile_through(const DiskCache& disk, const KernelSource& source, int arch) {
  return compile_through(disk, key_of(source, arch), source, arch);
}

const LoadedKernel& load(const KernelSource& source, int arch, int device, std::size_t dynamic_shared_bytes) {
  static OnceMap<std::pair<Digest, int>, std::shared_ptr<LoadedKernel>> loaded;
  const Digest key = key_of(source, arch);
  // The map keeps a share for good, so the reference stays valid.
  const std::shared_ptr<LoadedKernel> kernel =
      loaded.get({key, device}, [&] { return load_module(*compiled(key, source, arch), source, device); });
  grant_shared(*kernel, dynamic_shared_bytes, source.entry);
  return *kernel;
}

}  // namespace tconv::cuda
