// Picks of individual applications on CUDA, sample by sample: the definitions of cpu/transit_steps.cpp.
//
//   walk_samples    one root, one pick a step: a thread takes a sample through all steps; the node it is at, the one
//                   before and the random words stay in registers
//   walk_many       MultiRW: the same from several roots, which stand in `state`
//   take_rows       MVS: a block takes a sample and copies the rows of its roots
//   pick_step       any step: a thread a pick, whose transit it reads in the vertices of the step before
//
// Samples of one width stand column by column: threads side by side write side by side.
#ifndef FS_CUDA_TRANSIT_KERNELS_CUH_
#define FS_CUDA_TRANSIT_KERNELS_CUH_

#include "device.cuh"
#include "node2vec.h"
#include "transit_draw.h"
#include "walk_slot.h"

namespace fs {
namespace {

// A row that is picked from, wherever it was read to.
template <typename Id>
struct TransitRow {
  const Id* ids;
  WalkSlots<Id> slots;  // none: uniformly
  int64_t degree;

  FS_DEVICE int64_t pick(PickStream&& stream) const { return pick(stream); }
  FS_DEVICE int64_t pick(PickStream& stream) const {
    if (!slots.is_none()) return walk_draw(stream, slots, 0, degree);
    return degree == 0 ? FS_NULL_NODE : ids[stream.below(static_cast<uint64_t>(degree))];
  }
};

template <typename Id>
struct TransitTask {
  const int64_t* indptr;
  int64_t num_nodes;
  HashedRows<Id> hashed;  // node2vec: what its draws ask
  WalkSlots<Id> slots;    // none: neighbours are drawn uniformly
  Node2VecLaw law;
  bool is_node2vec, by_degree;
  int64_t num_steps, num_roots, num_samples;
  const int64_t *roots, *sample_ids;
  const StageKey* keys;  // [num_steps] of picks, then of the choice of transits
  FsCudaSamples out;

  FS_DEVICE int64_t* vertex(int64_t sample, int64_t number) const {
    if (out.offsets != nullptr) return out.vertices + out.offsets[sample] + number;
    return out.vertices + number * num_samples + sample;
  }
  // An id that is no node has been reported: there is none then.
  FS_DEVICE int64_t node_at(int64_t sample, int64_t number) const {
    const int64_t node = *vertex(sample, number);
    return node >= 0 && node < num_nodes ? node : FS_NULL_NODE;
  }
  // The sample that a thread or a slot of this number takes: walks of about one length side by side.
  FS_DEVICE int64_t sample_at(int64_t number) const {
    return out.by_length == nullptr ? number : out.by_length[number];
  }
  FS_DEVICE int64_t degree(int64_t node) const { return node < 0 ? 0 : indptr[node + 1] - indptr[node]; }

  FS_DEVICE TransitRow<Id> row(int64_t node) const {
    const int64_t begin = indptr[node];
    return {hashed.indices + begin, slots.is_none() ? slots : slots.from(begin), indptr[node + 1] - begin};
  }

  FS_DEVICE PickStream stream(int64_t k, int64_t sample, int64_t number) const {
    return {keys[k], sample_ids[sample], number};
  }

  // Pick `number` of a sample at step k, from the row of its transit.
  FS_DEVICE int64_t pick(int64_t k, int64_t sample, int64_t number, const TransitRow<Id>& row, int64_t previous) const {
    PickStream own = stream(k, sample, number);
    if (!is_node2vec || k == 0) return row.pick(own);
    return node2vec_draw(own, hashed, law, previous, [&](PickStream& drawn) { return row.pick(drawn); });
  }

