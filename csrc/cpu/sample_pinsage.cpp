// sample_pinsage: mini-batches of PinSAGE's neighbourhoods (fastsample_transit.h).
//
// A hop's rows get room for as many edges as they can have. Threads fill chunks of rows (pinsage_walks.h); the caller
// moves the edges of the chunks that are filled together, in order, and relabels them.
#include <algorithm>

#include "batch_seeds.h"
#include "pinsage_walks.h"
#include "relay.h"
#include "table_memory.h"

namespace fs {
namespace {

constexpr const char* kOperation = "sample_pinsage";
constexpr int64_t kRowsPerThread = 64;  // below this many rows a second thread costs more than it gains

FsStatus check_spec(const char* operation, const FsPinsageSpec& spec) {
  const FsStatus status = check_threads(operation, spec.num_threads);
  if (status != FS_OK) return status;
  const long long walks = spec.num_walks, length = spec.walk_length, neighbors = spec.num_neighbors;
  if (walks < 1 || length < 1 || neighbors < 1) {
    return fail(FS_INVALID_ARGUMENT, "%s: num_walks is %lld, walk_length %lld, num_neighbors %lld; expected 1 or more",
                operation, walks, length, neighbors);
  }
  if (walks > FS_MOST_VISITS / length) {
    return fail(FS_INVALID_ARGUMENT, "%s: %lld walks of %lld steps; expected at most %d steps per node", operation,
                walks, length, FS_MOST_VISITS);
  }
  return FS_OK;
}

FsStatus check_call(const FsGraph& graph, const FsPinsageSpec& spec) {
  FsStatus status = check_spec(kOperation, spec);
  if (status == FS_OK) status = check_id_type(kOperation, graph.id_type);
  if (status != FS_OK) return status;
  int64_t ids = 0;
  if (__builtin_mul_overflow(graph.num_rows, spec.num_walks, &ids) ||
      __builtin_mul_overflow(ids, int64_t{spec.first_hop} + spec.num_hops, &ids)) {
    return fail(FS_INVALID_ARGUMENT, "%s: %lld nodes, %lld walks and %lld hops; expected less than 2^63 walks in all",
                kOperation, static_cast<long long>(graph.num_rows), static_cast<long long>(spec.num_walks),
                static_cast<long long>(spec.first_hop) + spec.num_hops);
  }
  return FS_OK;
}

// Moves rows begin .. end, which were visited together, up to those before, whose offsets are known.
template <typename Id>
void close_up(const PinsageTask<Id>& task, int64_t begin, int64_t end, int64_t* offsets) {
  for (int64_t row = begin; row < end; ++row) offsets[row + 1] += offsets[row];  // behind the first they are counts
  const int64_t from = begin * task.most_edges(), to = offsets[begin], count = offsets[end] - to;
  std::copy(task.neighbors + from, task.neighbors + from + count, task.neighbors + to);
  std::copy(task.weights + from, task.weights + from + count, task.weights + to);
}

template <typename Id>
FsStatus fill_hop(const PinsageTask<Id>& task, int64_t* offsets, int64_t num_rows, Relabeling<Id>* ids) {
  const auto visit = vector_kernels().samples_plainly ? visit_plainly<Id> : visit_in_blocks<Id>;
  FirstFailure failure;
  const auto sample = [&](int64_t begin, int64_t end) {
    const FsStatus status = visit(task, begin, end);
    if (status != FS_OK) failure.take(status, begin);
  };
  const auto settle = [&](int64_t begin, int64_t end) {
    close_up(task, begin, end, offsets);
    relabel_edges(task.neighbors, offsets[begin], offsets[end], ids);
    return true;
  };
  offsets[0] = 0;
  const int64_t threads = std::min<int64_t>(task.spec.num_threads, std::max<int64_t>(1, num_rows / kRowsPerThread));
  relay_chunks(num_rows, static_cast<int>(threads), sample, settle);
  return failure.report();
}

template <typename Id>
FsStatus sample_hop(const FsGraph& raw, const FsPinsageSpec& spec, int32_t hop, Relabeling<Id>* ids,
                    FsMiniBatch* batch) {
  FsHop& out = batch->hops[hop];
  out.num_dst = batch->num_nodes;
  const int64_t most = std::min(spec.num_neighbors, spec.num_walks * spec.walk_length), room = out.num_dst * most;
  require_room(room, 2 * sizeof(Id) + sizeof(float));  // edges and their nodes
  out.indptr = take_array<int64_t>(out.num_dst + 1);
  out.indices = take_array<Id>(room);
  out.edge_weights = take_array<float>(room);
  const size_t used = static_cast<size_t>(batch->num_nodes) * sizeof(Id);
  batch->nodes = grow_block(batch->nodes, used, used + static_cast<size_t>(room) * sizeof(Id));
  ids->nodes = static_cast<Id*>(batch->nodes);
  const PinsageTask<Id> task = {raw,
                                view_of<Id>(raw),
                                spec,
                                spec.first_hop + hop,
                                ids->nodes,
                                static_cast<Id*>(out.indices),
                                out.edge_weights,
                                out.indptr + 1};
  const FsStatus status = fill_hop(task, out.indptr, out.num_dst, ids);
  out.num_edges = out.indptr[out.num_dst];
  out.num_src = batch->num_nodes = ids->num_nodes;
  return status;
}

template <typename Id>
FsStatus sample_batch(const FsGraph& raw, const FsPinsageSpec& spec, const Id* seeds, int64_t num_seeds,
                      FsMiniBatch** out) {
  OwnedBatch batch = make_batch(spec.num_hops);
  batch->nodes = take_array<Id>(num_seeds);
  TableMemory<Id>& table = thread_table<Id>();
  Relabeling<Id> ids = table.start(static_cast<Id*>(batch->nodes), num_seeds, raw.num_rows);
  FsStatus status = add_seeds(kOperation, view_of<Id>(raw), seeds, num_seeds, &ids);
  batch->num_nodes = ids.num_nodes;
  for (int32_t hop = 0; hop < spec.num_hops && status == FS_OK; ++hop) {
    status = sample_hop(raw, spec, hop, &ids, batch.get());
  }
  if (status != FS_OK) return status;
  table.finish(ids);
  *out = batch.release();
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" {

FsStatus fs_check_pinsage_spec(const char* operation, const FsPinsageSpec* spec) {
  return fs::check_spec(operation, *spec);
}

FsStatus fs_sample_pinsage(const FsGraph* graph, const FsPinsageSpec* spec, const void* const* seeds,
                           const int64_t* num_seeds, int64_t num_batches, FsMiniBatch** out) {
  for (int64_t b = 0; b < num_batches; ++b) out[b] = nullptr;
  const FsStatus status = fs::check_call(*graph, *spec);
  if (status != FS_OK || num_batches == 0) return status;
  return fs::guarded(fs::kOperation, [&] {
    return fs::batch_per_thread(num_batches, spec->num_threads, out, [&](int64_t b) {
      FsPinsageSpec own = *spec;
      own.step += static_cast<uint64_t>(b);
      if (num_batches > 1) own.num_threads = 1;
      return fs::guarded(fs::kOperation, [&] {
        return fs::with_id_type(fs::kOperation, graph->id_type, [&](auto zero) {
          using Id = decltype(zero);
          return fs::sample_batch<Id>(*graph, own, static_cast<const Id*>(seeds[b]), num_seeds[b], &out[b]);
        });
      });
    });
  });
}

}  // extern "C"
