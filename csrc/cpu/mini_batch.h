// FsMiniBatch while it is being made: its arrays are blocks of batch_memory.h.
#ifndef FS_CPU_MINI_BATCH_H_
#define FS_CPU_MINI_BATCH_H_

#include <stdint.h>
#include <string.h>

#include <memory>

#include "batch_memory.h"
#include "fastsample.h"
#include "room.h"
#include "sample_hop.h"

namespace fs {

struct FreeBatch {
  void operator()(FsMiniBatch* batch) const { fs_mini_batch_free(batch); }
};
using OwnedBatch = std::unique_ptr<FsMiniBatch, FreeBatch>;

inline OwnedBatch make_batch(int32_t num_hops) {
  OwnedBatch batch(take_array<FsMiniBatch>(1));
  memset(batch.get(), 0, sizeof(FsMiniBatch));
  batch->hops = take_array<FsHop>(num_hops);
  memset(batch->hops, 0, sizeof(FsHop) * static_cast<size_t>(num_hops));
  batch->num_hops = num_hops;
  return batch;
}

// Arrays for the edges of a hop whose offsets are known, and the task of filling them.
template <typename Id>
HopTask<Id> allocate_edges(const CscView<Id>& graph, const HopSpec& spec, const HopRows<Id>& rows, bool edge_ids,
                           FsHop* hop) {
  hop->num_edges = hop->indptr[hop->num_dst];
  require_room(hop->num_edges, 2 * sizeof(Id) + (edge_ids ? sizeof(int64_t) : 0));  // its edges and their nodes
  hop->indices = take_array<Id>(hop->num_edges);
  if (edge_ids) hop->edge_ids = take_array<int64_t>(hop->num_edges);
  return {graph,        spec.key,   spec.fanout, spec.replace,
          rows.rows,    rows.edges, hop->indptr, static_cast<Id*>(hop->indices),
          hop->edge_ids};
}

// The calling thread's scratch for where rows lie.
Buffer& thread_row_edges();

}  // namespace fs

#endif  // FS_CPU_MINI_BATCH_H_
