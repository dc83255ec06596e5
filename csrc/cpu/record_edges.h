// Recorded edges of a collective sample: those of the graph that lead from given sources to given destinations, as hops
// of a mini-batch in canonical row order.
//
// Where the rows are those of the columns that the sample follows (combined_rows.h), a source's edges are found by its
// links. A row that has none is scanned, asking for every neighbour whether it is a source; or, where it is long and
// the sources are few, every source is searched in it, as rows ascend by original id. That needs no table: a query of
// the hashed rows costs about as much as two neighbours scanned, and there are sources x destinations of them.
//
// Where destinations are sources, too, a hop has all nodes of the hop before as sources and the edges of its rows
// again: in these rows only the fresh sources are sought.
#ifndef FS_CPU_RECORD_EDGES_H_
#define FS_CPU_RECORD_EDGES_H_

#include <stdint.h>

#include <vector>

#include "combined_rows.h"
#include "fastsample_transit.h"

namespace fs {

// What a hop is recorded from.
template <typename Id>
struct RecordRequest {
  const CscView<Id>& graph;
  const EdgeValues& values;
  const FsCollectiveSpec& spec;
  const ColumnSums<Id>* columns;  // null: rows are scanned
  const int64_t* picks;           // [num_picks] of the step, FS_NULL_NODE: none
  int64_t num_picks;
  bool with_destinations;  // destinations are sources, too
};

template <typename Id>
class EdgeRecorder {
 public:
  void start(int64_t num_rows);

  // Nodes of the sample so far, by local id: the destinations of the next hop.
  int64_t num_nodes() const { return static_cast<int64_t>(nodes_.size()); }
  const Id* nodes() const { return nodes_.data(); }
  void add_node(Id node);  // unless it is there

  // Appends the hop into all nodes so far. Sources that are new become nodes.
  void record(const RecordRequest<Id>& request);

  // The edges in one block of the library's, which begins with the hops.
  FsRecordedEdges finish(FsEdgeScale scale);

  size_t bytes() const;

 private:
  struct Member {
    int64_t local;   // id in the batch, -1: none yet
    int64_t hop;     // of which it is a source to record
    int64_t sought;  // hop in whose rows it is looked for
    int64_t chosen;  // how often it was picked there
    double column;   // weight of its column there
  };
  struct Source {
    uint64_t orig_id;
    int32_t member;
    int32_t column;  // negative: none
  };
  // An edge from a source that is sought.
  struct Found {
    int64_t edge;
    int32_t row, member;
    bool operator<(const Found& other) const { return edge < other.edge; }
  };
  // Of the hop before, where its rows are in this one, too.
  struct Before {
    int64_t num_dst = 0, num_src = 0;
    size_t first_edge = 0, first_offset = 0;
  };

  int32_t member_of(Id node);
  void choose_sources(const RecordRequest<Id>& request, int64_t num_known);
  void choose(const RecordRequest<Id>& request, int32_t number, int64_t picks);
  void mark(size_t first, size_t last);
  template <typename RowAt>
  void fetch_ahead(const CscView<Id>& graph, int64_t i, int64_t num_rows, const RowAt& row_at) const;
  void follow_links(const RecordRequest<Id>& request, int64_t num_old);
  template <typename RowAt>
  void look_through(const RecordRequest<Id>& request, int64_t num_old, int64_t num_rows, const RowAt& row_at);
  template <typename Take>
  void find_edges(const RecordRequest<Id>& request, Id row, const Take& take);
  template <typename Take>
  void scan_row(const RecordRequest<Id>& request, Id row, const Take& take);
  template <typename Take>
  void search_row(const RecordRequest<Id>& request, Id row, const Take& take);
  void group_by_row(int64_t num_dst);
  void add_rows(const RecordRequest<Id>& request, const Before& before, int64_t num_dst);
  int64_t local_of(int32_t number);
  void weigh_row(const RecordRequest<Id>& request, Id row, size_t first, size_t last);
  double weight_of(const RecordRequest<Id>& request, Id row, int32_t number, int64_t edge) const;
  uint8_t& marked(Id node) {
    return marks_[static_cast<size_t>(static_cast<uint64_t>(node) * 0x9E3779B97F4A7C15ull >> (64 - kLog2Marks))];
  }

  NodeIndex<Id> index_;  // of members
  std::vector<Member> members_;
  std::vector<Id> nodes_;
  std::vector<int32_t> local_members_;  // by local id
  std::vector<Source> sources_;         // of the hop, fresh ones first
  size_t num_fresh_ = 0;
  size_t sought_ = 0;  // how many of the sources the row at hand is asked for
  std::vector<Found> found_, by_row_;
  std::vector<size_t> row_ends_;  // of the rows in by_row_; one in front
  // By a hash of the node: not 0 where a source may be. Most neighbours are none, and are passed over by this alone.
  static constexpr int kLog2Marks = 15;
  std::vector<uint8_t> marks_ = std::vector<uint8_t>(size_t{1} << kLog2Marks);
  // Of all hops, one behind the other.
  std::vector<FsRecordedHop> hops_;
  std::vector<int64_t> offsets_, edge_ids_;
  std::vector<Id> indices_;
  std::vector<double> weights_;
  std::vector<double> shares_;  // by local id: what an edge of value 1 weighs by its column
};

}  // namespace fs

#endif  // FS_CPU_RECORD_EDGES_H_
