// Building an alias table (core/alias.h) for every row of a graph, on several threads.
//
// Rows are independent. Tasks are runs of edges of equal length, handed out one by one, so that the rows of a few hubs
// do not hold up the rest; a row belongs to the run in which it begins. Each thread keeps one scratch of 12 bytes per
// edge of the longest row (20 where tables are not kept), of which only what its own rows need is ever touched.
#ifndef FS_CPU_ALIAS_ROWS_H_
#define FS_CPU_ALIAS_ROWS_H_

#include <omp.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "alias.h"
#include "status.h"

namespace fs {

constexpr int64_t kAliasRunEdges = 1 << 12;    // edges of a task: some 50 microseconds
constexpr int64_t kParallelOffsets = 1 << 15;  // fewer offsets are checked sooner than a second thread wakes

// One row as it is handed over. `entries` is null where the sink wants none.
template <typename Weight>
struct AliasRow {
  int64_t row, begin, degree;
  const Weight* weights;
  WeightSum sum;
  const AliasEntry* entries;
};

struct AliasScratch {
  std::unique_ptr<double[]> p;
  std::unique_ptr<int32_t[]> stack;
  std::unique_ptr<AliasEntry[]> entries;

  AliasScratch(int64_t degree, bool has_entries)
      : p(new double[degree]), stack(new int32_t[degree]), entries(has_entries ? new AliasEntry[degree] : nullptr) {}
};

// The first edge or row of all that was refused; the smallest one, whatever the order of the work.
struct RefusedWeight {
  int64_t edge = INT64_MAX;  // its weight is negative, infinite or NaN
  int64_t row = INT64_MAX;   // its total is unusable

  void merge(const RefusedWeight& other) {
    edge = std::min(edge, other.edge);
    row = std::min(row, other.row);
  }
};

// Checks all offsets; *longest becomes the largest degree.
inline FsStatus check_alias_offsets(const char* operation, const FsEdgeWeights& edges, int64_t* longest) {
  int64_t first_bad = edges.num_rows, largest = 0;
#pragma omp parallel for schedule(static) num_threads(edges.num_threads) reduction(min : first_bad) \
    reduction(max : largest) if (edges.num_rows >= kParallelOffsets)
  for (int64_t row = 0; row < edges.num_rows; ++row) {
    const int64_t begin = edges.indptr[row], end = edges.indptr[row + 1];
    if (begin < 0 || end < begin || end > edges.num_edges || end - begin > kMaxAliasDegree) {
      first_bad = std::min(first_bad, row);
    } else {
      largest = std::max(largest, end - begin);
    }
  }
  *longest = largest;
  if (first_bad == edges.num_rows) return FS_OK;
  const long long row = first_bad, begin = edges.indptr[first_bad], end = edges.indptr[first_bad + 1];
  if (begin >= 0 && end >= begin && end <= edges.num_edges) {
    return fail(FS_INVALID_ARGUMENT, "%s: node %lld has %lld in-edges; expected fewer than 2^31", operation, row,
                end - begin);
  }
  return refuse(FS_REFUSED_OFFSETS, operation, {{row, begin, end, edges.num_edges}});
}

template <typename Weight>
FsStatus refuse_weight(const char* operation, const FsEdgeWeights& edges, const RefusedWeight& refused) {
  if (refused.edge != INT64_MAX) {
    return fail(FS_INVALID_ARGUMENT, "%s: the weight of edge %lld is %g; expected a finite number >= 0", operation,
                static_cast<long long>(refused.edge),
                static_cast<double>(static_cast<const Weight*>(edges.weights)[refused.edge]));
  }
  if (refused.row != INT64_MAX) {
    return fail(FS_INVALID_ARGUMENT,
                "%s: the weights of node %lld add up to what a double cannot hold or divide by; scale them", operation,
                static_cast<long long>(refused.row));
  }
  return FS_OK;
}

template <typename Weight, typename Sink>
void build_one_row(const FsEdgeWeights& edges, int64_t row, const AliasScratch& scratch, const Sink& sink,
                   RefusedWeight* refused) {
  const int64_t begin = edges.indptr[row], degree = edges.indptr[row + 1] - begin;
  const Weight* weights = static_cast<const Weight*>(edges.weights) + begin;
  const WeightSum sum = sum_weights(weights, degree);
  AliasEntry* entries = sink.place(begin, scratch.entries.get());
  if (sum.bad >= 0) {
    refused->edge = std::min(refused->edge, begin + sum.bad);
    return;
  }
  if (!total_is_usable(sum.total, degree)) {
    refused->row = std::min(refused->row, row);
    return;
  }
  if (entries != nullptr && sum.num_positive == 0) {
    build_empty_alias_row(degree, entries);
  } else if (entries != nullptr) {
    build_alias_row(weights, degree, sum.total, scratch.p.get(), scratch.stack.get(), entries);
  }
  sink.done(AliasRow<Weight>{row, begin, degree, weights, sum, entries});
}

// Hands every row's table and sum to the sink, which has
//   bool needs_scratch() const                            tables are not kept
//   AliasEntry* place(begin, scratch) const               where a row's table goes; null: none is built
//   void done(const AliasRow<Weight>&) const              called by several threads, once per row
template <typename Weight, typename Sink>
FsStatus build_alias_rows(const char* operation, const FsEdgeWeights& edges, const Sink& sink) {
  int64_t longest = 0;
  const FsStatus offsets = check_alias_offsets(operation, edges, &longest);
  if (offsets != FS_OK) return offsets;
  const int64_t num_runs = edges.num_edges / kAliasRunEdges + 1;  // rows may also begin at num_edges, being empty
  const int threads = static_cast<int>(std::min<int64_t>(edges.num_threads, num_runs));
  std::vector<AliasScratch> scratches;
  for (int thread = 0; thread < threads; ++thread) scratches.emplace_back(longest, sink.needs_scratch());
  RefusedWeight refused;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const AliasScratch& scratch = scratches[static_cast<size_t>(omp_get_thread_num())];
    RefusedWeight mine;
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t run = 0; run < num_runs; ++run) {
      const int64_t* rows_end = edges.indptr + edges.num_rows;
      int64_t row = std::lower_bound(edges.indptr, rows_end, run * kAliasRunEdges) - edges.indptr;
      for (; row < edges.num_rows && edges.indptr[row] < (run + 1) * kAliasRunEdges; ++row) {
        build_one_row<Weight>(edges, row, scratch, sink, &mine);
      }
    }
#pragma omp critical(fs_alias_tables)
    refused.merge(mine);
  }
  return refuse_weight<Weight>(operation, edges, refused);
}

// build_alias_rows with the type of the weights resolved.
template <typename Sink>
FsStatus alias_rows(const char* operation, const FsEdgeWeights& edges, const Sink& sink) {
  FsStatus status = check_threads(operation, edges.num_threads);
  if (status == FS_OK) status = check_weight_type(operation, edges.type);
  if (status != FS_OK) return status;
  if (edges.type == FS_FLOAT32) return build_alias_rows<float>(operation, edges, sink);
  return build_alias_rows<double>(operation, edges, sink);
}

}  // namespace fs

#endif  // FS_CPU_ALIAS_ROWS_H_
