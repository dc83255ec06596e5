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
#include <type_traits>
#include <vector>

#include "csc_view.h"
#include "node_index.h"
#include "vector/vector_kernels.h"

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

// The columns of the rows added so far: their weights, and where in the rows each of them stands.
//
// Edges are linked by column: an edge of a row has the link first_links_[row] + its place in the row, which leads to
// the edge of the same column that was linked before. So the edges that come from a few sources are found without a
// look at the others. Rows of more than kLinkedDegree edges are left out of that: searching a source in one is cheaper.
template <typename Id>
class ColumnSums {
 public:
  void start(int64_t num_rows) {
    add_columns_ = vector_kernels().add_columns;
    columns_.start(num_rows);
    num_known_ = num_links_ = num_empty_ = 0;
    rows_.clear();
    first_links_.clear();
    long_rows_.clear();
  }

  // Makes them those of exactly these rows. Rows that begin like those of the last call are added to it: sums are made
  // from the left, so the result is the same. Without `with_sums`, which stays the same until the next start, long rows
  // are passed over.
  void follow(const CscView<Id>& graph, const EdgeValues& values, const Id* rows, int64_t count, bool with_sums) {
    const bool grows = static_cast<int64_t>(rows_.size()) <= count && std::equal(rows_.begin(), rows_.end(), rows);
    if (!grows) start(graph.num_rows);
    for (int64_t i = static_cast<int64_t>(rows_.size()); i < count; ++i) {
      ask_ahead(graph, rows, i, count);
      add_row(graph, values, rows[i], with_sums);
    }
  }

  // Whether the rows added are these.
  bool has_rows(const Id* rows, int64_t count) const {
    return static_cast<int64_t>(rows_.size()) == count && std::equal(rows_.begin(), rows_.end(), rows);
  }

  int64_t count() const { return columns_.count(); }
  Id node(int64_t column) const { return columns_.node(column); }
  const Id* nodes() const { return columns_.nodes(); }
  const double* sums() const { return sums_.data(); }
  const uint64_t* orig_ids(const CscView<Id>& graph) {
    orig_ids_.resize(std::max(orig_ids_.size(), static_cast<size_t>(columns_.count())));
    uint64_t* orig_ids = orig_ids_.data();
    for (; num_known_ < columns_.count(); ++num_known_) orig_ids[num_known_] = graph.orig_id(node(num_known_));
    return orig_ids;
  }
  int32_t column_of(Id node) const { return columns_.find(node); }  // negative: none
  double sum_of(int32_t column) const { return column < 0 ? 0 : sums_[static_cast<size_t>(column)]; }

  // Edges of a column, those of later rows first.
  int32_t first_link(int32_t column) const { return column < 0 ? kNoLink : heads_[static_cast<size_t>(column)]; }
  ColumnLink link(int32_t number) const { return links_[static_cast<size_t>(number)]; }
  int64_t edge_of(const CscView<Id>& graph, int32_t number) const {
    const size_t row = static_cast<size_t>(link(number).row);
    return graph.indptr[rows_[row]] + (number - first_links_[row]);
  }
  const std::vector<int32_t>& long_rows() const { return long_rows_; }  // without links, ascending

  size_t bytes() const {
    return columns_.bytes() + (sums_.capacity() + orig_ids_.capacity()) * 8 + rows_.capacity() * sizeof(Id) +
           links_.capacity() * sizeof(ColumnLink) +
           (heads_.capacity() + first_links_.capacity() + long_rows_.capacity()) * sizeof(int32_t);
  }

 private:
  // Slots of a direct index take 4 bytes per row of the graph and thread: 4 MiB.
  static constexpr int64_t kDirectRows = 1 << 20;
  // A link takes about a nanosecond, a search of 64 sources in a row of 4096 about two microseconds.
  static constexpr int64_t kLinkedDegree = 4096;

  // Rows lie anywhere: asks early for where those to come begin, and then for their first neighbours.
  static FS_INLINE void ask_ahead(const CscView<Id>& graph, const Id* rows, int64_t i, int64_t count) {
    constexpr int64_t kBegin = 12, kRow = 6, kLine = 64 / sizeof(Id), kLines = 3;
    if (i + kBegin < count) __builtin_prefetch(graph.indptr + rows[i + kBegin]);
    if (i + kRow >= count) return;
    const Id* row = graph.indices + graph.indptr[rows[i + kRow]];
    for (int64_t line = 0; line < kLines; ++line) __builtin_prefetch(row + line * kLine);
  }

