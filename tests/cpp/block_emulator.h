// Runs the threads of a CUDA block (or of the blocks of a cluster) on one CPU thread, each as a fiber that runs from
// barrier to barrier. Threads of a warp must meet at the same kind of barrier, and so must the block; anything else is
// reported as a failure. A warp may also wait for what another warp does (poll), or its threads may have ended.
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
  // first: a barrier of the block's first threads alone, as many as first_threads() was told.
  // warpgroup: one of 128 threads alone.
  enum class Stop { warp, poll, first, warpgroup, block, cluster, end };
  using Words = std::array<unsigned, 8>;  // what a lane shows the others of its warp

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

  static void first_threads(int threads) {
    current()->first_warps_ = threads / 32;
    barrier(Stop::first);
  }

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
    bool ended = false;
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
    fiber.ended = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler_;
    makecontext(&fiber.context, &BlockEmulator::enter, 0);
  }

  // Runs a block until it stops at a barrier of its cluster or ends.
  Stop run_block(int first_thread, int threads) {
    const int warps = (threads + 31) / 32;
    std::vector<Stop> stops(static_cast<std::size_t>(warps), Stop::poll);
    const auto all_at = [&](Stop stop, int count) {
      return std::all_of(stops.begin(), stops.begin() + count, [&](Stop other) { return other == stop; });
    };
    for (int turns_in_vain = 0;;) {
      bool waits = false;
      bool moved = false;
      for (int warp = 0; warp < warps; ++warp) {
        Stop& stop = stops[static_cast<std::size_t>(warp)];
        if (stop != Stop::poll) continue;
        const int first = first_thread + warp * 32;
        stop = run_warp(first, std::min(first + 32, first_thread + threads));
        waits = waits || stop == Stop::poll;
        moved = moved || stop != Stop::poll;
      }
      if (first_warps_ > 0 && all_at(Stop::first, first_warps_)) {
        std::fill(stops.begin(), stops.begin() + first_warps_, Stop::poll);
        first_warps_ = 0;
        continue;
      }
      bool met = false;
      for (auto group = stops.begin(); stops.end() - group >= 4; group += 4) {
        if (!std::all_of(group, group + 4, [](Stop stop) { return stop == Stop::warpgroup; })) continue;
        std::fill(group, group + 4, Stop::poll);
        met = true;
      }
      if (met) continue;
      if (waits) {
        turns_in_vain = moved ? 0 : turns_in_vain + 1;
        if (turns_in_vain > 100000) throw std::runtime_error("warps wait for each other");
        continue;
      }
      if (all_at(Stop::block, warps)) {
        std::fill(stops.begin(), stops.end(), Stop::poll);
        continue;
      }
      // Threads that have ended count as having come to a barrier of the cluster.
      const bool at_cluster = std::find(stops.begin(), stops.end(), Stop::cluster) != stops.end();
      const Stop end = at_cluster ? Stop::cluster : Stop::end;
      if (!std::all_of(stops.begin(), stops.end(), [&](Stop stop) { return stop == end || stop == Stop::end; }))
        throw std::runtime_error("a warp missed a barrier of its block");
      return end;
    }
  }

  // Runs a warp until it stops at a barrier of the block, waits for another warp or ends.
  Stop run_warp(int first, int last) {
    for (;;) {
      Stop warp_stop = Stop::end;
      for (int i = first; i < last; ++i) {
        Fiber& fiber = *fibers_[i];
        if (fiber.ended) continue;
        thread_ = i;
        swapcontext(&scheduler_, &fiber.context);
        if (failure_ != nullptr) std::rethrow_exception(failure_);
        fiber.ended = fiber.stop == Stop::end;
      }
      for (int i = first; i < last; ++i) {
        if (fibers_[i]->ended) continue;
        if (warp_stop != Stop::end && fibers_[i]->stop != warp_stop)
          throw std::runtime_error("threads of a warp stand at different barriers: thread " + std::to_string(i));
        warp_stop = fibers_[i]->stop;
      }
      const bool some_ended = std::any_of(fibers_.begin() + first, fibers_.begin() + last,
                                          [](const std::unique_ptr<Fiber>& fiber) { return fiber->ended; });
      if (some_ended && warp_stop != Stop::end && warp_stop != Stop::poll)
        throw std::runtime_error("a warp stands at a barrier that some of its threads will not reach");
      if (warp_stop != Stop::warp) return warp_stop;
    }
  }

  const std::function<void(int)>* body_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::exception_ptr failure_;
  ucontext_t scheduler_{};
  int thread_ = 0;
  int first_warps_ = 0;  // that meet at Stop::first
};

}  // namespace tconv::test
