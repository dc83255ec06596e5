// A queue of tasks in device memory for one persistent kernel, whose tasks bring further tasks (PGSampler, section
// III-C). Warps are the work units: each takes tickets, does the tasks of those numbers, and puts in what they bring.
//
// Tasks are numbered in the order in which they are put in. The first `num_given` are known before the launch and
// stored nowhere; the others are words in `tasks`, each written once, ~0 until then. A ticket may be ahead of the last
// task: its holder waits for the task to come, or for the end. A warp does the tasks it holds in order and as they
// come, never waiting for a later one first, so a warp cannot wait for a task that only it can bring, whatever the
// fetch size is.
//
// The end. `tail` counts tasks before they are put in, `finished` counts tasks after everything they bring has been
// counted in `tail`, and a warp's own before it waits. Neither ever decreases and finished <= tail, so where `finished`
// is read first and equals `tail`, every task is done and none can come. That holds for any number of children and any
// fetch size; PGSampler's rule (tickets have caught up with the tail) ends too early where a warp takes tickets faster
// than tasks are put in.
//
// Order in memory. A task's word says everything about the task, and whoever waits for it looks at nothing else that
// another warp of the launch has written, but for what `settled` of take() looks at and waits for by itself. So tasks
// are put in and taken without fences. The end does need order: tail before finished in the warp that counts, finished
// before tail in the warp that compares. One warp does both, and adds to `finished` with acquire and release: the sum
// that it finds was made of additions that each come after their warp's additions to `tail`.
//
// The watchdog. A warp that has waited for `patience_ns` in which no counter has moved ends the kernel for all and
// writes down what it saw. So does a warp that finds no room for a task. Nothing waits for anything else.
#ifndef FS_CUDA_TASK_QUEUE_CUH_
#define FS_CUDA_TASK_QUEUE_CUH_

#include "block_sums.cuh"

namespace fs {

// Words of the queue's control, each counter in a memory line of its own. They start as ~0: counters hold their count
// minus one. kRecordedWord counts the room that is taken for the tasks' results.
constexpr int kHeadWord = 0, kTailWord = 16, kFinishedWord = 32, kRecordedWord = 48;
constexpr int kStopWord = FS_CUDA_QUEUE_END_WORD, kReportWord = kStopWord + 1;  // see FsCudaQueueEnd
constexpr int kControlWords = FS_CUDA_QUEUE_WORDS;
static_assert(kStopWord > kRecordedWord && kReportWord + 6 <= kControlWords, "counters, then the report");

constexpr uint64_t kRunning = ~0ull;
constexpr uint64_t kNoTask = ~0ull;
constexpr unsigned kShortestNap = 32, kLongestNap = 512;  // nanoseconds between two looks
constexpr int kLooksPerCheck = 8;                         // looks for a task between two looks at the clock

struct TaskQueue {
  uint64_t* control;  // [kControlWords]
  uint64_t* tasks;    // [capacity]
  int64_t capacity;
  int64_t num_given;
  int64_t least_fetch, most_fetch;  // tickets that a warp takes at once
  uint64_t patience_ns;

  FS_DEVICE int64_t count(int word) const { return static_cast<int64_t>(load_now(control + word) + 1); }
  FS_DEVICE int64_t add(int word, int64_t amount) const {
    return static_cast<int64_t>(atomic_add(control + word, static_cast<uint64_t>(amount)) + 1);
  }
  FS_DEVICE int64_t num_tasks() const { return num_given + count(kTailWord); }
  FS_DEVICE bool is_over() const { return load_now(control + kStopWord) != kRunning; }

  // Ends the kernel: every warp leaves when it next looks. The first to call it says why.
  FS_DEVICE void stop(uint64_t reason, int64_t task) const {
    if (atomic_cas(control + kStopWord, kRunning, reason) != kRunning || reason == FS_CUDA_QUEUE_DONE) return;
    uint64_t* report = control + kReportWord;
    report[0] = blockIdx.x;
    report[1] = static_cast<uint64_t>(warp_in_block());
    report[2] = static_cast<uint64_t>(task);
    report[3] = static_cast<uint64_t>(count(kHeadWord));
    report[4] = static_cast<uint64_t>(num_tasks());
    report[5] = static_cast<uint64_t>(count(kFinishedWord));
  }
};

// What a warp took: lanes 0 .. count - 1 have a task each. count 0: the kernel is over.
struct TakenTasks {
  int count;
  int64_t number;  // of the lane's task
  uint64_t word;   // of the lane's task, kNoTask where it was given
};

// A warp at the queue. All lanes call all functions.
class QueueWarp {
 public:
  FS_DEVICE explicit QueueWarp(const TaskQueue& queue) : queue_(queue) {}

