// Picks of a step grouped by their transits (Jangda et al., EuroSys'21, sections 5 and 6): the same picks, made in
// another order.
//
// A transit of a sample is a slot; (transit, slot) pairs are sorted by transit, those without one behind all others. Of
// walks of drawn lengths only those that are not over have a slot: they are the first of the samples by length. A
// run of equal transits asks for run * sample_size picks from one row:
//
//   fewer than kFewPicks       a group of lanes takes the run (the paper's sub-warp)
//   more                       blocks take tiles of kTilePicks picks each, a run one tile (the paper's block) or
//   several
//                              (its grid). A row that is short enough, and no longer than the tile has picks, is read
//                              to shared memory once
//
// Lists' lengths stay on the device: grids stride over what they find. FS_SCHEDULE_TRANSIT_FLAT leaves the lists out:
// a thread a pick, in sorted order (the paper's vanilla transit-parallel).
#ifndef FS_CUDA_GROUPED_PICKS_CUH_
#define FS_CUDA_GROUPED_PICKS_CUH_

#include "device_algorithms.cuh"
#include "sorted_keys.cuh"
#include "transit_kernels.cuh"

namespace fs {
namespace {

constexpr int64_t kFewPicks = 32;
constexpr int64_t kTilePicks = 1024;
constexpr int kRunLanes = 8;             // of a run of few picks
constexpr int64_t kStagedBytes = 16384;  // of a row in shared memory
enum ListNumber { kShortRuns = 0, kTiles = 1 };

// Picks first .. first + count - 1 of the run that begins at `entry`.
struct PickList {
  int64_t entry, first, count;
};

// Scratch of a step.
struct GroupedSlots {
  uint64_t *keys, *sorted;  // [count] transit << slot_bits | slot
  PickList* runs;           // [count]
  PickList* tiles;          // [most_tiles(...)]
  uint64_t* lengths;        // [2] by ListNumber
  void* sort_scratch;
  size_t sort_bytes;
  int64_t count;
  KeySort sort;

