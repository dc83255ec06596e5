// Weighted picks of one hop (core/weighted_pick.h), in the pipeline of vector/edge_pipeline.h with one stage before it.
//
// An alias draw reads a slot of the row's table at a random place, and then the neighbour that it leads to. The words
// of sixteen rows are computed at once; they determine which slots will be read, except for rare rejections, so those
// are asked for first and read one group later.
#ifndef FS_CPU_WEIGHTED_ROWS_H_
#define FS_CPU_WEIGHTED_ROWS_H_

#include <stdint.h>

#include <algorithm>
#include <vector>

#include "buffer.h"
#include "hop_task.h"
#include "uniform_rows.h"
#include "vector/edge_pipeline.h"
#include "vector/vector_kernels.h"
#include "weighted_pick.h"

namespace fs {

template <typename Weight>
struct WeightTables {
  const Weight* weights;        // [num_edges]
  const AliasEntry* entries;    // [num_edges]
  const int64_t* num_positive;  // [num_rows] or null: the degrees

  int64_t positive(int64_t row, int64_t degree) const { return num_positive == nullptr ? degree : num_positive[row]; }
};

// Words that were computed ahead, then the node's stream from there on.
class WordsAhead {
 public:
  WordsAhead(const uint32_t* words, int num_words, const NodeStream& rest)
      : words_(words), left_(num_words), rest_(rest) {}

  uint32_t next() {
    if (left_ == 0) return rest_.next();
    --left_;
    const uint32_t word = *words_;
    words_ += kGroupNodes;
    return word;
  }
  uint64_t below(uint64_t n) { return draw_below(*this, n); }

 private:
  const uint32_t* words_;  // of one lane, kGroupNodes apart
  int left_;
  NodeStream rest_;
};

// The calling thread's sum tree; only rows whose weight lies in few edges need one.
inline __attribute__((noinline)) Buffer& thread_sum_tree() {
  static thread_local Buffer tree;
  return tree;
}

// Philox blocks of a row of so many picks, of two words each; without replacement a quarter more for repeats.
constexpr int64_t blocks_ahead(int64_t picks, bool replace) {
  const int64_t spare = replace ? 0 : picks / 4 + 1;
  return (2 * (picks + spare) + 3) / 4;
}

// Sixteen rows of which some edges are drawn: a lane each.
struct WeightedGroup {
  static constexpr int64_t kMaxWords = 4 * blocks_ahead(kGroupFanout, false);

  uint64_t nodes[kGroupNodes];  // original ids
  int64_t rows[kGroupNodes];    // numbers in the task
  uint32_t words[kMaxWords][kGroupNodes];
  int size = 0;
  int64_t end = 0;  // row after the last one of the span
};

template <typename Id, typename Weight>
class WeightedRows {
 public:
  WeightedRows(const HopTask<Id>& task, const WeightTables<Weight>& tables) : task_(task), tables_(tables) {
    const int64_t picks = std::min<int64_t>(task.fanout, kGroupFanout);  // of rows whose words are computed ahead
    num_blocks_ = static_cast<int32_t>(blocks_ahead(picks, task.replace));
  }

  // Rows begin .. end of at most kGroupFanout picks each.
  template <bool kRelabel>
  void run(int64_t begin, int64_t end, Relabeling<Id>* ids) {
    int64_t memory[kRing];
    const PickRing ring = task_.edge_ids == nullptr ? PickRing{memory, kRing - 1} : PickRing{task_.edge_ids, -1};
    Pipeline<Id, kRelabel> pipeline(task_, ring, task_.offsets[begin], ids);
    int current = 0;
    prepare(begin, end, &groups_[0]);
    bool accepted = true;
    for (int64_t row = begin; row < end && accepted; row = groups_[1 - current].end) {
      WeightedGroup& group = groups_[current];
      current = 1 - current;
      if (group.end < end) prepare(group.end, end, &groups_[current]);
      draw(row, group, ring);
      accepted = pipeline.advance(task_.offsets[group.end]);
    }
    accepted = accepted && pipeline.finish();
    pipeline.write(!accepted, ids);
  }

  // The same for rows of more picks, one at a time; without relabelling.
  void run_large(int64_t begin, int64_t end) {
    std::vector<int64_t> positions;
    for (int64_t row = begin; row < end; ++row) {
      const RowEdges edges = task_.edges[row];
      const int64_t picks = task_.offsets[row + 1] - task_.offsets[row];
      if (takes_all_positive(row, picks)) {
        positions.resize(std::max(positions.size(), static_cast<size_t>(edges.degree)));
        list_positive(tables_.weights + edges.begin, edges.degree, positions.data());
      } else {
        positions.resize(std::max(positions.size(), static_cast<size_t>(task_.fanout)));
        NodeStream stream(task_.key, task_.graph.orig_id(task_.rows[row]));
        draw_row(stream, edges, positions.data());
      }
      read_picks(task_, row, positions.data(), picks);
    }
  }

