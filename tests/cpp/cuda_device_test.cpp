#include "cuda/device.h"

#include <gtest/gtest.h>

#include <string>

#include "cuda/driver.h"
#include "tconv/error.h"

namespace tconv::cuda {
namespace {

// What the driver says of an H200, against what was measured on one.
TEST(Device, RatesOfAnH200) {
  DeviceFacts facts;
  facts.name = "NVIDIA H200";
  facts.major = 9;
  facts.multiprocessors = 132;
  facts.clock_hz = 1.98e9;
  facts.memory_clock_hz = 3.201e9;
  facts.memory_bus_bits = 6144;
  const DeviceProperties properties = describe(facts);
  EXPECT_EQ(properties.arch, 90);
  EXPECT_EQ(properties.device.backend, Backend::cuda);
  EXPECT_NEAR(properties.bandwidth, 4.27e12, 0.03e12);
  EXPECT_NEAR(properties.tf32_rate, 419e12, 4e12);
  EXPECT_NEAR(properties.fp32_rate, 49e12, 0.5e12);
}

TEST(Device, ADriverThatReportsNoClocksStillGivesRates) {
  DeviceFacts facts;
  facts.major = 8;
  facts.minor = 6;
  const DeviceProperties properties = describe(facts);
  EXPECT_EQ(properties.arch, 86);
  EXPECT_GT(properties.bandwidth, 0);
  EXPECT_GT(properties.fp32_rate, 0);
  EXPECT_GT(properties.tf32_rate, 0);
}

// Holds with and without a GPU: either there are names and the status says ok, or there are none and it says why.
TEST(Device, StatusAgreesWithTheDevices) {
  const std::string line = status();
  ASSERT_FALSE(line.empty());
  EXPECT_EQ(line.starts_with("ok"), !device_names().empty()) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
}

TEST(Device, AnUnusableIndexSaysWhy) {
  try {
    properties(1000);
    FAIL() << "there is no such GPU";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.find("NVIDIA driver") != std::string::npos || message.find("1000") != std::string::npos)
        << message;
  }
  EXPECT_THROW(properties(-1), Error);
}

TEST(Device, PropertiesOfEveryGpuAreSensible) {
  for (std::size_t index = 0; index < device_names().size(); ++index) {
    const DeviceProperties found = properties(static_cast<int>(index));
    EXPECT_GE(found.arch, 70);
    EXPECT_GT(found.multiprocessors, 0);
    EXPECT_GE(found.shared_bytes_per_block, 48U * 1024);
    EXPECT_GT(found.bandwidth, 1e10);
  }
}

}  // namespace
}  // namespace tconv::cuda
