// Drawing and reading the edges of one hop whose rows have their places.
//
// sample_by_groups   fanouts up to 32: a group of 4, 8, 16 or 32 lanes per row, so several rows per warp; a row's work
//                    depends on the fanout alone, which balances skewed degrees
// sample_by_warps    larger fanouts: a warp per row
// sample_all         every neighbour: a thread per edge, which balances by itself; the row is found by bisection
//
// A row that is taken whole is read by neighbouring lanes from neighbouring addresses.
#ifndef FS_CUDA_SAMPLE_KERNELS_CUH_
#define FS_CUDA_SAMPLE_KERNELS_CUH_

#include "hop_kernels.cuh"

namespace fs {

// Puts the slot of edge e's source into its place, and the edge forward as the one that brings the node.
template <typename Id>
FS_DEVICE void put_slot(const DeviceHop<Id>& hop, int64_t e, uint64_t slot) {
  if (slot == kNoSlot) {
    hop.indices[e] = Id{-1};
    return;
  }
  // A node that is known already has a smaller value than any edge, and is not touched again. Values only become less:
  // an edge that finds a lesser one here is not the first.
  uint64_t* value = hop.table.values + slot;
  const uint64_t first = hop.stamp() + kFirstEdge + static_cast<uint64_t>(e);
  const bool may_be_first = load_now(value) > first;
  if (may_be_first) atomic_min(value, first);
  hop.indices[e] = SlotWord<Id>::of(slot, may_be_first);
}

// Reports edge e, whose source is not a row.
template <typename Id>
FS_DEVICE void put_bad_edge(const DeviceHop<Id>& hop, int64_t e) {
  atomic_min(hop.state + bad_edge_word(hop.number), static_cast<uint64_t>(e));
  put_slot(hop, e, kNoSlot);
}

// Puts the source of edge e into its place: a slot of the table, or without a table the id itself.
template <typename Id>
FS_DEVICE void put_source(const DeviceHop<Id>& hop, int64_t e, Id source) {
  if (hop.table.values == nullptr) {
    hop.indices[e] = source;
    return;
  }
  if (hop.graph.has_row(source)) {  // the table has no room for others, which a slice may hold
    put_slot(hop, e, enter_node(hop.table, hop.state, source));
  } else {
    put_bad_edge(hop, e);
  }
}

// Edge e is the one at `position` of the graph's indices.
template <typename Id>
FS_DEVICE void put_edge(const DeviceHop<Id>& hop, int64_t e, int64_t position) {
  if (hop.edge_ids != nullptr) hop.edge_ids[e] = position;
  put_source(hop, e, hop.graph.indices[position]);
}

template <typename Id>
FS_DEVICE DrawnRow drawn_row(const DeviceHop<Id>& hop, StageKey key, int64_t r, int64_t degree) {
  return {key, hop.graph.orig_id(static_cast<int64_t>(hop.rows[r])), degree, hop.fanout, hop.replace};
}

template <typename Id>
FS_DEVICE void draw_rows_by_groups(const DeviceHop<Id>& hop, int width) {
  const LaneGroup group = lane_group(width);
  const int64_t num_rows = hop.num_rows(), groups = num_threads() / width;
  const StageKey key = hop.key();
  for (int64_t r = thread_number() / width; r < num_rows; r += groups) {
    const RowEdges edges = hop.edges[r];
    const int64_t place = hop.indptr[r], picks = hop.indptr[r + 1] - place;
    if (picks == 0) continue;
    int64_t position = group.lane;
    if (!takes_all(edges.degree, hop.fanout, hop.replace)) {
      position = draw_by_lanes(group, drawn_row(hop, key, r, edges.degree));
    }
    if (group.lane < picks) put_edge(hop, place + group.lane, edges.begin + position);
  }
}

template <typename Id>
FS_KERNEL void sample_by_groups(DeviceHop<Id> hop, int width) {
  draw_rows_by_groups(hop, width);
}

template <typename Id>
FS_DEVICE void draw_rows_by_warps(const DeviceHop<Id>& hop) {
  const LaneGroup warp = lane_group(kWarp);
  const int64_t num_rows = hop.num_rows();
  const StageKey key = hop.key();
  for (int64_t r = thread_number() / kWarp; r < num_rows; r += num_threads() / kWarp) {
    const RowEdges edges = hop.edges[r];
    const int64_t place = hop.indptr[r], picks = hop.indptr[r + 1] - place;
    if (picks == 0) continue;
    const bool whole = takes_all(edges.degree, hop.fanout, hop.replace);
    if (!whole) draw_by_warp(warp, drawn_row(hop, key, r, edges.degree), hop.positions + place);
    for (int64_t k = warp.lane; k < picks; k += kWarp) {
      put_edge(hop, place + k, edges.begin + (whole ? k : hop.positions[place + k]));
    }
  }
}

template <typename Id>
FS_KERNEL void sample_by_warps(DeviceHop<Id> hop) {
  draw_rows_by_warps(hop);
}

// The row that edge e belongs to: the last one that begins at or before it.
FS_DEVICE int64_t row_of_edge(const int64_t* indptr, int64_t num_rows, int64_t e) {
  int64_t low = 0, high = num_rows;  // indptr[low] <= e < indptr[high]
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (indptr[middle] <= e) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

template <typename Id>
FS_DEVICE void take_all_edges(const DeviceHop<Id>& hop) {
  const int64_t num_rows = hop.num_rows(), num_edges = hop.num_edges();
  for (int64_t e = thread_number(); e < num_edges; e += num_threads()) {
    const int64_t r = row_of_edge(hop.indptr, num_rows, e);
    put_edge(hop, e, hop.edges[r].begin + (e - hop.indptr[r]));
  }
}

template <typename Id>
FS_KERNEL void sample_all(DeviceHop<Id> hop) {
  take_all_edges(hop);
}

// Uniform draws: enqueues the kernel that suits the hop's fanout.
template <typename Id>
void sample_uniform(const DeviceHop<Id>& hop, const HopBound& bound, cudaStream_t stream) {
  if (hop.fanout == kTakeAll) {
    launch(sample_all<Id>, blocks_for(bound.edges), stream, hop);
  } else if (hop.fanout <= kWarp) {
    const int width = group_width(hop.fanout);
    launch(sample_by_groups<Id>, blocks_for(bounded_product(bound.rows, width, INT64_MAX)), stream, hop, width);
  } else {
    launch(sample_by_warps<Id>, blocks_for(bounded_product(bound.rows, kWarp, INT64_MAX)), stream, hop);
  }
}

}  // namespace fs

#endif  // FS_CUDA_SAMPLE_KERNELS_CUH_
