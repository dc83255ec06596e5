// The subgraph that nodes induce: all edges of the graph between them. Row i is that of nodes[i], its neighbours are in
// the order of the graph's row, with local ids.
#ifndef FS_CPU_INDUCED_ROWS_H_
#define FS_CPU_INDUCED_ROWS_H_

#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "batch_memory.h"
#include "hop_spec.h"
#include "node_lookup.h"
#include "room.h"
#include "worker_pool.h"

namespace fs {

inline void induce_rows(const InducedTask<int32_t>& task, InducedRun<int32_t>* run) {
  vector_kernels().induce_rows_32(task, run);
}
inline void induce_rows(const InducedTask<int64_t>& task, InducedRun<int64_t>* run) {
  vector_kernels().induce_rows_64(task, run);
}

// Edges of some rows, in blocks of batch_memory.h that grow as edges are found. At most half of a block is unused, or
// what a piece of a row needs.
template <typename Id>
class InducedEdges {
 public:
  InducedEdges() = default;
  InducedEdges(const InducedEdges&) = delete;
  ~InducedEdges() {
    give_block(run_.indices);
    give_block(run_.edge_ids);
  }

  // Edges of rows begin .. end, which have `scanned` edges in the graph, about `share` of them in the subgraph.
  // offsets[begin + 1 .. end] receive where the rows end, counted from `begin`.
  void collect(const InducedTask<Id>& task, int64_t begin, int64_t end, int64_t scanned, double share, bool edge_ids,
               int64_t* offsets) {
    const int64_t most = scanned + kInducedSlack;
    run_.row = begin;
    run_.end_row = end;
    run_.unseen = scanned;
    run_.offsets = offsets;
    run_.bad = -1;
    grow(std::min(most, static_cast<int64_t>(static_cast<double>(scanned) * share) + kInducedSlack), edge_ids);
    for (;;) {
      induce_rows(task, &run_);
      if (run_.bad >= 0 || run_.row == end) return;
      grow(std::min(most, std::max(2 * run_.capacity, run_.count + kInducedPiece + kInducedSlack)), edge_ids);
    }
  }

  int64_t count() const { return run_.count; }
  int64_t bad() const { return run_.bad; }  // position of an id that the graph must not hold, or -1
  const Id* indices() const { return run_.indices; }
  const int64_t* edge_ids() const { return run_.edge_ids; }

  // The blocks become the hop's.
  void move_to(FsHop* hop) {
    hop->indices = run_.indices;
    hop->edge_ids = run_.edge_ids;
    run_.indices = nullptr;
    run_.edge_ids = nullptr;
  }

 private:
  void grow(int64_t capacity, bool edge_ids) {
    require_room(capacity, sizeof(Id) + (edge_ids ? sizeof(int64_t) : 0));
    run_.indices = grow_array(run_.indices, capacity);
    if (edge_ids) run_.edge_ids = grow_array(run_.edge_ids, capacity);
    run_.capacity = capacity;
  }

  template <typename T>
  T* grow_array(T* array, int64_t capacity) const {
    return static_cast<T*>(
        grow_block(array, static_cast<size_t>(run_.count) * sizeof(T), static_cast<size_t>(capacity) * sizeof(T)));
  }

  InducedRun<Id> run_ = {};
};

// How nodes become a subgraph.
struct InducedSpec {
  const char* operation;
  bool edge_ids;
  int num_threads;
};

// A thread's memory for the subgraphs that it makes.
template <typename Id>
class InducedRows {
 public:
  // On success *hop is a square: num_dst = num_src = count, with arrays of batch_memory.h.
  FsStatus induce(const InducedSpec& spec, const CscView<Id>& graph, const Id* nodes, int64_t count, FsHop* hop) {
    const FsStatus status = find_rows(spec.operation, graph, nodes, count);
    if (status != FS_OK) return status;
    const FsStatus entered = lookup_.enter(spec.operation, nodes, count, graph.num_sources);
    if (entered != FS_OK) return entered;
    const Emptied emptied{&lookup_};
    hop->num_dst = hop->num_src = count;
    hop->indptr = take_array<int64_t>(count + 1);
    hop->indptr[0] = 0;
    const InducedTask<Id> task = {graph.indices, rows(), lookup_.members(), static_cast<uint64_t>(graph.num_sources)};
    const int64_t useful = std::min<int64_t>(spec.num_threads, scanned_ / kEdgesPerThread);
    return useful > 1 ? induce_together(spec, graph, task, static_cast<int>(useful), hop)
                      : induce_alone(spec, graph, task, hop);
  }

  size_t bytes() const { return lookup_.bytes() + rows_.bytes(); }

 private:
  static constexpr int64_t kEdgesPerThread = 1 << 13;  // less is not worth waking a thread
  static constexpr int64_t kRunsPerThread = 4;
  static constexpr double kSurplus = 1.125;  // of the share of edges that the last subgraph had

  struct Emptied {  // at the end, whatever happens
    NodeLookup<Id>* lookup;
    ~Emptied() { lookup->leave(); }
  };

