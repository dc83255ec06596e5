// node_inclusion, subgraph_weights: how probable it is that nodes and edges are in a random subgraph, and the weights
// that make up for it. The laws are those of fastsample_inclusion.h, the kernel is vector/inclusion_rows.h.
//
// Threads share the edges, not the rows; a row is weighed by one thread, so that its sum has one order.
#include <omp.h>

#include <algorithm>
#include <vector>

#include "elementary.h"
#include "inclusion_task.h"
#include "status.h"
#include "vector/vector_kernels.h"

namespace fs {
namespace {

constexpr int64_t kEdgesPerThread = 1 << 13;  // fewer are not worth waking one
constexpr double kCertain = 1 - 0x1p-53;      // a chance from here on is one of 1

double at(const double* column, int64_t v) { return column == nullptr ? 0 : column[v]; }

DrawnNode drawn_node(const FsInclusionLaw& law, int64_t v) {
  const double chance = law.chances[v];
  if (chance >= kCertain) return {1, 0, 0, 0};
  const double less = exp_minus_one(law.draws * log_one_plus(-chance) - at(law.arrivals, v));
  return {-less, 1 + less, exp_minus_one(at(law.links, v)), chance / (1 - chance)};
}

DrawnEnd drawn_end(const FsInclusionLaw& law, int64_t v) {
  const double chance = law.chances[v];
  if (chance >= kCertain) return {0, 0, 0};
  return {at(law.links, v), at(law.shares, v), 1 / (1 - chance)};
}

double node_chance(const FsInclusionLaw& law, int64_t v) {
  if (law.kind == FS_INCLUSION_DRAWS) return drawn_node(law, v).hit;
  if (law.kind == FS_INCLUSION_CLUSTERS) return law.same;
  int64_t found = 0;
  for (int64_t w = 0; w < law.num_words; ++w) {
    found += __builtin_popcountll(static_cast<unsigned long long>(law.bits[v * law.num_words + w]));
  }
  return static_cast<double>(found) / static_cast<double>(law.count);
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

template <typename Id>
FsStatus check_edges(const char* operation, const FsSubgraphEdges& edges, int64_t num_nodes) {
  for (int64_t row = 0; row < num_nodes; ++row) {
    const int64_t begin = edges.indptr[row], end = edges.indptr[row + 1];
    if (begin < 0 || end < begin || end > edges.num_edges) {
      return refuse(FS_REFUSED_OFFSETS, operation, {{row, begin, end, edges.num_edges}});
    }
  }
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
  for (int64_t v = 0; v < law->num_nodes; ++v) out[v] = fs::node_chance(*law, v);
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
    std::vector<fs::DrawnNode> drawn;
    std::vector<fs::DrawnEnd> ends;
    for (int64_t v = 0; v < (law->kind == FS_INCLUSION_DRAWS ? law->num_nodes : 0); ++v) {
      drawn.push_back(fs::drawn_node(*law, v));
      ends.push_back(fs::drawn_end(*law, v));
    }
    fs::weigh({law, edges, drawn.data(), ends.data(), out});
    return FS_OK;
  });
}

FsStatus fs_edge_fingerprint(const FsGraph* graph, int32_t num_threads, uint64_t out[2], int32_t* out_loops) {
  const FsStatus status = fs::check_threads("edge_fingerprint", num_threads);
  if (status != FS_OK) return status;
  return fs::with_id_type("edge_fingerprint", graph->id_type, [&](auto zero) {
    fs::fingerprint<decltype(zero)>(*graph, num_threads, out, out_loops);
    return FS_OK;
  });
}

}  // extern "C"
