// Weights of the edges of a subgraph, rows begin .. end - 1: every edge's P(both ends in a subgraph), then the row's
// scale.
//
// Edges are taken in blocks, whatever rows they are of: one pass reads the ends' numbers, the next is arithmetic on
// whole vectors, the last hands the results out by row.
#ifndef FS_CPU_VECTOR_INCLUSION_ROWS_H_
#define FS_CPU_VECTOR_INCLUSION_ROWS_H_

#include "elementary.h"
#include "inclusion_task.h"
#include "platform.h"

namespace fs {
namespace {

constexpr int64_t kBlockEdges = 256;
constexpr double kCertain = 1 - 0x1p-53;      // a chance from here on is one of 1
constexpr double kLeastInclusion = 0x1p-100;  // an edge that is there is possible: what rounding made of it otherwise

// Entries of a column that may be missing: 0.
FS_INLINE void read_column(const double* column, int64_t first, int64_t count, double* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = column == nullptr ? 0 : column[first + i];
}

// All ones; or 0 where a draw is sure to visit the node. Of integers, which no compiler makes branches of.
FS_INLINE uint64_t uncertain(double chance) { return 0 - (bits_of(chance - kCertain) >> 63); }
FS_INLINE double masked(double value, uint64_t mask) { return from_bits(bits_of(value) & mask); }

// What P is made of for the nodes begin .. end - 1 under FS_INCLUSION_DRAWS. `ends` may be null.
void drawn_terms(const FsInclusionLaw& law, int64_t begin, int64_t end, DrawnNode* nodes, DrawnEnd* ends) {
  double arrivals[kBlockEdges], links[kBlockEdges], shares[kBlockEdges];
  for (int64_t first = begin; first < end; first += kBlockEdges, nodes += kBlockEdges) {
    const int64_t count = end - first < kBlockEdges ? end - first : kBlockEdges;
    const double* const chances = law.chances + first;
    read_column(law.arrivals, first, count, arrivals);
    read_column(law.links, first, count, links);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const double less = exp_minus_one(law.draws * log_one_plus(-chances[i]) - arrivals[i]);
      const uint64_t some = uncertain(chances[i]);
      nodes[i] = {from_bits((bits_of(-less) & some) | (bits_of(1) & ~some)), masked(1 + less, some),
                  masked(exp_minus_one(links[i]), some), masked(chances[i] / (1 - chances[i]), some)};
    }
    if (ends == nullptr) continue;
    read_column(law.shares, first, count, shares);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t some = uncertain(chances[i]);
      ends[i] = {masked(links[i], some), masked(shares[i], some), masked(1 / (1 - chances[i]), some)};
    }
    ends += kBlockEdges;
  }
}

// P of the edges of a block under FS_INCLUSION_DRAWS. Where all nodes have the same odds and none a share, which is so
// for a frontier with uniform roots, an edge's `drawn` is that of any other.
class DrawnBlock {
 public:
  explicit DrawnBlock(const InclusionTask& task)
      : law_(*task.law),
        drawn_(task.drawn),
        ends_(task.ends),
        has_shares_(law_.shares != nullptr),
        is_same_(task.same_odds && !has_shares_),
        same_(is_same_ ? drawn_of(-(drawn_[0].odds * drawn_[0].odds)) : 0) {}

  FS_INLINE double node(int64_t v) const { return drawn_[v].hit; }

  FS_INLINE void take(int64_t at, int64_t u, int64_t v, double parallel) {
    const DrawnNode &a = drawn_[u], &b = drawn_[v];
    take_ends(at, a, b);
    if (parallel != 1) linked_[at] = exp_minus_one(parallel * (ends_[u].link + ends_[v].link));
    if (has_shares_) changes_[at] += change(parallel, ends_[u], ends_[v]);
  }

  // Edges of v without parallel ones.
  template <typename Id>
  FS_INLINE void take_row(int64_t at, const Id* sources, int64_t count, int64_t v) {
    const DrawnNode own = drawn_[v];
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) take_ends(at + i, drawn_[sources[i]], own);
    if (has_shares_) {
      const DrawnEnd end = ends_[v];
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) changes_[at + i] += change(1, ends_[sources[i]], end);
    }
  }

  // An edge of a node to itself.
  FS_INLINE void take_loop(int64_t at, int64_t v) {
    hits_[at] = drawn_[v].hit;
    misses_[at] = linked_[at] = changes_[at] = 0;
  }

  FS_INLINE void finish(int64_t count, double* out) const {
    if (is_same_) {
      for (int64_t i = 0; i < count; ++i) out[i] = chance(i, same_);
      return;
    }
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] = chance(i, drawn_of(changes_[i]));
  }

 private:
  FS_INLINE void take_ends(int64_t at, const DrawnNode& a, const DrawnNode& b) {
    hits_[at] = a.hit * b.hit;
    misses_[at] = a.miss * b.miss;
    linked_[at] = a.single + b.single + a.single * b.single;
    if (!is_same_) changes_[at] = -(a.odds * b.odds);
  }
  FS_INLINE double drawn_of(double change) const { return exp_minus_one(law_.draws * log_one_plus(change)); }
  static FS_INLINE double change(double parallel, const DrawnEnd& a, const DrawnEnd& b) {
    return parallel * (a.share + b.share) * (a.factor * b.factor);
  }
  FS_INLINE double chance(int64_t i, double drawn) const {
    const double found = hits_[i] + misses_[i] * (linked_[i] + drawn + linked_[i] * drawn);
    return found > kLeastInclusion ? found : kLeastInclusion;
  }

  const FsInclusionLaw& law_;
  const DrawnNode* drawn_;
  const DrawnEnd* ends_;
  const bool has_shares_, is_same_;
  const double same_;  // where is_same_: an edge's `drawn`
  double hits_[kBlockEdges], misses_[kBlockEdges], linked_[kBlockEdges], changes_[kBlockEdges];
};

