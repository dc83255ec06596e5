// aggregate and its gradients over a run of rows. Columns are handled in tiles whose accumulators stay in the
// first-level cache; edges are added in their stored order, so a sum has one value whatever the vector width or thread
// count.
#ifndef FS_CPU_VECTOR_AGGREGATE_ROWS_H_
#define FS_CPU_VECTOR_AGGREGATE_ROWS_H_

#include "aggregation.h"
#include "vector_kernels.h"

namespace fs {
namespace {

constexpr int64_t kTile = 512;         // columns; 2 KiB of float accumulators
constexpr int64_t kRowsAhead = 4;      // in-edges ahead whose source rows are requested
constexpr int64_t kCacheLine = 64;     // bytes
constexpr int64_t kPrefetchLines = 8;  // of a row; the hardware follows from there

template <typename T>
FS_INLINE void prefetch_row(const T* row, int64_t columns) {
  const char* bytes = reinterpret_cast<const char*>(row);
  const int64_t size = columns * static_cast<int64_t>(sizeof(T));
  const int64_t lines = size < kPrefetchLines * kCacheLine ? size : kPrefetchLines * kCacheLine;
  for (int64_t at = 0; at < lines; at += kCacheLine) __builtin_prefetch(bytes + at);
}

// The columns [begin, end) that head `head` shares with the tile [tile, tile_end).
struct HeadSpan {
  int64_t begin, end;
};
FS_INLINE HeadSpan head_span(int64_t head, int64_t head_width, int64_t tile, int64_t tile_end) {
  const int64_t begin = head * head_width, end = begin + head_width;
  return {begin > tile ? begin : tile, end < tile_end ? end : tile_end};
}

// body(head, columns of that head in the tile) for every head that meets the tile.
template <typename Body>
FS_INLINE void for_heads(const FsAggregation& spec, int64_t tile, int64_t tile_end, Body&& body) {
  if (tile >= tile_end) return;
  const int64_t head_width = spec.width / spec.num_heads;
  for (int64_t head = tile / head_width; head < spec.num_heads && head * head_width < tile_end; ++head) {
    body(head, head_span(head, head_width, tile, tile_end));
  }
}

template <typename T, typename Id>
void sum_row(const FsAggregation& spec, const T* x, int64_t dst, int64_t tile, int64_t tile_end, T* out) {
  using Real = typename Arithmetic<T>::type;
  const Id* indices = static_cast<const Id*>(spec.indices);
  const T* weights = static_cast<const T*>(spec.weights);
  const int64_t first = spec.indptr[dst], last = spec.indptr[dst + 1], columns = tile_end - tile;
  Real sums[kTile];
  for (int64_t c = 0; c < columns; ++c) sums[c] = 0;
  for (int64_t e = first; e < last; ++e) {
    if (e + kRowsAhead < spec.num_edges) prefetch_row(x + indices[e + kRowsAhead] * spec.width + tile, columns);
    const T* row = x + indices[e] * spec.width;
    if (weights == nullptr) {
#pragma omp simd
      for (int64_t c = 0; c < columns; ++c) sums[c] += load(row[tile + c]);
    } else {
      for_heads(spec, tile, tile_end, [&](int64_t head, HeadSpan span) {
        const Real weight = load(weights[e * spec.num_heads + head]);
#pragma omp simd
        for (int64_t c = span.begin; c < span.end; ++c) sums[c - tile] += weight * load(row[c]);
      });
    }
  }
  if (spec.reduce == FS_MEAN && last - first > 1) {
    const Real degree = static_cast<Real>(last - first);
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) sums[c] /= degree;
  }
#pragma omp simd
  for (int64_t c = 0; c < columns; ++c) store(out + tile + c, sums[c]);
}

template <typename T, typename Id>
void max_row(const FsAggregation& spec, const T* x, int64_t dst, int64_t tile, int64_t tile_end, T* out, int64_t* arg) {
  using Real = typename Arithmetic<T>::type;
  const Id* indices = static_cast<const Id*>(spec.indices);
  const int64_t first = spec.indptr[dst], last = spec.indptr[dst + 1];
  Real best[kTile];
  for (int64_t c = tile; c < tile_end; ++c) {
    best[c - tile] = 0;
    arg[c] = -1;
  }
  for (int64_t e = first; e < last; ++e) {
    const T* row = x + indices[e] * spec.width;
    for_heads(spec, tile, tile_end, [&](int64_t head, HeadSpan span) {
      const Real weight = edge_weight<T>(spec, e, head);
      for (int64_t c = span.begin; c < span.end; ++c) {
        const Real value = weight * load(row[c]), so_far = best[c - tile];
        const bool is_better = wins(e == first, value, so_far);
        best[c - tile] = is_better ? value : so_far;
        arg[c] = is_better ? e : arg[c];
      }
    });
  }
  for (int64_t c = tile; c < tile_end; ++c) store(out + c, best[c - tile]);
}

template <typename T, typename Id>
void aggregate_typed(const FsAggregation& spec, const AggregateBuffers& buffers, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(buffers.x);
  for (int64_t dst = begin; dst < end; ++dst) {
    T* out = static_cast<T*>(buffers.out) + dst * buffers.out_stride;
    if (buffers.own_out != nullptr) {
      const T* own = x + dst * spec.width;
      T* own_out = static_cast<T*>(buffers.own_out) + dst * buffers.out_stride;
      for (int64_t c = 0; c < spec.width; ++c) own_out[c] = own[c];
    }
    for (int64_t tile = 0; tile < spec.width; tile += kTile) {
      const int64_t tile_end = tile + kTile < spec.width ? tile + kTile : spec.width;
      if (spec.reduce == FS_MAX) {
        max_row<T, Id>(spec, x, dst, tile, tile_end, out, buffers.arg + dst * spec.width);
      } else {
        sum_row<T, Id>(spec, x, dst, tile, tile_end, out);
      }
    }
  }
}

template <typename T>
void grad_x_row(const FsAggregation& spec, const AggregateGrads& grads, const SourceLists& lists, int64_t src,
                int64_t tile, int64_t tile_end) {
  using Real = typename Arithmetic<T>::type;
  const T* grad_out = static_cast<const T*>(grads.grad_out);
  const int64_t last = lists.offsets[src + 1];
  Real sums[kTile];
  for (int64_t c = 0; c < tile_end - tile; ++c) sums[c] = 0;
  for (int64_t i = lists.offsets[src]; i < last; ++i) {
    if (i + kRowsAhead < spec.num_edges) {
      prefetch_row(grad_out + lists.dsts[i + kRowsAhead] * grads.grad_stride + tile, tile_end - tile);
    }
    const int64_t dst = lists.dsts[i];
    const T* grad = grad_out + dst * grads.grad_stride;
    if (lists.edges == nullptr) {
      const Real factor = coefficient<T>(spec, 0, dst, 0);
#pragma omp simd
      for (int64_t c = tile; c < tile_end; ++c) sums[c - tile] += factor * load(grad[c]);
      continue;
    }
    const int64_t edge = lists.edges[i];
    for_heads(spec, tile, tile_end, [&](int64_t head, HeadSpan span) {
      const Real factor = coefficient<T>(spec, edge, dst, head);
      if (spec.reduce == FS_MAX) {
        const int64_t* arg = grads.arg + dst * spec.width;
        for (int64_t c = span.begin; c < span.end; ++c) {
          sums[c - tile] += arg[c] == edge ? factor * load(grad[c]) : Real(0);
        }
      } else {
#pragma omp simd
        for (int64_t c = span.begin; c < span.end; ++c) sums[c - tile] += factor * load(grad[c]);
      }
    });
  }
  T* out = static_cast<T*>(grads.grad_x) + src * spec.width;
  if (grads.own_grad == nullptr || src >= spec.num_dst) {
#pragma omp simd
    for (int64_t c = tile; c < tile_end; ++c) store(out + c, sums[c - tile]);
    return;
  }
  const T* own = static_cast<const T*>(grads.own_grad) + src * grads.grad_stride;
#pragma omp simd
  for (int64_t c = tile; c < tile_end; ++c) {
    T sum;
    store(&sum, sums[c - tile]);  // rounded before the own row is added, as a tensor of sums would be
    store(out + c, load(sum) + load(own[c]));
  }
}

template <typename T>
void grad_x_typed(const FsAggregation& spec, const AggregateGrads& grads, const SourceLists& lists, int64_t begin,
                  int64_t end) {
  for (int64_t src = begin; src < end; ++src) {
    for (int64_t tile = 0; tile < spec.width; tile += kTile) {
      grad_x_row<T>(spec, grads, lists, src, tile, tile + kTile < spec.width ? tile + kTile : spec.width);
    }
  }
}

template <typename T, typename Id>
void grad_weights_typed(const FsAggregation& spec, const AggregateGrads& grads, int64_t begin, int64_t end) {
  using Real = typename Arithmetic<T>::type;
  const T* x = static_cast<const T*>(grads.x);
  const T* grad_out = static_cast<const T*>(grads.grad_out);
  const Id* indices = static_cast<const Id*>(spec.indices);
  T* out = static_cast<T*>(grads.grad_weights);
  const int64_t head_width = spec.width / spec.num_heads;
  for (int64_t dst = begin; dst < end; ++dst) {
    const T* grad = grad_out + dst * grads.grad_stride;
    const Real degree = static_cast<Real>(spec.indptr[dst + 1] - spec.indptr[dst]);
    for (int64_t e = spec.indptr[dst]; e < spec.indptr[dst + 1]; ++e) {
      const T* row = x + indices[e] * spec.width;
      for (int64_t head = 0; head < spec.num_heads; ++head) {
        Real sum = 0;
        for (int64_t c = head * head_width; c < (head + 1) * head_width; ++c) {
          const bool counts = spec.reduce != FS_MAX || grads.arg[dst * spec.width + c] == e;
          sum += counts ? load(grad[c]) * load(row[c]) : Real(0);
        }
        store(out + e * spec.num_heads + head, spec.reduce == FS_MEAN ? sum / degree : sum);
      }
    }
  }
}

template <typename T>
void aggregate_id(const FsAggregation& spec, const AggregateBuffers& buffers, int64_t begin, int64_t end) {
  if (spec.id_type == FS_INT32) {
    aggregate_typed<T, int32_t>(spec, buffers, begin, end);
  } else {
    aggregate_typed<T, int64_t>(spec, buffers, begin, end);
  }
}

void aggregate(const FsAggregation& spec, const AggregateBuffers& buffers, int64_t begin, int64_t end) {
  if (spec.type == FS_FLOAT32) aggregate_id<float>(spec, buffers, begin, end);
  if (spec.type == FS_FLOAT64) aggregate_id<double>(spec, buffers, begin, end);
  if (spec.type == FS_BFLOAT16) aggregate_id<Bfloat16>(spec, buffers, begin, end);
}

void aggregate_grad_x(const FsAggregation& spec, const AggregateGrads& grads, const SourceLists& lists, int64_t begin,
                      int64_t end) {
  if (spec.type == FS_FLOAT32) grad_x_typed<float>(spec, grads, lists, begin, end);
  if (spec.type == FS_FLOAT64) grad_x_typed<double>(spec, grads, lists, begin, end);
  if (spec.type == FS_BFLOAT16) grad_x_typed<Bfloat16>(spec, grads, lists, begin, end);
}

template <typename T>
void grad_weights_id(const FsAggregation& spec, const AggregateGrads& grads, int64_t begin, int64_t end) {
  if (spec.id_type == FS_INT32) {
    grad_weights_typed<T, int32_t>(spec, grads, begin, end);
  } else {
    grad_weights_typed<T, int64_t>(spec, grads, begin, end);
  }
}

void aggregate_grad_weights(const FsAggregation& spec, const AggregateGrads& grads, int64_t begin, int64_t end) {
  if (spec.type == FS_FLOAT32) grad_weights_id<float>(spec, grads, begin, end);
  if (spec.type == FS_FLOAT64) grad_weights_id<double>(spec, grads, begin, end);
  if (spec.type == FS_BFLOAT16) grad_weights_id<Bfloat16>(spec, grads, begin, end);
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_AGGREGATE_ROWS_H_
