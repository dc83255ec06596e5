// Visits of the methods that go through an epoch in a keyed order (core/permutation.h): clusters and neighbourhoods of
// roots. No node is visited twice.
#include <algorithm>
#include <vector>

#include "permutation.h"
#include "sample_hop.h"
#include "subgraph_visits.h"
#include "table_memory.h"

namespace fs {
namespace {

template <typename Id>
KeyedPermutation order_of_epoch(const SubgraphCall<Id>& call, uint64_t epoch, uint64_t count) {
  return KeyedPermutation(call.key(kSubgraphOrder, epoch), count);
}

// Scratch of a thread.
template <typename Id>
struct EgoScratch {
  std::vector<RowEdges> edges;   // [rows of a hop]
  std::vector<int64_t> offsets;  // [rows of a hop + 1]
  std::vector<Id> rows;          // [rows of a hop]
  std::vector<Id> picks;         // [picks of a hop]
};

template <typename Id>
__attribute__((noinline)) EgoScratch<Id>& thread_scratch() {
  static thread_local EgoScratch<Id> scratch;
  return scratch;
}

}  // namespace

template <typename Id>
FsStatus visit_clusters(const SubgraphCall<Id>& call, uint64_t number, VisitList<Id>* visits) {
  const FsSubgraphTables& tables = call.tables;
  const uint64_t count = static_cast<uint64_t>(tables.num_clusters);
  const uint64_t taken = static_cast<uint64_t>(call.spec.clusters_per_batch), batches = (count + taken - 1) / taken;
  const KeyedPermutation order = order_of_epoch(call, number / batches, count);
  const uint64_t first = number % batches * taken, last = std::min(count, first + taken);
  const int64_t num_members = tables.cluster_offsets[count];
  visits->are_distinct = true;
  for (uint64_t place = first; place < last; ++place, ++visits->steps) {
    const uint64_t cluster = order(place);
    const int64_t begin = tables.cluster_offsets[cluster], end = tables.cluster_offsets[cluster + 1];
    if (begin < 0 || end < begin || end > num_members) {
      return fail(FS_INVALID_ARGUMENT, "%s: cluster %lld has the members %lld to %lld; expected offsets from 0 to %lld",
                  call.operation, static_cast<long long>(cluster), static_cast<long long>(begin),
                  static_cast<long long>(end), static_cast<long long>(num_members));
    }
    visits->reserve(visits->count() + end - begin);
    for (int64_t i = begin; i < end; ++i) {
      const Id node = call.cluster_nodes()[i];
      if (!call.graph.has_row(node)) return refuse_row(call.operation, call.graph, node);
      visits->push(node);
    }
  }
  return FS_OK;
}

template <typename Id>
FsStatus visit_neighborhood(const SubgraphCall<Id>& call, uint64_t number, VisitList<Id>* visits) {
  const uint64_t count = static_cast<uint64_t>(call.tables.num_roots);
  const Id root = call.roots()[order_of_epoch(call, number / count, count)(number % count)];
  if (!call.graph.has_row(root)) return refuse_row(call.operation, call.graph, root);
  visits->are_distinct = true;
  visits->reserve(1)[0] = root;
  EgoScratch<Id>& scratch = thread_scratch<Id>();
  const bool plainly = vector_kernels().samples_plainly;
  TableMemory<Id>& table = thread_table<Id>();
  Relabeling<Id> ids = table.start(visits->data(), 0, call.graph.num_rows);
  Id start = root;
  if (plainly) {  // plain hops number nodes without the table
    ids.num_nodes = 1;
  } else {
    relabel_edges(&start, 0, 1, &ids);
  }
  FsStatus status = FS_OK;
  for (int64_t hop = 0, begin = 0; hop < call.spec.depth && status == FS_OK; ++hop) {
    const int64_t num_rows = ids.num_nodes - begin;
    scratch.edges.resize(static_cast<size_t>(num_rows));
    scratch.offsets.resize(static_cast<size_t>(num_rows + 1));
    scratch.rows.assign(visits->data() + begin, visits->data() + ids.num_nodes);  // the list may move
    const HopSpec spec = {
        call.spec.fanout, FS_UNIFORM, false, call.key(kSubgraphEgo, number, static_cast<uint32_t>(hop)), 1, plainly};
    const auto allocate = [&](const CscView<Id>& graph, const HopSpec& own, const HopRows<Id>& of) {
      const int64_t picks = of.offsets[of.num_rows];
      scratch.picks.resize(static_cast<size_t>(picks));
      ids.nodes = visits->reserve(ids.num_nodes + picks);
      return HopTask<Id>{graph,    own.key,    own.fanout,           false,  of.rows,
                         of.edges, of.offsets, scratch.picks.data(), nullptr};
    };
    begin = ids.num_nodes;
    status = HopSampler<Id>(call.operation, call.raw, spec)
                 .run({scratch.rows.data(), num_rows, scratch.edges.data(), scratch.offsets.data()}, &ids, allocate);
    visits->steps += num_rows;
  }
  table.finish(ids);
  visits->set_count(ids.num_nodes);
  return status;
}

template FsStatus visit_clusters(const SubgraphCall<int32_t>&, uint64_t, VisitList<int32_t>*);
template FsStatus visit_clusters(const SubgraphCall<int64_t>&, uint64_t, VisitList<int64_t>*);
template FsStatus visit_neighborhood(const SubgraphCall<int32_t>&, uint64_t, VisitList<int32_t>*);
template FsStatus visit_neighborhood(const SubgraphCall<int64_t>&, uint64_t, VisitList<int64_t>*);

}  // namespace fs
