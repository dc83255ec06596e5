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
  // Empties the table; it begins as large as the last batch needed, but at least for `num_ids` ids.
  void begin(int64_t num_ids) { clear(log2_slots_for(num_ids > last_count_ ? num_ids : last_count_)); }

  // Local id of `id`; an id not seen before is appended to nodes[*num_nodes], which holds all ids so far.
  Id local(Id id, Id* nodes, int64_t* num_nodes) {
    IdSlot<Id>* slot = table_.find(id);
    if (slot->key >= 0) return slot->local;
    const int64_t fresh = *num_nodes;
    *slot = {id, static_cast<Id>(fresh)};
    nodes[fresh] = id;
    *num_nodes = fresh + 1;
    if (fresh >= most_) grow(nodes, fresh + 1);
    return static_cast<Id>(fresh);
  }

  // Relabels neighbors[0 .. num_edges) to `out` (which may be `neighbors`); returns the index of the first negative id,
  // or -1 when all are relabelled.
  int64_t relabel(const Id* neighbors, int64_t num_edges, Id* nodes, int64_t* num_nodes, Id* out) {
    int64_t count = *num_nodes, bad = -1;
    for (int64_t i = 0; i < num_edges; ++i) {
      if (i + kRelabelAhead < num_edges) prefetch(neighbors[i + kRelabelAhead]);
      if (neighbors[i] < 0) {
        bad = i;
        break;
      }
      out[i] = local(neighbors[i], nodes, &count);
    }
    *num_nodes = last_count_ = count;
    return bad;
  }

 private:
  static int log2_slots_for(int64_t num_ids) {
    int log2_slots = kMinLog2Slots;
    while ((int64_t{1} << log2_slots) < 2 * num_ids) ++log2_slots;
    return log2_slots;
  }

  void clear(int log2_slots) {
    const size_t slots = size_t{1} << log2_slots;
    if (slots > allocated_) {
      slots_.reset();  // release before asking for more
      allocated_ = 0;
      slots_.reset(new IdSlot<Id>[slots]);
      allocated_ = slots;
    }
    memset(static_cast<void*>(slots_.get()), 0xFF, slots * sizeof(IdSlot<Id>));  // every key becomes -1: empty
    table_ = {slots_.get(), log2_slots};
    most_ = static_cast<int64_t>(slots / 2);
  }

  // Doubles the table and enters nodes[0 .. num_nodes) again.
  void grow(const Id* nodes, int64_t num_nodes) {
    clear(table_.log2_capacity + 1);
    for (int64_t i = 0; i < num_nodes; ++i) {
      if (i + kRelabelAhead < num_nodes) prefetch(nodes[i + kRelabelAhead]);
      *table_.find(nodes[i]) = {nodes[i], static_cast<Id>(i)};
    }
  }

  void prefetch(Id id) const { __builtin_prefetch(table_.slots + table_.home(id)); }

  std::unique_ptr<IdSlot<Id>[]> slots_;
  size_t allocated_ = 0;
  IdTable<Id> table_;
  int64_t most_ = 0;        // ids that leave half of the slots empty
  int64_t last_count_ = 0;  // ids of the last batch
};

// The calling thread's relabeler; its memory stays with the thread: at most 4 slots per distinct id of its largest
// batch. Not inlined: compilers recompute the address of a thread-local variable wherever they use it, by a call.
template <typename Id>
__attribute__((noinline)) Relabeler<Id>& thread_relabeler() {
  static thread_local Relabeler<Id> relabeler;
  return relabeler;
}

}  // namespace fs

#endif  // FS_CPU_RELABEL_H_
