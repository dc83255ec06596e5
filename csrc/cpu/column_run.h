// A row's edges that become columns (combined_rows.h), as the vector kernel takes them (vector/column_lanes.h).
#ifndef FS_CPU_COLUMN_RUN_H_
#define FS_CPU_COLUMN_RUN_H_

#include <stdint.h>

namespace fs {

// An edge that is linked to the one of the same column before it.
struct ColumnLink {
  int32_t next;  // kNoLink: none
  int32_t row;   // number of the row, as added
};
constexpr int32_t kNoLink = -1;

constexpr int64_t kColumnLanes = 16;  // nodes, sums, heads and links have room for so many behind those there will be

// Edges of a graph without weights, whose columns' sums grow alike.
struct ColumnRun {
  const int32_t* sources;  // [count] of the row, from some edge on
  int64_t count;
  int32_t row;
  uint32_t num_rows;  // sources are below it, or refused
  double square;      // what each of them adds to its column
  int32_t* slots;     // by node: base + number of its column, less: it has none
  int32_t base;
  int32_t next_column;  // number of the next column; grows
  int32_t* nodes;       // by column
  double* sums;         // by column; null: there are none
  int32_t* heads;       // by column: its last link
  ColumnLink* links;    // [count]; null: edges are not linked
  int32_t first_link;   // number of links[0]
  int32_t row_number;   // as added
};

}  // namespace fs

#endif  // FS_CPU_COLUMN_RUN_H_
