// The steps that change a queue, see queue_memory.h.
#include "queue_memory.h"

#include <stdio.h>
#include <unistd.h>

namespace fs {
namespace {

constexpr int64_t kPage = 4096;      // so that memory can be taken from the system piece by piece
constexpr double kShortestS = 1e-9;  // a task takes longer

int64_t whole_pages(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

void LockedQueue::enter(QueueSlot& slot, FsSlotState state, int32_t rank) {
  slot.seen.state = state;
  slot.seen.rank = rank;
  slot.seen.pid = static_cast<int32_t>(getpid());
  slot.seen.since_ns = clock_ns();
  changed();
}

void LockedQueue::give_back(QueueSlot& slot) {
  arena_.give_back(slot.seen.offset, slot.reserved);
  queue_.state.bytes_in_use -= slot.reserved;
  slot.reserved = 0;
}

void LockedQueue::make_free(QueueSlot& slot) {
  give_back(slot);
  --queue_.state.num_slots;
  enter(slot, FS_SLOT_FREE, -1);
}

void LockedQueue::begin(const FsQueueSegment& segment) {
  FsQueueState& state = queue_.state;
  state.segment = segment;
  state.next_task = segment.first_task;
  state.end_task = segment.first_task + segment.num_tasks;
  state.num_taken = state.num_done = 0;
  state.stopped = 0;
  queue_.num_made = 0;
  queue_.top_group = state.current_group = first_group();
  std::fill(arrays_.group_done, arrays_.group_done + queue_.spec.staleness + 1, int64_t{0});
  changed();
}

// Bytes of the arena that end at `limit` or before become those of a slot that has none.
bool LockedQueue::reserve(QueueSlot& slot, int64_t bytes, int64_t limit) {
  const int64_t offset = arena_.take(bytes, limit);
  if (offset < 0) return false;
  slot.seen.offset = offset;
  slot.reserved = bytes;
  queue_.state.bytes_in_use += bytes;
  return true;
}

bool LockedQueue::claim(int32_t rank, FsQueueSlot* claimed) {
  const int64_t task = queue_.state.next_task;
  QueueSlot& slot = slot_of(task);
  if (slot.seen.state != FS_SLOT_FREE) return false;
  const int64_t most = queue_.spec.most_bytes / kPage * kPage;
  if (!reserve(slot, std::min(whole_pages(queue_.state.task_bytes), most), most)) return false;
  slot.seen.task = task;
  slot.seen.version = std::max(first_group(), group_of(task) - queue_.spec.staleness);
  slot.seen.bytes = slot.reserved;
  ++queue_.state.next_task;
  ++queue_.state.num_slots;
  enter(slot, FS_SLOT_CLAIMED, rank);
  *claimed = slot.seen;
  return true;
}

bool LockedQueue::give_room(QueueSlot& slot, int64_t bytes, int64_t* unused_from) {
  const int64_t needed = whole_pages(bytes);
  queue_.state.task_bytes = std::max(queue_.state.task_bytes, bytes);
  give_back(slot);
  if (!reserve(slot, needed, queue_.spec.arena_bytes)) return false;
  slot.seen.bytes = bytes;
  *unused_from = std::max(queue_.used_bytes, slot.seen.offset);
  queue_.used_bytes = std::max(queue_.used_bytes, slot.seen.offset + needed);
  changed();
  return true;
}

void LockedQueue::put(QueueSlot& slot) {
  ++queue_.num_made;
  enter(slot, FS_SLOT_READY, slot.seen.rank);
}

// Tasks below it may be trained now.
int64_t LockedQueue::end_of_allowed() const {
  const int64_t groups = queue_.state.current_group + queue_.spec.staleness + 1;
  return std::min(groups * queue_.spec.group_size, queue_.state.end_task);
}

bool LockedQueue::take(int32_t rank, FsQueueSlot* taken) {
  const int64_t end = std::min(end_of_allowed(), queue_.state.next_task);
  for (int64_t task = queue_.state.current_group * queue_.spec.group_size; task < end; ++task) {
    QueueSlot& slot = slot_of(task);
    if (slot.seen.task != task || slot.seen.state != FS_SLOT_READY) continue;
    ++queue_.state.num_taken;
    queue_.top_group = std::max(queue_.top_group, group_of(task) + 1);
    ++arrays_.times[rank].num_training;
    enter(slot, FS_SLOT_TAKEN, rank);
    *taken = slot.seen;
    return true;
  }
  return false;
}

void LockedQueue::done(QueueSlot& slot, double train_s) {
  TrainingTimes& times = arrays_.times[slot.seen.rank];
  const int64_t now_ns = clock_ns();
  const int64_t measured_ns = now_ns - std::max(slot.seen.since_ns, times.done_ns);
  times.add(train_s < 0 ? static_cast<double>(measured_ns) / static_cast<double>(kSecondNs) : train_s);
  times.done_ns = now_ns;
  --times.num_training;
  ++queue_.state.num_done;
  ++done_of(group_of(slot.seen.task));
  make_free(slot);
}

void LockedQueue::advance() {
  done_of(queue_.state.current_group) = 0;
  ++queue_.state.current_group;
  changed();
}

void LockedQueue::stop(int64_t end_group) {
  FsQueueState& state = queue_.state;
  if (state.stopped) return;
  state.stopped = 1;
  state.end_task = std::min(state.end_task, end_group * queue_.spec.group_size);
  for (int64_t task = state.end_task; task < state.next_task; ++task) {
    QueueSlot& slot = slot_of(task);
    if (slot.seen.task == task && slot.seen.state == FS_SLOT_READY) make_free(slot);
  }
  changed();
}

void LockedQueue::fail(const char* line) {
  if (has_failed()) return;
  snprintf(queue_.failure, sizeof(queue_.failure), "%s", line);
  changed();
}

bool LockedQueue::epoch_is_made() const {
  const FsQueueState& state = queue_.state;
  return state.segment.ends_epoch && !state.stopped && queue_.num_made == state.segment.num_tasks;
}

// GNNLab, section 5.3, with a time of its own for everyone who trains. What remains is what may be trained before the
// next update: a standby that is slower than the trainers must not hold up a group for the sake of later ones.
double LockedQueue::profit(int32_t rank, double standby_s) const {
  double known_s = 0, tasks_per_s = 0;
  int64_t num_active = 0, num_known = 0;
  for (int32_t other = 0; other < queue_.spec.num_ranks; ++other) {
    const TrainingTimes& times = arrays_.times[other];
    if (!is_trainer(other) && times.num_training == 0) continue;
    ++num_active;
    if (times.count == 0) continue;
    ++num_known;
    known_s += times.median();
    tasks_per_s += 1 / std::max(times.median(), kShortestS);
  }
  const TrainingTimes& own = arrays_.times[rank];
  const double mean_s = num_known > 0 ? known_s / static_cast<double>(num_known) : standby_s < 0 ? 1 : standby_s;
  if (standby_s < 0) standby_s = own.count > 0 ? own.median() : mean_s;
  tasks_per_s += static_cast<double>(num_active - num_known) / std::max(mean_s, kShortestS);
  const int64_t remaining = end_of_allowed() - queue_.state.segment.first_task - queue_.state.num_done;
  return static_cast<double>(remaining) / tasks_per_s - standby_s;
}

void LockedQueue::copy_slots(FsQueueSlot* slots) const {
  for (int64_t i = 0; i < queue_.spec.capacity; ++i) {
    if (arrays_.slots[i].seen.state != FS_SLOT_FREE) *slots++ = arrays_.slots[i].seen;
  }
}

}  // namespace fs
