// What every fast CPU family must keep: the same bits for any number of threads, and for a sample alone or in a batch.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "cpu/caches.h"
#include "cpu/families.h"
#include "cpu_support.h"

namespace tconv::test {

// The instruction set in force while this lives.
class Target {
 public:
  explicit Target(const std::string& name) { cpu::use_target(name); }
  ~Target() { cpu::use_target(""); }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
};

// Layers that `draw` makes, `count` of them, each judged by `check`, which is false where the family declines: one in
// `share` at least must not.
template <typename Draw, typename Check>
void check_random_problems(Random& random, int count, int share, const Draw& draw, const Check& check) {
  int taken = 0;
  for (int i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
    const Problem problem = draw(random);
    Tensors tensors(problem, random);
    compute_exact(problem, tensors);
    taken += check(problem, tensors) ? 1 : 0;
  }
  EXPECT_GE(taken, count / share) << "of " << count;
}

// The same layers by every instruction set of the machine.
template <typename Draw, typename Check>
void check_every_target(Random& random, int count, int share, const Draw& draw, const Check& check) {
  std::vector<Problem> problems;
  std::vector<Tensors> tensors;
  for (int i = 0; i < count; ++i) {
    problems.push_back(draw(random));
    compute_exact(problems.back(), tensors.emplace_back(problems.back(), random));
  }
  for (const std::string& name : cpu::target_names()) {
    const Target target(name);
    SCOPED_TRACE(name);
    int taken = 0;
    for (std::size_t i = 0; i < problems.size(); ++i) taken += check(problems[i], tensors[i]) ? 1 : 0;
    EXPECT_GE(taken, count / share);
  }
}

inline Execution on_threads(int threads) {
  Execution execution;
  execution.parallel_for = [threads](std::int64_t count, std::int64_t /*grain*/, const ParallelBody& body) {
    std::vector<std::thread> workers;
    for (std::int64_t t = 0; t < threads; ++t) {
      const std::int64_t begin = count * t / threads;
      const std::int64_t end = count * (t + 1) / threads;
      if (begin < end) workers.emplace_back([&body, begin, end] { body(begin, end); });
    }
    for (std::thread& worker : workers) worker.join();
  };
  return execution;
}

inline void expect_threads_change_nothing(const Problem& problem, const std::string& family, Random& random) {
  Tensors tensors(problem, random);
  const auto chosen = plan(problem, {}, family);
  std::vector<std::byte> first;
  const auto run_on = [&](const Plan& each, int threads) {
    tensors.result(problem).poison();
    run_with_workspace(each, tensors.buffers(), on_threads(threads));
    if (first.empty()) first = tensors.result(problem).bytes;
    EXPECT_EQ(first, tensors.result(problem).bytes) << threads << " threads: " << to_string(problem);
  };
  for (const int threads : {1, 2, 3, 7}) run_on(*chosen, threads);
  // Nor do those that it is planned for.
  for (const int threads : {1, 2, 3, 7, 16}) {
    DeviceProperties device = cpu::properties();
    device.threads = threads;
    Plan planned = *chosen;
    const Proposal proposal = std::ranges::find(cpu::families(), family, &Family::name)->propose(problem, device);
    planned.kernel = proposal.kernel;
    planned.workspace_bytes = proposal.workspace_bytes;
    run_on(planned, 2);
  }
}

// The same bits where results go past the caches, by every instruction set; the result begins at `offset` elements
// after a cache line.
inline void expect_past_caches_is_the_same(const Problem& problem, const std::string& family, std::int64_t offset,
                                           Random& random) {
  Tensors tensors(problem, random);
  Tensor& result = tensors.result(problem);
  const auto size = static_cast<std::int64_t>(size_of(problem.dtype));
  std::vector<std::byte> memory(result.bytes.size() + 256);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  std::byte* const place = memory.data() + (64 - address % 64) + 64 + offset * size;
  Buffers buffers = tensors.buffers();
  (problem.direction == Direction::forward ? buffers.output : buffers.input) = place;
  const std::int64_t bytes = (Extent(result.sizes, result.strides).highest + 1) * size;
  for (const std::string& name : cpu::target_names()) {
    const Target target(name);
    const auto chosen = plan(problem, {}, family);
    std::vector<std::byte> first;
    for (const std::int64_t last : {-1, 0}) {
      std::fill(memory.begin(), memory.end(), std::byte{0xff});
      cpu::use_last_cache(last);
      run_with_workspace(*chosen, buffers, on_threads(2));
      if (first.empty()) first = memory;
      EXPECT_EQ(first, memory) << name << ": " << to_string(problem);
    }
    EXPECT_TRUE(std::all_of(memory.data(), place, [](std::byte byte) { return byte == std::byte{0xff}; }));
    EXPECT_TRUE(std::all_of(place + bytes, memory.data() + memory.size(),
                            [](std::byte byte) { return byte == std::byte{0xff}; }));
  }
  cpu::use_last_cache(-1);
}

// forward or grad_input of sample `image` alone, in the same strides, beside that of the whole batch.
inline void expect_sample_alone_is_the_same(const Problem& problem, const std::string& family, std::int64_t image,
                                            Random& random) {
  Tensors all(problem, random);
  run_with_workspace(*plan(problem, {}, family), all.buffers());
  Problem one = problem;
  one.batch = 1;
  Tensors alone(one, random);
  alone.weight.bytes = all.weight.bytes;
  alone.bias.bytes = all.bias.bytes;
  const bool forward = problem.direction == Direction::forward;
  Tensor& source = forward ? alone.input : alone.output;
  const Tensor& sources = forward ? all.input : all.output;
  for_each_offset(source.sizes, source.strides,
                  [&](std::int64_t offset) { source.set(offset, sources.get(offset + image * source.strides[0])); });
  run_with_workspace(*plan(one, {}, family), alone.buffers());
  const Tensor& result = alone.result(one);
  std::int64_t different = 0;
  for_each_offset(result.sizes, result.strides, [&](std::int64_t offset) {
    different += result.get(offset) != all.result(problem).get(offset + image * result.strides[0]) ? 1 : 0;
  });
  EXPECT_EQ(different, 0) << to_string(problem);
}

}  // namespace tconv::test
