// The tasks of the persistent kernel: "draw the neighbours of a node as a destination of a hop", (node, hop) in short.
//
// A seed has a task for every hop; they are given to the queue from the start. A node found by hop h is a destination
// of the hops h + 1, h + 2, ... so one number says what a node has, the first of its hops. The id table holds it
// while the kernel runs, as kFoundBy + first hop, lowered by an atomic minimum: who lowers it from b to a puts in the
// tasks of the hops a .. b - 1. Each (node, hop) is put in once, in whatever order its finders come, and the last hop's
// finds are not tasks. This is PGSampler's bit per (node, hop), one word per node. Assembly lowers the word further, to
// the first edge that brings the node, then to its local id (hop_kernels.cuh).
//
// The picks of a task are written one after the other wherever there is room next, in the order of the draws, as slots
// of the id table; assembly copies them to where the order of the mini-batch wants them.
#ifndef FS_CUDA_PERSISTENT_TASKS_CUH_
#define FS_CUDA_PERSISTENT_TASKS_CUH_

#include "hop_kernels.cuh"
#include "task_queue.cuh"

namespace fs {

constexpr uint64_t kFoundBy = 3ull << (kStampShift - 2);
constexpr int kHopBits = 4;  // of a task's word: slot << kHopBits | hop
static_assert(FS_CUDA_MAX_HOPS <= 1 << kHopBits, "a task's word holds its hop");

// What the tasks found.
template <typename Id>
struct Records {
  int64_t* places;     // [num_hops, slots] where a task's picks begin; set only for tasks that were done
  Id* slots;           // [capacity] as in DeviceHop::indices
  int64_t* positions;  // [capacity] in graph.indices; null where they are not needed
  int64_t capacity;
  const uint64_t* control;  // of the queue

  FS_DEVICE bool is_complete() const { return control[kStopWord] == FS_CUDA_QUEUE_DONE; }
};

// A batch as the persistent kernel takes it.
template <typename Id>
struct TaskBatch {
  CscView<Id> graph;
  int64_t fanouts[FS_CUDA_MAX_HOPS];
  bool replace;
  int32_t num_hops;
  int32_t width;  // lanes that draw a row of at most kWarp picks
  const Id* seeds;
  int64_t num_seeds;
  const uint64_t* stage_keys;
  DeviceIdTable<Id> table;
  const uint64_t* stamp;  // [1]
  TaskQueue queue;
  Records<Id> records;

