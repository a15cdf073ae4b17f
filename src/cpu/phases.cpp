#include "cpu/families.h"
#include "cpu/phases_kernels.h"
#include "cpu/wide_rows.h"
#include "cpu/windows.h"
#include "tconv/error.h"

namespace tconv::cpu {

namespace {

Proposal propose_as_it_is(const Problem& problem, const DeviceProperties& device) {
  switch (problem.direction) {
    case Direction::forward: {
      Proposal proposal = propose_patch_products(problem, device);
      if (proposal.kernel == nullptr) proposal = propose_tap_rows(problem, device);
      if (proposal.kernel == nullptr) proposal = propose_row_runs(problem);
      return proposal.kernel != nullptr ? proposal : propose_correlate(problem, device);
    }
    case Direction::grad_input: {
      Proposal proposal = propose_patch_products(problem, device);
      if (proposal.kernel == nullptr) proposal = propose_row_runs(problem);
      if (proposal.kernel == nullptr) proposal = propose_windows(problem);
      return proposal.kernel != nullptr ? proposal : propose_correlate(problem, device);
    }
    case Direction::grad_weight: {
      Proposal proposal = propose_patch_weights(problem, device);
      return proposal.kernel != nullptr ? proposal : propose_grad_weight(problem, device);
    }
    case Direction::grad_bias: return propose_grad_bias(problem);
  }
  throw Error("unknown direction " + std::to_string(static_cast<int>(problem.direction)));
}

}  // namespace

Proposal propose_phases(const Problem& problem, const DeviceProperties& device) {
  const std::optional<Problem> wide = with_wide_rows(problem);
  if (!wide) return propose_as_it_is(problem, device);
  Proposal proposal = propose_as_it_is(*wide, device);
  if (proposal.kernel != nullptr) proposal.kernel = run_with_wide_rows(problem, *wide, proposal.kernel);
  return proposal;
}

}  // namespace tconv::cpu