  FS_DEVICE int64_t transit(int64_t entry) const { return static_cast<int64_t>(sorted[entry] >> sort.begin_bit); }
  FS_DEVICE int64_t slot(int64_t entry) const {
    return static_cast<int64_t>(sorted[entry] & ((uint64_t{1} << sort.begin_bit) - 1));
  }
};

inline int64_t most_tiles(int64_t slots, int64_t sample_size) {
  return slots * sample_size / kTilePicks + slots;  // every run's last tile may be short
}

// What a slot's picks are made from; FS_NULL_NODE: nothing.
template <typename Id>
FS_DEVICE int64_t transit_of(const TransitTask<Id>& task, const StepPlace& step, int64_t slot) {
  const int64_t sample = task.sample_at(slot % task.num_samples);
  if (task.out.state != nullptr) return task.out.state[(task.num_roots + 1) * task.num_samples + sample];
  if (task.out.offsets != nullptr && step.k >= task.out.lengths[sample]) return FS_NULL_NODE;
  return task.node_at(sample, step.transits + slot / task.num_samples);
}

template <typename Id>
FS_KERNEL void make_transit_keys(TransitTask<Id> task, StepPlace step, GroupedSlots slots) {
  for (int64_t i = thread_number(); i < slots.count; i += num_threads()) {
    const int64_t found = transit_of(task, step, i), transit = found < 0 ? task.num_nodes : found;
    slots.keys[i] = static_cast<uint64_t>(transit) << slots.sort.begin_bit | static_cast<uint64_t>(i);
  }
}

// Pick j of the slot of an entry.
template <typename Id>
FS_DEVICE void make_pick(const TransitTask<Id>& task, const StepPlace& step, int64_t slot, int64_t j,
                         const TransitRow<Id>& row) {
  const int64_t sample = task.sample_at(slot % task.num_samples);
  const int64_t number = slot / task.num_samples * step.sample_size + j;
  const int64_t node = pick_at(task, step, sample, number, row);
  task.put(step.k, sample, step.first + number, node);
  if (node == FS_NULL_NODE && task.out.offsets != nullptr) task.out.lengths[sample] = step.k;  // its only pick
}

// A slot without a transit has no picks.
template <typename Id>
FS_DEVICE void put_none(const TransitTask<Id>& task, const StepPlace& step, int64_t slot, int64_t j) {
  const int64_t sample = task.sample_at(slot % task.num_samples);
  const int64_t number = slot / task.num_samples * step.sample_size + j;
  if (task.out.offsets != nullptr) {  // it has no room for any
    if (step.k < task.out.lengths[sample]) task.out.lengths[sample] = step.k;
    return;
  }
  *task.vertex(sample, step.first + number) = FS_NULL_NODE;
}

template <typename Id>
FS_KERNEL void pick_sorted(TransitTask<Id> task, StepPlace step, GroupedSlots slots) {
  for (int64_t i = thread_number(); i < slots.count * step.sample_size; i += num_threads()) {
    const int64_t entry = i / step.sample_size, j = i % step.sample_size, transit = slots.transit(entry);
    if (transit == task.num_nodes) {
      put_none(task, step, slots.slot(entry), j);
    } else {
      make_pick(task, step, slots.slot(entry), j, task.row(transit));
    }
  }
}

template <typename Id>
FS_KERNEL void list_runs(TransitTask<Id> task, StepPlace step, GroupedSlots slots) {
  for (int64_t entry = thread_number(); entry < slots.count; entry += num_threads()) {
    const int64_t transit = slots.transit(entry);
    if (transit == task.num_nodes) {
      for (int64_t j = 0; j < step.sample_size; ++j) put_none(task, step, slots.slot(entry), j);
      continue;
    }
    if (entry > 0 && slots.transit(entry - 1) == transit) continue;
    const uint64_t next = static_cast<uint64_t>(transit + 1) << slots.sort.begin_bit;
    const int64_t end = bound_in<false>(slots.sorted, slots.count, next), picks = (end - entry) * step.sample_size;
    if (picks < kFewPicks) {
      slots.runs[atomic_add(slots.lengths + kShortRuns, 1)] = {entry, 0, picks};
      continue;
    }
    const int64_t tiles = (picks + kTilePicks - 1) / kTilePicks;
    PickList* out = slots.tiles + atomic_add(slots.lengths + kTiles, static_cast<uint64_t>(tiles));
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t first = t * kTilePicks, left = picks - first;
      out[t] = {entry, first, left < kTilePicks ? left : kTilePicks};
    }
  }
}

// Picks lane, lane + lanes, ... of a list.
template <typename Id>
FS_DEVICE void take_list(const TransitTask<Id>& task, const StepPlace& step, const GroupedSlots& slots,
                         const PickList& list, const TransitRow<Id>& row, int lane, int lanes) {
  for (int64_t i = list.first + lane; i < list.first + list.count; i += lanes) {
    make_pick(task, step, slots.slot(list.entry + i / step.sample_size), i % step.sample_size, row);
  }
}

template <typename Id>
FS_KERNEL void pick_short_runs(TransitTask<Id> task, StepPlace step, GroupedSlots slots) {
  const int64_t groups = num_threads() / kRunLanes, count = static_cast<int64_t>(slots.lengths[kShortRuns]);
  for (int64_t i = thread_number() / kRunLanes; i < count; i += groups) {
    const PickList list = slots.runs[i];
    take_list(task, step, slots, list, task.row(slots.transit(list.entry)), static_cast<int>(threadIdx.x) % kRunLanes,
              kRunLanes);
  }
}

// The row in shared memory, if it pays. Every thread of the block must call it.
template <typename Id>
FS_DEVICE TransitRow<Id> staged(const TransitRow<Id>& row, int64_t picks, uint32_t* room) {
  const bool weighs = !row.slots.is_none();
  const int64_t bytes = row.degree * (weighs ? WalkSlots<Id>::kReadBytes : static_cast<int64_t>(sizeof(Id)));
  if (bytes > kStagedBytes || row.degree > picks) return row;
  const uint32_t* from = static_cast<const uint32_t*>(weighs ? row.slots.first(0) : row.ids);
  for (int64_t word = threadIdx.x; word < bytes / 4; word += kThreads) room[word] = from[word];
  __syncthreads();
  if (weighs) return {row.ids, row.slots.copied(room), row.degree};
  return {reinterpret_cast<const Id*>(room), {}, row.degree};
}

template <typename Id>
FS_KERNEL void pick_tiles(TransitTask<Id> task, StepPlace step, GroupedSlots slots) {
  FS_SHARED(uint64_t, room, kStagedBytes / 8);
  const int64_t count = static_cast<int64_t>(slots.lengths[kTiles]);
  for (int64_t tile = blockIdx.x; tile < count; tile += gridDim.x) {
    const PickList list = slots.tiles[tile];
    const TransitRow<Id> row =
        staged(task.row(slots.transit(list.entry)), list.count, reinterpret_cast<uint32_t*>(room));
    take_list(task, step, slots, list, row, static_cast<int>(threadIdx.x), kThreads);
    __syncthreads();  // the next row takes the room
  }
}

// MultiRW: the root to walk from, before a step, and the neighbour in its place behind it.
template <typename Id>
FS_KERNEL void choose_transits(TransitTask<Id> task, int64_t k) {
  for (int64_t sample = thread_number(); sample < task.num_samples; sample += num_threads()) {
    int64_t* state = task.out.state + sample;
    for (int64_t i = 0; k == 0 && i < task.num_roots; ++i) state[i * task.num_samples] = *task.vertex(sample, i);
    const int64_t chosen = choose_root(task, sample, k);
    state[task.num_roots * task.num_samples] = chosen;
    state[(task.num_roots + 1) * task.num_samples] = chosen < 0 ? FS_NULL_NODE : state[chosen * task.num_samples];
  }
}

template <typename Id>
FS_KERNEL void replace_roots(TransitTask<Id> task, int64_t k) {
  for (int64_t sample = thread_number(); sample < task.num_samples; sample += num_threads()) {
    int64_t* state = task.out.state + sample;
    const int64_t node = task.node_at(sample, task.num_roots + k), chosen = state[task.num_roots * task.num_samples];
    if (node != FS_NULL_NODE) state[chosen * task.num_samples] = node;
  }
}

}  // namespace
}  // namespace fs

#endif  // FS_CUDA_GROUPED_PICKS_CUH_
