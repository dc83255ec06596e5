// Rows of an FsNeighbours, visited in the order of turns, with a column of labels by node.
//
// Labels are read at random: each is asked for kAhead entries before it is needed, across the ends of rows, which is
// what the next turn reads where rows lie in the order of the turns.
#ifndef FS_CPU_NEIGHBOUR_ROWS_H_
#define FS_CPU_NEIGHBOUR_ROWS_H_

#include "fastsample_clusters.h"
#include "graph_checks.h"
#include "requests.h"
#include "status.h"

namespace fs {

// Entries begin .. end - 1 are the neighbours of `node`.
struct NeighbourRow {
  int64_t node, begin, end;

  int64_t degree() const { return end - begin; }
};

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

  // visit(row) for every turn, until one fails.
  template <typename Visit>
  FsStatus each(int64_t first, int64_t last, Visit&& visit) const {
    for (int64_t turn = first; turn < last; ++turn) {
      const NeighbourRow row = at(turn);
      if (row.node < 0 || row.node >= graph_.num_nodes) return refuse_order(operation_, row.node, graph_.num_nodes);
      if (!is_sound(row)) {
        return refuse(FS_REFUSED_OFFSETS, operation_, {{row.node, row.begin, row.end, graph_.num_entries}});
      }
      const FsStatus status = visit(row);
      if (status != FS_OK) return status;
    }
    return FS_OK;
  }

  // link(neighbour, weight) for every entry of the row but self-loops.
  template <typename Link>
  FsStatus links(const NeighbourRow& row, Link&& link) const {
    for (int64_t entry = row.begin; entry < row.end; ++entry) {
      if (entry + kAhead < graph_.num_entries) {
        const uint64_t later = static_cast<uint64_t>(indices_[entry + kAhead]);
        if (later < static_cast<uint64_t>(graph_.num_nodes)) __builtin_prefetch(labels_ + later);
      }
      const uint64_t neighbour = static_cast<uint64_t>(indices_[entry]);
      if (neighbour >= static_cast<uint64_t>(graph_.num_nodes)) {
        return refuse_neighbour(operation_, row.node, graph_.num_nodes);
      }
      if (neighbour != static_cast<uint64_t>(row.node)) link(static_cast<int64_t>(neighbour), weight(entry));
    }
    return FS_OK;
  }

  const int64_t* order() const { return graph_.order; }

  // Row of a turn. A node outside the graph has an empty one.
  NeighbourRow at(int64_t turn) const {
    const int64_t node = graph_.order == nullptr ? turn : graph_.order[turn];
    if (node < 0 || node >= graph_.num_nodes) return {node, 0, 0};
    const int64_t* offsets = graph_.indptr + (graph_.rows_by_turn != 0 ? turn : node);
    return {node, offsets[0], offsets[1]};
  }

  // Whether the node is in the graph and the row within the entries.
  bool is_sound(const NeighbourRow& row) const {
    return row.node >= 0 && row.node < graph_.num_nodes && row.begin >= 0 && row.begin <= row.end &&
           row.end <= graph_.num_entries;
  }

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
