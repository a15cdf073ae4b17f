#include "cpu/families.h"
#include "cpu/phases_kernels.h"
#include "tconv/error.h"

namespace tconv::cpu {

Proposal propose_phases(const Problem& problem, const DeviceProperties& device) {
  switch (problem.direction) {
    case Direction::forward:
    case Direction::grad_input: return propose_correlate(problem, device);
    case Direction::grad_weight: return propose_grad_weight(problem);
    case Direction::grad_bias: return propose_grad_bias(problem);
  }
  throw Error("unknown direction " + std::to_string(static_cast<int>(problem.direction)));
}

}  // namespace tconv::cpu
