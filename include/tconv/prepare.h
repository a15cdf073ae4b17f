// Compiling ahead of the first call.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "tconv/plan.h"

namespace tconv {

// Called after each plan that is done, from one thread at a time.
using PrepareProgress = std::function<void(std::size_t done, std::size_t total)>;

// Does what the plan's first run would otherwise do. A plan that was prepared can run inside a CUDA Graph capture.
void prepare(const Plan& plan);

// Prepares many plans on several threads. One that fails does not keep the others from being prepared; the first
// failure is thrown at the end.
void prepare(std::span<const std::shared_ptr<const Plan>> plans, const PrepareProgress& progress = {});

}  // namespace tconv
