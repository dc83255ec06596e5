// collective_sample: samples of a collective application, each made by one thread (collective_engine.h).
#include "collective_sample.h"

#include <string.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "batch_memory.h"
#include "collective_engine.h"
#include "transit_call.h"
#include "worker_pool.h"

namespace fs {
namespace {

constexpr const char* kOperation = "collective_sample";

template <typename Id>
__attribute__((noinline)) CollectiveEngine<Id>& thread_engine() {
  static thread_local CollectiveEngine<Id> engine;
  return engine;
}

FsStatus check_spec(const CollectiveCall& call) {
  const FsCollectiveSpec& spec = call.spec;
  if (spec.record < FS_RECORD_NONE || spec.record > FS_RECORD_WITHIN) {
    return fail(FS_INVALID_ARGUMENT, "%s: record %d; expected 0 (none) to 3 (within)", kOperation, spec.record);
  }
  if (spec.edge_scale < FS_EDGES_UNWEIGHTED || spec.edge_scale > FS_EDGES_COLUMNS) {
    return fail(FS_INVALID_ARGUMENT, "%s: edge scale %d; expected 0 (unweighted) to 3 (columns)", kOperation,
                spec.edge_scale);
  }
  const bool by_column = spec.edge_scale == FS_EDGES_BY_COLUMN || spec.edge_scale == FS_EDGES_COLUMNS;
  if (by_column && (spec.ranked == 0 || spec.record == FS_RECORD_WITHIN)) {
    return fail(FS_INVALID_ARGUMENT,
                "%s: edges weighted by columns without ranked rows; expected ranked and edges of "
                "steps",
                kOperation);
  }
  const bool has_scales = spec.row_scale != nullptr && spec.column_scale != nullptr;
  if (spec.edge_scale == FS_EDGES_SCALED && (!has_scales || spec.record == FS_RECORD_WITHIN)) {
    return fail(FS_INVALID_ARGUMENT, "%s: scaled edges need row_scale, column_scale and edges of steps", kOperation);
  }
  return FS_OK;
}

FsStatus check_app(const CollectiveCall& call) {
  const FsTransitApp& app = call.app;
  const int32_t kind = app.next_kind;
  const bool is_known =
      kind == FS_NEXT_CALLBACK || (kind >= FS_NEXT_LAYER && kind <= FS_NEXT_RANKED && kind != FS_NEXT_ALL);
  if (!is_known || app.sampling_type != FS_COLLECTIVE) {
    return fail(FS_INVALID_ARGUMENT,
                "%s: next kind %d of sampling type %d; expected 0, 6, 8 or 9 of type 1 (collective)", kOperation, kind,
                app.sampling_type);
  }
  if (kind == FS_NEXT_CALLBACK && app.next == nullptr) {
    return fail(FS_INVALID_ARGUMENT, "%s: next kind 0 (callback) without next", kOperation);
  }
  if (kind == FS_NEXT_RANKED && call.spec.ranked == 0) {
    return fail(FS_INVALID_ARGUMENT, "%s: next kind 9 (ranked) without ranked rows; expected ranked 1", kOperation);
  }
  for (int64_t k = 0; k < app.num_steps; ++k) {
    if (app.sample_sizes[k] < 0) {
      return fail(FS_INVALID_ARGUMENT, "%s: %lld picks at step %lld; expected 0 or more", kOperation,
                  static_cast<long long>(app.sample_sizes[k]), static_cast<long long>(k));
    }
  }
  return FS_OK;
}

FsStatus check_roots(const CollectiveCall& call) {
  const int64_t count = call.request.num_samples * call.app.num_roots;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t root = call.request.roots[i];
    if (root < FS_NULL_NODE || root >= call.graph.num_rows) {
      return refuse(FS_REFUSED_ROW, kOperation, {{root, call.graph.num_rows - 1}});
    }
  }
  return FS_OK;
}

struct FreeResult {
  void operator()(FsCollectiveResult* result) const { fs_collective_free(result); }
};
using OwnedResult = std::unique_ptr<FsCollectiveResult, FreeResult>;

// The graph's fault of the first sample that meets one.
struct FirstBadSource {
  std::mutex mutex;
  int64_t sample = INT64_MAX, source = 0;

