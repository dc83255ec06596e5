// Work on rows of which one half can be shared and the other has an order. Threads sample chunks of rows; the caller
// settles the chunks that are done, in order, and samples while there is none. So what has an order (relabelling) costs
// no time of its own until the others sample faster than one can settle.
#ifndef FS_CPU_RELAY_H_
#define FS_CPU_RELAY_H_

#include <stdint.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "buffer.h"
#include "worker_pool.h"

namespace fs {

constexpr int64_t kChunkRows = 256;  // rows that a thread samples before it looks for other work

// The calling thread's memory for what Relay keeps of its chunks.
Buffer& thread_flags();

template <typename Sample, typename Settle>
class Relay {
  using Flag = std::atomic<bool>;

 public:
  Relay(int64_t num_rows, const Sample& sample, const Settle& settle)
      : num_rows_(num_rows),
        num_chunks_((num_rows + kChunkRows - 1) / kChunkRows),
        sample_(sample),
        settle_(settle),
        sampled_(thread_flags().require_array<Flag>(num_chunks_)) {
    std::uninitialized_value_construct_n(sampled_, num_chunks_);
  }

  void operator()(bool is_caller) {
    if (is_caller) {
      settle_all();
    } else {
      while (sample_one()) continue;
    }
  }

 private:
  int64_t first_row(int64_t chunk) const { return std::min(num_rows_, chunk * kChunkRows); }

  // False: all chunks are taken.
  bool sample_one() {
    const int64_t chunk = next_.fetch_add(1, std::memory_order_relaxed);
    if (chunk >= num_chunks_) return false;
    try {
      sample_(first_row(chunk), first_row(chunk + 1));
    } catch (...) {
      failed_.store(true, std::memory_order_release);  // so that the caller does not wait for this chunk
      throw;
    }
    sampled_[chunk].store(true, std::memory_order_release);
    return true;
  }

  void settle_all() {
    for (int64_t chunk = 0; chunk < num_chunks_ && !failed_.load(std::memory_order_acquire);) {
      if (sampled_[chunk].load(std::memory_order_acquire)) {
        if (!settle_(first_row(chunk), first_row(chunk + 1))) return;
        ++chunk;
      } else if (!sample_one()) {
        std::this_thread::yield();  // the last chunks are being sampled
      }
    }
  }

  int64_t num_rows_, num_chunks_;
  const Sample& sample_;
  const Settle& settle_;
  Flag* sampled_;  // [num_chunks_]
  std::atomic<int64_t> next_{0};
  std::atomic<bool> failed_{false};
};

// sample(begin, end) on chunks of rows, by all threads; settle(begin, end) on each chunk that is sampled, by the caller
// and in order, until it returns false.
template <typename Sample, typename Settle>
void relay_chunks(int64_t num_rows, int threads, const Sample& sample, const Settle& settle) {
  Relay<Sample, Settle> relay(num_rows, sample, settle);
  work_together(threads, relay);
}

}  // namespace fs

#endif  // FS_CPU_RELAY_H_
