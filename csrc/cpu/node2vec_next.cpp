// node2vec's `next`: a walk per sample by the vector kernel, all else pick by pick as it is defined.
#include "node2vec_task.h"
#include "vector/vector_kernels.h"

namespace fs {
namespace {

template <typename Id, bool kWeighted>
struct PlainPicks {
  static void run(const FsStepTask& task, int64_t begin, int64_t end) {
    const Node2VecTask<Id, kWeighted> step(task);
    for (int64_t at = begin; at < end; ++at) {
      const int64_t slot = task.slots == nullptr ? at : task.slots[at];
      const int64_t sample = slot / task.picks, n = slot % task.picks;
      const int64_t transit = task.transits[sample * task.transit_stride + n / task.sample_size];
      const int64_t walk = task.first_pick + n, number = walk + task.attempt * task.picks;
      task.out[sample * task.out_stride + n] = step.pick(sample, walk, transit, number);
    }
  }
};

}  // namespace

int32_t node2vec_next(const FsStepTask* task, int64_t begin, int64_t end) {
  const bool is_walk = task->picks == 1 && task->attempt == 0 && task->first_pick == 0;
  if (is_walk && !vector_kernels().samples_plainly) {
    vector_kernels().node2vec_step(*task, begin, end);
  } else {
    with_node2vec_types<PlainPicks>(*task, begin, end);
  }
  return 0;
}

}  // namespace fs
