// The tasks of the persistent kernel: "draw the neighbours of a node as a destination of a hop", (node, hop) in short.
//
// A seed has a task for every hop; they are given to the queue from the start. A node found by hop h is a destination
// of the hops h + 1, h + 2, ... so one number says what a node has, the first of its hops. The id table holds it
// while the kernel runs, as kFoundBy + first hop, lowered by an atomic minimum: who lowers it from b to a puts in the
// tasks of the hops a .. b - 1. Each (node, hop) is put in once, in whatever order its finders come, and the last hop's
// finds are not tasks. This is PGSampler's bit per (node, hop), one word per node. Assembly lowers the word further, to
// the first edge that brings the node, then to its local id (hop_kernels.cuh).
//
// The picks of a task are written one after the other into the records, in the order of the draws, as slots of the id
// table; assembly copies them to where the order of the mini-batch wants them. Warps own chunks of the records: most
// tasks get their room without an atomic.
#ifndef FS_CUDA_PERSISTENT_TASKS_CUH_
#define FS_CUDA_PERSISTENT_TASKS_CUH_

#include "hop_kernels.cuh"
#include "task_queue.cuh"

namespace fs {

constexpr uint64_t kFoundBy = 3ull << (kStampShift - 2);
constexpr int kHopBits = 4;  // of a task's word: slot << kHopBits | hop
FS_DEVICE uint64_t slot_of_task(uint64_t word) { return word >> kHopBits; }
FS_DEVICE int hop_of_task(uint64_t word) { return static_cast<int>(word & ((1u << kHopBits) - 1)); }
static_assert(FS_CUDA_MAX_HOPS <= 1 << kHopBits, "a task's word holds its hop");

// What the tasks found.
template <typename Id>
struct Records {
  Id* slots;                // [capacity] -1: the source is no row
  int64_t* positions;       // [capacity] in graph.indices; null where they are not needed
  int64_t capacity;         // of record_capacity
  const uint64_t* control;  // of the queue

  FS_DEVICE bool is_complete() const { return control[kStopWord] == FS_CUDA_QUEUE_DONE; }
};

#if defined(FS_EMULATED)
constexpr int64_t kRecordChunk = 64;
#else
constexpr int64_t kRecordChunk = 512;  // 2 KB of int32 slots; a warp's few tasks at a time take at most 32
#endif

// Records that are room enough for `picks` picks by so many warps, whatever each of them does. A warp drops less than
// kWarp records of a chunk when it takes the next, and keeps one chunk.
inline int64_t record_capacity(int64_t picks, int64_t warps) {
  return kRecordChunk * (picks / (kRecordChunk - kWarp + 1) + 1 + warps);
}

// The calling warp's chunk. All lanes call all functions.
class RecordWarp {
 public:
  FS_DEVICE RecordWarp(const TaskQueue& queue, int64_t capacity) : queue_(queue), capacity_(capacity) {}

  // Where `total` picks of tasks up to number `task` go; -1: there is no room, and the kernel is over. More than kWarp
  // get a run of their own.
  FS_DEVICE int64_t take(int64_t total, int64_t task) {
    if (total <= end_ - next_) {
      next_ += total;
      return next_ - total;
    }
    const int64_t size = total > kWarp ? total : kRecordChunk;
    int64_t first = 0;
    if (lane_number() == 0) {
      first = queue_.add(kRecordedWord, size);
      if (first + size > capacity_) queue_.stop(FS_CUDA_QUEUE_FULL, task);
    }
    first = __shfl_sync(kAllLanes, first, 0);
    if (first + size > capacity_) return -1;
    if (total > kWarp) return first;
    next_ = first + total;
    end_ = first + size;
    return first;
  }

 private:
  const TaskQueue& queue_;
  const int64_t capacity_;
  int64_t next_ = 0, end_ = 0;
};

// Whether a whole warp draws a row of this fanout.
FS_HD bool is_wide(int64_t fanout) { return fanout == kTakeAll || fanout > kWarp; }

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
  uint64_t* state;
  TaskQueue queue;
  Records<Id> records;
  int64_t* runs;  // [num_hops, slots] where a task's picks begin in the records; set only for tasks that were done

  FS_DEVICE StageKey key(int hop) const {
    const uint64_t word = stage_keys[hop];
    return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
  }
  FS_DEVICE bool draws_by_warp(int hop) const { return is_wide(fanouts[hop]); }
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
    return {slot_of_task(taken.word), hop_of_task(taken.word)};
  }
  const int hop = static_cast<int>(taken.number / batch.num_seeds);  // all seeds' first hop, then their second
  const Id seed = batch.seeds[taken.number % batch.num_seeds];
  return {batch.graph.has_row(seed) ? batch.table.insert(seed) : kNoSlot, hop};
}

// The row of the lane's task, with room for its picks. All lanes call it. False: no room, and the kernel is over.
template <typename Id>
FS_DEVICE bool begin_task(const TaskBatch<Id>& batch, const TakenTasks& taken, RecordWarp& records, TaskRow* out) {
  TaskRow row = {0, 0, 0, 0, 0, 0};
  NodeTask task = {kNoSlot, 0};
  if (lane_number() < taken.count) task = node_task(batch, taken);
  if (task.slot != kNoSlot) {
    row.row = static_cast<int64_t>(batch.table.id_now(task.slot));  // take() has waited for it
    row.hop = task.hop;
    const RowEdges edges = row_edges(batch.graph, row.row);
    row.begin = edges.begin;
    row.degree = edges.degree;
    row.picks = num_picks(edges.degree, batch.fanouts[task.hop], batch.replace);
  }
  const int64_t inclusive = warp_scan(row.picks);
  const int64_t first = records.take(__shfl_sync(kAllLanes, inclusive, kWarp - 1), taken.number);
  if (first < 0) return false;
  row.place = first + inclusive - row.picks;
  if (row.picks > 0) {
    batch.runs[row.hop * batch.table.slots + static_cast<int64_t>(task.slot)] = row.place;
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
  const uint64_t slot = batch.graph.has_row(source) ? enter_node(batch.table, batch.state, source) : kNoSlot;
  batch.records.slots[place] = static_cast<Id>(slot);
  if (batch.records.positions != nullptr) batch.records.positions[place] = position;
  const int first = hop + 1;
  if (slot == kNoSlot || first >= batch.num_hops) return {0, 0, 0};
  uint64_t* value = batch.table.values + slot;
  const uint64_t own = batch.state[kStamp] + kFoundBy, found = own + static_cast<uint64_t>(first);
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
  if (batch.draws_by_warp(own.hop)) own.picks = 0;
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
  uint32_t wide = __ballot_sync(kAllLanes, row.picks > 0 && batch.draws_by_warp(row.hop));
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