  void add_row(const CscView<Id>& graph, const EdgeValues& values, Id row, bool with_sums) {
    const int64_t degree = graph.indptr[row + 1] - graph.indptr[row];
    const bool is_linked = degree <= kLinkedDegree && num_links_ + degree <= INT32_MAX;
    const int64_t room = degree + 1 + kColumnLanes, most = columns_.count() + room;
    if (is_linked || with_sums) {
      columns_.make_room(room);
      make_empty(most, with_sums);
    }
    if (is_linked) make_room(&links_, num_links_ + degree + kColumnLanes);
    first_links_.push_back(is_linked ? static_cast<int32_t>(num_links_) : kNoLink);
    if (!is_linked) long_rows_.push_back(static_cast<int32_t>(rows_.size()));
    if (columns_.is_direct()) {
      add_edges<typename NodeIndex<Id>::DirectEntries>(graph, values, row, is_linked, with_sums);
    } else {
      add_edges<typename NodeIndex<Id>::Entries>(graph, values, row, is_linked, with_sums);
    }
    if (is_linked) num_links_ += degree;
    rows_.push_back(row);
  }

  template <typename Entries>
  void add_edges(const CscView<Id>& graph, const EdgeValues& values, Id row, bool is_linked, bool with_sums) {
    if (!with_sums) {
      if (is_linked) link_edges_of<Entries>(graph, row);
    } else if (values.all_one()) {
      is_linked ? add_edges_of<true, true, Entries>(graph, values, row)
                : add_edges_of<true, false, Entries>(graph, values, row);
    } else {
      is_linked ? add_edges_of<false, true, Entries>(graph, values, row)
                : add_edges_of<false, false, Entries>(graph, values, row);
    }
  }

  // The vector kernel on the next `count` edges of a row; returns how many it took.
  template <typename Entries>
  FS_INLINE int64_t add_many(Entries* entries, const Id* sources, int64_t count, Id row, double square, double* sums,
                             ColumnLink* links, int64_t first_link) {
    if constexpr (std::is_same_v<Entries, typename NodeIndex<int32_t>::DirectEntries>) {
      if (add_columns_ == nullptr) return 0;
      const auto memory = entries->memory();
      ColumnRun run = {sources,
                       count,
                       row,
                       static_cast<uint32_t>(memory.num_rows),
                       square,
                       memory.slots,
                       memory.base,
                       memory.next,
                       memory.nodes,
                       sums,
                       heads_.data(),
                       links,
                       static_cast<int32_t>(first_link),
                       static_cast<int32_t>(rows_.size())};
      const int64_t taken = add_columns_(&run);
      entries->go_on_with(run.next_column);
      empty(run.next_column, run.next_column + kColumnLanes, sums != nullptr);  // lanes behind the last column
      return taken;
    } else {
      return 0;
    }
  }

  // Links of a row whose columns have no sums.
  template <typename Entries>
  __attribute__((noinline)) void link_edges_of(const CscView<Id>& graph, Id row) {
    Entries entries(&columns_);
    const int64_t degree = graph.indptr[row + 1] - graph.indptr[row];
    const Id* sources = graph.indices + graph.indptr[row];
    int32_t* heads = heads_.data();
    ColumnLink* links = links_.data() + num_links_;
    const int32_t first_link = static_cast<int32_t>(num_links_), number = static_cast<int32_t>(rows_.size());
    for (int64_t i = 0; i < degree;) {
      i += add_many(&entries, sources + i, degree - i, row, 0, nullptr, links + i, first_link + i);
      for (const int64_t end = plain_end(i, degree); i < end; ++i) {
        entries.check(sources[i]);
        const int32_t column = entries.enter(sources[i]);
        links[i] = {heads[column], number};
        heads[column] = first_link + static_cast<int32_t>(i);
      }
    }
  }

