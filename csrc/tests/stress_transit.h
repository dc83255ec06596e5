// Individual applications under stress: every built-in kind, schedules, callbacks that end and callbacks that fail.
#ifndef FS_TESTS_STRESS_TRANSIT_H_
#define FS_TESTS_STRESS_TRANSIT_H_

#include "fastsample_transit.h"
#include "stress_sampling.h"

namespace stress {

// A `next` of the test's own: ends a sample now and then, strays into what is no node if params[0] is not 0.
template <typename Id>
int32_t test_next(const FsStepTask* task, int64_t begin, int64_t end) {
  for (int64_t at = begin; at < end; ++at) {
    const int64_t slot = task->slots == nullptr ? at : task->slots[at];
    const int64_t sample = slot / task->picks, n = slot % task->picks;
    const int64_t transit = task->transits[sample * task->transit_stride + n / task->sample_size];
    const int64_t first = task->graph->indptr[transit], degree = task->graph->indptr[transit + 1] - first;
    const uint64_t mixed =
        (static_cast<uint64_t>(task->sample_ids[sample] * 31 + n) + task->key0) * 0x9E3779B97F4A7C15u;
    if (task->params[0] != 0 && mixed % 1000 == 7) {
      *task->failed_slot = slot;
      return 1;
    }
    const bool ends = degree == 0 || mixed % 8 == 0;
    const Id* row = static_cast<const Id*>(task->graph->indices) + first;
    task->out[sample * task->out_stride + n] = ends ? FS_NULL_NODE : row[(mixed >> 8) % static_cast<uint64_t>(degree)];
  }
  return 0;
}

template <typename Id>
class Applications {
 public:
  explicit Applications(const DrawnGraph<Id>& graph) : graph_(graph) {
    view_ = {graph.indptr.data(), graph.indices.data(), nullptr, nullptr, nullptr, kNodes, 0, kEdges, type_code<Id>()};
    for (int64_t i = 0; i < kSamples * kMostRoots; ++i) roots_.push_back((i * 7) % kNodes - (i % 13 == 0));
    for (int64_t k = 1; k < 60; ++k) survival_.push_back(INT64_MAX / 60 * (60 - k));
  }

  void run(int32_t num_threads, Written& written) const {
    std::vector<char> slots(static_cast<size_t>(kEdges) * (sizeof(Id) == 4 ? 12 : 24));
    std::vector<double> totals(static_cast<size_t>(kNodes)), maxima(totals.size());
    const FsEdgeWeights weights = {graph_.indptr.data(), graph_.skewed.data(), kNodes, kEdges, FS_FLOAT64, num_threads};
    succeed(fs_walk_slots(&weights, graph_.indices.data(), type_code<Id>(), slots.data(), totals.data(), maxima.data()),
            "walk_slots");
    written.add("walk_slots", slots);
    written.add("walk_slots", totals);
    written.add("walk_slots", maxima);
    for (const int32_t schedule : {FS_SCHEDULE_AUTO, FS_SCHEDULE_TRANSIT, FS_SCHEDULE_TRANSIT_FLAT}) {
      const How how = {schedule, num_threads, slots.data()};
      sample(walks(FS_NEXT_UNIFORM), how, written);
      sample(walks(FS_NEXT_WEIGHTED), how, written);
      sample(lengths(), how, written);
      sample(from_roots(), how, written);
      sample(hops(2, 9, FS_NEXT_WEIGHTED, true), how, written);
      sample(hops(1, 40, FS_NEXT_UNIFORM, false), how, written);
      sample(hops(3, FS_ALL_NEIGHBORS, FS_NEXT_ALL, false), how, written);
      sample(own(false), how, written);
      fail(own(true), how);
    }
  }

 private:
  static constexpr int64_t kSamples = 500, kMostRoots = 4;

  struct How {
    int32_t schedule, num_threads;
    const char* slots;
  };
  // An application, and the arrays that it points to.
  struct Made {
    FsTransitApp app = {};
    std::vector<int64_t> sizes, transits, params = {0, 0};
    std::vector<uint8_t> unique;
  };

  static Made walks(int32_t kind) {
    Made made;
    made.sizes.assign(12, 1);
    made.transits = made.sizes;
    made.app.num_roots = 1;
    made.app.next_kind = kind;
    return made;
  }
  Made lengths() const {
    Made made = walks(FS_NEXT_PPR);
    made.sizes.assign(survival_.size() + 2, 1);
    made.transits = made.sizes;
    made.params = {static_cast<int64_t>(reinterpret_cast<uintptr_t>(survival_.data())),
                   static_cast<int64_t>(survival_.size())};
    made.app.state_words = 1;
    made.app.until_done = 1;
    return made;
  }
  static Made from_roots() {
    Made made = walks(FS_NEXT_MULTI_RW);
    made.app.num_roots = kMostRoots;
    made.app.state_words = kMostRoots + 1;
    made.params = {1, 0};
    return made;
  }
  static Made hops(int64_t num_roots, int64_t size, int32_t kind, bool unique) {
    Made made = walks(kind);
    made.app.num_roots = num_roots;
    made.sizes = {size};
    made.transits = {num_roots};
    if (unique) made.unique = {1};
    made.app.max_attempts = 5;
    return made;
  }
  static Made own(bool fails) {
    Made made = walks(FS_NEXT_CALLBACK);
    made.sizes.assign(300, 1);
    made.transits.assign(300, 2);
    made.params = {fails, 0};
    made.app.num_roots = 2;
    made.app.next = test_next<Id>;
    made.app.until_done = 1;
    return made;
  }

  FsStatus call(Made& made, const How& how, FsTransitFailure* failure, FsTransitResult** result) const {
    FsTransitTables tables = {};
    tables.walk_slots = how.slots;
    made.app.num_steps = static_cast<int64_t>(made.sizes.size());
    made.app.sample_sizes = made.sizes.data();
    made.app.num_transits = made.transits.data();
    made.app.unique = made.unique.empty() ? nullptr : made.unique.data();
    made.app.params = made.params.data();
    FsTransitRequest request = {};
    request.roots = roots_.data();
    request.num_samples = kSamples;
    request.block_samples = 60;
    request.rng_seed = 5;
    request.num_threads = how.num_threads;
    request.schedule = how.schedule;
    return fs_transit_sample(&view_, &tables, &made.app, &request, failure, result);
  }

  void sample(Made made, const How& how, Written& written) const {
    FsTransitFailure failure;
    FsTransitResult* result = nullptr;
    succeed(call(made, how, &failure, &result), "transit_sample");
    for (int64_t at = 0; at < result->num_vertices; ++at) {
      require(result->vertices[at] >= FS_NULL_NODE && result->vertices[at] < kNodes, "transit_sample: no vertex");
    }
    written.add("transit_sample", result->vertices, result->num_vertices);
    if (result->offsets != nullptr) written.add("transit_sample", result->offsets, kSamples + 1);
    fs_transit_free(result);
  }

  void fail(Made made, const How& how) const {
    FsTransitFailure failure;
    FsTransitResult* result = nullptr;
    require(call(made, how, &failure, &result) == FS_APP_ERROR && result == nullptr, "transit_sample: no failure");
    require(failure.fault == FS_APP_RAISED && failure.function == FS_IN_NEXT, "transit_sample: another failure");
  }

  const DrawnGraph<Id>& graph_;
  FsGraph view_;
  std::vector<int64_t> roots_, survival_;
};

}  // namespace stress

#endif  // FS_TESTS_STRESS_TRANSIT_H_
