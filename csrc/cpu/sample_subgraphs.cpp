// sample_subgraphs: many subgraphs with their edges, one subgraph per thread (the pool of the IPDPS'19 paper, algorithm
// 5), apart or side by side as one graph.
#include <string.h>

#include <algorithm>

#include "batch_memory.h"
#include "first_failure.h"
#include "induced_rows.h"
#include "subgraph_visits.h"
#include "union_places.h"
#include "worker_pool.h"

namespace fs {
namespace {

constexpr const char* kOperation = "sample_subgraphs";

struct SubgraphRequest {
  const uint64_t* numbers;
  int64_t count;
  const uint8_t* loss_flags;
  bool edge_ids;
};

void free_arrays(FsSubgraph* subgraph) {
  give_block(subgraph->drawn.nodes);
  give_block(subgraph->edges.indptr);
  give_block(subgraph->edges.indices);
  give_block(subgraph->edges.edge_ids);
  subgraph->drawn.nodes = subgraph->edges.indices = nullptr;
  subgraph->edges.indptr = subgraph->edges.edge_ids = nullptr;
}

// Copies nodes, loss nodes first; of them the first `most` alone can be such. Returns how many are.
template <typename Id>
int64_t order_nodes(const DrawnNodes<Id>& drawn, const uint8_t* loss_flags, int64_t most, Id* nodes) {
  const auto has_loss = [&](int64_t i) {
    return i < most && (loss_flags == nullptr || loss_flags[drawn.nodes[i]] != 0);
  };
  int64_t num_loss = 0;
  for (int64_t i = 0; i < drawn.num_nodes; ++i) num_loss += has_loss(i);
  int64_t next[2] = {num_loss, 0};
  for (int64_t i = 0; i < drawn.num_nodes; ++i) nodes[next[has_loss(i)]++] = drawn.nodes[i];
  return num_loss;
}

template <typename Id>
FsStatus sample_one(const SubgraphCall<Id>& call, const SubgraphRequest& request, int64_t i, FsSubgraph* out) {
  DrawnNodes<Id> drawn;
  const FsStatus status = draw_subgraph(call, request.numbers[i], &drawn);
  if (status != FS_OK) return status;
  const VisitList<Id>& visits = *drawn.visits;
  Id* const nodes = take_array<Id>(drawn.num_nodes);
  out->drawn = {nodes, drawn.num_nodes, visits.count(), visits.steps, visits.probes, visits.cleanups, visits.growths};
  const int64_t most_loss = call.spec.method == FS_SUBGRAPH_EGO ? 1 : drawn.num_nodes;  // the root
  out->num_loss = order_nodes(drawn, request.loss_flags, most_loss, nodes);
  const int num_threads = request.count == 1 ? call.spec.num_threads : 1;
  return thread_induced_rows<Id>().induce({kOperation, request.edge_ids, num_threads}, call.graph, nodes,
                                          drawn.num_nodes, &out->edges);
}

template <typename Id>
FsStatus sample_all(const SubgraphCall<Id>& call, const SubgraphRequest& request, FsSubgraph* out) {
  FirstFailure failure;
  const int threads = static_cast<int>(std::min<int64_t>(call.spec.num_threads, request.count));
  share_runs(request.count, 1, threads, [&](int64_t i, int64_t) {
    const FsStatus status = guarded(kOperation, [&] { return sample_one(call, request, i, &out[i]); });
    if (status != FS_OK) failure.take(status, i);
  });
  return failure.report();
}

// Subgraphs that become one.
template <typename Id>
class Union {
 public:
  Union(FsSubgraph* parts, int64_t count) : parts_(parts), count_(count), places_(parts, count) {}

  FsStatus make(bool edge_ids, int threads, FsSubgraph* joined) {
    const FsStatus status = places_.check<Id>(kOperation);
    if (status != FS_OK) return status;
    require_room(places_.num_edges(), sizeof(Id) + (edge_ids ? sizeof(int64_t) : 0));
    allocate(edge_ids, joined);
    share_runs(count_, 1, threads, [&](int64_t i, int64_t) { copy(i, joined); });
    return FS_OK;
  }

 private:
  void allocate(bool edge_ids, FsSubgraph* joined) const {
    const int64_t num_nodes = places_.num_nodes(), num_edges = places_.num_edges();
    joined->num_loss = places_.num_loss();
    joined->drawn.num_nodes = joined->edges.num_dst = joined->edges.num_src = num_nodes;
    joined->edges.num_edges = num_edges;
    joined->drawn.nodes = take_array<Id>(num_nodes);
    joined->edges.indptr = take_array<int64_t>(num_nodes + 1);
    joined->edges.indices = take_array<Id>(num_edges);
    if (edge_ids) joined->edges.edge_ids = take_array<int64_t>(num_edges);
    joined->edges.indptr[0] = 0;
  }

