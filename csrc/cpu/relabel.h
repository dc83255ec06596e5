// Relabelling node ids to local ids in order of first appearance (the second loop of FastSample, algorithm 1), with a
// hash table in place of the paper's table of |V| entries: no call costs O(num_nodes).
//
// One table serves all hops of a mini-batch: the source nodes of a hop are the destinations of the next, in the same
// order, so local ids never change once given. The slots live in thread-local memory and are reused by later calls.
#ifndef FS_CPU_RELABEL_H_
#define FS_CPU_RELABEL_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <memory>

#include "hash_set.h"

namespace fs {

constexpr int64_t kRelabelAhead = 24;  // edges ahead whose slots are requested
constexpr int kMinLog2Slots = 10;

template <typename Id>
class Relabeler {
 public:
  // Prepares for up to `num_ids` distinct ids in all; keeps what `nodes` [num_nodes] already has.
  void reserve(int64_t num_ids, const Id* nodes, int64_t num_nodes) {
    int log2_slots = kMinLog2Slots;
    while ((int64_t{1} << log2_slots) < 2 * num_ids) ++log2_slots;
    if (table_.log2_capacity >= log2_slots && num_nodes > 0) return;
    const size_t slots = size_t{1} << log2_slots;
    if (slots > allocated_) {
      slots_.reset();  // release before asking for more
      allocated_ = 0;
      slots_.reset(new IdSlot<Id>[slots]);
      allocated_ = slots;
    }
    memset(static_cast<void*>(slots_.get()), 0xFF, slots * sizeof(IdSlot<Id>));  // every key becomes -1: empty
    table_ = {slots_.get(), log2_slots};
    for (int64_t i = 0; i < num_nodes; ++i) {
      if (i + kRelabelAhead < num_nodes) prefetch(nodes[i + kRelabelAhead]);
      *table_.find(nodes[i]) = {nodes[i], static_cast<Id>(i)};
    }
  }

  // Local id of `id`; an id not seen before is appended to nodes[*num_nodes].
  Id local(Id id, Id* nodes, int64_t* num_nodes) {
    IdSlot<Id>* slot = table_.find(id);
    if (slot->key < 0) {
      *slot = {id, static_cast<Id>(*num_nodes)};
      nodes[(*num_nodes)++] = id;
    }
    return slot->local;
  }

  // Relabels neighbors[0 .. num_edges) to `out` (which may be `neighbors`); returns the index of the first negative id,
  // or -1 when all are relabelled.
  int64_t relabel(const Id* neighbors, int64_t num_edges, Id* nodes, int64_t* num_nodes, Id* out) {
    for (int64_t i = 0; i < num_edges; ++i) {
      if (i + kRelabelAhead < num_edges) prefetch(neighbors[i + kRelabelAhead]);
      if (neighbors[i] < 0) return i;
      out[i] = local(neighbors[i], nodes, num_nodes);
    }
    return -1;
  }

 private:
  void prefetch(Id id) const { __builtin_prefetch(table_.slots + table_.home(id)); }

  std::unique_ptr<IdSlot<Id>[]> slots_;
  size_t allocated_ = 0;
  IdTable<Id> table_;
};

// The calling thread's relabeler; its memory stays with the thread: at most 4 slots per distinct id of its largest
// batch.
template <typename Id>
Relabeler<Id>& thread_relabeler() {
  static thread_local Relabeler<Id> relabeler;
  return relabeler;
}

}  // namespace fs

#endif  // FS_CPU_RELABEL_H_
