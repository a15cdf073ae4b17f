// NVRTC needs no GPU: what the library would run on each architecture is compiled here. PyTorch's wheels bring NVRTC,
// so a machine without it is a failure with instructions, not a skip.
#include "cuda/nvrtc.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/env.h"
#include "cuda/general.h"
#include "cuda/jit_kernel.h"
#include "cuda/kernel_cache.h"
#include "cuda/nvrtc_library.h"
#include "cuda/once_map.h"
#include "tconv/error.h"

namespace tconv::cuda {
namespace {

namespace fs = std::filesystem;

constexpr int kArchs[] = {80, 86, 89, 90, 100, 120};

std::vector<GeneralShape> every_general_shape() {
  std::vector<GeneralShape> shapes;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const bool wide : {false, true}) {
      for (const int bundle : {1, 4}) shapes.push_back({dtype, wide, bundle});
    }
  }
  return shapes;
}

TEST(Nvrtc, IsFound) {
  const NvrtcVersion version = nvrtc_version();
  EXPECT_GE(version.major, 11);
  EXPECT_TRUE(fs::exists(version.path)) << version.path;
}

class GeneralCompiles : public testing::TestWithParam<int> {};

TEST_P(GeneralCompiles, InEveryShapeWithoutLocalMemory) {
  for (const GeneralShape& shape : every_general_shape()) {
    const Compiled compiled = compile(general_source(shape), GetParam());
    const std::string label = general_source(shape).config + compiled.log;
    EXPECT_FALSE(compiled.cubin.empty());
    if (compiled.cubin.starts_with("\x7f"
                                   "ELF")) {
      EXPECT_GT(compiled.registers, 0) << label;
      EXPECT_LE(compiled.registers, 255) << label;
    }
    EXPECT_EQ(compiled.spill_bytes, 0U) << label;
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, GeneralCompiles, testing::ValuesIn(kArchs),
                         [](const auto& arch) { return "sm_" + std::to_string(arch.param); });

TEST(Nvrtc, ErrorsCarryTheLog) {
  KernelSource source = general_source({});
  source.config += "this is not C++;\n";
  try {
    compile(source, 80);
    FAIL() << "a broken source must not compile";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("general.cuh"), std::string::npos) << message;
    EXPECT_NE(message.find("config("), std::string::npos) << "the log should name the file and line: " << message;
  }
}

TEST(Nvrtc, LocalMemoryIsSeen) {
  KernelSource source = general_source({});
  source.config += R"(
    extern "C" __global__ void uses_local_memory(int* out, int n) {
      int table[64];
      for (int i = 0; i < n; ++i) table[out[i] & 63] = i;
      out[0] = table[n & 63];
    })";
  const Compiled compiled = compile(source, 80);
  EXPECT_GE(compiled.spill_bytes, 256U) << compiled.log;
}

TEST(Nvrtc, StatisticsOfEveryVersionAreRead) {
  Compiled compiled;
  read_statistics(
      "ptxas info    : Used 32 registers, 128 bytes smem, 364 bytes cmem[0]\n"
      "ptxas         .     160 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n",
      compiled);
  EXPECT_EQ(compiled.registers, 32);
  EXPECT_EQ(compiled.shared_bytes, 128U);
  EXPECT_EQ(compiled.spill_bytes, 160U);
  read_statistics("ptxas info : Used 168 registers, used 1 barriers, 24 bytes cumulative stack size, 49152 bytes smem",
                  compiled);
  EXPECT_EQ(compiled.registers, 168);
  EXPECT_EQ(compiled.shared_bytes, 49152U);
  EXPECT_EQ(compiled.spill_bytes, 24U);
  read_statistics("", compiled);
  EXPECT_EQ(compiled.registers, 0);
  EXPECT_EQ(compiled.spill_bytes, 0U);
}

std::string option(int arch, int major, int minor, const std::vector<int>& supported) {
  const std::optional<Target> target = target_for(arch, major, minor, supported);
  return target ? target->option() : "none";
}

TEST(Nvrtc, ChoosesTheTarget) {
  const std::vector<int> cuda_11_8 = {35, 50, 70, 75, 80, 86, 87, 89, 90};
  const std::vector<int> cuda_12_4 = {50, 70, 75, 80, 86, 87, 89, 90};
  const std::vector<int> cuda_13_0 = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
  EXPECT_EQ(option(80, 11, 8, cuda_11_8), "--gpu-architecture=sm_80");
  EXPECT_EQ(option(90, 11, 8, cuda_11_8), "--gpu-architecture=sm_90");
  EXPECT_EQ(option(90, 12, 4, cuda_12_4), "--gpu-architecture=sm_90a");
  EXPECT_EQ(option(100, 12, 4, cuda_12_4), "--gpu-architecture=compute_90");
  EXPECT_EQ(option(120, 12, 4, cuda_12_4), "--gpu-architecture=compute_90");
  EXPECT_EQ(option(100, 13, 0, cuda_13_0), "--gpu-architecture=sm_100a");
  EXPECT_EQ(option(120, 13, 0, cuda_13_0), "--gpu-architecture=sm_120");
  EXPECT_EQ(option(70, 13, 0, cuda_13_0), "none");
}

