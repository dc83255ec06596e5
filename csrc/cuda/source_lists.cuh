// In-edges grouped by source, for the gradient of x: the edges of a source are ascending, so that sums have one order.
//
// A key holds an edge's source above its number; sorted by the source's bits (which keeps the order of the numbers) the
// keys are the lists. Lists' bounds and the edges' destinations are found by binary search.
#ifndef FS_CUDA_SOURCE_LISTS_CUH_
#define FS_CUDA_SOURCE_LISTS_CUH_

#include "aggregate_rows.cuh"
#include "device_algorithms.cuh"
#include "sorted_keys.cuh"

namespace fs {
namespace {

struct SourceLists {
  int64_t* offsets;  // [num_src + 1]
  uint64_t* sorted;  // [num_edges] source << edge_bits | edge; an edge without a source comes after the others
  int64_t* dst;      // [num_edges] destination of each entry, -1 where there is none
  int edge_bits;
  FS_DEVICE int64_t edge(int64_t entry) const {
    return static_cast<int64_t>(sorted[entry] & ((uint64_t{1} << edge_bits) - 1));
  }
};

// Where the lists lie in the workspace: bytes from its start.
struct ListLayout {
  KeySort sort;
  size_t sorted, dst, offsets, scratch, scratch_bytes, bytes;
};

inline FsStatus list_layout(const FsAggregation& spec, ListLayout* out) {
  constexpr size_t kAligned = 256;
  const int edge_bits = bits_of(spec.num_edges), source_bits = bits_of(spec.num_src);
  if (edge_bits + source_bits > 64) {
    return fail(FS_INVALID_ARGUMENT, "aggregate_backward: %lld edges from %lld sources; numbers of both have 64 bits",
                static_cast<long long>(spec.num_edges), static_cast<long long>(spec.num_src));
  }
  out->sort = {spec.num_edges, edge_bits, edge_bits + source_bits};
  const FsStatus status = measure_sort("aggregate_backward", out->sort, &out->scratch_bytes);
  if (status != FS_OK) return status;
  const size_t edges = static_cast<size_t>(spec.num_edges), sources = static_cast<size_t>(spec.num_src);
  const auto after = [](size_t begin, size_t bytes) { return (begin + bytes + kAligned - 1) / kAligned * kAligned; };
  out->sorted = 0;
  out->dst = after(out->sorted, edges * sizeof(uint64_t));
  out->offsets = after(out->dst, edges * sizeof(int64_t));
  out->scratch = after(out->offsets, (sources + 1) * sizeof(int64_t));
  out->bytes = out->scratch + out->scratch_bytes;
  return FS_OK;
}

// The destination of an edge, -1 where indptr has none for it.
FS_DEVICE int64_t dst_of(const FsAggregation& spec, int64_t edge) {
  const int64_t dst = bound_in<true>(spec.indptr, spec.num_dst, edge) - 1;
  return dst >= 0 && edge < spec.indptr[dst + 1] ? dst : -1;
}

template <typename Id>
FS_KERNEL void source_keys_kernel(FsAggregation spec, int edge_bits, uint64_t* keys) {
  for (int64_t e = thread_number(); e < spec.num_edges; e += num_threads()) {
    const int64_t found = source_of<Id>(spec, e), source = found < 0 ? spec.num_src : found;
    keys[e] = static_cast<uint64_t>(source) << edge_bits | static_cast<uint64_t>(e);
  }
}

FS_KERNEL void source_lists_kernel(FsAggregation spec, SourceLists lists) {
  for (int64_t i = thread_number(); i <= spec.num_src || i < spec.num_edges; i += num_threads()) {
    if (i <= spec.num_src) {
      lists.offsets[i] = bound_in<false>(lists.sorted, spec.num_edges, static_cast<uint64_t>(i) << lists.edge_bits);
    }
    if (i < spec.num_edges) lists.dst[i] = dst_of(spec, lists.edge(i));
  }
}

// Enqueues the making of the lists in the workspace.
inline FsStatus make_source_lists(const FsAggregation& spec, const ListLayout& layout, void* workspace,
                                  cudaStream_t stream, SourceLists* out) {
  char* const base = static_cast<char*>(workspace);
  out->sorted = reinterpret_cast<uint64_t*>(base + layout.sorted);
  out->dst = reinterpret_cast<int64_t*>(base + layout.dst);
  out->offsets = reinterpret_cast<int64_t*>(base + layout.offsets);
  out->edge_bits = layout.sort.begin_bit;
  uint64_t* const keys = reinterpret_cast<uint64_t*>(out->dst);  // until they are sorted
  if (spec.num_edges > 0) {
    const int blocks = blocks_for(spec.num_edges);
    if (spec.id_type == FS_INT32) {
      launch(source_keys_kernel<int32_t>, blocks, stream, spec, out->edge_bits, keys);
    } else {
      launch(source_keys_kernel<int64_t>, blocks, stream, spec, out->edge_bits, keys);
    }
    const SortArrays arrays = {keys, out->sorted, base + layout.scratch, layout.scratch_bytes};
    const FsStatus status = sort_keys("aggregate_backward", layout.sort, arrays, stream);
    if (status != FS_OK) return status;
  }
  launch(source_lists_kernel, blocks_for(spec.num_src < spec.num_edges ? spec.num_edges : spec.num_src + 1), stream,
         spec, *out);
  return FS_OK;
}

}  // namespace
}  // namespace fs

#endif  // FS_CUDA_SOURCE_LISTS_CUH_
