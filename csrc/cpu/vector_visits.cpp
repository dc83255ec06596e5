// The visits of one subgraph by the vector kernels: their tasks, and their scratch, which stays with the thread.
#include "buffer.h"
#include "subgraph_visits.h"
#include "vector/vector_kernels.h"

namespace fs {
namespace {

struct WalkerScratch {
  Buffer slots, words, changes, sums;
};

__attribute__((noinline)) WalkerScratch& thread_walkers() {
  static thread_local WalkerScratch scratch;
  return scratch;
}

DrawnVisits run_kernel(const FrontierTask<int32_t>& task) { return vector_kernels().frontier_walk_32(task); }
DrawnVisits run_kernel(const FrontierTask<int64_t>& task) { return vector_kernels().frontier_walk_64(task); }

DrawnVisits run_kernel(const LoneTask<int32_t>& task) { return vector_kernels().lone_visits_32(task); }
DrawnVisits run_kernel(const LoneTask<int64_t>& task) { return vector_kernels().lone_visits_64(task); }

int64_t whole_groups(int64_t count) { return (count + kGroupNodes - 1) / kGroupNodes * kGroupNodes; }

template <typename Id>
RootList<Id> roots_of(const SubgraphCall<Id>& call, uint64_t number) {
  return {call.roots(), static_cast<uint64_t>(call.tables.num_roots), call.key(kSubgraphRoots, number)};
}

template <typename Id>
DrawnVisits lone_walkers(const SubgraphCall<Id>& call, uint64_t number, Id* visits) {
  const FsSubgraphSpec& spec = call.spec;
  LoneTask<Id> task;
  task.method = spec.method;
  task.graph = call.graph;
  task.roots = roots_of(call, number);
  task.degree_sums = call.tables.degree_sums;
  task.count = spec.budget;
  task.walk_length = spec.walk_length;
  task.hops_key = call.key(kSubgraphHops, number);
  task.visits = visits;
  if (spec.method == FS_SUBGRAPH_WALK) {
    task.count = spec.budget / (spec.walk_length + 1);
  } else {
    task.roots.key = call.key(kSubgraphDraws, number);
  }
  if (spec.method == FS_SUBGRAPH_EDGE) {
    task.roots.nodes = call.connected();
    task.roots.count = static_cast<uint64_t>(call.tables.num_connected);
  }
  return run_kernel(task);
}

template <typename Id>
DrawnVisits frontier(const SubgraphCall<Id>& call, uint64_t number, Id* visits) {
  const FsSubgraphSpec& spec = call.spec;
  WalkerScratch& scratch = thread_walkers();
  FrontierTask<Id> task;
  task.graph = call.graph;
  task.roots = roots_of(call, number);
  task.size = spec.frontier_size;
  task.budget = spec.budget;
  task.max_degree = spec.max_degree > 0 ? static_cast<uint64_t>(spec.max_degree) : ~uint64_t{0};
  task.pops_key = call.key(kSubgraphPops, number);
  task.hops_key = call.key(kSubgraphHops, number);
  task.visits = visits;
  task.slots = scratch.slots.require_array<FrontierSlot<Id>>(task.size);
  task.words = scratch.words.require_array<uint32_t>(whole_groups(task.size) * kSlotWords);
  task.changes = scratch.changes.require_array<int64_t>(task.size);
  scratch.sums.require(static_cast<size_t>(sums_bytes(task.size)));
  task.sums = scratch.sums.data();
  return run_kernel(task);
}

}  // namespace

template <typename Id>
bool visit_by_vectors(const SubgraphCall<Id>& call, uint64_t number, VisitList<Id>* visits) {
  Id* room = visits->reserve(most_visits(call.spec));
  const bool is_frontier = call.spec.method == FS_SUBGRAPH_FRONTIER;
  const DrawnVisits drawn = is_frontier ? frontier(call, number, room) : lone_walkers(call, number, room);
  if (drawn.count < 0) return false;
  visits->set_count(drawn.count);
  visits->steps = drawn.steps;
  return true;
}

template bool visit_by_vectors(const SubgraphCall<int32_t>&, uint64_t, VisitList<int32_t>*);
template bool visit_by_vectors(const SubgraphCall<int64_t>&, uint64_t, VisitList<int64_t>*);

}  // namespace fs
