// sample_mfg on CUDA, hop by hop: FastSample's algorithm 1 with every step a kernel. All hops are enqueued at once;
// sizes stay on the device, arrays are as large as their bounds, and the caller reads the state back at the end.
// sample_neighbors: one hop of rows that may repeat, without relabelling.
//
// Selection without replacement is Floyd's (core/pick.h): its work depends on the fanout, where a reservoir reads every
// neighbour of a row.
#include "hop_chain.cuh"
#include "layer_kernels.cuh"
#include "sample_kernels.cuh"
#include "weighted_kernels.cuh"

namespace fs {

FsStatus check_cuda_request(const char* operation, const FsGraph& graph, const FsSampleSpec& spec) {
  if (spec.num_hops < 0 || spec.num_hops > FS_CUDA_MAX_HOPS) {
    return fail(FS_INVALID_ARGUMENT, "%s: %d hops; expected at most %d on CUDA", operation, spec.num_hops,
                FS_CUDA_MAX_HOPS);
  }
  return check_sample_request(operation, graph, spec);
}

FsStatus check_one_launch(const FsGraph& graph, const FsSampleSpec& spec, const char* kernel) {
  const FsStatus status = check_cuda_request("sample_mfg", graph, spec);
  if (status != FS_OK || spec.method == FS_UNIFORM) return status;
  return fail(FS_INVALID_ARGUMENT, "sample_mfg: method %d; expected 0 (uniform), which alone the %s kernel draws",
              spec.method, kernel);
}

namespace {

// What is known of a hop's rows: that they are seeds, that they may repeat, or that they are sources of the hop before.
enum class Rows { kSeeds, kRepeating, kSources };

// The picks of a hop: placed, where the hop before has not, drawn and read.
template <typename Id>
void draw_hop(const BatchCall& call, const BatchScratch<Id>& scratch, const DeviceHop<Id>& hop, Rows rows) {
  const HopBound bound = call.bound(hop.number);
  if (call.spec.method == FS_LABOR) {
    const int64_t lanes = bounded_product(bound.rows, kWarp, INT64_MAX);
    launch(count_layer_rows<Id>, blocks_for(lanes), call.stream, hop, rows == Rows::kSeeds);
    launch(place_layer_rows<Id>, tile_blocks(bound.rows), call.stream, hop);
  } else if (!call.is_placed_ahead(hop.number)) {
    launch(place_rows<false, Id>, tile_blocks(bound.rows), call.stream, hop, rows == Rows::kSeeds);
  }
  if (call.spec.method == FS_LABOR) {
    launch(sample_layer_rows<Id>, blocks_for(bounded_product(bound.rows, kWarp, INT64_MAX)), call.stream, hop);
  } else if (call.spec.method == FS_UNIFORM) {
    sample_uniform(hop, bound, call.stream);
  } else if (call.graph.weights->weight_type == FS_FLOAT32) {
    sample_weighted(hop, device_weights<float>(*call.graph.weights), scratch, bound, call.stream);
  } else {
    sample_weighted(hop, device_weights<double>(*call.graph.weights), scratch, bound, call.stream);
  }
}

template <typename Id>
void sample_hops(const BatchCall& call) {
  const BatchScratch<Id> scratch = scratch_of<Id>(call);
  begin_batch(call, scratch);
  relabel_hops<false>(call, scratch, [&](const DeviceHop<Id>& hop) {
    draw_hop(call, scratch, hop, hop.number == 0 ? Rows::kSeeds : Rows::kSources);
  });
}

// The one hop's rows are the seeds, which are neither relabelled nor compared.
template <typename Id>
FS_KERNEL void begin_rows(SeedTask<Id> task) {
  if (thread_number() != 0) return;
  task.stage_keys[0] = task.key_of(0);
  task.state[kNumSeeds] = static_cast<uint64_t>(task.num_seeds);
}

template <typename Id>
void sample_rows(const BatchCall& call) {
  BatchScratch<Id> scratch = scratch_of<Id>(call);
  scratch.last_stamp = nullptr;
  scratch.table.values = nullptr;
  clear_scratch(call, scratch);
  launch(begin_rows<Id>, 1, call.stream, seed_task(call, scratch));
  DeviceHop<Id> hop = hop_of(call, scratch, 0);
  hop.rows = static_cast<const Id*>(call.seeds.ids);
  draw_hop(call, scratch, hop, Rows::kRepeating);
}

template <typename Id>
int64_t workspace_bytes(const FsGraph& graph, const FsSampleSpec& spec, const FsCudaSampleSizes& sizes) {
  return carve_scratch<Id>(graph, spec, sizes, nullptr, nullptr).bytes;
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_cuda_sample_sizes(const FsGraph* graph, const FsSampleSpec* spec, int64_t num_seeds, int64_t max_degree,
                              int64_t expected_nodes, int32_t relabels, FsCudaSampleSizes* out) {
  const FsStatus status = fs::check_cuda_request("sample_mfg", *graph, *spec);
  if (status != FS_OK) return status;
  int64_t rows = num_seeds;
  for (int hop = 0; hop < spec->num_hops; ++hop) {
    // Rows of sample_neighbors may repeat: then the graph's edges bound nothing.
    const int64_t most_edges = relabels == 0 ? INT64_MAX : graph->num_edges;
    const fs::HopBound bound = fs::hop_bound(*spec, hop, max_degree, rows, most_edges);
    out->max_rows[hop] = bound.rows;
    out->max_edges[hop] = bound.edges;
    const int64_t most_new = graph->num_rows > rows ? graph->num_rows - rows : 0;
    rows += bound.edges < most_new ? bound.edges : most_new;
  }
  out->max_nodes = relabels != 0 ? rows : 0;
  out->max_degree = max_degree;
  out->max_tasks = out->grid_blocks = 0;
  out->state_words = fs::state_words(spec->num_hops);
  const int64_t id_bytes = graph->id_type == FS_INT32 ? 4 : 8;
  out->table_nodes = fs::table_room(out->max_nodes, expected_nodes, graph->num_rows, id_bytes);
  const fs::IdTableSize table = fs::id_table_size(out->table_nodes, graph->num_rows, id_bytes);
  out->table_words = relabels != 0 && table.is_direct ? 1 + table.slots : 0;
  out->workspace_bytes = graph->id_type == FS_INT32 ? fs::workspace_bytes<int32_t>(*graph, *spec, *out)
                                                    : fs::workspace_bytes<int64_t>(*graph, *spec, *out);
  return FS_OK;
}

FsStatus fs_cuda_sample_mfg(const FsGraph* graph, const FsSampleSpec* spec, const FsCudaSeeds* seeds,
                            const FsCudaSampleSizes* sizes, const FsCudaBatch* batch, void* stream) {
  const FsStatus status = fs::check_cuda_request("sample_mfg", *graph, *spec);
  if (status != FS_OK) return status;
  const auto sample = graph->id_type == FS_INT32 ? fs::sample_hops<int32_t> : fs::sample_hops<int64_t>;
  sample({*graph, *spec, *seeds, *sizes, *batch, static_cast<cudaStream_t>(stream)});
  return fs::launch_status("sample_mfg");
}

FsStatus fs_cuda_sample_neighbors(const FsGraph* graph, const FsSampleSpec* spec, const FsCudaSeeds* rows,
                                  const FsCudaSampleSizes* sizes, const FsCudaBatch* batch, void* stream) {
  const FsStatus status = fs::check_cuda_request("sample_neighbors", *graph, *spec);
  if (status != FS_OK) return status;
  if (spec->num_hops != 1) {
    return fs::fail(FS_INVALID_ARGUMENT, "sample_neighbors: %d hops; expected 1", spec->num_hops);
  }
  if (rows->replay != nullptr) {
    return fs::fail(FS_INVALID_ARGUMENT, "sample_neighbors: rows with a replay; expected none");
  }
  const auto sample = graph->id_type == FS_INT32 ? fs::sample_rows<int32_t> : fs::sample_rows<int64_t>;
  sample({*graph, *spec, *rows, *sizes, *batch, static_cast<cudaStream_t>(stream)});
  return fs::launch_status("sample_neighbors");
}

}  // extern "C"
