// A tree of tasks through the queue of task_queue.cuh, for its tests: visits of every task are counted.
//
// Task v of a tree of degree k has the children k * v + 1 .. k * v + c with c = 1 + (5 * v + 3) % k, those below
// num_places. The given tasks are 0 .. num_given - 1, and what no parent brings is never visited.
#include "task_queue.cuh"

typedef struct {
  uint64_t* control;
  uint64_t* tasks;
  int64_t* visits; /* [num_places] */
  int64_t num_places, num_given, degree;
  int64_t capacity, fetch_size, at_once;
  uint64_t patience_ns;
  int64_t lost;   /* a child of this task is counted but never put in; -1: of none */
  int64_t* looks; /* [num_places] 0: how often a task's word was seen */
  int64_t late;   /* looks at which what a word refers to cannot be seen yet */
} FsTaskTree;

namespace fs {
namespace {

FS_KERNEL void visit_tree(FsTaskTree tree) {
  const TaskQueue queue = {tree.control,    tree.tasks,      tree.capacity,   tree.num_given,
                           tree.fetch_size, tree.fetch_size, tree.patience_ns};
  QueueWarp warp(queue);
  const auto settled = [&](uint64_t task) { return atomicAdd(tree.looks + task, int64_t{1}) >= tree.late; };
  for (;;) {
    const TakenTasks taken = warp.take(static_cast<int>(tree.at_once), settled);
    if (taken.count == 0) return;
    int64_t children = 0, task = 0;
    if (lane_number() < taken.count) {
      task = taken.word == kNoTask ? taken.number : static_cast<int64_t>(taken.word);
      atomicAdd(tree.visits + task, int64_t{1});
      if (task == tree.lost) queue.add(kTailWord, 1);
      children = 1 + (5 * task + 3) % tree.degree;
      const int64_t room = tree.num_places - 1 - tree.degree * task;
      if (children > room) children = room < 0 ? 0 : room;
    }
    warp.put(children, [&](int64_t i) { return static_cast<uint64_t>(tree.degree * task + 1 + i); });
    warp.finish(taken.count);
  }
}

}  // namespace
}  // namespace fs

extern "C" FS_API FsStatus fs_emulated_task_tree(const FsTaskTree* tree, int32_t blocks) {
  fs::launch(fs::visit_tree, blocks, nullptr, *tree);
  return fs::launch_status("task_tree");
}
