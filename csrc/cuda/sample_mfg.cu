// sample_mfg on CUDA, hop by hop: FastSample's algorithm 1 with every step a kernel. All hops are enqueued at once;
// sizes stay on the device, arrays are as large as their bounds, and the caller reads the state back at the end.
// sample_neighbors: one hop of rows that may repeat, without relabelling.
//
// Selection without replacement is Floyd's (core/pick.h): its work depends on the fanout, where a reservoir reads every
// neighbour of a row.
#include "layer_kernels.cuh"
#include "sample_kernels.cuh"
#include "weighted_kernels.cuh"

namespace fs {
namespace {

FsStatus check_request(const char* operation, const FsGraph& graph, const FsSampleSpec& spec) {
  if (graph.id_type != FS_INT32 && graph.id_type != FS_INT64) {
    return fail(FS_INVALID_ARGUMENT, "%s: id type %d; expected int32 (0) or int64 (1)", operation, graph.id_type);
  }
  if (spec.num_hops < 0 || spec.num_hops > FS_CUDA_MAX_HOPS) {
    return fail(FS_INVALID_ARGUMENT, "%s: %d hops; expected at most %d on CUDA", operation, spec.num_hops,
                FS_CUDA_MAX_HOPS);
  }
  if (spec.method < FS_UNIFORM || spec.method > FS_LABOR || (spec.method == FS_LABOR && spec.replace != 0)) {
    return fail(FS_INVALID_ARGUMENT,
                "%s: method %d; expected 0 (uniform), 1 (weighted) or 2 (labor) without replacement", operation,
                spec.method);
  }
  if (spec.method == FS_WEIGHTED && graph.weights == nullptr) {
    return fail(FS_INVALID_ARGUMENT, "%s: method weighted without weights; expected weights and alias tables",
                operation);
  }
  for (int hop = 0; hop < spec.num_hops; ++hop) {
    const long long fanout = spec.fanouts[hop];
    if (fanout < kTakeAll || (fanout == kTakeAll && spec.replace != 0)) {
      return fail(FS_INVALID_ARGUMENT, "%s: fanout %lld of hop %d; expected 0 or more, or -1 without replacement",
                  operation, fanout, hop);
    }
  }
  return FS_OK;
}

template <typename Id>
CscView<Id> view_of(const FsGraph& graph) {
  const bool is_slice = graph.src_orig_ids != nullptr;
  return {graph.indptr,
          static_cast<const Id*>(graph.indices),
          graph.orig_ids,
          graph.num_rows,
          graph.num_edges,
          is_slice ? graph.src_orig_ids : graph.orig_ids,
          is_slice ? graph.num_sources : graph.num_rows};
}

template <typename Id>
DeviceHop<Id> hop_of(const FsGraph& graph, const FsSampleSpec& spec, const BatchScratch<Id>& scratch,
                     const FsCudaBatch& batch, int hop) {
  return {view_of<Id>(graph),
          spec.method == FS_WEIGHTED ? graph.weights->num_positive : nullptr,
          spec.fanouts[hop],
          spec.replace != 0,
          hop,
          static_cast<const Id*>(batch.nodes),
          scratch.edges,
          batch.indptr[hop],
          static_cast<Id*>(batch.indices[hop]),
          batch.edge_ids[hop],
          scratch.positions,
          scratch.state,
          scratch.stage_keys,
          scratch.range_sums,
          scratch.new_edges,
          scratch.table,
          static_cast<Id*>(batch.nodes)};
}

template <typename Id>
SeedTask<Id> seed_task(const FsGraph& graph, const FsSampleSpec& spec, const BatchScratch<Id>& scratch,
                       const FsCudaBatch& batch, const FsCudaSeeds& seeds) {
  return {static_cast<const Id*>(seeds.ids),
          seeds.count,
          graph.num_rows,
          scratch.state,
          scratch.stage_keys,
          scratch.table,
          static_cast<Id*>(batch.nodes),
          spec.rng_seed,
          spec.step,
          seeds.step,
          spec.num_hops,
          spec.first_hop,
          spec.method == FS_LABOR,
          spec.method == FS_LABOR && spec.layer_dependency != 0};
}

// The picks of a hop whose rows are known: counted, placed, drawn and read. `counted`: the first has been done.
template <typename Id>
void draw_hop(const FsGraph& graph, const FsSampleSpec& spec, const BatchScratch<Id>& scratch, const DeviceHop<Id>& hop,
              const HopBound& bound, bool are_seeds, bool counted, cudaStream_t stream) {
  const int row_blocks = range_blocks(bound.rows);
  if (spec.method == FS_LABOR) {
    launch(count_layer_rows<Id>, row_blocks, stream, hop, are_seeds);
  } else if (!counted) {
    launch(count_rows<Id>, row_blocks, stream, hop, are_seeds);
  }
  launch(place_rows<Id>, row_blocks, stream, hop);
  if (spec.method == FS_LABOR) {
    launch(sample_layer_rows<Id>, blocks_for(bounded_product(bound.rows, kWarp, INT64_MAX)), stream, hop);
  } else if (spec.method == FS_UNIFORM) {
    sample_uniform(hop, bound, stream);
  } else if (graph.weights->weight_type == FS_FLOAT32) {
    sample_weighted(hop, device_weights<float>(*graph.weights), scratch, bound, stream);
  } else {
    sample_weighted(hop, device_weights<double>(*graph.weights), scratch, bound, stream);
  }
}

template <typename Id>
void sample_hops(const FsGraph& graph, const FsSampleSpec& spec, const FsCudaSeeds& seeds,
                 const FsCudaSampleSizes& sizes, const FsCudaBatch& batch, cudaStream_t stream) {
  const BatchScratch<Id> scratch = carve_scratch<Id>(graph, spec, sizes, batch.workspace);
  cudaMemsetAsync(batch.workspace, 0xFF, static_cast<size_t>(scratch.cleared_bytes), stream);
  launch(add_seeds<Id>, blocks_for(seeds.count), stream, seed_task(graph, spec, scratch, batch, seeds));
  for (int number = 0; number < spec.num_hops; ++number) {
    const DeviceHop<Id> hop = hop_of(graph, spec, scratch, batch, number);
    const HopBound bound = {sizes.max_rows[number], sizes.max_edges[number]};
    draw_hop(graph, spec, scratch, hop, bound, number == 0, number > 0, stream);
    const int edge_blocks = range_blocks(bound.edges);
    launch(count_new<Id>, edge_blocks, stream, hop);
    launch(assign_new<Id>, edge_blocks, stream, hop);
    if (number + 1 == spec.num_hops || spec.method == FS_LABOR) {
      launch(relabel<Id>, blocks_for(bound.edges), stream, hop);
    } else {
      const DeviceHop<Id> next = hop_of(graph, spec, scratch, batch, number + 1);
      launch(relabel_and_count<Id>, range_blocks(sizes.max_rows[number + 1]), stream, hop, next);
    }
  }
}

// The one hop's rows are the seeds, which are neither relabelled nor compared.
template <typename Id>
FS_KERNEL void begin_rows(SeedTask<Id> task) {
  if (thread_number() != 0) return;
  task.stage_keys[0] = task.key_of(0);
  task.state[kNumSeeds] = static_cast<uint64_t>(task.num_seeds);
}

template <typename Id>
void sample_rows(const FsGraph& graph, const FsSampleSpec& spec, const FsCudaSeeds& rows,
                 const FsCudaSampleSizes& sizes, const FsCudaBatch& batch, cudaStream_t stream) {
  BatchScratch<Id> scratch = carve_scratch<Id>(graph, spec, sizes, batch.workspace);
  cudaMemsetAsync(batch.workspace, 0xFF, static_cast<size_t>(scratch.cleared_bytes), stream);
  scratch.table.values = nullptr;
  launch(begin_rows<Id>, 1, stream, seed_task(graph, spec, scratch, batch, rows));
  DeviceHop<Id> hop = hop_of(graph, spec, scratch, batch, 0);
  hop.rows = static_cast<const Id*>(rows.ids);
  draw_hop(graph, spec, scratch, hop, {sizes.max_rows[0], sizes.max_edges[0]}, false, false, stream);
}

template <typename Id>
int64_t workspace_bytes(const FsGraph& graph, const FsSampleSpec& spec, const FsCudaSampleSizes& sizes) {
  return carve_scratch<Id>(graph, spec, sizes, nullptr).bytes;
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_cuda_sample_sizes(const FsGraph* graph, const FsSampleSpec* spec, int64_t num_seeds, int64_t max_degree,
                              int32_t relabels, FsCudaSampleSizes* out) {
  const FsStatus status = fs::check_request("sample_mfg", *graph, *spec);
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
  out->state_words = fs::state_words(spec->num_hops);
  out->workspace_bytes = graph->id_type == FS_INT32 ? fs::workspace_bytes<int32_t>(*graph, *spec, *out)
                                                    : fs::workspace_bytes<int64_t>(*graph, *spec, *out);
  return FS_OK;
}

FsStatus fs_cuda_sample_mfg(const FsGraph* graph, const FsSampleSpec* spec, const FsCudaSeeds* seeds,
                            const FsCudaSampleSizes* sizes, const FsCudaBatch* batch, void* stream) {
  const FsStatus status = fs::check_request("sample_mfg", *graph, *spec);
  if (status != FS_OK) return status;
  const auto sample = graph->id_type == FS_INT32 ? fs::sample_hops<int32_t> : fs::sample_hops<int64_t>;
  sample(*graph, *spec, *seeds, *sizes, *batch, static_cast<cudaStream_t>(stream));
  return fs::launch_status("sample_mfg");
}

FsStatus fs_cuda_sample_neighbors(const FsGraph* graph, const FsSampleSpec* spec, const FsCudaSeeds* rows,
                                  const FsCudaSampleSizes* sizes, const FsCudaBatch* batch, void* stream) {
  const FsStatus status = fs::check_request("sample_neighbors", *graph, *spec);
  if (status != FS_OK) return status;
  if (spec->num_hops != 1) {
    return fs::fail(FS_INVALID_ARGUMENT, "sample_neighbors: %d hops; expected 1", spec->num_hops);
  }
  const auto sample = graph->id_type == FS_INT32 ? fs::sample_rows<int32_t> : fs::sample_rows<int64_t>;
  sample(*graph, *spec, *rows, *sizes, *batch, static_cast<cudaStream_t>(stream));
  return fs::launch_status("sample_neighbors");
}

}  // extern "C"
