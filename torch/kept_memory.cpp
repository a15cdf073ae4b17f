#include "kept_memory.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <mutex>
#include <vector>

#include "tconv/info.h"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace tconv::front {

#ifdef MADV_FREE

namespace {

constexpr std::size_t kLargePage = std::size_t{2} << 20U;
constexpr std::size_t kMostKept = std::size_t{1} << 30U;
constexpr std::size_t kShareOfMemory = 8;
constexpr std::size_t kUnmarkedShareOfMemory = 16;
constexpr std::size_t kSlack = 16;         // a result takes a block that is larger by a sixteenth at most
constexpr std::uint64_t kMostUnused = 64;  // results since a block was put away

struct Block {
  char* mapping = nullptr;  // what the system gave; the memory begins with a large page
  std::size_t mapped = 0;
  char* data = nullptr;
  std::size_t bytes = 0;
  std::uint64_t put_away = 0;
  bool marked = false;  // as memory that the system may take
};

// The machine's or, in a container, as much of it as the container may have.
std::size_t memory_of_machine() {
  std::size_t bytes =
      static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (const char* const path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::size_t limit = 0;
    if (std::ifstream(path) >> limit) bytes = std::min(bytes, limit);  // "max": no number
  }
  return bytes;
}

std::size_t most_kept() {
  if (const int wanted = keep_memory_requested(); wanted >= 0) return static_cast<std::size_t>(wanted) << 20U;
  return std::min(kMostKept, memory_of_machine() / kShareOfMemory);
}

Block map(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  Block block;
  block.bytes = (bytes + page - 1) / page * page;
  block.mapped = block.bytes + kLargePage;
  TORCH_CHECK(block.mapped > bytes, "a result of ", bytes, " bytes is more than a system can address");
  void* const mapping = mmap(nullptr, block.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(mapping != MAP_FAILED, "not enough memory: you tried to allocate ", bytes, " bytes.");
  block.mapping = static_cast<char*>(mapping);
  const auto address = reinterpret_cast<std::uintptr_t>(mapping);
  block.data = block.mapping + (kLargePage - address % kLargePage) % kLargePage;
#ifdef MADV_HUGEPAGE
  // Whole pages alone: the rest of the last one would be memory that nobody uses. A system that refuses goes on with
  // small pages.
  madvise(block.data, block.bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
#endif
  return block;
}

void unmap(const Block& block) { munmap(block.mapping, block.mapped); }

class KeptMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::DeviceType::CPU)};
    Block found = take(bytes);
    auto block = std::make_unique<Block>(found.data != nullptr ? found : map(bytes));
    c10::profiledCPUMemoryReporter().New(block->data, block->bytes);
    void* const data = block->data;
    return {data, block.release(),
            [](void* context) {
              const std::unique_ptr<Block> owned(static_cast<Block*>(context));
              instance().put_away(*owned);
            },
            c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }

  void release() {
    std::vector<Block> all;
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) all = take_surplus(0);
    for (const Block& block : all) unmap(block);
  }

  // Never destroyed: tensors may outlive everything else.
  static KeptMemory& instance() {
    static auto& memory = *new KeptMemory();
    return memory;
  }

 private:
  // A block that fits, as tightly as possible and the last used of equal ones. Nobody waits for anybody here: a process
  // that was forked while another thread was inside goes on without what is kept.
  Block take(std::size_t bytes) {
    std::vector<Block> unused;
    Block found;
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) {
      ++results_;
      auto best = kept_.end();
      for (auto it = kept_.begin(); it != kept_.end(); ++it) {
        const bool fits = it->bytes >= bytes && it->bytes - bytes <= bytes / kSlack;
        if (fits && (best == kept_.end() || it->bytes <= best->bytes)) best = it;
      }
      if (best != kept_.end()) {
        found = *best;
        kept_.erase(best);
      }
      // The longest unused come first.
      while (!kept_.empty() && results_ - kept_.front().put_away > kMostUnused) {
        unused.push_back(kept_.front());
        kept_.erase(kept_.begin());
      }
    }
    for (const Block& block : unused) unmap(block);
    return found;
  }

  void put_away(Block block) {
    c10::profiledCPUMemoryReporter().Delete(block.data);
    if (block.bytes > most_) return unmap(block);
    std::vector<Block> surplus;
    std::vector<Block> cold;
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) {
      block.put_away = results_;
      block.marked = false;
      kept_.push_back(block);
      surplus = take_surplus(most_);
      cold = take_unmarked();
    } else {
      surplus.push_back(block);
    }
    for (const Block& one : surplus) unmap(one);
    for (const Block& one : cold) mark(one);
  }

  // Marking interrupts every thread once for each large page, which takes as long as a layer that fills the block: what
  // was used last, and likely is next, is left alone.
  void mark(Block block) {
    block.marked = true;
    const bool done = madvise(block.data, block.bytes, MADV_FREE) == 0;
    if (const std::unique_lock lock(mutex_, std::try_to_lock); done && lock.owns_lock()) {
      const auto place = std::ranges::upper_bound(kept_, block.put_away, {}, &Block::put_away);
      kept_.insert(place, block);
      return;
    }
    unmap(block);
  }

  // The blocks that were used least recently of those that are more than may stay unmarked.
  std::vector<Block> take_unmarked() {
    std::vector<Block> cold;
    std::size_t bytes = 0;
    for (auto it = kept_.end(); it != kept_.begin();) {
      --it;
      if (it->marked) continue;
      bytes += it->bytes;
      if (bytes <= most_unmarked_) continue;
      cold.push_back(*it);
      it = kept_.erase(it);
    }
    return cold;
  }

  // What is more than `most` bytes; those that were used last stay.
  std::vector<Block> take_surplus(std::size_t most) {
    std::size_t bytes = 0;
    auto first = kept_.end();
    while (first != kept_.begin() && bytes + std::prev(first)->bytes <= most) bytes += (--first)->bytes;
    std::vector<Block> surplus(kept_.begin(), first);
    kept_.erase(kept_.begin(), first);
    return surplus;
  }

  const std::size_t most_ = most_kept();
  const std::size_t most_unmarked_ = memory_of_machine() / kUnmarkedShareOfMemory;
  std::mutex mutex_;
  std::vector<Block> kept_;  // in the order in which they were put away
  std::uint64_t results_ = 0;
};

}  // namespace

c10::Allocator* kept_memory() { return &KeptMemory::instance(); }

void release_memory() { KeptMemory::instance().release(); }

#else

c10::Allocator* kept_memory() { return nullptr; }

void release_memory() {}

#endif

}  // namespace tconv::front
