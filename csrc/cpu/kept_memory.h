// Freed memory that the process keeps for the next call, behind a lock that a fork finds free.
#ifndef FS_CPU_KEPT_MEMORY_H_
#define FS_CPU_KEPT_MEMORY_H_

#include <pthread.h>

#include <mutex>

namespace fs {

// The one Kept of the process, which has a mutex_ that is held for moments and with no other lock behind it. A fork
// waits for it: a child in which it were held by a thread of the parent would wait for ever. Never destructed: tensors
// over its memory may be freed after the library's other statics.
template <typename Kept>
class KeptMemory {
 public:
  static Kept& get() {
    static Kept* const kept = make();
    return *kept;
  }

 private:
  static Kept* make() {
    pthread_atfork([] { get().mutex_.lock(); }, unlock, unlock);
    return new Kept;
  }
  static void unlock() { get().mutex_.unlock(); }
};

}  // namespace fs

#endif  // FS_CPU_KEPT_MEMORY_H_
