// Edge weights of a graph that stands for a subgraph, under every law and in every form.
#ifndef FS_TESTS_STRESS_WEIGHTS_H_
#define FS_TESTS_STRESS_WEIGHTS_H_

#include <cmath>

#include "fastsample_inclusion.h"
#include "stress_basics.h"
#include "stress_sampling.h"

namespace stress {

template <typename Id>
class SubgraphWeights {
 public:
  explicit SubgraphWeights(const DrawnGraph<Id>& graph) : graph_(graph), bits_(static_cast<size_t>(2 * kNodes)) {
    Generator generator(11);
    std::uniform_real_distribution<double> uniform(0, 1e-3);
    for (int64_t v = 0; v < kNodes; ++v) {
      chances_.push_back(v % 100 == 0 ? v / 100 % 2 : uniform(generator));
      arrivals_.push_back(1000 * uniform(generator));
      sums_.push_back(1 + v);
      clusters_.push_back(v % 7);
    }
    for (int64_t& word : bits_) word = static_cast<int64_t>(generator() >> 24);
  }

  void run(int32_t num_threads, Written& written) const {
    for (int32_t kind : {FS_INCLUSION_DRAWS, FS_INCLUSION_CLUSTERS, FS_INCLUSION_COUNTS}) {
      const FsInclusionLaw own = law(kind);
      std::vector<double> nodes(static_cast<size_t>(kNodes)), inclusion(static_cast<size_t>(kEdges));
      succeed(fs_node_inclusion(&own, nodes.data()), "node_inclusion");
      written.add("node_inclusion", nodes);
      for (int32_t form : {FS_RATIO_WEIGHTS, FS_SAINT_WEIGHTS}) {
        std::vector<float> weights(static_cast<size_t>(kEdges));
        const FsSubgraphEdges all = edges(form, num_threads);
        succeed(fs_subgraph_weights(&own, &all, weights.data()), "subgraph_weights");
        for (float weight : weights) require(std::isfinite(weight) && weight >= 0, "subgraph_weights: not a weight");
        written.add("subgraph_weights", weights);
      }
      const FsSubgraphEdges all = edges(FS_EDGE_INCLUSION, num_threads);
      succeed(fs_subgraph_weights(&own, &all, inclusion.data()), "subgraph_weights");
      written.add("subgraph_weights", inclusion);
    }
    const FsGraph view = graph_.view(kDraws[0]);
    uint64_t sums[2];
    std::vector<int32_t> loops(static_cast<size_t>(kNodes));
    succeed(fs_edge_fingerprint(&view, num_threads, sums, loops.data()), "edge_fingerprint");
    written.add("edge_fingerprint", sums, 2);
    written.add("edge_fingerprint", loops);
    refuse(num_threads);
  }

 private:
  FsInclusionLaw law(int32_t kind) const {
    FsInclusionLaw own = {};
    own.chances = chances_.data();
    own.arrivals = arrivals_.data();
    own.draws = 700;
    own.links = chances_.data();
    own.clusters = clusters_.data();
    own.same = 0.5;
    own.apart = 0.25;
    own.bits = bits_.data();
    own.num_words = 2;
    own.count = 100;
    own.num_nodes = kNodes;
    own.kind = kind;
    return own;
  }

  FsSubgraphEdges edges(int32_t form, int32_t num_threads) const {
    return {graph_.indptr.data(), graph_.indices.data(), sums_.data(), kEdges, type_code<Id>(), form, num_threads};
  }

  void refuse(int32_t num_threads) const {
    std::vector<double> out(static_cast<size_t>(kEdges));
    FsInclusionLaw few = law(FS_INCLUSION_COUNTS);
    few.num_words = 1;
    refused(fs_node_inclusion(&few, out.data()), "one bit each");
    std::vector<Id> damaged = graph_.indices;
    damaged[5] = -3;
    FsSubgraphEdges wrong = edges(FS_EDGE_INCLUSION, num_threads);
    wrong.indices = damaged.data();
    const FsInclusionLaw own = law(FS_INCLUSION_DRAWS);
    refused(fs_subgraph_weights(&own, &wrong, out.data()), "-3");
  }

  const DrawnGraph<Id>& graph_;
  std::vector<double> chances_, arrivals_, sums_;
  std::vector<int64_t> clusters_, bits_;
};

}  // namespace stress

#endif  // FS_TESTS_STRESS_WEIGHTS_H_
