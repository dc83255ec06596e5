// Visits of the walks from a block of rows, as the vector kernels make and rank them (vector/visit_rows.h).
#ifndef FS_CPU_VISIT_RUN_H_
#define FS_CPU_VISIT_RUN_H_

#include <stdint.h>

#include "pick_run.h"

namespace fs {

// Walkers stand walk by walk: walker w * stride + i is walk w of row i. visits[s, w, i] is where it is after step s.
// Ids are of the graph's type.
struct VisitRun {
  PickedRows rows;          // slots are null
  const int64_t* orig_ids;  // [num_rows] or null: requested for the ranking
  const StageKey* keys;     // [walk_length] of each step
  uint64_t* sample_ids;     // [num_walkers, filled up to a multiple of kGroupNodes]; used up, as what follows
  void* nodes;              // [num_walkers] starts
  int32_t* places;          // [num_walkers] anything
  const int64_t* lengths;
  void* visits;  // [walk_length, num_walkers] FS_NULL_NODE: none
  int64_t num_walkers, walk_length;
};

constexpr int kRankedRows = 16;    // of a block, are ranked side by side
constexpr int kRankedVisits = 16;  // of a row, at most

// Rows with few visits, and room for their neighbours: most_edges each. They come one row after the other.
struct RankRun {
  const void* visits;       // [num_visits, stride]
  const void* starts;       // [stride]
  const int64_t* orig_ids;  // [num_rows] or null
  int64_t num_rows;         // of the block, at most stride, which is a multiple of kRankedRows
  int64_t num_visits, stride, most_edges;
  void* neighbors;
  float* weights;
  int64_t* counts;  // [num_rows] neighbours
};

}  // namespace fs

#endif  // FS_CPU_VISIT_RUN_H_
