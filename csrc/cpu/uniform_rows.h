// Uniform picks of one hop: rows of up to kGroupFanout picks sixteen at a time in the vector kernels, rows of more
// here, one at a time (such a row has picks enough to keep memory busy by itself).
#ifndef FS_CPU_UNIFORM_ROWS_H_
#define FS_CPU_UNIFORM_ROWS_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "hop_task.h"
#include "pick.h"
#include "vector/vector_kernels.h"

namespace fs {

// Positions taken so far, for fanouts too large to scan. Cleared by forgetting what was inserted.
class TakenSet {
 public:
  void reset(int64_t fanout) {
    size_t capacity = 64;
    while (capacity < static_cast<size_t>(fanout) * 2) capacity *= 2;
    slots_.assign(capacity, -1);
  }
  bool insert(int64_t position, int64_t /*num_taken*/) {
    const size_t mask = slots_.size() - 1;
    size_t at = (static_cast<uint64_t>(position) * 0x9E3779B97F4A7C15ull >> 20) & mask;
    while (slots_[at] >= 0) {
      if (slots_[at] == position) return false;
      at = (at + 1) & mask;
    }
    slots_[at] = position;
    return true;
  }

 private:
  std::vector<int64_t> slots_;  // < 0: empty
};

inline void sample_edges(const HopTask<int32_t>& task, int64_t begin, int64_t end, Relabeling<int32_t>* ids) {
  vector_kernels().sample_edges_32(task, begin, end, ids);
}
inline void sample_edges(const HopTask<int64_t>& task, int64_t begin, int64_t end, Relabeling<int64_t>* ids) {
  vector_kernels().sample_edges_64(task, begin, end, ids);
}
inline void relabel_edges(int32_t* edges, int64_t begin, int64_t end, Relabeling<int32_t>* ids) {
  vector_kernels().relabel_edges_32(edges, begin, end, ids);
}
inline void relabel_edges(int64_t* edges, int64_t begin, int64_t end, Relabeling<int64_t>* ids) {
  vector_kernels().relabel_edges_64(edges, begin, end, ids);
}

// Reads what the positions [picks] (relative to the row) point at.
template <typename Id>
void read_picks(const HopTask<Id>& task, int64_t row, const int64_t* positions, int64_t picks) {
  const int64_t begin = task.edges[row].begin, place = task.offsets[row];
  for (int64_t k = 0; k < picks; ++k) __builtin_prefetch(task.graph.indices + begin + positions[k]);
  for (int64_t k = 0; k < picks; ++k) {
    task.neighbors[place + k] = task.graph.indices[begin + positions[k]];
    if (task.edge_ids != nullptr) task.edge_ids[place + k] = begin + positions[k];
  }
}

// The whole row, in canonical order.
template <typename Id>
void copy_row(const HopTask<Id>& task, int64_t row) {
  const RowEdges edges = task.edges[row];
  const int64_t place = task.offsets[row];
  if (edges.degree == 0) return;
  memcpy(task.neighbors + place, task.graph.indices + edges.begin, static_cast<size_t>(edges.degree) * sizeof(Id));
  for (int64_t k = 0; task.edge_ids != nullptr && k < edges.degree; ++k) task.edge_ids[place + k] = edges.begin + k;
}

template <typename Id>
void sample_large_rows(const HopTask<Id>& task, int64_t begin, int64_t end) {
  std::vector<int64_t> positions;  // sized by a row that is drawn from: any other takes less than the fanout
  TakenSet taken;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t degree = task.edges[row].degree;
    if (takes_all(degree, task.fanout, task.replace)) {
      copy_row(task, row);
      continue;
    }
    if (degree == 0) continue;
    positions.resize(static_cast<size_t>(task.fanout));
    NodeStream stream(task.key, task.graph.orig_id(task.rows[row]));
    if (task.replace) {
      pick_with_replacement(stream, degree, task.fanout, positions.data());
    } else {
      taken.reset(task.fanout);
      pick_distinct(stream, degree, task.fanout, taken, positions.data());
    }
    read_picks(task, row, positions.data(), task.fanout);
  }
}

// Rows begin .. end; relabels their picks, in order, unless `ids` is null.
template <typename Id>
void sample_uniform_rows(const HopTask<Id>& task, int64_t begin, int64_t end, Relabeling<Id>* ids) {
  if (task.fanout >= 0 && task.fanout <= kGroupFanout) {
    sample_edges(task, begin, end, ids);
    return;
  }
  sample_large_rows(task, begin, end);
  if (ids != nullptr) relabel_edges(task.neighbors, task.offsets[begin], task.offsets[end], ids);
}

}  // namespace fs

#endif  // FS_CPU_UNIFORM_ROWS_H_
