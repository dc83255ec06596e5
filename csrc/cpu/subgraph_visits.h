// The visits of one subgraph, and its nodes: what fs_subgraph_nodes returns and fs_sample_subgraphs goes on with.
//
// A method is a function that fills a VisitList from (call, number). draw_subgraph chooses it and makes the distinct
// nodes of the visits. Everything lies in scratch of the calling thread.
#ifndef FS_CPU_SUBGRAPH_VISITS_H_
#define FS_CPU_SUBGRAPH_VISITS_H_

#include <stddef.h>
#include <stdint.h>

#include <vector>

#include "csc_view.h"
#include "fastsample_subgraph.h"
#include "philox.h"
#include "status.h"

namespace fs {

// A checked request, its id type resolved: what all subgraphs of a call share.
template <typename Id>
struct SubgraphCall {
  const char* operation;  // for refusals
  FsGraph raw;
  CscView<Id> graph;
  FsSubgraphSpec spec;
  FsSubgraphTables tables;

  SubgraphCall(const char* an_operation, const FsGraph& a_graph, const FsSubgraphSpec& a_spec,
               const FsSubgraphTables& some_tables)
      : operation(an_operation), raw(a_graph), graph(view_of<Id>(a_graph)), spec(a_spec), tables(some_tables) {}

  const Id* roots() const { return static_cast<const Id*>(tables.roots); }
  const Id* connected() const { return static_cast<const Id*>(tables.connected); }
  const Id* cluster_nodes() const { return static_cast<const Id*>(tables.cluster_nodes); }
  StageKey key(RandomDomain domain, uint64_t number, uint32_t stage = 0) const {
    return stage_key(spec.rng_seed, domain, stage, number);
  }
  // Of a frontier's slot whose walker is at a row of that degree.
  uint64_t slot_weight(int64_t degree) const {
    return static_cast<uint64_t>(spec.max_degree > 0 && degree > spec.max_degree ? spec.max_degree : degree);
  }
};

// Visits in order, and what they took. Memory stays from subgraph to subgraph.
template <typename Id>
class VisitList {
 public:
  int64_t steps, probes, cleanups, growths;  // as in FsSubgraphNodes
  bool are_distinct;                         // the method visits no node twice

  void clear() {
    steps = probes = cleanups = growths = count_ = 0;
    are_distinct = false;
  }
  // Makes room for so many visits in all; data()[0 .. count()) stay.
  Id* reserve(int64_t most) {
    if (static_cast<int64_t>(nodes_.size()) < most) nodes_.resize(static_cast<size_t>(most));
    return nodes_.data();
  }
  void push(Id node) { nodes_[static_cast<size_t>(count_++)] = node; }  // there is room
  void set_count(int64_t count) { count_ = count; }
  Id* data() { return nodes_.data(); }
  int64_t count() const { return count_; }

 private:
  std::vector<Id> nodes_;
  int64_t count_ = 0;
};

// The most visits that a frontier, draws or walks make; other methods reserve as they go.
int64_t most_visits(const FsSubgraphSpec& spec);

// Visits by definition (plain_visits.cpp): the methods frontier with sums, node, edge and walk.
template <typename Id>
FsStatus visit_plainly(const SubgraphCall<Id>& call, uint64_t number, VisitList<Id>* visits);

// The same visits by the vector kernels (vector_visits.cpp). False: there are no visits, something is to be refused,
// which the definition finds and words.
template <typename Id>
bool visit_by_vectors(const SubgraphCall<Id>& call, uint64_t number, VisitList<Id>* visits);

// Visits of a frontier with the dashboard (dashboard_visits.cpp).
template <typename Id>
FsStatus visit_by_dashboard(const SubgraphCall<Id>& call, uint64_t number, VisitList<Id>* visits);

// Visits of the methods cluster and ego (epoch_visits.cpp).
template <typename Id>
FsStatus visit_clusters(const SubgraphCall<Id>& call, uint64_t number, VisitList<Id>* visits);
template <typename Id>
FsStatus visit_neighborhood(const SubgraphCall<Id>& call, uint64_t number, VisitList<Id>* visits);

// Refuses what a call of `operation` cannot be made of: spec, tables that are missing.
FsStatus check_subgraph_call(const char* operation, const FsGraph& graph, const FsSubgraphSpec& spec,
                             const FsSubgraphTables& tables);

// A subgraph's nodes, in scratch of the calling thread until its next draw.
template <typename Id>
struct DrawnNodes {
  const Id* nodes;
  int64_t num_nodes;
  const VisitList<Id>* visits;  // counts alone: the list is overwritten
};

// Draws subgraph `number` of a checked call. Throws bad_alloc.
template <typename Id>
FsStatus draw_subgraph(const SubgraphCall<Id>& call, uint64_t number, DrawnNodes<Id>* out);

}  // namespace fs

#endif  // FS_CPU_SUBGRAPH_VISITS_H_
