// Runs the threads of a CUDA block on one CPU thread, each as a fiber that runs from barrier to barrier. Threads of a
// warp must meet at the same kind of barrier, and so must the block; anything else is reported as a failure.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tconv::test {

class BlockEmulator {
 public:
  enum class Stop { warp, block, end };

  // body(thread) is run once for each thread; it calls barrier() where the kernel synchronises.
  void run(int threads, const std::function<void(int)>& body) {
    body_ = &body;
    while (fibers_.size() < static_cast<std::size_t>(threads)) fibers_.push_back(std::make_unique<Fiber>());
    for (int i = 0; i < threads; ++i) start(i);
    current() = this;
    bool running = true;
    while (running) {
      Stop block_stop = Stop::end;
      for (int first = 0; first < threads; first += 32) {
        const Stop stop = run_warp(first, std::min(first + 32, threads));
        if (first > 0 && stop != block_stop) throw std::runtime_error("a warp missed a barrier of its block");
        block_stop = stop;
      }
      running = block_stop != Stop::end;
    }
  }

  static void barrier(Stop stop) {
    BlockEmulator* const self = current();
    Fiber& fiber = *self->fibers_[self->thread_];
    fiber.stop = stop;
    swapcontext(&fiber.context, &self->scheduler_);
  }

  // What the lane `from` of the thread's warp passed in the same call.
  static int shuffle(int value, int from) {
    BlockEmulator* const self = current();
    const int thread = self->thread_;
    self->fibers_[thread]->passed = value;
    barrier(Stop::warp);
    const int received = self->fibers_[thread / 32 * 32 + from % 32]->passed;
    barrier(Stop::warp);
    return received;
  }

 private:
  struct Fiber {
    ucontext_t context{};
    std::vector<char> stack = std::vector<char>(64 * 1024);
    Stop stop = Stop::end;
    int passed = 0;
  };

  static BlockEmulator*& current() {
    static BlockEmulator* emulator = nullptr;
    return emulator;
  }

  static void enter() {
    BlockEmulator* const self = current();
    const int thread = self->thread_;
    (*self->body_)(thread);
    self->fibers_[thread]->stop = Stop::end;
  }

  void start(int i) {
    Fiber& fiber = *fibers_[i];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler_;
    makecontext(&fiber.context, &BlockEmulator::enter, 0);
  }

  // Runs a warp until it stops at a barrier of the block or ends.
  Stop run_warp(int first, int last) {
    for (;;) {
      for (int i = first; i < last; ++i) {
        thread_ = i;
        swapcontext(&scheduler_, &fibers_[i]->context);
      }
      for (int i = first; i < last; ++i) {
        if (fibers_[i]->stop != fibers_[first]->stop) {
          throw std::runtime_error("threads of a warp stand at different barriers: thread " + std::to_string(i));
        }
      }
      if (fibers_[first]->stop != Stop::warp) return fibers_[first]->stop;
    }
  }

  const std::function<void(int)>* body_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  ucontext_t scheduler_{};
  int thread_ = 0;
};

}  // namespace tconv::test