  // Whether a column is new is a coin toss, so both ways are one: columns to come are empty.
  template <bool kOnes, bool kLinked, typename Entries>
  __attribute__((noinline)) void add_edges_of(const CscView<Id>& graph, const EdgeValues& values, Id row) {
    Entries entries(&columns_);
    const int64_t degree = graph.indptr[row + 1] - graph.indptr[row], first_edge = graph.indptr[row];
    const Id* sources = graph.indices + first_edge;
    double* sums = sums_.data();
    int32_t* heads = heads_.data();
    ColumnLink* links = kLinked ? links_.data() + num_links_ : nullptr;
    const int32_t first_link = static_cast<int32_t>(num_links_), number = static_cast<int32_t>(rows_.size());
    // Adds to a column, which is returned.
    const auto add_to = [&](Id node, double square) {
      const int32_t column = entries.enter(node);
      sums[column] += square;
      return column;
    };
    const auto link = [&](int32_t column, int64_t edge) {
      if (!kLinked) return;
      links[edge] = {heads[column], number};
      heads[column] = first_link + static_cast<int32_t>(edge);
    };
    double total = static_cast<double>(degree);
    if (!kOnes) {
      total = 0;
      for (int64_t i = 0; i < degree; ++i) total += values[first_edge + i];
    }
    total += 1;
    const double share = 1.0 / total, single = share * share;
    double own = 0;
    int64_t own_first = 0, own_last = 0;
    for (int64_t i = 0; i < degree;) {
      if (kOnes) {
        i += add_many(&entries, sources + i, degree - i, row, single, sums, kLinked ? links + i : nullptr,
                      first_link + i);
        const int64_t end = std::min(plain_end(i, degree), degree - 1);  // the last edge has no next one
        for (; i < end; ++i) {
          if (sources[i] == sources[i + 1] || sources[i] == row) break;
          entries.check(sources[i]);
          link(add_to(sources[i], single), i);
        }
        if (i == degree) break;
      }
      const Id source = sources[i];
      entries.check(source);
      int64_t first = i++;
      while (i < degree && sources[i] == source) ++i;
      double value = static_cast<double>(i - first);
      if (!kOnes) {
        value = values[first_edge + first];
        for (int64_t next = first + 1; next < i; ++next) value += values[first_edge + next];
      }
      if (source == row) {
        own = value;
        own_first = first;
        own_last = i;
      } else {
        const int32_t column = add_to(source, value / total * (value / total));
        for (; first < i; ++first) link(column, first);
      }
    }
    const int32_t column = add_to(row, (1 + own) / total * ((1 + own) / total));
    for (; own_first < own_last; ++own_first) link(column, own_first);
  }

  // Makes room for `most` columns, and empties those to come; some more, as rows are short.
  void make_empty(int64_t most, bool with_sums) {
    constexpr int64_t kMore = 1024;
    if (most <= num_empty_) return;
    make_room(&heads_, most + kMore);
    if (with_sums) make_room(&sums_, most + kMore);
    empty(num_empty_, most + kMore, with_sums);
    num_empty_ = most + kMore;
  }
  FS_INLINE void empty(int64_t begin, int64_t end, bool with_sums) {
    std::fill(heads_.begin() + begin, heads_.begin() + end, kNoLink);
    if (with_sums) std::fill(sums_.begin() + begin, sums_.begin() + end, 0.0);
  }

  // Where the plain loop over a row ends that goes on at edge i: the vector kernel is asked again behind a few edges.
  int64_t plain_end(int64_t i, int64_t degree) const {
    return add_columns_ == nullptr ? degree : std::min(degree, i + kColumnLanes);
  }

  template <typename T>
  static void make_room(std::vector<T>* values, int64_t wanted) {
    if (values->size() < static_cast<size_t>(wanted)) values->resize(2 * static_cast<size_t>(wanted));
  }

  NodeIndex<Id> columns_{kDirectRows};
  std::vector<double> sums_;        // by column, and room
  std::vector<int32_t> heads_;      // by column, and room: the link made last
  std::vector<uint64_t> orig_ids_;  // by column, num_known_ of them
  std::vector<ColumnLink> links_;   // num_links_ of them, and room
  std::vector<Id> rows_;            // added so far
  std::vector<int32_t> first_links_, long_rows_;
  int64_t num_known_ = 0, num_links_ = 0;
  int64_t num_empty_ = 0;  // columns that are there, and those behind them that are empty
  int64_t (*add_columns_)(ColumnRun*) = nullptr;
};

}  // namespace fs

#endif  // FS_CPU_COMBINED_ROWS_H_
