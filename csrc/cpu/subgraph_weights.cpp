// node_inclusion, subgraph_weights: how probable it is that nodes and edges are in a random subgraph, and the weights
// that make up for it. The laws are those of fastsample_inclusion.h, the kernel is vector/inclusion_rows.h.
//
// Threads share the edges, not the rows; a row is weighed by one thread, so that its sum has one order.
#include <omp.h>

#include <algorithm>

#include "buffer.h"
#include "inclusion_task.h"
#include "status.h"
#include "vector/vector_kernels.h"

namespace fs {
namespace {

constexpr int64_t kEdgesPerThread = 1 << 13;  // fewer are not worth waking one
constexpr int64_t kNodesAtOnce = 256;

// Of a law other than draws.
double node_chance(const FsInclusionLaw& law, int64_t v) {
  if (law.kind == FS_INCLUSION_CLUSTERS) return law.same;
  int64_t found = 0;
  for (int64_t w = 0; w < law.num_words; ++w) {
    found += __builtin_popcountll(static_cast<unsigned long long>(law.bits[v * law.num_words + w]));
  }
  return static_cast<double>(found) / static_cast<double>(law.count);
}

// P of nodes first .. first + count - 1, at most kNodesAtOnce.
void node_chances(const FsInclusionLaw& law, int64_t first, int64_t count, double* out) {
  if (law.kind == FS_INCLUSION_DRAWS) {
    DrawnNode nodes[kNodesAtOnce];
    vector_kernels().drawn_terms(law, first, first + count, nodes, nullptr);
    for (int64_t i = 0; i < count; ++i) out[i] = nodes[i].hit;
    return;
  }
  for (int64_t v = first; v < first + count; ++v) out[v - first] = node_chance(law, v);
}

FsStatus check_law(const char* operation, const FsInclusionLaw& law) {
  if (law.kind < FS_INCLUSION_DRAWS || law.kind > FS_INCLUSION_COUNTS) {
    return fail(FS_INVALID_ARGUMENT, "%s: law %d; expected draws (0), clusters (1) or counts (2)", operation, law.kind);
  }
  if (law.kind == FS_INCLUSION_COUNTS && (law.count < 1 || law.num_words * 64 < law.count)) {
    return fail(FS_INVALID_ARGUMENT,
                "%s: %lld words for %lld counted subgraphs; expected one bit each, and one at least", operation,
                static_cast<long long>(law.num_words), static_cast<long long>(law.count));
  }
  return FS_OK;
}

FsStatus check_offsets(const char* operation, const int64_t* indptr, int64_t num_rows, int64_t num_edges) {
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t begin = indptr[row], end = indptr[row + 1];
    if (begin < 0 || end < begin || end > num_edges) {
      return refuse(FS_REFUSED_OFFSETS, operation, {{row, begin, end, num_edges}});
    }
  }
  return FS_OK;
}

template <typename Id>
FsStatus check_edges(const char* operation, const FsSubgraphEdges& edges, int64_t num_nodes) {
  const FsStatus status = check_offsets(operation, edges.indptr, num_nodes, edges.num_edges);
  if (status != FS_OK) return status;
  const Id* indices = static_cast<const Id*>(edges.indices);
  Id low = 0, high = -1;
  for (int64_t edge = 0; edge < edges.num_edges; ++edge) {
    low = std::min(low, indices[edge]);
    high = std::max(high, indices[edge]);
  }
  if (low >= 0 && high < num_nodes) return FS_OK;
  const Id* bad = std::find_if(indices, indices + edges.num_edges, [&](Id id) { return id < 0 || id >= num_nodes; });
  return refuse(FS_REFUSED_ID, operation, {{*bad, bad - indices, 0, num_nodes - 1}});
}

// Rows in as many runs as threads are worth it, of about as many edges each.
void weigh(const InclusionTask& task) {
  const int64_t* first = task.edges->indptr;
  const int64_t num_nodes = task.law->num_nodes, num_edges = first[num_nodes];
  const int64_t useful = std::max<int64_t>(1, num_edges / kEdgesPerThread);
  const int threads = static_cast<int>(std::min<int64_t>(useful, task.edges->num_threads));
  const VectorKernels& kernels = vector_kernels();
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const int64_t count = omp_get_num_threads(), me = omp_get_thread_num();
    const auto first_row = [&](int64_t share) {
      if (share == count) return num_nodes;
      return static_cast<int64_t>(std::lower_bound(first, first + num_nodes, num_edges * share / count) - first);
    };
    kernels.subgraph_weights(task, first_row(me), first_row(me + 1));
  }
}

