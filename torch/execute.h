// Tensor -> Problem -> Plan -> run, for real dtypes on one device.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "geometry.h"
#include "tconv/problem.h"

namespace tconv::front {

// The tensors of one run. The one that the direction names is written, in its own strides; the others are read in
// place, in theirs. A tensor that the direction does not touch may be undefined.
struct Operands {
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor output;
};

// `kept` is a workspace that outlives the call: made here if it is undefined, and otherwise as an earlier call with the
// same arguments left it.
void execute(const Geometry<std::int64_t>& geometry, Direction direction, const Operands& operands,
             at::Tensor* kept = nullptr);

// Whether work on a CPU is shared among PyTorch's threads. at::parallel_for lives in PyTorch's headers, and where this
// is compiled without -fopenmp it is a plain loop: then the library's own threads work.
bool uses_pytorch_threads();

// The family that every later plan must use; empty: no constraint. For the whole process, meant for tests.
void force_family(std::string_view family);
std::string_view forced_family();

}  // namespace tconv::front
