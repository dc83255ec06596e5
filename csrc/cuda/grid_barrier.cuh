// A barrier of all blocks of a cooperative launch, which are resident at once. Its words are a part of the batch's
// state.
//
// A block's first thread counts the block in and waits until all have come. The count is an addition with acquire and
// release, and so is each other block's: who finds the last sum, or reads it with acquire, is after everything that any
// block wrote before it was counted. __syncthreads() on both sides extends that to the threads of the blocks.
//
// The watchdog. A block that has waited for `patience_ns` ends the kernel for all and writes down what it saw.
#ifndef FS_CUDA_GRID_BARRIER_CUH_
#define FS_CUDA_GRID_BARRIER_CUH_

#include "device.cuh"

namespace fs {

constexpr int kArrivedWord = 0;  // blocks that have come, over all barriers, minus one
constexpr int kBarrierEndWord = FS_CUDA_BARRIER_END_WORD;
constexpr unsigned kBarrierNap = 32;       // nanoseconds between two looks at the count
constexpr int kLooksPerClock = 8;          // looks at the count between two looks at the clock
constexpr uint64_t kBarrierHolds = ~0ull;  // the end word of a kernel that has not given up

// The calling block at the barriers of its kernel. All threads call all functions.
class GridBarrier {
 public:
  // words: [FS_CUDA_BARRIER_WORDS], ~0 at the launch.
  FS_DEVICE GridBarrier(uint64_t* words, uint64_t patience_ns) : words_(words), patience_ns_(patience_ns) {}

  // Waits until all blocks have come as often as this one. False: one of them has not in time, and the kernel is over.
  FS_DEVICE bool wait() {
    FS_SHARED(int32_t, passes, 1);
    ++number_;
    __syncthreads();
    if (threadIdx.x == 0) passes[0] = arrive() ? 1 : 0;
    __syncthreads();
    return passes[0] != 0;
  }

 private:
  FS_DEVICE bool arrive() const {
    const uint64_t all = static_cast<uint64_t>(number_) * gridDim.x - 1;  // the word when all have come
    if (add_acq_rel(words_ + kArrivedWord, 1) + 1 == all) return true;
    uint64_t since = 0;
    for (int looks = 0;; ++looks) {
      const uint64_t arrived = load_acquire(words_ + kArrivedWord);
      if (arrived >= all) return true;
      if (load_now(words_ + kBarrierEndWord) != kBarrierHolds) return false;
      if (looks % kLooksPerClock == 0) {
        const uint64_t now = nanoseconds();
        if (looks == 0) since = now;
        if (looks > 0 && now - since >= patience_ns_) return give_up();
      }
      __nanosleep(kBarrierNap);
    }
  }

  FS_DEVICE bool give_up() const {
    uint64_t* end = words_ + kBarrierEndWord;
    if (atomic_cas(end, kBarrierHolds, static_cast<uint64_t>(number_)) == kBarrierHolds) {
      end[1] = blockIdx.x;
      end[2] = load_now(words_ + kArrivedWord) + 1 - static_cast<uint64_t>(number_ - 1) * gridDim.x;
      end[3] = gridDim.x;
    }
    return false;
  }

  uint64_t* words_;
  const uint64_t patience_ns_;
  int32_t number_ = 0;  // of the barrier at which the block is, from 1
};

}  // namespace fs

#endif  // FS_CUDA_GRID_BARRIER_CUH_