  FS_DEVICE StageKey key(int hop) const {
    const uint64_t word = stage_keys[hop];
    return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
  }
  FS_HD bool is_wide(int hop) const { return fanouts[hop] == kTakeAll || fanouts[hop] > kWarp; }
};

// A task's row. picks == 0: nothing to do.
struct TaskRow {
  int64_t row, begin, degree, picks, place;
  int32_t hop;
};

// The task that `lane` holds, in every lane of the group that draws it.
FS_DEVICE TaskRow row_of_lane(const TaskRow& row, int lane) {
  return {__shfl_sync(kAllLanes, row.row, lane),    __shfl_sync(kAllLanes, row.begin, lane),
          __shfl_sync(kAllLanes, row.degree, lane), __shfl_sync(kAllLanes, row.picks, lane),
          __shfl_sync(kAllLanes, row.place, lane),  __shfl_sync(kAllLanes, row.hop, lane)};
}

struct NodeTask {
  uint64_t slot;  // kNoSlot: no task
  int hop;
};

// A repeated seed has its tasks twice; such a batch is refused when it is done.
template <typename Id>
FS_DEVICE NodeTask node_task(const TaskBatch<Id>& batch, const TakenTasks& taken) {
  if (taken.word != kNoTask) {
    return {taken.word >> kHopBits, static_cast<int>(taken.word & ((1u << kHopBits) - 1))};
  }
  const int hop = static_cast<int>(taken.number / batch.num_seeds);  // all seeds' first hop, then their second
  const Id seed = batch.seeds[taken.number % batch.num_seeds];
  return {batch.graph.has_row(seed) ? batch.table.insert(seed) : kNoSlot, hop};
}

// The row of the lane's task, with room for its picks. All lanes call it. False: no room, and the kernel is over.
template <typename Id>
FS_DEVICE bool begin_task(const TaskBatch<Id>& batch, const TakenTasks& taken, TaskRow* out) {
  TaskRow row = {0, 0, 0, 0, 0, 0};
  NodeTask task = {kNoSlot, 0};
  if (lane_number() < taken.count) task = node_task(batch, taken);
  if (task.slot != kNoSlot) {
    row.row = static_cast<int64_t>(batch.table.id_at(task.slot));
    row.hop = task.hop;
    const RowEdges edges = row_edges(batch.graph, row.row);
    row.begin = edges.begin;
    row.degree = edges.degree;
    row.picks = num_picks(edges.degree, batch.fanouts[task.hop], batch.replace);
  }
  const int64_t inclusive = warp_scan(row.picks), total = __shfl_sync(kAllLanes, inclusive, kWarp - 1);
  int64_t first = 0;
  if (lane_number() == 0 && total > 0) {
    first = batch.queue.add(kRecordedWord, total);
    if (first + total > batch.records.capacity) batch.queue.stop(FS_CUDA_QUEUE_FULL, taken.number);
  }
  first = __shfl_sync(kAllLanes, first, 0);
  if (first + total > batch.records.capacity) return false;
  row.place = first + inclusive - row.picks;
  if (row.picks > 0) {
    batch.records.places[row.hop * batch.table.slots + static_cast<int64_t>(task.slot)] = row.place;
  }
  *out = row;
  return true;
}

// Hops first .. last - 1 of which a node has just become a destination; none where first == last.
struct FoundNode {
  uint64_t slot;
  int first, last;
};

// Writes down the pick at `position` of the graph's indices, and returns which tasks it brings.
template <typename Id>
FS_DEVICE FoundNode record_pick(const TaskBatch<Id>& batch, int hop, int64_t place, int64_t position) {
  const Id source = batch.graph.indices[position];
  const uint64_t slot = batch.graph.has_row(source) ? batch.table.insert(source) : kNoSlot;
  batch.records.slots[place] = static_cast<Id>(slot);
  if (batch.records.positions != nullptr) batch.records.positions[place] = position;
  const int first = hop + 1;
  if (slot == kNoSlot || first >= batch.num_hops) return {0, 0, 0};
  uint64_t* value = batch.table.values + slot;
  const uint64_t own = *batch.stamp + kFoundBy, found = own + static_cast<uint64_t>(first);
  if (load_now(value) <= found) return {0, 0, 0};  // a seed, or found by this hop or one before
  const uint64_t before = atomic_min(value, found);
  if (before <= found) return {0, 0, 0};
  const bool is_new = before - own > FS_CUDA_MAX_HOPS;  // nothing, or what an earlier batch has left
  return {slot, first, is_new ? batch.num_hops : static_cast<int>(before - own)};
}

FS_DEVICE void put_found(QueueWarp& warp, const FoundNode& found) {
  warp.put(found.last - found.first,
           [&](int64_t i) { return found.slot << kHopBits | static_cast<uint64_t>(found.first + i); });
}

template <typename Id>
FS_DEVICE DrawnRow drawn_row(const TaskBatch<Id>& batch, const TaskRow& row) {
  return {batch.key(row.hop), batch.graph.orig_id(row.row), row.degree, batch.fanouts[row.hop], batch.replace};
}

// Tasks of at most kWarp picks: one per group of lanes. `row` is that of the calling lane's task.
template <typename Id>
FS_DEVICE void do_narrow_tasks(const TaskBatch<Id>& batch, const TaskRow& row, QueueWarp& warp) {
  const LaneGroup group = lane_group(batch.width);
  TaskRow own = row_of_lane(row, lane_number() / batch.width);
  if (batch.is_wide(own.hop)) own.picks = 0;
  int64_t position = group.lane;
  if (own.picks > 0 && !takes_all(own.degree, batch.fanouts[own.hop], batch.replace)) {
    position = draw_by_lanes(group, drawn_row(batch, own));
  }
  FoundNode found = {0, 0, 0};
  if (group.lane < own.picks) found = record_pick(batch, own.hop, own.place + group.lane, own.begin + position);
  put_found(warp, found);
}

// The other tasks, one after another by the whole warp.
template <typename Id>
FS_DEVICE void do_wide_tasks(const TaskBatch<Id>& batch, const TaskRow& row, QueueWarp& warp) {
  const LaneGroup all = lane_group(kWarp);
  uint32_t wide = __ballot_sync(kAllLanes, row.picks > 0 && batch.is_wide(row.hop));
  for (; wide != 0; wide &= wide - 1) {
    const TaskRow own = row_of_lane(row, __ffs(static_cast<int>(wide)) - 1);
    const bool whole = takes_all(own.degree, batch.fanouts[own.hop], batch.replace);
    const int64_t* positions = batch.records.positions + own.place;
    if (!whole) draw_by_warp(all, drawn_row(batch, own), batch.records.positions + own.place);
    for (int64_t first = 0; first < own.picks; first += kWarp) {
      const int64_t k = first + all.lane;
      FoundNode found = {0, 0, 0};
      if (k < own.picks) found = record_pick(batch, own.hop, own.place + k, own.begin + (whole ? k : positions[k]));
      put_found(warp, found);
    }
  }
}

}  // namespace fs

#endif  // FS_CUDA_PERSISTENT_TASKS_CUH_
