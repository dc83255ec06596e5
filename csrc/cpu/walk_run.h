// A block of walkers that the vector kernels take through several steps (vector/walk_columns.h).
#ifndef FS_CPU_WALK_RUN_H_
#define FS_CPU_WALK_RUN_H_

#include <stdint.h>

#include "pick_run.h"

namespace fs {

// Walkers stand in columns of the graph's id type: columns[k * stride + i] is where walker i is before step
// first_step + k; FS_NULL_NODE: its walk is over.
struct WalkRun {
  PickedRows rows;
  const StageKey* keys;        // of each step, from step 0 on
  const uint64_t* sample_ids;  // [count, filled up to a multiple of kGroupNodes]
  const int64_t* lengths;      // [count] steps of each walk, from step 0 on; descending
  const int64_t* places;       // [count] vertices[places[i] + step] is the pick of walker i in a step
  int64_t* vertices;
  void* columns;  // [num_steps + 1, stride]; column 0 is given
  int64_t stride, count, first_step, num_steps;
};

struct WalkedRun {
  int64_t num_steps;  // that were made: all, or up to one in which many walks ended or an id was met that is no node
  int64_t num_null;   // picks that are no node: FS_NULL_NODE, as all behind a walk's end are, or bad ones
  int64_t num_bad;    // ids, met in the last step, that are no nodes; they stand in `vertices` as they are
};

}  // namespace fs

#endif  // FS_CPU_WALK_RUN_H_
