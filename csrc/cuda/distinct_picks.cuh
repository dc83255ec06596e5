// Picks of built-in applications that are to be distinct in a sample, on CUDA (distinct_rounds.cuh).
#ifndef FS_CUDA_DISTINCT_PICKS_CUH_
#define FS_CUDA_DISTINCT_PICKS_CUH_

#include "distinct_rounds.cuh"
#include "transit_kernels.cuh"

namespace fs {
namespace {

// A step's picks of all samples, of a built-in application.
template <typename Id>
struct StepPicks {
  using Key = Id;  // of the table

  const TransitTask<Id>& task;
  const StepPlace& step;

  FS_DEVICE int64_t num_samples() const { return task.num_samples; }
  FS_DEVICE int64_t num_picks() const { return step.picks; }
  FS_DEVICE bool is_node(int64_t id) const { return id >= 0 && id < task.num_nodes; }
  FS_DEVICE int64_t* place(int64_t sample, int64_t n) const { return task.vertex(sample, step.first + n); }
  FS_DEVICE void pick(int64_t sample, int64_t round, int64_t n) const {
    const int64_t transit = task.node_at(sample, step.transits + n / step.sample_size);
    const int64_t number = round * step.picks + n;
    task.put(step.k, sample, step.first + n, pick_at(task, step, sample, number, task.row(transit)));
  }
};

template <typename Id, bool kByWarp>
FS_KERNEL void keep_distinct(TransitTask<Id> task, StepPlace step, DistinctTables tables) {
  keep_distinct_picks<kByWarp>(StepPicks<Id>{task, step}, tables);
}

template <typename Id>
void make_distinct(const TransitTask<Id>& task, const StepPlace& step, const DistinctTables& tables,
                   cudaStream_t stream) {
  launch(tables.by_warp() ? keep_distinct<Id, true> : keep_distinct<Id, false>, tables.blocks, stream, task, step,
         tables);
}

}  // namespace
}  // namespace fs

#endif  // FS_CUDA_DISTINCT_PICKS_CUH_
