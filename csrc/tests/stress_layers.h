// Collective applications under stress: layers by LADIES, FastGCN and uniformly, with and without weights, many samples
// at once; what they record; an application that fails; roots that are refused.
#ifndef FS_TESTS_STRESS_LAYERS_H_
#define FS_TESTS_STRESS_LAYERS_H_

#include "fastsample_transit.h"
#include "stress_basics.h"
#include "stress_sampling.h"

namespace stress {

template <typename Id>
class Layers {
 public:
  explicit Layers(const DrawnGraph<Id>& graph) : graph_(graph) {
    for (int64_t i = 0; i < kSamples * kRoots; ++i) roots_.push_back(i % 11 == 0 ? FS_NULL_NODE : i * 37 % kNodes);
    for (int64_t node = 0; node < kNodes; ++node) {
      nodes_.push_back(node);
      others_.push_back((node * 5 + 1) % kNodes);
      thresholds_.push_back(static_cast<uint32_t>(node) * 1900000u);
      scales_.push_back(1.0 / static_cast<double>(node + 1));
    }
    global_ = {reinterpret_cast<int64_t>(nodes_.data()),  kNodes, reinterpret_cast<int64_t>(thresholds_.data()), kNodes,
               reinterpret_cast<int64_t>(others_.data()), kNodes};
  }

  void run(int32_t num_threads, Written& written) const {
    for (const Draw& draw : {kDraws[0], kDraws[4]}) {  // without weights, and with skewed ones
      const FsGraph view = graph_.view(draw);
      sample(view, {FS_NEXT_RANKED, 0, {nullptr, nullptr, FS_RECORD_TO_UNION, 1, FS_EDGES_BY_COLUMN, 1}}, num_threads,
             written);
      sample(view, {FS_NEXT_GLOBAL, 0, {scales_.data(), scales_.data(), FS_RECORD_TO_NEW, 1, FS_EDGES_SCALED, 0}},
             num_threads, written);
      sample(view, {FS_NEXT_LAYER, 1, {nullptr, nullptr, FS_RECORD_WITHIN, 0, FS_EDGES_UNWEIGHTED, 0}}, num_threads,
             written);
    }
    fails(num_threads);
  }

 private:
  static constexpr int64_t kSamples = 40, kRoots = 5, kSteps = 3, kPicks = 12;

  struct Kind {
    FsNextKind next;
    int32_t until_done;
    FsCollectiveSpec spec;
  };

  FsTransitApp app_of(const Kind& kind) const {
    static const int64_t sizes[] = {kPicks, kPicks, kPicks, kPicks, kPicks, kPicks, kPicks, kPicks};
    static const uint8_t unique[] = {1, 0, 1, 1, 1, 1, 1, 1};
    static const int64_t final_size[] = {40};
    FsTransitApp app = {};
    app.sample_sizes = app.num_transits = sizes;
    app.unique = unique;
    app.params = kind.next == FS_NEXT_GLOBAL ? global_.data() : final_size;
    app.num_steps = kind.until_done != 0 ? 8 : kSteps;
    app.num_roots = kRoots;
    app.max_attempts = 4;
    app.next_kind = kind.next;
    app.sampling_type = FS_COLLECTIVE;
    app.until_done = kind.until_done;
    return app;
  }

  FsTransitRequest request_of(int32_t num_threads) const {
    FsTransitRequest request = {};
    request.roots = roots_.data();
    request.num_samples = kSamples;
    request.rng_seed = 5;
    request.num_threads = num_threads;
    return request;
  }

  void sample(const FsGraph& view, const Kind& kind, int32_t num_threads, Written& written) const {
    const FsTransitTables tables = {};
    const FsTransitApp app = app_of(kind);
    const FsTransitRequest request = request_of(num_threads);
    FsTransitFailure failure;
    FsCollectiveResult* result = nullptr;
    succeed(fs_collective_sample(&view, &tables, &app, &kind.spec, &request, &failure, &result), "collective_sample");
    written.add("collective_sample", result->samples.vertices, result->samples.num_vertices);
    for (int64_t s = 0; s < kSamples; ++s) {
      const FsRecordedEdges& edges = result->edges[s];
      written.add("collective_sample", static_cast<const Id*>(edges.nodes), edges.num_nodes);
      written.add("collective_sample", static_cast<const Id*>(edges.indices), edges.num_edges);
      written.add("collective_sample", edges.edge_ids, edges.num_edges);
      written.add("collective_sample", static_cast<const float*>(edges.edge_weights), edges.num_weights);
      for (int64_t e = 0; e < edges.num_edges; ++e) {
        require(static_cast<const Id*>(edges.indices)[e] < edges.num_nodes, "collective_sample: a source of no node");
      }
    }
    fs_collective_free(result);
  }

  void fails(int32_t num_threads) const {
    const FsGraph view = graph_.view(kDraws[0]);
    const FsTransitTables tables = {};
    const Kind kind = {FS_NEXT_CALLBACK, 0, {}};
    FsTransitApp app = app_of(kind);
    FsTransitRequest request = request_of(num_threads);
    FsTransitFailure failure;
    FsCollectiveResult* result = nullptr;
    app.next = [](const FsStepTask* task, int64_t begin, int64_t end) -> int32_t {
      for (int64_t i = begin; i < end; ++i) task->out[task->slots == nullptr ? i : task->slots[i]] = kNodes + i;
      return 0;
    };
    require(fs_collective_sample(&view, &tables, &app, &kind.spec, &request, &failure, &result) == FS_APP_ERROR,
            "a node outside the graph was taken");
    require(failure.fault == FS_APP_BAD_NODE && failure.step == 0 && failure.sample == 0, "another failure");
    const int64_t outside = kNodes;
    request.roots = &outside;
    request.num_samples = app.num_roots = 1;
    refused(fs_collective_sample(&view, &tables, &app, &kind.spec, &request, &failure, &result), "node id 2200");
  }

  const DrawnGraph<Id>& graph_;
  std::vector<int64_t> roots_, nodes_, others_;
  std::vector<uint32_t> thresholds_;
  std::vector<double> scales_;
  std::vector<int64_t> global_;
};

}  // namespace stress

#endif  // FS_TESTS_STRESS_LAYERS_H_
