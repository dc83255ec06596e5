// Gradients of aggregate on CUDA, equal to the CPU's bit for bit.
//
// Of x: edges are grouped by source (source_lists.cuh), then every source row is a sum like those of the forward pass.
// Of the weights: one thread per edge and head goes through the head's columns in order.
#include "source_lists.cuh"

namespace fs {
namespace {

template <typename T, bool kMax>
struct OutEdges {
  using Real = typename Arithmetic<T>::type;
  FsAggregation spec;
  SourceLists lists;
  const int64_t* arg;
  FS_DEVICE Span span(int64_t src) const { return {lists.offsets[src], lists.offsets[src + 1]}; }
  FS_DEVICE int64_t source(int64_t entry) const { return lists.dst[entry]; }
  FS_DEVICE Real factor(int64_t entry, int64_t dst, int64_t head) const {
    return coefficient<T>(spec, lists.edge(entry), dst, head);
  }
  FS_DEVICE bool counts(int64_t entry, int64_t dst, int64_t column) const {
    return !kMax || arg[dst * spec.width + column] == lists.edge(entry);
  }
  FS_DEVICE Real divisor(int64_t) const { return Real(1); }
};

template <typename T>
uint64_t pack_alignment(const FsAggregation& spec, const AggregateGrads& grads) {
  const uint64_t in_columns = static_cast<uint64_t>(spec.width / spec.num_heads | spec.width | grads.grad_stride);
  return address_bits(grads.grad_out) | in_columns * sizeof(T);
}

template <typename T, bool kMax>
void launch_grad_x(const FsAggregation& spec, const SourceLists& lists, const AggregateGrads& grads,
                   cudaStream_t stream) {
  const OutEdges<T, kMax> edges = {spec, lists, grads.arg};
  T* grad_x = static_cast<T*>(grads.grad_x);
  with_pack<T>(pack_alignment<T>(spec, grads) | address_bits(grad_x), [&](auto columns) {
    constexpr int kColumns = decltype(columns)::value;
    const Tiling tiling = tile_rows(spec, spec.num_src, kColumns);
    launch(sum_rows_kernel<kColumns, T, OutEdges<T, kMax>>, blocks_for_rows(tiling), stream, edges, tiling,
           static_cast<const T*>(grads.grad_out), grads.grad_stride, grad_x, spec.width);
  });
}

template <int kColumns, typename T, typename Id>
FS_KERNEL void grad_weights_kernel(FsAggregation spec, AggregateGrads grads) {
  using Real = typename Arithmetic<T>::type;
  using Columns = Pack<T, kColumns>;
  const int64_t head_width = spec.width / spec.num_heads;
  for (int64_t i = thread_number(); i < spec.num_edges * spec.num_heads; i += num_threads()) {
    const int64_t edge = i / spec.num_heads, first = i % spec.num_heads * head_width;
    const int64_t source = source_of<Id>(spec, edge), dst = dst_of(spec, edge);
    Real sum = 0;
    if (source >= 0 && dst >= 0) {
      const T* row = static_cast<const T*>(grads.x) + source * spec.width;
      const T* grad = static_cast<const T*>(grads.grad_out) + dst * grads.grad_stride;
      for (int64_t column = first; column < first + head_width; column += kColumns) {
        const Columns of_grad = *reinterpret_cast<const Columns*>(grad + column);
        const Columns of_row = *reinterpret_cast<const Columns*>(row + column);
        FS_UNROLL for (int c = 0; c < kColumns; ++c) {
          const bool counts = spec.reduce != FS_MAX || grads.arg[dst * spec.width + column + c] == edge;
          sum += counts ? load(of_grad.at[c]) * load(of_row.at[c]) : Real(0);
        }
      }
      if (spec.reduce == FS_MEAN) sum = sum / static_cast<Real>(spec.indptr[dst + 1] - spec.indptr[dst]);
    }
    store(static_cast<T*>(grads.grad_weights) + i, sum);
  }
}

template <typename T>
void launch_grad_weights(const FsAggregation& spec, const AggregateGrads& grads, cudaStream_t stream) {
  const int blocks = blocks_for(spec.num_edges * spec.num_heads);
  with_pack<T>(pack_alignment<T>(spec, grads) | address_bits(grads.x), [&](auto columns) {
    constexpr int kColumns = decltype(columns)::value;
    if (spec.id_type == FS_INT32) {
      launch(grad_weights_kernel<kColumns, T, int32_t>, blocks, stream, spec, grads);
    } else {
      launch(grad_weights_kernel<kColumns, T, int64_t>, blocks, stream, spec, grads);
    }
  });
}

template <typename T>
FsStatus backward(const FsAggregation& spec, const AggregateGrads& grads, void* workspace, cudaStream_t stream) {
  if (grads.grad_x != nullptr && spec.num_src > 0 && spec.width > 0) {
    ListLayout layout{};
    FsStatus status = list_layout(spec, &layout);
    if (status != FS_OK) return status;
    SourceLists lists;
    status = make_source_lists(spec, layout, workspace, stream, &lists);
    if (status != FS_OK) return status;
    if (spec.reduce == FS_MAX) {
      launch_grad_x<T, true>(spec, lists, grads, stream);
    } else {
      launch_grad_x<T, false>(spec, lists, grads, stream);
    }
  }
  if (grads.grad_weights != nullptr && spec.num_edges > 0) launch_grad_weights<T>(spec, grads, stream);
  return launch_status("aggregate_backward");
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_cuda_aggregate_backward_workspace(const FsAggregation* spec, int64_t* out_bytes, void*) {
  fs::ListLayout layout{};
  const FsStatus status = fs::list_layout(*spec, &layout);
  if (status == FS_OK) *out_bytes = static_cast<int64_t>(layout.bytes);
  return status;
}

FsStatus fs_cuda_aggregate_backward(const FsAggregation* spec, const void* x, const int64_t* arg, const void* grad_out,
                                    int64_t grad_stride, void* out_grad_x, void* out_grad_weights, void* workspace,
                                    void* stream) {
  const FsStatus status = fs::check_aggregation("aggregate_backward", *spec);
  if (status != FS_OK) return status;
  const fs::AggregateGrads grads = {x, arg, grad_out, grad_stride, out_grad_x, out_grad_weights, nullptr};
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  return fs::with_element_type(spec->type, [&](auto value) {  //
    return fs::backward<decltype(value)>(*spec, grads, workspace, on);
  });
}

}  // extern "C"
