#include "fresh.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>

#include "kept_memory.h"

namespace tconv::front {
namespace {

bool is_large(at::IntArrayRef sizes, std::size_t itemsize) {
  double bytes = static_cast<double>(itemsize);
  for (const std::int64_t size : sizes) bytes *= static_cast<double>(size);
  return bytes >= static_cast<double>(kFewestKeptBytes);
}

// Whoever debugs wants at::empty to fill memory.
bool wants_filled() {
  const at::Context& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

}  // namespace

at::Tensor fresh(at::IntArrayRef sizes, const at::TensorOptions& options, at::MemoryFormat format) {
  const bool keeps = options.device().is_cpu() && !options.pinned_memory() &&
                     is_large(sizes, options.dtype().itemsize()) && !wants_filled();
  c10::Allocator* const allocator = keeps ? kept_memory() : nullptr;
  if (allocator == nullptr) return at::empty(sizes, options.memory_format(format));
  return at::detail::empty_generic(sizes, allocator, c10::DispatchKeySet(c10::DispatchKey::CPU),
                                   c10::typeMetaToScalarType(options.dtype()), format);
}

}  // namespace tconv::front
