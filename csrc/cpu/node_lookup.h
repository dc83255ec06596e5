// Local ids of the nodes of a subgraph, for every edge that may lead to one: one per thread, kept from call to call,
// and emptied by the nodes that were in it.
//
// Up to kDirectNodes nodes of a graph have a bit each and a place for their local id; the places are never cleared, as
// only those whose bit is set are read. In larger graphs the local ids are in an id table, and 32 or more bits per node
// of the subgraph keep most other ids from being looked up there. Under the instruction set "scalar" all are.
//
// Memory: at most 4.25 bytes per node of a graph of up to kDirectNodes nodes; above, at most 67 bytes (int32 ids: 38)
// per node of the largest subgraph.
#ifndef FS_CPU_NODE_LOOKUP_H_
#define FS_CPU_NODE_LOOKUP_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "buffer.h"
#include "induced_task.h"
#include "status.h"
#include "table_memory.h"
#include "uniform_rows.h"

namespace fs {

constexpr int64_t kDirectNodes = int64_t{1} << 24;

template <typename Id>
class NodeLookup {
 public:
  // Enters nodes [count], all below num_ids, as all ids that will be looked up; one that repeats is refused, and then
  // nothing is in. `nodes` must stay until leave().
  FsStatus enter(const char* operation, const Id* nodes, int64_t count, int64_t num_ids) {
    const bool direct = num_ids <= kDirectNodes && !vector_kernels().samples_plainly;
    const FsStatus status =
        direct ? enter_directly(operation, nodes, count, num_ids) : enter_table(operation, nodes, count, num_ids);
    if (status != FS_OK) leave();
    return status;
  }

  void leave() {
    for (int64_t i = 0; i < num_entered_; ++i) word_of(nodes_[i]) = 0;
    num_entered_ = 0;
  }

  const NodeMembers<Id>& members() const { return members_; }
  size_t bytes() const { return bits_.bytes() + locals_.bytes() + order_.bytes() + table_.bytes(); }

 private:
  static constexpr int64_t kLeastBits = 1 << 15;
  static constexpr int64_t kMostBits = int64_t{1} << 31;
  static constexpr int64_t kBitsPerNode = 32;
  static constexpr int64_t kAhead = 24;

  FsStatus enter_directly(const char* operation, const Id* nodes, int64_t count, int64_t num_ids) {
    start(nodes, num_ids);
    int32_t* const locals = locals_.require_array<int32_t>(num_ids);
    members_.locals = locals;
    for (int64_t i = 0; i < count; ++i) {
      if (i + kAhead < count) __builtin_prefetch(locals + nodes[i + kAhead], 1);
      const Id node = nodes[i];
      uint32_t& word = word_of(node);
      const uint32_t bit = 1u << (static_cast<uint64_t>(node) & 31);
      if ((word & bit) != 0) return refuse_repeated(operation, node, locals[node], i);
      word |= bit;
      locals[node] = static_cast<int32_t>(i);
      num_entered_ = i + 1;
    }
    return FS_OK;
  }

  FsStatus enter_table(const char* operation, const Id* nodes, int64_t count, int64_t num_ids) {
    Id* const distinct = order_.require_array<Id>(2 * count);
    Id* const locals = distinct + count;
    Relabeling<Id> ids = table_.start(distinct, count, num_ids);
    if (count > 0) memcpy(locals, nodes, static_cast<size_t>(count) * sizeof(Id));
    relabel_edges(locals, 0, count, &ids);
    for (int64_t i = 0; i < count; ++i) {
      if (locals[i] != static_cast<Id>(i)) return refuse_repeated(operation, nodes[i], locals[i], i);
    }
    table_.finish(ids);
    start(nodes, count < kMostBits / kBitsPerNode ? count * kBitsPerNode : kMostBits);
    members_.table = ids.table;
    for (int64_t i = 0; i < count; ++i) word_of(nodes[i]) |= 1u << (static_cast<uint64_t>(nodes[i]) & 31);
    num_entered_ = count;
    return FS_OK;
  }

  // So many bits or more, all of them 0.
  void start(const Id* nodes, int64_t least_bits) {
    int64_t num_bits = kLeastBits;
    while (num_bits < least_bits) num_bits *= 2;
    const size_t held = bits_.bytes();
    uint32_t* const bits = bits_.require_array<uint32_t>(num_bits / 32);
    if (bits_.bytes() != held) memset(bits, 0, bits_.bytes());
    nodes_ = nodes;
    members_ = {bits, static_cast<uint64_t>(num_bits) - 1, nullptr, {}};
  }

  uint32_t& word_of(Id node) {
    return static_cast<uint32_t*>(bits_.data())[(static_cast<uint64_t>(node) & members_.mask) >> 5];
  }

  static FsStatus refuse_repeated(const char* operation, int64_t node, int64_t first, int64_t second) {
    return fail(FS_INVALID_ARGUMENT, "%s: node %lld is at positions %lld and %lld; expected each node once", operation,
                static_cast<long long>(node), static_cast<long long>(first), static_cast<long long>(second));
  }

  Buffer bits_, locals_, order_;
  TableMemory<Id> table_;
  NodeMembers<Id> members_ = {};
  const Id* nodes_ = nullptr;
  int64_t num_entered_ = 0;
};

}  // namespace fs

#endif  // FS_CPU_NODE_LOOKUP_H_