class ClusterBlock {
 public:
  explicit ClusterBlock(const InclusionTask& task) : law_(*task.law) {}

  FS_INLINE double node(int64_t) const { return law_.same; }
  FS_INLINE void take(int64_t at, int64_t u, int64_t v, double) {
    chances_[at] = law_.clusters[u] == law_.clusters[v] ? law_.same : law_.apart;
  }
  template <typename Id>
  FS_INLINE void take_row(int64_t at, const Id* sources, int64_t count, int64_t v) {
    for (int64_t i = 0; i < count; ++i) take(at + i, sources[i], v, 1);
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
  template <typename Id>
  FS_INLINE void take_row(int64_t at, const Id* sources, int64_t count, int64_t v) {
    for (int64_t i = 0; i < count; ++i) take(at + i, sources[i], v, 1);
  }
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
    first_row_ = begin;
    first_ = edges_.indptr[begin];
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = edges_.indptr[row], last = edges_.indptr[row + 1];
      is_plain(row, first, last) ? take_plain(row, first, last) : take_any(row, first, last);
    }
    if (filled_ > 0) hand_out();
    if (form_ == FS_RATIO_WEIGHTS) scale(begin, end);
  }

 private:
  // Whether the row has neither parallel edges nor one from itself.
  bool is_plain(int64_t row, int64_t first, int64_t last) const {
    bool found = first < last && indices_[first] == row;
#pragma omp simd reduction(| : found)
    for (int64_t edge = first + 1; edge < last; ++edge) {
      found |= (indices_[edge] == indices_[edge - 1]) | (indices_[edge] == row);
    }
    return !found;
  }

  void take_plain(int64_t row, int64_t first, int64_t last) {
    for (int64_t edge = first; edge < last;) {
      const int64_t room = kBlockEdges - filled_, count = last - edge < room ? last - edge : room;
      block_.take_row(filled_, indices_ + edge, count, row);
      edge += count;
      fill(count, row);
    }
  }

  void take_any(int64_t row, int64_t first, int64_t last) {
    for (int64_t edge = first; edge < last;) {
      const int64_t parallel = parallel_edges(indices_, edge, last), u = indices_[edge];
      for (int64_t copy = 0; copy < parallel; ++copy, ++edge) {
        u == row ? block_.take_loop(filled_, row) : block_.take(filled_, u, row, static_cast<double>(parallel));
        fill(1, row);
      }
    }
  }

  // `count` edges of the row have been taken.
  void fill(int64_t count, int64_t row) {
    filled_ += count;
    if (filled_ < kBlockEdges) return;
    hand_out();
    first_row_ = row;
  }

  void hand_out() {
    double chances[kBlockEdges];
    const int64_t count = filled_, first = first_;
    block_.finish(count, chances);
    first_ += count;
    filled_ = 0;
    if (form_ == FS_EDGE_INCLUSION) {
      for (int64_t i = 0; i < count; ++i) static_cast<double*>(out_)[first + i] = chances[i];
      return;
    }
    float* const out = static_cast<float*>(out_) + first;
    if (form_ == FS_RATIO_WEIGHTS) {
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(1 / chances[i]);
      return;
    }
    for (int64_t i = 0, row = first_row_; i < count; ++row) {
      const int64_t end = edges_.indptr[row + 1] - first < count ? edges_.indptr[row + 1] - first : count;
      const double own = block_.node(row);
      for (; i < end; ++i) out[i] = static_cast<float>(own / chances[i]);
    }
  }

  // Every row to its sum. Edge i of a row is added to sum i mod kSums, whatever the width of a vector.
  void scale(int64_t begin, int64_t end) const {
    constexpr int64_t kSums = 8;
    for (int64_t row = begin; row < end; ++row) {
      float* const out = static_cast<float*>(out_) + edges_.indptr[row];
      const int64_t count = edges_.indptr[row + 1] - edges_.indptr[row], whole = count - count % kSums;
      double sums[kSums] = {};
      for (int64_t i = 0; i < whole; i += kSums) {
        for (int64_t k = 0; k < kSums; ++k) sums[k] += out[i + k];
      }
      for (int64_t i = whole; i < count; ++i) sums[i - whole] += out[i];
      const double sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
      const double by = edges_.row_sums[row] / sum;
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(out[i] * by);
    }
  }

  const FsSubgraphEdges& edges_;
  const Id* indices_;
  void* out_;
  Block& block_;
  int32_t form_;
  int64_t first_row_ = 0, first_ = 0, filled_ = 0;  // of the block: the row of its first edge, that edge, its edges
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
