// Built-in step kernels: see transit_steps.h.
#include "transit_steps.h"

#include "node2vec_task.h"
#include "transit_draw.h"
#include "walk_slot.h"

namespace fs {
namespace {

// One pick of a task.
struct Pick {
  int64_t sample, number, transit;  // number inside the sample

  Pick(const FsStepTask& task, int64_t at) {
    const int64_t slot = task.slots == nullptr ? at : task.slots[at];
    sample = slot / task.picks;
    number = slot % task.picks;
    transit = task.transits[sample * task.transit_stride + number / task.sample_size];
  }

  PickStream stream(const FsStepTask& task) const {
    return {{task.key0, task.key1}, task.sample_ids[sample], task.first_pick + task.attempt * task.picks + number};
  }
};

template <typename Id>
struct Row {
  int64_t begin, degree;
  const Id* ids;

  Row(const FsStepTask& task, int64_t node)
      : begin(task.graph->indptr[node]),
        degree(task.graph->indptr[node + 1] - begin),
        ids(static_cast<const Id*>(task.graph->indices) + begin) {}

  int64_t uniform(PickStream& stream) const {
    return degree == 0 ? FS_NULL_NODE : ids[stream.below(static_cast<uint64_t>(degree))];
  }
  int64_t weighted(const WalkSlots<Id>& slots, PickStream& stream) const {
    return walk_draw(stream, slots, begin, degree);
  }
};

template <typename Id>
WalkSlots<Id> slots_of(const FsStepTask& task) {
  return {task.tables->walk_slots, task.graph->num_rows, task.graph->num_edges};
}

// Calls pick(pick, stream) for every slot and stores what it returns.
template <typename Body>
int32_t each_pick(const FsStepTask* task, int64_t begin, int64_t end, const Body& body) {
  for (int64_t at = begin; at < end; ++at) {
    const Pick pick(*task, at);
    PickStream stream = pick.stream(*task);
    task->out[pick.sample * task->out_stride + pick.number] = body(pick, stream);
  }
  return 0;
}

template <typename Id>
int32_t uniform_next(const FsStepTask* task, int64_t begin, int64_t end) {
  return each_pick(task, begin, end,
                   [&](const Pick& pick, PickStream& stream) { return Row<Id>(*task, pick.transit).uniform(stream); });
}

template <typename Id>
int32_t weighted_next(const FsStepTask* task, int64_t begin, int64_t end) {
  const WalkSlots<Id> slots = slots_of<Id>(*task);
  return each_pick(task, begin, end, [&](const Pick& pick, PickStream& stream) {
    return Row<Id>(*task, pick.transit).weighted(slots, stream);
  });
}

template <typename Id>
int32_t ppr_next(const FsStepTask* task, int64_t begin, int64_t end) {
  const WalkSlots<Id> slots = task->tables->walk_slots == nullptr ? WalkSlots<Id>() : slots_of<Id>(*task);
  return each_pick(task, begin, end, [&](const Pick& pick, PickStream& stream) -> int64_t {
    if (task->step_index >= task->state[pick.sample * task->state_words]) return FS_NULL_NODE;
    const Row<Id> row(*task, pick.transit);
    return slots.is_none() ? row.uniform(stream) : row.weighted(slots, stream);
  });
}

int32_t ppr_initial(const FsStepTask* task, int64_t begin, int64_t end) {
  const int64_t* table = reinterpret_cast<const int64_t*>(static_cast<uintptr_t>(task->params[0]));
  for (int64_t at = begin; at < end; ++at) {
    const int64_t sample = task->slots == nullptr ? at : task->slots[at];
    PickStream stream({task->key0, task->key1}, task->sample_ids[sample], 0);
    task->state[sample * task->state_words] = ppr_length(stream.word64(), table, task->params[1]);
  }
  return 0;
}

template <typename Id>
int32_t multi_rw_next(const FsStepTask* task, int64_t begin, int64_t end) {
  return each_pick(task, begin, end, [&](const Pick& pick, PickStream& stream) {
    const int64_t node = Row<Id>(*task, pick.transit).uniform(stream);
    int64_t* roots = task->state + pick.sample * task->state_words;
    if (node != FS_NULL_NODE) roots[roots[task->num_roots]] = node;
    return node;
  });
}

int32_t multi_rw_initial(const FsStepTask* task, int64_t begin, int64_t end) {
  for (int64_t at = begin; at < end; ++at) {
    const int64_t sample = task->slots == nullptr ? at : task->slots[at];
    const int64_t* roots = task->vertices[0] + sample * task->strides[0];
    int64_t* state = task->state + sample * task->state_words;
    for (int64_t i = 0; i < task->num_roots; ++i) state[i] = roots[i];
  }
  return 0;
}

int64_t degree_of(const FsStepTask& task, int64_t node) {
  return node < 0 ? 0 : task.graph->indptr[node + 1] - task.graph->indptr[node];
}

// The number of a root, with probability degree / sum of degrees; -1 where the sum is 0.
int64_t root_by_degree(const FsStepTask& task, const int64_t* roots, PickStream& stream) {
  int64_t sum = 0;
  for (int64_t i = 0; i < task.num_roots; ++i) sum += degree_of(task, roots[i]);
  if (sum == 0) return -1;
  int64_t left = static_cast<int64_t>(stream.below(static_cast<uint64_t>(sum)));
  int64_t root = 0;
  for (; left >= degree_of(task, roots[root]); ++root) left -= degree_of(task, roots[root]);
  return root;
}

int64_t choose_root(const FsStepTask& task, const int64_t* roots, PickStream& stream) {
  if (task.num_roots == 0) return -1;
  if (task.params[0] != 0) return root_by_degree(task, roots, stream);
  return static_cast<int64_t>(stream.below(static_cast<uint64_t>(task.num_roots)));
}

int32_t multi_rw_transits(const FsStepTask* task, int64_t begin, int64_t end) {
  for (int64_t at = begin; at < end; ++at) {
    const int64_t slot = task->slots == nullptr ? at : task->slots[at];
    const int64_t sample = slot / task->picks, index = slot % task->picks;
    PickStream stream({task->key0, task->key1}, task->sample_ids[sample], index);
    int64_t* roots = task->state + sample * task->state_words;
    const int64_t chosen = choose_root(*task, roots, stream);
    if (chosen >= 0) roots[task->num_roots] = chosen;
    task->out[sample * task->out_stride + index] = chosen < 0 ? FS_NULL_NODE : roots[chosen];
  }
  return 0;
}

template <typename Id>
int32_t all_next(const FsStepTask* task, int64_t begin, int64_t end) {
  for (int64_t at = begin; at < end; ++at) {
    const Pick pick(*task, at);
    task->out[pick.sample * task->out_stride + pick.number] = Row<Id>(*task, pick.transit).ids[pick.number];
  }
  return 0;
}

template <typename Id>
StepKernels kernels_of(const FsTransitApp& app) {
  switch (app.next_kind) {
    case FS_NEXT_CALLBACK:
      return {app.next, app.step_transits, app.initial};
    case FS_NEXT_UNIFORM:
      return {uniform_next<Id>, app.step_transits, app.initial};
    case FS_NEXT_WEIGHTED:
      return {weighted_next<Id>, app.step_transits, app.initial};
    case FS_NEXT_NODE2VEC:
      return {node2vec_next, app.step_transits, app.initial};
    case FS_NEXT_PPR:
      return {ppr_next<Id>, nullptr, ppr_initial};
    case FS_NEXT_MULTI_RW:
      return {multi_rw_next<Id>, multi_rw_transits, multi_rw_initial};
    case FS_NEXT_ALL:
      return {all_next<Id>, app.step_transits, app.initial};
    default:
      return {nullptr, nullptr, nullptr};
  }
}

}  // namespace

StepKernels step_kernels(const FsTransitApp& app, int32_t id_type) {
  return id_type == FS_INT32 ? kernels_of<int32_t>(app) : kernels_of<int64_t>(app);
}

}  // namespace fs
