// Clusters, the links between them and refinement for the stress test: what a pass keeps up to date is counted again,
// and a pass in pieces is held against a pass in one.
#ifndef FS_TESTS_STRESS_CLUSTERS_H_
#define FS_TESTS_STRESS_CLUSTERS_H_

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "fastsample_clusters.h"
#include "stress_basics.h"

namespace stress {

template <typename Id>
class ClusterPasses {
 public:
  explicit ClusterPasses(Generator& generator) : indptr_{0}, order_(kNodes) {
    std::uniform_int_distribution<int64_t> nodes(0, kNodes - 1), weights(0, 3);
    std::vector<std::vector<std::pair<int64_t, int32_t>>> rows(kNodes);
    for (int64_t pair = 0; pair < 900; ++pair) {
      const int64_t a = pair % 5 == 0 ? 3 : nodes(generator), b = nodes(generator);  // node 3 is a hub; some self-loops
      const int32_t weight = static_cast<int32_t>(weights(generator));
      rows[at(a)].emplace_back(b, weight);
      if (a != b) rows[at(b)].emplace_back(a, weight);
    }
    for (int64_t node = 0; node < kNodes; ++node) {
      for (const auto& [other, weight] : rows[at(node)]) {
        indices_.push_back(static_cast<Id>(other));
        weights_.push_back(weight);
        bytes_.push_back(static_cast<uint8_t>(weight));
      }
      indptr_.push_back(static_cast<int64_t>(indices_.size()));
      node_weights_.push_back(1 + static_cast<int32_t>(weights(generator)));
      kinds_.push_back(static_cast<uint8_t>(node % 4));
      within_.push_back(static_cast<int32_t>(node % 2));
    }
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), generator);
  }

  void run(int32_t num_threads, Written& written) const {
    for (const int32_t weight_type : {FS_UINT8, FS_INT32}) {
      for (const bool all : {false, true}) {
        const FsNeighbours graph = neighbours(weight_type, all);
        const std::vector<int32_t> labels = cluster(graph, all, num_threads, written);
        contract(graph, labels, num_threads, written);
        refine(graph, num_threads, written);
      }
    }
    refuse();
  }

 private:
  static constexpr int64_t kNodes = 160;
  static constexpr int32_t kParts = 4, kLimits = 4, kBound = 30;

  static size_t at(int64_t index) { return static_cast<size_t>(index); }

  FsNeighbours neighbours(int32_t weight_type, bool all) const {
    const void* weights = weight_type == FS_UINT8 ? static_cast<const void*>(bytes_.data()) : weights_.data();
    return {indptr_.data(),
            indices_.data(),
            all ? weights : nullptr,
            all ? order_.data() : nullptr,
            kNodes,
            static_cast<int64_t>(indices_.size()),
            type_code<Id>(),
            weight_type,
            0};
  }

  std::vector<int32_t> cluster(const FsNeighbours& graph, bool within, int32_t num_threads, Written& written) const {
    std::vector<int32_t> labels(kNodes), loads(node_weights_);
    std::iota(labels.begin(), labels.end(), 0);
    for (const int32_t rule : {FS_JOIN_HEAVIEST, FS_JOIN_HEAVIEST, FS_JOIN_ALIKE}) {
      std::vector<int32_t> other_labels(labels), other_loads(loads), open(kNodes, -1), other_open(open);
      const FsClustering spec{node_weights_.data(), within ? within_.data() : nullptr, kBound, rule, 17};
      int64_t moved = 0, first = 0, rest = 0;
      succeed(fs_cluster_nodes(&graph, &spec, 0, kNodes, num_threads, labels.data(), loads.data(), open.data(), &moved),
              "cluster_nodes");
      int32_t *theirs = other_labels.data(), *held = other_loads.data();
      succeed(fs_cluster_nodes(&graph, &spec, 0, 50, num_threads, theirs, held, other_open.data(), &first),
              "cluster_nodes, begun");
      succeed(fs_cluster_nodes(&graph, &spec, 50, kNodes, num_threads, theirs, held, other_open.data(), &rest),
              "cluster_nodes, ended");
      require(labels == other_labels && loads == other_loads && moved == first + rest, "cluster_nodes in two calls");
    }
    std::vector<int32_t> sums(kNodes, 0);
    for (int64_t node = 0; node < kNodes; ++node) sums[at(labels[at(node)])] += node_weights_[at(node)];
    require(sums == loads && *std::max_element(sums.begin(), sums.end()) <= kBound, "loads of clusters");
    written.add("cluster_nodes", labels);
    return labels;
  }

  void contract(const FsNeighbours& graph, const std::vector<int32_t>& labels, int32_t num_threads,
                Written& written) const {
    std::map<uint64_t, int64_t> expected;
    for (int64_t node = 0; node < kNodes; ++node) {
      for (int64_t entry = indptr_[at(node)]; entry < indptr_[at(node + 1)]; ++entry) {
        const int32_t own = labels[at(node)], other = labels[at(static_cast<int64_t>(indices_[at(entry)]))];
        const uint64_t key = static_cast<uint64_t>(own) << 32 | static_cast<uint32_t>(other);
        if (own < other) expected[key] += graph.weights == nullptr ? 1 : weights_[at(entry)];
      }
    }
    for (const int64_t num_slots : {int64_t{8}, int64_t{33}, int64_t{4000}}) {
      std::vector<uint64_t> keys(at(num_slots), ~uint64_t{0});
      std::vector<int32_t> weights(at(num_slots), 0);
      FsPairTable table{keys.data(), weights.data(), num_slots, 0, 0};
      succeed(fs_contract_links(&graph, 0, 70, num_threads, labels.data(), &table), "contract_links, begun");
      succeed(fs_contract_links(&graph, 70, kNodes, num_threads, labels.data(), &table), "contract_links, ended");
      std::map<uint64_t, int64_t> found;
      for (int64_t slot = 0; slot < num_slots; ++slot) {
        if (keys[at(slot)] != ~uint64_t{0}) found[keys[at(slot)]] = weights[at(slot)];
      }
      require(static_cast<int64_t>(found.size()) == table.num_used, "pairs of clusters");
      if (num_slots == 4000) require(found == expected && table.left_out == 0, "links between clusters");
      for (const auto& [key, weight] : found) require(weight <= expected[key], "a link counted twice");
      written.add("contract_links", keys);
    }
  }

  void refine(const FsNeighbours& graph, int32_t num_threads, Written& written) const {
    std::vector<int32_t> parts(kNodes);
    for (int64_t node = 0; node < kNodes; ++node) parts[at(node)] = static_cast<int32_t>(node % kParts);
    const std::vector<int64_t> capacities{45, 700, 25, 25}, floors{30, 100, 10, 10};
    const FsRefinement spec{nullptr,       indptr_.data(), kinds_.data(), capacities.data(),
                            floors.data(), kLimits,        kParts,        0.5};
    std::vector<int64_t> loads = held_by(parts);
    int64_t moved = 0, more = 0;
    succeed(fs_refine_parts(&graph, &spec, 0, 90, num_threads, parts.data(), loads.data(), &moved),
            "refine_parts, begun");
    succeed(fs_refine_parts(&graph, &spec, 90, kNodes, num_threads, parts.data(), loads.data(), &more),
            "refine_parts, ended");
    require(loads == held_by(parts) && moved + more > 0, "loads of parts");
    for (int32_t part = 0; part < kParts; ++part) {
      require(loads[at(part * kLimits)] >= 30 && loads[at(part * kLimits)] <= 45, "nodes of a part");
    }
    written.add("refine_parts", parts);
  }

  std::vector<int64_t> held_by(const std::vector<int32_t>& parts) const {
    std::vector<int64_t> loads(kParts * kLimits, 0);
    for (int64_t node = 0; node < kNodes; ++node) {
      int64_t* held = &loads[at(parts[at(node)] * kLimits)];
      held[0] += 1;
      held[1] += indptr_[at(node + 1)] - indptr_[at(node)];
      held[2] += kinds_[at(node)] & 1;
      held[3] += kinds_[at(node)] >> 1 & 1;
    }
    return loads;
  }

  void refuse() const {
    const FsNeighbours graph = neighbours(FS_INT32, true);
    std::vector<int32_t> labels(kNodes, 0), loads(kNodes, 1);
    int64_t moved = 0;
    FsClustering spec{node_weights_.data(), nullptr, 0, FS_JOIN_HEAVIEST, 0};
    refused(fs_cluster_nodes(&graph, &spec, 0, kNodes, 2, labels.data(), loads.data(), nullptr, &moved), "bound 0");
    spec.bound = kBound;
    FsNeighbours bad = graph;
    bad.weight_type = FS_FLOAT32;
    refused(fs_cluster_nodes(&bad, &spec, 0, kNodes, 2, labels.data(), loads.data(), nullptr, &moved), "weight_type");
    labels[7] = kNodes;
    refused(fs_cluster_nodes(&graph, &spec, 0, kNodes, 2, labels.data(), loads.data(), nullptr, &moved),
            "node 7 has label");
    FsPairTable table{nullptr, nullptr, 7, 0, 0};
    refused(fs_contract_links(&graph, 0, kNodes, 2, labels.data(), &table), "expected 8 slots or more");
  }

  std::vector<int64_t> indptr_, order_;
  std::vector<Id> indices_;
  std::vector<int32_t> weights_, node_weights_, within_;
  std::vector<uint8_t> bytes_, kinds_;
};

}  // namespace stress

#endif  // FS_TESTS_STRESS_CLUSTERS_H_
