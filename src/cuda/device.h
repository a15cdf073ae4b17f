// What the GPUs of this machine are, and why they may not be usable.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/family.h"

namespace tconv::cuda {

// What the driver reports of a GPU.
struct DeviceFacts {
  int index = 0;
  std::string name;
  int major = 0;
  int minor = 0;
  int multiprocessors = 1;
  std::size_t shared_bytes_per_block = 0;
  std::size_t shared_bytes_per_multiprocessor = 0;
  std::size_t l2_bytes = 0;
  double clock_hz = 0;
  double memory_clock_hz = 0;
  int memory_bus_bits = 0;
};

// Adds the rates that a program reaches in practice to what the driver reports. Pure.
DeviceProperties describe(const DeviceFacts& facts);

// Shared memory of a block with which no second one fits its multiprocessor.
std::size_t alone_shared_bytes(const DeviceProperties& device);

// The names of the GPUs that can be used; empty where there is none.
std::vector<std::string> device_names();

// One line: "ok" and the versions of driver and compiler, or the reason why no GPU can be used.
std::string status();

}  // namespace tconv::cuda
