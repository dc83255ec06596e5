// aggregate and its gradients over a block of rows and columns. Sums go by tiles of columns whose accumulators stay in
// registers (register_rows.h); the maximum, and sums of heads narrower than a vector, by tiles that stay in the
// first-level cache. Edges are added in their stored order, so a sum has one value whatever the tile, vector width or
// thread count.
#ifndef FS_CPU_VECTOR_AGGREGATE_ROWS_H_
#define FS_CPU_VECTOR_AGGREGATE_ROWS_H_

#include "aggregation.h"
#include "register_rows.h"
#include "vector_kernels.h"

namespace fs {
namespace {

constexpr int64_t kTile = 512;  // columns of a tile in the cache; 2 KiB of float accumulators

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

// The in-edges of destinations as terms of their sums: a row, and the weight of `head` as its factor.
template <typename T, typename Id>
struct InEdges {
  const FsAggregation& spec;
  const Id* indices;
  const T* columns;  // of source 0, from the tile's first
  int64_t head, limit;

  const T* row(int64_t e) const { return columns + indices[e] * spec.width; }
  typename Arithmetic<T>::type factor(int64_t e) const { return edge_weight<T>(spec, e, head); }
};

template <typename T, typename Id>
FS_INLINE void sum_tile(const FsAggregation& spec, const T* x, int64_t dst, int64_t head, int64_t begin, int64_t end,
                        T* out) {
  using Real = typename Arithmetic<T>::type;
  const int64_t first = spec.indptr[dst], last = spec.indptr[dst + 1];
  const bool divides = spec.reduce == FS_MEAN && last - first > 1;
  const Real degree = static_cast<Real>(last - first);
  const InEdges<T, Id> edges = {spec, static_cast<const Id*>(spec.indices), x + begin, head, spec.num_edges};
  const auto finish = [&](int64_t offset, Lanes<T> sums) {
    if (divides) sums.divide(degree);
    sums.store(out + begin + offset);
  };
  if (spec.weights == nullptr) {
    sum_columns<T, false>(edges, first, last, end - begin, finish);
  } else {
    sum_columns<T, true>(edges, first, last, end - begin, finish);
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

// The tiles of a block's sums: in_registers(head, begin, end) where a head has at least a vector of columns, else
// in_cache(begin, end).
template <typename T>
class SumTiles {
 public:
  SumTiles(const FsAggregation& spec, const RowBlock& block) : spec_(spec), block_(block) {
    const int64_t head_width = spec.width / spec.num_heads, columns = block.end_column - block.column;
    const int64_t most = spec.tile > 0 && spec.tile < kTile ? spec.tile : kTile;
    in_registers_ = spec.reduce != FS_MAX && head_width >= Lanes<T>::kCount;
    step_ = in_registers_ ? tile_columns<T>(head_width < columns ? head_width : columns, most) : most;
  }

  template <typename InRegisters, typename InCache>
  FS_INLINE void each(InRegisters&& in_registers, InCache&& in_cache) const {
    if (!in_registers_) {
      for (int64_t at = block_.column; at < block_.end_column; at += step_) {
        in_cache(at, at + step_ < block_.end_column ? at + step_ : block_.end_column);
      }
      return;
    }
    for_heads(spec_, block_.column, block_.end_column, [&](int64_t head, HeadSpan span) {
      if (span.end - span.begin < Lanes<T>::kCount) return in_cache(span.begin, span.end);
      for_tiles<T>(span.begin, span.end, step_, [&](int64_t begin, int64_t end) { in_registers(head, begin, end); });
    });
  }

 private:
  const FsAggregation& spec_;
  const RowBlock& block_;
  bool in_registers_;
  int64_t step_;
};

template <typename T, typename Id>
void aggregate_typed(const FsAggregation& spec, const AggregateBuffers& buffers, const RowBlock& block) {
  const T* x = static_cast<const T*>(buffers.x);
  const SumTiles<T> tiles(spec, block);
  for (int64_t dst = block.begin; dst < block.end; ++dst) {
    T* out = static_cast<T*>(buffers.out) + dst * buffers.out_stride;
    if (buffers.own_out != nullptr) {
      const T* own = x + dst * spec.width;
      T* own_out = static_cast<T*>(buffers.own_out) + dst * buffers.out_stride;
      for (int64_t c = block.column; c < block.end_column; ++c) own_out[c] = own[c];
    }
    tiles.each([&](int64_t head, int64_t begin, int64_t end) { sum_tile<T, Id>(spec, x, dst, head, begin, end, out); },
               [&](int64_t begin, int64_t end) {
                 if (spec.reduce == FS_MAX) {
                   max_row<T, Id>(spec, x, dst, begin, end, out, buffers.arg + dst * spec.width);
                 } else {
                   sum_row<T, Id>(spec, x, dst, begin, end, out);
                 }
               });
  }
}

// The in-edges of a source's own list, as terms of its gradient.
template <typename T>
struct OutEdges {
  const FsAggregation& spec;
  const SourceLists& lists;
  const T* columns;  // of the gradient of destination 0, from the tile's first
  int64_t stride, head, limit;

  const T* row(int64_t i) const { return columns + lists.dst(i) * stride; }
  typename Arithmetic<T>::type factor(int64_t i) const {
    return coefficient<T>(spec, lists.edge(i), lists.dst(i), head);
  }
};

template <typename T>
FS_INLINE void grad_x_tile(const FsAggregation& spec, const AggregateGrads& grads, const SourceLists& lists,
                           int64_t src, int64_t head, int64_t begin, int64_t end) {
  const OutEdges<T> edges = {spec, lists,         static_cast<const T*>(grads.grad_out) + begin, grads.grad_stride,
                             head, spec.num_edges};
  T* out = static_cast<T*>(grads.grad_x) + src * spec.width + begin;
  const bool has_own = grads.own_grad != nullptr && src < spec.num_dst;
  const T* own = has_own ? static_cast<const T*>(grads.own_grad) + src * grads.grad_stride + begin : nullptr;
  sum_columns<T, true>(edges, lists.offsets[src], lists.offsets[src + 1], end - begin,
                       [&](int64_t offset, Lanes<T> sums) {
                         if (has_own) {  // rounded before the own row is added, as in grad_x_row
                           sums.round();
                           sums.add(own + offset);
                         }
                         sums.store(out + offset);
                       });
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
      prefetch_row(grad_out + lists.dst(i + kRowsAhead) * grads.grad_stride + tile, tile_end - tile);
    }
    const int64_t dst = lists.dst(i);
    const T* grad = grad_out + dst * grads.grad_stride;
    if (lists.step == 1) {
      const Real factor = coefficient<T>(spec, 0, dst, 0);
#pragma omp simd
      for (int64_t c = tile; c < tile_end; ++c) sums[c - tile] += factor * load(grad[c]);
      continue;
    }
    const int64_t edge = lists.edge(i);
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
void grad_x_typed(const FsAggregation& spec, const AggregateGrads& grads, const SourceLists& lists,
                  const RowBlock& block) {
  const SumTiles<T> tiles(spec, block);
  for (int64_t src = block.begin; src < block.end; ++src) {
    tiles.each(
        [&](int64_t head, int64_t begin, int64_t end) { grad_x_tile<T>(spec, grads, lists, src, head, begin, end); },
        [&](int64_t begin, int64_t end) { grad_x_row<T>(spec, grads, lists, src, begin, end); });
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
void aggregate_id(const FsAggregation& spec, const AggregateBuffers& buffers, const RowBlock& block) {
  if (spec.id_type == FS_INT32) {
    aggregate_typed<T, int32_t>(spec, buffers, block);
  } else {
    aggregate_typed<T, int64_t>(spec, buffers, block);
  }
}

void aggregate(const FsAggregation& spec, const AggregateBuffers& buffers, const RowBlock& block) {
  if (spec.type == FS_FLOAT32) aggregate_id<float>(spec, buffers, block);
  if (spec.type == FS_FLOAT64) aggregate_id<double>(spec, buffers, block);
  if (spec.type == FS_BFLOAT16) aggregate_id<Bfloat16>(spec, buffers, block);
}

void aggregate_grad_x(const FsAggregation& spec, const AggregateGrads& grads, const SourceLists& lists,
                      const RowBlock& block) {
  if (spec.type == FS_FLOAT32) grad_x_typed<float>(spec, grads, lists, block);
  if (spec.type == FS_FLOAT64) grad_x_typed<double>(spec, grads, lists, block);
  if (spec.type == FS_BFLOAT16) grad_x_typed<Bfloat16>(spec, grads, lists, block);
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
