// What samplers of mini-batches begin with: the seeds as the first nodes; many batches, each by one thread.
#ifndef FS_CPU_BATCH_SEEDS_H_
#define FS_CPU_BATCH_SEEDS_H_

#include <stdint.h>
#include <string.h>

#include <algorithm>

#include "first_failure.h"
#include "hop_spec.h"
#include "mini_batch.h"
#include "uniform_rows.h"
#include "worker_pool.h"

namespace fs {

// Refuses seeds that repeat or are no rows.
template <typename Id>
FsStatus add_seeds(const char* operation, const CscView<Id>& graph, const Id* seeds, int64_t num_seeds,
                   Relabeling<Id>* ids) {
  Id* locals = thread_row_edges().require_array<Id>(num_seeds);
  if (num_seeds > 0) memcpy(locals, seeds, static_cast<size_t>(num_seeds) * sizeof(Id));
  relabel_edges(locals, 0, num_seeds, ids);
  if (ids->bad >= 0) {
    const Id seed = seeds[ids->bad];
    if (seed >= 0) return refuse_row(operation, graph, seed);
    return refuse(FS_REFUSED_NEGATIVE_SEED, operation, {{seed, ids->bad}});
  }
  if (ids->num_nodes == num_seeds) return FS_OK;
  int64_t i = 0;
  while (locals[i] == static_cast<Id>(i)) ++i;
  return refuse(FS_REFUSED_REPEATED_SEED, operation, {{seeds[i], locals[i], i}});
}

// sample(b) makes batch b, out[b], for every b; after a failure there is none, and it is that of the first batch.
template <typename Sample>
FsStatus batch_per_thread(int64_t num_batches, int32_t num_threads, FsMiniBatch** out, const Sample& sample) {
  FirstFailure failure;
  const int threads = static_cast<int>(std::min<int64_t>(num_threads, num_batches));
  share_runs(num_batches, 1, threads, [&](int64_t b, int64_t) {
    const FsStatus status = sample(b);
    if (status != FS_OK) failure.take(status, b);
  });
  const FsStatus status = failure.report();
  if (status == FS_OK) return FS_OK;
  for (int64_t b = 0; b < num_batches; ++b) {
    fs_mini_batch_free(out[b]);
    out[b] = nullptr;
  }
  return status;
}

}  // namespace fs

#endif  // FS_CPU_BATCH_SEEDS_H_
