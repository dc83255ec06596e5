// Collective applications on CUDA, many samples at a time. The host goes from step to step (FsCudaMembers tells what it
// keeps); here is what looks at the graph: picks in combined neighbourhoods or from a table over all nodes, and the
// edges that lead from given sources to given destinations.
//
//   enter_members   a thread a node: its slot in the table of all samples' members
//   count_degrees   a thread a row
//   fill_slots      a thread a pick
//   record_rows     a warp a destination: it looks up every neighbour among the members; counts first, then places, in
//                   the order of the row
#include "device.cuh"
#include "edge_values.cuh"
#include "id_table.cuh"
#include "sorted_keys.cuh"
#include "transit_draw.h"

namespace fs {
namespace {

constexpr const char* kOperation = "collective_sample";

struct Members {
  DeviceIdTable<int64_t> table;
  int64_t num_nodes;

  explicit Members(const FsCudaMembers& members)
      : table{members.keys, nullptr, members.slots, bits_of(members.slots - 1)}, num_nodes(members.num_nodes) {}
};

FS_KERNEL void enter_members(Members members, const int64_t* nodes, int64_t count, int64_t width, int64_t* slots) {
  for (int64_t i = thread_number(); i < count; i += num_threads()) {
    const int64_t node = nodes[i], member = i / width * members.num_nodes + node;
    slots[i] = node < 0 ? members.table.slots : static_cast<int64_t>(members.table.insert(member));
  }
}

FS_KERNEL void count_degrees(const int64_t* indptr, const int64_t* rows, int64_t count, int64_t* out) {
  for (int64_t i = thread_number(); i < count; i += num_threads()) out[i] = indptr[rows[i] + 1] - indptr[rows[i]];
}

// Where a slot of FS_NEXT_GLOBAL leads to.
struct GlobalTable {
  const int64_t* node;
  const uint32_t* threshold;
  const int64_t* other;
  uint64_t length;

  FS_DEVICE int64_t pick(PickStream& draw) const {
    const uint64_t entry = draw.below(length);
    return draw.next() < threshold[entry] ? node[entry] : other[entry];
  }
};

template <typename Id>
struct PickTask {
  const int64_t* indptr;
  const Id* indices;
  int64_t num_nodes, final_size;
  bool is_layer;
  GlobalTable global;
  StageKey key;
  FsCudaPicks picks;

  // Uniform in the rows of the sample's transits.
  FS_DEVICE int64_t layer_pick(int64_t sample, int64_t slot, PickStream& draw) const {
    const int64_t first = picks.begins[sample], count = picks.begins[sample + 1] - first;
    const int64_t* ends = picks.ends + first;
    const int64_t num_edges = ends[count] - ends[0];
    if (num_edges == 0 || picks.filled[sample] + slot >= final_size) return FS_NULL_NODE;
    const int64_t edge = ends[0] + static_cast<int64_t>(draw.below(static_cast<uint64_t>(num_edges)));
    const int64_t at = bound_in<true>(ends, count + 1, edge) - 1;
    const int64_t source = indices[indptr[picks.transits[first + at]] + edge - ends[at]];
    if (source >= 0 && source < num_nodes) return source;
    atomic_min(picks.bad, static_cast<uint64_t>(sample));
    return FS_NULL_NODE;
  }
};

template <typename Id>
FS_KERNEL void fill_slots(PickTask<Id> task) {
  const FsCudaPicks& picks = task.picks;
  for (int64_t i = thread_number(); i < picks.num_samples * picks.sample_size; i += num_threads()) {
    const int64_t sample = i / picks.sample_size, slot = i % picks.sample_size;
    if (picks.out[i] != FS_CUDA_OPEN_SLOT) continue;
    PickStream draw(task.key, picks.sample_ids[sample], picks.attempt * picks.sample_size + slot);
    int64_t pick = FS_NULL_NODE;
    if (picks.begins[sample] != picks.begins[sample + 1]) {
      pick = task.is_layer ? task.layer_pick(sample, slot, draw) : task.global.pick(draw);
    }
    picks.out[i] = pick;
  }
}

template <typename Id>
FsStatus make_picks(const FsGraph& graph, const FsTransitApp& app, const FsCudaPicks& picks, cudaStream_t stream) {
  PickTask<Id> task = {};
  task.indptr = graph.indptr;
  task.indices = static_cast<const Id*>(graph.indices);
  task.num_nodes = graph.num_rows;
  task.is_layer = app.next_kind == FS_NEXT_LAYER;
  if (task.is_layer) {
    task.final_size = app.params[0];
  } else {
    const auto words = [&](int i) { return reinterpret_cast<const int64_t*>(static_cast<uintptr_t>(app.params[i])); };
    task.global = {words(0), reinterpret_cast<const uint32_t*>(words(2)), words(4),
                   static_cast<uint64_t>(app.params[1])};
  }
  task.key = transit_key(picks.rng_seed, kTransit, picks.step_index, picks.step);
  task.picks = picks;
  launch(fill_slots<Id>, blocks_for(picks.num_samples * picks.sample_size), stream, task);
  return launch_status(kOperation);
}

template <typename Id>
struct RecordTask {
  const int64_t* indptr;
  const Id* indices;
  DeviceEdgeValues values;
  Members members;
  FsCudaRecordedRows rows;

