// Subgraphs under stress: every method and structure, and what is refused.
#ifndef FS_TESTS_STRESS_SUBGRAPHS_H_
#define FS_TESTS_STRESS_SUBGRAPHS_H_

#include "fastsample_subgraph.h"
#include "stress_sampling.h"

namespace stress {

template <typename Id>
class Subgraphs {
 public:
  explicit Subgraphs(const DrawnGraph<Id>& graph) {
    view_ = {graph.indptr.data(), graph.indices.data(), graph.orig_ids.data(), nullptr, nullptr, kNodes, 0, kEdges,
             type_code<Id>()};
    sums_.push_back(0);
    for (int64_t node = 0; node < kNodes; node += 3) {
      const size_t row = static_cast<size_t>(node);
      const int64_t degree = graph.indptr[row + 1] - graph.indptr[row];
      roots_.push_back(static_cast<Id>(node));
      sums_.push_back(sums_.back() + degree);
      if (degree > 0) connected_.push_back(static_cast<Id>(node));
    }
    for (int64_t cluster = 0; cluster <= kClusters; ++cluster) offsets_.push_back(kNodes * cluster / kClusters);
    for (int64_t node = 0; node < kNodes; ++node) members_.push_back(static_cast<Id>(kNodes - 1 - node));
    tables_ = {roots_.data(),   sums_.data(),     connected_.data(),    members_.data(),
               offsets_.data(), count_of(roots_), count_of(connected_), kClusters};
  }

  void run(int32_t num_threads, Written& written) const {
    for (const int32_t structure : {FS_FRONTIER_SUMS, FS_FRONTIER_DASHBOARD}) {
      FsSubgraphSpec frontier = spec(FS_SUBGRAPH_FRONTIER, num_threads);
      frontier.structure = structure;
      draw(frontier, written);
      frontier.eta = 1.05;
      frontier.max_degree = 7;
      draw(frontier, written);
    }
    for (const int32_t method :
         {FS_SUBGRAPH_NODE, FS_SUBGRAPH_EDGE, FS_SUBGRAPH_WALK, FS_SUBGRAPH_CLUSTER, FS_SUBGRAPH_EGO}) {
      draw(spec(method, num_threads), written);
    }
    FsSubgraphSpec wide = spec(FS_SUBGRAPH_EGO, num_threads);
    wide.fanout = 50;  // more than the vector kernels take
    draw(wide, written);
    refuse_bad_input(num_threads);
  }

 private:
  static constexpr int64_t kClusters = 9, kCount = 7;

  template <typename T>
  static int64_t count_of(const std::vector<T>& list) {
    return static_cast<int64_t>(list.size());
  }

  static FsSubgraphSpec spec(int32_t method, int32_t num_threads) {
    FsSubgraphSpec made = {};
    made.budget = 400;
    made.frontier_size = 60;
    made.walk_length = 3;
    made.clusters_per_batch = 2;
    made.depth = 2;
    made.fanout = 5;
    made.eta = 2;
    made.rng_seed = 11;
    made.method = method;
    made.num_threads = num_threads;
    return made;
  }

  void draw(const FsSubgraphSpec& how, Written& written) const {
    std::vector<FsSubgraphNodes> found(kCount);
    succeed(fs_subgraph_nodes(&view_, &how, &tables_, 3, kCount, found.data()), "subgraph_nodes");
    for (const FsSubgraphNodes& one : found) {
      written.add("subgraph_nodes", static_cast<const Id*>(one.nodes), one.num_nodes);
      written.add("subgraph_nodes", &one.num_nodes, 6);  // and the counts behind it
    }
    fs_subgraph_nodes_free(found.data(), kCount);
  }

  void refuse_bad_input(int32_t num_threads) const {
    std::vector<FsSubgraphNodes> found(kCount);
    FsSubgraphSpec small = spec(FS_SUBGRAPH_FRONTIER, num_threads);
    small.budget = 59;
    refused(fs_subgraph_nodes(&view_, &small, &tables_, 0, kCount, found.data()), "frontier_size is 60");
    FsSubgraphTables none = tables_;
    none.num_roots = 0;
    for (const int32_t method : {FS_SUBGRAPH_FRONTIER, FS_SUBGRAPH_NODE, FS_SUBGRAPH_WALK, FS_SUBGRAPH_EGO}) {
      const FsSubgraphSpec how = spec(method, num_threads);
      refused(fs_subgraph_nodes(&view_, &how, &none, 0, kCount, found.data()), "there are no roots");
    }
    const Id outside = static_cast<Id>(kNodes);
    FsSubgraphTables wrong = tables_;
    wrong.roots = &outside;
    wrong.num_roots = 1;
    for (const int32_t structure : {FS_FRONTIER_SUMS, FS_FRONTIER_DASHBOARD}) {
      FsSubgraphSpec frontier = spec(FS_SUBGRAPH_FRONTIER, num_threads);
      frontier.structure = structure;
      refused(fs_subgraph_nodes(&view_, &frontier, &wrong, 0, kCount, found.data()), "2200");
    }
    const FsSubgraphSpec ego = spec(FS_SUBGRAPH_EGO, num_threads);
    refused(fs_subgraph_nodes(&view_, &ego, &wrong, 0, kCount, found.data()), "2200");
  }

  FsGraph view_;
  FsSubgraphTables tables_;
  std::vector<Id> roots_, connected_, members_;
  std::vector<int64_t> sums_, offsets_;
};

}  // namespace stress

#endif  // FS_TESTS_STRESS_SUBGRAPHS_H_
