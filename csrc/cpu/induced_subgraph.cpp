// induced_subgraph: all edges of the graph between given nodes.
#include "induced_rows.h"
#include "mini_batch.h"

extern "C" FsStatus fs_induced_subgraph(const FsGraph* graph, const void* nodes, int64_t num_nodes, int32_t edge_ids,
                                        int32_t num_threads, FsMiniBatch** out) {
  *out = nullptr;
  const FsStatus status = fs::check_threads("induced_subgraph", num_threads);
  if (status != FS_OK) return status;
  return fs::guarded("induced_subgraph", [&] {
    return fs::with_id_type("induced_subgraph", graph->id_type, [&](auto zero) {
      using Id = decltype(zero);
      fs::OwnedBatch batch = fs::make_batch(1);
      const fs::InducedSpec spec = {"induced_subgraph", edge_ids != 0, num_threads};
      const FsStatus induced = fs::thread_induced_rows<Id>().induce(
          spec, fs::view_of<Id>(*graph), static_cast<const Id*>(nodes), num_nodes, batch->hops);
      if (induced == FS_OK) *out = batch.release();
      return induced;
    });
  });
}
