// The queue of tasks for the stress test, threads in the place of ranks: every task is made once and trained once, by
// nobody before its time, with the bytes that were put, whoever is slow, however small the queue is.
#ifndef FS_TESTS_STRESS_QUEUE_H_
#define FS_TESTS_STRESS_QUEUE_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "fastsample_queue.h"
#include "stress_basics.h"

namespace stress {

struct QueueCase {
  int32_t samplers, trainers;
  int64_t capacity, group_size, staleness, groups, most_pages;
  int32_t switching;
  int slow_sampler_us, slow_trainer_us;  // longest pause at a task
  int64_t stop_at;                       // task at which its sampler asks for a stop; -1: none
  int64_t end_at = -1;                   // group at whose update the segment is to end after those that may be trained
};

// Two segments of a queue.
class QueueRun {
 public:
  explicit QueueRun(const QueueCase& what)
      : what_(what),
        made_(tasks_of(2)),
        trained_(tasks_of(2)),
        arena_(static_cast<size_t>(2 * what.most_pages) * kPage) {
    spec_ = {what.capacity,
             what.group_size,
             what.staleness,
             what.most_pages * kPage,
             static_cast<int64_t>(arena_.size()),
             kPage,
             what.samplers + what.trainers,
             what.trainers,
             what.switching};
    int64_t num_bytes = 0;
    succeed(fs_queue_bytes(&spec_, &num_bytes), "queue_bytes");
    memory_.reset(new (std::align_val_t{64}) char[static_cast<size_t>(num_bytes)]());
    queue_ = reinterpret_cast<FsQueue*>(memory_.get());
    succeed(fs_queue_make(&spec_, queue_), "queue_make");
  }

  void run() {
    const int64_t count = what_.groups * what_.group_size;
    for (int64_t first : {int64_t{0}, count}) {
      FsQueueCall call = caller(0);
      const FsQueueSegment segment = {0, first, count, 0, 1};
      succeed(fs_queue_begin(&call, &segment), "queue_begin");
      require(call.outcome == FS_QUEUE_DID, "a segment did not begin");
      updated_.store(first / what_.group_size);
      std::vector<std::thread> ranks;
      for (int32_t rank = 0; rank < spec_.num_ranks; ++rank) {
        ranks.emplace_back([&, rank] { rank < what_.trainers ? train(rank, -1) : sample(rank); });
      }
      for (std::thread& rank : ranks) rank.join();
      check(first, first + count);
    }
  }

 private:
  static constexpr int64_t kPage = 4096;
  static constexpr int kMostWaits = 20000;  // slices of a tenth of one, so a hang ends

  struct Freed {
    void operator()(char* memory) const { operator delete[](memory, std::align_val_t{64}); }
  };

  size_t tasks_of(int64_t segments) const { return static_cast<size_t>(segments * what_.groups * what_.group_size); }
  FsQueueCall caller(int32_t rank) const { return {queue_, 0.005, rank, 0}; }

  template <typename Call>
  int32_t until_not_waited(FsQueueCall& call, const char* what, const Call& make) const {
    for (int waits = 0; waits < kMostWaits; ++waits) {
      succeed(make(), what);
      if (call.outcome != FS_QUEUE_WAITED) break;
    }
    require(call.outcome != FS_QUEUE_WAITED && call.outcome != FS_QUEUE_FAILED, std::string(what) + ": it hangs");
    return call.outcome;
  }

  static void pause(Generator& generator, int longest_us) {
    if (longest_us > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(generator() % static_cast<uint64_t>(longest_us)));
    }
  }

  static size_t bytes_of(int64_t task) { return static_cast<size_t>(1 + task * 977 % (2 * kPage)); }
  static char value_of(int64_t task) { return static_cast<char>(task % 251); }

  void sample(int32_t rank) {
    FsQueueCall call = caller(rank);
    Generator generator(static_cast<uint64_t>(rank));
    FsQueueSlot slot;
    while (until_not_waited(call, "queue_claim", [&] { return fs_queue_claim(&call, &slot); }) == FS_QUEUE_DID) {
      pause(generator, what_.slow_sampler_us);
      if (slot.task == what_.stop_at) succeed(fs_queue_stop(&call), "queue_stop");
      if (make(call, slot.task)) made_[static_cast<size_t>(slot.task)].fetch_add(1);
      if (what_.switching == FS_SWITCH_ALWAYS) train(rank, 0);
    }
    train(rank, 1);
  }

  bool make(FsQueueCall& call, int64_t task) {
    int64_t offset = 0, unused_from = 0;
    const auto room = [&] {
      return fs_queue_room(&call, task, static_cast<int64_t>(bytes_of(task)), &offset, &unused_from);
    };
    if (until_not_waited(call, "queue_room", room) == FS_QUEUE_ENDED) return false;
    memset(arena_.data() + offset, value_of(task), bytes_of(task));
    return until_not_waited(call, "queue_put", [&] { return fs_queue_put(&call, task); }) == FS_QUEUE_DID;
  }

