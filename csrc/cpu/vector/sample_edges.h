// Uniform draws of one hop, sixteen rows at a time, ahead of the pipeline that reads and relabels what they point at.
#ifndef FS_CPU_VECTOR_SAMPLE_EDGES_H_
#define FS_CPU_VECTOR_SAMPLE_EDGES_H_

#include "edge_pipeline.h"
#include "floyd_group.h"
#include "philox_nodes.h"
#include "pick.h"

namespace fs {
namespace {

constexpr int64_t kDrawRowsAhead = 48;  // rows between asking for an original id and reading it

// Rows of which a part is taken, sixteen at a time.
struct RowGroup {
  alignas(64) uint64_t nodes[kGroupNodes];    // original ids
  alignas(64) uint32_t degrees[kGroupNodes];  // low words
  RowEdges edges[kGroupNodes];
  int64_t places[kGroupNodes];  // number of the row's first pick
  int size = 0;
};

template <typename Id>
class Drawer {
 public:
  Drawer(const HopTask<Id>& task, const PickRing& ring) : task_(task), ring_(ring) {}

  // Draws rows from `row` on, at most up to `end`, until a group is full or kSpanPicks are drawn; returns the row after
  // the last one. All picks before its offset are in the ring then.
  FS_INLINE int64_t draw_span(int64_t row, int64_t end) {
    group_.size = 0;
    const int64_t last_pick = task_.offsets[row] + kSpanPicks;
    while (row < end && group_.size < kGroupNodes && task_.offsets[row + 1] <= last_pick) add_row(row++);
    if (group_.size > 0) draw_group();
    return row;
  }

 private:
  FS_INLINE void add_row(int64_t row) {
    const RowEdges edges = task_.edges[row];
    const int64_t place = task_.offsets[row], picks = task_.offsets[row + 1] - place;
    if (picks == edges.degree && !task_.replace) {  // takes all
      for (int64_t k = 0; k < picks; ++k) ring_[place + k] = edges.begin + k;
      return;
    }
    if (picks == 0) return;
    const int lane = group_.size++;
    group_.nodes[lane] = task_.graph.orig_id(static_cast<int64_t>(task_.rows[row]));
    group_.degrees[lane] = static_cast<uint32_t>(edges.degree);
    group_.edges[lane] = edges;
    group_.places[lane] = place;
  }

  FS_INLINE void draw_group() {
    for (int lane = group_.size; lane < kGroupNodes; ++lane) {  // an unused lane draws for nothing
      group_.nodes[lane] = group_.nodes[0];
      group_.degrees[lane] = group_.degrees[0];
    }
    const int fanout = static_cast<int>(task_.fanout);
    alignas(64) uint32_t words[(kGroupFanout + 3) / 4 * 4][kGroupNodes];
    stream_words(task_.key, group_.nodes, 1, (fanout + 3) / 4, words[0]);
    GroupPicks picks;
    const GroupLanes degrees = reinterpret_cast<const GroupLanes&>(group_.degrees);
    if (task_.replace) {
      pick_group<true>(words[0], degrees, fanout, &picks);
    } else {
      pick_group<false>(words[0], degrees, fanout, &picks);
    }
    for (int lane = 0; lane < group_.size; ++lane) {
      const int64_t begin = group_.edges[lane].begin, place = group_.places[lane];
      if (picks.redo[lane] != 0 || group_.edges[lane].degree > int64_t{UINT32_MAX}) {
        draw_singly(lane);
        continue;
      }
      for (int i = 0; i < fanout; ++i) ring_[place + i] = begin + picks.positions[i][lane];
    }
  }

  __attribute__((noinline)) void draw_singly(int lane) {
    int64_t positions[kGroupFanout];
    NodeStream stream(task_.key, group_.nodes[lane]);
    if (task_.replace) {
      pick_with_replacement(stream, group_.edges[lane].degree, task_.fanout, positions);
    } else {
      ScanTaken scan{positions};
      pick_distinct(stream, group_.edges[lane].degree, task_.fanout, scan, positions);
    }
    for (int64_t i = 0; i < task_.fanout; ++i) ring_[group_.places[lane] + i] = group_.edges[lane].begin + positions[i];
  }

  const HopTask<Id>& task_;
  PickRing ring_;
  RowGroup group_;
};

// Rows begin .. end. Fanouts 0 .. kGroupFanout, degrees below 2^32. `ids` may be null without relabelling.
template <typename Id, bool kRelabel>
void sample_edges(const HopTask<Id>& task, int64_t begin, int64_t end, Relabeling<Id>* ids) {
  int64_t memory[kRing];
  const PickRing ring = task.edge_ids == nullptr ? PickRing{memory, kRing - 1} : PickRing{task.edge_ids, -1};
  Pipeline<Id, kRelabel> pipeline(task, ring, task.offsets[begin], ids);
  Drawer<Id> drawer(task, ring);
  bool accepted = true;
  for (int64_t row = begin; row < end && accepted;) {
    if (task.graph.orig_ids != nullptr) {
      for (int64_t i = row + kDrawRowsAhead; i < row + 2 * kDrawRowsAhead && i < end; ++i) {
        __builtin_prefetch(task.graph.orig_ids + task.rows[i]);
      }
    }
    row = drawer.draw_span(row, end);
    accepted = pipeline.advance(task.offsets[row]);
  }
  accepted = accepted && pipeline.finish();
  pipeline.write(!accepted, ids);
}

template <typename Id>
void sample_edges_of(const HopTask<Id>& task, int64_t begin, int64_t end, Relabeling<Id>* ids) {
  if (ids == nullptr) {
    sample_edges<Id, false>(task, begin, end, ids);
  } else {
    sample_edges<Id, true>(task, begin, end, ids);
  }
}

// Relabels edges begin .. end of `edges` in place.
template <typename Id>
void relabel_edges(Id* edges, int64_t begin, int64_t end, Relabeling<Id>* ids) {
  IdBucket<Id> spare;
  Labeler<Id> labeler(ids, &spare);
  for (int64_t j = begin; j < end; ++j) {
    if (j + kRelabelAhead < end) labeler.ask_for(edges[j + kRelabelAhead]);
    if (!labeler.accepts(edges[j])) {
      ids->bad = j;
      break;
    }
    edges[j] = labeler.local_id(edges[j]);
  }
  labeler.write(ids);
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_SAMPLE_EDGES_H_
