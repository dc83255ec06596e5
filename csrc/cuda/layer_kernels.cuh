// Layer-neighbour draws of one hop (core/layer_pick.h), a warp per row. The variates of all neighbours of a row are
// computed twice: to count the picks, and to place them.
#ifndef FS_CUDA_LAYER_KERNELS_CUH_
#define FS_CUDA_LAYER_KERNELS_CUH_

#include "sample_kernels.cuh"

namespace fs {

// Whether the source at `position` of the graph's indices is picked by a row with this bound of the variate.
template <typename Id>
FS_DEVICE bool picks_source(const DeviceHop<Id>& hop, StageKey key, uint64_t bound, int64_t position, int64_t r) {
  const int64_t source = static_cast<int64_t>(hop.graph.indices[position]);
  if (!hop.graph.has_source(source)) {
    atomic_min(hop.state + bad_scan_word(hop.number), static_cast<uint64_t>(r));
    return false;
  }
  return variate(key, hop.graph.src_orig_id(source)) < bound;
}

// body(k, taken, before) for every neighbour k of row r, by the lanes of a warp: whether it is picked, and how many
// neighbours before it are. Returns how many are picked.
template <typename Id, typename Body>
FS_DEVICE int64_t scan_layer_row(const DeviceHop<Id>& hop, StageKey key, int64_t r, const Body& body) {
  const RowEdges edges = hop.edges[r];
  const uint64_t bound = layer_bound(edges.degree, hop.fanout);
  const bool whole = bound >> 32 != 0;
  const int lane = lane_number();
  int64_t taken_before = 0;
  for (int64_t first = 0; first < edges.degree; first += kWarp) {
    const int64_t k = first + lane;
    const bool taken = k < edges.degree && (whole || picks_source(hop, key, bound, edges.begin + k, r));
    const uint32_t ballot = __ballot_sync(kAllLanes, taken);
    if (taken) body(k, taken_before + __popc(ballot & ((1u << lane) - 1u)));
    taken_before += __popc(ballot);
  }
  return taken_before;
}

template <typename Id>
FS_KERNEL void count_layer_rows(DeviceHop<Id> hop, bool are_seeds) {
  const int64_t num_given = hop.num_given();
  const StageKey key = hop.key();
  for (int64_t r = thread_number() / kWarp; r < num_given; r += num_threads() / kWarp) {
    if (lane_number() == 0) {
      check_row(hop, r, are_seeds);
      hop.edges[r] = row_edges(hop.graph, hop.rows[r]);
    }
    __syncwarp(kAllLanes);
    const int64_t count = scan_layer_row(hop, key, r, [](int64_t, int64_t) {});
    if (lane_number() == 0) hop.indptr[r + 1] = count;
  }
}

template <typename Id>
FS_KERNEL void place_layer_rows(DeviceHop<Id> hop) {
  place_picks(hop, [&](int64_t r) { return hop.indptr[r + 1]; });
}

template <typename Id>
FS_KERNEL void sample_layer_rows(DeviceHop<Id> hop) {
  const int64_t num_rows = hop.num_rows();
  const StageKey key = hop.key();
  for (int64_t r = thread_number() / kWarp; r < num_rows; r += num_threads() / kWarp) {
    const int64_t place = hop.indptr[r], begin = hop.edges[r].begin;
    scan_layer_row(hop, key, r, [&](int64_t k, int64_t before) { put_edge(hop, place + before, begin + k); });
  }
}

}  // namespace fs

#endif  // FS_CUDA_LAYER_KERNELS_CUH_