 private:
  bool takes_all_positive(int64_t row, int64_t picks) const {
    return picks == 0 ||
           takes_all(tables_.positive(task_.rows[row], task_.edges[row].degree), task_.fanout, task_.replace);
  }

  // Collects the next rows that are drawn from, computes their words, and asks for the slots.
  void prepare(int64_t row, int64_t end, WeightedGroup* group) {
    const int64_t last_pick = task_.offsets[row] + kSpanPicks;
    group->size = 0;
    for (; row < end && group->size < kGroupNodes && task_.offsets[row + 1] <= last_pick; ++row) {
      if (takes_all_positive(row, task_.offsets[row + 1] - task_.offsets[row])) continue;
      group->nodes[group->size] = task_.graph.orig_id(static_cast<int64_t>(task_.rows[row]));
      group->rows[group->size++] = row;
    }
    group->end = row;
    for (int lane = group->size; lane < kGroupNodes; ++lane) group->nodes[lane] = group->nodes[0];
    if (group->size == 0) return;
    vector_kernels().stream_words(task_.key, group->nodes, 1, num_blocks_, group->words[0]);
    for (int lane = 0; lane < group->size; ++lane) {
      const RowEdges edges = task_.edges[group->rows[lane]];
      for (int64_t draw = 0; draw < task_.fanout; ++draw) {
        const uint64_t slot = group->words[2 * draw][lane] * static_cast<uint64_t>(edges.degree) >> 32;
        __builtin_prefetch(tables_.entries + edges.begin + slot, 0, 2);
      }
    }
  }

  // Puts the picks of rows row .. group.end into the ring.
  void draw(int64_t row, const WeightedGroup& group, const PickRing& ring) {
    int64_t positions[kGroupFanout];
    for (int lane = 0; row < group.end; ++row) {
      const RowEdges edges = task_.edges[row];
      const int64_t place = task_.offsets[row], picks = task_.offsets[row + 1] - place;
      if (lane < group.size && group.rows[lane] == row) {
        const NodeStream rest(task_.key, group.nodes[lane], static_cast<uint64_t>(num_blocks_));
        WordsAhead stream(&group.words[0][lane], 4 * num_blocks_, rest);
        draw_row(stream, edges, positions);
        for (int64_t k = 0; k < picks; ++k) ring[place + k] = edges.begin + positions[k];
        ++lane;
        continue;
      }
      const Weight* weights = tables_.weights + edges.begin;
      for (int64_t i = 0, k = 0; k < picks; ++i) {
        if (weights[i] > 0) ring[place + k++] = edges.begin + i;
      }
    }
  }

  // `fanout` picks of one row.
  template <typename Stream>
  void draw_row(Stream& stream, RowEdges edges, int64_t* positions) {
    const WeightedRow<Weight> row = {tables_.weights + edges.begin, tables_.entries + edges.begin, edges.degree};
    if (task_.replace) {
      pick_weighted_with_replacement(stream, row.table, row.degree, task_.fanout, positions);
      return;
    }
    int64_t num_taken;
    if (task_.fanout <= kGroupFanout) {
      ScanTaken scan{positions};
      num_taken = draw_weighted_distinct(stream, row.table, row.degree, task_.fanout, scan, positions);
    } else {
      taken_.reset(task_.fanout);
      num_taken = draw_weighted_distinct(stream, row.table, row.degree, task_.fanout, taken_, positions);
    }
    if (num_taken == task_.fanout) return;
    double* tree = thread_sum_tree().require_array<double>(SumTree::size(row.degree));
    draw_weighted_rest(stream, row, task_.fanout, num_taken, tree, positions);
  }

  const HopTask<Id>& task_;
  const WeightTables<Weight>& tables_;
  int32_t num_blocks_;
  TakenSet taken_;
  WeightedGroup groups_[2];
};

// Rows begin .. end; relabels their picks, in order, unless `ids` is null.
template <typename Id, typename Weight>
void sample_weighted_rows(const HopTask<Id>& task, const WeightTables<Weight>& tables, int64_t begin, int64_t end,
                          Relabeling<Id>* ids) {
  if (begin == end) return;
  WeightedRows<Id, Weight> rows(task, tables);
  if (task.fanout >= 0 && task.fanout <= kGroupFanout) {
    ids == nullptr ? rows.template run<false>(begin, end, ids) : rows.template run<true>(begin, end, ids);
    return;
  }
  rows.run_large(begin, end);
  if (ids != nullptr) relabel_edges(task.neighbors, task.offsets[begin], task.offsets[end], ids);
}

}  // namespace fs

#endif  // FS_CPU_WEIGHTED_ROWS_H_
