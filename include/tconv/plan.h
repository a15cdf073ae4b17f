// How a problem will be computed. Planning chooses; running a plan chooses nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tconv/problem.h"

namespace tconv {

enum class Backend : std::uint8_t { cpu, cuda };

struct Device {
  Backend backend = Backend::cpu;
  int index = 0;

  bool operator==(const Device&) const = default;
};

// The tensors of a problem, in the strides that the problem states. The one that Problem::direction names is written,
// every element of it; the others are read and may be null when the direction does not read them.
struct Buffers {
  void* input = nullptr;
  void* weight = nullptr;
  void* bias = nullptr;
  void* output = nullptr;
  void* workspace = nullptr;  // Plan::workspace_bytes, aligned to 256 bytes
  // The workspace is as a run of this plan left it, with these weights at these values and tensors of this alignment:
  // what it holds of the weights is taken as it is. A kernel that keeps nothing there ignores this.
  bool weights_kept = false;
};

// Runs body(begin, end) over disjoint pieces that cover [0, count), possibly at the same time, each of at least `grain`
// where that is possible; returns when all have run, and passes on an exception.
using ParallelBody = std::function<void(std::int64_t begin, std::int64_t end)>;
using ParallelFor = std::function<void(std::int64_t count, std::int64_t grain, const ParallelBody& body)>;

// Where a run takes place: whose threads (empty: the library's own) and, on a GPU, which stream.
struct Execution {
  ParallelFor parallel_for;
  void* stream = nullptr;
  // The run before on the stream reads and writes nothing that this one writes, nothing was launched since, and both
  // kernels overlap (Kernel): they may take place at the same time.
  bool beside_previous = false;
};

// A family's answer to one problem, immutable and shared by every thread that runs the plan.
class Kernel {
 public:
  Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  virtual ~Kernel() = default;

  virtual void run(const Buffers& buffers, const Execution& execution) const = 0;
  // grad_weight's kernel: computes it together with grad_input, whose kernel and tensors these are, where that is
  // faster and possible; otherwise false, and nothing was done. The workspace is that of grad_weight.
  virtual bool run_with(const Kernel& /*grad_input*/, const Buffers& /*of_input*/, const Buffers& /*of_weight*/,
                        const Execution& /*execution*/) const {
    return false;
  }
  // Does ahead what the first run would otherwise do (compile, load).
  virtual void prepare() const {}
  // Whether a run shares the GPU with a neighbour on its stream (see Execution): grad_input with the next one, which it
  // lets start while it lasts (it has no workspace, which could become the other's), grad_weight with the one before.
  virtual bool overlaps() const { return false; }
  // Whether it is known to have more tiles than a GPU holds at once.
  virtual bool queues() const { return false; }
  // Tile, grid, stages: whatever a person wants to see in `explain`.
  virtual std::string describe() const { return {}; }
};

struct Declined {
  std::string family;
  std::string reason;
};

struct Plan {
  Problem problem;
  Device device;
  std::string family;
  std::size_t workspace_bytes = 0;
  double expected_seconds = 0;  // 0: the family has no estimate
  bool tuned = false;           // chosen because it was measured to be the fastest
  std::vector<Declined> declined;
  std::shared_ptr<const Kernel> kernel;
};

// Validates the problem and returns its plan: from the plan cache, or from the planner. `force` names the only family
// that may be chosen (Error if it declines), or with "family#2" the third of its cuts; empty means the value of
// TCONV_FORCE, and with that unset the best one.
std::shared_ptr<const Plan> plan(const Problem& problem, const Device& device = {}, std::string_view force = {});

// A number that grows when a problem that was planned before may get another plan from now on (see tune.h). What was
// kept of a plan's workspace belongs to the number that was read before the plan was asked for.
std::uint64_t plan_generation();

// Names of the families of a backend, in the order in which they are asked.
std::vector<std::string> families(Backend backend);

void run(const Plan& plan, const Buffers& buffers, const Execution& execution = {});

// Both gradients of a layer, in one pass over the gradient of the output where their kernels can, otherwise one after
// the other. Their workspaces may be the same memory.
void run_both(const Plan& grad_input, const Buffers& of_input, const Plan& grad_weight, const Buffers& of_weight,
              const Execution& execution = {});

std::string to_string(const Plan& plan);

}  // namespace tconv
