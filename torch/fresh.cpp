#include "fresh.h"

#include <ATen/ops/empty.h>

#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace tconv::front {
namespace {

void prefer_large_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr std::uintptr_t kLargePage = std::uintptr_t{2} << 20U;
  // Pages that lie within the tensor alone; a few of them are not worth the call.
  constexpr std::uintptr_t kFewest = 2;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (address + kLargePage - 1) / kLargePage * kLargePage;
  const std::uintptr_t end = (address + bytes) / kLargePage * kLargePage;
  // A system that refuses goes on with small pages.
  if (end >= begin + kFewest * kLargePage) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace

at::Tensor fresh(at::IntArrayRef sizes, const at::TensorOptions& options, at::MemoryFormat format) {
  at::Tensor tensor = at::empty(sizes, options.memory_format(format));
  if (tensor.is_cpu()) prefer_large_pages(tensor.mutable_data_ptr(), tensor.nbytes());
  return tensor;
}

}  // namespace tconv::front
