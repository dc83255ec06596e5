// The combined neighbourhood of a collective sample: the rows of its distinct transits, one behind the other.
//
// Nothing is copied: prefix sums of degrees lead from a position to a transit. What a race needs is one pass over the
// rows: a column's weight is the sum over transits v of a(v, u)^2 with a = (A + I) / (row's sum), LADIES'
// row-normalised adjacency; parallel edges, which stand side by side in a row, are added first, a self-loop to the 1 of
// I.
#ifndef FS_CPU_COMBINED_ROWS_H_
#define FS_CPU_COMBINED_ROWS_H_

#include <stdint.h>

#include <algorithm>
#include <vector>

#include "csc_view.h"
#include "node_index.h"

namespace fs {

// Edge values by position: 1 without weights.
class EdgeValues {
 public:
  explicit EdgeValues(const FsWeightTables* weights)
      : floats_(weights != nullptr && weights->weight_type == FS_FLOAT32 ? static_cast<const float*>(weights->weights)
                                                                         : nullptr),
        doubles_(weights != nullptr && weights->weight_type == FS_FLOAT64 ? static_cast<const double*>(weights->weights)
                                                                          : nullptr) {}
  bool all_one() const { return floats_ == nullptr && doubles_ == nullptr; }
  FS_INLINE double operator[](int64_t edge) const {
    if (floats_ != nullptr) return static_cast<double>(floats_[edge]);
    return doubles_ != nullptr ? doubles_[edge] : 1.0;
  }

 private:
  const float* floats_;
  const double* doubles_;
};

template <typename Id>
class CombinedRows {
 public:
  // Distinct transits of transits [count], FS_NULL_NODE left out, in order of first appearance.
  void start(const CscView<Id>& graph, const int64_t* transits, int64_t count) {
    distinct_.start(graph.num_rows);
    for (int64_t i = 0; i < count; ++i) {
      if (transits[i] >= 0) distinct_.enter(static_cast<Id>(transits[i]));
    }
    ends_.resize(static_cast<size_t>(distinct_.count()) + 1);
    ends_[0] = 0;
    for (int64_t i = 0; i < distinct_.count(); ++i) {
      const int64_t row = distinct_.node(i);
      ends_[static_cast<size_t>(i) + 1] = ends_[static_cast<size_t>(i)] + graph.indptr[row + 1] - graph.indptr[row];
    }
  }

  int64_t count() const { return distinct_.count(); }
  Id transit(int64_t i) const { return distinct_.node(i); }
  const Id* transits() const { return distinct_.nodes(); }
  int64_t num_edges() const { return ends_[static_cast<size_t>(distinct_.count())]; }
  const int64_t* ends() const { return ends_.data(); }  // [count() + 1] prefix sums of degrees
  size_t bytes() const { return distinct_.bytes() + ends_.capacity() * sizeof(int64_t); }

  // The source of an edge of the combined neighbourhood.
  Id source(const CscView<Id>& graph, int64_t edge) const {
    const auto end = ends_.begin() + distinct_.count() + 1;
    const int64_t at = std::upper_bound(ends_.begin(), end, edge) - ends_.begin() - 1;
    return graph.indices[graph.indptr[distinct_.node(at)] + edge - ends_[static_cast<size_t>(at)]];
  }

 private:
  NodeIndex<Id> distinct_;
  std::vector<int64_t> ends_;
};

// Weights of the columns of the rows added so far.
template <typename Id>
class ColumnSums {
 public:
  void start(int64_t num_rows) {
    columns_.start(num_rows);
    sums_.clear();
    orig_ids_.clear();
    rows_.clear();
  }

  // Makes them those of exactly these rows. Rows that begin like those of the last call are added to it: sums are made
  // from the left, so the result is the same.
  void follow(const CscView<Id>& graph, const EdgeValues& values, const Id* rows, int64_t count) {
    const bool grows = static_cast<int64_t>(rows_.size()) <= count && std::equal(rows_.begin(), rows_.end(), rows);
    if (!grows) start(graph.num_rows);
    for (int64_t i = static_cast<int64_t>(rows_.size()); i < count; ++i) {
      if (i + kAhead < count) __builtin_prefetch(graph.indices + graph.indptr[rows[i + kAhead]]);
      add_row(graph, values, rows[i]);
      rows_.push_back(rows[i]);
    }
    const int64_t known = static_cast<int64_t>(orig_ids_.size());
    orig_ids_.resize(static_cast<size_t>(columns_.count()));
    const Id* nodes = columns_.nodes();
    uint64_t* orig_ids = orig_ids_.data();
    for (int64_t i = known; i < columns_.count(); ++i) orig_ids[i] = graph.orig_id(nodes[i]);
  }

