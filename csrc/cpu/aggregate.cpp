// aggregate: sum, mean or max of the in-neighbours' rows for every destination of an MFG, and its gradients.
//
// Forward: threads take runs of destinations. Gradient of x: edges are grouped by source first (counting sort), then
// threads take runs of sources, so no two threads write one row and every sum keeps the edges' order.
#include <stddef.h>
#include <stdint.h>

#include <vector>

#include "aggregation.h"
#include "parallel_rows.h"
#include "status.h"
#include "vector/vector_kernels.h"

namespace fs {
namespace {

template <typename Id>
FsStatus check_edges(const char* operation, const FsAggregation& spec) {
  if (spec.indptr[0] != 0 || spec.indptr[spec.num_dst] != spec.num_edges) {
    return fail(FS_INVALID_ARGUMENT, "%s: indptr runs from %lld to %lld; expected 0 to %lld", operation,
                static_cast<long long>(spec.indptr[0]), static_cast<long long>(spec.indptr[spec.num_dst]),
                static_cast<long long>(spec.num_edges));
  }
  for (int64_t dst = 0; dst < spec.num_dst; ++dst) {
    if (spec.indptr[dst + 1] < spec.indptr[dst]) {
      return fail(FS_INVALID_ARGUMENT, "%s: indptr decreases at row %lld", operation, static_cast<long long>(dst));
    }
  }
  const Id* indices = static_cast<const Id*>(spec.indices);
  for (int64_t e = 0; e < spec.num_edges; ++e) {
    if (indices[e] < 0 || indices[e] >= spec.num_src) {
      return fail(FS_INVALID_ARGUMENT, "%s: edge %lld has source %lld; expected 0 to %lld", operation,
                  static_cast<long long>(e), static_cast<long long>(indices[e]),
                  static_cast<long long>(spec.num_src) - 1);
    }
  }
  return FS_OK;
}

FsStatus check(const char* operation, const FsAggregation& spec) {
  const FsStatus status = check_aggregation(operation, spec);
  if (status != FS_OK) return status;
  return spec.id_type == FS_INT32 ? check_edges<int32_t>(operation, spec) : check_edges<int64_t>(operation, spec);
}

struct OwnedSourceLists {
  std::vector<int64_t> offsets, edges, edge_dst;
  SourceLists view() const { return {offsets.data(), edges.data(), edge_dst.data()}; }
};

template <typename Id>
OwnedSourceLists group_by_source(const FsAggregation& spec) {
  const Id* indices = static_cast<const Id*>(spec.indices);
  OwnedSourceLists lists;
  lists.offsets.assign(static_cast<size_t>(spec.num_src) + 1, 0);
  lists.edges.resize(static_cast<size_t>(spec.num_edges));
  lists.edge_dst.resize(static_cast<size_t>(spec.num_edges));
  for (int64_t e = 0; e < spec.num_edges; ++e) ++lists.offsets[static_cast<size_t>(indices[e]) + 1];
  for (size_t src = 0; src < static_cast<size_t>(spec.num_src); ++src) lists.offsets[src + 1] += lists.offsets[src];
  std::vector<int64_t> next(lists.offsets.begin(), lists.offsets.end() - 1);
  for (int64_t dst = 0; dst < spec.num_dst; ++dst) {
    for (int64_t e = spec.indptr[dst]; e < spec.indptr[dst + 1]; ++e) {
      lists.edges[static_cast<size_t>(next[static_cast<size_t>(indices[e])]++)] = e;
      lists.edge_dst[static_cast<size_t>(e)] = dst;
    }
  }
  return lists;
}

int64_t bytes_per_row(const FsAggregation& spec, int64_t num_rows) {
  const int64_t edges_per_row = num_rows > 0 ? 1 + spec.num_edges / num_rows : 1;
  return edges_per_row * spec.width * 4;
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_aggregate(const FsAggregation* spec, const void* x, void* out, int64_t out_stride, int64_t* out_arg) {
  return fs::guarded("aggregate", [&] {
    const FsStatus status = fs::check("aggregate", *spec);
    if (status != FS_OK) return status;
    const fs::AggregateBuffers buffers = {x, out, out_stride, out_arg};
    fs::parallel_rows(spec->num_dst, fs::bytes_per_row(*spec, spec->num_dst), spec->num_threads,
                      [&](int64_t begin, int64_t end) { fs::vector_kernels().aggregate(*spec, buffers, begin, end); });
    return FS_OK;
  });
}

FsStatus fs_aggregate_backward(const FsAggregation* spec, const void* x, const int64_t* arg, const void* grad_out,
                               int64_t grad_stride, void* out_grad_x, void* out_grad_weights) {
  return fs::guarded("aggregate_backward", [&] {
    const FsStatus status = fs::check("aggregate_backward", *spec);
    if (status != FS_OK) return status;
    const fs::AggregateGrads grads = {x, arg, grad_out, grad_stride, out_grad_x, out_grad_weights};
    if (out_grad_x != nullptr) {
      const fs::OwnedSourceLists lists =
          spec->id_type == FS_INT32 ? fs::group_by_source<int32_t>(*spec) : fs::group_by_source<int64_t>(*spec);
      fs::parallel_rows(spec->num_src, fs::bytes_per_row(*spec, spec->num_src), spec->num_threads,
                        [&](int64_t begin, int64_t end) {
                          fs::vector_kernels().aggregate_grad_x(*spec, grads, lists.view(), begin, end);
                        });
    }
    if (out_grad_weights != nullptr) {
      fs::parallel_rows(
          spec->num_dst, fs::bytes_per_row(*spec, spec->num_dst), spec->num_threads,
          [&](int64_t begin, int64_t end) { fs::vector_kernels().aggregate_grad_weights(*spec, grads, begin, end); });
    }
    return FS_OK;
  });
}

}  // extern "C"