TEST(Nvrtc, FindsTheLibraryBesidePackages) {
  std::string pattern = (fs::temp_directory_path() / "tconv-nvrtc-XXXXXX").string();
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  const fs::path packages = fs::path(pattern) / "lib/python3.11/site-packages";
  fs::create_directories(packages / "torch/lib");
  fs::create_directories(packages / "nvidia/cu13/lib");
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc-builtins.so.13.0"}) {
    std::ofstream(packages / "nvidia/cu13/lib" / name) << "x";
  }
  const std::vector<std::string> folders = folders_beside(packages / "torch/lib/libtorch_cpu.so");
  ASSERT_EQ(folders.size(), 2U);
  EXPECT_EQ(folders[0], packages / "nvidia/cu13/lib");
  EXPECT_EQ(folders[1], packages / "torch/lib");
  const std::vector<std::string> files = nvrtc_files(folders[0]);
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(fs::path(files[0]).filename(), "libnvrtc.so.13");
  EXPECT_EQ(fs::path(files[2]).filename(), "libnvrtc.so.11.2");
  EXPECT_TRUE(folders_beside("/usr/lib/libm.so.6").empty());
  EXPECT_TRUE(nvrtc_files(packages / "missing").empty());
  fs::remove_all(pattern);
}

TEST(KernelCache, KeyDependsOnWhatTheCodeDependsOn) {
  const KernelSource source = general_source({});
  const Digest key = key_of(source, 80);
  EXPECT_EQ(key, key_of(source, 80));
  EXPECT_NE(key, key_of(source, 90));
  EXPECT_NE(key, key_of(general_source({.dtype = DType::f64}), 80));
  KernelSource other = source;
  other.entry = "another";
  EXPECT_NE(key, key_of(other, 80));
}

TEST(KernelCache, BytesRoundTripAndRefuseDamage) {
  const Compiled made{
      .cubin = std::string("\0code\0", 6), .registers = 40, .spill_bytes = 3, .shared_bytes = 4096, .log = "log"};
  const std::string bytes = to_bytes(made);
  const std::optional<Compiled> read = from_bytes(bytes);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->cubin, made.cubin);
  EXPECT_EQ(read->registers, 40);
  EXPECT_EQ(read->spill_bytes, 3U);
  EXPECT_EQ(read->shared_bytes, 4096U);
  EXPECT_EQ(read->log, "log");
  for (std::size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(from_bytes(bytes.substr(0, size)).has_value());
  EXPECT_FALSE(from_bytes(bytes + "x").has_value());
}

TEST(KernelCache, TheDiskSparesACompilationAndDamageDoesNotHarm) {
  std::string folder = (fs::temp_directory_path() / "tconv-kernels-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const DiskCache disk(folder);
  const KernelSource source = general_source({});
  const Digest key = key_of(source, 80);
  const Compiled first = compile_through(disk, source, 80);
  ASSERT_TRUE(disk.read(key).has_value());

  Compiled marked = first;
  marked.log = "came from the disk";
  ASSERT_TRUE(disk.write(key, to_bytes(marked)));
  EXPECT_EQ(compile_through(disk, source, 80).log, "came from the disk");

  fs::resize_file(disk.path_of(key), 100);
  const Compiled again = compile_through(disk, source, 80);
  EXPECT_EQ(again.cubin, first.cubin);
  EXPECT_EQ(compile_through(disk, source, 80).cubin, first.cubin);

  ASSERT_TRUE(disk.write(key, "an entry whose checksum is right and whose content is not"));
  EXPECT_EQ(compile_through(disk, source, 80).cubin, first.cubin);
  fs::remove_all(folder);
}

TEST(KernelCache, ThreadsShareOneCompilation) {
  const KernelSource source = general_source({.bundle = 4});
  std::vector<std::shared_ptr<const Compiled>> results(16);
  {
    std::vector<std::jthread> threads;
    for (auto& result : results) threads.emplace_back([&] { result = compiled(source, 80); });
  }
  for (const auto& result : results) EXPECT_EQ(result, results.front());
}

TEST(OnceMap, MakesOnceAndForgetsFailures) {
  OnceMap<int, int> map;
  std::atomic<int> made{0};
  std::atomic<int> failed{0};
  const auto ask_all = [&](bool fail) {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 16; ++i) {
      threads.emplace_back([&] {
        try {
          EXPECT_EQ(map.get(7,
                            [&] {
                              std::this_thread::sleep_for(std::chrono::milliseconds(20));
                              if (fail) throw Error("not today");
                              ++made;
                              return 42;
                            }),
                    42);
        } catch (const Error&) {
          ++failed;
        }
      });
    }
  };
  ask_all(true);
  EXPECT_EQ(failed, 16);
  ask_all(false);
  EXPECT_EQ(made, 1);
}

// Processor time, since the machine may be busy with other things.
TEST(Nvrtc, ColdCompileIsQuick) {
  compile(general_source({.bundle = 4}), 90);
  const std::clock_t start = std::clock();
  compile(general_source({.bundle = 4}), 90);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  RecordProperty("milliseconds", static_cast<int>(seconds * 1e3));
  EXPECT_LT(seconds, 0.6);
}

}  // namespace
}  // namespace tconv::cuda
