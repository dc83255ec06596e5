// One pool for the process. A job is offered to so many workers; a worker takes an offer, runs, and reports back. A
// worker without work looks for the next offer for a moment (the hops of a batch follow each other closely), then
// sleeps.
#include "worker_pool.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace fs {
namespace {

constexpr std::chrono::microseconds kLookFor{50};

using Work = void (*)(void*, bool);

class WorkerPool {
 public:
  void run(int threads, Work work, void* context) {
    std::unique_lock<std::mutex> turn(turn_, std::defer_lock);
    if (threads <= 1 || !turn.try_lock()) {  // in this order: work within work asks for one thread, in the caller too
      work(context, true);
      return;
    }
    offer(threads - 1, work, context);
    std::exception_ptr failure;
    try {
      work(context, true);
    } catch (...) {
      failure = std::current_exception();
    }
    const std::exception_ptr theirs = withdraw();
    if (failure == nullptr) failure = theirs;
    if (failure != nullptr) std::rethrow_exception(failure);
  }

 private:
  void offer(int workers, Work work, void* context) {
    const std::lock_guard<std::mutex> hold(mutex_);
    hire(workers);
    work_ = work;
    context_ = context;
    failure_ = nullptr;
    offers_.store(workers, std::memory_order_release);
    wake_.notify_all();
  }

  void hire(int workers) {
    try {
      for (; num_workers_ < workers; ++num_workers_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {  // the system has no more threads: fewer come, or none
    }
  }

  // Takes back what no thread took, and waits for those that work.
  std::exception_ptr withdraw() {
    std::unique_lock<std::mutex> hold(mutex_);
    offers_.store(0, std::memory_order_release);
    left_.wait(hold, [this] { return num_working_ == 0; });
    return failure_;
  }

  void serve() {
    for (;;) {
      look_for_offer();
      std::unique_lock<std::mutex> hold(mutex_);
      wake_.wait(hold, [this] { return offers_.load(std::memory_order_relaxed) > 0; });
      offers_.fetch_sub(1, std::memory_order_relaxed);
      ++num_working_;
      const Work work = work_;
      void* context = context_;
      hold.unlock();
      std::exception_ptr failure;
      try {
        work(context, false);
      } catch (...) {
        failure = std::current_exception();
      }
      hold.lock();
      if (failure != nullptr && failure_ == nullptr) failure_ = failure;
      // A thread that has finished finds no work left: the others need not come.
      offers_.store(0, std::memory_order_relaxed);
      if (--num_working_ == 0) left_.notify_one();
    }
  }

  void look_for_offer() const {
    const auto until = std::chrono::steady_clock::now() + kLookFor;
    while (offers_.load(std::memory_order_acquire) == 0 && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
  }

  std::mutex turn_;  // held by the caller whose job it is
  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::atomic<int> offers_{0};
  int num_workers_ = 0, num_working_ = 0;
  Work work_ = nullptr;
  void* context_ = nullptr;
  std::exception_ptr failure_;
};

std::atomic<WorkerPool*> pool{nullptr};

// Workers do not survive a fork: a child begins with a pool of its own. Pools are never destructed, because their
// threads outlive the library's statics.
WorkerPool& the_pool() {
  static std::once_flag once;
  std::call_once(once, [] {
    pool.store(new WorkerPool);
    pthread_atfork(nullptr, nullptr, [] { pool.store(new WorkerPool); });
  });
  return *pool.load(std::memory_order_acquire);
}

}  // namespace

void work_together(int threads, void (*work)(void* context, bool is_caller), void* context) {
  the_pool().run(threads, work, context);
}

}  // namespace fs
