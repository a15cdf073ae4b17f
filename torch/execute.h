// Tensor -> Problem -> Plan -> run, for real dtypes on one device.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string_view>

#include "geometry.h"
#include "tconv/plan.h"
#include "tconv/problem.h"
#include "tconv/tune.h"

namespace tconv::front {

// The tensors of one run. The one that the direction names is written, in its own strides; the others are read in
// place, in theirs. A tensor that the direction does not touch may be undefined.
struct Operands {
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor output;
};

// A workspace that outlives the call, and the value of planning() before the call that made it.
struct Kept {
  at::Tensor workspace;
  std::int64_t planning = 0;
};

// What runs at the same time: nothing, a gradient on another stream (Problem::beside), or one that was started before
// on the same stream (Execution::beside_previous).
enum class Company { none, other_stream, previous };

// A run on the current stream, with its plan and its memory in hand before it starts.
class Run {
 public:
  // `kept` is a workspace as an earlier call with the same arguments left it, with the weights in it; it is made here
  // where it is undefined, or belongs to another plan.
  Run(const Geometry<std::int64_t>& geometry, Direction direction, const Operands& operands, Kept* kept = nullptr,
      Company company = Company::none);

  void start() const;

  // On a CPU, grad_input (this) and grad_weight, at once or one after the other; both use the larger workspace.
  void start_with(Run& grad_weight);

 private:
  c10::Device place_;
  std::shared_ptr<const Plan> plan_;
  at::Tensor workspace_;  // freed in stream order by PyTorch's allocator
  Buffers buffers_;
  Execution execution_;
};

inline void execute(const Geometry<std::int64_t>& geometry, Direction direction, const Operands& operands,
                    Kept* kept = nullptr, Company company = Company::none) {
  Run(geometry, direction, operands, kept, company).start();
}

// What is known of a run before it takes place: how long it is expected to take (0: no estimate), whether it shares the
// GPU with a neighbour on its stream (Kernel::overlaps), whether it has more tiles than fit at once
// (Kernel::queues), and whether its plan was chosen by measurement.
struct Outlook {
  double seconds = 0;
  bool overlaps = false;
  bool queues = false;
  bool tuned = false;
};
Outlook outlook(const Geometry<std::int64_t>& geometry, Direction direction, const Operands& operands);

// Times the ways to compute it against each other. The tensor that the direction names is overwritten.
Race race_of(const Geometry<std::int64_t>& geometry, Direction direction, const Operands& operands, int most_cuts);

// Whether work on a CPU is shared among PyTorch's threads. at::parallel_for lives in PyTorch's headers, and where this
// is compiled without -fopenmp it is a plain loop: then the library's own threads work.
bool uses_pytorch_threads();

// The family that every later plan must use; empty: no constraint. For the whole process, meant for tests.
void force_family(std::string_view family);
std::string_view forced_family();

// A number that changes when a call may be planned in another way than before.
std::int64_t planning();

// Whether problems that are met for the first time are tuned: TCONV_AUTOTUNE=1, or somebody asked for it. For the whole
// process, since gradients are computed on threads of PyTorch's own. Every begin has an end.
bool autotuning();
void autotune(bool begin);

}  // namespace tconv::front
