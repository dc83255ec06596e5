// alias_tables: one alias table per row of in-edges, for drawing edges by weight.
//
// Rows are independent. Tasks are runs of edges of equal length, handed out one by one, so that the rows of a few hubs
// do not hold up the rest; a row belongs to the run in which it begins. Each thread keeps one scratch of 12 bytes per
// edge of the longest row, of which only what its own rows need is ever touched.
#include <omp.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "alias.h"
#include "status.h"

namespace fs {
namespace {

constexpr int64_t kRunEdges = 1 << 12;      // edges of a task: some 50 microseconds
constexpr int64_t kParallelRows = 1 << 15;  // fewer offsets are checked sooner than a second thread wakes

struct RowScratch {
  std::unique_ptr<double[]> p;
  std::unique_ptr<int32_t[]> stack;

  explicit RowScratch(int64_t degree) : p(new double[degree]), stack(new int32_t[degree]) {}
};

// The first edge or row of all that was refused; the smallest one, whatever the order of the work.
struct Refused {
  int64_t edge = INT64_MAX;  // its weight is negative, infinite or NaN
  int64_t row = INT64_MAX;   // its total is unusable

  void merge(const Refused& other) {
    edge = std::min(edge, other.edge);
    row = std::min(row, other.row);
  }
};

struct Tables {
  AliasEntry* entries;    // [num_edges]
  int64_t* num_positive;  // [num_rows]
};

// Checks all offsets; *longest becomes the largest degree.
FsStatus check_offsets(const FsEdgeWeights& edges, int64_t* longest) {
  int64_t first_bad = edges.num_rows, largest = 0;
#pragma omp parallel for schedule(static) num_threads(edges.num_threads) reduction(min : first_bad) \
    reduction(max : largest) if (edges.num_rows >= kParallelRows)
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
    return fail(FS_INVALID_ARGUMENT, "alias_tables: node %lld has %lld in-edges; expected fewer than 2^31", row,
                end - begin);
  }
  return refuse(FS_REFUSED_OFFSETS, "alias_tables", {{row, begin, end, edges.num_edges}});
}

template <typename Weight>
void build_row(const FsEdgeWeights& edges, int64_t row, const RowScratch& scratch, const Tables& out,
               Refused* refused) {
  const int64_t begin = edges.indptr[row], degree = edges.indptr[row + 1] - begin;
  const Weight* weights = static_cast<const Weight*>(edges.weights) + begin;
  const WeightSum sum = sum_weights(weights, degree);
  out.num_positive[row] = sum.num_positive;
  if (sum.bad >= 0) {
    refused->edge = std::min(refused->edge, begin + sum.bad);
  } else if (!total_is_usable(sum.total, degree)) {
    refused->row = std::min(refused->row, row);
  } else if (sum.num_positive == 0) {
    build_empty_alias_row(degree, out.entries + begin);
  } else {
    build_alias_row(weights, degree, sum.total, scratch.p.get(), scratch.stack.get(), out.entries + begin);
  }
}

template <typename Weight>
FsStatus build_tables(const FsEdgeWeights& edges, const Tables& out) {
  int64_t longest = 0;
  const FsStatus offsets = check_offsets(edges, &longest);
  if (offsets != FS_OK) return offsets;
  const int64_t num_runs = edges.num_edges / kRunEdges + 1;  // rows may also begin at num_edges, being empty
  const int threads = static_cast<int>(std::min<int64_t>(edges.num_threads, num_runs));
  std::vector<RowScratch> scratches;
  for (int thread = 0; thread < threads; ++thread) scratches.emplace_back(longest);
  Refused refused;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const RowScratch& scratch = scratches[static_cast<size_t>(omp_get_thread_num())];
    Refused mine;
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t run = 0; run < num_runs; ++run) {
      const int64_t* rows_end = edges.indptr + edges.num_rows;
      int64_t row = std::lower_bound(edges.indptr, rows_end, run * kRunEdges) - edges.indptr;
      for (; row < edges.num_rows && edges.indptr[row] < (run + 1) * kRunEdges; ++row) {
        build_row<Weight>(edges, row, scratch, out, &mine);
      }
    }
#pragma omp critical(fs_alias_tables)
    refused.merge(mine);
  }
  if (refused.edge != INT64_MAX) {
    return fail(FS_INVALID_ARGUMENT, "alias_tables: the weight of edge %lld is %g; expected a finite number >= 0",
                static_cast<long long>(refused.edge),
                static_cast<double>(static_cast<const Weight*>(edges.weights)[refused.edge]));
  }
  if (refused.row != INT64_MAX) {
    return fail(FS_INVALID_ARGUMENT,
                "alias_tables: the weights of node %lld add up to what a double cannot hold or divide by; scale them",
                static_cast<long long>(refused.row));
  }
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_alias_tables(const FsEdgeWeights* edges, uint32_t* out_table, int64_t* out_num_positive) {
  return fs::guarded("alias_tables", [&] {
    const FsStatus status = fs::check_threads("alias_tables", edges->num_threads);
    if (status != FS_OK) return status;
    const fs::Tables out = {reinterpret_cast<fs::AliasEntry*>(out_table), out_num_positive};
    if (edges->type == FS_FLOAT32) return fs::build_tables<float>(*edges, out);
    if (edges->type == FS_FLOAT64) return fs::build_tables<double>(*edges, out);
    return fs::fail(FS_INVALID_ARGUMENT, "alias_tables: weight type %d; expected float32 (2) or float64 (3)",
                    edges->type);
  });
}
