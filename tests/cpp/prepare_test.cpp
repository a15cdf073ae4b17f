#include "tconv/prepare.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "tconv/error.h"

namespace tconv {
namespace {

class CountingKernel final : public Kernel {
 public:
  CountingKernel(std::atomic<int>& count, bool fails) : count_(count), fails_(fails) {}
  void run(const Buffers& /*buffers*/, const Execution& /*execution*/) const override {}
  void prepare() const override {
    ++count_;
    if (fails_) throw Error("this one does not compile");
  }

 private:
  std::atomic<int>& count_;
  bool fails_;
};

std::vector<std::shared_ptr<const Plan>> plans(std::atomic<int>& count, int total, int failing) {
  std::vector<std::shared_ptr<const Plan>> made;
  for (int i = 0; i < total; ++i) {
    auto plan = std::make_shared<Plan>();
    plan->kernel = std::make_shared<CountingKernel>(count, i == failing);
    made.push_back(std::move(plan));
  }
  return made;
}

TEST(Prepare, PreparesEachPlanOnceAndReportsProgress) {
  std::atomic<int> count{0};
  std::vector<std::size_t> seen;
  prepare(plans(count, 100, -1), [&](std::size_t done, std::size_t total) {
    EXPECT_EQ(total, 100U);
    seen.push_back(done);
  });
  EXPECT_EQ(count, 100);
  ASSERT_EQ(seen.size(), 100U);
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i + 1);
}

TEST(Prepare, OneFailureStopsNoOther) {
  std::atomic<int> count{0};
  EXPECT_THROW(prepare(plans(count, 20, 3)), Error);
  EXPECT_EQ(count, 20);
}

TEST(Prepare, NothingToDo) { EXPECT_NO_THROW(prepare(std::vector<std::shared_ptr<const Plan>>{})); }

}  // namespace
}  // namespace tconv
