// Compiled and loaded kernels, shared by everything in the process that asks for the same source.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "cuda/disk_cache.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "cuda/source.h"

namespace tconv::cuda {

// Names a compilation by everything that its result depends on: the rendered source, the options (the architecture
// among them) and the compiler's version.
Digest key_of(const KernelSource& source, int arch);

// From memory, from the disk, or from the compiler; at most one compilation of a key runs at a time.
std::shared_ptr<const Compiled> compiled(const KernelSource& source, int arch);

// The same with a disk cache of the caller's choice and no memory.
Compiled compile_through(const DiskCache& disk, const KernelSource& source, int arch);

// A kernel as the disk cache keeps it.
std::string to_bytes(const Compiled& compiled);
std::optional<Compiled> from_bytes(std::string_view bytes);

// A function on one device; loaded once and kept until the process ends, since work in flight may still use it.
struct LoadedKernel {
  const Driver* driver = nullptr;
  DriverContext context = nullptr;
  DriverFunction function = nullptr;
  std::size_t static_shared_bytes = 0;
  std::mutex mutex;                // guards the next member
  std::size_t granted_shared = 0;  // dynamic shared memory that the function may be launched with
};

// Compiles if necessary, loads, and allows launches with that much dynamic shared memory.
const LoadedKernel& load(const KernelSource& source, int arch, int device, std::size_t dynamic_shared_bytes);

}  // namespace tconv::cuda