  // Part i into the union; its arrays are given back.
  void copy(int64_t i, FsSubgraph* joined) const {
    FsSubgraph& part = parts_[i];
    const Placement& place = places_[i];
    copy_rows(part, 0, part.num_loss, place.loss_row, place.loss_edge, place, joined);
    copy_rows(part, part.num_loss, part.drawn.num_nodes, place.other_row, place.other_edge, place, joined);
    free_arrays(&part);
  }

  // Rows begin .. end of a part to rows from `row` and edges from `edge` on.
  static void copy_rows(const FsSubgraph& part, int64_t begin, int64_t end, int64_t row, int64_t edge,
                        const Placement& place, FsSubgraph* joined) {
    const Id* nodes = static_cast<const Id*>(part.drawn.nodes);
    std::copy(nodes + begin, nodes + end, static_cast<Id*>(joined->drawn.nodes) + row);
    const int64_t* indptr = part.edges.indptr;
    const int64_t first = indptr[begin], count = indptr[end] - first;
    for (int64_t r = begin; r < end; ++r) joined->edges.indptr[row + r - begin + 1] = indptr[r + 1] - first + edge;
    const Id* from = static_cast<const Id*>(part.edges.indices) + first;
    Id* to = static_cast<Id*>(joined->edges.indices) + edge;
    const Id num_loss = static_cast<Id>(part.num_loss), loss_shift = static_cast<Id>(place.loss_row);
    const Id other_shift = static_cast<Id>(place.other_row - part.num_loss);
    for (int64_t e = 0; e < count; ++e)
      to[e] = static_cast<Id>(from[e] + (from[e] < num_loss ? loss_shift : other_shift));
    if (part.edges.edge_ids != nullptr) std::copy_n(part.edges.edge_ids + first, count, joined->edges.edge_ids + edge);
  }

  FsSubgraph* parts_;
  int64_t count_;
  UnionPlaces places_;
};

// What is drawn counts together.
void add_counts(const FsSubgraph* parts, int64_t count, FsSubgraph* joined) {
  for (int64_t i = 0; i < count; ++i) {
    joined->drawn.num_visits += parts[i].drawn.num_visits;
    joined->drawn.steps += parts[i].drawn.steps;
    joined->drawn.probes += parts[i].drawn.probes;
    joined->drawn.cleanups += parts[i].drawn.cleanups;
    joined->drawn.growths += parts[i].drawn.growths;
  }
}

template <typename Id>
FsStatus join(const SubgraphRequest& request, int threads, FsSubgraph* out, FsSubgraph* joined) {
  if (request.count == 1) {  // it is its own union
    *joined = *out;
    out->drawn.nodes = out->edges.indices = nullptr;
    out->edges.indptr = out->edges.edge_ids = nullptr;
    return FS_OK;
  }
  add_counts(out, request.count, joined);
  return Union<Id>(out, request.count).make(request.edge_ids, threads, joined);
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_sample_subgraphs(const FsGraph* graph, const FsSubgraphSpec* spec, const FsSubgraphTables* tables,
                             const uint64_t* numbers, int64_t count, const uint8_t* loss_flags, int32_t edge_ids,
                             FsSubgraph* out, FsSubgraph* joined) {
  if (count > 0) memset(out, 0, static_cast<size_t>(count) * sizeof(FsSubgraph));
  if (joined != nullptr) memset(joined, 0, sizeof(FsSubgraph));
  FsStatus status = fs::check_subgraph_call(fs::kOperation, *graph, *spec, *tables);
  if (status != FS_OK) return status;
  const fs::SubgraphRequest request = {numbers, count, loss_flags, edge_ids != 0};
  status = fs::guarded(fs::kOperation, [&] {
    return fs::with_id_type(fs::kOperation, graph->id_type, [&](auto zero) {
      using Id = decltype(zero);
      const fs::SubgraphCall<Id> call(fs::kOperation, *graph, *spec, *tables);
      const FsStatus sampled = fs::sample_all(call, request, out);
      if (sampled != FS_OK || joined == nullptr) return sampled;
      return fs::join<Id>(request, spec->num_threads, out, joined);
    });
  });
  if (status != FS_OK) {
    fs_subgraphs_free(out, count);
    if (joined != nullptr) fs_subgraphs_free(joined, 1);
  }
  return status;
}

void fs_subgraphs_free(FsSubgraph* subgraphs, int64_t count) {
  for (int64_t i = 0; i < count; ++i) fs::free_arrays(&subgraphs[i]);
}

}  // extern "C"
