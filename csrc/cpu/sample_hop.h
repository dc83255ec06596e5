// One hop of neighbour sampling on the CPU, shared by sample_mfg and sample_neighbors.
//
// Pass 1 reads every row's offsets and writes the number of picks as prefix sums (the R vector of FastSample,
// algorithm 1). Pass 2 draws positions for a block of rows, prefetches the neighbours they point at, and only then
// reads them, so that the cache misses of a block overlap. Rows are independent: threads take disjoint runs of rows.
#ifndef FS_CPU_SAMPLE_HOP_H_
#define FS_CPU_SAMPLE_HOP_H_

#include <omp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "csc_view.h"
#include "pick.h"
#include "status.h"

namespace fs {

constexpr int64_t kPrefetchAhead = 16;   // rows ahead whose offsets are requested
constexpr int64_t kBlockPicks = 512;     // picks whose neighbours are in flight together
constexpr int64_t kScanFanout = 32;      // up to here a scan finds a repeated position faster than a hash set
constexpr int64_t kRowsPerThread = 512;  // below this many rows a second thread costs more than it brings

struct HopSpec {
  int64_t fanout;
  bool replace;
  StageKey key;
  int num_threads;
};

template <typename Id>
CscView<Id> view_of(const FsGraph& graph) {
  return {graph.indptr, static_cast<const Id*>(graph.indices), graph.orig_ids, graph.num_rows, graph.num_edges};
}

inline HopSpec hop_spec(const FsSampleSpec& spec, int32_t hop) {
  const uint32_t stage = static_cast<uint32_t>(spec.first_hop + hop);
  return {spec.fanouts[hop], spec.replace != 0, stage_key(spec.rng_seed, kSampling, stage, spec.step),
          spec.num_threads};
}

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

// Pass 1. indptr [num_rows + 1]. `starts` [num_rows] receives each row's first edge.
template <typename Id>
FsStatus count_picks(const char* operation, const CscView<Id>& graph, const HopSpec& spec, const Id* rows,
                     int64_t num_rows, int64_t* indptr, int64_t* starts) {
  int64_t first_bad = num_rows;
#pragma omp parallel for schedule(static) num_threads(spec.num_threads) \
    reduction(min : first_bad) if (num_rows >= kRowsPerThread && spec.num_threads > 1)
  for (int64_t i = 0; i < num_rows; ++i) {
    if (i + kPrefetchAhead < num_rows && graph.has_row(rows[i + kPrefetchAhead])) {
      __builtin_prefetch(graph.indptr + rows[i + kPrefetchAhead]);
    }
    if (!graph.has_row(rows[i])) {
      first_bad = std::min(first_bad, i);
      continue;
    }
    const int64_t begin = graph.indptr[rows[i]], end = graph.indptr[rows[i] + 1];
    if (begin < 0 || end < begin || end > graph.num_edges) {
      first_bad = std::min(first_bad, i);
      continue;
    }
    starts[i] = begin;
    indptr[i + 1] = num_picks(end - begin, spec.fanout, spec.replace);
  }
  if (first_bad < num_rows) {
    const long long row = static_cast<long long>(rows[first_bad]);
    if (!graph.has_row(row)) {
      return fail(FS_INVALID_ARGUMENT, "%s: node id %lld is outside 0 to %lld", operation, row,
                  static_cast<long long>(graph.num_rows) - 1);
    }
    return fail(FS_INVALID_ARGUMENT,
                "%s: indptr of node %lld runs from %lld to %lld; expected non-decreasing offsets up to %lld", operation,
                row, static_cast<long long>(graph.indptr[row]), static_cast<long long>(graph.indptr[row + 1]),
                static_cast<long long>(graph.num_edges));
  }
  indptr[0] = 0;
  for (int64_t i = 0; i < num_rows; ++i) indptr[i + 1] += indptr[i];
  return FS_OK;
}

// Draws the positions of one row into `positions` (row-relative).
template <typename Id>
void draw_row(const CscView<Id>& graph, const HopSpec& spec, Id row, int64_t degree, TakenSet& taken,
              int64_t* positions) {
  NodeStream stream(spec.key, graph.orig_id(row));
  if (spec.replace) {
    pick_with_replacement(stream, degree, spec.fanout, positions);
  } else if (spec.fanout <= kScanFanout) {
    ScanTaken scan{positions};
    pick_distinct(stream, degree, spec.fanout, scan, positions);
  } else {
    taken.reset(spec.fanout);
    pick_distinct(stream, degree, spec.fanout, taken, positions);
  }
}

// Pass 2 over rows[begin .. end): writes the neighbours of the picks to out[indptr[i] ..].
template <typename Id>
void fill_rows(const CscView<Id>& graph, const HopSpec& spec, const Id* rows, const int64_t* indptr,
               const int64_t* starts, int64_t begin, int64_t end, Id* out) {
  const int64_t fanout = spec.fanout == kTakeAll ? 0 : spec.fanout;
  const int64_t block_rows = fanout == 0 ? kPrefetchAhead : std::max<int64_t>(1, kBlockPicks / fanout);
  std::vector<int64_t> positions(static_cast<size_t>(std::max<int64_t>(1, block_rows * fanout)));
  TakenSet taken;
  for (int64_t block = begin; block < end; block += block_rows) {
    const int64_t block_end = std::min(end, block + block_rows);
    for (int64_t i = block_end; i < std::min(end, block_end + block_rows); ++i) {
      __builtin_prefetch(graph.indptr + rows[i]);
      if (graph.orig_ids != nullptr) __builtin_prefetch(graph.orig_ids + rows[i]);
    }
    for (int64_t i = block; i < block_end; ++i) {
      const int64_t degree = graph.indptr[rows[i] + 1] - starts[i];
      const Id* neighbors = graph.indices + starts[i];
      if (takes_all(degree, spec.fanout, spec.replace)) {
        for (int64_t k = 0; k < std::min<int64_t>(degree, 64); k += 16) __builtin_prefetch(neighbors + k);
      } else if (degree > 0) {
        int64_t* drawn = positions.data() + (i - block) * fanout;
        draw_row(graph, spec, rows[i], degree, taken, drawn);
        for (int64_t k = 0; k < fanout; ++k) __builtin_prefetch(neighbors + drawn[k]);
      }
    }
    for (int64_t i = block; i < block_end; ++i) {
      const int64_t degree = graph.indptr[rows[i] + 1] - starts[i];
      const Id* neighbors = graph.indices + starts[i];
      Id* target = out + indptr[i];
      if (takes_all(degree, spec.fanout, spec.replace)) {
        if (degree > 0) memcpy(target, neighbors, static_cast<size_t>(degree) * sizeof(Id));
      } else if (degree > 0) {
        const int64_t* drawn = positions.data() + (i - block) * fanout;
        for (int64_t k = 0; k < fanout; ++k) target[k] = neighbors[drawn[k]];
      }
    }
  }
}

// Pass 2 over all rows. `starts` as written by count_picks.
template <typename Id>
void fill_picks(const CscView<Id>& graph, const HopSpec& spec, const Id* rows, int64_t num_rows, const int64_t* indptr,
                const int64_t* starts, Id* out) {
  const int64_t useful = std::max<int64_t>(1, num_rows / kRowsPerThread);
  const int threads = static_cast<int>(std::min<int64_t>(spec.num_threads, useful));
  if (threads <= 1) {
    fill_rows(graph, spec, rows, indptr, starts, 0, num_rows, out);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const int64_t count = omp_get_num_threads(), me = omp_get_thread_num();
    fill_rows(graph, spec, rows, indptr, starts, num_rows * me / count, num_rows * (me + 1) / count, out);
  }
}

inline FsStatus check_spec(const char* operation, const FsSampleSpec& spec) {
  if (spec.num_threads < 1) {
    return fail(FS_INVALID_ARGUMENT, "%s: num_threads is %d; expected at least 1", operation, spec.num_threads);
  }
  for (int32_t hop = 0; hop < spec.num_hops; ++hop) {
    if (spec.fanouts[hop] < kTakeAll) {
      return fail(FS_INVALID_ARGUMENT, "%s: fanout %lld of hop %d; expected -1 (all neighbours) or more", operation,
                  static_cast<long long>(spec.fanouts[hop]), spec.first_hop + hop);
    }
  }
  if (spec.replace != 0) {
    for (int32_t hop = 0; hop < spec.num_hops; ++hop) {
      if (spec.fanouts[hop] == kTakeAll) {
        return fail(FS_INVALID_ARGUMENT, "%s: fanout -1 (all neighbours) of hop %d cannot be drawn with replacement",
                    operation, spec.first_hop + hop);
      }
    }
  }
  return FS_OK;
}

}  // namespace fs

#endif  // FS_CPU_SAMPLE_HOP_H_
