// shared_queue: see fastsample_queue.h for what it is, queue_memory.h for what is in its memory.
//
// Every call locks, looks, and either changes something and wakes all that wait, or waits for a change until its slice
// is over. Waking all is cheap here: those who wait are the ranks of one machine.
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <numeric>

#include "fastsample_queue.h"
#include "queue_memory.h"
#include "status.h"

namespace fs {
namespace {

constexpr double kLongestSliceS = 0.05;
constexpr int32_t kUpdater = 0;  // rank
constexpr int64_t kMostTasks = (int64_t{1} << 31) - 1;

FsStatus check_at_least(const char* name, int64_t found, int64_t least) {
  if (found >= least) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "shared_queue: %s is %lld; expected at least %lld", name,
              static_cast<long long>(found), static_cast<long long>(least));
}

FsStatus check_spec(const FsQueueSpec& spec) {
  const struct {
    const char* name;
    int64_t found, least;
  } sizes[] = {{"capacity", spec.capacity, 1},
               {"group_size", spec.group_size, 1},
               {"staleness", spec.staleness, 0},
               {"most_bytes", spec.most_bytes, 4096},
               {"arena_bytes", spec.arena_bytes, spec.most_bytes},
               {"task_bytes", spec.task_bytes, 1},
               {"num_trainers", spec.num_trainers, 1},
               {"num_ranks", spec.num_ranks, spec.num_trainers}};
  for (const auto& size : sizes) {
    const FsStatus status = check_at_least(size.name, size.found, size.least);
    if (status != FS_OK) return status;
  }
  if (std::max({spec.capacity, spec.group_size, spec.staleness}) > kMostTasks) {
    return fail(FS_INVALID_ARGUMENT,
                "shared_queue: capacity %lld, group_size %lld, staleness %lld; expected at most %lld",
                static_cast<long long>(spec.capacity), static_cast<long long>(spec.group_size),
                static_cast<long long>(spec.staleness), static_cast<long long>(kMostTasks));
  }
  if (spec.switching >= FS_SWITCH_NEVER && spec.switching <= FS_SWITCH_ALWAYS) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "shared_queue: switching %d is unknown; expected one of FsQueueSwitching",
              spec.switching);
}

FsStatus check_segment(const FsQueueSegment& segment, int64_t group_size) {
  FsStatus status = check_at_least("first_task", segment.first_task, 0);
  if (status == FS_OK) status = check_at_least("num_tasks", segment.num_tasks, 0);
  if (status != FS_OK) return status;
  if (segment.first_task % group_size == 0 && segment.num_tasks % group_size == 0) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "shared_queue: %lld tasks from task %lld; expected whole groups of %lld",
              static_cast<long long>(segment.num_tasks), static_cast<long long>(segment.first_task),
              static_cast<long long>(group_size));
}

FsStatus check_call(const FsQueueCall& call) {
  if (call.rank < 0 || call.rank >= call.queue->spec.num_ranks) {
    return fail(FS_INVALID_ARGUMENT, "shared_queue: rank %d; expected 0 to %d", call.rank,
                call.queue->spec.num_ranks - 1);
  }
  if (call.slice_s >= 0 && call.slice_s <= kLongestSliceS) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "shared_queue: slice_s is %g; expected 0 to %g", call.slice_s, kLongestSliceS);
}

// Who has died with the lock has perhaps left half a change, so the run fails.
void note_dead_holder(FsQueue* queue, LockedQueue& locked) {
  const int32_t dead = queue->lock.holder();
  char line[96] = "a rank ended while it changed the queue of tasks";
  if (dead >= 0) {
    snprintf(line, sizeof(line), "rank %lld (%s) ended while it changed the queue of tasks", locked.number_of(dead),
             locked.is_trainer(dead) ? "trainer" : "sampler");
  }
  locked.fail(line);
}

// Runs look(locked) under the lock until it sets another outcome than FS_QUEUE_WAITED, or the slice is over.
template <typename Look>
FsStatus look_until(FsQueueCall* call, const Look& look) {
  FsStatus status = check_call(*call);
  if (status != FS_OK) return status;
  FsQueue* queue = call->queue;
  const int64_t until_ns = clock_ns() + static_cast<int64_t>(call->slice_s * static_cast<double>(kSecondNs));
  call->outcome = FS_QUEUE_WAITED;
  for (bool waits = true; waits;) {
    const int locked = queue->lock.lock(until_ns);
    if (locked != 0 && locked != EOWNERDEAD) return FS_OK;
    LockedQueue inside(queue);
    if (locked == EOWNERDEAD) note_dead_holder(queue, inside);
    queue->lock.set_holder(call->rank);
    const uint32_t before = queue->events.now();
    status = look(inside);
    waits = status == FS_OK && call->outcome == FS_QUEUE_WAITED && clock_ns() < until_ns;
    const uint32_t seen = waits ? queue->events.prepare() : queue->events.now();
    queue->lock.unlock();
    if (seen != before) queue->events.wake_all();
    if (waits) queue->events.wait(seen, until_ns);
  }
  return status;
}

