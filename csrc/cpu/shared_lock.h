// A lock and a word of events in memory that processes share. The lock is robust: when its holder dies, the next one to
// lock learns of it. Nobody waits beyond a moment that the caller names.
#ifndef FS_CPU_SHARED_LOCK_H_
#define FS_CPU_SHARED_LOCK_H_

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include <atomic>

#if defined(__linux__)
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fs {

constexpr int64_t kSecondNs = 1000000000;

inline int64_t clock_ns(clockid_t clock = CLOCK_MONOTONIC) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<int64_t>(now.tv_sec) * kSecondNs + now.tv_nsec;
}

inline timespec to_timespec(int64_t ns) {
  return {static_cast<time_t>(ns / kSecondNs), static_cast<long>(ns % kSecondNs)};
}

class SharedLock {
 public:
  // In zeroed memory, once.
  bool make() {
    holder_.store(-1, std::memory_order_relaxed);
    pthread_mutexattr_t attributes;
    if (pthread_mutexattr_init(&attributes) != 0) return false;
    bool made = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0;
#if defined(__linux__)
    made = made && pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0;
#endif
    made = made && pthread_mutex_init(&mutex_, &attributes) == 0;
    pthread_mutexattr_destroy(&attributes);
    return made;
  }

  // 0; EOWNERDEAD: locked, but its holder has died, and holder() is still that one's number; ETIMEDOUT: not locked.
  int lock(int64_t until_ns) {
    int found = pthread_mutex_trylock(&mutex_);
    if (found == EBUSY) found = lock_later(until_ns);
#if defined(__linux__)
    if (found == EOWNERDEAD) pthread_mutex_consistent(&mutex_);
#endif
    return found;
  }

  void unlock() {
    holder_.store(-1, std::memory_order_relaxed);
    pthread_mutex_unlock(&mutex_);
  }

  int32_t holder() const { return holder_.load(std::memory_order_relaxed); }
  void set_holder(int32_t number) { holder_.store(number, std::memory_order_relaxed); }

 private:
#if defined(__linux__)
  // A mutex waits by the clock of the day. A slice is short, so a clock that is set matters little.
  int lock_later(int64_t until_ns) {
    const timespec until = to_timespec(clock_ns(CLOCK_REALTIME) + (until_ns - clock_ns()));
    return pthread_mutex_timedlock(&mutex_, &until);
  }
#else
  int lock_later(int64_t until_ns) {
    constexpr int64_t kPauseNs = 100000;
    int found = EBUSY;
    while (found == EBUSY && clock_ns() < until_ns) {
      const timespec pause = to_timespec(kPauseNs);
      nanosleep(&pause, nullptr);
      found = pthread_mutex_trylock(&mutex_);
    }
    return found == EBUSY ? ETIMEDOUT : found;
  }
#endif

  pthread_mutex_t mutex_;  // first, and the holder behind it: a test locks it and ends
  std::atomic<int32_t> holder_;
};

// Changes are counted under the lock, and who waits for the next one has read the count under the lock.
class SharedEvents {
 public:
  void make() {
    count_.store(0, std::memory_order_relaxed);
    waiting_.store(0, std::memory_order_relaxed);
  }
  uint32_t now() const { return count_.load(std::memory_order_relaxed); }
  void add() { count_.fetch_add(1, std::memory_order_relaxed); }

  // Under the lock: the count to wait at; then unlock, and call wait().
  uint32_t prepare() {
    waiting_.fetch_add(1, std::memory_order_relaxed);
    return now();
  }
#if defined(__linux__)
  void wait(uint32_t seen, int64_t until_ns) {
    const int64_t left_ns = until_ns - clock_ns();
    if (left_ns > 0) {
      const timespec left = to_timespec(left_ns);
      syscall(SYS_futex, &count_, FUTEX_WAIT, seen, &left, nullptr, 0);  // not private: other processes wake it
    }
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  void wake_all() {
    // a waiter that was killed is counted for ever: one call too many
    if (waiting_.load(std::memory_order_relaxed) > 0)
      syscall(SYS_futex, &count_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
#else
  void wait(uint32_t seen, int64_t until_ns) {
    constexpr int64_t kPauseNs = 100000;
    const timespec pause = to_timespec(kPauseNs);
    while (count_.load(std::memory_order_relaxed) == seen && clock_ns() < until_ns) nanosleep(&pause, nullptr);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  void wake_all() {}
#endif

 private:
  std::atomic<uint32_t> count_;
  std::atomic<int32_t> waiting_;
  static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4, "a futex word");
};

}  // namespace fs

#endif  // FS_CPU_SHARED_LOCK_H_
