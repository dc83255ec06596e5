// Layer-neighbour picks of one hop (core/layer_pick.h). How many picks a row has is known only when the variates of all
// its neighbours are, so rows are scanned first, run by run, and what the scan finds is kept until the hop's arrays
// exist.
#ifndef FS_CPU_LAYER_ROWS_H_
#define FS_CPU_LAYER_ROWS_H_

#include <stdint.h>

#include <algorithm>
#include <vector>

#include "csc_view.h"
#include "hop_task.h"
#include "layer_pick.h"
#include "vector/vector_kernels.h"

namespace fs {

constexpr int64_t kVariates = 1024;    // neighbours whose variates are computed together
constexpr int64_t kSourcesAhead = 16;  // neighbours ahead whose original ids are requested

// Appends the picked edges of one row, as positions in `indices`. Returns the position of the first source id that is
// outside the graph, or -1.
template <typename Id>
int64_t scan_layer_row(const CscView<Id>& graph, StageKey key, int64_t fanout, RowEdges edges,
                       std::vector<int64_t>* picks) {
  const uint64_t bound = layer_bound(edges.degree, fanout);
  if (bound >> 32 != 0) {
    for (int64_t k = 0; k < edges.degree; ++k) picks->push_back(edges.begin + k);
    return -1;
  }
  uint64_t nodes[kVariates];
  uint32_t variates[kVariates];
  for (int64_t first = 0; first < edges.degree; first += kVariates) {
    const int64_t count = std::min(kVariates, edges.degree - first);
    const Id* sources = graph.indices + edges.begin + first;
    for (int64_t i = 0; i < count; ++i) {
      if (i + kSourcesAhead < count && graph.src_orig_ids != nullptr) {
        __builtin_prefetch(graph.src_orig_ids + sources[i + kSourcesAhead]);
      }
      const int64_t source = static_cast<int64_t>(sources[i]);
      if (!graph.has_source(source)) return edges.begin + first + i;
      nodes[i] = graph.src_orig_id(source);
    }
    vector_kernels().first_words(key, nodes, count, variates);
    for (int64_t i = 0; i < count; ++i) {
      if (variates[i] < bound) picks->push_back(edges.begin + first + i);
    }
  }
  return -1;
}

// The picks of rows begin .. end, at first kept as positions in the order of the rows.
template <typename Id>
struct LayerRun {
  int64_t begin = 0, end = 0;
  int64_t bad = -1;  // position of the first source id that is outside the graph, or -1
  std::vector<int64_t> picks;

  // Writes the number of picks of row i to offsets[i + 1], up to the row that holds the bad source.
  void scan(const CscView<Id>& graph, StageKey key, int64_t fanout, const RowEdges* edges, int64_t* offsets) {
    for (int64_t row = begin; row < end && bad < 0; ++row) {
      const size_t before = picks.size();
      bad = scan_layer_row(graph, key, fanout, edges[row], &picks);
      offsets[row + 1] = static_cast<int64_t>(picks.size() - before);
    }
  }

  void copy(const HopTask<Id>& task) const {
    const int64_t place = task.offsets[begin];
    for (size_t k = 0; k < picks.size(); ++k) {
      task.neighbors[place + static_cast<int64_t>(k)] = task.graph.indices[picks[k]];
      if (task.edge_ids != nullptr) task.edge_ids[place + static_cast<int64_t>(k)] = picks[k];
    }
  }
};

}  // namespace fs

#endif  // FS_CPU_LAYER_ROWS_H_