  // Waits for tasks; at most `most` <= kWarp of them. settled(word): whether what a word refers to can be seen, too.
  template <typename Settled>
  FS_DEVICE TakenTasks take(int most, const Settled& settled) {
    if (next_ == end_) {
      tell_finished();
      fetch();
    }
    const int lane = lane_number();
    const int64_t number = next_ + lane;
    unsigned nap = kShortestNap;
    Watch watch = {-1, 0};
    for (int looks = 1;; ++looks) {
      uint64_t word = kNoTask;
      const bool ready = lane < most && number < end_ && is_ready(number, &word, settled);
      const uint32_t waiting = ~__ballot_sync(kAllLanes, ready);
      const int count = waiting == 0 ? kWarp : __ffs(static_cast<int>(waiting)) - 1;
      if (count > 0) {
        next_ += count;
        return {count, number, word};
      }
      tell_finished();
      if (__any_sync(kAllLanes, lane == 0 && queue_.is_over())) return {0, 0, kNoTask};
      if (lane == 0 && looks % kLooksPerCheck == 0) check(&watch);
      __nanosleep(nap);
      nap = nap * 2 < kLongestNap ? nap * 2 : kLongestNap;
    }
  }

  // Puts in `count` tasks of each lane: word(i) for i in 0 .. count - 1. Call it before finish() of the task that
  // brings them. False: no room, and the kernel is over.
  template <typename Word>
  FS_DEVICE bool put(int64_t count, const Word& word) {
    const int64_t inclusive = warp_scan(count), total = __shfl_sync(kAllLanes, inclusive, kWarp - 1);
    if (total == 0) return true;
    int64_t first = 0;
    if (lane_number() == 0) {
      first = queue_.add(kTailWord, total);
      if (first + total > queue_.capacity) queue_.stop(FS_CUDA_QUEUE_FULL, queue_.num_given + first);
    }
    first = __shfl_sync(kAllLanes, first, 0);
    if (first + total > queue_.capacity) return false;
    for (int64_t i = 0; i < count; ++i) store_now(queue_.tasks + first + inclusive - count + i, word(i));
    return true;
  }

  // The `count` tasks taken last are done, and everything they bring has been put in.
  FS_DEVICE void finish(int count) { untold_ += count; }

 private:
  struct Watch {
    int64_t done;    // sum of the counters that work moves
    uint64_t since;  // when it was first seen
  };

  // Tickets: a warp's share of the tasks that wait, so that few tasks spread over many warps.
  FS_DEVICE void fetch() {
    int64_t first = 0, share = 0;
    if (lane_number() == 0) {
      const int64_t waiting = queue_.num_tasks() - queue_.count(kHeadWord), warps = num_threads() / kWarp;
      share = waiting / warps;
      share = share < queue_.least_fetch ? queue_.least_fetch : share;
      share = share < queue_.most_fetch ? share : queue_.most_fetch;
      first = queue_.add(kHeadWord, share);
    }
    next_ = __shfl_sync(kAllLanes, first, 0);
    end_ = next_ + __shfl_sync(kAllLanes, share, 0);
  }

  // Counts the tasks done since it was last called: once for all of a ticket's, and before every wait.
  FS_DEVICE void tell_finished() {
    if (untold_ == 0) return;
    if (lane_number() == 0) {  // which has added to the tail as well
      const uint64_t before = add_acq_rel(queue_.control + kFinishedWord, static_cast<uint64_t>(untold_));
      const int64_t finished = static_cast<int64_t>(before + 1) + untold_;
      if (finished == queue_.num_tasks()) queue_.stop(FS_CUDA_QUEUE_DONE, finished);
    }
    untold_ = 0;
  }

  template <typename Settled>
  FS_DEVICE bool is_ready(int64_t number, uint64_t* word, const Settled& settled) const {
    const int64_t place = number - queue_.num_given;
    if (place < 0) return true;
    if (place >= queue_.capacity) return false;
    *word = load_now(queue_.tasks + place);
    return *word != kNoTask && settled(*word);
  }

  FS_DEVICE void check(Watch* watch) const {
    const int64_t done = queue_.count(kFinishedWord) + queue_.count(kTailWord) + queue_.count(kRecordedWord);
    const uint64_t now = nanoseconds();
    if (done != watch->done) {
      *watch = {done, now};
    } else if (now - watch->since >= queue_.patience_ns) {
      queue_.stop(FS_CUDA_QUEUE_STUCK, next_);
    }
  }

  const TaskQueue& queue_;
  int64_t next_ = 0, end_ = 0;  // tickets held
  int64_t untold_ = 0;          // tasks done but not yet counted in `finished`
};

}  // namespace fs

#endif  // FS_CUDA_TASK_QUEUE_CUH_
