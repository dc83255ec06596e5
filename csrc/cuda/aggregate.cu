// aggregate on CUDA: sum, mean or max of the in-neighbours' rows for every destination of an MFG. The mapping of rows
// to threads is in aggregate_rows.cuh; sums keep the edges' order, so the result is the CPU's bit for bit.
//
// Edges whose source does not exist are skipped; fs_cuda_check_edges finds them.
#include "aggregate_rows.cuh"

namespace fs {
namespace {

template <typename T, typename Id>
struct InEdges {
  using Real = typename Arithmetic<T>::type;
  FsAggregation spec;
  FS_DEVICE Span span(int64_t dst) const { return edge_span(spec, dst); }
  FS_DEVICE int64_t source(int64_t edge) const { return source_of<Id>(spec, edge); }
  FS_DEVICE Real factor(int64_t edge, int64_t, int64_t head) const { return edge_weight<T>(spec, edge, head); }
  FS_DEVICE bool counts(int64_t, int64_t, int64_t) const { return true; }
  FS_DEVICE Real divisor(int64_t dst) const {
    const int64_t degree = spec.indptr[dst + 1] - spec.indptr[dst];
    return spec.reduce == FS_MEAN && degree > 1 ? static_cast<Real>(degree) : Real(1);
  }
};

template <int kColumns, typename T, typename Id>
FS_KERNEL void max_rows_kernel(InEdges<T, Id> edges, Tiling tiling, const T* x, T* out, int64_t out_stride,
                               int64_t* out_arg) {
  using Real = typename Arithmetic<T>::type;
  for_packs<kColumns>(tiling, [&](int64_t dst, int64_t column) {
    Real best[kColumns] = {};
    int64_t arg[kColumns];
    FS_UNROLL for (int c = 0; c < kColumns; ++c) arg[c] = -1;
    const int64_t head = column / tiling.head_width;
    for_entries<kColumns>(edges, edges.span(dst), x, tiling.width, column, head,
                          [&](int64_t edge, int64_t, Real weight, const Pack<T, kColumns>& pack) {
                            FS_UNROLL for (int c = 0; c < kColumns; ++c) {
                              const Real value = weight * load(pack.at[c]);
                              if (!wins(arg[c] < 0, value, best[c])) continue;
                              best[c] = value;
                              arg[c] = edge;
                            }
                          });
    Pack<T, kColumns> result;
    FS_UNROLL for (int c = 0; c < kColumns; ++c) {
      store(&result.at[c], best[c]);
      out_arg[dst * tiling.width + column + c] = arg[c];
    }
    *reinterpret_cast<Pack<T, kColumns>*>(out + dst * out_stride + column) = result;
  });
}

struct Rows {
  const void* x;
  void* out;
  int64_t out_stride;
  int64_t* out_arg;
};

template <typename T, typename Id>
void launch_rows(const FsAggregation& spec, const Rows& rows, cudaStream_t stream) {
  const InEdges<T, Id> edges = {spec};
  const T* x = static_cast<const T*>(rows.x);
  T* out = static_cast<T*>(rows.out);
  const uint64_t in_columns = static_cast<uint64_t>(spec.width / spec.num_heads | spec.width | rows.out_stride);
  with_pack<T>(address_bits(x) | address_bits(out) | in_columns * sizeof(T), [&](auto columns) {
    constexpr int kColumns = decltype(columns)::value;
    const Tiling tiling = tile_rows(spec, spec.num_dst, kColumns);
    const int blocks = blocks_for_rows(tiling);
    if (spec.reduce == FS_MAX) {
      launch(max_rows_kernel<kColumns, T, Id>, blocks, stream, edges, tiling, x, out, rows.out_stride, rows.out_arg);
    } else {
      launch(sum_rows_kernel<kColumns, T, InEdges<T, Id>>, blocks, stream, edges, tiling, x, spec.width, out,
             rows.out_stride);
    }
  });
}

template <typename T>
void launch_ids(const FsAggregation& spec, const Rows& rows, cudaStream_t stream) {
  if (spec.id_type == FS_INT32) {
    launch_rows<T, int32_t>(spec, rows, stream);
  } else {
    launch_rows<T, int64_t>(spec, rows, stream);
  }
}

template <typename Id>
FS_KERNEL void check_edges_kernel(FsAggregation spec, int32_t* out_bad) {
  const Id* indices = static_cast<const Id*>(spec.indices);
  for (int64_t i = thread_number(); i <= spec.num_dst || i < spec.num_edges; i += num_threads()) {
    bool is_bad = false;
    if (i <= spec.num_dst) {
      const int64_t at = spec.indptr[i], least = i == 0 ? 0 : spec.indptr[i - 1];
      is_bad = at < least || (i == 0 && at > 0) || (i == spec.num_dst && at != spec.num_edges);
    }
    if (i < spec.num_edges) is_bad = is_bad || indices[i] < 0 || indices[i] >= spec.num_src;
    if (is_bad) *out_bad = 1;
  }
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_cuda_check_edges(const FsAggregation* spec, int32_t* out_bad, void* stream) {
  const FsStatus status = fs::check_aggregation("aggregate", *spec);
  if (status != FS_OK) return status;
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  const int blocks = fs::blocks_for(spec->num_dst < spec->num_edges ? spec->num_edges : spec->num_dst + 1);
  if (spec->id_type == FS_INT32) {
    fs::launch(fs::check_edges_kernel<int32_t>, blocks, on, *spec, out_bad);
  } else {
    fs::launch(fs::check_edges_kernel<int64_t>, blocks, on, *spec, out_bad);
  }
  return fs::launch_status("aggregate");
}

FsStatus fs_cuda_aggregate(const FsAggregation* spec, const void* x, void* out, int64_t out_stride, int64_t* out_arg,
                           void* stream) {
  const FsStatus status = fs::check_aggregation("aggregate", *spec);
  if (status != FS_OK || spec->num_dst == 0 || spec->width == 0) return status;
  const fs::Rows rows = {x, out, out_stride, out_arg};
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  fs::with_element_type(spec->type, [&](auto value) { fs::launch_ids<decltype(value)>(*spec, rows, on); });
  return fs::launch_status("aggregate");
}

}  // extern "C"
