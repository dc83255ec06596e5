// Visits of a frontier by the paper's Dashboard (dashboard.h): algorithm 3 of Zeng et al., IPDPS 2019.
//
// Roots and hops are those of the streams that a frontier with sums reads; pops are probes instead. Where a walker goes
// does not depend on when: its next edge is drawn, and the line it lies in requested, when it arrives; kRowAhead pops
// later its source is read and that node's offsets are requested.
#include <algorithm>
#include <vector>

#include "dashboard.h"
#include "hop_spec.h"
#include "subgraph_visits.h"

namespace fs {
namespace {

constexpr int64_t kRootsAhead = 16;  // roots whose offsets are requested
constexpr int64_t kRowAhead = 8;     // pops between the request of an edge and that of its source's offsets

struct Walker {
  NodeStream hops;
  int64_t degree;
  int64_t next_edge;  // position in indices of the hop it makes next; not if its degree is 0
};

// Scratch of a thread.
struct DashboardScratch {
  Dashboard table;
  std::vector<Walker> walkers;
  std::vector<int64_t> weights;
};

__attribute__((noinline)) DashboardScratch& thread_scratch() {
  static thread_local DashboardScratch scratch;
  return scratch;
}

template <typename Id>
class DashboardVisits {
 public:
  DashboardVisits(const SubgraphCall<Id>& call, uint64_t number, VisitList<Id>* visits)
      : call_(call), number_(number), visits_(*visits), scratch_(thread_scratch()) {}

  FsStatus run() {
    visits_.reserve(call_.spec.budget);
    const FsStatus status = enter_roots();
    if (status != FS_OK) return status;
    Dashboard& table = scratch_.table;
    if (!table.start(scratch_.weights, capacity(), call_.spec.eta, call_.key(kSubgraphProbes, number_))) {
      return refuse_size();
    }
    const FsStatus walked = walk(table);
    visits_.probes = table.probes;
    visits_.cleanups = table.cleanups;
    visits_.growths = table.growths;
    return walked;
  }

 private:
  // eta * m * d of algorithm 3, d the mean degree, or max_degree where that is less.
  int64_t capacity() const {
    if (call_.graph.num_rows == 0) return 0;
    double degree = static_cast<double>(call_.graph.num_edges) / static_cast<double>(call_.graph.num_rows);
    if (call_.spec.max_degree > 0) degree = std::min(degree, static_cast<double>(call_.spec.max_degree));
    return dashboard_capacity(call_.spec.eta, static_cast<double>(call_.spec.frontier_size) * degree);
  }

  FsStatus enter_roots() {
    const int64_t size = call_.spec.frontier_size;
    const StageKey roots = call_.key(kSubgraphRoots, number_), hops = call_.key(kSubgraphHops, number_);
    Id* nodes = visits_.data();
    for (int64_t i = 0; i < size; ++i) {
      NodeStream stream(roots, static_cast<uint64_t>(i));
      nodes[i] = call_.roots()[stream.below(static_cast<uint64_t>(call_.tables.num_roots))];
    }
    visits_.set_count(size);
    scratch_.walkers.assign(static_cast<size_t>(size), Walker{NodeStream(hops, 0), 0, 0});
    scratch_.weights.resize(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) {
      if (i + kRootsAhead < size && call_.graph.has_row(nodes[i + kRootsAhead])) {
        __builtin_prefetch(call_.graph.indptr + nodes[i + kRootsAhead]);
      }
      Walker& walker = scratch_.walkers[static_cast<size_t>(i)];
      walker.hops = NodeStream(hops, static_cast<uint64_t>(i));
      if (!arrive(nodes[i], &walker)) return refuse_row(call_.operation, call_.graph, nodes[i]);
      scratch_.weights[static_cast<size_t>(i)] = static_cast<int64_t>(call_.slot_weight(walker.degree));
    }
    return FS_OK;
  }

  FsStatus walk(Dashboard& table) {
    const CscView<Id>& graph = call_.graph;
    uint32_t arrived[kRowAhead];  // slots of the last pops
    for (; visits_.count() < call_.spec.budget && !table.is_empty(); ++visits_.steps) {
      const int64_t pop = visits_.steps;
      const uint32_t slot = table.pop(pop);
      Walker& walker = scratch_.walkers[slot];
      const Id node = graph.indices[walker.next_edge];
      if (!graph.has_row(node)) return refuse_source(call_.operation, graph, node);
      if (!arrive(node, &walker)) return refuse_row(call_.operation, graph, node);
      visits_.push(node);
      if (!table.push(slot, static_cast<int64_t>(call_.slot_weight(walker.degree)))) return refuse_size();
      if (pop >= kRowAhead) request_row(scratch_.walkers[arrived[pop % kRowAhead]]);
      arrived[pop % kRowAhead] = slot;
    }
    return FS_OK;
  }

  // False: there is no such row, or its offsets are not offsets.
  bool arrive(Id node, Walker* walker) {
    const CscView<Id>& graph = call_.graph;
    if (!graph.has_row(node)) return false;
    const int64_t begin = graph.indptr[node], end = graph.indptr[node + 1];
    if (begin < 0 || end < begin || end > graph.num_edges) return false;
    walker->degree = end - begin;
    if (end > begin) {
      walker->next_edge = begin + static_cast<int64_t>(walker->hops.below(static_cast<uint64_t>(end - begin)));
      __builtin_prefetch(graph.indices + walker->next_edge);
    }
    return true;
  }

  void request_row(const Walker& walker) const {
    if (walker.degree == 0) return;
    const Id node = call_.graph.indices[walker.next_edge];
    if (call_.graph.has_row(node)) __builtin_prefetch(call_.graph.indptr + node);
  }

  FsStatus refuse_size() const {
    return fail(FS_INVALID_ARGUMENT,
                "%s: the frontier's walkers have more than %lld in-edges together, an entry of the dashboard each; "
                "pass max_degree, or structure sums",
                call_.operation, static_cast<long long>(kMostEntries));
  }

  const SubgraphCall<Id>& call_;
  const uint64_t number_;
  VisitList<Id>& visits_;
  DashboardScratch& scratch_;
};

}  // namespace

template <typename Id>
FsStatus visit_by_dashboard(const SubgraphCall<Id>& call, uint64_t number, VisitList<Id>* visits) {
  return DashboardVisits<Id>(call, number, visits).run();
}

template FsStatus visit_by_dashboard(const SubgraphCall<int32_t>&, uint64_t, VisitList<int32_t>*);
template FsStatus visit_by_dashboard(const SubgraphCall<int64_t>&, uint64_t, VisitList<int64_t>*);

}  // namespace fs
