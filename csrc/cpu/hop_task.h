// What a kernel needs to know to sample the edges of one hop, in plain pointers (the vector kernels see nothing of the
// C++ library).
#ifndef FS_CPU_HOP_TASK_H_
#define FS_CPU_HOP_TASK_H_

#include <stdint.h>

#include "csc_view.h"
#include "id_table.h"
#include "philox.h"

namespace fs {

// Draws of one hop for `rows`; row i's picks go to offsets[i] .. offsets[i + 1].
template <typename Id>
struct HopTask {
  CscView<Id> graph;
  StageKey key;
  int64_t fanout;
  bool replace;
  const Id* rows;          // [num_rows]
  const RowEdges* edges;   // [num_rows]
  const int64_t* offsets;  // [num_rows + 1]
  Id* neighbors;           // [offsets[num_rows]] receives source ids, or local ids when they are relabelled
  int64_t* edge_ids;       // [offsets[num_rows]] receives positions in graph.indices; or null
};

// Local ids in order of first appearance. `nodes` has room for every id that may come.
template <typename Id>
struct Relabeling {
  IdTable<Id> table;
  Id* nodes;
  int64_t num_nodes;
  uint64_t num_ids;               // ids outside 0 .. num_ids - 1 are refused
  int64_t bad;                    // position of the first refused id, or -1
  void (*grow)(Relabeling<Id>*);  // makes room: a table of twice the size
  void* owner;                    // of the table's memory, for `grow`
};

}  // namespace fs

#endif  // FS_CPU_HOP_TASK_H_
