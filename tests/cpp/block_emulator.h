// Runs the threads of a CUDA block (or of the blocks of a cluster) on one CPU thread, each as a fiber that runs from
// barrier to barrier. Threads of a warp must meet at the same kind of barrier, and so must the block; anything else is
// reported as a failure.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tconv::test {

class BlockEmulator {
 public:
  enum class Stop { warp, waiting, block, cluster, end };  // waiting: for what other warps do
  using Words = std::array<unsigned, 8>;                   // what a lane shows the others of its warp

  // body(thread) is run once for each thread, those of the cluster's blocks one after the other; it calls barrier()
  // where the kernel synchronises.
  void run(int threads, const std::function<void(int)>& body, int blocks = 1) {
    body_ = &body;
    failure_ = nullptr;
    while (fibers_.size() < static_cast<std::size_t>(threads) * static_cast<std::size_t>(blocks))
      fibers_.push_back(std::make_unique<Fiber>());
    for (int i = 0; i < threads * blocks; ++i) start(i);
    current() = this;
    for (Stop cluster_stop = Stop::cluster; cluster_stop != Stop::end;) {
      for (int block = 0; block < blocks; ++block) {
        const Stop stop = run_block(block * threads, threads);
        if (block > 0 && stop != cluster_stop) throw std::runtime_error("a block missed a barrier of its cluster");
        cluster_stop = stop;
      }
    }
  }

  static void barrier(Stop stop) {
    BlockEmulator* const self = current();
    Fiber& fiber = *self->fibers_[self->thread_];
    fiber.stop = stop;
    swapcontext(&fiber.context, &self->scheduler_);
  }

  // Something happened that a waiting warp may wait for.
  static void made_progress() { ++current()->progress_; }

  // The thread that runs now.
  static int thread() { return current()->thread_; }

  // Shows the others of the warp these words and waits for theirs: those of lane i are `lane(i)` until the next call.
  class Exchange {
   public:
    explicit Exchange(const Words& words) : self_(*current()), first_(self_.thread_ / 32 * 32) {
      Fiber& fiber = *self_.fibers_[self_.thread_];
      turn_ = fiber.turn++ % 2;  // two places in turn: nobody is two calls ahead
      fiber.shown[turn_] = words;
      barrier(Stop::warp);
    }
    const Words& lane(int i) const { return self_.fibers_[first_ + i]->shown[turn_]; }

   private:
    BlockEmulator& self_;
    int first_;
    unsigned turn_;
  };

  // What the lane `from` of the thread's warp passed in the same call.
  static int shuffle(int value, int from) {
    const Exchange exchange({static_cast<unsigned>(value)});
    return static_cast<int>(exchange.lane(from % 32)[0]);
  }

 private:
  struct Fiber {
    ucontext_t context{};
    std::vector<char> stack = std::vector<char>(64 * 1024);
    Stop stop = Stop::end;
    std::array<Words, 2> shown{};
    unsigned turn = 0;
  };

  static BlockEmulator*& current() {
    static BlockEmulator* emulator = nullptr;
    return emulator;
  }

  static void enter() {
    BlockEmulator* const self = current();
    const int thread = self->thread_;
    try {
      (*self->body_)(thread);
    } catch (...) {  // no exception leaves the stack of a fiber
      self->failure_ = std::current_exception();
    }
    self->fibers_[thread]->stop = Stop::end;
  }

  void start(int i) {
    Fiber& fiber = *fibers_[i];
    fiber.turn = 0;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler_;
    makecontext(&fiber.context, &BlockEmulator::enter, 0);
  }

  // Runs a block until it stops at a barrier of its cluster or ends.
  Stop run_block(int first_thread, int threads) {
    for (;;) {
      run_until_barrier(first_thread, threads);
      const Stop block_stop = fibers_[first_thread]->stop;
      for (int i = 0; i < threads; ++i) {
        if (fibers_[first_thread + i]->stop != block_stop) {
          throw std::runtime_error("a warp missed a barrier of its block");
        }
      }
      if (block_stop != Stop::block) return block_stop;
    }
  }

  // Runs the warps of a block, those that wait for others again and again, until all stop at a barrier or end.
  void run_until_barrier(int first_thread, int threads) {
    bool first_time = true;
    for (bool waiting = true; waiting; first_time = false) {
      waiting = false;
      const long before = progress_;
      for (int first = 0; first < threads; first += 32) {
        const int begin = first_thread + first;
        if (!first_time && fibers_[begin]->stop != Stop::waiting) continue;
        waiting |= run_warp(begin, first_thread + std::min(first + 32, threads)) == Stop::waiting;
      }
      if (waiting && progress_ == before) throw std::runtime_error("warps wait for what never comes");
    }
  }

  // Runs a warp until it waits for others, stops at a barrier of the block or ends.
  Stop run_warp(int first, int last) {
    for (;;) {
      for (int i = first; i < last; ++i) {
        thread_ = i;
        swapcontext(&scheduler_, &fibers_[i]->context);
        if (failure_ != nullptr) std::rethrow_exception(failure_);
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
  std::exception_ptr failure_;
  ucontext_t scheduler_{};
  int thread_ = 0;
  long progress_ = 0;
};

}  // namespace tconv::test
