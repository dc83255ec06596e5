// The kernels of a whole batch in their order, and what each of them gets. How a hop's picks are found is left to the
// caller: drawn hop by hop (sample_mfg.cu), or copied from what the persistent kernel found (persistent_sampler.cu).
#ifndef FS_CUDA_HOP_CHAIN_CUH_
#define FS_CUDA_HOP_CHAIN_CUH_

#include "hop_kernels.cuh"

namespace fs {

// Refuses what no CUDA kernel takes.
FsStatus check_cuda_request(const char* operation, const FsGraph& graph, const FsSampleSpec& spec);

// As check_cuda_request, for the kernel of this name that samples all hops in one launch.
FsStatus check_one_launch(const FsGraph& graph, const FsSampleSpec& spec, const char* kernel);

// The arguments of an entry point.
struct BatchCall {
  const FsGraph& graph;
  const FsSampleSpec& spec;
  const FsCudaSeeds& seeds;
  const FsCudaSampleSizes& sizes;
  const FsCudaBatch& batch;
  cudaStream_t stream;

  HopBound bound(int hop) const { return {sizes.max_rows[hop], sizes.max_edges[hop]}; }

  // Whether relabel_and_place places the hop's rows, while it relabels the hop before.
  bool is_placed_ahead(int hop) const { return hop > 0 && spec.method != FS_LABOR; }
};

template <typename Id>
BatchScratch<Id> scratch_of(const BatchCall& call) {
  return carve_scratch<Id>(call.graph, call.spec, call.sizes, call.batch.workspace, call.batch.table);
}

template <typename Id>
DeviceHop<Id> hop_of(const BatchCall& call, const BatchScratch<Id>& scratch, int hop) {
  const FsCudaBatch& batch = call.batch;
  return {view_of<Id>(call.graph),
          call.spec.method == FS_WEIGHTED ? call.graph.weights->num_positive : nullptr,
          call.spec.fanouts[hop],
          call.spec.replace != 0,
          hop,
          static_cast<const Id*>(batch.nodes),
          scratch.edges,
          scratch.runs == nullptr ? nullptr : scratch.runs + hop * scratch.table.slots,
          batch.indptr[hop],
          static_cast<Id*>(batch.indices[hop]),
          batch.edge_ids[hop],
          scratch.positions,
          scratch.state,
          scratch.stage_keys,
          scratch.scans[hop],
          scratch.table,
          static_cast<Id*>(batch.nodes)};
}

template <typename Id>
SeedTask<Id> seed_task(const BatchCall& call, const BatchScratch<Id>& scratch) {
  const FsSampleSpec& spec = call.spec;
  return {static_cast<const Id*>(call.seeds.ids),
          call.seeds.count,
          call.graph.num_rows,
          scratch.state,
          scratch.stage_keys,
          scratch.table,
          scratch.last_stamp,
          static_cast<Id*>(call.batch.nodes),
          spec.rng_seed,
          spec.step,
          call.seeds.replay != nullptr,
          spec.num_hops,
          spec.first_hop,
          spec.method == FS_LABOR,
          spec.method == FS_LABOR && spec.layer_dependency != 0};
}

template <typename Id>
void clear_scratch(const BatchCall& call, const BatchScratch<Id>& scratch) {
  const int64_t words = scratch.cleared_bytes / static_cast<int64_t>(sizeof(uint64_t));
  launch(clear_batch, blocks_for(words), call.stream,
         BatchMemory{scratch.state, words, scratch.last_stamp, scratch.table.values, scratch.table.slots,
                     call.seeds.replay});
}

template <typename Id>
void begin_batch(const BatchCall& call, const BatchScratch<Id>& scratch) {
  clear_scratch(call, scratch);
  launch(add_seeds<Id>, blocks_for(call.seeds.count), call.stream, seed_task(call, scratch));
}

// All hops. draw(hop) enqueues what puts the hop's picks into their places; rows that are placed ahead have been.
// kRecorded: as for count_picks.
template <bool kRecorded, typename Id, typename Draw>
void relabel_hops(const BatchCall& call, const BatchScratch<Id>& scratch, const Draw& draw) {
  const int num_hops = call.spec.num_hops;
  for (int number = 0; number < num_hops; ++number) {
    const DeviceHop<Id> hop = hop_of(call, scratch, number);
    draw(hop);
    const int64_t most_edges = call.sizes.max_edges[number];
    launch(assign_new<Id>, tile_blocks(most_edges), call.stream, hop);
    if (number + 1 < num_hops && call.is_placed_ahead(number + 1)) {
      const int blocks = std::max(blocks_for(most_edges), tile_blocks(call.sizes.max_rows[number + 1]));
      launch(relabel_and_place<kRecorded, Id>, blocks, call.stream, hop, hop_of(call, scratch, number + 1));
    } else {
      launch(relabel<Id>, blocks_for(most_edges), call.stream, hop);
    }
  }
}

}  // namespace fs

#endif  // FS_CUDA_HOP_CHAIN_CUH_
