// Rows of an FsNeighbours, visited in the order of turns, with a column of labels by node.
//
// Labels are read at random: each is asked for kAhead entries before it is needed, across the ends of rows, which is
// what the next turn reads where nodes ascend.
#ifndef FS_CPU_NEIGHBOUR_ROWS_H_
#define FS_CPU_NEIGHBOUR_ROWS_H_

#include "fastsample_clusters.h"
#include "graph_checks.h"
#include "requests.h"
#include "status.h"

namespace fs {

template <typename Id>
class NeighbourRows {
 public:
  NeighbourRows(const char* operation, const FsNeighbours& graph, const int32_t* labels)
      : operation_(operation), graph_(graph), indices_(static_cast<const Id*>(graph.indices)), labels_(labels) {}

  FsStatus check_turns(int64_t first, int64_t last) const {
    if (graph_.weights != nullptr && graph_.weight_type != FS_UINT8 && graph_.weight_type != FS_INT32) {
      return fail(FS_INVALID_ARGUMENT, "%s: weight_type %d; expected uint8 or int32", operation_, graph_.weight_type);
    }
    if (0 <= first && first <= last && last <= graph_.num_nodes) return FS_OK;
    return fail(FS_INVALID_ARGUMENT, "%s: turns %lld to %lld; expected them within 0 to %lld", operation_,
                static_cast<long long>(first), static_cast<long long>(last), static_cast<long long>(graph_.num_nodes));
  }

  // visit(node) for every turn, until one fails.
  template <typename Visit>
  FsStatus each(int64_t first, int64_t last, Visit&& visit) const {
    for (int64_t turn = first; turn < last; ++turn) {
      const int64_t node = graph_.order == nullptr ? turn : graph_.order[turn];
      if (node < 0 || node >= graph_.num_nodes) {
        return refuse_order(operation_, node, graph_.num_nodes);
      }
      const int64_t begin = graph_.indptr[node], end = graph_.indptr[node + 1];
      if (begin < 0 || end < begin || end > graph_.num_entries) {
        return refuse(FS_REFUSED_OFFSETS, operation_, {{node, begin, end, graph_.num_entries}});
      }
      const FsStatus status = visit(node);
      if (status != FS_OK) return status;
    }
    return FS_OK;
  }

  // link(neighbour, weight) for every entry of the row but self-loops.
  template <typename Link>
  FsStatus links(int64_t node, Link&& link) const {
    const int64_t end = graph_.indptr[node + 1];
    for (int64_t entry = graph_.indptr[node]; entry < end; ++entry) {
      if (entry + kAhead < graph_.num_entries) {
        const uint64_t later = static_cast<uint64_t>(indices_[entry + kAhead]);
        if (later < static_cast<uint64_t>(graph_.num_nodes)) __builtin_prefetch(labels_ + later);
      }
      const uint64_t neighbour = static_cast<uint64_t>(indices_[entry]);
      if (neighbour >= static_cast<uint64_t>(graph_.num_nodes)) {
        return refuse_neighbour(operation_, node, graph_.num_nodes);
      }
      if (neighbour != static_cast<uint64_t>(node)) link(static_cast<int64_t>(neighbour), weight(entry));
    }
    return FS_OK;
  }

  int64_t degree(int64_t node) const { return graph_.indptr[node + 1] - graph_.indptr[node]; }

  // A label or part that is out of range is refused by the node that has it.
  FsStatus refuse_label(int64_t node, const char* what, int64_t most) const {
    return fail(FS_INVALID_ARGUMENT, "%s: node %lld has %s %d; expected 0 to %lld", operation_,
                static_cast<long long>(node), what, labels_[node], static_cast<long long>(most));
  }

 private:
  static constexpr int64_t kAhead = 32;

  int64_t weight(int64_t entry) const {
    if (graph_.weights == nullptr) return 1;
    if (graph_.weight_type == FS_UINT8) return static_cast<const uint8_t*>(graph_.weights)[entry];
    return static_cast<const int32_t*>(graph_.weights)[entry];
  }

  const char* operation_;
  const FsNeighbours& graph_;
  const Id* indices_;
  const int32_t* labels_;
};

}  // namespace fs

#endif  // FS_CPU_NEIGHBOUR_ROWS_H_
