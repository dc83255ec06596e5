// A run of picks as the vector kernels take them (vector/walk_steps.h): each from the neighbours of one transit.
#ifndef FS_CPU_PICK_RUN_H_
#define FS_CPU_PICK_RUN_H_

#include <stdint.h>

#include "philox.h"

namespace fs {

// Rows that are picked from.
struct PickedRows {
  const int64_t* indptr;  // [num_rows + 1]
  const void* indices;    // ids
  const void* slots;      // WalkSlots of these ids: picks by weight; null: uniform
  uint64_t num_rows;
  int64_t num_edges;
};

struct PickRun {
  PickedRows rows;
  StageKey key;
  const uint64_t* sample_ids;    // [count, filled up to a multiple of kGroupNodes]
  const uint64_t* pick_numbers;  // the same; null: all 0
  const int64_t* transits;       // [count] FS_NULL_NODE: none
  const int64_t* places;         // pick i goes to out[places[i]]
  int64_t* out;
  int64_t* next;  // [count] and to next[i]; may be `transits`
  int64_t count;
  bool one_transit;  // all transits are transits[0]: its row is looked up once
  bool goes_on;      // the picks are transits soon: their rows are requested
};

struct PickedRun {
  int64_t num_null;  // picks that are FS_NULL_NODE
  int64_t num_bad;   // ids that are not nodes: given as they are in `out`, as FS_NULL_NODE in `next`
};

}  // namespace fs

#endif  // FS_CPU_PICK_RUN_H_
