// update_rows: rows of a table moved by the sums of their gradients (vector/skipgram_rows.h).
#include "embedding_checks.h"
#include "embedding_tasks.h"
#include "row_lists.h"
#include "vector/vector_kernels.h"
#include "worker_pool.h"

namespace fs {
namespace {

constexpr int64_t kRunRows = 256;  // rows of a task

FsStatus update_rows(const FsRowUpdate& update) {
  for (int64_t u = 0; u < update.num_updated; ++u) {
    if (update.rows[u] < 0 || update.rows[u] >= update.num_rows) {
      return refuse(FS_REFUSED_ID, "update_rows", {{update.rows[u], u, 0, update.num_rows - 1}});
    }
  }
  for (int64_t i = 0; i < update.num_grads; ++i) {
    if (update.places[i] < -update.num_received || update.places[i] >= update.num_own) {
      return refuse(FS_REFUSED_PLACE, "update_rows", {{update.places[i], i, -update.num_received, update.num_own - 1}});
    }
  }
  const RowLists lists = group_by_key(update.slots, update.num_grads, update.num_updated);
  if (lists.bad >= 0) {
    return refuse(FS_REFUSED_ID, "update_rows", {{update.slots[lists.bad], lists.bad, 0, update.num_updated - 1}});
  }
  const RowUpdateTask task = {update, lists.offsets.data(), lists.numbers.data()};
  const VectorKernels& kernels = vector_kernels();
  share_runs(update.num_updated, kRunRows, update.num_threads,
             [&](int64_t begin, int64_t end) { kernels.update_rows(task, begin, end); });
  return FS_OK;
}

}  // namespace
}  // namespace fs

extern "C" FsStatus fs_update_rows(const FsRowUpdate* update) {
  return fs::guarded("update_rows", [&] {
    FsStatus status = fs::check_real_type("update_rows", update->type);
    if (status == FS_OK) status = fs::check_threads("update_rows", update->num_threads);
    if (status != FS_OK) return status;
    if (update->num_grads > INT32_MAX || update->num_updated > INT32_MAX) {
      return fs::fail(FS_INVALID_ARGUMENT, "update_rows: %lld gradients of %lld rows; expected fewer than 2^31",
                      static_cast<long long>(update->num_grads), static_cast<long long>(update->num_updated));
    }
    return fs::update_rows(*update);
  });
}