  // standby < 0: a trainer; 0: one task at most, without waiting; 1: a sampler to the end of the segment.
  void train(int32_t rank, int standby) {
    FsQueueCall call = caller(rank);
    Generator generator(static_cast<uint64_t>(rank));
    FsQueueSlot slot;
    double profit = 0;
    const auto take = [&] {
      return standby < 0 ? fs_queue_take(&call, &slot) : fs_queue_take_standby(&call, 1e-9, &slot, &profit);
    };
    if (standby == 0) {
      call.slice_s = 0;
      succeed(take(), "queue_take_standby");
      call.slice_s = caller(rank).slice_s;
      if (call.outcome == FS_QUEUE_DID) finish(call, slot, generator);
      return;
    }
    for (int32_t found = 0; (found = until_not_waited(call, "queue_take", take)) != FS_QUEUE_ENDED;) {
      if (found == FS_QUEUE_DID) finish(call, slot, generator);
      if (found == FS_QUEUE_UPDATE) {
        const int64_t group = updated_.fetch_add(1);
        if (group == what_.end_at) succeed(fs_queue_end_after(&call, group + what_.staleness), "queue_end_after");
        until_not_waited(call, "queue_advance", [&] { return fs_queue_advance(&call, group); });
      }
    }
  }

  void finish(FsQueueCall& call, const FsQueueSlot& slot, Generator& generator) {
    require(slot.task / what_.group_size <= updated_.load() + what_.staleness, "a task was taken before its time");
    require(slot.bytes == static_cast<int64_t>(bytes_of(slot.task)), "a task has another size than was put");
    pause(generator, what_.slow_trainer_us);
    for (size_t i = 0; i < bytes_of(slot.task); ++i) {
      require(arena_[static_cast<size_t>(slot.offset) + i] == value_of(slot.task),
              "a task has other bytes than were put");
    }
    trained_[static_cast<size_t>(slot.task)].fetch_add(1);
    until_not_waited(call, "queue_done", [&] { return fs_queue_done(&call, slot.task, -1); });
  }

  // Every task once, up to the group where the segment ended.
  void check(int64_t first, int64_t end) {
    FsQueueCall call = caller(0);
    int64_t group = 0;
    succeed(fs_queue_wait_end(&call, &group), "queue_wait_end");
    require(call.outcome == FS_QUEUE_DID && group == updated_.load(), "a segment has not ended");
    const int64_t end_at = what_.end_at * what_.group_size;
    const bool stops = (what_.stop_at >= first && what_.stop_at < end) || (end_at >= first && end_at < end);
    require(end_at < first || end_at >= end || group == what_.end_at + what_.staleness + 1,
            "another end than was asked");
    require(stops || group * what_.group_size == end, "a segment has ended early");
    for (int64_t task = first; task < end; ++task) {
      const int expected = task < group * what_.group_size ? 1 : 0;
      require(trained_[static_cast<size_t>(task)].load() == expected, "a task was lost, or trained twice");
      require(made_[static_cast<size_t>(task)].load() >= expected, "a task was trained that nobody made");
      require(made_[static_cast<size_t>(task)].load() <= 1, "a task was made twice");
    }
    FsQueueState state;
    succeed(fs_queue_state(&call, &state, nullptr), "queue_state");
    require(state.num_slots == 0 && state.bytes_in_use == 0, "a task that was dropped or done keeps its slot");
  }

  QueueCase what_;
  FsQueueSpec spec_;
  std::vector<std::atomic<int>> made_, trained_;  // by task
  std::vector<char> arena_;
  std::unique_ptr<char, Freed> memory_;
  FsQueue* queue_;
  std::atomic<int64_t> updated_{0};  // groups
};

inline void run_queues() {
  constexpr int32_t kNever = FS_SWITCH_NEVER, kProfit = FS_SWITCH_BY_PROFIT, kAlways = FS_SWITCH_ALWAYS;
  const QueueCase cases[] = {
      {1, 1, 1, 1, 0, 60, 4, kNever, 0, 0, -1},        // one slot
      {2, 2, 64, 2, 0, 40, 200, kProfit, 100, 0, -1},  // slow samplers
      {2, 1, 5, 3, 2, 30, 12, kProfit, 0, 100, -1},    // slow trainers, a full queue, little memory
      {1, 3, 200, 4, 1, 50, 900, kAlways, 0, 0, -1},   // a sampler that trains all the time
      {3, 1, 50, 2, 2, 25, 60, kAlways, 50, 50, -1},
      {2, 2, 100, 2, 1, 50, 900, kProfit, 20, 20, 31},      // a stop in the first segment
      {2, 2, 100, 2, 2, 50, 900, kAlways, 20, 20, 140},     // and in the second one
      {2, 2, 100, 2, 2, 50, 900, kProfit, 20, 20, -1, 17},  // an end that is asked for
      {2, 2, 4, 2, 0, 0, 8, kProfit, 0, 0, -1},             // no tasks
  };
  for (const QueueCase& what : cases) QueueRun(what).run();
}

}  // namespace stress

#endif  // FS_TESTS_STRESS_QUEUE_H_