  void take(const BadSource& found, int64_t at) {
    const std::lock_guard<std::mutex> hold(mutex);
    if (at >= sample) return;
    sample = at;
    source = found.id;
  }
};

// Vertices of a sample that are returned: with until_done, without the steps behind the last one that has a pick.
struct Kept {
  int64_t num_steps, num_vertices;
};

Kept kept_of(const FsTransitApp& app, const std::vector<int64_t>& vertices) {
  const int64_t count = static_cast<int64_t>(vertices.size());
  if (app.until_done == 0) return {app.num_steps, count};
  int64_t last = count;
  while (last > app.num_roots && vertices[static_cast<size_t>(last) - 1] < 0) --last;
  Kept kept = {0, app.num_roots};
  while (kept.num_vertices < last) kept.num_vertices += app.sample_sizes[kept.num_steps++];
  return kept;
}

void put_together(const CollectiveCall& call, const std::vector<std::vector<int64_t>>& grown, FsCollectiveResult* out) {
  FsTransitResult& samples = out->samples;
  std::vector<Kept> kept;
  for (const std::vector<int64_t>& vertices : grown) {
    kept.push_back(kept_of(call.app, vertices));
    samples.num_vertices += kept.back().num_vertices;
    samples.num_steps = std::max(samples.num_steps, kept.back().num_steps);
  }
  samples.width = -1;
  samples.vertices = take_array<int64_t>(samples.num_vertices);
  samples.offsets = take_array<int64_t>(samples.num_samples + 1);
  samples.offsets[0] = 0;
  for (size_t s = 0; s < grown.size(); ++s) {
    samples.offsets[s + 1] = samples.offsets[s] + kept[s].num_vertices;
    std::copy_n(grown[s].begin(), kept[s].num_vertices, samples.vertices + samples.offsets[s]);
  }
  if (call.app.until_done != 0) return;
  samples.num_steps = call.app.num_steps;
  samples.width = call.app.num_roots;
  for (int64_t k = 0; k < call.app.num_steps; ++k) samples.width += call.app.sample_sizes[k];
  give_block(samples.offsets);
  samples.offsets = nullptr;
}

template <typename Id>
FsStatus sample_all(const CollectiveCall& call, FsTransitFailure* failure, FsCollectiveResult** out) {
  OwnedResult result(take_array<FsCollectiveResult>(1));
  memset(result.get(), 0, sizeof(FsCollectiveResult));
  const int64_t count = result->samples.num_samples = call.request.num_samples;
  result->edges = take_array<FsRecordedEdges>(count);
  std::fill_n(result->edges, count, FsRecordedEdges{});
  std::vector<std::vector<int64_t>> grown(static_cast<size_t>(count));
  FailureBoard failures;
  FirstBadSource bad;
  const int threads = static_cast<int>(std::min<int64_t>(call.request.num_threads, count));
  share_runs(count, 1, threads, [&](int64_t sample, int64_t) {
    try {
      const auto found = thread_engine<Id>().grow(call, sample);
      result->edges[sample] = found.edges;
      grown[static_cast<size_t>(sample)] = found.vertices;
    } catch (const AppFailure& found) {
      failures.report(found.line);
    } catch (const BadSource& found) {
      bad.take(found, sample);
    }
  });
  if (bad.sample != INT64_MAX) {
    const long long found = bad.source;
    return found < 0 ? refuse(FS_REFUSED_NEGATIVE_SOURCE, kOperation, {{found}})
                     : refuse(FS_REFUSED_SOURCE, kOperation, {{found, call.graph.num_rows - 1}});
  }
  if (!failures.is_empty()) {
    *failure = failures.first();
    return app_failed(*failure, call.graph.num_rows);
  }
  put_together(call, grown, result.get());
  *out = result.release();
  return FS_OK;
}

}  // namespace

size_t thread_collective_bytes() { return thread_engine<int32_t>().bytes() + thread_engine<int64_t>().bytes(); }

}  // namespace fs

extern "C" {

FsStatus fs_collective_sample(const FsGraph* graph, const FsTransitTables* tables, const FsTransitApp* app,
                              const FsCollectiveSpec* spec, const FsTransitRequest* request, FsTransitFailure* failure,
                              FsCollectiveResult** out) {
  *out = nullptr;
  *failure = {};
  const fs::CollectiveCall call = {*graph, *tables, *app, *spec, *request};
  FsStatus status = fs::check_threads(fs::kOperation, request->num_threads);
  if (status == FS_OK) status = fs::check_spec(call);
  if (status == FS_OK) status = fs::check_app(call);
  if (status == FS_OK) status = fs::check_roots(call);
  if (status != FS_OK) return status;
  return fs::guarded(fs::kOperation, [&] {
    return fs::with_id_type(fs::kOperation, graph->id_type,
                            [&](auto zero) { return fs::sample_all<decltype(zero)>(call, failure, out); });
  });
}

void fs_collective_free(FsCollectiveResult* result) {
  if (result == nullptr) return;
  for (int64_t s = 0; s < result->samples.num_samples && result->edges != nullptr; ++s) {
    fs::give_block(result->edges[s].hops);  // the other arrays are in its block (record_edges.h)
  }
  fs::give_block(result->edges);
  fs::give_block(result->samples.vertices);
  fs::give_block(result->samples.offsets);
  fs::give_block(result);
}

}  // extern "C"
