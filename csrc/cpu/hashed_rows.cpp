// hashed_rows: buckets of ids for membership queries, and the queries themselves (core/hashed_rows.h has the layout).
//
// Records are laid out row by row, in one pass over the offsets. Buckets are then filled by several threads: tasks are
// runs of edges of equal length, a row belongs to the run in which it begins, and the ids of a row are stored by one
// thread in the order of the row, so the result never depends on threads.
#include "hashed_rows.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "csc_view.h"
#include "edge_queries.h"
#include "fastsample_transit.h"
#include "status.h"
#include "worker_pool.h"

namespace fs {
namespace {

constexpr int64_t kRunEdges = 1 << 14;
constexpr int64_t kRunQueries = 1 << 12;
constexpr int kChunk = 64;  // ids whose buckets are asked for together

uint32_t buckets_for(int64_t degree, int32_t ids_per_bucket) {
  if (degree <= kScannedDegree) return 0;
  return static_cast<uint32_t>(std::min((degree + ids_per_bucket - 1) / ids_per_bucket, kMaxBuckets));
}

// Counts the buckets of all rows, and writes their records unless `nodes` is null.
FsStatus lay_out(const FsGraph& graph, int32_t ids_per_bucket, HashedNode* nodes, int64_t* num_buckets) {
  if (graph.num_edges >= kMaxHashedEdges) {
    return fail(FS_INVALID_ARGUMENT, "hashed_rows: the graph has %lld edges; expected fewer than 2^36",
                static_cast<long long>(graph.num_edges));
  }
  int64_t first = 0;
  for (int64_t row = 0; row < graph.num_rows; ++row) {
    const int64_t begin = graph.indptr[row], end = graph.indptr[row + 1], degree = end - begin;
    if (begin < 0 || end < begin || end > graph.num_edges) {
      return refuse(FS_REFUSED_OFFSETS, "hashed_rows", {{row, begin, end, graph.num_edges}});
    }
    if (degree > kMaxHashedDegree) {
      return fail(FS_INVALID_ARGUMENT, "hashed_rows: node %lld has %lld in-edges; expected at most %lld",
                  static_cast<long long>(row), static_cast<long long>(degree),
                  static_cast<long long>(kMaxHashedDegree));
    }
    const uint32_t own = buckets_for(degree, ids_per_bucket);
    if (nodes != nullptr) {
      nodes[row] = {static_cast<uint64_t>(begin) << kBucketsBits | own, static_cast<uint32_t>(degree),
                    static_cast<uint32_t>(first)};
    }
    first += own;
  }
  if (first >= kMaxHashedBuckets) {
    return fail(FS_INVALID_ARGUMENT, "hashed_rows: the graph needs %lld buckets; expected fewer than 2^32",
                static_cast<long long>(first));
  }
  *num_buckets = first;
  return FS_OK;
}

// Fills the buckets of one row. `used` has room for one count per bucket: the ids that it holds so far.
template <typename Id>
void fill_row(const Id* ids, int64_t degree, HashedBucket<Id>* buckets, uint32_t num_buckets, uint8_t* used) {
  using Bucket = HashedBucket<Id>;
  std::fill_n(&buckets[0].ids[0], static_cast<int64_t>(num_buckets) * Bucket::kIds, Bucket::kEmptyId);
  std::fill_n(used, num_buckets, uint8_t{0});
  for (int64_t first = 0; first < degree; first += kChunk) {
    const int64_t count = std::min<int64_t>(kChunk, degree - first);
    uint32_t homes[kChunk];
    for (int64_t i = 0; i < count; ++i) {
      homes[i] = home_bucket(ids[first + i], num_buckets);
      __builtin_prefetch(buckets + homes[i], 1);
    }
    for (int64_t i = 0; i < count; ++i) {
      const Id id = ids[first + i];
      uint32_t at = homes[i];
      // Distinct ids are no more than there are places, so this ends.
      while (!PlainLanes::holds(buckets[at], id)) {
        if (used[at] < Bucket::kIds) {
          buckets[at].ids[used[at]++] = id;
          break;
        }
        at = at + 1 == num_buckets ? 0 : at + 1;
      }
    }
  }
}

// The first negative id among ids[0 .. count), or count.
template <typename Id>
int64_t first_negative(const Id* ids, int64_t count) {
  Id all = 0;
  for (int64_t i = 0; i < count; ++i) all = static_cast<Id>(all | ids[i]);
  if (all >= 0) return count;
  return std::find_if(ids, ids + count, [](Id id) { return id < 0; }) - ids;
}

template <typename Id>
FsStatus fill_buckets(const FsGraph& graph, const FsHashedRows& tables) {
  const CscView<Id> view = view_of<Id>(graph);
  const HashedNode* nodes = reinterpret_cast<const HashedNode*>(tables.nodes);
  HashedBucket<Id>* buckets = static_cast<HashedBucket<Id>*>(tables.buckets);
  std::atomic<int64_t> first_bad{view.num_edges};
  // Rows may also begin at num_edges, being empty: they need nothing.
  share_runs(view.num_edges, kRunEdges, tables.num_threads, [&](int64_t begin, int64_t end) {
    const int64_t bad = begin + first_negative(view.indices + begin, end - begin);
    int64_t known = first_bad.load(std::memory_order_relaxed);
    while (bad < end && bad < known && !first_bad.compare_exchange_weak(known, bad, std::memory_order_relaxed)) {
    }
    std::vector<uint8_t> used;
    const int64_t* rows_end = view.indptr + view.num_rows;
    int64_t row = std::lower_bound(view.indptr, rows_end, begin) - view.indptr;
    for (; row < view.num_rows && view.indptr[row] < end; ++row) {
      const HashedNode& node = nodes[row];
      if (node.buckets() == 0) continue;
      if (used.size() < node.buckets()) used.resize(node.buckets());
      fill_row(view.indices + node.begin(), node.degree, buckets + node.first, node.buckets(), used.data());
    }
  });
  const int64_t bad = first_bad.load(std::memory_order_relaxed);
  if (bad == view.num_edges) return FS_OK;
  return refuse(FS_REFUSED_NEGATIVE_SOURCE, "hashed_rows", {{static_cast<long long>(view.indices[bad])}});
}

FsStatus check_tables(const char* operation, const FsGraph& graph, int32_t ids_per_bucket, int32_t num_threads) {
  FsStatus status = check_threads(operation, num_threads);
  if (status == FS_OK) status = check_id_type(operation, graph.id_type);
  if (status != FS_OK) return status;
  const int32_t most = kBucketBytes / (graph.id_type == FS_INT32 ? 4 : 8);
  if (ids_per_bucket >= 1 && ids_per_bucket <= most) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "%s: %d ids per bucket; expected 1 to %d", operation, ids_per_bucket, most);
}

FsStatus build(const FsGraph& graph, const FsHashedRows& tables) {
  int64_t num_buckets = 0;
  FsStatus status = lay_out(graph, tables.ids_per_bucket, nullptr, &num_buckets);
  if (status != FS_OK) return status;
  if (num_buckets != tables.num_buckets) {
    return fail(FS_INVALID_ARGUMENT, "hashed_rows: room for %lld buckets; the graph needs %lld",
                static_cast<long long>(tables.num_buckets), static_cast<long long>(num_buckets));
  }
  if (reinterpret_cast<uintptr_t>(tables.buckets) % kBucketBytes != 0) {
    return fail(FS_INVALID_ARGUMENT, "hashed_rows: buckets are at an address that is no multiple of 64");
  }
  lay_out(graph, tables.ids_per_bucket, reinterpret_cast<HashedNode*>(tables.nodes), &num_buckets);
  if (graph.id_type == FS_INT32) return fill_buckets<int32_t>(graph, tables);
  return fill_buckets<int64_t>(graph, tables);
}

// Edges of the graph that the tables are of, by the end of its last row.
int64_t hashed_edges(const FsGraph& graph, const FsHashedRows& tables) {
  if (graph.num_rows == 0) return 0;
  const HashedNode& last = reinterpret_cast<const HashedNode*>(tables.nodes)[graph.num_rows - 1];
  return last.begin() + last.degree;
}

template <typename Id>
FsStatus answer(const FsGraph& graph, const FsHashedRows& tables, const FsEdgeQueries& queries) {
  const HashedRows<Id> rows = {reinterpret_cast<const HashedNode*>(tables.nodes),
                               static_cast<const HashedBucket<Id>*>(tables.buckets),
                               static_cast<const Id*>(graph.indices)};
  share_runs(queries.count, kRunQueries, tables.num_threads, [&](int64_t begin, int64_t end) {
    has_edges(rows, queries.rows + begin, queries.vertices + begin, end - begin, queries.answers + begin);
  });
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_hashed_rows_size(const FsGraph* graph, int32_t ids_per_bucket, int64_t* out_num_buckets) {
  const FsStatus status = fs::check_tables("hashed_rows", *graph, ids_per_bucket, 1);
  if (status != FS_OK) return status;
  return fs::lay_out(*graph, ids_per_bucket, nullptr, out_num_buckets);
}

extern "C" FsStatus fs_hashed_rows(const FsGraph* graph, const FsHashedRows* tables) {
  return fs::guarded("hashed_rows", [&] {
    const FsStatus status = fs::check_tables("hashed_rows", *graph, tables->ids_per_bucket, tables->num_threads);
    return status == FS_OK ? fs::build(*graph, *tables) : status;
  });
}

extern "C" FsStatus fs_has_edges(const FsGraph* graph, const FsHashedRows* tables, const FsEdgeQueries* queries) {
  return fs::guarded("has_edges", [&] {
    const FsStatus status = fs::check_threads("has_edges", tables->num_threads);
    if (status != FS_OK) return status;
    const int64_t num_edges = fs::hashed_edges(*graph, *tables);
    if (num_edges > graph->num_edges) {
      return fs::fail(
          FS_INVALID_ARGUMENT,
          "has_edges: indices has %lld entries but the tables are of %lld edges; pass the graph's that they "
          "were made of",
          static_cast<long long>(graph->num_edges), static_cast<long long>(num_edges));
    }
    for (int64_t i = 0; i < queries->count; ++i) {
      const int64_t row = queries->rows[i];
      if (row < FS_NULL_NODE || row >= graph->num_rows) {
        return fs::refuse(FS_REFUSED_ROW, "has_edges", {{row, graph->num_rows - 1}});
      }
    }
    return fs::with_id_type("has_edges", graph->id_type,
                            [&](auto id) { return fs::answer<decltype(id)>(*graph, *tables, *queries); });
  });
}
