// sample_mfg: all hops of a mini-batch in one call (FastSample section 3.2, algorithm 1, applied hop by hop), and
// sample_many: many mini-batches at once, one per thread.
//
// For each hop: count picks, then draw, read and relabel them straight into the hop's CSC arrays. The seeds are hop 0's
// destinations; the nodes known after a hop are the destinations of the next.
#include <string.h>

#include "batch_seeds.h"
#include "collective_sample.h"
#include "induced_rows.h"
#include "mini_batch.h"
#include "sample_hop.h"
#include "table_memory.h"
#include "walk_blocks.h"

namespace fs {

__attribute__((noinline)) Buffer& thread_row_edges() {
  static thread_local Buffer row_edges;
  return row_edges;
}

__attribute__((noinline)) Buffer& thread_flags() {
  static thread_local Buffer flags;
  return flags;
}

namespace {

template <typename Id>
FsStatus sample_hop(const HopSampler<Id>& sampler, bool edge_ids, Relabeling<Id>* ids, FsMiniBatch* batch, FsHop* hop) {
  hop->num_dst = batch->num_nodes;
  hop->indptr = take_array<int64_t>(hop->num_dst + 1);
  const HopRows<Id> rows = {static_cast<const Id*>(batch->nodes), hop->num_dst,
                            thread_row_edges().require_array<RowEdges>(hop->num_dst), hop->indptr};
  const auto allocate = [&](const CscView<Id>& graph, const HopSpec& spec, const HopRows<Id>& counted) {
    HopTask<Id> task = allocate_edges(graph, spec, counted, edge_ids, hop);
    const size_t used = static_cast<size_t>(batch->num_nodes) * sizeof(Id);
    const size_t most = static_cast<size_t>(hop->num_edges) * sizeof(Id);  // every edge may bring a new node
    batch->nodes = grow_block(batch->nodes, used, used + most);
    task.rows = ids->nodes = static_cast<Id*>(batch->nodes);
    return task;
  };
  const FsStatus status = sampler.run(rows, ids, allocate);
  hop->num_src = batch->num_nodes = ids->num_nodes;
  return status;
}

template <typename Id>
FsStatus sample_mfg(const FsGraph& raw, const FsSampleSpec& spec, const Id* seeds, int64_t num_seeds,
                    FsMiniBatch** out) {
  OwnedBatch batch = make_batch(spec.num_hops);
  batch->nodes = take_array<Id>(num_seeds);
  TableMemory<Id>& table = thread_table<Id>();
  Relabeling<Id> ids = table.start(static_cast<Id*>(batch->nodes), num_seeds, raw.num_rows);
  FsStatus status = add_seeds("sample_mfg", view_of<Id>(raw), seeds, num_seeds, &ids);
  batch->num_nodes = ids.num_nodes;
  const bool plainly = vector_kernels().samples_plainly;
  for (int32_t hop = 0; hop < spec.num_hops && status == FS_OK; ++hop) {
    const HopSampler<Id> sampler("sample_mfg", raw, hop_spec(spec, hop, plainly));
    status = sample_hop(sampler, spec.edge_ids != 0, &ids, batch.get(), batch->hops + hop);
  }
  if (status != FS_OK) return status;
  table.finish(ids);
  *out = batch.release();
  return FS_OK;
}

FsStatus sample_checked(const FsGraph& graph, const FsSampleSpec& spec, const void* seeds, int64_t num_seeds,
                        FsMiniBatch** out) {
  return guarded("sample_mfg", [&] {
    return with_id_type("sample_mfg", graph.id_type, [&](auto zero) {
      using Id = decltype(zero);
      return sample_mfg<Id>(graph, spec, static_cast<const Id*>(seeds), num_seeds, out);
    });
  });
}

FsStatus sample_many(const FsGraph& graph, const FsSampleSpec& spec, const void* const* seeds, const int64_t* num_seeds,
                     int64_t num_batches, FsMiniBatch** out) {
  return batch_per_thread(num_batches, spec.num_threads, out, [&](int64_t b) {
    FsSampleSpec own = spec;
    own.step += static_cast<uint64_t>(b);
    own.num_threads = 1;
    return sample_checked(graph, own, seeds[b], num_seeds[b], &out[b]);
  });
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_sample_mfg(const FsGraph* graph, const FsSampleSpec* spec, const void* seeds, int64_t num_seeds,
                       FsMiniBatch** out) {
  *out = nullptr;
  const FsStatus status = fs::check_request("sample_mfg", *graph, *spec);
  return status != FS_OK ? status : fs::sample_checked(*graph, *spec, seeds, num_seeds, out);
}

FsStatus fs_sample_many(const FsGraph* graph, const FsSampleSpec* spec, const void* const* seeds,
                        const int64_t* num_seeds, int64_t num_batches, FsMiniBatch** out) {
  for (int64_t b = 0; b < num_batches; ++b) out[b] = nullptr;
  const FsStatus status = fs::check_request("sample_mfg", *graph, *spec);
  if (status != FS_OK || num_batches == 0) return status;
  return fs::guarded("sample_mfg", [&] { return fs::sample_many(*graph, *spec, seeds, num_seeds, num_batches, out); });
}

int64_t fs_sampler_scratch_bytes(void) {
  return static_cast<int64_t>(fs::thread_table<int32_t>().bytes() + fs::thread_table<int64_t>().bytes() +
                              fs::thread_row_edges().bytes() + fs::thread_sum_tree().bytes() +
                              fs::thread_flags().bytes() + fs::thread_collective_bytes() + fs::thread_walks().bytes() +
                              fs::thread_induced_rows<int32_t>().bytes() + fs::thread_induced_rows<int64_t>().bytes());
}

void fs_mini_batch_free(FsMiniBatch* batch) {
  if (batch == nullptr) return;
  for (int32_t hop = 0; hop < batch->num_hops; ++hop) {
    fs::give_block(batch->hops[hop].indptr);
    fs::give_block(batch->hops[hop].indices);
    fs::give_block(batch->hops[hop].edge_ids);
    fs::give_block(batch->hops[hop].edge_weights);
  }
  fs::give_block(batch->hops);
  fs::give_block(batch->nodes);
  fs::give_block(batch);
}

}  // extern "C"
