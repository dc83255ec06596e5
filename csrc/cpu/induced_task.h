// What a kernel needs to know to find the edges between given nodes, in plain pointers (the vector kernels see nothing
// of the C++ library).
#ifndef FS_CPU_INDUCED_TASK_H_
#define FS_CPU_INDUCED_TASK_H_

#include <stdint.h>

#include "csc_view.h"
#include "id_table.h"

namespace fs {

// Which ids are nodes of a subgraph, and their local ids (node_lookup.h owns the memory).
template <typename Id>
struct NodeMembers {
  const uint32_t* bits;  // bit id & mask is set for every node, and rarely for another id
  uint64_t mask;         // a power of two less 1, 31 or more
  const int32_t*
      locals;         // local id of every node by its id, other entries undefined; the bits are then exact. Or null:
  IdTable<Id> table;  // the local ids are here
};

template <typename Id>
struct InducedTask {
  const Id* indices;
  const RowEdges* rows;  // where the nodes' rows lie, and one more, of any edges
  NodeMembers<Id> members;
  uint64_t num_ids;  // ids outside 0 .. num_ids - 1 are refused
};

constexpr int64_t kInducedPiece = 4096;  // edges that are looked at before their room is looked at again
constexpr int64_t kInducedSlack = 16;    // places behind the last edge that are written to

// How far a kernel is. It stops at end_row, at an id that is refused, or when there may be no room for the next piece
// and the slack.
template <typename Id>
struct InducedRun {
  int64_t row, end_row;
  int64_t next_edge;  // of the row
  int64_t unseen;     // edges from there up to the end of the rows
  int64_t count;      // edges found; capacity places for them
  int64_t capacity;
  int64_t num_local;  // of them with local ids already, the others still have the graph's
  Id* indices;
  int64_t* edge_ids;  // positions in the graph's indices, or null
  int64_t* offsets;   // [end_row + 1]; the place behind a row gets `count`
  int64_t bad;        // position of a refused id, or -1
};

}  // namespace fs

#endif  // FS_CPU_INDUCED_TASK_H_
