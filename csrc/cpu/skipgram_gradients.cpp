// skipgram_gradients: the gradient of skip-gram with negative sampling on a batch's rows (vector/skipgram_rows.h).
#include <memory>

#include "embedding_checks.h"
#include "embedding_tasks.h"
#include "row_lists.h"
#include "vector/vector_kernels.h"
#include "worker_pool.h"

namespace fs {
namespace {

constexpr int64_t kRunRows = 64;  // rows of a task: some 10 microseconds and more

FsStatus skipgram_gradients(const FsSkipGram& pairs, void* grads, double* loss) {
  const int64_t num_terms = pairs.num_pairs * pairs.contexts_per_pair;
  const RowLists centers = group_by_key(pairs.centers, pairs.num_pairs, pairs.num_rows);
  const RowLists contexts = group_by_key(pairs.contexts, num_terms, pairs.num_rows);
  if (centers.bad >= 0) {
    return refuse(FS_REFUSED_ID, "skipgram_gradients",
                  {{pairs.centers[centers.bad], centers.bad, 0, pairs.num_rows - 1}});
  }
  if (contexts.bad >= 0) {
    return refuse(FS_REFUSED_ID, "skipgram_gradients",
                  {{pairs.contexts[contexts.bad], contexts.bad, 0, pairs.num_rows - 1}});
  }
  const std::unique_ptr<double[]> factors(new double[static_cast<size_t>(num_terms)]);  // room for either type
  const std::unique_ptr<double[]> losses(new double[static_cast<size_t>(pairs.num_rows)]);
  const SkipGramTask task = {pairs,
                             centers.offsets.data(),
                             centers.numbers.data(),
                             contexts.offsets.data(),
                             contexts.numbers.data(),
                             factors.get(),
                             grads,
                             losses.get()};
  const VectorKernels& kernels = vector_kernels();
  share_runs(pairs.num_rows, kRunRows, pairs.num_threads,
             [&](int64_t begin, int64_t end) { kernels.skipgram_centers(task, begin, end); });
  share_runs(pairs.num_rows, kRunRows, pairs.num_threads,
             [&](int64_t begin, int64_t end) { kernels.skipgram_contexts(task, begin, end); });
  *loss = 0;
  for (int64_t row = 0; row < pairs.num_rows; ++row) *loss += losses[static_cast<size_t>(row)];
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_skipgram_gradients(const FsSkipGram* pairs, void* grads, double* loss) {
  return fs::guarded("skipgram_gradients", [&] {
    FsStatus status = fs::check_real_type("skipgram_gradients", pairs->type);
    if (status == FS_OK) status = fs::check_threads("skipgram_gradients", pairs->num_threads);
    if (status != FS_OK) return status;
    if (pairs->contexts_per_pair < 1) {
      return fs::fail(FS_INVALID_ARGUMENT, "skipgram_gradients: %lld contexts per pair; expected at least 1",
                      static_cast<long long>(pairs->contexts_per_pair));
    }
    if (pairs->num_pairs > INT32_MAX / pairs->contexts_per_pair) {
      return fs::fail(FS_INVALID_ARGUMENT, "skipgram_gradients: %lld pairs of %lld contexts; expected fewer than 2^31",
                      static_cast<long long>(pairs->num_pairs), static_cast<long long>(pairs->contexts_per_pair));
    }
    return fs::skipgram_gradients(*pairs, grads, loss);
  });
}