// The same for what is not done any more after a failure.
template <typename Look>
FsStatus run_until(FsQueueCall* call, const Look& look) {
  return look_until(call, [&](LockedQueue& queue) {
    if (queue.has_failed()) {
      call->outcome = FS_QUEUE_FAILED;
      return FS_OK;
    }
    return look(queue);
  });
}

FsStatus refuse_task(const LockedQueue& queue, int32_t rank, const char* what, int64_t task) {
  return fail(FS_INVALID_ARGUMENT, "shared_queue: rank %lld has not %s task %lld", queue.number_of(rank), what,
              static_cast<long long>(task));
}

// Runs use(queue, slot) on the slot of a task that this rank has claimed. ENDED where a stop has made it unwanted.
template <typename Use>
FsStatus use_claimed(FsQueueCall* call, int64_t task, const Use& use) {
  return run_until(call, [&](LockedQueue& queue) {
    QueueSlot* slot = queue.held(call->rank, task, FS_SLOT_CLAIMED);
    if (slot == nullptr) return refuse_task(queue, call->rank, "claimed", task);
    if (!queue.is_wanted(task)) {
      queue.make_free(*slot);
      call->outcome = FS_QUEUE_ENDED;
      return FS_OK;
    }
    return use(queue, *slot);
  });
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_queue_bytes(const FsQueueSpec* spec, int64_t* num_bytes) {
  const FsStatus status = fs::check_spec(*spec);
  if (status == FS_OK) *num_bytes = static_cast<int64_t>(fs::QueueArrays(nullptr, *spec).num_bytes);
  return status;
}

FsStatus fs_queue_make(const FsQueueSpec* spec, FsQueue* queue) {
  const FsStatus status = fs::check_spec(*spec);
  if (status != FS_OK) return status;
  if (!queue->lock.make()) {
    return fs::fail(FS_DEVICE_ERROR, "shared_queue: this system has no locks that processes can share");
  }
  queue->events.make();
  queue->spec = *spec;
  queue->state.task_bytes = spec->task_bytes;
  const fs::QueueArrays arrays(queue, *spec);
  fs::ArenaExtents(arrays.extents, &queue->num_extents).make(spec->arena_bytes);
  std::iota(arrays.numbers, arrays.numbers + spec->num_ranks, int64_t{0});
  return FS_OK;
}

FsStatus fs_queue_number_ranks(FsQueue* queue, const int64_t* numbers) {
  std::copy(numbers, numbers + queue->spec.num_ranks, fs::QueueArrays(queue, queue->spec).numbers);
  return FS_OK;
}

FsStatus fs_queue_begin(FsQueueCall* call, const FsQueueSegment* segment) {
  return fs::run_until(call, [&](fs::LockedQueue& queue) {
    const FsStatus status = fs::check_segment(*segment, queue.spec().group_size);
    if (status != FS_OK) return status;
    if (queue.state().num_slots > 0) {
      return fs::fail(FS_INVALID_ARGUMENT,
                      "shared_queue: the segment before has tasks under way; expected all of them done or dropped");
    }
    queue.begin(*segment);
    call->outcome = FS_QUEUE_DID;
    return FS_OK;
  });
}

FsStatus fs_queue_claim(FsQueueCall* call, FsQueueSlot* claimed) {
  return fs::run_until(call, [&](fs::LockedQueue& queue) {
    if (!queue.is_wanted(queue.state().next_task)) {
      call->outcome = FS_QUEUE_ENDED;
    } else if (queue.claim(call->rank, claimed)) {
      call->outcome = FS_QUEUE_DID;
    }
    return FS_OK;
  });
}

FsStatus fs_queue_room(FsQueueCall* call, int64_t task, int64_t bytes, int64_t* offset, int64_t* unused_from) {
  return fs::use_claimed(call, task, [&](fs::LockedQueue& queue, fs::QueueSlot& slot) {
    const FsStatus status = fs::check_at_least("bytes", bytes, 1);
    if (status != FS_OK) return status;
    if (bytes > queue.spec().most_bytes) {
      return fs::fail(FS_INVALID_ARGUMENT, "shared_queue: task %lld takes %lld bytes; expected at most %lld",
                      static_cast<long long>(task), static_cast<long long>(bytes),
                      static_cast<long long>(queue.spec().most_bytes));
    }
    if (queue.give_room(slot, bytes, unused_from)) {
      *offset = slot.seen.offset;
      call->outcome = FS_QUEUE_DID;
    }
    return FS_OK;
  });
}

FsStatus fs_queue_put(FsQueueCall* call, int64_t task) {
  return fs::use_claimed(call, task, [&](fs::LockedQueue& queue, fs::QueueSlot& slot) {
    queue.put(slot);
    call->outcome = FS_QUEUE_DID;
    return FS_OK;
  });
}

FsStatus fs_queue_take(FsQueueCall* call, FsQueueSlot* taken) {
  return fs::run_until(call, [&](fs::LockedQueue& queue) {
    const bool updates = call->rank == fs::kUpdater;
    if (updates && queue.group_is_done()) {
      call->outcome = FS_QUEUE_UPDATE;
    } else if (updates ? queue.is_over() : queue.all_are_taken()) {
      call->outcome = FS_QUEUE_ENDED;
    } else if (queue.take(call->rank, taken)) {
      call->outcome = FS_QUEUE_DID;
    }
    return FS_OK;
  });
}

FsStatus fs_queue_take_standby(FsQueueCall* call, double standby_s, FsQueueSlot* taken, double* profit) {
  return fs::run_until(call, [&](fs::LockedQueue& queue) {
    const int32_t switching = queue.spec().switching;
    *profit = 0;
    if (switching == FS_SWITCH_NEVER || queue.all_are_taken()) {
      call->outcome = FS_QUEUE_ENDED;
      return FS_OK;
    }
    bool takes = switching == FS_SWITCH_ALWAYS;
    if (!takes && queue.epoch_is_made()) {
      *profit = queue.profit(call->rank, standby_s);
      takes = *profit > 0;
    }
    if (takes && queue.take(call->rank, taken)) call->outcome = FS_QUEUE_DID;
    return FS_OK;
  });
}

FsStatus fs_queue_done(FsQueueCall* call, int64_t task, double train_s) {
  return fs::run_until(call, [&](fs::LockedQueue& queue) {
    fs::QueueSlot* slot = queue.held(call->rank, task, FS_SLOT_TAKEN);
    if (slot == nullptr) return fs::refuse_task(queue, call->rank, "taken", task);
    queue.done(*slot, train_s);
    call->outcome = FS_QUEUE_DID;
    return FS_OK;
  });
}

FsStatus fs_queue_advance(FsQueueCall* call, int64_t group) {
  return fs::run_until(call, [&](fs::LockedQueue& queue) {
    const int64_t current = queue.state().current_group;
    if (group != current || !queue.group_is_done()) {
      return fs::fail(FS_INVALID_ARGUMENT,
                      "shared_queue: group %lld; expected the current one, %lld, with all tasks done",
                      static_cast<long long>(group), static_cast<long long>(current));
    }
    queue.advance();
    call->outcome = FS_QUEUE_DID;
    return FS_OK;
  });
}

FsStatus fs_queue_wait_end(FsQueueCall* call, int64_t* group) {
  return fs::run_until(call, [&](fs::LockedQueue& queue) {
    if (!queue.is_over()) return FS_OK;
    *group = queue.state().current_group;
    call->outcome = FS_QUEUE_DID;
    return FS_OK;
  });
}

FsStatus fs_queue_stop(FsQueueCall* call) {
  return fs::run_until(call, [&](fs::LockedQueue& queue) {
    queue.stop(queue.top_group());
    call->outcome = FS_QUEUE_DID;
    return FS_OK;
  });
}

FsStatus fs_queue_end_after(FsQueueCall* call, int64_t group) {
  return fs::run_until(call, [&](fs::LockedQueue& queue) {
    const FsStatus status = fs::check_at_least("group", group, queue.top_group() - 1);
    if (status != FS_OK) return status;
    queue.stop(group + 1);
    call->outcome = FS_QUEUE_DID;
    return FS_OK;
  });
}

FsStatus fs_queue_fail(FsQueueCall* call, const char* line) {
  return fs::look_until(call, [&](fs::LockedQueue& queue) {
    queue.fail(line);
    call->outcome = FS_QUEUE_DID;
    return FS_OK;
  });
}

FsStatus fs_queue_failure(FsQueueCall* call, char* line, int64_t size) {
  return fs::look_until(call, [&](fs::LockedQueue&) {
    snprintf(line, static_cast<size_t>(size), "%s", call->queue->failure);
    call->outcome = FS_QUEUE_DID;
    return FS_OK;
  });
}

FsStatus fs_queue_state(FsQueueCall* call, FsQueueState* state, FsQueueSlot* slots) {
  return fs::look_until(call, [&](fs::LockedQueue& queue) {
    if (slots != nullptr) queue.copy_slots(slots);
    *state = queue.state();
    call->outcome = FS_QUEUE_DID;
    return FS_OK;
  });
}

FsStatus fs_queue_holder(const FsQueue* queue, int32_t* rank) {
  *rank = queue->lock.holder();
  return FS_OK;
}

}  // extern "C"
