// One hop of neighbour sampling on the CPU, shared by sample_mfg and sample_neighbors.
//
// Pass 1 reads every row's offsets and writes the number of picks as prefix sums (the R vector of FastSample, algorithm
// 1). Pass 2 draws positions and reads the neighbours they point at. Rows are independent: threads take runs of them.
// Relabelling depends on the order of the edges, so one thread does it, but while the others sample: see Relay.
#ifndef FS_CPU_SAMPLE_HOP_H_
#define FS_CPU_SAMPLE_HOP_H_

#include <stdint.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "hop_spec.h"
#include "layer_rows.h"
#include "relay.h"
#include "uniform_rows.h"
#include "weighted_rows.h"
#include "worker_pool.h"

namespace fs {

constexpr int64_t kPrefetchAhead = 40;   // rows ahead whose offsets are requested
constexpr int64_t kRowsPerThread = 512;  // below this many rows a second thread costs more than it gains
constexpr int64_t kRunRows = 8192;       // rows that a thread looks up before it looks for other work

inline int useful_threads(int64_t num_rows, int num_threads) {
  return static_cast<int>(std::min<int64_t>(num_threads, std::max<int64_t>(1, num_rows / kRowsPerThread)));
}

// Pass 1 over rows begin .. end: looks every row up. positive(row, degree) is the number of edges that can be picked.
// Returns the first row that is refused, or `end`.
template <typename Id, typename Positive>
int64_t count_run(const CscView<Id>& graph, const HopSpec& spec, const HopRows<Id>& hop, int64_t begin, int64_t end,
                  const Positive& positive) {
  for (int64_t i = begin; i < end; ++i) {
    if (i + kPrefetchAhead < end) __builtin_prefetch(graph.indptr + hop.rows[i + kPrefetchAhead]);
    if (!graph.has_row(hop.rows[i])) return i;
    const int64_t first = graph.indptr[hop.rows[i]], last = graph.indptr[hop.rows[i] + 1];
    if (first < 0 || last < first || last > graph.num_edges) return i;
    hop.edges[i] = {first, last - first};
    hop.offsets[i + 1] = num_picks(positive(hop.rows[i], last - first), spec.fanout, spec.replace);
  }
  return end;
}

// Pass 1.
template <typename Id, typename Positive>
FsStatus count_picks(const char* operation, const CscView<Id>& graph, const HopSpec& spec, const HopRows<Id>& hop,
                     const Positive& positive) {
  std::atomic<int64_t> first_bad{hop.num_rows};
  share_runs(hop.num_rows, kRunRows, useful_threads(hop.num_rows, spec.num_threads), [&](int64_t begin, int64_t end) {
    const int64_t bad = count_run(graph, spec, hop, begin, end, positive);
    if (bad == end) return;
    int64_t known = first_bad.load();
    while (bad < known && !first_bad.compare_exchange_weak(known, bad)) continue;
  });
  return first_bad == hop.num_rows ? FS_OK : refuse_row(operation, graph, hop.rows[first_bad]);
}

inline void sum_offsets(int64_t num_rows, int64_t* offsets) {
  offsets[0] = 0;
  for (int64_t i = 0; i < num_rows; ++i) offsets[i + 1] += offsets[i];
}

// Pass 2 over all rows: fill(begin, end, ids) samples a run of rows, and relabels it unless `ids` is null.
template <typename Id, typename Fill>
void fill_rows(const HopTask<Id>& task, int64_t num_rows, int num_threads, Relabeling<Id>* ids, const Fill& fill) {
  const int threads = useful_threads(num_rows, num_threads);
  if (threads <= 1) {
    fill(int64_t{0}, num_rows, ids);
  } else if (ids != nullptr) {
    relay_chunks(
        num_rows, threads, [&](int64_t begin, int64_t end) { fill(begin, end, nullptr); },
        [&](int64_t begin, int64_t end) {
          relabel_edges(task.neighbors, task.offsets[begin], task.offsets[end], ids);
          return ids->bad < 0;
        });
  } else {
    share_runs(num_rows, kChunkRows, threads, [&](int64_t begin, int64_t end) { fill(begin, end, nullptr); });
  }
}

// Samples one hop. allocate() is called once the offsets are known and returns the task over the hop's arrays; `ids` is
// null where source ids are wanted as they are.
template <typename Id>
class HopSampler {
 public:
  HopSampler(const char* operation, const FsGraph& raw, const HopSpec& spec)
      : operation_(operation), raw_(raw), graph_(view_of<Id>(raw)), spec_(spec) {}

