// The visits of one subgraph as they are defined (fastsample_subgraph.h): draw by draw, without vectors or look-ahead.
//
// fs_set_isa("scalar") draws by this file; tests/ops/test_subgraph_nodes.py compares every instruction set with it.
#include <vector>

#include "hop_spec.h"
#include "subgraph_visits.h"

namespace fs {
namespace {

template <typename Id>
class PlainVisits {
 public:
  PlainVisits(const SubgraphCall<Id>& call, uint64_t number, VisitList<Id>* visits)
      : call_(call),
        visits_(*visits),
        roots_key_(call.key(kSubgraphRoots, number)),
        hops_key_(call.key(kSubgraphHops, number)),
        draws_key_(call.key(kSubgraphDraws, number)),
        pops_key_(call.key(kSubgraphPops, number)) {}

  FsStatus run() {
    visits_.reserve(most_visits(call_.spec));
    switch (call_.spec.method) {
      case FS_SUBGRAPH_FRONTIER:
        return frontier();
      case FS_SUBGRAPH_NODE:
        return node_draws();
      case FS_SUBGRAPH_EDGE:
        return edge_draws();
      default:
        return walks();
    }
  }

 private:
  struct Walker {
    NodeStream hops;
    Id node;
    RowEdges row;
    uint64_t weight;
  };

  // Reads where a node's in-neighbours lie.
  FsStatus find_row(Id node, RowEdges* row) const {
    const int64_t begin = call_.graph.indptr[node], end = call_.graph.indptr[node + 1];
    *row = {begin, end - begin};
    const bool is_row = begin >= 0 && end >= begin && end <= call_.graph.num_edges;
    return is_row ? FS_OK : refuse_row(call_.operation, call_.graph, node);
  }

  FsStatus visit_root(Id node) {
    if (!call_.graph.has_row(node)) return refuse_row(call_.operation, call_.graph, node);
    visits_.push(node);
    return FS_OK;
  }

  // Puts a walker on its root.
  FsStatus start(int64_t slot, Walker* walker) {
    const uint64_t id = static_cast<uint64_t>(slot);
    NodeStream stream(roots_key_, id);
    walker->node = call_.roots()[stream.below(static_cast<uint64_t>(call_.tables.num_roots))];
    walker->hops = NodeStream(hops_key_, id);
    return visit_root(walker->node);
  }

  // Takes position below(degree) of the row, which is not empty, and visits the neighbour there.
  FsStatus hop(NodeStream& stream, const RowEdges& row, Id* node) {
    const int64_t position = static_cast<int64_t>(stream.below(static_cast<uint64_t>(row.degree)));
    *node = call_.graph.indices[row.begin + position];
    if (!call_.graph.has_row(*node)) return refuse_source(call_.operation, call_.graph, *node);
    visits_.push(*node);
    return FS_OK;
  }

  FsStatus weigh(Walker* slot) const {
    const FsStatus status = find_row(slot->node, &slot->row);
    slot->weight = call_.slot_weight(slot->row.degree);
    return status;
  }

  FsStatus frontier() {
    const int64_t size = call_.spec.frontier_size;
    std::vector<Walker> slots(static_cast<size_t>(size), Walker{NodeStream(hops_key_, 0), 0, {0, 0}, 0});
    uint64_t total = 0;
    for (int64_t i = 0; i < size; ++i) {
      Walker& slot = slots[static_cast<size_t>(i)];
      FsStatus status = start(i, &slot);
      if (status == FS_OK) status = weigh(&slot);
      if (status != FS_OK) return status;
      total += slot.weight;
    }
    NodeStream pops(pops_key_, 0);
    for (; visits_.count() < call_.spec.budget && total > 0; ++visits_.steps) {
      uint64_t rest = pops.below(total);
      size_t i = 0;
      for (; rest >= slots[i].weight; ++i) rest -= slots[i].weight;
      Walker& slot = slots[i];
      total -= slot.weight;
      FsStatus status = hop(slot.hops, slot.row, &slot.node);
      if (status == FS_OK) status = weigh(&slot);
      if (status != FS_OK) return status;
      total += slot.weight;
    }
    return FS_OK;
  }

  FsStatus node_draws() {
    const int64_t* sums = call_.tables.degree_sums;
    const uint64_t total = static_cast<uint64_t>(sums[call_.tables.num_roots]);
    for (int64_t i = 0; i < call_.spec.budget && total > 0; ++i, ++visits_.steps) {
      NodeStream stream(draws_key_, static_cast<uint64_t>(i));
      const int64_t drawn = static_cast<int64_t>(stream.below(total));
      int64_t low = 0, high = call_.tables.num_roots - 1;  // the first place with sums[place + 1] > drawn is in here
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (sums[middle + 1] > drawn) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      const FsStatus status = visit_root(call_.roots()[low]);
      if (status != FS_OK) return status;
    }
    return FS_OK;
  }

  FsStatus edge_draws() {
    const uint64_t count = static_cast<uint64_t>(call_.tables.num_connected);
    for (int64_t i = 0; i < call_.spec.budget && count > 0; ++i, ++visits_.steps) {
      NodeStream stream(draws_key_, static_cast<uint64_t>(i));
      const Id head = call_.connected()[stream.below(count)];
      RowEdges row = {0, 0};
      Id neighbor;
      FsStatus status = visit_root(head);
      if (status == FS_OK) status = find_row(head, &row);
      if (status == FS_OK && row.degree == 0) status = refuse_unconnected(head);
      if (status == FS_OK) status = hop(stream, row, &neighbor);
      if (status != FS_OK) return status;
    }
    return FS_OK;
  }

  FsStatus walks() {
    const int64_t length = call_.spec.walk_length, count = call_.spec.budget / (length + 1);
    for (int64_t i = 0; i < count; ++i) {
      Walker walker = {NodeStream(hops_key_, 0), 0, {0, 0}, 0};
      FsStatus status = start(i, &walker);
      for (int64_t made = 0; made < length && status == FS_OK; ++made, ++visits_.steps) {
        status = find_row(walker.node, &walker.row);
        if (status == FS_OK && walker.row.degree == 0) break;
        if (status == FS_OK) status = hop(walker.hops, walker.row, &walker.node);
      }
      if (status != FS_OK) return status;
    }
    return FS_OK;
  }

  FsStatus refuse_unconnected(Id node) const {
    return fail(FS_INVALID_ARGUMENT, "%s: connected holds node %lld, which has no in-edge", call_.operation,
                static_cast<long long>(node));
  }

  const SubgraphCall<Id>& call_;
  VisitList<Id>& visits_;
  const StageKey roots_key_, hops_key_, draws_key_, pops_key_;
};

}  // namespace

template <typename Id>
FsStatus visit_plainly(const SubgraphCall<Id>& call, uint64_t number, VisitList<Id>* visits) {
  return PlainVisits<Id>(call, number, visits).run();
}

template FsStatus visit_plainly(const SubgraphCall<int32_t>&, uint64_t, VisitList<int32_t>*);
template FsStatus visit_plainly(const SubgraphCall<int64_t>&, uint64_t, VisitList<int64_t>*);

}  // namespace fs
