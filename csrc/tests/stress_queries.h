// Membership queries under stress, and walks that ask them: hashed rows at the usual load and with every bucket full,
// node2vec with and without weights.
#ifndef FS_TESTS_STRESS_QUERIES_H_
#define FS_TESTS_STRESS_QUERIES_H_

#include <algorithm>

#include "fastsample_transit.h"
#include "stress_basics.h"
#include "stress_sampling.h"

namespace stress {

template <typename Id>
class Queries {
 public:
  explicit Queries(const DrawnGraph<Id>& graph) : graph_(graph), view_(graph.view(kDraws[0])) {}

  void run(int32_t num_threads, Written& written) const {
    constexpr int32_t kRoom = 64 / static_cast<int32_t>(sizeof(Id));
    ask(build(kRoom, num_threads, written), written);
    const Tables tables = build(2 * kRoom / 3, num_threads, written);
    ask(tables, written);
    walk(tables, false, num_threads, written);
    walk(tables, true, num_threads, written);
    refuse(tables);
  }

 private:
  struct alignas(64) Line {
    Id ids[64 / sizeof(Id)];
  };
  struct Tables {
    std::vector<uint64_t> nodes;
    std::vector<Line> buckets;
    int32_t ids_per_bucket, num_threads;

    FsHashedRows view() const {
      return {const_cast<uint64_t*>(nodes.data()), const_cast<Line*>(buckets.data()),
              static_cast<int64_t>(buckets.size()), ids_per_bucket, num_threads};
    }
  };

  Tables build(int32_t ids_per_bucket, int32_t num_threads, Written& written) const {
    int64_t num_buckets = 0;
    succeed(fs_hashed_rows_size(&view_, ids_per_bucket, &num_buckets), "hashed_rows_size");
    Tables tables = {std::vector<uint64_t>(static_cast<size_t>(2 * kNodes)),
                     std::vector<Line>(static_cast<size_t>(num_buckets)), ids_per_bucket, num_threads};
    const FsHashedRows out = tables.view();
    succeed(fs_hashed_rows(&view_, &out), "hashed_rows");
    written.add("hashed_rows", tables.nodes);
    written.add("hashed_rows", tables.buckets);
    return tables;
  }

  bool holds(int64_t row, int64_t vertex) const {
    const auto begin = graph_.indices.begin() + graph_.indptr[static_cast<size_t>(row)];
    const auto end = graph_.indices.begin() + graph_.indptr[static_cast<size_t>(row) + 1];
    return std::find(begin, end, vertex) != end;
  }

  // The neighbours of every tenth row, as many vertices besides, and a row that is none.
  void ask(const Tables& tables, Written& written) const {
    std::vector<int64_t> rows, vertices;
    for (int64_t row = 0; row < kNodes; row += row < 20 ? 1 : 10) {
      for (int64_t e = graph_.indptr[static_cast<size_t>(row)]; e < graph_.indptr[static_cast<size_t>(row) + 1]; ++e) {
        for (int64_t vertex : {static_cast<int64_t>(graph_.indices[static_cast<size_t>(e)]), (e * 7919) % kNodes}) {
          rows.push_back(row);
          vertices.push_back(vertex);
        }
      }
      rows.push_back(FS_NULL_NODE);
      vertices.push_back(row);
    }
    std::vector<uint8_t> answers(rows.size());
    const FsHashedRows view = tables.view();
    const FsEdgeQueries queries = {rows.data(), vertices.data(), answers.data(), static_cast<int64_t>(rows.size())};
    succeed(fs_has_edges(&view_, &view, &queries), "has_edges");
    for (size_t i = 0; i < rows.size(); ++i) {
      require(answers[i] == (rows[i] >= 0 && holds(rows[i], vertices[i])), "has_edges: a wrong answer");
    }
    written.add("has_edges", answers);
  }

  void walk(const Tables& tables, bool weighted, int32_t num_threads, Written& written) const {
    constexpr int64_t kWalks = 700, kSteps = 6;
    std::vector<char> slots(static_cast<size_t>(kEdges) * (sizeof(Id) == 4 ? 12 : 24));
    const FsEdgeWeights weights = {graph_.indptr.data(), graph_.skewed.data(), kNodes, kEdges, FS_FLOAT64, num_threads};
    succeed(fs_walk_slots(&weights, graph_.indices.data(), type_code<Id>(), slots.data(), nullptr, nullptr),
            "walk_slots");
    FsTransitTables needed = {};
    needed.walk_slots = weighted ? slots.data() : nullptr;
    needed.hashed_nodes = tables.nodes.data();
    needed.hashed_buckets = tables.buckets.data();
    const std::vector<int64_t> ones(static_cast<size_t>(kSteps), 1);
    const int64_t params[] = {int64_t{1} << 30, int64_t{1} << 31, int64_t{1} << 32};  // p 2, q 0.5
    FsTransitApp app = {};
    app.sample_sizes = app.num_transits = ones.data();
    app.params = params;
    app.num_steps = kSteps;
    app.num_roots = 1;
    app.next_kind = FS_NEXT_NODE2VEC;
    std::vector<int64_t> roots;
    for (int64_t i = 0; i < kWalks; ++i) roots.push_back((i * 7) % kNodes - 1);  // one is none
    FsTransitRequest request = {};
    request.roots = roots.data();
    request.num_samples = kWalks;
    request.block_samples = 150;
    request.rng_seed = 3;
    request.num_threads = num_threads;
    FsTransitFailure failure;
    FsTransitResult* result = nullptr;
    succeed(fs_transit_sample(&view_, &needed, &app, &request, &failure, &result), "node2vec");
    for (int64_t at = 0; at < result->num_vertices; ++at) {
      const int64_t from = at % (kSteps + 1) == 0 ? FS_NULL_NODE : result->vertices[at - 1], to = result->vertices[at];
      require(at % (kSteps + 1) == 0 || to < 0 || holds(from, to), "node2vec: a step that is no edge");
    }
    written.add("node2vec", result->vertices, result->num_vertices);
    fs_transit_free(result);
  }

  void refuse(const Tables& tables) const {
    FsHashedRows view = tables.view();
    view.num_buckets -= 1;
    refused(fs_hashed_rows(&view_, &view), "buckets; the graph needs");
    const int64_t row = kNodes, vertex = 0;
    uint8_t answer = 0;
    const FsEdgeQueries outside = {&row, &vertex, &answer, 1};
    refused(fs_has_edges(&view_, &view, &outside), "2200");
    std::vector<Id> damaged = graph_.indices;
    damaged[static_cast<size_t>(kEdges / 2)] = -3;
    FsGraph graph = view_;
    graph.indices = damaged.data();
    const Tables own = tables;
    const FsHashedRows out = own.view();
    refused(fs_hashed_rows(&graph, &out), "negative source id -3");
  }

  const DrawnGraph<Id>& graph_;
  const FsGraph view_;
};

}  // namespace stress

#endif  // FS_TESTS_STRESS_QUERIES_H_
