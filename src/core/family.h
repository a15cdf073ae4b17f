// A kernel family: one way to compute some of the problems. Each backend keeps an ordered list of them.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tconv/plan.h"

namespace tconv {

// What a planner may know of a device. A planner makes no call to the device itself, so that it can be tested without
// one.
struct DeviceProperties {
  Device device;
  std::string name;

  // CPU
  int threads = 1;

  // GPU
  int arch = 0;           // 80, 86, 89, 90, 100, 120
  bool has_wgmma = true;  // of sm_90: the compiler at hand knows sm_90a
  int multiprocessors = 1;
  std::size_t shared_bytes_per_block = 0;  // the opt-in limit
  std::size_t shared_bytes_per_multiprocessor = 0;
  double bandwidth = 0;    // bytes per second, copy
  double fp32_rate = 0;    // multiply-adds and adds counted apart, per second, CUDA cores
  double tf32_rate = 0;    // tensor cores; fp16 and bf16 run at twice this rate
  bool any_batch = false;  // launches must fit other batches, too: the workspace may not grow with the batch
};

// A family's answer: a kernel, or the reason why it declines.
struct Proposal {
  std::shared_ptr<const Kernel> kernel;
  std::size_t workspace_bytes = 0;
  double expected_seconds = 0;
  std::string declined;

  static Proposal decline(std::string reason) {
    Proposal proposal;
    proposal.declined = std::move(reason);
    return proposal;
  }
};

struct Family {
  std::string_view name;  // the word that TCONV_FORCE takes
  Proposal (*propose)(const Problem& problem, const DeviceProperties& device);
  // What it accepts is its own, whatever the others would expect to take: expected times depend on the batch, and a
  // sample's bits must not.
  bool exclusive = false;
  // A family that can cut a problem in several ways: the way at `index` of its list, best first, 0 being propose's.
  Proposal (*propose_cut)(const Problem& problem, const DeviceProperties& device, int index) = nullptr;
  // Why it should leave a problem to others although it could compute it, or empty: asked where it is not forced. Like
  // what it accepts, that may not depend on the batch.
  std::string (*why_rather_not)(const Problem& problem, const DeviceProperties& device) = nullptr;
};

// Asks every family in turn and keeps the first that accepts or, where families state expected times, the fastest;
// after an exclusive one that accepts, no other is asked. `force` is empty, "family" or "family#index", the index
// naming one of the family's cuts. Pure: no device call, no environment.
Plan make_plan(const Problem& problem, const DeviceProperties& device, std::span<const Family> families,
               std::string_view force);

// Puts a plan where `plan` finds it, in place of what is there.
void adopt(std::shared_ptr<const Plan> plan);
// Makes `plan` plan everything anew: what plans hold depends on the instruction set, which tests choose.
void forget_plans();

namespace cpu {
std::span<const Family> families();
DeviceProperties properties();
}  // namespace cpu

namespace cuda {
std::span<const Family> families();
DeviceProperties properties(int index);  // Error when the device can't be used, saying why
// The plan that was measured to be the fastest, if the problem was tuned before on a GPU like this one.
std::optional<Plan> tuned_plan(const Problem& problem, const DeviceProperties& device);
}  // namespace cuda

}  // namespace tconv
