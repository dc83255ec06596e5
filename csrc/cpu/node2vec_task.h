// A step of node2vec as its kernels see it: what core/node2vec.h needs, taken from an FsStepTask.
#ifndef FS_CPU_NODE2VEC_TASK_H_
#define FS_CPU_NODE2VEC_TASK_H_

#include "fastsample_transit.h"
#include "node2vec.h"
#include "transit_draw.h"
#include "walk_slot.h"

namespace fs {

template <typename Id, bool kWeighted>
struct Node2VecTask {
  const FsStepTask& task;
  HashedRows<Id> rows;
  WalkSlots<Id> slots;
  StageKey key;
  Node2VecLaw law;          // at step 0 every neighbour is accepted: a plain pick
  const int64_t* previous;  // vertices before the transits: where walk i of a sample came from stands in column i
  int64_t previous_stride, num_previous;  // none at step 0

  FS_INLINE explicit Node2VecTask(const FsStepTask& step)
      : task(step),
        rows{static_cast<const HashedNode*>(step.tables->hashed_nodes),
             static_cast<const HashedBucket<Id>*>(step.tables->hashed_buckets),
             static_cast<const Id*>(step.graph->indices)},
        slots(step.tables->walk_slots, step.graph->num_rows, step.graph->num_edges),
        key{step.key0, step.key1},
        law{kSure, kSure, kSure},
        previous(nullptr),
        previous_stride(0),
        num_previous(0) {
    const int64_t k = step.step_index;
    if (k == 0) return;
    law = {static_cast<uint64_t>(step.params[0]), static_cast<uint64_t>(step.params[1]),
           static_cast<uint64_t>(step.params[2])};
    previous = step.vertices[k - 1];
    previous_stride = step.strides[k - 1];
    num_previous = step.widths[k - 1];
  }

  FS_INLINE int64_t previous_of(int64_t sample, int64_t walk) const {
    return walk < num_previous ? previous[sample * previous_stride + walk] : FS_NULL_NODE;
  }

  // The pick of a sample's walk, by the definition; `number` is that of its stream.
  FS_INLINE int64_t pick(int64_t sample, int64_t walk, int64_t transit, int64_t number) const {
    if (transit < 0) return FS_NULL_NODE;
    const HashedNode row = rows.nodes[transit];
    PickStream stream(key, task.sample_ids[sample], number);
    return node2vec_draw(stream, rows, law, previous_of(sample, walk), RowPick{*this, row});
  }

 private:
  // Not a lambda, which could not be forced inline: no function of a wide build must be linked into a narrow one.
  struct RowPick {
    const Node2VecTask& step;
    const HashedNode& row;

    FS_INLINE int64_t operator()(PickStream& stream) const {
      if (kWeighted) return walk_draw(stream, step.slots, row.begin(), row.degree);
      if (row.degree == 0) return FS_NULL_NODE;
      return step.rows.indices[row.begin() + static_cast<int64_t>(stream.below(row.degree))];
    }
  };
};

// Calls body with the task's types of ids and of picks: by weight where there are walk slots.
template <template <typename, bool> class Body, typename... Arguments>
FS_INLINE void with_node2vec_types(const FsStepTask& task, Arguments... arguments) {
  const bool is_weighted = task.tables->walk_slots != nullptr;
  if (task.graph->id_type == FS_INT32) {
    is_weighted ? Body<int32_t, true>::run(task, arguments...) : Body<int32_t, false>::run(task, arguments...);
  } else {
    is_weighted ? Body<int64_t, true>::run(task, arguments...) : Body<int64_t, false>::run(task, arguments...);
  }
}

// The built-in `next` of FS_NEXT_NODE2VEC, an FsStepKernel.
int32_t node2vec_next(const FsStepTask* task, int64_t begin, int64_t end);

}  // namespace fs

#endif  // FS_CPU_NODE2VEC_TASK_H_
