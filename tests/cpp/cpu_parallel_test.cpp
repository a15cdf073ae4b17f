#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/parallel.h"
#include "cpu/phases_kernels.h"

namespace tconv {
namespace {

TEST(ParallelFor, CoversEveryIndexOnce) {
  for (const std::int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
    for (const std::int64_t grain : {1, 3, 64, 5000}) {
      std::vector<std::atomic<int>> visits(count);
      parallel_for({}, count, grain, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_LT(begin, end);
        for (std::int64_t i = begin; i < end; ++i) ++visits[i];
      });
      for (const auto& visit : visits) EXPECT_EQ(visit.load(), 1) << "count " << count << ", grain " << grain;
    }
  }
}

TEST(ParallelFor, PiecesAreAtLeastTheGrain) {
  parallel_for({}, 1000, 300, [](std::int64_t begin, std::int64_t end) { EXPECT_GE(end - begin, 300); });
}

TEST(ParallelFor, NestedCallsRunInline) {
  std::atomic<int> visits{0};
  parallel_for({}, 50, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto outer = std::this_thread::get_id();
      parallel_for({}, 20, 1, [&](std::int64_t inner_begin, std::int64_t inner_end) {
        EXPECT_EQ(std::this_thread::get_id(), outer);
        EXPECT_EQ(inner_end - inner_begin, 20);
        visits += static_cast<int>(inner_end - inner_begin);
      });
    }
  });
  EXPECT_EQ(visits.load(), 1000);
}

TEST(ParallelFor, PassesOnAnExceptionAndStaysUsable) {
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(parallel_for({}, 100, 1,
                              [](std::int64_t begin, std::int64_t end) {
                                if (begin <= 37 && 37 < end) throw std::runtime_error("37");
                              }),
                 std::runtime_error);
    std::atomic<std::int64_t> sum{0};
    parallel_for({}, 100, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
    EXPECT_EQ(sum.load(), 100);
  }
}

TEST(ForEachStep, BeginsWhenTheStepBeforeIsDone) {
  const std::vector<std::int64_t> counts = {5, 1, 40, 0, 7};
  std::vector<std::atomic<std::int64_t>> done(counts.size());
  cpu::for_each_step({}, counts, [&](std::size_t step, std::int64_t task) {
    EXPECT_LT(task, counts[step]);
    for (std::size_t before = 0; before < step; ++before) EXPECT_EQ(done[before].load(), counts[before]);
    ++done[step];
  });
  for (std::size_t step = 0; step < counts.size(); ++step) EXPECT_EQ(done[step].load(), counts[step]);
}

TEST(ForEachStep, PassesOnAnException) {
  EXPECT_THROW(cpu::for_each_step({}, {9, 9},
                                  [](std::size_t step, std::int64_t task) {
                                    if (step == 0 && task == 4) throw std::runtime_error("4");
                                  }),
               std::runtime_error);
}

TEST(ParallelFor, ServesSeveralCallersAtOnce) {
  std::vector<std::thread> callers;
  std::vector<std::int64_t> sums(8, 0);
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([caller, &sums] {
      for (int round = 0; round < 50; ++round) {
        std::atomic<std::int64_t> sum{0};
        parallel_for({}, 200, 1, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) sum += i;
        });
        sums[caller] += sum.load();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::int64_t sum : sums) EXPECT_EQ(sum, 50 * 199 * 200 / 2);
}

TEST(ParallelFor, UsesTheCallersThreadsWhenGiven) {
  int calls = 0;
  Execution execution;
  execution.parallel_for = [&](std::int64_t count, std::int64_t grain, const ParallelBody& body) {
    ++calls;
    EXPECT_EQ(grain, 5);
    body(0, count / 2);
    body(count / 2, count);
  };
  std::int64_t visited = 0;
  parallel_for(execution, 11, 5, [&](std::int64_t begin, std::int64_t end) { visited += end - begin; });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(visited, 11);
}

TEST(ParallelFor, ThreadCountIsPositive) { EXPECT_GE(thread_count(), 1); }

}  // namespace
}  // namespace tconv
