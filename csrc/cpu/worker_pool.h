// Threads that lend a hand: the caller does the work itself, and workers join in as they get to run.
//
// Unlike an OpenMP team, no thread waits for one that the system has not scheduled: on a machine with more threads
// than cores (a trainer's own, another rank's) a batch then takes as long as with one thread, not as long as several
// time slices. Work is handed out in pieces by a counter of the caller's, so a thread that comes late finds nothing
// left.
#ifndef FS_CPU_WORKER_POOL_H_
#define FS_CPU_WORKER_POOL_H_

#include <stdint.h>

#include <algorithm>
#include <atomic>

namespace fs {

// Calls work(context, is_caller) in this thread, and in up to `threads` - 1 workers at the same time; returns when this
// call and those that began have returned. Workers may come at any time or not at all. What a worker throws is thrown
// here afterwards. One caller at a time has the workers; others work alone.
void work_together(int threads, void (*work)(void* context, bool is_caller), void* context);

// The same for a callable.
template <typename Work>
void work_together(int threads, Work& work) {
  work_together(threads, [](void* context, bool is_caller) { (*static_cast<Work*>(context))(is_caller); }, &work);
}

// body(begin, end) on runs of `step` numbers that cover 0 .. count.
template <typename Body>
void share_runs(int64_t count, int64_t step, int threads, const Body& body) {
  std::atomic<int64_t> next{0};
  auto work = [&](bool) {
    for (;;) {
      const int64_t begin = next.fetch_add(step, std::memory_order_relaxed);
      if (begin >= count) return;
      body(begin, std::min(count, begin + step));
    }
  };
  work_together(threads, work);
}

}  // namespace fs

#endif  // FS_CPU_WORKER_POOL_H_
