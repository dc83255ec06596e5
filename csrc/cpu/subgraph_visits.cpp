// What a call for subgraphs may be, which method draws the visits, and the distinct nodes of the visits.
#include "subgraph_visits.h"

#include <string.h>

#include "buffer.h"
#include "node_lookup.h"
#include "status.h"
#include "table_memory.h"
#include "uniform_rows.h"

namespace fs {
namespace {

constexpr int64_t kMostBudget = INT32_MAX;
constexpr double kMostEta = 1000;

FsStatus check_at_least(const char* operation, const char* name, int64_t value, int64_t least) {
  if (value >= least && value <= kMostBudget) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "%s: %s is %lld; expected %lld to %lld", operation, name,
              static_cast<long long>(value), static_cast<long long>(least), static_cast<long long>(kMostBudget));
}

FsStatus check_frontier(const char* operation, const FsSubgraphSpec& spec) {
  FsStatus status = check_at_least(operation, "frontier_size", spec.frontier_size, 1);
  if (status != FS_OK) return status;
  if (spec.frontier_size > spec.budget) {
    return fail(FS_INVALID_ARGUMENT,
                "%s: frontier_size is %lld but budget is %lld; expected a budget of at least as many visits as the "
                "frontier has roots",
                operation, static_cast<long long>(spec.frontier_size), static_cast<long long>(spec.budget));
  }
  if (spec.max_degree < 0) {
    return fail(FS_INVALID_ARGUMENT, "%s: max_degree is %lld; expected 1 or more, or 0 (degrees as they are)",
                operation, static_cast<long long>(spec.max_degree));
  }
  if (spec.structure != FS_FRONTIER_SUMS && spec.structure != FS_FRONTIER_DASHBOARD) {
    return fail(FS_INVALID_ARGUMENT, "%s: structure %d; expected 0 or 1", operation, spec.structure);
  }
  if (spec.structure == FS_FRONTIER_DASHBOARD && !(spec.eta > 1 && spec.eta <= kMostEta)) {
    return fail(FS_INVALID_ARGUMENT, "%s: eta is %g; expected a number above 1, at most %g", operation, spec.eta,
                kMostEta);
  }
  return FS_OK;
}

FsStatus check_walks(const char* operation, const FsSubgraphSpec& spec) {
  const FsStatus status = check_at_least(operation, "walk_length", spec.walk_length, 1);
  if (status != FS_OK || spec.budget > spec.walk_length) return status;
  return fail(FS_INVALID_ARGUMENT, "%s: budget is %lld; expected at least one walk, walk_length + 1 = %lld visits",
              operation, static_cast<long long>(spec.budget), static_cast<long long>(spec.walk_length + 1));
}

FsStatus check_neighborhood(const char* operation, const FsSubgraphSpec& spec) {
  const FsStatus status = check_at_least(operation, "depth", spec.depth, 1);
  if (status != FS_OK || spec.fanout == FS_TAKE_ALL) return status;
  return check_at_least(operation, "fanout", spec.fanout, 1);
}

FsStatus check_clusters(const char* operation, const FsSubgraphSpec& spec, const FsSubgraphTables& tables) {
  if (tables.num_clusters < 1) {
    return fail(FS_INVALID_ARGUMENT, "%s: there are no clusters; expected at least one", operation);
  }
  if (spec.clusters_per_batch <= tables.num_clusters) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "%s: clusters_per_batch is %lld; expected 1 to %lld, the clusters that there are",
              operation, static_cast<long long>(spec.clusters_per_batch), static_cast<long long>(tables.num_clusters));
}

FsStatus check_spec(const char* operation, const FsSubgraphSpec& spec) {
  FsStatus status = check_threads(operation, spec.num_threads);
  const bool has_budget = spec.method != FS_SUBGRAPH_CLUSTER && spec.method != FS_SUBGRAPH_EGO;
  if (status == FS_OK && has_budget) status = check_at_least(operation, "budget", spec.budget, 1);
  if (status != FS_OK) return status;
  switch (spec.method) {
    case FS_SUBGRAPH_FRONTIER:
      return check_frontier(operation, spec);
    case FS_SUBGRAPH_NODE:
    case FS_SUBGRAPH_EDGE:
      return FS_OK;
    case FS_SUBGRAPH_WALK:
      return check_walks(operation, spec);
    case FS_SUBGRAPH_CLUSTER:
      return check_at_least(operation, "clusters_per_batch", spec.clusters_per_batch, 1);
    case FS_SUBGRAPH_EGO:
      return check_neighborhood(operation, spec);
    default:
      return fail(FS_INVALID_ARGUMENT, "%s: method %d; expected 0 to 5", operation, spec.method);
  }
}

// A list that the method reads.
FsStatus check_table(const char* operation, const char* name, const void* table) {
  if (table != nullptr) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "%s: the method reads %s, but the tables hold none", operation, name);
}

