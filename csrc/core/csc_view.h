// A typed, read-only view of in-neighbour lists (FsGraph with its id type resolved).
#ifndef FS_CORE_CSC_VIEW_H_
#define FS_CORE_CSC_VIEW_H_

#include <stdint.h>

#include "fastsample.h"
#include "platform.h"

namespace fs {

// Where a row's neighbours lie.
struct RowEdges {
  int64_t begin, degree;
};

template <typename Id>
struct CscView {
  const int64_t* indptr;    // [num_rows + 1]
  const Id* indices;        // [num_edges]
  const int64_t* orig_ids;  // [num_rows] or null: row r is original node r
  int64_t num_rows;
  int64_t num_edges;
  const int64_t* src_orig_ids;  // [num_sources] or null: source s is original node s
  int64_t num_sources;          // source ids are below it (the rows of a slice are fewer)

  FS_HD bool has_row(int64_t row) const { return row >= 0 && row < num_rows; }
  FS_HD bool has_source(int64_t source) const { return source >= 0 && source < num_sources; }
  FS_HD uint64_t src_orig_id(int64_t source) const {
    return static_cast<uint64_t>(src_orig_ids == nullptr ? source : src_orig_ids[source]);
  }
  FS_HD uint64_t orig_id(int64_t row) const { return static_cast<uint64_t>(orig_ids == nullptr ? row : orig_ids[row]); }
};

// In a slice of a graph the sources have original ids of their own.
template <typename Id>
CscView<Id> view_of(const FsGraph& graph) {
  const bool is_slice = graph.src_orig_ids != nullptr;
  return {graph.indptr,
          static_cast<const Id*>(graph.indices),
          graph.orig_ids,
          graph.num_rows,
          graph.num_edges,
          is_slice ? graph.src_orig_ids : graph.orig_ids,
          is_slice ? graph.num_sources : graph.num_rows};
}

}  // namespace fs

#endif  // FS_CORE_CSC_VIEW_H_