  int64_t count() const { return columns_.count(); }
  Id node(int64_t column) const { return columns_.node(column); }
  const double* sums() const { return sums_.data(); }
  const uint64_t* orig_ids() const { return orig_ids_.data(); }
  double sum_of(Id node) const {
    const int32_t column = columns_.find(node);
    return column < 0 ? 0 : sums_[static_cast<size_t>(column)];
  }
  size_t bytes() const {
    return columns_.bytes() + (sums_.capacity() + orig_ids_.capacity()) * 8 + rows_.capacity() * sizeof(Id);
  }

 private:
  // Slots of a direct index take 4 bytes per row of the graph and thread: 4 MiB.
  static constexpr int64_t kDirectRows = 1 << 20;
  static constexpr int64_t kAhead = 4;  // rows whose first neighbours are asked for early

  FS_INLINE void add(Id node, double square) {
    const size_t column = static_cast<size_t>(columns_.enter(node));
    if (column == sums_.size()) sums_.push_back(0);
    sums_[column] += square;
  }

  void add_row(const CscView<Id>& graph, const EdgeValues& values, Id row) {
    const int64_t begin = graph.indptr[row], end = graph.indptr[row + 1];
    if (values.all_one() && columns_.is_direct()) return add_plain_row(graph, row, begin, end);
    double total = 0, own = 0;
    for (int64_t edge = begin; edge < end; ++edge) total += values[edge];
    total += 1;
    for (int64_t edge = begin; edge < end;) {
      const Id source = graph.indices[edge];
      double value = values[edge];
      for (++edge; edge < end && graph.indices[edge] == source; ++edge) value += values[edge];
      if (source == row) {
        own = value;
      } else {
        add(source, value / total * (value / total));
      }
    }
    add(row, (1 + own) / total * ((1 + own) / total));
  }

  // The same without weights, where a node's slot is its id. Whether a column is new is a coin toss, so both ways are
  // one: a new column's sum is 0 already.
  void add_plain_row(const CscView<Id>& graph, Id row, int64_t begin, int64_t end) {
    const double total = static_cast<double>(end - begin) + 1, share = 1.0 / total, single = share * share;
    const size_t count = static_cast<size_t>(columns_.count());
    const size_t most = count + static_cast<size_t>(end - begin) + 1;
    columns_.entered().resize(most);
    sums_.resize(most, 0);
    Id* nodes = columns_.entered().data();
    int32_t* slots = columns_.slots();
    double* sums = sums_.data();
    int32_t next = static_cast<int32_t>(count);
    const auto add_to = [&](Id node, double square) {
      const int32_t found = slots[node], column = found < 0 ? next : found;
      slots[node] = column;
      nodes[next] = node;
      next += found < 0;
      sums[column] += square;
    };
    double own = 1;
    for (int64_t edge = begin; edge < end;) {
      const Id source = graph.indices[edge];
      if (!graph.has_row(source)) {
        columns_.entered().resize(static_cast<size_t>(next));
        throw BadSource{static_cast<int64_t>(source)};
      }
      int64_t last = edge + 1;
      while (last < end && graph.indices[last] == source) ++last;
      const double value = static_cast<double>(last - edge);
      edge = last;
      if (source == row) {
        own += value;
      } else {
        add_to(source, value == 1 ? single : value / total * (value / total));
      }
    }
    add_to(row, own / total * (own / total));
    columns_.entered().resize(static_cast<size_t>(next));
    sums_.resize(static_cast<size_t>(next));
  }

  NodeIndex<Id> columns_{kDirectRows};
  std::vector<double> sums_;        // by column
  std::vector<uint64_t> orig_ids_;  // by column
  std::vector<Id> rows_;            // added so far
};

}  // namespace fs

#endif  // FS_CPU_COMBINED_ROWS_H_
