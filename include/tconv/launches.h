// What a plan launches on a GPU that need not be at hand: for programs that carry the kernels elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tconv/plan.h"

namespace tconv {

// GPUs that kernels are made for ahead of time.
enum class GpuModel : std::uint8_t {
  ampere,  // what every GPU of compute capability 8.0 and later has: 99 KiB of shared memory for a block
  hopper,  // an H200
};

struct KernelFile {
  std::string name;
  std::string text;
};

// Every piece of device code that the library carries. Pieces include each other by name.
std::vector<KernelFile> kernel_files();

struct Launch {
  std::string file;    // of kernel_files()
  std::string config;  // C++ text that stands before it
  std::string entry;   // the function that is launched
  std::size_t dynamic_shared_bytes = 0;
  unsigned grid[3] = {1, 1, 1};
  unsigned block = 1;
  bool overlaps_previous = false;      // may start before the previous launch has ended
  std::vector<std::string> arguments;  // the bytes of each parameter; what was a pointer points at a marker
};

// The pointers of recorded arguments: a marker, and how many bytes behind it.
constexpr std::uintptr_t kMarkerDistance = std::uintptr_t{1} << 44U;
constexpr const char* kMarkers[] = {"input", "weight", "bias", "output", "workspace"};  // the first is at one distance

struct LaunchRecord {
  std::string family;
  std::string description;
  std::size_t workspace_bytes = 0;
  std::vector<Launch> launches;
};

// Plans the problem for a GPU and notes what a run would launch, in order. Nothing is compiled. `force` as for plan().
LaunchRecord record_launches(const Problem& problem, GpuModel gpu, std::string_view force = {});

}  // namespace tconv
