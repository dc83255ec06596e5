// subgraph_nodes: the nodes of many subgraphs, one subgraph per thread (the pool of the IPDPS'19 paper, algorithm 5).
#include <string.h>

#include <algorithm>

#include "batch_memory.h"
#include "first_failure.h"
#include "subgraph_visits.h"
#include "worker_pool.h"

namespace fs {
namespace {

constexpr const char* kOperation = "subgraph_nodes";

template <typename Id>
FsStatus draw_one(const SubgraphCall<Id>& call, uint64_t number, FsSubgraphNodes* out) {
  DrawnNodes<Id> drawn;
  const FsStatus status = draw_subgraph(call, number, &drawn);
  if (status != FS_OK) return status;
  const VisitList<Id>& visits = *drawn.visits;
  Id* nodes = take_array<Id>(drawn.num_nodes);
  if (drawn.num_nodes > 0) memcpy(nodes, drawn.nodes, static_cast<size_t>(drawn.num_nodes) * sizeof(Id));
  *out = {nodes, drawn.num_nodes, visits.count(), visits.steps, visits.probes, visits.cleanups, visits.growths};
  return FS_OK;
}

template <typename Id>
FsStatus draw_all(const SubgraphCall<Id>& call, uint64_t first, int64_t count, FsSubgraphNodes* out) {
  FirstFailure failure;
  const int threads = static_cast<int>(std::min<int64_t>(call.spec.num_threads, count));
  share_runs(count, 1, threads, [&](int64_t i, int64_t) {
    const FsStatus status =
        guarded(kOperation, [&] { return draw_one(call, first + static_cast<uint64_t>(i), &out[i]); });
    if (status != FS_OK) failure.take(status, i);
  });
  const FsStatus status = failure.report();
  if (status != FS_OK) fs_subgraph_nodes_free(out, count);
  return status;
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_subgraph_nodes(const FsGraph* graph, const FsSubgraphSpec* spec, const FsSubgraphTables* tables,
                           uint64_t first, int64_t count, FsSubgraphNodes* out) {
  if (count > 0) memset(out, 0, static_cast<size_t>(count) * sizeof(FsSubgraphNodes));
  const FsStatus status = fs::check_subgraph_call(fs::kOperation, *graph, *spec, *tables);
  if (status != FS_OK || count <= 0) return status;
  return fs::guarded(fs::kOperation, [&] {
    return fs::with_id_type(fs::kOperation, graph->id_type, [&](auto zero) {
      return fs::draw_all(fs::SubgraphCall<decltype(zero)>(fs::kOperation, *graph, *spec, *tables), first, count, out);
    });
  });
}

void fs_subgraph_nodes_free(FsSubgraphNodes* subgraphs, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    fs::give_block(subgraphs[i].nodes);
    subgraphs[i].nodes = nullptr;
  }
}

}  // extern "C"
