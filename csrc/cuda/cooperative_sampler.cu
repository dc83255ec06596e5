// sample_mfg on CUDA with one cooperative launch for all hops: the functions of hop_kernels.cuh and sample_kernels.cuh
// in the order of hop_chain.cuh, with a barrier of the grid where that has the end of a kernel. So a
// batch is two launches, clear_batch and this one, however many hops it has.
//
//   put_seeds | place_all_rows | of every hop: draw_uniform | number_new_nodes | relabel_edges_and_place of the next |
//   ...
//
// What a phase writes is read in the next by plain loads: a barrier's acquire empties the first-level cache, and
// nothing here is read through the cache of what a kernel never writes.
#include "grid_barrier.cuh"
#include "hop_chain.cuh"
#include "sample_kernels.cuh"

namespace fs {
namespace {

// A batch as the cooperative kernel takes it.
template <typename Id>
struct TogetherBatch {
  SeedTask<Id> seeds;
  uint64_t* barrier;  // [FS_CUDA_BARRIER_WORDS]
  uint64_t patience_ns;
  int32_t num_hops;
  DeviceHop<Id> hops[FS_CUDA_MAX_HOPS];
};
static_assert(sizeof(TogetherBatch<int64_t>) <= 4096, "what a kernel takes as parameters");

// The draws are called, so that what they need most of is not held through the other phases.
template <typename Id>
FS_CALLED void draw_by_groups(const DeviceHop<Id>& hop) {
  draw_rows_by_groups(hop, group_width(hop.fanout));
}
template <typename Id>
FS_CALLED void draw_by_warps(const DeviceHop<Id>& hop) {
  draw_rows_by_warps(hop);
}

template <typename Id>
FS_DEVICE void draw_uniform(const DeviceHop<Id>& hop) {
  if (hop.fanout == kTakeAll) {
    take_all_edges(hop);
  } else if (hop.fanout <= kWarp) {
    draw_by_groups(hop);
  } else {
    draw_by_warps(hop);
  }
}

// Three blocks on a multiprocessor: 80 registers and 132 bytes of spills on sm_90, where two take 106 and four spill
// 340.
template <typename Id>
FS_KERNEL void __launch_bounds__(kThreads, 3) all_hops(const __grid_constant__ TogetherBatch<Id> batch) {
  GridBarrier barrier(batch.barrier, batch.patience_ns);
  put_seeds(batch.seeds);
  if (batch.num_hops == 0 || !barrier.wait()) return;
  place_all_rows<false>(batch.hops[0], true);
  for (int number = 0; number < batch.num_hops; ++number) {
    const DeviceHop<Id>& hop = batch.hops[number];
    if (!barrier.wait()) return;
    draw_uniform(hop);
    if (!barrier.wait()) return;
    number_new_nodes(hop);
    if (!barrier.wait()) return;
    if (number + 1 < batch.num_hops) {
      relabel_edges_and_place<false>(hop, batch.hops[number + 1]);
    } else {
      relabel_edges(hop);
    }
  }
}

// As many as there is work for in the largest phase, of those that the device holds at once.
template <typename Id>
int grid_blocks(const FsSampleSpec& spec, const FsCudaSampleSizes& sizes) {
  int64_t threads = 0;
  for (int hop = 0; hop < spec.num_hops; ++hop) {
    const int64_t fanout = spec.fanouts[hop];
    const int width = fanout == kTakeAll ? 1 : group_width(fanout);
    threads = std::max({threads, sizes.max_edges[hop], bounded_product(sizes.max_rows[hop], width, INT64_MAX)});
  }
  return std::min(resident_blocks(reinterpret_cast<const void*>(all_hops<Id>)), blocks_for(threads));
}

template <typename Id>
void sample_together(const BatchCall& call, uint64_t patience_ns) {
  const BatchScratch<Id> scratch = scratch_of<Id>(call);
  TogetherBatch<Id> batch = {};
  batch.seeds = seed_task(call, scratch);
  batch.barrier = scratch.state + (call.sizes.state_words - FS_CUDA_BARRIER_WORDS);
  batch.patience_ns = patience_ns;
  batch.num_hops = call.spec.num_hops;
  for (int hop = 0; hop < batch.num_hops; ++hop) batch.hops[hop] = hop_of(call, scratch, hop);
  clear_scratch(call, scratch);
  launch_together(all_hops<Id>, static_cast<int>(call.sizes.grid_blocks), call.stream, batch);
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_cuda_cooperative_sizes(const FsGraph* graph, const FsSampleSpec* spec, int64_t num_seeds,
                                   int64_t max_degree, int64_t expected_nodes, FsCudaSampleSizes* out) {
  FsStatus status = fs::check_one_launch(*graph, *spec, "cooperative");
  if (status == FS_OK) status = fs_cuda_sample_sizes(graph, spec, num_seeds, max_degree, expected_nodes, 1, out);
  if (status != FS_OK) return status;
  out->state_words = (out->state_words + 15) / 16 * 16 + FS_CUDA_BARRIER_WORDS;  // whole memory lines
  const bool is_int32 = graph->id_type == FS_INT32;
  out->grid_blocks = is_int32 ? fs::grid_blocks<int32_t>(*spec, *out) : fs::grid_blocks<int64_t>(*spec, *out);
  out->workspace_bytes = is_int32 ? fs::carve_scratch<int32_t>(*graph, *spec, *out, nullptr, nullptr).bytes
                                  : fs::carve_scratch<int64_t>(*graph, *spec, *out, nullptr, nullptr).bytes;
  return FS_OK;
}

FsStatus fs_cuda_cooperative_mfg(const FsGraph* graph, const FsSampleSpec* spec, const FsCudaSeeds* seeds,
                                 const FsCudaSampleSizes* sizes, const FsCudaBatch* batch, uint64_t patience_ns,
                                 void* stream) {
  const FsStatus status = fs::check_one_launch(*graph, *spec, "cooperative");
  if (status != FS_OK) return status;
  const auto sample = graph->id_type == FS_INT32 ? fs::sample_together<int32_t> : fs::sample_together<int64_t>;
  sample({*graph, *spec, *seeds, *sizes, *batch, static_cast<cudaStream_t>(stream)}, patience_ns);
  return fs::launch_status("sample_mfg");
}

}  // extern "C"