  // Rows begin .. end of a large subgraph; `first` is where its edges go.
  struct Run {
    int64_t begin, end, scanned, first;
    InducedEdges<Id> edges;
  };

  RowEdges* rows() const { return static_cast<RowEdges*>(rows_.data()); }

  FsStatus find_rows(const char* operation, const CscView<Id>& graph, const Id* nodes, int64_t count) {
    constexpr int64_t kAhead = 24;
    const int64_t num_ids = std::min(graph.num_rows, graph.num_sources);  // a node is both
    RowEdges* const rows = rows_.require_array<RowEdges>(count + 1);
    rows[count] = {0, 0};
    scanned_ = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (i + kAhead < count) __builtin_prefetch(graph.indptr + nodes[i + kAhead]);
      if (nodes[i] < 0 || nodes[i] >= num_ids) {
        return refuse(FS_REFUSED_ID, operation, {{nodes[i], i, 0, num_ids - 1}});
      }
      const int64_t begin = graph.indptr[nodes[i]], end = graph.indptr[nodes[i] + 1];
      if (begin < 0 || end < begin || end > graph.num_edges) return refuse_row(operation, graph, nodes[i]);
      rows[i] = {begin, end - begin};
      scanned_ += end - begin;
    }
    return FS_OK;
  }

  FsStatus induce_alone(const InducedSpec& spec, const CscView<Id>& graph, const InducedTask<Id>& task, FsHop* hop) {
    InducedEdges<Id> edges;
    edges.collect(task, 0, hop->num_dst, scanned_, share_, spec.edge_ids, hop->indptr);
    if (edges.bad() >= 0) return refuse_source(spec.operation, graph, graph.indices[edges.bad()]);
    hop->num_edges = edges.count();
    edges.move_to(hop);
    remember(hop->num_edges);
    return FS_OK;
  }

  // Threads take runs of rows of about equally many edges; then these are copied together.
  FsStatus induce_together(const InducedSpec& spec, const CscView<Id>& graph, const InducedTask<Id>& task, int threads,
                           FsHop* hop) {
    std::vector<Run> runs = cut(hop->num_dst, threads * kRunsPerThread);
    const int64_t num_runs = static_cast<int64_t>(runs.size());
    share_runs(num_runs, 1, threads, [&](int64_t r, int64_t) {
      Run& run = runs[static_cast<size_t>(r)];
      run.edges.collect(task, run.begin, run.end, run.scanned, share_, spec.edge_ids, hop->indptr);
    });
    for (Run& run : runs) {
      if (run.edges.bad() >= 0) return refuse_source(spec.operation, graph, graph.indices[run.edges.bad()]);
      run.first = hop->num_edges;
      hop->num_edges += run.edges.count();
    }
    require_room(hop->num_edges, sizeof(Id) + (spec.edge_ids ? sizeof(int64_t) : 0));
    hop->indices = take_array<Id>(hop->num_edges);
    if (spec.edge_ids) hop->edge_ids = take_array<int64_t>(hop->num_edges);
    share_runs(num_runs, 1, threads, [&](int64_t r, int64_t) { append(runs[static_cast<size_t>(r)], hop); });
    remember(hop->num_edges);
    return FS_OK;
  }

  std::vector<Run> cut(int64_t count, int64_t num_runs) const {
    std::vector<Run> runs(static_cast<size_t>(num_runs));
    int64_t row = 0, before = 0;
    for (int64_t r = 0; r < num_runs; ++r) {
      Run& run = runs[static_cast<size_t>(r)];
      run.begin = row;
      const int64_t until = scanned_ / num_runs * (r + 1), from = before;
      while (row < count && (before < until || r == num_runs - 1)) before += rows()[row++].degree;
      run.end = row;
      run.scanned = before - from;
    }
    return runs;
  }

  static void append(const Run& run, FsHop* hop) {
    for (int64_t row = run.begin; row < run.end; ++row) hop->indptr[row + 1] += run.first;
    const size_t count = static_cast<size_t>(run.edges.count());
    if (count == 0) return;
    memcpy(static_cast<Id*>(hop->indices) + run.first, run.edges.indices(), count * sizeof(Id));
    if (hop->edge_ids != nullptr) memcpy(hop->edge_ids + run.first, run.edges.edge_ids(), count * sizeof(int64_t));
  }

  void remember(int64_t num_edges) {
    if (scanned_ > 0) share_ = std::min(1.0, kSurplus * static_cast<double>(num_edges) / static_cast<double>(scanned_));
  }

  NodeLookup<Id> lookup_;
  Buffer rows_;          // RowEdges of the nodes
  int64_t scanned_ = 0;  // edges of all of them
  double share_ = 0.25;  // of them that are expected between the nodes
};

// The calling thread's; not inlined, as thread_table.
template <typename Id>
__attribute__((noinline)) InducedRows<Id>& thread_induced_rows() {
  static thread_local InducedRows<Id> rows;
  return rows;
}

}  // namespace fs

#endif  // FS_CPU_INDUCED_ROWS_H_
