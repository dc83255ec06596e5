// Weighted draws of one hop (core/weighted_pick.h): positions first, a thread per row that draws and a warp per row
// that takes all; then what they point at, a thread per edge.
//
// Rows that alias draws give up on, because few edges have nearly all the weight, are listed and drawn again by warps,
// each with a sum tree: its leaves and levels are filled by all lanes, in the order of the sums on the CPU.
#ifndef FS_CUDA_WEIGHTED_KERNELS_CUH_
#define FS_CUDA_WEIGHTED_KERNELS_CUH_

#include "sample_kernels.cuh"
#include "weighted_pick.h"

namespace fs {

template <typename Weight>
struct DeviceWeights {
  const Weight* weights;    // [num_edges]
  const AliasEntry* table;  // [num_edges]
};

template <typename Weight>
DeviceWeights<Weight> device_weights(const FsWeightTables& tables) {
  return {static_cast<const Weight*>(tables.weights), reinterpret_cast<const AliasEntry*>(tables.alias_table)};
}

struct RestRows {
  int64_t* rows;    // [num_rest]
  uint64_t* count;  // [1]
};

template <typename Id, typename Weight>
FS_KERNEL void draw_weighted_rows(DeviceHop<Id> hop, DeviceWeights<Weight> weights, RestRows rest) {
  const int64_t num_rows = hop.num_rows();
  const StageKey key = hop.key();
  for (int64_t r = thread_number(); r < num_rows; r += num_threads()) {
    const RowEdges edges = hop.edges[r];
    int64_t* positions = hop.positions + hop.indptr[r];
    if (hop.indptr[r + 1] == hop.indptr[r] || takes_all(hop.positive(r), hop.fanout, hop.replace)) continue;
    NodeStream stream(key, hop.graph.orig_id(static_cast<int64_t>(hop.rows[r])));
    const AliasEntry* table = weights.table + edges.begin;
    if (hop.replace) {
      pick_weighted_with_replacement(stream, table, edges.degree, hop.fanout, positions);
      continue;
    }
    ScanTaken scan{positions};
    const int64_t taken = draw_weighted_distinct(stream, table, edges.degree, hop.fanout, scan, positions);
    if (taken < hop.fanout) rest.rows[atomic_add(rest.count, 1)] = r;
  }
  const int lane = lane_number();
  for (int64_t r = thread_number() / kWarp; r < num_rows; r += num_threads() / kWarp) {
    const RowEdges edges = hop.edges[r];
    int64_t place = hop.indptr[r];
    if (hop.indptr[r + 1] == place || !takes_all(hop.positive(r), hop.fanout, hop.replace)) continue;
    for (int64_t first = 0; first < edges.degree; first += kWarp) {
      const int64_t k = first + lane;
      const bool taken = k < edges.degree && weights.weights[edges.begin + k] > 0;
      const uint32_t ballot = __ballot_sync(kAllLanes, taken);
      if (taken) hop.positions[place + __popc(ballot & ((1u << lane) - 1u))] = k;
      place += __popc(ballot);
    }
  }
}

// A warp per sum tree; trees [warps, tree_size].
template <typename Id, typename Weight>
FS_KERNEL void draw_rest_rows(DeviceHop<Id> hop, DeviceWeights<Weight> weights, RestRows rest, double* trees,
                              int64_t tree_size, int num_trees) {
  const int64_t warp = thread_number() / kWarp;
  if (warp >= num_trees) return;
  const int lane = lane_number();
  const int64_t num_rest = static_cast<int64_t>(*rest.count);
  double* nodes = trees + warp * tree_size;
  for (int64_t i = warp; i < num_rest; i += num_trees) {
    const int64_t r = rest.rows[i];
    const RowEdges edges = hop.edges[r];
    int64_t* positions = hop.positions + hop.indptr[r];
    NodeStream stream(hop.key(), hop.graph.orig_id(static_cast<int64_t>(hop.rows[r])));
    ScanTaken scan{positions};
    SumTree tree(edges.degree, nodes);
    const int64_t leaves = tree.num_leaves();
    for (int64_t k = lane; k < leaves; k += kWarp) {
      nodes[leaves + k] = k < edges.degree ? static_cast<double>(weights.weights[edges.begin + k]) : 0;
    }
    __syncwarp(kAllLanes);
    int64_t taken = 0;
    if (lane == 0) {
      taken = draw_weighted_distinct(stream, weights.table + edges.begin, edges.degree, hop.fanout, scan, positions);
      for (int64_t k = 0; k < taken; ++k) tree.leave_out(positions[k]);
    }
    for (int64_t level = leaves / 2; level >= 1; level /= 2) {
      __syncwarp(kAllLanes);
      for (int64_t node = level + lane; node < 2 * level; node += kWarp) {
        nodes[node] = nodes[2 * node] + nodes[2 * node + 1];
      }
    }
    __syncwarp(kAllLanes);
    if (lane == 0) {
      for (int64_t k = taken; k < hop.fanout; ++k) positions[k] = tree.take(stream);
    }
    __syncwarp(kAllLanes);
  }
}

template <typename Id>
FS_KERNEL void put_positions(DeviceHop<Id> hop) {
  const int64_t num_rows = hop.num_rows(), num_edges = hop.num_edges();
  for (int64_t e = thread_number(); e < num_edges; e += num_threads()) {
    put_edge(hop, e, hop.edges[row_of_edge(hop.indptr, num_rows, e)].begin + hop.positions[e]);
  }
}

template <typename Id, typename Weight>
void sample_weighted(const DeviceHop<Id>& hop, const DeviceWeights<Weight>& weights, const BatchScratch<Id>& scratch,
                     const HopBound& bound, cudaStream_t stream) {
  const RestRows rest = {scratch.rest_rows, scratch.num_rest};
  if (!hop.replace) cudaMemsetAsync(rest.count, 0, sizeof(uint64_t), stream);
  launch(draw_weighted_rows<Id, Weight>, blocks_for(bound.rows), stream, hop, weights, rest);
  if (!hop.replace) {
    launch(draw_rest_rows<Id, Weight>, (scratch.num_trees + kWarps - 1) / kWarps, stream, hop, weights, rest,
           scratch.trees, scratch.tree_size, scratch.num_trees);
  }
  launch(put_positions<Id>, blocks_for(bound.edges), stream, hop);
}

}  // namespace fs

#endif  // FS_CUDA_WEIGHTED_KERNELS_CUH_
