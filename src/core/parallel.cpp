#include "core/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/env.h"

namespace tconv {
namespace {

thread_local bool inside_body = false;

class InsideBody {
 public:
  InsideBody() : outer_(inside_body) { inside_body = true; }
  ~InsideBody() { inside_body = outer_; }
  InsideBody(const InsideBody&) = delete;
  InsideBody& operator=(const InsideBody&) = delete;

 private:
  bool outer_;
};

// One call of parallel_for. Pieces are claimed one at a time, by the caller too, so that the call ends even when no
// worker ever comes to help.
class Job {
 public:
  Job(std::int64_t count, std::int64_t pieces, const ParallelBody& body)
      : count_(count), pieces_(pieces), body_(body) {}

  void work() {
    const InsideBody mark;
    for (std::int64_t piece = next_.fetch_add(1); piece < pieces_; piece = next_.fetch_add(1)) {
      if (!failed_.load()) run(piece);
      const std::lock_guard lock(mutex_);
      if (++done_ == pieces_) all_done_.notify_all();
    }
  }

  bool exhausted() const { return next_.load() >= pieces_; }

  void wait() {
    std::unique_lock lock(mutex_);
    all_done_.wait(lock, [this] { return done_ == pieces_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void run(std::int64_t piece) {
    // The first `longer` pieces take one element more.
    const std::int64_t shortest = count_ / pieces_;
    const std::int64_t longer = count_ % pieces_;
    const std::int64_t begin = piece * shortest + std::min(piece, longer);
    const std::int64_t end = begin + shortest + (piece < longer ? 1 : 0);
    try {
      body_(begin, end);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      failed_.store(true);
    }
  }

  const std::int64_t count_;
  const std::int64_t pieces_;
  const ParallelBody& body_;  // outlives every claimed piece: the caller waits for them
  std::atomic<std::int64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable all_done_;
  std::int64_t done_ = 0;
  std::exception_ptr error_;
};

class Pool {
 public:
  explicit Pool(int workers) {
    threads_.reserve(workers);
    try {
      for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error& error) {
      // The system gives no more threads: those that started, and every caller, do the work.
      log(1, "started " + std::to_string(threads_.size()) + " of " + std::to_string(workers) +
                 " threads: " + error.what());
    }
  }

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void run(const std::shared_ptr<Job>& job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(job);
    }
    wake_.notify_all();
    job->work();
    {
      const std::lock_guard lock(mutex_);
      std::erase(jobs_, job);
    }
    job->wait();
  }

 private:
  void serve() {
    for (;;) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (stopping_) return;
        job = jobs_.front();
        if (job->exhausted()) {
          jobs_.pop_front();
          continue;
        }
      }
      job->work();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

Pool& pool() {
  static Pool instance(thread_count() - 1);
  return instance;
}

// More pieces than threads, so that a thread that is held up does not hold up the rest.
constexpr std::int64_t kPiecesPerThread = 4;

}  // namespace

int thread_count() {
  static const int count = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return count;
}

void parallel_for(const Execution& execution, std::int64_t count, std::int64_t grain, const ParallelBody& body) {
  if (count <= 0) return;
  if (execution.parallel_for) {
    execution.parallel_for(count, grain, body);
    return;
  }
  const std::int64_t most_pieces = thread_count() * kPiecesPerThread;
  const std::int64_t pieces = std::clamp<std::int64_t>(count / std::max<std::int64_t>(grain, 1), 1, most_pieces);
  if (inside_body || pieces == 1 || thread_count() == 1) {
    const InsideBody mark;
    body(0, count);
    return;
  }
  pool().run(std::make_shared<Job>(count, pieces, body));
}

}  // namespace tconv
