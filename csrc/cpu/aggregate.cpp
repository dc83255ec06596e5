// aggregate: sum, mean or max of the in-neighbours' rows for every destination of an MFG, and its gradients.
//
// Forward: threads take runs of destinations. Gradient of x: edges are grouped by source first (counting sort), then
// threads take runs of sources, so no two threads write one row and every sum keeps the edges' order.
#include <stddef.h>
#include <stdint.h>

#include "aggregation.h"
#include "parallel_rows.h"
#include "source_lists.h"
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
  bool is_bad = false;
  for (int64_t e = 0; e < spec.num_edges; ++e) is_bad |= indices[e] < 0 || indices[e] >= spec.num_src;  // by vectors
  for (int64_t e = 0; is_bad && e < spec.num_edges; ++e) {
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

int64_t bytes_per_row(const FsAggregation& spec, int64_t num_rows) {
  const int64_t edges_per_row = num_rows > 0 ? 1 + spec.num_edges / num_rows : 1;
  return edges_per_row * spec.width * 4;
}

// body(block) for blocks that cover num_rows rows of all columns: runs of rows, or tiles of columns.
template <typename Body>
void parallel_blocks(const FsAggregation& spec, int64_t num_rows, Body&& body) {
  const int64_t bytes = bytes_per_row(spec, num_rows);
  if (spec.tiles_outer == 0 || spec.width == 0) {
    parallel_rows(num_rows, bytes, spec.num_threads,
                  [&](int64_t begin, int64_t end) { body(RowBlock{begin, end, 0, spec.width}); });
    return;
  }
  const int64_t columns = spec.tile > 0 && spec.tile < spec.width ? spec.tile : spec.width;
  const int64_t tiles = (spec.width + columns - 1) / columns;
  parallel_rows(tiles, num_rows * bytes / tiles, spec.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * columns; at < spec.width && at < end * columns; at += columns) {
      body(RowBlock{0, num_rows, at, at + columns < spec.width ? at + columns : spec.width});
    }
  });
}

FsStatus forward(const char* operation, const FsAggregation& spec, const AggregateBuffers& buffers) {
  const FsStatus status = check(operation, spec);
  if (status != FS_OK) return status;
  parallel_blocks(spec, spec.num_dst, [&](const RowBlock& block) { vector_kernels().aggregate(spec, buffers, block); });
  return FS_OK;
}

FsStatus backward(const char* operation, const FsAggregation& spec, const AggregateGrads& grads) {
  const FsStatus status = check(operation, spec);
  if (status != FS_OK) return status;
  if (grads.grad_x != nullptr) {
    const OwnedSourceLists lists =
        spec.id_type == FS_INT32 ? group_by_source<int32_t>(spec) : group_by_source<int64_t>(spec);
    parallel_blocks(spec, spec.num_src, [&](const RowBlock& block) {
      vector_kernels().aggregate_grad_x(spec, grads, lists.view(), block);
    });
  }
  if (grads.grad_weights != nullptr) {
    parallel_rows(spec.num_dst, bytes_per_row(spec, spec.num_dst), spec.num_threads, [&](int64_t begin, int64_t end) {
      vector_kernels().aggregate_grad_weights(spec, grads, begin, end);
    });
  }
  return FS_OK;
}

// Whether every destination has a row of its own among the sources.
FsStatus check_own(const char* operation, const FsAggregation& spec) {
  if (spec.num_dst <= spec.num_src) return FS_OK;
  return fail(FS_INVALID_ARGUMENT, "%s: %lld destinations but %lld sources; expected the destinations among them",
              operation, static_cast<long long>(spec.num_dst), static_cast<long long>(spec.num_src));
}

FsStatus check_concat_backward(const FsAggregation& spec) {
  if (spec.reduce == FS_MAX) {
    return fail(FS_INVALID_ARGUMENT, "aggregate_concat_backward: the maximum; expected sum or mean");
  }
  return check_own("aggregate_concat_backward", spec);
}

// The columns [width, 2 * width) of rows of [own | aggregate].
template <typename Byte>
Byte* right_half(Byte* rows, const FsAggregation& spec) {
  const int64_t size = spec.type == FS_FLOAT64 ? 8 : spec.type == FS_FLOAT32 ? 4 : 2;
  return rows + spec.width * size;
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_aggregate(const FsAggregation* spec, const void* x, void* out, int64_t out_stride, int64_t* out_arg) {
  return fs::guarded("aggregate",
                     [&] { return fs::forward("aggregate", *spec, {x, out, out_stride, out_arg, nullptr}); });
}

FsStatus fs_aggregate_backward(const FsAggregation* spec, const void* x, const int64_t* arg, const void* grad_out,
                               int64_t grad_stride, void* out_grad_x, void* out_grad_weights) {
  return fs::guarded("aggregate_backward", [&] {
    return fs::backward("aggregate_backward", *spec,
                        {x, arg, grad_out, grad_stride, out_grad_x, out_grad_weights, nullptr});
  });
}

FsStatus fs_aggregate_concat(const FsAggregation* spec, const void* x, void* out, int64_t* out_arg) {
  return fs::guarded("aggregate_concat", [&] {
    const FsStatus status = fs::check_own("aggregate_concat", *spec);
    if (status != FS_OK) return status;
    void* aggregates = fs::right_half(static_cast<char*>(out), *spec);
    return fs::forward("aggregate_concat", *spec, {x, aggregates, 2 * spec->width, out_arg, out});
  });
}

FsStatus fs_aggregate_concat_backward(const FsAggregation* spec, const void* grad_out, void* out_grad_x) {
  return fs::guarded("aggregate_concat_backward", [&] {
    const FsStatus status = fs::check_concat_backward(*spec);
    if (status != FS_OK) return status;
    const void* of_aggregates = fs::right_half(static_cast<const char*>(grad_out), *spec);
    return fs::backward("aggregate_concat_backward", *spec,
                        {nullptr, nullptr, of_aggregates, 2 * spec->width, out_grad_x, nullptr, grad_out});
  });
}

}  // extern "C"
