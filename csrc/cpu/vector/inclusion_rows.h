// Weights of the edges of a subgraph, rows begin .. end - 1: every edge's P(both ends in a subgraph), then the row's
// scale.
//
// Edges are taken in blocks, whatever rows they are of: one pass reads the ends' numbers, the next is arithmetic on
// whole vectors, the last hands the results out by row. Where all edges of a block have the same exponent (frontier
// sampling without parallel edges) it is computed once.
#ifndef FS_CPU_VECTOR_INCLUSION_ROWS_H_
#define FS_CPU_VECTOR_INCLUSION_ROWS_H_

#include "elementary.h"
#include "inclusion_task.h"
#include "platform.h"

namespace fs {
namespace {

constexpr int64_t kBlockEdges = 256;
constexpr double kLeastInclusion = 0x1p-100;  // an edge that is there is possible: what rounding made of it otherwise

// P of the edges of a block under FS_INCLUSION_DRAWS.
class DrawnBlock {
 public:
  explicit DrawnBlock(const InclusionTask& task) : law_(*task.law), drawn_(task.drawn) {}

  FS_INLINE double node(int64_t v) const { return drawn_[v].hit; }

  FS_INLINE void take(int64_t at, int64_t u, int64_t v, double parallel) {
    const DrawnNode &a = drawn_[u], &b = drawn_[v];
    hits_[at] = a.hit * b.hit;
    misses_[at] = a.miss * b.miss;
    linked_[at] =
        parallel == 1 ? a.single + b.single + a.single * b.single : exp_minus_one(parallel * (a.link + b.link));
    changes_[at] = parallel * (a.share + b.share) * (a.factor * b.factor) - a.odds * b.odds;
    same_ = same_ && changes_[at] == changes_[0];
  }

  // An edge of a node to itself.
  FS_INLINE void take_loop(int64_t at, int64_t v) {
    hits_[at] = drawn_[v].hit;
    misses_[at] = linked_[at] = 0;
    changes_[at] = at > 0 ? changes_[0] : 0;
  }

  FS_INLINE void finish(int64_t count, double* out) {
    const double draws = law_.draws;
    if (same_) {
      const double drawn = exp_minus_one(draws * log_one_plus(changes_[0]));
      for (int64_t i = 0; i < count; ++i) out[i] = chance(i, drawn);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) out[i] = chance(i, exp_minus_one(draws * log_one_plus(changes_[i])));
    }
    same_ = true;
  }

 private:
  FS_INLINE double chance(int64_t i, double drawn) const {
    const double found = hits_[i] + misses_[i] * (linked_[i] + drawn + linked_[i] * drawn);
    return found > kLeastInclusion ? found : kLeastInclusion;
  }

  const FsInclusionLaw& law_;
  const DrawnNode* drawn_;
  bool same_ = true;
  double hits_[kBlockEdges], misses_[kBlockEdges], linked_[kBlockEdges], changes_[kBlockEdges];
};

class ClusterBlock {
 public:
  explicit ClusterBlock(const InclusionTask& task) : law_(*task.law) {}

  FS_INLINE double node(int64_t) const { return law_.same; }
  FS_INLINE void take(int64_t at, int64_t u, int64_t v, double) {
    chances_[at] = law_.clusters[u] == law_.clusters[v] ? law_.same : law_.apart;
  }
  FS_INLINE void take_loop(int64_t at, int64_t) { chances_[at] = law_.same; }
  FS_INLINE void finish(int64_t count, double* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = chances_[i] > kLeastInclusion ? chances_[i] : kLeastInclusion;
  }

 private:
  const FsInclusionLaw& law_;
  double chances_[kBlockEdges];
};

class CountedBlock {
 public:
  // is_share: shares of the count; else what weights divide by.
  CountedBlock(const InclusionTask& task, bool is_share)
      : law_(*task.law),
        added_(is_share ? 0 : 1),
        all_(static_cast<double>(law_.count) + added_),
        words_(law_.num_words) {}

  FS_INLINE double node(int64_t v) const { return share(common_bits(v, v)); }
  FS_INLINE void take(int64_t at, int64_t u, int64_t v, double) { counts_[at] = common_bits(u, v); }
  FS_INLINE void take_loop(int64_t at, int64_t v) { counts_[at] = common_bits(v, v); }
  FS_INLINE void finish(int64_t count, double* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = share(counts_[i]);
  }

