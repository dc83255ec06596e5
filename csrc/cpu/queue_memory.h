// What is in the memory of a queue (fastsample_queue.h), and the steps that change it. The caller holds the lock.
//
// Task n of the segment has slot (n - first_task) % capacity. Only groups from the current one to current + staleness
// have tasks that are trained or done, so counters of that many groups are enough.
#ifndef FS_CPU_QUEUE_MEMORY_H_
#define FS_CPU_QUEUE_MEMORY_H_

#include "arena_extents.h"
#include "fastsample_queue.h"
#include "shared_lock.h"

namespace fs {

constexpr int kKeptTimes = 9;

// Of one rank.
struct TrainingTimes {
  double last[kKeptTimes];  // a ring
  int64_t count;            // of all times so far
  int64_t done_ns;          // when this rank's last task was done
  int64_t num_training;     // tasks that it trains now

  void add(double train_s) {
    last[count % kKeptTimes] = train_s;
    ++count;
  }

  double median() const {
    double sorted[kKeptTimes] = {};
    const int64_t kept = std::min<int64_t>(count, kKeptTimes);
    for (int64_t i = 0; i < kept; ++i) {
      int64_t at = i;
      for (; at > 0 && sorted[at - 1] > last[i]; --at) sorted[at] = sorted[at - 1];
      sorted[at] = last[i];
    }
    return sorted[kept / 2];
  }
};

struct QueueSlot {
  FsQueueSlot seen;
  int64_t reserved;  // bytes of the arena from seen.offset on
};

}  // namespace fs

struct FsQueue {
  fs::SharedLock lock;
  fs::SharedEvents events;
  FsQueueSpec spec;
  FsQueueState state;
  int64_t top_group;   // groups below it have a task that is trained or done
  int64_t num_made;    // tasks of the segment that were put
  int64_t used_bytes;  // of the arena: pages behind were never given to a task
  int64_t num_extents;
  char failure[512];
};

namespace fs {

// The arrays behind the struct.
struct QueueArrays {
  QueueSlot* slots;      // [capacity]
  int64_t* group_done;   // [staleness + 1] tasks that are done, of group g at g % (staleness + 1)
  TrainingTimes* times;  // [num_ranks]
  Extent* extents;       // [capacity + 2]
  int64_t* numbers;      // [num_ranks] of ranks, in messages
  size_t num_bytes;

  QueueArrays(void* queue, const FsQueueSpec& spec) : num_bytes(0) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(queue);
    const auto place = [&](size_t bytes) {
      const uintptr_t at = begin + num_bytes;
      num_bytes += (bytes + 63) / 64 * 64;
      return at;
    };
    const size_t capacity = static_cast<size_t>(spec.capacity);
    place(sizeof(FsQueue));
    slots = reinterpret_cast<QueueSlot*>(place(capacity * sizeof(QueueSlot)));
    group_done = reinterpret_cast<int64_t*>(place(static_cast<size_t>(spec.staleness + 1) * sizeof(int64_t)));
    times = reinterpret_cast<TrainingTimes*>(place(static_cast<size_t>(spec.num_ranks) * sizeof(TrainingTimes)));
    extents = reinterpret_cast<Extent*>(place((capacity + 2) * sizeof(Extent)));
    numbers = reinterpret_cast<int64_t*>(place(static_cast<size_t>(spec.num_ranks) * sizeof(int64_t)));
  }
};

// A queue whose lock the caller holds.
class LockedQueue {
 public:
  explicit LockedQueue(FsQueue* queue)
      : queue_(*queue), arrays_(queue, queue->spec), arena_(arrays_.extents, &queue->num_extents) {}

  const FsQueueSpec& spec() const { return queue_.spec; }
  FsQueueState& state() { return queue_.state; }
  const FsQueueSegment& segment() const { return queue_.state.segment; }
  bool has_failed() const { return queue_.failure[0] != 0; }
  int64_t group_of(int64_t task) const { return task / queue_.spec.group_size; }
  int64_t first_group() const { return group_of(segment().first_task); }
  bool all_are_taken() const { return queue_.state.num_taken == queue_.state.end_task - segment().first_task; }
  bool is_over() const { return queue_.state.current_group >= group_of(queue_.state.end_task); }
  bool is_wanted(int64_t task) const { return task < queue_.state.end_task; }
  bool is_trainer(int32_t rank) const { return rank < queue_.spec.num_trainers; }
  long long number_of(int32_t rank) const { return arrays_.numbers[rank]; }

  QueueSlot& slot_of(int64_t task) { return arrays_.slots[(task - segment().first_task) % queue_.spec.capacity]; }
  // The slot of a task that this rank holds in this state; NULL if it does not.
  QueueSlot* held(int32_t rank, int64_t task, FsSlotState state) {
    const FsQueueSegment& now = segment();
    if (task < now.first_task || task >= now.first_task + now.num_tasks) return nullptr;
    QueueSlot& slot = slot_of(task);
    const bool holds = slot.seen.task == task && slot.seen.state == state && slot.seen.rank == rank;
    return holds ? &slot : nullptr;
  }

  void changed() {
    queue_.state.changed_ns = clock_ns();
    queue_.events.add();
  }

  void enter(QueueSlot& slot, FsSlotState state, int32_t rank);
  void make_free(QueueSlot& slot);
  void begin(const FsQueueSegment& segment);
  bool claim(int32_t rank, FsQueueSlot* claimed);
  bool give_room(QueueSlot& slot, int64_t bytes, int64_t* unused_from);
  void put(QueueSlot& slot);
  bool take(int32_t rank, FsQueueSlot* taken);
  void done(QueueSlot& slot, double train_s);
  // Whether all tasks of the current group are done, so that it is to be updated.
  bool group_is_done() { return !is_over() && done_of(queue_.state.current_group) == queue_.spec.group_size; }
  void advance();
  int64_t top_group() const { return queue_.top_group; }
  void stop(int64_t end_group);
  void fail(const char* line);
  bool epoch_is_made() const;
  double profit(int32_t rank, double standby_s) const;
  void copy_slots(FsQueueSlot* slots) const;

 private:
  int64_t& done_of(int64_t group) { return arrays_.group_done[group % (queue_.spec.staleness + 1)]; }
  int64_t end_of_allowed() const;
  void give_back(QueueSlot& slot);
  bool reserve(QueueSlot& slot, int64_t bytes, int64_t limit);

  FsQueue& queue_;
  QueueArrays arrays_;
  ArenaExtents arena_;
};

}  // namespace fs

#endif  // FS_CPU_QUEUE_MEMORY_H_
