// Neighbourhoods of PinSAGE for the destinations of one hop (fastsample_transit.h): walks, visits, the most visited.
#ifndef FS_CPU_PINSAGE_WALKS_H_
#define FS_CPU_PINSAGE_WALKS_H_

#include <stdint.h>

#include <algorithm>

#include "csc_view.h"
#include "fastsample_transit.h"
#include "status.h"

namespace fs {

// The neighbours of rows that are visited together go to places begin * most_edges() and behind, one row after the
// other; their numbers to counts.
template <typename Id>
struct PinsageTask {
  const FsGraph& raw;
  CscView<Id> graph;
  const FsPinsageSpec& spec;
  int64_t hop;
  const Id* rows;   // [num_rows] destinations
  Id* neighbors;    // [num_rows * most_edges()] source ids
  float* weights;   // the same
  int64_t* counts;  // [num_rows]

  int64_t num_visits() const { return spec.num_walks * spec.walk_length; }
  int64_t most_edges() const { return std::min(spec.num_neighbors, num_visits()); }
  uint64_t sample_id(Id row, int64_t walk) const {
    const uint64_t number = static_cast<uint64_t>(walk + spec.num_walks * hop);
    return graph.orig_id(row) + static_cast<uint64_t>(graph.num_rows) * number;
  }
};

// Rows begin .. end, together. Refuses a source that is no row; then counts[begin .. end) are 0. The first walks by
// their definition, the second as blocks in lock step.
template <typename Id>
FsStatus visit_plainly(const PinsageTask<Id>& task, int64_t begin, int64_t end);
template <typename Id>
FsStatus visit_in_blocks(const PinsageTask<Id>& task, int64_t begin, int64_t end);

}  // namespace fs

#endif  // FS_CPU_PINSAGE_WALKS_H_
