// Memory of the id table: one per thread, kept from batch to batch.
#ifndef FS_CPU_TABLE_MEMORY_H_
#define FS_CPU_TABLE_MEMORY_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <memory>

#include "buffer.h"
#include "hop_task.h"

namespace fs {

// Bound: a table is doubled when it is 3/4 full, so it has at most 2.7 lanes per distinct id of the thread's largest
// batch (22 bytes of int32, 43 of int64 ids), and no call costs O(num_nodes).
template <typename Id>
class TableMemory {
 public:
  // An empty table, as large as the last batch needed, but at least for `num_ids` ids.
  Relabeling<Id> start(Id* nodes, int64_t num_ids, int64_t id_limit) {
    const int64_t expected = num_ids > last_count_ ? num_ids : last_count_;
    int log2_buckets = kMinLog2Buckets;
    while (limit_of(log2_buckets) < expected) ++log2_buckets;
    return {clear(log2_buckets), nodes, 0, static_cast<uint64_t>(id_limit), -1, &TableMemory::grow, this};
  }

  // Remembers how many ids a batch had.
  void finish(const Relabeling<Id>& ids) { last_count_ = ids.num_nodes; }

  size_t bytes() const { return memory_.bytes(); }

 private:
  static constexpr int kMinLog2Buckets = 7;

  static int64_t limit_of(int log2_buckets) { return (int64_t{IdBucket<Id>::kLanes} << log2_buckets) * 3 / 4; }

  IdTable<Id> clear(int log2_buckets) {
    const size_t bytes = sizeof(IdBucket<Id>) << log2_buckets;
    memory_.require(bytes);
    memset(memory_.data(), 0xFF, bytes);  // every key becomes -1: empty
    return {static_cast<IdBucket<Id>*>(memory_.data()), log2_buckets, limit_of(log2_buckets)};
  }

  static void grow(Relabeling<Id>* ids) {
    ids->table = static_cast<TableMemory*>(ids->owner)->clear(ids->table.log2_buckets + 1);
    for (int64_t i = 0; i < ids->num_nodes; ++i) {
      if (i + kPrefetch < ids->num_nodes) {
        __builtin_prefetch(ids->table.buckets + ids->table.home(ids->nodes[i + kPrefetch]));
      }
      enter(ids->table, ids->nodes[i], static_cast<Id>(i));
    }
  }

  static void enter(const IdTable<Id>& table, Id id, Id local) {
    for (uint64_t at = table.home(id);; at = table.after(at)) {
      IdBucket<Id>& bucket = table.buckets[at];
      for (int lane = 0; lane < IdBucket<Id>::kLanes; ++lane) {
        if (bucket.keys[lane] >= 0) continue;
        bucket.keys[lane] = id;
        bucket.locals[lane] = local;
        return;
      }
    }
  }

  static constexpr int64_t kPrefetch = 24;

  Buffer memory_;
  int64_t last_count_ = 0;
};

// The calling thread's table. Not inlined: compilers recompute the address of a thread-local variable wherever they use
// it, by a call.
template <typename Id>
__attribute__((noinline)) TableMemory<Id>& thread_table() {
  static thread_local TableMemory<Id> table;
  return table;
}

}  // namespace fs

#endif  // FS_CPU_TABLE_MEMORY_H_