template <typename Id>
FsStatus draw_visits(const SubgraphCall<Id>& call, uint64_t number, VisitList<Id>* visits) {
  if (call.spec.method == FS_SUBGRAPH_CLUSTER) return visit_clusters(call, number, visits);
  if (call.spec.method == FS_SUBGRAPH_EGO) return visit_neighborhood(call, number, visits);
  if (call.spec.method == FS_SUBGRAPH_FRONTIER && call.spec.structure == FS_FRONTIER_DASHBOARD) {
    return visit_by_dashboard(call, number, visits);
  }
  if (!vector_kernels().samples_plainly && visit_by_vectors(call, number, visits)) return FS_OK;
  return visit_plainly(call, number, visits);
}

// A bit per node of a graph of up to kDirectNodes nodes, all 0 between calls.
class SeenNodes {
 public:
  // Distinct visits in order of first appearance, to nodes [count]. Returns how many. No branch depends on a visit.
  template <typename Id>
  int64_t keep_first(const Id* visits, int64_t count, int64_t num_rows, Id* nodes) {
    constexpr int64_t kAhead = 16;
    const size_t held = bits_.bytes();
    uint32_t* const bits = bits_.require_array<uint32_t>(num_rows / 32 + 1);
    if (bits_.bytes() != held) memset(bits, 0, bits_.bytes());
    int64_t num_nodes = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (i + kAhead < count) __builtin_prefetch(bits + visits[i + kAhead] / 32, 1);
      const Id node = visits[i];
      uint32_t& word = bits[node / 32];
      nodes[num_nodes] = node;
      num_nodes += static_cast<int64_t>(~word >> (node % 32) & 1);
      word |= 1u << (node % 32);
    }
    for (int64_t i = 0; i < num_nodes; ++i) bits[nodes[i] / 32] = 0;
    return num_nodes;
  }

 private:
  Buffer bits_;
};

// Scratch of a thread.
template <typename Id>
struct DrawScratch {
  VisitList<Id> visits;
  std::vector<Id> nodes;
  SeenNodes seen;
};

// Not inlined: see thread_table.
template <typename Id>
__attribute__((noinline)) DrawScratch<Id>& thread_scratch() {
  static thread_local DrawScratch<Id> scratch;
  return scratch;
}

}  // namespace

int64_t most_visits(const FsSubgraphSpec& spec) {
  if (spec.method == FS_SUBGRAPH_EDGE) return 2 * spec.budget;
  return spec.budget;
}

FsStatus check_subgraph_call(const char* operation, const FsGraph& graph, const FsSubgraphSpec& spec,
                             const FsSubgraphTables& tables) {
  FsStatus status = check_id_type(operation, graph.id_type);
  if (status == FS_OK) status = check_spec(operation, spec);
  if (status != FS_OK) return status;
  if (spec.method == FS_SUBGRAPH_CLUSTER) {
    status = check_table(operation, "cluster_nodes", tables.cluster_nodes);
    if (status == FS_OK) status = check_table(operation, "cluster_offsets", tables.cluster_offsets);
    return status == FS_OK ? check_clusters(operation, spec, tables) : status;
  }
  if (spec.method == FS_SUBGRAPH_EDGE) return check_table(operation, "connected", tables.connected);
  if (spec.method == FS_SUBGRAPH_NODE) status = check_table(operation, "degree_sums", tables.degree_sums);
  if (status == FS_OK) status = check_table(operation, "roots", tables.roots);
  if (status != FS_OK || tables.num_roots > 0) return status;
  return fail(FS_INVALID_ARGUMENT, "%s: there are no roots; expected at least one", operation);
}

template <typename Id>
FsStatus draw_subgraph(const SubgraphCall<Id>& call, uint64_t number, DrawnNodes<Id>* out) {
  DrawScratch<Id>& scratch = thread_scratch<Id>();
  VisitList<Id>& visits = scratch.visits;
  visits.clear();
  const FsStatus status = draw_visits(call, number, &visits);
  if (status != FS_OK) return status;
  if (visits.are_distinct) {
    *out = {visits.data(), visits.count(), &visits};
    return FS_OK;
  }
  scratch.nodes.resize(static_cast<size_t>(visits.count()));
  if (call.graph.num_rows <= kDirectNodes && !vector_kernels().samples_plainly) {
    const int64_t rows = call.graph.num_rows;
    const int64_t num_nodes = scratch.seen.keep_first(visits.data(), visits.count(), rows, scratch.nodes.data());
    *out = {scratch.nodes.data(), num_nodes, &visits};
    return FS_OK;
  }
  TableMemory<Id>& table = thread_table<Id>();
  Relabeling<Id> ids = table.start(scratch.nodes.data(), 0, call.graph.num_rows);
  relabel_edges(visits.data(), 0, visits.count(), &ids);
  table.finish(ids);
  *out = {scratch.nodes.data(), ids.num_nodes, &visits};
  return FS_OK;
}

template FsStatus draw_subgraph(const SubgraphCall<int32_t>&, uint64_t, DrawnNodes<int32_t>*);
template FsStatus draw_subgraph(const SubgraphCall<int64_t>&, uint64_t, DrawnNodes<int64_t>*);

}  // namespace fs

extern "C" FsStatus fs_check_subgraph_spec(const char* operation, const FsSubgraphSpec* spec) {
  return fs::check_spec(operation, *spec);
}
