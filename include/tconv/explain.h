// A problem explained to a person: output size, phases drawn as a lattice, the plan and why the others declined.
#pragma once

#include <string>

#include "tconv/plan.h"
#include "tconv/problem.h"

namespace tconv {

// Per axis: output length, each phase's taps and inputs, and which taps reach which of the first outputs.
std::string explain_phases(const Problem& problem);

// explain_phases, then the plan on `device` and each family's reason for declining.
std::string explain(const Problem& problem, const Device& device = {});

}  // namespace tconv
