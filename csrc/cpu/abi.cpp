// fs_abi_entries: what fastsample.h declares, as this library was compiled.
#include "abi_entries.h"

// clang-format off
static const FsAbiEntry kEntries[] = {
  FS_SHARED_STRUCTS
  FS_STRUCT(FsHop, num_dst, num_src, num_edges, indptr, indices, edge_ids)
  FS_STRUCT(FsMiniBatch, num_hops, num_nodes, nodes, hops)
  FS_STRUCT(FsEdgeWeights, indptr, weights, num_rows, num_edges, type, num_threads)
  FS_STRUCT(FsEdgeList, src, dst, weights, num_edges, num_nodes, first_edge, id_type, weight_type, undirected)
  FS_STRUCT(FsGroupedEdges, keys, weights, positions, counts, position_type)
  FS_STRUCT(FsEdgeBucket, keys, weights, positions, num_edges, first_row, num_rows, id_type, weight_type,
            position_type, merge, num_threads)
  FS_STRUCT(FsStream, indptr, indices, order, in_edges, kinds, capacities, num_nodes, num_edges, num_parts, id_type,
            score, alpha, rng_seed)
  FS_CONSTANT(FS_ABI_VERSION)
  FS_CONSTANT(FS_OK) FS_CONSTANT(FS_INVALID_ARGUMENT) FS_CONSTANT(FS_OUT_OF_MEMORY) FS_CONSTANT(FS_DEVICE_ERROR)
  FS_CONSTANT(FS_INT32) FS_CONSTANT(FS_INT64) FS_CONSTANT(FS_FLOAT32) FS_CONSTANT(FS_FLOAT64) FS_CONSTANT(FS_BFLOAT16)
  FS_CONSTANT(FS_FLOAT16) FS_CONSTANT(FS_INT8) FS_CONSTANT(FS_UINT8) FS_CONSTANT(FS_INT16)
  FS_CONSTANT(FS_SUM) FS_CONSTANT(FS_MEAN) FS_CONSTANT(FS_MAX)
  FS_CONSTANT(FS_IDENTITY) FS_CONSTANT(FS_RELU)
  FS_CONSTANT(FS_REFUSED_ROW) FS_CONSTANT(FS_REFUSED_OFFSETS) FS_CONSTANT(FS_REFUSED_NEGATIVE_SOURCE)
  FS_CONSTANT(FS_REFUSED_SOURCE) FS_CONSTANT(FS_REFUSED_NEGATIVE_SEED) FS_CONSTANT(FS_REFUSED_REPEATED_SEED)
  FS_CONSTANT(FS_REFUSED_NEGATIVE_DST) FS_CONSTANT(FS_REFUSED_REPEATED_DST) FS_CONSTANT(FS_REFUSED_NEGATIVE_NEIGHBOR)
  FS_CONSTANT(FS_REFUSED_ID) FS_CONSTANT(FS_REFUSED_PLACE) FS_CONSTANT(FS_REFUSED_OWNER)
  FS_CONSTANT(FS_REFUSAL_VALUES)
  FS_CONSTANT(FS_TAKE_ALL)
  FS_CONSTANT(FS_ROW_BITS) FS_CONSTANT(FS_MOST_TABLES)
  FS_CONSTANT(FS_UNIFORM) FS_CONSTANT(FS_WEIGHTED) FS_CONSTANT(FS_LABOR)
  FS_CONSTANT(FS_LDG) FS_CONSTANT(FS_FENNEL) FS_CONSTANT(FS_STREAM_LIMITS)
  FS_CONSTANT(FS_DROP_VARIATES)
  FS_END};
// clang-format on

extern "C" const FsAbiEntry* fs_abi_entries(void) { return kEntries; }