// Terms of the nodes of a call, in memory that stays with the thread; not inlined, as thread_table.
struct TermScratch {
  Buffer drawn, ends;
};
__attribute__((noinline)) TermScratch& thread_terms() {
  static thread_local TermScratch scratch;
  return scratch;
}

// A hash of an ordered pair: splitmix64's finaliser (Steele et al., OOPSLA'14) over both.
FS_INLINE uint64_t pair_hash(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15ull + b * 0xC2B2AE3D27D4EB4Full + 0x165667B19E3779F9ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

template <typename Id>
void fingerprint(const FsGraph& graph, int32_t num_threads, uint64_t out[2], int32_t* out_loops) {
  const Id* indices = static_cast<const Id*>(graph.indices);
  const int64_t rows = graph.num_rows;
  uint64_t along = 0, against = 0;
#pragma omp parallel for num_threads(num_threads) schedule(dynamic, 4096) reduction(+ : along, against)
  for (int64_t row = 0; row < rows; ++row) {
    const uint64_t v = static_cast<uint64_t>(row);
    int32_t loops = 0;
    for (int64_t edge = graph.indptr[row]; edge < graph.indptr[row + 1]; ++edge) {
      const uint64_t u = static_cast<uint64_t>(indices[edge]);
      along += pair_hash(u, v);
      against += pair_hash(v, u);
      loops += u == v;
    }
    out_loops[row] = loops;
  }
  out[0] = along;
  out[1] = against;
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_node_inclusion(const FsInclusionLaw* law, double* out) {
  const FsStatus status = fs::check_law("node_inclusion", *law);
  if (status != FS_OK) return status;
  for (int64_t first = 0; first < law->num_nodes; first += fs::kNodesAtOnce) {
    fs::node_chances(*law, first, std::min(fs::kNodesAtOnce, law->num_nodes - first), out + first);
  }
  return FS_OK;
}

FsStatus fs_subgraph_weights(const FsInclusionLaw* law, const FsSubgraphEdges* edges, void* out) {
  constexpr const char* kName = "subgraph_weights";
  FsStatus status = fs::check_law(kName, *law);
  if (status == FS_OK) status = fs::check_threads(kName, edges->num_threads);
  if (status == FS_OK && (edges->form < FS_EDGE_INCLUSION || edges->form > FS_SAINT_WEIGHTS)) {
    status = fs::fail(FS_INVALID_ARGUMENT, "%s: form %d; expected inclusion (0), ratio (1) or saint (2)", kName,
                      edges->form);
  }
  if (status != FS_OK) return status;
  return fs::guarded(kName, [&] {
    const FsStatus sound = fs::with_id_type(kName, edges->id_type, [&](auto zero) {
      return fs::check_edges<decltype(zero)>(kName, *edges, law->num_nodes);
    });
    if (sound != FS_OK) return sound;
    const bool is_drawn = law->kind == FS_INCLUSION_DRAWS;
    fs::TermScratch& terms = fs::thread_terms();
    const int64_t count = is_drawn ? law->num_nodes : 0;
    auto* drawn = terms.drawn.require_array<fs::DrawnNode>(count);
    auto* ends = terms.ends.require_array<fs::DrawnEnd>(count);
    fs::vector_kernels().drawn_terms(*law, 0, count, drawn, ends);
    const bool same_odds =
        std::all_of(drawn, drawn + count, [&](const auto& node) { return node.odds == drawn->odds; });
    fs::weigh({law, edges, drawn, ends, same_odds && count > 0, out});
    return FS_OK;
  });
}

FsStatus fs_edge_fingerprint(const FsGraph* graph, int32_t num_threads, uint64_t out[2], int32_t* out_loops) {
  constexpr const char* kName = "edge_fingerprint";
  FsStatus status = fs::check_threads(kName, num_threads);
  if (status == FS_OK) status = fs::check_offsets(kName, graph->indptr, graph->num_rows, graph->num_edges);
  if (status != FS_OK) return status;
  return fs::with_id_type(kName, graph->id_type, [&](auto zero) {
    fs::fingerprint<decltype(zero)>(*graph, num_threads, out, out_loops);
    return FS_OK;
  });
}

}  // extern "C"
