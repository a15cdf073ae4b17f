#include "tconv/launches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "cuda/kernels/tile_params.cuh"
#include "cuda/source.h"
#include "direct_case.h"
#include "tconv/error.h"

namespace tconv {
namespace {

using test::axis;
using test::make;

TEST(Launches, NotesWhatARunWouldLaunch) {
  const Problem problem = make(2, 64, 64, 1, {axis(512, 3, 1, 0), axis(512, 7, 1, 0)});
  const LaunchRecord record = record_launches(problem, GpuModel::hopper);
  EXPECT_EQ(record.family, "tile");
  EXPECT_FALSE(record.description.empty());
  ASSERT_EQ(record.launches.size(), 2U);  // weights are packed first
  EXPECT_EQ(record.launches[0].entry, "tconv_tile_pack");
  EXPECT_EQ(record.launches[0].arguments.size(), 2U);
  const Launch& launch = record.launches[1];
  EXPECT_EQ(launch.entry, "tconv_tile");
  EXPECT_GT(launch.grid[0], 1U);
  EXPECT_EQ(launch.block % 128, 0U);
  ASSERT_EQ(launch.arguments.size(), 1U);
  TileParams params{};
  ASSERT_EQ(launch.arguments[0].size(), sizeof(params));
  std::memcpy(&params, launch.arguments[0].data(), sizeof(params));
  EXPECT_EQ(params.batch, 2);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(params.input), kMarkerDistance);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(params.output), 4 * kMarkerDistance);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(params.weight), 5 * kMarkerDistance);  // the workspace
}

// Every direction, type and kind of GPU, with kernels that the library carries.
TEST(Launches, CoverEveryPlan) {
  const std::vector<KernelFile> files = kernel_files();
  int launches = 0;
  for (const GpuModel gpu : {GpuModel::ampere, GpuModel::hopper}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      for (const std::int64_t groups : {1, 4, 32}) {
        for (const Direction direction :
             {Direction::forward, Direction::grad_input, Direction::grad_weight, Direction::grad_bias}) {
          Problem problem = make(2, 32, 32, groups, {axis(24, 3, 2, 1), axis(40, 3, 2, 1)});
          problem.dtype = dtype;
          problem.direction = direction;
          for (const Launch& launch : record_launches(problem, gpu).launches) {
            ++launches;
            EXPECT_TRUE(std::any_of(files.begin(), files.end(),
                                    [&](const KernelFile& file) { return file.name == launch.file; }));
            EXPECT_LE(launch.dynamic_shared_bytes, (gpu == GpuModel::ampere ? 99U : 227U) * 1024);
            EXPECT_FALSE(launch.arguments.empty());
            EXPECT_GT(launch.grid[0], 0U);
          }
        }
      }
    }
  }
  EXPECT_GE(launches, 96);
}

// What the copy engine knows of a tensor holds for one address and one batch.
TEST(Launches, HaveNoMaps) {
  for (const Direction direction : {Direction::forward, Direction::grad_input}) {
    Problem problem = make(2, 64, 64, 1, {axis(136, 1, 1, 0)});
    problem.dtype = DType::bf16;
    problem.direction = direction;
    for (const Launch& launch : record_launches(problem, GpuModel::hopper).launches)
      EXPECT_EQ(launch.config.find("#define kMaps 1"), std::string::npos);
  }
}

TEST(Launches, ForceAndRules) {
  const Problem problem = make(2, 64, 64, 1, {axis(32, 4, 2, 1)});
  EXPECT_EQ(record_launches(problem, GpuModel::ampere, "general").family, "general");
  EXPECT_THROW(record_launches(problem, GpuModel::ampere, "depthwise"), Error);
  Problem broken = problem;
  broken.groups = 3;
  EXPECT_THROW(record_launches(broken, GpuModel::ampere), Error);
}

}  // namespace
}  // namespace tconv
