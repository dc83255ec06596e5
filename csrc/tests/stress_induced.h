// Induced subgraphs under stress: of every node, of some, of none, of nodes that are drawn, apart and as a union; what
// has to be refused in the middle of the work.
#ifndef FS_TESTS_STRESS_INDUCED_H_
#define FS_TESTS_STRESS_INDUCED_H_

#include <numeric>

#include "fastsample_subgraph.h"
#include "stress_basics.h"
#include "stress_sampling.h"

namespace stress {

template <typename Id>
class Induced {
 public:
  explicit Induced(const DrawnGraph<Id>& graph) : graph_(graph), view_(graph.view(kDraws[0])) {}

  void run(int32_t num_threads, Written& written) const {
    std::vector<Id> nodes(static_cast<size_t>(kNodes));
    std::iota(nodes.begin(), nodes.end(), Id{0});
    induce(nodes, 0, num_threads, written);
    const Batch whole = induce(nodes, 1, num_threads, written);
    require(whole->hops[0].num_edges == kEdges, "induced_subgraph: all nodes have other edges than the graph");
    for (int64_t stride : {2, 3, 700}) {
      std::vector<Id> some;
      for (int64_t i = 0; i < kNodes; i += stride) some.push_back(static_cast<Id>(i * 7 % kNodes));
      const Batch part = induce(some, 1, num_threads, written);
      check(some, part->hops[0]);
    }
    induce({}, 1, num_threads, written);
    refuse(num_threads);
    for (int64_t count : {1, 5}) {
      for (const int32_t structure : {FS_FRONTIER_SUMS, FS_FRONTIER_DASHBOARD}) {
        sample(view_, count, structure, num_threads, false, written);
        sample(view_, count, structure, num_threads, true, written);
      }
    }
  }

 private:
  Batch induce(const std::vector<Id>& nodes, int32_t edge_ids, int32_t num_threads, Written& written) const {
    FsMiniBatch* batch = nullptr;
    const int64_t count = static_cast<int64_t>(nodes.size());
    succeed(fs_induced_subgraph(&view_, nodes.data(), count, edge_ids, num_threads, &batch), "induced_subgraph");
    const FsHop& hop = batch->hops[0];
    require(hop.num_dst == count && hop.num_src == count, "induced_subgraph: wrong counts");
    written.add("induced_subgraph", hop.indptr, count + 1);
    written.add("induced_subgraph", static_cast<const Id*>(hop.indices), hop.num_edges);
    if (edge_ids != 0) written.add("induced_subgraph", hop.edge_ids, hop.num_edges);
    return Batch(batch);
  }

  void check(const std::vector<Id>& nodes, const FsHop& hop) const {
    const Id* sources = static_cast<const Id*>(hop.indices);
    for (int64_t row = 0; row < hop.num_dst; ++row) {
      const size_t node = static_cast<size_t>(nodes[static_cast<size_t>(row)]);
      for (int64_t e = hop.indptr[row]; e < hop.indptr[row + 1]; ++e) {
        const int64_t position = hop.edge_ids[e];
        require(position >= graph_.indptr[node] && position < graph_.indptr[node + 1] &&
                    graph_.indices[static_cast<size_t>(position)] == nodes[static_cast<size_t>(sources[e])],
                "induced_subgraph: an edge that the graph lacks");
      }
    }
  }

  // Edges of drawn nodes; every third node is a loss node.
  void sample(const FsGraph& view, int64_t count, int32_t structure, int32_t num_threads, bool join,
              Written& written) const {
    const uint64_t numbers[] = {7, 1, 7, 1ull << 63, 2};
    std::vector<Id> roots(static_cast<size_t>(kNodes));
    std::iota(roots.begin(), roots.end(), Id{0});
    for (size_t i = 0; i < roots.size(); i += 50) roots[i] = 0;  // the hub, for which a dashboard has to grow
    std::vector<uint8_t> flags(roots.size());
    for (size_t node = 0; node < flags.size(); node += 3) flags[node] = 1;
    FsSubgraphSpec spec = {};
    spec.budget = 700;
    spec.frontier_size = 90;
    spec.structure = structure;
    spec.eta = 1.05;
    spec.rng_seed = 5;
    spec.num_threads = num_threads;
    FsSubgraphTables tables = {};
    tables.roots = roots.data();
    tables.num_roots = kNodes;
    std::vector<FsSubgraph> parts(static_cast<size_t>(count));
    FsSubgraph joined;
    succeed(fs_sample_subgraphs(&view, &spec, &tables, numbers, count, flags.data(), 1, parts.data(),
                                join ? &joined : nullptr),
            "sample_subgraphs");
    for (const FsSubgraph& part : parts) written.add("sample_subgraphs", &part.drawn.num_visits, 5);
    if (join) {
      check_union(parts, joined, structure == FS_FRONTIER_DASHBOARD && count > 1);
      record(joined, flags, written);
      fs_subgraphs_free(&joined, 1);
    } else {
      for (const FsSubgraph& part : parts) record(part, flags, written);
    }
    fs_subgraphs_free(parts.data(), count);
    refuse_damage(spec, tables, {numbers, numbers + count}, join);
  }

