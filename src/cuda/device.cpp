#include "cuda/device.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "tconv/error.h"

namespace tconv::cuda {
namespace {

constexpr int kOldestMajor = 7;  // the oldest that the kernels' plainest instructions need

int attribute(DeviceAttribute which, int device) {
  int value = 0;
  check(driver().device_get_attribute(&value, which, device), "describe GPU " + std::to_string(device));
  return value;
}

DeviceFacts query(int index) {
  const int count = device_count();
  if (index < 0 || index >= count) {
    throw Error("GPU index must be below the number of GPUs, " + std::to_string(count) + ", got " +
                std::to_string(index));
  }
  int device = 0;
  check(driver().device_get(&device, index), "open GPU " + std::to_string(index));
  DeviceFacts facts;
  facts.index = index;
  std::array<char, 256> name{};
  check(driver().device_get_name(name.data(), static_cast<int>(name.size()), device),
        "name GPU " + std::to_string(index));
  facts.name = name.data();
  facts.major = attribute(DeviceAttribute::major, device);
  facts.minor = attribute(DeviceAttribute::minor, device);
  facts.multiprocessors = attribute(DeviceAttribute::multiprocessors, device);
  facts.shared_bytes_per_block =
      static_cast<std::size_t>(attribute(DeviceAttribute::shared_bytes_per_block_optin, device));
  facts.shared_bytes_per_multiprocessor =
      static_cast<std::size_t>(attribute(DeviceAttribute::shared_bytes_per_multiprocessor, device));
  facts.l2_bytes = static_cast<std::size_t>(attribute(DeviceAttribute::l2_bytes, device));
  facts.clock_hz = 1e3 * attribute(DeviceAttribute::clock_khz, device);
  facts.memory_clock_hz = 1e3 * attribute(DeviceAttribute::memory_clock_khz, device);
  facts.memory_bus_bits = attribute(DeviceAttribute::memory_bus_bits, device);
  return facts;
}

// Operations per clock of one multiprocessor, a multiply-add counted as two.
struct Width {
  double fp32;
  double tf32;
};

Width width_of(int arch) {
  if (arch < 80) return {128, 0};
  if (arch == 80) return {128, 1024};
  if (arch < 90) return {256, 256};
  if (arch < 100) return {256, 2048};
  if (arch < 120) return {256, 4096};
  return {256, 256};
}

// Shares of the theoretical peak, measured on an H200: copying 4.27 of 4.92 TB/s, TF32 419 of 535 and fp32 49 of 67
// TFLOP/s at the boost clock, which no GPU holds under full load.
constexpr double kBandwidthShare = 0.868;
constexpr double kTf32Share = 0.783;
constexpr double kFp32Share = 0.733;

// For virtual GPUs whose driver reports no clocks: a modest card, so that estimates stay in proportion.
constexpr double kUnknownClock = 1.5e9;
constexpr double kUnknownBandwidth = 0.5e12;

}  // namespace

std::size_t alone_shared_bytes(const DeviceProperties& device) {
  constexpr std::size_t kReserved = 1024;  // of each block
  return device.shared_bytes_per_multiprocessor / 2 - kReserved + 128;
}

DeviceProperties describe(const DeviceFacts& facts) {
  DeviceProperties properties;
  properties.device = {Backend::cuda, facts.index};
  properties.name = facts.name;
  properties.arch = facts.major * 10 + facts.minor;
  properties.multiprocessors = std::max(facts.multiprocessors, 1);
  properties.shared_bytes_per_block = facts.shared_bytes_per_block;
  properties.shared_bytes_per_multiprocessor = facts.shared_bytes_per_multiprocessor;
  // Two transfers per clock and bit of the bus.
  const double peak_bandwidth = 2 * facts.memory_clock_hz * facts.memory_bus_bits / 8;
  properties.bandwidth = peak_bandwidth > 0 ? kBandwidthShare * peak_bandwidth : kUnknownBandwidth;
  const double clocks = (facts.clock_hz > 0 ? facts.clock_hz : kUnknownClock) * properties.multiprocessors;
  const Width width = width_of(properties.arch);
  properties.fp32_rate = kFp32Share * width.fp32 * clocks;
  properties.tf32_rate = kTf32Share * width.tf32 * clocks;
  return properties;
}

DeviceProperties properties(int index) {
  static std::mutex mutex;
  static std::unordered_map<int, DeviceProperties> known;
  const std::scoped_lock lock(mutex);
  if (const auto found = known.find(index); found != known.end()) return found->second;
  const DeviceFacts facts = query(index);
  if (facts.major < kOldestMajor) {
    throw Error("GPU must have compute capability " + std::to_string(kOldestMajor) + ".0 or later, got " +
                std::to_string(facts.major) + "." + std::to_string(facts.minor) + " (" + facts.name + ")");
  }
  DeviceProperties described = describe(facts);
  described.has_wgmma = nvrtc_version().major >= 12;  // older compilers know sm_90 without its own instructions
  if (!nvrtc_supports(described.arch)) {
    const NvrtcVersion version = nvrtc_version();
    throw Error("NVRTC must be able to compile for compute capability " + std::to_string(facts.major) + "." +
                std::to_string(facts.minor) + " (" + facts.name + "), got version " + std::to_string(version.major) +
                "." + std::to_string(version.minor) + " (" + version.path + ")");
  }
  known.emplace(index, described);
  return described;
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  try {
    const int count = device_count();
    for (int index = 0; index < count; ++index) {
      try {
        const DeviceProperties device = properties(index);
        names.push_back(device.name + " (sm_" + std::to_string(device.arch) + ")");
      } catch (const Error& error) {
        names.push_back("GPU " + std::to_string(index) + ", not usable: " + error.what());
      }
    }
  } catch (const Error&) {
    return names;  // status() says why
  }
  return names;
}

std::string status() {
  try {
    const int driver = driver_version();
    const int count = device_count();
    if (count == 0) return "the NVIDIA driver is installed but finds no GPU";
    const NvrtcVersion nvrtc = nvrtc_version();
    return "ok: driver for CUDA " + std::to_string(driver / 1000) + "." + std::to_string(driver % 1000 / 10) +
           ", NVRTC " + std::to_string(nvrtc.major) + "." + std::to_string(nvrtc.minor) + " (" + nvrtc.path + ")";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace tconv::cuda