  // Slot of a member that is a source, or -1.
  FS_DEVICE int64_t source_slot(int64_t sample, int64_t node) const {
    if (node < 0 || node >= members.num_nodes) return -1;
    const uint64_t slot = members.table.find(sample * members.num_nodes + node);
    return slot == kNoSlot || rows.sources[slot] < 0 ? -1 : static_cast<int64_t>(slot);
  }

  FS_DEVICE double value(int64_t edge) const { return edge < 0 ? 1.0 : values[edge]; }

  FS_DEVICE void put(int64_t place, int64_t row, int64_t source, int64_t slot, int64_t edge) const {
    rows.out_slots[place] = slot;
    rows.out_edge_ids[place] = edge;
    if (rows.out_weights == nullptr) return;
    if (rows.columns != nullptr) {
      const double own = value(edge);
      rows.out_weights[place] = own == 0 ? 0 : own / rows.columns[slot];
      return;
    }
    const int64_t chosen = rows.sources[slot] > 1 ? rows.sources[slot] : 1;
    const double scaled = value(edge) * rows.row_scale[row] * rows.column_scale[source];
    rows.out_weights[place] = scaled * static_cast<double>(chosen) / static_cast<double>(rows.num_picks);
  }

  // Makes the weights of a row, places first .. last - 1, shares of their sum from the left. Every lane must call it.
  FS_DEVICE void share_row(int64_t first, int64_t last) const {
    __syncwarp(kAllLanes);  // each lane has written some of them
    double sum = 0;
    for (int64_t i = first; i < last; ++i) sum += rows.out_weights[i];
    __syncwarp(kAllLanes);
    for (int64_t i = first + lane_number(); i < last && sum > 0; i += kWarp) rows.out_weights[i] /= sum;
  }
};

template <typename Id, bool kPlaces>
FS_KERNEL void record_rows(RecordTask<Id> task) {
  const FsCudaRecordedRows& rows = task.rows;
  const int lane = lane_number();
  for (int64_t r = thread_number() / kWarp; r < rows.num_rows; r += num_threads() / kWarp) {
    const int64_t node = rows.nodes[r], sample = rows.samples[r];
    const int64_t begin = task.indptr[node], degree = task.indptr[node + 1] - begin;
    int64_t place = kPlaces ? rows.offsets[r] : 0;
    const int64_t own = rows.self_edges != 0 ? task.source_slot(sample, node) : -1;
    if (own >= 0) {
      if (kPlaces && lane == 0) task.put(place, node, node, own, -1);
      ++place;
    }
    for (int64_t first = 0; first < degree; first += kWarp) {
      const int64_t at = begin + first + lane, source = first + lane < degree ? task.indices[at] : FS_NULL_NODE;
      const int64_t slot = task.source_slot(sample, source);
      const uint32_t found = __ballot_sync(kAllLanes, slot >= 0);
      if (kPlaces && slot >= 0) task.put(place + __popc(found & ((1u << lane) - 1)), node, source, slot, at);
      place += __popc(found);
    }
    if (!kPlaces && lane == 0) rows.counts[r] = place;
    if (kPlaces && rows.columns != nullptr) task.share_row(rows.offsets[r], place);
  }
}

template <typename Id>
FsStatus record(const FsGraph& graph, const FsCudaMembers& members, const FsCudaRecordedRows& rows,
                cudaStream_t stream) {
  const RecordTask<Id> task = {graph.indptr, static_cast<const Id*>(graph.indices), DeviceEdgeValues(graph.weights),
                               Members(members), rows};
  launch(rows.offsets == nullptr ? record_rows<Id, false> : record_rows<Id, true>, blocks_for(rows.num_rows * kWarp),
         stream, task);
  return launch_status(kOperation);
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_cuda_enter_members(const FsCudaMembers* members, const int64_t* nodes, int64_t count, int64_t width,
                               int64_t* out_slots, void* stream) {
  fs::launch(fs::enter_members, fs::blocks_for(count), static_cast<cudaStream_t>(stream), fs::Members(*members), nodes,
             count, width, out_slots);
  return fs::launch_status(fs::kOperation);
}

FsStatus fs_cuda_row_degrees(const FsGraph* graph, const int64_t* rows, int64_t count, int64_t* out_degrees,
                             void* stream) {
  fs::launch(fs::count_degrees, fs::blocks_for(count), static_cast<cudaStream_t>(stream), graph->indptr, rows, count,
             out_degrees);
  return fs::launch_status(fs::kOperation);
}

FsStatus fs_cuda_collective_picks(const FsGraph* graph, const FsTransitApp* app, const FsCudaPicks* picks,
                                  void* stream) {
  if (app->next_kind != FS_NEXT_LAYER && app->next_kind != FS_NEXT_GLOBAL) {
    return fs::refuse_kind(fs::kOperation, app->next_kind);
  }
  if (picks->num_samples * picks->sample_size == 0) return FS_OK;  // clusters make no picks, and have no params
  const auto make = graph->id_type == FS_INT32 ? fs::make_picks<int32_t> : fs::make_picks<int64_t>;
  return make(*graph, *app, *picks, static_cast<cudaStream_t>(stream));
}

FsStatus fs_cuda_record_rows(const FsGraph* graph, const FsCudaMembers* members, const FsCudaRecordedRows* rows,
                             void* stream) {
  const auto record = graph->id_type == FS_INT32 ? fs::record<int32_t> : fs::record<int64_t>;
  return record(*graph, *members, *rows, static_cast<cudaStream_t>(stream));
}

}  // extern "C"
