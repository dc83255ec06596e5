// sample_mfg: all hops of a mini-batch in one call (FastSample section 3.2, algorithm 1, applied hop by hop).
//
// For each hop: count picks, draw them straight into the hop's CSC arrays, then relabel in place. The seeds are hop 0's
// destinations; the nodes known after a hop are the destinations of the next.
#include <stdlib.h>

#include <memory>

#include "relabel.h"
#include "sample_hop.h"

namespace fs {
namespace {

struct Free {
  void operator()(void* memory) const { free(memory); }
};

template <typename T>
T* allocate(int64_t count) {
  void* memory = malloc(static_cast<size_t>(count > 0 ? count : 1) * sizeof(T));
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<T*>(memory);
}

template <typename T>
T* reallocate(void* memory, int64_t count) {
  void* grown = realloc(memory, static_cast<size_t>(count > 0 ? count : 1) * sizeof(T));
  if (grown == nullptr) throw std::bad_alloc();
  return static_cast<T*>(grown);
}

struct FreeBatch {
  void operator()(FsMiniBatch* batch) const { fs_mini_batch_free(batch); }
};
using OwnedBatch = std::unique_ptr<FsMiniBatch, FreeBatch>;

OwnedBatch make_batch(int32_t num_hops) {
  OwnedBatch batch(allocate<FsMiniBatch>(1));
  memset(batch.get(), 0, sizeof(FsMiniBatch));
  batch->hops = allocate<FsHop>(num_hops);
  memset(batch->hops, 0, sizeof(FsHop) * static_cast<size_t>(num_hops));
  batch->num_hops = num_hops;
  return batch;
}

template <typename Id>
FsStatus add_seeds(const Id* seeds, int64_t num_seeds, Relabeler<Id>& relabeler, FsMiniBatch* batch) {
  Id* nodes = static_cast<Id*>(batch->nodes);
  relabeler.begin(num_seeds);
  for (int64_t i = 0; i < num_seeds; ++i) {
    const long long seed = static_cast<long long>(seeds[i]);
    if (seed < 0)
      return fail(FS_INVALID_ARGUMENT, "sample_mfg: seed %lld at position %lld is negative", seed, (long long)i);
    const Id local = relabeler.local(seeds[i], nodes, &batch->num_nodes);
    if (local != static_cast<Id>(i)) {
      return fail(FS_INVALID_ARGUMENT,
                  "sample_mfg: seeds holds node %lld at positions %lld and %lld; expected each seed once", seed,
                  static_cast<long long>(local), static_cast<long long>(i));
    }
  }
  return FS_OK;
}

template <typename Id>
FsStatus sample_hop(const CscView<Id>& graph, const HopSpec& spec, Relabeler<Id>& relabeler, FsMiniBatch* batch,
                    FsHop* hop) {
  hop->num_dst = batch->num_nodes;
  hop->indptr = allocate<int64_t>(hop->num_dst + 1);
  std::unique_ptr<int64_t, Free> starts(allocate<int64_t>(hop->num_dst));
  const Id* rows = static_cast<const Id*>(batch->nodes);
  FsStatus status = count_picks("sample_mfg", graph, spec, rows, hop->num_dst, hop->indptr, starts.get());
  if (status != FS_OK) return status;
  hop->num_edges = hop->indptr[hop->num_dst];
  Id* indices = allocate<Id>(hop->num_edges);
  hop->indices = indices;
  fill_picks(graph, spec, rows, hop->num_dst, hop->indptr, starts.get(), indices);

  batch->nodes = reallocate<Id>(batch->nodes, batch->num_nodes + hop->num_edges);
  Id* nodes = static_cast<Id*>(batch->nodes);
  const int64_t bad = relabeler.relabel(indices, hop->num_edges, nodes, &batch->num_nodes, indices);
  if (bad >= 0) {
    return fail(FS_INVALID_ARGUMENT, "sample_mfg: the graph holds the negative source id %lld",
                static_cast<long long>(indices[bad]));
  }
  hop->num_src = batch->num_nodes;
  return FS_OK;
}

template <typename Id>
FsStatus sample_mfg(const FsGraph& raw, const FsSampleSpec& spec, const Id* seeds, int64_t num_seeds,
                    FsMiniBatch** out) {
  const CscView<Id> graph = view_of<Id>(raw);
  OwnedBatch batch = make_batch(spec.num_hops);
  Relabeler<Id>& relabeler = thread_relabeler<Id>();
  batch->nodes = allocate<Id>(num_seeds);
  FsStatus status = add_seeds(seeds, num_seeds, relabeler, batch.get());
  for (int32_t hop = 0; hop < spec.num_hops && status == FS_OK; ++hop) {
    status = sample_hop(graph, hop_spec(spec, hop), relabeler, batch.get(), batch->hops + hop);
  }
  if (status != FS_OK) return status;
  batch->nodes = reallocate<Id>(batch->nodes, batch->num_nodes);
  // The ids of the last hop were never used as rows: check them here, so that a damaged graph is never passed on.
  const Id* nodes = static_cast<const Id*>(batch->nodes);
  for (int64_t i = 0; i < batch->num_nodes; ++i) {
    if (!graph.has_row(nodes[i])) {
      return fail(FS_INVALID_ARGUMENT, "sample_mfg: the graph holds the source id %lld; expected 0 to %lld",
                  static_cast<long long>(nodes[i]), static_cast<long long>(graph.num_rows) - 1);
    }
  }
  *out = batch.release();
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_sample_mfg(const FsGraph* graph, const FsSampleSpec* spec, const void* seeds, int64_t num_seeds,
                       FsMiniBatch** out) {
  *out = nullptr;
  return fs::guarded("sample_mfg", [&] {
    const FsStatus status = fs::check_spec("sample_mfg", *spec);
    if (status != FS_OK) return status;
    return fs::with_id_type("sample_mfg", graph->id_type, [&](auto zero) {
      using Id = decltype(zero);
      return fs::sample_mfg<Id>(*graph, *spec, static_cast<const Id*>(seeds), num_seeds, out);
    });
  });
}

void fs_mini_batch_free(FsMiniBatch* batch) {
  if (batch == nullptr) return;
  for (int32_t hop = 0; hop < batch->num_hops; ++hop) {
    free(batch->hops[hop].indptr);
    free(batch->hops[hop].indices);
  }
  free(batch->hops);
  free(batch->nodes);
  free(batch);
}

}  // extern "C"