  // Found while nodes are drawn, and where draws read no edge: when subgraphs have some of their arrays.
  void refuse_damage(FsSubgraphSpec spec, FsSubgraphTables tables, const std::vector<uint64_t>& numbers,
                     bool join) const {
    std::vector<Id> damaged(graph_.indices.size(), static_cast<Id>(-3));
    FsGraph broken = view_;
    broken.indices = damaged.data();
    std::vector<int64_t> sums = {0};
    for (int64_t i = 0; i < tables.num_roots; ++i) {
      const size_t root = static_cast<size_t>(static_cast<const Id*>(tables.roots)[i]);
      sums.push_back(sums.back() + graph_.indptr[root + 1] - graph_.indptr[root]);
    }
    tables.degree_sums = sums.data();
    std::vector<FsSubgraph> parts(numbers.size());
    FsSubgraph joined;
    for (const int32_t method : {FS_SUBGRAPH_FRONTIER, FS_SUBGRAPH_NODE}) {
      spec.method = method;
      refused(fs_sample_subgraphs(&broken, &spec, &tables, numbers.data(), static_cast<int64_t>(numbers.size()),
                                  nullptr, 1, parts.data(), join ? &joined : nullptr),
              "the negative source id -3");
    }
  }

  // Its counts are sums, none of them of zeros where some dashboards are; its parts have no arrays any more.
  static void check_union(const std::vector<FsSubgraph>& parts, const FsSubgraph& joined, bool has_dashboards) {
    for (const auto count : {&FsSubgraphNodes::num_visits, &FsSubgraphNodes::steps, &FsSubgraphNodes::probes,
                             &FsSubgraphNodes::cleanups, &FsSubgraphNodes::growths}) {
      const auto add = [&](int64_t sum, const FsSubgraph& part) { return sum + part.drawn.*count; };
      require(joined.drawn.*count == std::accumulate(parts.begin(), parts.end(), int64_t{0}, add),
              "sample_subgraphs: counts of the union are not the sums of its parts'");
      require(joined.drawn.*count > 0 || !has_dashboards, "sample_subgraphs: dashboards that count nothing");
    }
    for (const FsSubgraph& part : parts) {
      require(part.drawn.nodes == nullptr && part.edges.indptr == nullptr && part.edges.indices == nullptr &&
                  part.edges.edge_ids == nullptr,
              "sample_subgraphs: a part of a union keeps its arrays");
    }
  }

  void record(const FsSubgraph& part, const std::vector<uint8_t>& flags, Written& written) const {
    const Id* drawn = static_cast<const Id*>(part.drawn.nodes);
    const std::vector<Id> nodes(drawn, drawn + part.drawn.num_nodes);
    for (int64_t i = 0; i < part.drawn.num_nodes; ++i) {
      const uint8_t is_loss = flags[static_cast<size_t>(nodes[static_cast<size_t>(i)])];
      require(is_loss == (i < part.num_loss ? 1 : 0), "sample_subgraphs: loss nodes are not first");
    }
    check(nodes, part.edges);
    written.add("sample_subgraphs", nodes);
    written.add("sample_subgraphs", part.edges.indptr, part.edges.num_dst + 1);
    written.add("sample_subgraphs", static_cast<const Id*>(part.edges.indices), part.edges.num_edges);
    written.add("sample_subgraphs", part.edges.edge_ids, part.edges.num_edges);
  }

  void refuse(int32_t num_threads) const {
    FsMiniBatch* batch = nullptr;
    const Id repeated[] = {5, 7, 5}, outside[] = {5, static_cast<Id>(kNodes)}, hub[] = {0, 1};
    refused(fs_induced_subgraph(&view_, repeated, 3, 0, num_threads, &batch), "node 5 is at positions 0 and 2");
    refused(fs_induced_subgraph(&view_, outside, 2, 0, num_threads, &batch), "id 2200 at position 1");
    std::vector<Id> damaged = graph_.indices;
    damaged[static_cast<size_t>(kHubEdges - 1)] = -3;
    FsGraph view = view_;
    view.indices = damaged.data();
    refused(fs_induced_subgraph(&view, hub, 2, 1, num_threads, &batch), "the negative source id -3");
    require(batch == nullptr, "induced_subgraph: refused, but with a result");
  }

  const DrawnGraph<Id>& graph_;
  const FsGraph view_;
};

}  // namespace stress

#endif  // FS_TESTS_STRESS_INDUCED_H_