  // Writes a pick. Returns it, or FS_NULL_NODE for an id that is no node, which is reported.
  FS_DEVICE int64_t put(int64_t k, int64_t sample, int64_t place, int64_t node) const {
    *vertex(sample, place) = node;
    if (node >= FS_NULL_NODE && node < num_nodes) return node;
    atomic_min(out.failure, static_cast<uint64_t>(k) << FS_CUDA_SAMPLE_BITS | static_cast<uint64_t>(sample));
    return FS_NULL_NODE;
  }
};

// Keys of the steps: made once, not by every sample.
FS_KERNEL void make_step_keys(CallDraw draw, int64_t num_steps, bool chooses, StageKey* keys) {
  for (int64_t i = thread_number(); i < (chooses ? 2 : 1) * num_steps; i += num_threads()) {
    keys[i] = draw.key(i < num_steps ? kTransit : kStepTransits, i % num_steps);
  }
}

FS_KERNEL void draw_lengths(StageKey key, const int64_t* sample_ids, int64_t count, const int64_t* table,
                            int64_t entries, int64_t* lengths) {
  for (int64_t i = thread_number(); i < count; i += num_threads()) {
    PickStream stream(key, sample_ids[i], 0);
    lengths[i] = ppr_length(stream.word64(), table, entries);
  }
}

// Without node2vec's draws a walk takes fewer registers.
template <typename Id, bool kNode2Vec>
FS_KERNEL void walk_samples(TransitTask<Id> task) {
  const bool is_ragged = task.out.offsets != nullptr;
  for (int64_t i = thread_number(); i < task.num_samples; i += num_threads()) {
    const int64_t sample = task.sample_at(i);
    int64_t node = task.roots[sample], previous = FS_NULL_NODE, k = 0;
    const int64_t steps = is_ragged ? task.out.lengths[sample] : task.num_steps;
    *task.vertex(sample, 0) = node;
    for (; k < steps && node != FS_NULL_NODE; ++k) {
      const TransitRow<Id> row = task.row(node);
      const int64_t next = kNode2Vec ? task.pick(k, sample, 0, row, previous) : row.pick(task.stream(k, sample, 0));
      if (next == FS_NULL_NODE) break;
      previous = node;
      node = task.put(k, sample, 1 + k, next);
    }
    if (is_ragged) {
      task.out.lengths[sample] = k;
    } else {
      for (; k < steps; ++k) *task.vertex(sample, 1 + k) = FS_NULL_NODE;
    }
  }
}

// The number of the root to walk from, or -1: none has a neighbour to choose it by.
template <typename Id>
FS_DEVICE int64_t choose_root(const TransitTask<Id>& task, int64_t sample, int64_t k) {
  PickStream stream(task.keys[task.num_steps + k], task.sample_ids[sample], 0);
  if (!task.by_degree) return task.num_roots == 0 ? -1 : static_cast<int64_t>(stream.below(task.num_roots));
  const int64_t* state = task.out.state + sample;
  int64_t sum = 0, root = 0;
  for (int64_t i = 0; i < task.num_roots; ++i) sum += task.degree(state[i * task.num_samples]);
  if (sum == 0) return -1;
  int64_t left = static_cast<int64_t>(stream.below(sum));
  for (;; ++root) {
    const int64_t degree = task.degree(state[root * task.num_samples]);
    if (left < degree) return root;
    left -= degree;
  }
}

template <typename Id>
FS_KERNEL void walk_many(TransitTask<Id> task) {
  for (int64_t sample = thread_number(); sample < task.num_samples; sample += num_threads()) {
    for (int64_t i = 0; i < task.num_roots; ++i) {
      const int64_t root = task.roots[sample * task.num_roots + i];
      task.out.state[i * task.num_samples + sample] = *task.vertex(sample, i) = root;
    }
    for (int64_t k = 0; k < task.num_steps; ++k) {
      const int64_t chosen = choose_root(task, sample, k), place = chosen * task.num_samples + sample;
      const int64_t transit = chosen < 0 ? FS_NULL_NODE : task.out.state[place];
      const int64_t next = transit < 0 ? FS_NULL_NODE : task.pick(k, sample, 0, task.row(transit), FS_NULL_NODE);
      const int64_t node = task.put(k, sample, task.num_roots + k, next);
      if (node != FS_NULL_NODE) task.out.state[place] = node;
    }
  }
}

template <typename Id>
FS_KERNEL void put_roots(TransitTask<Id> task) {
  const int64_t count = task.num_samples * task.num_roots;
  for (int64_t i = thread_number(); i < count; i += num_threads()) {
    const int64_t sample = i % task.num_samples, root = i / task.num_samples;
    *task.vertex(sample, root) = task.roots[sample * task.num_roots + root];
  }
}

// Picks of FS_NEXT_ALL: the degrees of a sample's roots.
template <typename Id>
FS_KERNEL void count_rows_of_roots(TransitTask<Id> task) {
  for (int64_t sample = thread_number(); sample < task.num_samples; sample += num_threads()) {
    int64_t count = 0;
    for (int64_t i = 0; i < task.num_roots; ++i) count += task.degree(task.roots[sample * task.num_roots + i]);
    task.out.lengths[sample] = count;
  }
}

template <typename Id>
FS_KERNEL void take_rows(TransitTask<Id> task) {
  for (int64_t sample = blockIdx.x; sample < task.num_samples; sample += gridDim.x) {
    int64_t first = task.num_roots;
    for (int64_t r = 0; r < task.num_roots; ++r) {
      const int64_t root = task.roots[sample * task.num_roots + r], degree = task.degree(root);
      const Id* ids = task.hashed.indices + (root < 0 ? 0 : task.indptr[root]);
      for (int64_t i = threadIdx.x; i < degree; i += kThreads) task.put(0, sample, first + i, ids[i]);
      first += degree;
    }
  }
}

// A step: its vertices stand from `first` on, those of the step before from `transits` on, those before these from
// `previous` on (step 0 has none).
struct StepPlace {
  int64_t k, picks, sample_size, previous, transits, first;
};

// Where node2vec's walk came from, whose pick this is: in the walk's column.
template <typename Id>
FS_DEVICE int64_t vertex_before(const TransitTask<Id>& task, const StepPlace& step, int64_t sample, int64_t number) {
  if (step.k == 0 || !task.is_node2vec) return FS_NULL_NODE;
  const int64_t walk = number % step.picks;  // of a round of distinct picks, too
  return walk < step.transits - step.previous ? task.node_at(sample, step.previous + walk) : FS_NULL_NODE;
}

template <typename Id>
FS_DEVICE int64_t pick_at(const TransitTask<Id>& task, const StepPlace& step, int64_t sample, int64_t number,
                          const TransitRow<Id>& row) {
  return task.pick(step.k, sample, number, row, vertex_before(task, step, sample, number));
}

template <typename Id>
FS_KERNEL void pick_step(TransitTask<Id> task, StepPlace step) {
  const int64_t count = task.num_samples * step.picks;
  for (int64_t i = thread_number(); i < count; i += num_threads()) {
    const int64_t sample = i % task.num_samples, number = i / task.num_samples;
    const int64_t transit = task.node_at(sample, step.transits + number / step.sample_size);
    task.put(step.k, sample, step.first + number,
             transit < 0 ? FS_NULL_NODE : pick_at(task, step, sample, number, task.row(transit)));
  }
}

}  // namespace
}  // namespace fs

#endif  // FS_CUDA_TRANSIT_KERNELS_CUH_