  template <typename Allocate>
  FsStatus run(const HopRows<Id>& hop, Relabeling<Id>* ids, const Allocate& allocate) const {
    if (spec_.plainly) return sample_plainly<Id>({operation_, raw_, spec_}, hop, ids, allocate);
    if (spec_.method == FS_LABOR) return run_layer(hop, ids, allocate);
    if (spec_.method == FS_UNIFORM) {
      const auto all = [](Id, int64_t degree) { return degree; };
      return run_counted(hop, ids, allocate, all, sample_uniform_rows<Id>);
    }
    if (raw_.weights->weight_type == FS_FLOAT32) return run_weighted<float>(hop, ids, allocate);
    return run_weighted<double>(hop, ids, allocate);
  }

 private:
  template <typename Weight, typename Allocate>
  FsStatus run_weighted(const HopRows<Id>& hop, Relabeling<Id>* ids, const Allocate& allocate) const {
    const WeightTables<Weight> tables = {static_cast<const Weight*>(raw_.weights->weights),
                                         reinterpret_cast<const AliasEntry*>(raw_.weights->alias_table),
                                         raw_.weights->num_positive};
    const auto positive = [&](Id row, int64_t degree) { return tables.positive(row, degree); };
    const auto fill = [&](const HopTask<Id>& task, int64_t begin, int64_t end, Relabeling<Id>* own) {
      sample_weighted_rows(task, tables, begin, end, own);
    };
    return run_counted(hop, ids, allocate, positive, fill);
  }

  template <typename Allocate, typename Positive, typename Fill>
  FsStatus run_counted(const HopRows<Id>& hop, Relabeling<Id>* ids, const Allocate& allocate, const Positive& positive,
                       const Fill& fill) const {
    const FsStatus status = count_picks(operation_, graph_, spec_, hop, positive);
    if (status != FS_OK) return status;
    sum_offsets(hop.num_rows, hop.offsets);
    const HopTask<Id> task = allocate(graph_, spec_, hop);
    fill_rows(task, hop.num_rows, spec_.num_threads, ids,
              [&](int64_t begin, int64_t end, Relabeling<Id>* own) { fill(task, begin, end, own); });
    return check_ids(task, ids);
  }

  template <typename Allocate>
  FsStatus run_layer(const HopRows<Id>& hop, Relabeling<Id>* ids, const Allocate& allocate) const {
    const auto none = [](Id, int64_t) { return int64_t{0}; };
    const FsStatus status = count_picks(operation_, graph_, spec_, hop, none);
    if (status != FS_OK) return status;
    const int threads = useful_threads(hop.num_rows, spec_.num_threads);
    const int64_t num_runs = threads > 1 ? (hop.num_rows + kChunkRows - 1) / kChunkRows : 1;
    std::vector<LayerRun<Id>> runs(static_cast<size_t>(num_runs));
    share_runs(num_runs, 1, threads, [&](int64_t r, int64_t) {
      LayerRun<Id>& run = runs[static_cast<size_t>(r)];
      run.begin = hop.num_rows * r / num_runs;
      run.end = hop.num_rows * (r + 1) / num_runs;
      run.scan(graph_, spec_.key, spec_.fanout, hop.edges, hop.offsets);
    });
    for (const LayerRun<Id>& run : runs) {
      if (run.bad >= 0) return refuse_source(operation_, graph_, graph_.indices[run.bad]);
    }
    sum_offsets(hop.num_rows, hop.offsets);
    const HopTask<Id> task = allocate(graph_, spec_, hop);
    for (const LayerRun<Id>& run : runs) run.copy(task);
    if (ids != nullptr) relabel_edges(task.neighbors, 0, hop.offsets[hop.num_rows], ids);
    return check_ids(task, ids);
  }

  FsStatus check_ids(const HopTask<Id>& task, const Relabeling<Id>* ids) const {
    if (ids == nullptr || ids->bad < 0) return FS_OK;
    return refuse_source(operation_, graph_, task.neighbors[ids->bad]);
  }

  const char* operation_;
  const FsGraph& raw_;
  CscView<Id> graph_;
  HopSpec spec_;
};

}  // namespace fs

#endif  // FS_CPU_SAMPLE_HOP_H_
