// The directions of the "phases" family. Each is a kernel that is ready to run: blocking is chosen when it is made.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/family.h"
#include "core/parallel.h"
#include "cpu/families.h"
#include "cpu/scalar.h"
#include "tconv/error.h"

namespace tconv::cpu {

// The longest packed line of one channel that is worth holding; problems beyond it (an enormous dilation on a tiny
// image) are left to the reference.
inline constexpr std::int64_t kLongestLine = std::int64_t{1} << 22;

// forward and grad_input
Proposal propose_correlate(const Problem& problem, const DeviceProperties& device);
Proposal propose_grad_weight(const Problem& problem, const DeviceProperties& device);
Proposal propose_grad_bias(const Problem& problem);
// Parts of the "depthwise" family: forward along rows, gradients along channels, along rows where they are, and along
// copied rows.
Proposal propose_depthwise_rows(const Problem& problem);
Proposal propose_depthwise_gradients(const Problem& problem);
Proposal propose_depthwise_line_gradients(const Problem& problem);
Proposal propose_depthwise_row_gradients(const Problem& problem);
Proposal propose_depthwise_flat_gradients(const Problem& problem);
// forward and grad_input of few source channels, where channels lie side by side
Proposal propose_row_runs(const Problem& problem);
// forward of few output channels
Proposal propose_tap_rows(const Problem& problem, const DeviceProperties& device);
// kernel == stride where rows lie side by side: forward and grad_input, and grad_weight.
Proposal propose_patch_products(const Problem& problem, const DeviceProperties& device);
Proposal propose_patch_weights(const Problem& problem, const DeviceProperties& device);

// make<E, T>() with the element type of the problem and the type that it is computed in.
template <typename Make>
Proposal with_types(DType dtype, const Make& make) {
  switch (dtype) {
    case DType::f64: return make.template operator()<double, double>();
    case DType::f32: return make.template operator()<float, float>();
    case DType::f16: return make.template operator()<Float16, float>();
    case DType::bf16: return make.template operator()<BFloat16, float>();
  }
  throw Error("unknown dtype " + std::to_string(static_cast<int>(dtype)));
}

// Runs body(task) for all tasks. Threads take the next one when they are done with the last, so that none waits for
// another that was held up.
template <typename Body>
void for_each_task(const Execution& execution, std::int64_t tasks, const Body& body) {
  if (tasks == 1) return body(std::int64_t{0});
  std::atomic<std::int64_t> next{0};
  parallel_for(execution, tasks, 1, [&](std::int64_t /*begin*/, std::int64_t /*end*/) {
    for (std::int64_t task = next.fetch_add(1); task < tasks; task = next.fetch_add(1)) body(task);
  });
}

// Tasks that begin when those of some groups before them are done.
struct TaskGroup {
  std::int64_t tasks = 0;
  std::array<std::int64_t, 2> after = {-1, -1};  // indices of groups; -1: none
};

// Runs body(group, task) for all tasks of all groups, in one parallel region: threads that another program keeps from
// beginning are not waited for at the end of every group. Threads take tasks in order, so that whoever waits, waits for
// tasks that somebody is at.
template <typename Body>
void for_each_group(const Execution& execution, const std::vector<TaskGroup>& groups, const Body& body) {
  std::vector<std::int64_t> ends;
  for (const TaskGroup& group : groups) ends.push_back((ends.empty() ? 0 : ends.back()) + group.tasks);
  const std::int64_t all = ends.empty() ? 0 : ends.back();
  std::atomic<std::int64_t> next{0};
  std::vector<std::atomic<std::int64_t>> done(groups.size());
  std::atomic<bool> failed{false};
  parallel_for(execution, all, 1, [&](std::int64_t /*begin*/, std::int64_t /*end*/) {
    for (std::int64_t task = next.fetch_add(1); task < all; task = next.fetch_add(1)) {
      const auto index = std::upper_bound(ends.begin(), ends.end(), task) - ends.begin();
      const TaskGroup& group = groups[index];
      for (const std::int64_t before : group.after) {
        while (before >= 0 && done[before].load(std::memory_order_acquire) < groups[before].tasks) {
          if (failed.load(std::memory_order_relaxed)) return;
          std::this_thread::yield();
        }
      }
      try {
        body(static_cast<std::size_t>(index), task - (ends[index] - group.tasks));
      } catch (...) {
        failed = true;
        throw;
      }
      done[index].fetch_add(1, std::memory_order_release);
    }
  });
}

// Runs body(step, task) for the counts[step] tasks of each step, one step after the other.
template <typename Body>
void for_each_step(const Execution& execution, const std::vector<std::int64_t>& counts, const Body& body) {
  std::vector<TaskGroup> steps;
  std::int64_t before = -1;  // the last step that has tasks
  for (const std::int64_t count : counts) {
    steps.push_back({count, {before, -1}});
    if (count > 0) before = std::ssize(steps) - 1;
  }
  for_each_group(execution, steps, body);
}

}  // namespace tconv::cpu