 private:
  FS_INLINE int64_t common_bits(int64_t u, int64_t v) const {
    const int64_t *a = law_.bits + u * words_, *b = law_.bits + v * words_;
    int64_t found = 0;
    for (int64_t w = 0; w < words_; ++w) found += __builtin_popcountll(static_cast<unsigned long long>(a[w] & b[w]));
    return found;
  }
  FS_INLINE double share(int64_t count) const { return (static_cast<double>(count) + added_) / all_; }

  const FsInclusionLaw& law_;
  double added_, all_;
  int64_t words_;
  int64_t counts_[kBlockEdges];
};

// How many edges of the row, which ends at `last`, run from the source of the edge at `first` on.
template <typename Id>
FS_INLINE int64_t parallel_edges(const Id* indices, int64_t first, int64_t last) {
  int64_t end = first + 1;
  while (end < last && indices[end] == indices[first]) ++end;
  return end - first;
}

template <typename Id, typename Block>
class InclusionRows {
 public:
  InclusionRows(const InclusionTask& task, Block& block)
      : edges_(*task.edges),
        indices_(static_cast<const Id*>(edges_.indices)),
        out_(task.out),
        block_(block),
        form_(edges_.form) {}

  void run(int64_t begin, int64_t end) {
    int64_t first_row = begin;  // of the block: the row of its first edge
    int64_t first = edges_.indptr[begin], filled = 0;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t last = edges_.indptr[row + 1];
      for (int64_t edge = edges_.indptr[row]; edge < last;) {
        const int64_t parallel = parallel_edges(indices_, edge, last), u = indices_[edge];
        for (int64_t copy = 0; copy < parallel; ++copy, ++edge) {
          if (u == row) {
            block_.take_loop(filled, row);
          } else {
            block_.take(filled, u, row, static_cast<double>(parallel));
          }
          if (++filled == kBlockEdges) {
            hand_out(first_row, first, filled);
            first_row = row;
            first += filled;
            filled = 0;
          }
        }
      }
    }
    if (filled > 0) hand_out(first_row, first, filled);
    if (form_ == FS_RATIO_WEIGHTS) scale(begin, end);
  }

 private:
  void hand_out(int64_t row, int64_t first, int64_t count) {
    double chances[kBlockEdges];
    block_.finish(count, chances);
    if (form_ == FS_EDGE_INCLUSION) {
      for (int64_t i = 0; i < count; ++i) static_cast<double*>(out_)[first + i] = chances[i];
      return;
    }
    float* const out = static_cast<float*>(out_) + first;
    if (form_ == FS_RATIO_WEIGHTS) {
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(1 / chances[i]);
      return;
    }
    for (int64_t i = 0; i < count;) {
      const int64_t end = edges_.indptr[row + 1] - first < count ? edges_.indptr[row + 1] - first : count;
      const double own = block_.node(row);
      for (; i < end; ++i) out[i] = static_cast<float>(own / chances[i]);
      ++row;
    }
  }

  // Every row to its sum.
  void scale(int64_t begin, int64_t end) const {
    float* const out = static_cast<float*>(out_);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = edges_.indptr[row], last = edges_.indptr[row + 1];
      double sum = 0;
      for (int64_t edge = first; edge < last; ++edge) sum += out[edge];
      const double by = edges_.row_sums[row] / sum;
      for (int64_t edge = first; edge < last; ++edge) out[edge] = static_cast<float>(out[edge] * by);
    }
  }

  const FsSubgraphEdges& edges_;
  const Id* indices_;
  void* out_;
  Block& block_;
  int32_t form_;
};

template <typename Id>
void weigh_rows(const InclusionTask& task, int64_t begin, int64_t end) {
  if (task.law->kind == FS_INCLUSION_DRAWS) {
    DrawnBlock block(task);
    InclusionRows<Id, DrawnBlock>(task, block).run(begin, end);
  } else if (task.law->kind == FS_INCLUSION_CLUSTERS) {
    ClusterBlock block(task);
    InclusionRows<Id, ClusterBlock>(task, block).run(begin, end);
  } else {
    CountedBlock block(task, task.edges->form == FS_EDGE_INCLUSION);
    InclusionRows<Id, CountedBlock>(task, block).run(begin, end);
  }
}

// Rows begin .. end - 1.
void subgraph_weights(const InclusionTask& task, int64_t begin, int64_t end) {
  task.edges->id_type == FS_INT32 ? weigh_rows<int32_t>(task, begin, end) : weigh_rows<int64_t>(task, begin, end);
}

}  // namespace
}  // namespace fs

#endif  // FS_CPU_VECTOR_INCLUSION_ROWS_H_
